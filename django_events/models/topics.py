"""Topics, and the lock of each."""

import uuid
from datetime import timedelta
from typing import NamedTuple

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.functions import ClockTimestamp

DAY = timedelta(days=1)


class Layout(NamedTuple):
    """Into how many partitions a log is divided from an id on, until the next layout begins."""

    first_id: int
    partitions: int


class Topic(models.Model):
    """A named log. Apps declare topics in `events.py`; `migrate` makes these rows."""

    id = models.AutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=63, unique=True)
    incarnation = models.UUIDField(
        _("incarnation"),
        default=uuid.uuid4,
        editable=False,
        help_text=_("Changes when the topic is made anew, so that readers' checkpoints notice."),
    )
    partitions = models.PositiveIntegerField(_("partitions"), default=1)
    layouts = models.JSONField(
        _("layouts"),
        default=list,
        db_default=models.Value([], models.JSONField()),
        editable=False,
        help_text=_("From which id on it had how many partitions, if the number was changed while there were events."),
    )
    retention = models.DurationField(_("retention"), null=True, blank=True)
    retention_events = models.BigIntegerField(_("retention by events"), null=True, blank=True)
    retention_bytes = models.BigIntegerField(_("retention by bytes"), null=True, blank=True)
    keep_unread = models.BooleanField(
        _("keeps what is unread"),
        default=True,
        help_text=_("Events that a consumer still has to handle are kept for longer than retention says."),
    )
    segment_size = models.BigIntegerField(_("segment size"), default=1_000_000)
    timeline = models.BooleanField(_("timeline"), default=False)
    compact = models.BooleanField(
        _("compacted"),
        default=False,
        db_default=False,
        help_text=_("Of the events of a key that all consumers have passed, only the newest is kept."),
    )
    tombstones_kept = models.DurationField(_("tombstones kept"), default=DAY, db_default=DAY)
    mirror_of = models.TextField(
        _("mirror of"),
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text=_("The source of a mirror, to which nothing is published here."),
    )
    failing_since = models.DateTimeField(_("fails since"), null=True, blank=True, editable=False)
    failure = models.CharField(_("failure"), max_length=5, blank=True, default="", db_default="", editable=False)
    error = models.TextField(_("error"), blank=True, default="", db_default="", editable=False)
    created_at = models.DateTimeField(_("created at"), db_default=ClockTimestamp(), editable=False)

    class Meta:
        db_table = "django_events_topic"
        verbose_name = _("topic")
        verbose_name_plural = _("topics")
        default_permissions = ("view",)
        permissions = [
            ("remove_topic", "Can remove topics"),
            ("repartition_topic", "Can change the number of partitions of topics"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def all_layouts(self) -> tuple[Layout, ...]:
        """Into how many partitions its log is divided, from which id on, oldest first."""
        return tuple(Layout(*layout) for layout in self.layouts) or (Layout(1, self.partitions),)

    def layout_at(self, event_id: int) -> int:
        """Which of `all_layouts` an event is in."""
        return max((n for n, layout in enumerate(self.all_layouts) if layout.first_id <= event_id), default=0)

    def partitions_from(self, index: int) -> int:
        """How many partitions it has at most, from a layout on."""
        return max(layout.partitions for layout in self.all_layouts[index:])

    @property
    def most_partitions(self) -> int:
        """The highest number of partitions that its log was ever divided into."""
        return self.partitions_from(0)

    @property
    def is_undivided(self) -> bool:
        """Whether all its events are in one partition, so that their numbers are their ids."""
        return self.most_partitions == 1


class TopicHead(models.Model):
    """The lock of a topic: the transaction that holds it is the one writer of the topic's log.

    It is not written per batch. The floors are the last id that retention removed, and the numbers that the
    partitions had reached there: what the log can't tell any more. Up to `compacted_until` events may be missing that
    a newer one of their key came after, and so many events are there.
    """

    topic = models.OneToOneField(Topic, models.CASCADE, primary_key=True, related_name="head", verbose_name=_("topic"))
    id_floor = models.BigIntegerField(_("id floor"), default=0)
    number_floors = models.JSONField(_("number floors"), default=list)
    compacted_until = models.BigIntegerField(_("compacted until"), default=0, db_default=0)
    kept_events = models.BigIntegerField(_("kept events"), default=0, db_default=0)

    class Meta:
        verbose_name = _("topic head")
        verbose_name_plural = _("topic heads")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.topic)
