"""Derived tables that are filled anew."""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.functions import ClockTimestamp, readable


class Rebuild(models.Model):
    """A table that is filled anew beside the one that a consumer keeps, and how far that is.

    The row is there from the beginning of a rebuild to its change-over, whichever process goes on with it. Who has the
    token may write to the new table, until its time is over.
    """

    consumer = models.CharField(_("consumer"), max_length=63, unique=True)
    table = models.CharField(_("table"), max_length=63)
    schema = models.CharField(_("schema"), max_length=63, help_text=_("Where the new table has the same name."))
    fingerprint = models.TextField(_("fingerprint"), help_text=_("Of the table that is served, and of what fills it."))
    reached: "models.JSONField[Any, Any]" = models.JSONField(
        _("reached"), default=dict, help_text=_("Up to which id of each topic its events are in the new table.")
    )
    ends: "models.JSONField[Any, Any]" = models.JSONField(
        _("ends"), default=dict, help_text=_("Where the logs ended when that was last looked at.")
    )
    failed: "models.JSONField[Any, Any]" = models.JSONField(
        _("failed"), default=list, help_text=_("Events that could not be folded, and why.")
    )
    events = models.BigIntegerField(_("events"), default=0)
    partial = models.BooleanField(
        _("partial"), default=False, help_text=_("What retention or compaction has removed is left out.")
    )
    token = models.BigIntegerField(_("lease"), null=True, blank=True, editable=False)
    leased_until = models.DateTimeField(_("leased until"), null=True, blank=True, editable=False)
    holder = models.CharField(_("holder"), max_length=200, blank=True, default="", editable=False)
    started_at = models.DateTimeField(_("started at"), db_default=ClockTimestamp(), editable=False)
    changed_at = models.DateTimeField(_("changed at"), db_default=ClockTimestamp(), editable=False)

    class Meta:
        db_table = "django_events_rebuild"
        verbose_name = _("rebuild")
        verbose_name_plural = _("rebuilds")
        default_permissions = ("view",)
        constraints = [
            models.CheckConstraint(condition=readable("leased_until"), name="django_events_rebuild_times"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer} into {self.table}"
