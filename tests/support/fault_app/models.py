"""What handlers leave behind, for a test to compare with the log."""

from django.db import models
from django.db.models.functions import Now


class Effect(models.Model):
    """What a transactional handler did. Nothing here keeps it from being done twice."""

    consumer = models.CharField(max_length=63)
    topic = models.CharField(max_length=63)
    event_id = models.BigIntegerField()
    partition = models.IntegerField()
    key = models.CharField(max_length=512, null=True)
    value = models.JSONField(null=True)
    attempt = models.IntegerField()
    pid = models.IntegerField()
    written_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.consumer}: {self.topic}/{self.event_id}"


class Spell(models.Model):
    """A time in which a process had events of a partition in hand, written beside its transaction.

    A process that was killed meanwhile leaves it without an end.
    """

    consumer = models.CharField(max_length=63)
    topic = models.CharField(max_length=63)
    partition = models.IntegerField()
    pid = models.IntegerField()
    began_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.consumer}: {self.topic}, partition {self.partition}, process {self.pid}"


class Shelf(models.Model):
    """One row that many handlers change."""

    taken = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.taken} taken"
