"""Inboxes: how far each is in its source, why it waits, and the actions on them."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_events import sql
from django_events.admin.forms import ReasonForm
from django_events.admin.lists import DatabaseFilter, local
from django_events.admin.pages import may
from django_events.admin.verbs import ListsWithVerbs, Verb
from django_events.declarations.declared_inbox import LONGEST_START
from django_events.models import Inbox
from django_events.models.functions import ClockTimestamp
from django_events.observing.inbox_states import state_of
from django_events.operations import pause_inbox, remove_inbox, restart_inbox, resume_inbox


class RestartForm(ReasonForm):
    """Where an inbox begins anew, and why."""

    start = forms.CharField(
        label=_("Begin at"),
        max_length=LONGEST_START,
        help_text=_("beginning, end, or the id of the last message of the source that is not taken in."),
    )
    field_order = ("start", "reason")


VERBS = {
    "pause": Verb(
        pause_inbox,
        _("Pause"),
        _("Pause these inboxes?"),
        _("They take in nothing until they are resumed. Messages wait in their sources, as long as those keep them."),
        _("Inbox %(name)s is paused."),
    ),
    "resume": Verb(
        resume_inbox,
        _("Resume"),
        _("Let these inboxes go on?"),
        _("They go on where they were."),
        _("Inbox %(name)s goes on."),
    ),
    "restart": Verb(
        restart_inbox,
        _("Begin anew"),
        _("Let these inboxes begin anew?"),
        _("What they take in a second time is published a second time. What they have published stays."),
        _("Inbox %(name)s begins anew."),
        form=RestartForm,
    ),
    "remove": Verb(
        remove_inbox,
        _("Remove"),
        _("Remove these inboxes?"),
        _("How far they were is forgotten. What they have published stays. One that an app declares is refused."),
        _("Inbox %(name)s is removed."),
    ),
}


STATES = {
    "undeclared": _("no app declares it"),
    "paused": _("paused %(moment)s"),
    "unserved": _("no worker, the last one %(moment)s"),
    "failing": _("fails since %(moment)s"),
    "waiting": _("waits since %(moment)s"),
    "not begun": _("not begun"),
    "serving": _("works"),
}


class InboxAdmin(ListsWithVerbs):
    """Inboxes, in the order of their names."""

    verbs = VERBS
    list_display = ("name", "topic_name", "source", "state", "behind", "moved", "taken", "unreadable", "gone")
    list_filter = (DatabaseFilter,)
    list_select_related = ("topic",)
    ordering = ("name",)
    fields = (
        "name",
        "topic_name",
        "source",
        "state",
        "error",
        "places",
        "behind",
        "moved",
        "served",
        "taken",
        "left_out",
        "unreadable",
        "gone",
        "start",
    )
    sortable_by = ()
    actions = ("pause", "resume", "restart", "remove")

    @admin.display(description=_("topic"))
    def topic_name(self, row: Inbox) -> str:
        return row.topic.name

    @admin.display(description=_("state"))
    def state(self, row: Any) -> str:
        """What `events bridges` says in a word, with since when."""
        state = state_of(row, row.now)
        times = {
            "paused": row.paused_at,
            "failing": row.failing_since,
            "waiting": row.waiting_since,
            "unserved": row.served_at,
        }
        since = times.get(state)
        return str(STATES[state]) % {"moment": local(since)}

    @admin.display(description=_("messages behind"))
    def behind(self, row: Inbox) -> str:
        """How many messages the source has behind the position, as the worker found it."""
        return "–" if row.lag is None else f"{row.lag:,}"

    @admin.display(description=_("last taken in at"))
    def moved(self, row: Inbox) -> str:
        return local(row.moved_at)

    @admin.display(description=_("last served at"))
    def served(self, row: Inbox) -> str:
        return local(row.served_at)

    @admin.display(description=_("position"))
    def places(self, row: Inbox) -> SafeString | str:
        """The last message that was taken in, of each log of the source."""
        if not row.position:
            return "–"
        body = format_html_join(
            "", "<tr><td>{}</td><td>{}</td></tr>", ((log, _told(at)) for log, at in row.position.items())
        )
        heads = format_html("<tr><th>{}</th><th>{}</th></tr>", _("log of the source"), _("last taken in"))
        return format_html("<table><thead>{}</thead><tbody>{}</tbody></table>", heads, body)

    @admin.action(description=_("Pause the selected inboxes"), permissions=["pause"])
    def pause(self, request: HttpRequest, rows: QuerySet[Inbox]) -> HttpResponse | None:
        return self.decide(request, rows, "pause")

    @admin.action(description=_("Let the selected inboxes go on"), permissions=["resume"])
    def resume(self, request: HttpRequest, rows: QuerySet[Inbox]) -> HttpResponse | None:
        return self.decide(request, rows, "resume")

    @admin.action(description=_("Let the selected inboxes begin anew"), permissions=["restart"])
    def restart(self, request: HttpRequest, rows: QuerySet[Inbox]) -> HttpResponse | None:
        return self.decide(request, rows, "restart")

    @admin.action(description=_("Remove the selected inboxes"), permissions=["remove"])
    def remove(self, request: HttpRequest, rows: QuerySet[Inbox]) -> HttpResponse | None:
        return self.decide(request, rows, "remove")

    def named(self, row: Inbox) -> str:
        return f"{row.name}: {row.source} → {row.topic.name}"

    def unchanged(self, row: Inbox) -> str:
        return str(_("Inbox %(name)s: nothing was changed.")) % {"name": row.name}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Inbox]:
        rows: QuerySet[Inbox] = super().get_queryset(request).annotate(now=ClockTimestamp())
        return rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            row.now = sql.now(row._state.db)
        return row

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return may(request, "pause_inbox")

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return may(request, "resume_inbox")

    def has_restart_permission(self, request: HttpRequest) -> bool:
        return may(request, "restart_inbox")

    def has_remove_permission(self, request: HttpRequest) -> bool:
        return may(request, "remove_inbox")


def _told(place: object) -> str:
    """A place in a log: a number or an id, or all that the source remembers of it."""
    return ", ".join(f"{name} {value}" for name, value in place.items()) if isinstance(place, dict) else str(place)
