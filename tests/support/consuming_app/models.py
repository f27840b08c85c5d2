"""What handlers leave behind."""

from django.db import models


class Effect(models.Model):
    """A transactional handler was here. Nothing keeps it from being written twice."""

    consumer = models.CharField(max_length=63)
    event = models.CharField(max_length=80)
    attempt = models.IntegerField()
    note = models.CharField(max_length=80, blank=True)

    def __str__(self) -> str:
        return f"{self.consumer}: {self.event}"
