"""Clocks, which publish an event at each tick."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.topics import Topic


class Clock(models.Model):
    """What a clock publishes and when. Apps declare clocks in `events.py`; `migrate` makes these rows.

    The transaction that publishes a tick has the row locked and moves `next_at` on.
    """

    id = models.AutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=300, unique=True)
    topic = models.ForeignKey(Topic, models.CASCADE, related_name="clocks", verbose_name=_("topic"))
    cron = models.CharField(_("times"), max_length=200, help_text=_("A cron expression."))
    tz = models.CharField(_("time zone"), max_length=100)
    type = models.CharField(_("type"), max_length=200)
    key = models.CharField(_("key"), max_length=512, null=True, blank=True, db_collation="C")
    value = models.JSONField(_("value"), null=True, blank=True)
    missed = models.CharField(
        _("missed ticks"),
        max_length=6,
        choices=[("latest", _("latest")), ("all", _("all")), ("skip", _("skip"))],
    )
    overlap = models.CharField(
        _("overlap"),
        max_length=5,
        default="allow",
        choices=[("allow", _("allow")), ("skip", _("skip"))],
        help_text=_("Whether a tick is left out while a consumer has not handled the one before."),
    )
    next_at = models.DateTimeField(_("next tick"))
    last_at = models.DateTimeField(_("last tick"), null=True, blank=True)
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    last_ticket = models.BigIntegerField(_("ticket of the last tick"), null=True, blank=True, editable=False)
    last_published_at = models.DateTimeField(_("last tick published at"), null=True, blank=True, editable=False)
    last_behind = models.BigIntegerField(
        _("last tick is behind"),
        default=0,
        db_default=0,
        editable=False,
        help_text=_("An id of the log: the event of the last tick has a higher one."),
    )
    overlapped = models.BigIntegerField(_("overlapped"), default=0, db_default=0, editable=False)
    overlapped_at = models.DateTimeField(_("last overlapped tick"), null=True, blank=True, editable=False)
    overlapped_by = models.CharField(
        _("overlapped by"),
        max_length=63,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text=_("The consumer that had not handled the tick before."),
    )
    overlapped_as = models.CharField(
        _("overlapped as"),
        max_length=10,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text=_("What that consumer was at: it was paused, for example."),
    )

    class Meta:
        db_table = "django_events_clock"
        verbose_name = _("clock")
        verbose_name_plural = _("clocks")
        default_permissions = ("view",)
        permissions = [
            ("pause_clock", "Can pause a clock"),
            ("resume_clock", "Can resume a clock"),
            ("run_clock", "Can let a clock tick now"),
            ("remove_clock", "Can remove a clock that no app declares"),
        ]

    def __str__(self) -> str:
        return self.name
