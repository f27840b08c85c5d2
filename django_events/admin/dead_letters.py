"""Dead letters: the events that consumers gave up on, why, and the actions on them."""

from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin import SimpleListFilter
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Exists, Func, Max, Min, OuterRef, QuerySet, TextField
from django.db.models.functions import Left
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_events.admin import addresses, payloads
from django_events.admin.forms import DiscardForm
from django_events.admin.lists import NAMED, DatabaseFilter, Lists
from django_events.admin.pages import by, may
from django_events.exceptions import EventsError
from django_events.models import Consumer, DeadLetter
from django_events.observing import counted
from django_events.operations import discard, redrive

GROUPS = 200


class ErrorGroup(Func):
    """An error without what differs from one time to the next: its first line, each number as `#`."""

    template = r"regexp_replace(split_part(%(expressions)s, E'\n', 1), '[0-9]+', '#', 'g')"
    output_field = TextField()

    def __init__(self) -> None:
        super().__init__(Left("error", 200))


class Group(NamedTuple):
    """Dead letters of one consumer with the same error."""

    consumer: Consumer
    error: str
    letters: int
    oldest: Any
    newest: Any
    address: str


class ConsumerFilter(SimpleListFilter):
    """The consumers that have dead letters: each is looked up by index, so nothing is counted."""

    title = gettext_lazy("consumer")
    parameter_name = "consumer"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        letters = DeadLetter.objects.filter(consumer=OuterRef("pk"))
        rows = Consumer.objects.using(addresses.database_of(request)).filter(Exists(letters))
        return [
            (str(row.pk), str(row)) for row in rows.select_related("topic").order_by("name", "topic__name")[:GROUPS]
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:
        value = self.value()
        if value is None:
            return queryset
        is_id = value.isascii() and value.isdigit() and len(value) < 19
        return queryset.filter(consumer_id=int(value)) if is_id else queryset.none()


class ErrorFilter(SimpleListFilter):
    """One group of errors; the page of the groups leads here."""

    title = gettext_lazy("error")
    parameter_name = "group"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        value = self.used_parameters.get(self.parameter_name)
        return [(value, value)] if value else []

    def has_output(self) -> bool:
        return bool(self.used_parameters.get(self.parameter_name))

    def queryset(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:
        value = self.value()
        if value is None:
            return queryset
        if "\0" in value:  # a NUL: no text of PostgreSQL has one
            return queryset.none()
        return queryset.annotate(error_group=ErrorGroup()).filter(error_group=value)


class WaitingFilter(SimpleListFilter):
    """Dead letters that were redriven, or not."""

    title = gettext_lazy("redrive")
    parameter_name = "waiting"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", gettext_lazy("waits to be handled again")), ("no", gettext_lazy("not decided yet"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:
        value = self.value()
        return queryset if value is None else queryset.filter(redrive_at__isnull=value == "no")


class DeadLetterAdmin(Lists):
    """The list of dead letters, the newest first, and their pages."""

    list_display = ("event", "consumer_name", "summary", "state", "type", "key", "attempts", "dead_at")
    list_filter = (DatabaseFilter, ConsumerFilter, WaitingFilter, ErrorFilter)
    list_select_related = ("consumer__topic",)
    search_fields = ("=event_id", "=key", "=type", "error")
    search_help_text = gettext_lazy("The id of an event, a key, a type, or a part of an error.")
    ordering = ("-id",)
    sortable_by = ()
    actions = ("redrive", "discard")
    change_list_template = "admin/django_events/dead_letters.html"

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("errors/", "errors", self.errors, "view_deadletter"),
            self.page("<str:address>/change/", "change", self.letter, "view_deadletter"),
            self.page("<str:address>/act/<str:name>/", "act", self.act, "view_deadletter", post=True),
            *super().get_urls(),
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        rows: QuerySet[DeadLetter] = super().get_queryset(request)
        return rows.defer("value", "body", "metadata", "traceback")

    @admin.display(description=gettext_lazy("event"))
    def event(self, row: DeadLetter) -> str:
        return f"{row.consumer.topic.name}/{row.event_id}"

    @admin.display(description=gettext_lazy("consumer"))
    def consumer_name(self, row: DeadLetter) -> str:
        return row.consumer.name

    @admin.display(description=gettext_lazy("state"))
    def state(self, row: DeadLetter) -> str:
        return _("waits to be handled again") if row.redrive_at is not None else ""

    @admin.display(description=gettext_lazy("error"))
    def summary(self, row: DeadLetter) -> str:
        return row.error.split("\n")[0][:150]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Dead letters"), **(extra_context or {})})

    def errors(self, request: HttpRequest) -> HttpResponse:
        """The groups of errors, the largest first."""
        using = addresses.database_of(request)
        rows = (
            DeadLetter.objects.using(using)
            .annotate(error_group=ErrorGroup())
            .values("consumer_id", "error_group")
            .annotate(letters=Count("pk"), oldest=Min("dead_at"), newest=Max("dead_at"))
            .order_by("-letters", "consumer_id", "error_group")
        )[:GROUPS]
        consumers = Consumer.objects.using(using).select_related("topic").in_bulk({row["consumer_id"] for row in rows})
        context = {
            "title": _("Dead letters by error"),
            "trail": [],
            "using": using,
            "databases": addresses.databases(),
            "groups": [
                Group(
                    consumers[row["consumer_id"]],
                    row["error_group"],
                    row["letters"],
                    row["oldest"],
                    row["newest"],
                    self.list_url(using, consumer=row["consumer_id"], group=row["error_group"]),
                )
                for row in rows
            ],
        }
        return self.answer(request, "errors.html", context)

    def letter(self, request: HttpRequest, address: str) -> HttpResponse:
        row = _row(address)
        context: dict[str, Any] = {
            "title": _("Dead letter %(event)s of %(consumer)s")
            % {"event": self.event(row), "consumer": row.consumer.name},
            "trail": [],
            "using": row._state.db,
            "letter": row,
            "payload": payloads.of(row, everything="all" in request.GET),
            "may_redrive": may(request, "redrive_deadletter"),
            "may_discard": may(request, "discard_deadletter"),
        }
        return self.answer(request, "dead_letter.html", context)

    def act(self, request: HttpRequest, address: str, name: str) -> HttpResponse:
        """Redrive or discard one dead letter."""
        if name not in ("redrive", "discard"):
            raise Http404(_("There is no action “%(name)s”.") % {"name": name})
        pk, using = addresses.read(address)
        letters = DeadLetter.objects.using(using).filter(pk=pk)
        if request.method != "POST":
            _row(address)  # after a POST, the action itself says that the letter is gone
        answer = getattr(self, name)(request, letters, back=self.url("change", address))
        return answer or HttpResponseRedirect(self.list_url(using))

    @admin.action(description=gettext_lazy("Redrive the selected dead letters"), permissions=["redrive"])
    def redrive(
        self, request: HttpRequest, rows: QuerySet[DeadLetter], *, back: str | None = None
    ) -> HttpResponse | None:
        if not self.has_redrive_permission(request):
            raise PermissionDenied
        explanation = _("Their consumers handle these events again, oldest first, each attempt counted anew.")
        return self._decide(request, rows, "redrive", _("Redrive"), explanation, back=back)

    @admin.action(description=gettext_lazy("Discard the selected dead letters"), permissions=["discard"])
    def discard(
        self, request: HttpRequest, rows: QuerySet[DeadLetter], *, back: str | None = None
    ) -> HttpResponse | None:
        if not self.has_discard_permission(request):
            raise PermissionDenied
        explanation = _("These dead letters are deleted. What is left of them is the record with your reason.")
        return self._decide(request, rows, "discard", _("Discard"), explanation, back=back)

    def has_redrive_permission(self, request: HttpRequest) -> bool:
        return may(request, "view_deadletter", "redrive_deadletter")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return may(request, "view_deadletter", "discard_deadletter")

    def _decide(
        self,
        request: HttpRequest,
        rows: QuerySet[DeadLetter],
        action: str,
        label: str,
        explanation: str,
        *,
        back: str | None,
    ) -> HttpResponse | None:
        """Ask first, act when the user confirms. The page that asks sends the selection again, not its rows."""
        rows, said = self.chosen(request, rows), self.is_decided(request)
        form = DiscardForm(request.POST if said else None) if action == "discard" else None
        if said and (form is None or form.is_valid()):
            try:
                self._do(request, rows, action, reason=form.cleaned_data["reason"] if form else "")
            except EventsError as error:
                messages.error(request, str(error))
                return HttpResponseRedirect(back) if back else None
            return None
        number, more = self.number_of(rows)  # a group of errors is found by looking at each of its rows
        letters = {"action": label, "letters": counted.dead_letters(number, more=more)}
        return self.ask(
            request,
            rows,
            action=action,
            button=label,
            title=_("%(action)s: %(letters)s") % letters,
            explanation=explanation,
            form=form,
            listed=[_line(row) for row in rows.order_by("consumer_id", "event_id")[:NAMED]],
            back=back,
        )

    def _do(self, request: HttpRequest, rows: QuerySet[DeadLetter], action: str, *, reason: str) -> None:
        letters = dict(rows.order_by().values_list("consumer_id").annotate(Count("pk")))
        done = redrive(rows, by=by(request)) if action == "redrive" else discard(rows, by=by(request), reason=reason)
        if not done:
            messages.warning(request, _("Nothing was changed: these dead letters are not there any more."))
            return
        for consumer in Consumer.objects.using(rows.db).filter(pk__in=letters):
            self.note(request, consumer, f"{action}: {_done(action, letters[consumer.pk], reason)}")
        messages.success(request, _done(action, done, reason))


def _done(action: str, number: int, reason: str) -> str:
    if action == "redrive":
        said = ngettext(
            "%(count)d dead letter is handled again as soon as a worker takes it.",
            "%(count)d dead letters are handled again as soon as a worker takes them.",
            number,
        )
        return said % {"count": number}
    return _("%(letters)s discarded: %(reason)s") % {"letters": counted.dead_letters(number), "reason": reason}


def _line(row: DeadLetter) -> str:
    return f"{row.consumer}: {row.consumer.topic.name}/{row.event_id}, {row.error:.120}"


def _row(address: str) -> DeadLetter:
    pk, using = addresses.read(address)
    rows = DeadLetter.objects.using(using).select_related("consumer__topic").filter(pk=pk)
    row = payloads.readable(rows).first()
    if row is None:
        raise Http404(_("There is no such dead letter: it was redriven or discarded."))
    return row
