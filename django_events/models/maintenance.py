"""What keeps a database in order, and how it went the last time."""

from datetime import UTC, datetime
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

NEVER = datetime(1970, 1, 1, tzinfo=UTC)  # when a step began that was only paused so far


class MaintenanceStep(models.Model):
    """One step of maintenance: who ran it last, when, and what came of it. Its process leases a run."""

    name = models.CharField(_("step"), max_length=20, primary_key=True)
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"), null=True, help_text=_("Of the last run that ended."))
    leased_until = models.DateTimeField(
        _("leased until"), null=True, help_text=_("No other process runs it before, unless the run has ended.")
    )
    holder = models.CharField(_("holder"), max_length=200)
    result: "models.JSONField[Any, Any]" = models.JSONField(
        _("result"), default=dict, help_text=_("What the last run that worked has done.")
    )
    error = models.TextField(_("error"), blank=True, default="", help_text=_("Of the last run, if it failed."))
    failing_since = models.DateTimeField(_("failing since"), null=True)
    paused_until = models.DateTimeField(
        _("paused until"),
        null=True,
        help_text=_("Retention drops nothing before, so that a dump finds what it listed."),
    )

    class Meta:
        verbose_name = _("step of maintenance")
        verbose_name_plural = _("steps of maintenance")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name
