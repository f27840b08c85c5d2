"""Interventions, scheduled events, clocks, and the steps of maintenance."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_events.admin.forms import DiscardForm
from django_events.admin.lists import NAMED, DatabaseFilter, Lists
from django_events.admin.pages import by, may
from django_events.exceptions import EventsError
from django_events.models import Clock, Intervention, ScheduledEvent, Topic
from django_events.observing import counted
from django_events.operating.cancelling import cancel_scheduled
from django_events.operating.clocks import pause_clock, resume_clock, run_clock
from django_events.phrases import moment

LONGEST_DETAILS = 120  # characters in a list


class InterventionAdmin(Lists):
    """Interventions, the newest first, also those about consumers that are gone."""

    list_display = ("at", "by", "action", "consumer", "topic", "what")
    list_filter = (DatabaseFilter, "action")
    search_fields = ("=consumer", "=topic", "=by")
    ordering = ("-id",)
    fields = ("at", "by", "action", "consumer", "topic", "details")
    sortable_by = ()

    @admin.display(description=_("details"))
    def what(self, row: Intervention) -> str:
        told = ", ".join(f"{name}: {value}" for name, value in row.details.items())
        return told if len(told) <= LONGEST_DETAILS else f"{told[:LONGEST_DETAILS]}…"


class ScheduledEventAdmin(Lists):
    """Scheduled events, the one that is due next first."""

    list_display = ("id", "topic_name", "type", "key", "publish_at", "scheduled_at")
    list_filter = (DatabaseFilter,)
    list_select_related = ("topic",)
    ordering = ("publish_at", "id")
    search_fields = ("id",)  # see get_search_results
    fields = ("id", "topic_name", "type", "key", "partition", "publish_at", "scheduled_at")
    sortable_by = ()
    actions = ("cancel",)

    @admin.display(description=_("topic"))
    def topic_name(self, row: ScheduledEvent) -> str:
        return row.topic.name

    @admin.action(description=_("Cancel the selected scheduled events"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, rows: QuerySet[ScheduledEvent]) -> HttpResponse | None:
        """Ask first, and cancel when the user confirms."""
        rows, decided = self.chosen(request, rows), self.is_decided(request)
        form = DiscardForm(request.POST if decided else None)
        if decided and form.is_valid():
            self._cancel(request, rows, form.cleaned_data["reason"])
            return None
        number, more = self.number_of(rows)
        return self.ask(
            request,
            rows,
            action="cancel",
            button=gettext("Cancel them"),
            title=gettext("Cancel: %(events)s") % {"events": counted.events(number, more=more)},
            explanation=gettext("They are deleted, and never published. What is left is the record with your reason."),
            form=form,
            listed=[_line(row) for row in rows[:NAMED]],
        )

    def _cancel(self, request: HttpRequest, rows: QuerySet[ScheduledEvent], reason: str) -> None:
        of_topics = dict(rows.order_by().values_list("topic_id").annotate(Count("pk")))
        topics = Topic.objects.using(rows.db).in_bulk(of_topics)
        try:
            done = cancel_scheduled(rows, reason=reason, by=by(request))
        except EventsError as error:
            messages.error(request, str(error))
            return
        for topic_id, number in of_topics.items():
            self.note(request, topics[topic_id], f"{_said(number)} {reason}")
        (messages.success if done else messages.warning)(request, _said(done))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return may(request, "cancel_scheduledevent")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find the ticket as a number, by index: the admin would compare it as text with every row."""
        term = search_term.strip()
        if not term:
            return queryset, False
        number = term.isascii() and term.isdigit() and len(term) < 19
        return (queryset.filter(pk=int(term)) if number else queryset.none()), False

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("value", "body", "metadata")


class ClockAdmin(Lists):
    """Clocks, the one that ticks next first."""

    list_display = ("name", "topic_name", "cron", "tz", "type", "next_at", "last_at", "paused_at")
    list_filter = (DatabaseFilter,)
    list_select_related = ("topic",)
    ordering = ("next_at", "id")
    fields = ("name", "topic_name", "cron", "tz", "type", "key", "missed", "next_at", "last_at", "paused_at")
    sortable_by = ()
    actions = ("pause", "resume", "run")

    @admin.display(description=_("topic"))
    def topic_name(self, row: Clock) -> str:
        return row.topic.name

    @admin.action(description=_("Pause the selected clocks"), permissions=["pause"])
    def pause(self, request: HttpRequest, rows: QuerySet[Clock]) -> None:
        self._each(request, rows, pause_clock, gettext("Clock %(name)s is paused."))

    @admin.action(description=_("Let the selected clocks go on"), permissions=["resume"])
    def resume(self, request: HttpRequest, rows: QuerySet[Clock]) -> None:
        self._each(request, rows, resume_clock, gettext("Clock %(name)s goes on."))

    @admin.action(description=_("Let the selected clocks tick now"), permissions=["run"])
    def run(self, request: HttpRequest, rows: QuerySet[Clock]) -> None:
        self._each(request, rows, run_clock, gettext("Clock %(name)s ticks now."))

    def _each(self, request: HttpRequest, rows: QuerySet[Clock], act: Callable[..., object], said: str) -> None:
        for row in rows:
            try:
                changed = act(row.name, by=str(request.user), using=rows.db)
            except EventsError as error:
                messages.error(request, str(error))
                continue
            if changed:
                self.note(request, row, said % {"name": row.name})
                messages.success(request, said % {"name": row.name})

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return may(request, "pause_clock")

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return may(request, "resume_clock")

    def has_run_permission(self, request: HttpRequest) -> bool:
        return may(request, "run_clock")

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("value")


class MaintenanceStepAdmin(Lists):
    """How the last run of each step went."""

    list_display = ("name", "finished_at", "holder", "result", "error", "failing_since")
    list_filter = (DatabaseFilter,)
    ordering = ("name",)
    fields = ("name", "started_at", "finished_at", "leased_until", "holder", "result", "error", "failing_since")
    sortable_by = ()


def _line(row: ScheduledEvent) -> str:
    return " ".join(filter(None, [f"{row.topic}:", row.type, row.key or "", moment(row.publish_at)]))


def _said(done: int) -> str:
    said = ngettext("%(count)d scheduled event cancelled.", "%(count)d scheduled events cancelled.", done)
    return said % {"count": done}
