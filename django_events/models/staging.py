"""What Spark is publishing: rows that its tasks staged, and the batches that were published."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.buffer import EventColumns
from django_events.models.functions import ClockTimestamp


class StagedEvent(EventColumns):
    """An event that a task of Spark has written and the driver has not published yet, or never will."""

    id = models.BigAutoField(primary_key=True)
    attempt = models.UUIDField(_("attempt"), help_text=_("Of a task: one of them is published."))
    staged_at = models.DateTimeField(_("staged at"), db_default=ClockTimestamp(), editable=False)

    class Meta:
        verbose_name = _("staged event")
        verbose_name_plural = _("staged events")
        default_permissions = ()
        indexes = [
            models.Index(fields=["attempt", "id"], name="django_events_staged_attempt"),
            models.Index(fields=["staged_at"], name="django_events_staged_age"),
        ]

    def __str__(self) -> str:
        return f"{self.topic_id}/?{self.id}"


class SinkBatch(models.Model):
    """The last batch that a sink has published: it is known when it comes again."""

    sink = models.CharField(_("sink"), max_length=63, primary_key=True)
    batch = models.BigIntegerField(_("batch"))
    events = models.BigIntegerField(_("events"))
    query = models.TextField(
        _("query"), blank=True, default="", help_text=_("Its id, from its checkpoint; empty outside of a stream.")
    )
    run = models.TextField(_("run"), blank=True, default="", help_text=_("Of the query: another after each start."))
    published_at = models.DateTimeField(_("published at"), db_default=ClockTimestamp(), editable=False)

    class Meta:
        verbose_name = _("batch of a sink")
        verbose_name_plural = _("batches of sinks")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.sink}/{self.batch}"
