"""Inboxes, which take the messages of a broker into a topic."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.functions import readable
from django_events.models.topics import Topic


class Inbox(models.Model):
    """How far an inbox is in its source. Apps declare inboxes in `events.py`; `migrate` makes these rows.

    The transaction that publishes messages moves `position` on, if it is still where the messages follow.
    """

    id = models.AutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=63, unique=True)
    topic = models.ForeignKey(Topic, models.CASCADE, related_name="inboxes", verbose_name=_("topic"))
    source = models.TextField(_("source"))
    position = models.JSONField(
        _("position"), null=True, blank=True, help_text=_("The last message that was taken in, by log of the source.")
    )
    start = models.CharField(_("start"), max_length=200, help_text=_("Where it begins, as long as it has no position."))
    generation = models.IntegerField(
        _("generation"), default=0, db_default=0, editable=False, help_text=_("How often it was begun anew or paused.")
    )
    taken = models.BigIntegerField(_("taken in"), default=0, db_default=0, editable=False)
    left_out = models.BigIntegerField(_("left out"), default=0, db_default=0, editable=False)
    unreadable = models.BigIntegerField(_("unreadable"), default=0, db_default=0, editable=False)
    unreadable_at = models.DateTimeField(_("last unreadable at"), null=True, blank=True, editable=False)
    gone = models.BigIntegerField(
        _("gone"),
        default=0,
        db_default=0,
        editable=False,
        help_text=_("Messages that the source had removed before they were taken in."),
    )
    gone_at = models.DateTimeField(_("last gone at"), null=True, blank=True, editable=False)
    lag = models.BigIntegerField(_("lag"), null=True, blank=True, editable=False)
    paused_at = models.DateTimeField(
        _("paused at"), null=True, blank=True, editable=False, help_text=_("It takes in nothing until it is resumed.")
    )
    moved_at = models.DateTimeField(_("moved at"), null=True, blank=True, editable=False)
    served_at = models.DateTimeField(_("served at"), null=True, blank=True, editable=False)
    failing_since = models.DateTimeField(_("fails since"), null=True, blank=True, editable=False)
    waiting_since = models.DateTimeField(_("waits since"), null=True, blank=True, editable=False)
    error = models.TextField(_("error"), blank=True, default="", db_default="", editable=False)

    class Meta:
        verbose_name = _("inbox")
        verbose_name_plural = _("inboxes")
        default_permissions = ("view",)
        permissions = [
            ("pause_inbox", "Can pause an inbox"),
            ("resume_inbox", "Can resume an inbox"),
            ("restart_inbox", "Can let an inbox begin anew in its source"),
            ("remove_inbox", "Can remove an inbox that no app declares"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=readable(
                    "unreadable_at", "gone_at", "paused_at", "moved_at", "served_at", "failing_since", "waiting_since"
                ),
                name="django_events_inbox_times",
            ),
        ]

    def __str__(self) -> str:
        return self.name
