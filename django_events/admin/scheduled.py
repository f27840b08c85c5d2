"""Scheduled events: what is for later, with its payload; it can be cancelled, or published now."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.functional import Promise
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_events import sql
from django_events.admin import addresses, lists, payloads
from django_events.admin.forms import DiscardForm, ReasonForm
from django_events.admin.lists import CHOICES, NAMED, DatabaseFilter, Lists, OfRows, local
from django_events.admin.pages import by, may
from django_events.exceptions import EventsError
from django_events.models import ScheduledEvent, Topic
from django_events.observing import counted
from django_events.operations import cancel_scheduled, publish_scheduled
from django_events.phrases import without_turning

SQL = sql.beside(__name__)

SEARCHED = 100_000  # events, the next ones: no index leads to a topic or a key


class ScheduledTopicFilter(OfRows):
    """The events of a topic, among those that are next."""

    title = _("topic")
    parameter_name = "topic"
    column = "topic_id"

    def rows(self, request: HttpRequest) -> list[tuple[int, str]]:
        # All topics: no index tells which of them have scheduled events.
        found = Topic.objects.using(addresses.database_of(request)).order_by("name").values_list("pk", "name")
        return list(found[:CHOICES])

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        is_id = value.isascii() and value.isdigit() and len(value) < 10
        return queryset.filter(pk__in=_among_next(queryset.db, topic_id=int(value))) if is_id else queryset.none()


class ActionOnScheduled(NamedTuple):
    """An action on scheduled events: the function, its form, and what the page that asks says."""

    act: Callable[..., int]
    form: type[Form]
    button: Promise
    title: Promise
    explanation: Promise


VERBS = {
    "cancel": ActionOnScheduled(
        cancel_scheduled,
        DiscardForm,
        _("Cancel them"),
        _("Cancel: %(events)s"),
        _("They are deleted, and never published. What is left is the record with your reason."),
    ),
    "publish": ActionOnScheduled(
        publish_scheduled,
        ReasonForm,
        _("Publish now"),
        _("Publish now: %(events)s"),
        _("Their time is now: the transfer publishes them, in the order in which they would have come."),
    ),
}


class ScheduledEventAdmin(Lists):
    """Scheduled events, the one that is due next first."""

    list_display = ("id", "topic_name", "type_name", "key_name", "due", "since")
    list_filter = (DatabaseFilter, ScheduledTopicFilter)
    list_select_related = ("topic",)
    ordering = ("publish_at", "id")
    search_fields = ("id",)  # see get_search_results
    search_help_text = _("A ticket, or a key of the next 100,000 events.")
    sortable_by = ()
    actions = ("cancel", "publish")

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("<str:address>/change/", "change", self.scheduled, "view_scheduledevent"),
            self.page("<str:address>/act/<str:name>/", "act", self.act, "view_scheduledevent", post=True),
            *super().get_urls(),
        ]

    @admin.display(description=_("topic"))
    def topic_name(self, row: ScheduledEvent) -> str:
        return row.topic.name

    @admin.display(description=_("type"))
    def type_name(self, row: ScheduledEvent) -> str:
        return without_turning(row.type)

    @admin.display(description=_("key"))
    def key_name(self, row: ScheduledEvent) -> str:
        return without_turning(row.key or "–")

    @admin.display(description=_("publish at"))
    def due(self, row: ScheduledEvent) -> str:
        return local(row.publish_at)

    @admin.display(description=_("scheduled at"))
    def since(self, row: ScheduledEvent) -> str:
        return local(row.scheduled_at)

    def scheduled(self, request: HttpRequest, address: str) -> HttpResponse:
        """One of them, with its payload for users who see events."""
        row = _row(address)
        seen = may(request, "view_event")
        context: dict[str, Any] = {
            "title": gettext("Scheduled event %(ticket)s of %(topic)s") % {"ticket": row.pk, "topic": row.topic.name},
            "trail": [],
            "using": row._state.db,
            "scheduled": row,
            "payload": payloads.of(row, everything="all" in request.GET) if seen else None,
            "may_cancel": self.has_cancel_permission(request),
            "may_publish": self.has_publish_permission(request),
        }
        return self.answer(request, "scheduled_event.html", context)

    def act(self, request: HttpRequest, address: str, name: str) -> HttpResponse:
        """Cancel or publish one of them."""
        if name not in VERBS:
            raise Http404(gettext("There is no action “%(name)s”.") % {"name": name})
        if request.method != "POST":
            _row(address)  # after a POST, the action itself says that it is gone
        pk, using = addresses.read(address)
        rows = ScheduledEvent.objects.using(using).select_related("topic").filter(pk=pk)
        answer = self._decide(request, rows, name, back=self.url("change", address))
        return answer or HttpResponseRedirect(self.list_url(using))

    @admin.action(description=_("Cancel the selected scheduled events"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, rows: QuerySet[ScheduledEvent]) -> HttpResponse | None:
        return self._decide(request, rows, "cancel")

    @admin.action(description=_("Publish the selected scheduled events now"), permissions=["publish"])
    def publish(self, request: HttpRequest, rows: QuerySet[ScheduledEvent]) -> HttpResponse | None:
        return self._decide(request, rows, "publish")

    def _decide(
        self, request: HttpRequest, rows: QuerySet[ScheduledEvent], name: str, *, back: str | None = None
    ) -> HttpResponse | None:
        """Ask first, and act when the user confirms."""
        self.refuse(request, f"{name}_scheduledevent")
        verb = VERBS[name]
        rows, decided = self.chosen(request, rows), self.is_decided(request)
        form = verb.form(request.POST if decided else None)
        if decided and form.is_valid():
            self._do(request, rows, name, form.cleaned_data["reason"])
            return None
        number, more = self.number_of(rows)
        return self.ask(
            request,
            rows,
            action=name,
            button=str(verb.button),
            title=str(verb.title) % {"events": counted.events(number, more=more)},
            explanation=str(verb.explanation),
            form=form,
            listed=[_line(row) for row in rows[:NAMED]],
            back=back,
        )

    def _do(self, request: HttpRequest, rows: QuerySet[ScheduledEvent], name: str, reason: str) -> None:
        of_topics = dict(rows.order_by().values_list("topic_id").annotate(Count("pk")))
        topics = Topic.objects.using(rows.db).in_bulk(of_topics)
        try:
            done = VERBS[name].act(rows, reason=reason, by=by(request))
        except EventsError as error:
            messages.error(request, str(error))
            return
        for topic_id, number in of_topics.items():
            self.note(request, topics[topic_id], f"{_said(name, number)} {reason}".rstrip())
        (messages.success if done else messages.warning)(request, _said(name, done))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return may(request, "cancel_scheduledevent")

    def has_publish_permission(self, request: HttpRequest) -> bool:
        return may(request, "publish_scheduledevent")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find the ticket as a number, by index: the admin would compare it as text with every row. Or find a key."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if "\0" in term:  # no text of PostgreSQL has one
            return queryset.none(), False
        if term.isascii() and term.isdigit() and len(term) < 19:
            of_ticket = queryset.filter(pk=int(term))
            if of_ticket.exists():
                return of_ticket, False
        return queryset.filter(pk__in=_among_next(queryset.db, key=term)), False

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("value", "body", "metadata")


def _among_next(using: str, *, key: str | None = None, topic_id: int | None = None) -> list[int]:
    """The tickets of those that fit, of as many as are looked through, the next ones first."""
    with sql.by_index(using):
        found = sql.fetch(
            using, SQL.among_next, key=key, topic_id=topic_id, looked_through=SEARCHED, most=lists.COUNTED
        )
    return [ticket for (ticket,) in found]


def _row(address: str) -> ScheduledEvent:
    pk, using = addresses.read(address)
    rows = ScheduledEvent.objects.using(using).select_related("topic").filter(pk=pk)
    row = payloads.readable(rows).first()
    if row is None:
        raise Http404(gettext("There is no such scheduled event: it was published or cancelled."))
    return row


def _line(row: ScheduledEvent) -> str:
    return without_turning(" ".join(filter(None, [f"{row.topic}:", row.type, row.key or "", local(row.publish_at)])))


def _said(name: str, done: int) -> str:
    if name == "cancel":
        said = ngettext("%(count)d scheduled event cancelled.", "%(count)d scheduled events cancelled.", done)
    else:
        said = ngettext(
            "%(count)d scheduled event is published as soon as the transfer takes it.",
            "%(count)d scheduled events are published as soon as the transfer takes them.",
            done,
        )
    return said % {"count": done}
