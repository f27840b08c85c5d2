"""Interventions, and the steps of maintenance."""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from django_events.admin.lists import DatabaseFilter, Lists, local
from django_events.models import Intervention, MaintenanceStep
from django_events.models.maintenance import NEVER
from django_events.phrases import without_turning

LONGEST_DETAILS = 120  # characters in a list


class InterventionAdmin(Lists):
    """Interventions, the newest first, also those about consumers that are gone."""

    list_display = ("when", "by", "action", "consumer", "topic", "what")
    list_filter = (DatabaseFilter, "action")
    search_fields = ("=consumer", "=topic", "=by")
    ordering = ("-id",)
    fields = ("when", "by", "action", "consumer", "topic", "details")
    sortable_by = ()

    @admin.display(description=_("at"))
    def when(self, row: Intervention) -> str:
        return local(row.at)

    @admin.display(description=_("details"))
    def what(self, row: Intervention) -> str:
        told = ", ".join(f"{name}: {value}" for name, value in row.details.items())
        told = without_turning(told)
        return told if len(told) <= LONGEST_DETAILS else f"{told[:LONGEST_DETAILS]}…"


class MaintenanceStepAdmin(Lists):
    """How the last run of each step went."""

    list_display = ("name", "finished", "holder", "result", "error", "failing")
    list_filter = (DatabaseFilter,)
    ordering = ("name",)
    fields = ("name", "started", "finished", "leased", "holder", "result", "error", "failing")
    sortable_by = ()

    @admin.display(description=_("started at"))
    def started(self, row: MaintenanceStep) -> str:
        return local(None if row.started_at == NEVER else row.started_at)

    @admin.display(description=_("finished at"))
    def finished(self, row: MaintenanceStep) -> str:
        return local(row.finished_at)

    @admin.display(description=_("leased until"))
    def leased(self, row: MaintenanceStep) -> str:
        return local(row.leased_until)

    @admin.display(description=_("failing since"))
    def failing(self, row: MaintenanceStep) -> str:
        return local(row.failing_since)
