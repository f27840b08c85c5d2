"""Clocks: when they tick, and the actions on them."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from django_events import declarations
from django_events.admin.lists import DatabaseFilter, local
from django_events.admin.pages import may
from django_events.admin.verbs import ListsWithVerbs, Verb
from django_events.models import Clock
from django_events.operations import pause_clock, remove_clock, resume_clock, run_clock

VERBS = {
    "pause": Verb(
        pause_clock,
        _("Pause"),
        _("Pause these clocks?"),
        _("They publish nothing more until they are resumed. Ticks whose time comes meanwhile are left out."),
        _("Clock %(name)s is paused."),
    ),
    "resume": Verb(
        resume_clock,
        _("Resume"),
        _("Let these clocks go on?"),
        _("They go on with the next tick to come."),
        _("Clock %(name)s goes on."),
    ),
    "run": Verb(
        run_clock,
        _("Tick now"),
        _("Let these clocks tick now?"),
        _("Each publishes an event now, beside its ticks, which all its consumers handle."),
        _("Clock %(name)s ticks now."),
    ),
    "remove": Verb(
        remove_clock,
        _("Remove"),
        _("Remove these clocks?"),
        _("Their rows are deleted. What they have published stays. One that an app declares is refused."),
        _("Clock %(name)s is removed."),
    ),
}


# What people read for what a consumer was at when a tick was left out because of it.
WHYS = {
    "paused": _("paused"),
    "stopped": _("stopped"),
    "unlogged": _("waiting for the event to come into the log"),
    "in hand": _("handling it"),
    "retrying": _("retrying"),
    "pending": _("not there yet"),
}


class ClockAdmin(ListsWithVerbs):
    """Clocks, the one that ticks next first."""

    verbs = VERBS

    list_display = ("name", "topic_name", "cron", "tz", "type", "next", "last", "overlaps", "paused", "is_declared")
    list_filter = (DatabaseFilter,)
    list_select_related = ("topic",)
    ordering = ("next_at", "id")
    fields = (
        "name",
        "topic_name",
        "cron",
        "tz",
        "type",
        "key",
        "missed",
        "overlap",
        "next",
        "last",
        "overlaps",
        "paused",
        "is_declared",
    )
    sortable_by = ()
    actions = ("pause", "resume", "run", "remove")

    @admin.display(description=_("topic"))
    def topic_name(self, row: Clock) -> str:
        return row.topic.name

    @admin.display(description=_("next tick"))
    def next(self, row: Clock) -> str:
        return local(None if row.paused_at else row.next_at)

    @admin.display(description=_("last tick"))
    def last(self, row: Clock) -> str:
        return local(row.last_at)

    @admin.display(description=_("overlapped"))
    def overlaps(self, row: Clock) -> str:
        """How many ticks were left out, and because of which consumer the last one was."""
        if not row.overlapped:
            return ""
        return str(_("%(count)d, last %(at)s: %(consumer)s was %(state)s")) % {
            "count": row.overlapped,
            "at": local(row.overlapped_at),
            "consumer": row.overlapped_by,
            "state": WHYS[row.overlapped_as],
        }

    @admin.display(description=_("paused at"))
    def paused(self, row: Clock) -> str:
        return local(row.paused_at)

    @admin.display(description=_("declared"), boolean=True)
    def is_declared(self, row: Clock) -> bool:
        return row.name in {one.name for one in declarations.clocks}

    @admin.action(description=_("Pause the selected clocks"), permissions=["pause"])
    def pause(self, request: HttpRequest, rows: QuerySet[Clock]) -> HttpResponse | None:
        return self.decide(request, rows, "pause")

    @admin.action(description=_("Let the selected clocks go on"), permissions=["resume"])
    def resume(self, request: HttpRequest, rows: QuerySet[Clock]) -> HttpResponse | None:
        return self.decide(request, rows, "resume")

    @admin.action(description=_("Let the selected clocks tick now"), permissions=["run"])
    def run(self, request: HttpRequest, rows: QuerySet[Clock]) -> HttpResponse | None:
        return self.decide(request, rows, "run")

    @admin.action(description=_("Remove the selected clocks"), permissions=["remove"])
    def remove(self, request: HttpRequest, rows: QuerySet[Clock]) -> HttpResponse | None:
        return self.decide(request, rows, "remove")

    def named(self, row: Clock) -> str:
        return f"{row.name}: {row.cron} {row.tz}"

    def unchanged(self, row: Clock) -> str:
        return str(_("Clock %(name)s: nothing was changed.")) % {"name": row.name}

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return may(request, "pause_clock")

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return may(request, "resume_clock")

    def has_run_permission(self, request: HttpRequest) -> bool:
        return may(request, "run_clock")

    def has_remove_permission(self, request: HttpRequest) -> bool:
        return may(request, "remove_clock")

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("value")
