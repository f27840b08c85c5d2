"""The buffer: events that are published and not in the log yet; those that are for later; the keys of both."""

from typing import Self

from django.db import models, router
from django.utils.translation import gettext_lazy as _

from django_events import declarations
from django_events.models.functions import ClockTimestamp, TopicId
from django_events.models.topic_queries import TopicQuerySet
from django_events.models.topics import Topic


class EventColumns(models.Model):
    """What an event has from the moment it is published."""

    topic = models.ForeignKey(
        Topic,
        models.DO_NOTHING,
        related_name="+",
        db_constraint=False,
        db_index=False,
        verbose_name=_("topic"),
    )
    partition = models.IntegerField(_("partition"), null=True, blank=True)
    type = models.CharField(_("type"), max_length=200, blank=True, db_default="")
    key = models.CharField(_("key"), max_length=512, null=True, blank=True, db_collation="C")
    value = models.JSONField(_("value"), null=True, blank=True)
    body = models.BinaryField(_("body"), null=True)
    metadata = models.JSONField(_("metadata"), blank=True, db_default=models.Value({}, models.JSONField()))

    class Meta:
        abstract = True


def writable(using: str | None = None) -> str:
    """The alias that is meant: by default the one where the router writes events."""
    return using or router.db_for_write(BufferedEvent)


class BufferedEvent(EventColumns):
    """An event that was published and is not in the log yet.

    Rows are inserted and deleted, never updated. The id is the order of the inserts and comes from
    the database alone (GENERATED ALWAYS, no cache); the transfer gives an event its id in the log.
    """

    pk = models.CompositePrimaryKey("topic_id", "id")
    id = models.BigIntegerField(_("ticket"), editable=False)
    published_at = models.DateTimeField(_("published at"), db_default=ClockTimestamp(), editable=False)

    class Meta:
        verbose_name = _("buffered event")
        verbose_name_plural = _("buffered events")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.topic_id}/+{self.id}"


class ScheduledEventQuerySet(TopicQuerySet["ScheduledEvent"]):
    """Events that are for later. The topic is a declaration or its name."""

    def of(self, topic: declarations.DeclaredTopic | str) -> Self:
        """Those of one topic, in the order in which they will be published."""
        return self.filter(topic_id=TopicId(topic)).order_by("publish_at", "id")


class ScheduledEvent(EventColumns):
    """An event that is published when its time has come, by the transfer. Until then it can be changed or deleted."""

    id = models.BigAutoField(_("ticket"), primary_key=True)
    publish_at = models.DateTimeField(_("publish at"))
    scheduled_at = models.DateTimeField(_("scheduled at"), db_default=ClockTimestamp(), editable=False)

    objects = ScheduledEventQuerySet.as_manager()

    class Meta:
        verbose_name = _("scheduled event")
        verbose_name_plural = _("scheduled events")
        default_permissions = ("view",)
        permissions = [
            ("cancel_scheduledevent", "Can cancel scheduled events"),
            ("publish_scheduledevent", "Can publish scheduled events now"),
        ]
        indexes = [models.Index(fields=["publish_at", "id"], name="django_events_scheduled_due")]

    def __str__(self) -> str:
        return f"{self.topic_id}/@{self.id}"


class DedupKey(models.Model):
    """A dedup key of a topic that is taken: until it expires, no other event is published with it."""

    pk = models.CompositePrimaryKey("topic_id", "key")
    topic = models.ForeignKey(
        Topic,
        models.DO_NOTHING,
        related_name="+",
        db_constraint=False,
        db_index=False,
        verbose_name=_("topic"),
    )
    key = models.CharField(_("dedup key"), max_length=512, db_collation="C")
    expires_at = models.DateTimeField(_("expires at"))

    class Meta:
        verbose_name = _("dedup key")
        verbose_name_plural = _("dedup keys")
        default_permissions = ()
        indexes = [models.Index(fields=["expires_at"], name="django_events_dedup_expired")]

    def __str__(self) -> str:
        return self.key
