"""The buffer: events that are published and not in the log yet."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.functions import ClockTimestamp
from django_events.models.topics import Topic


class BufferedEvent(models.Model):
    """An event that was published and is not in the log yet.

    Rows are inserted and deleted, never updated. The id is the order of the inserts and comes from
    the database alone (GENERATED ALWAYS, no cache); the transfer gives an event its id in the log.
    """

    pk = models.CompositePrimaryKey("topic_id", "id")
    topic = models.ForeignKey(
        Topic,
        models.DO_NOTHING,
        related_name="+",
        db_constraint=False,
        db_index=False,
        verbose_name=_("topic"),
    )
    id = models.BigIntegerField(_("ticket"), editable=False)
    partition = models.IntegerField(_("partition"), null=True, blank=True)
    type = models.CharField(_("type"), max_length=200, blank=True, db_default="")
    key = models.CharField(_("key"), max_length=512, null=True, blank=True)
    value = models.JSONField(_("value"), null=True, blank=True)
    body = models.BinaryField(_("body"), null=True)
    metadata = models.JSONField(_("metadata"), blank=True, db_default=models.Value({}, models.JSONField()))
    published_at = models.DateTimeField(_("published at"), db_default=ClockTimestamp(), editable=False)

    class Meta:
        verbose_name = _("buffered event")
        verbose_name_plural = _("buffered events")

    def __str__(self) -> str:
        return f"{self.topic_id}/+{self.id}"
