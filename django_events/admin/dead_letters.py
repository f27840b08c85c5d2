"""Dead letters: the events that consumers gave up on, why, and the actions on them."""

from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode

from django.contrib import admin, messages
from django.contrib.admin import SimpleListFilter
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Exists, OuterRef, QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_events.admin import addresses, payloads
from django_events.admin.finding import ADDRESS
from django_events.admin.forms import DiscardForm, ReasonForm
from django_events.admin.lists import CHOICES, COUNTED, NAMED, BoundedPaginator, DatabaseFilter, Lists, OfRows
from django_events.admin.pages import by, may
from django_events.exceptions import EventsError
from django_events.models import Consumer, DeadLetter
from django_events.models.databases import databases
from django_events.observing import counted
from django_events.operations import discard, redrive
from django_events.phrases import without_turning

GROUPS = 100  # on a page
NO_TYPE = "-"
FILTERS_OF_LIST = "_changelist_filters"  # what Django's links from a list to a row carry


def _with_letters(request: HttpRequest) -> QuerySet[Consumer]:
    letters = DeadLetter.objects.filter(consumer=OuterRef("pk"))
    return Consumer.objects.using(addresses.database_of(request)).filter(Exists(letters)).select_related("topic")


class ConsumerFilter(OfRows):
    title = gettext_lazy("consumer")
    parameter_name = "consumer"
    column = "consumer_id"

    def rows(self, request: HttpRequest) -> list[tuple[int, str]]:
        return [(row.pk, str(row)) for row in _with_letters(request).order_by("name", "topic__name")[:CHOICES]]


class TopicFilter(OfRows):
    title = gettext_lazy("topic")
    parameter_name = "topic"
    column = "consumer__topic_id"

    def rows(self, request: HttpRequest) -> list[tuple[int, str]]:
        rows = _with_letters(request).order_by("topic__name").values_list("topic_id", "topic__name").distinct()
        return list(rows[:CHOICES])


class TypeFilter(SimpleListFilter):
    """The types of the newest dead letters: to look at all of them would take long where there are many."""

    title = gettext_lazy("type")
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = DeadLetter.objects.using(addresses.database_of(request)).order_by("-dead_at", "-pk")
        types = set(newest.values_list("type", flat=True)[:COUNTED])
        return [(one or NO_TYPE, without_turning(one) or "–") for one in sorted(types | self._asked())][:CHOICES]

    def _asked(self) -> set[str]:
        asked = self.used_parameters.get(self.parameter_name)
        return {"" if asked == NO_TYPE else asked} if asked and "\0" not in asked else set()

    def queryset(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:
        value = self.value()
        if value is None:
            return queryset
        if "\0" in value:  # a NUL: no text of PostgreSQL has one
            return queryset.none()
        return queryset.filter(type="" if value == NO_TYPE else value)


class TimeFilter(SimpleListFilter):
    """What died within some time, by the database's clock."""

    title = gettext_lazy("dead since")
    parameter_name = "within"
    times: ClassVar = {
        "15min": (gettext_lazy("15 minutes"), timedelta(minutes=15)),
        "1h": (gettext_lazy("an hour"), timedelta(hours=1)),
        "1d": (gettext_lazy("a day"), timedelta(days=1)),
        "7d": (gettext_lazy("a week"), timedelta(days=7)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(value, label) for value, (label, _) in self.times.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:
        value = self.value()
        if value not in self.times:
            return queryset
        _, within = self.times[value]
        return queryset.filter(dead_at__gte=Now() - within)


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
        return queryset.filter(fingerprint=value)


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

    list_display = ("event", "consumer_name", "summary", "about", "attempts", "since")
    list_filter = (DatabaseFilter, ConsumerFilter, TopicFilter, TypeFilter, TimeFilter, WaitingFilter, ErrorFilter)
    list_select_related = ("consumer__topic",)
    search_fields = ("=event_id", "=key", "=type", "error")
    search_help_text = gettext_lazy("An event (orders/1042, or its id), a key, a type, or a part of an error.")
    ordering = ("-dead_at", "-id")
    sortable_by = ("since",)
    actions = ("redrive", "discard")
    change_list_template = "admin/django_events/dead_letters.html"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """An event is found by its address, too."""
        if found := ADDRESS.fullmatch(search_term.strip()):
            return queryset.filter(consumer__topic__name=found[1], event_id=int(found[2])), False
        return super().get_search_results(request, queryset, search_term)

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("errors/", "errors", self.errors, "view_deadletter"),
            self.page("errors/act/<str:name>/", "group", self.group, "view_deadletter", post=True),
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

    @admin.display(description=gettext_lazy("type, key"))
    def about(self, row: DeadLetter) -> str:
        return format_html("{}<br>{}", without_turning(row.type) or "–", without_turning(row.key or ""))

    @admin.display(description=gettext_lazy("dead since"), ordering="dead_at")
    def since(self, row: DeadLetter) -> str:
        state = _("waits to be handled again") if row.redrive_at is not None else ""
        local = timezone.localtime(row.dead_at) if timezone.is_aware(row.dead_at) else row.dead_at
        return format_html("{}<br>{}", f"{local:%Y-%m-%d %H:%M:%S}", state)

    @admin.display(description=gettext_lazy("error"))
    def summary(self, row: DeadLetter) -> str:
        return without_turning(row.error.split("\n")[0][:150])

    def errors(self, request: HttpRequest) -> HttpResponse:
        """The groups of errors, the largest first."""
        using = addresses.database_of(request)
        groups = DeadLetter.objects.using(using).by_error()
        page = BoundedPaginator(groups, GROUPS).get_page(request.GET.get("p"))
        context = {
            "title": _("Dead letters by error"),
            "trail": [],
            "using": using,
            "databases": databases(),
            "page": page,
            "groups": [{**group, **self._addresses_of(using, group)} for group in page],
            "may_redrive": self.has_redrive_permission(request),
            "may_discard": self.has_discard_permission(request),
        }
        return self.answer(request, "errors.html", context)

    def _addresses_of(self, using: str, group: dict[str, Any]) -> dict[str, str]:
        query = addresses.query(using, consumer=group["consumer_id"], group=group["fingerprint"])
        pages = {name: self.url("group", name) + query for name in ("redrive", "discard")}
        return {"address": self.url("changelist") + query, **pages}

    def group(self, request: HttpRequest, name: str) -> HttpResponse:
        """Redrive or discard the dead letters of one consumer and one error."""
        using, consumer_id = addresses.database_of(request), addresses.id_of(request, "consumer")
        fingerprint = request.GET.get("group", "")
        if name not in ("redrive", "discard") or consumer_id is None or "\0" in fingerprint:
            raise Http404(_("There is no action “%(name)s”.") % {"name": name})
        letters = DeadLetter.objects.using(using).select_related("consumer__topic")
        letters = letters.filter(consumer_id=consumer_id, fingerprint=fingerprint)
        back = self.url("errors") + addresses.query(using)
        answer: HttpResponse | None = getattr(self, name)(request, letters, back=back)
        return answer or HttpResponseRedirect(back)

    def letter(self, request: HttpRequest, address: str) -> HttpResponse:
        row = _row(address)
        context: dict[str, Any] = {
            "title": _("Dead letter %(event)s of %(consumer)s")
            % {"event": self.event(row), "consumer": row.consumer.name},
            "trail": [],
            "using": row._state.db,
            "letter": row,
            "payload": payloads.of(row, everything="all" in request.GET),
            "kept": _kept(request),
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
        kept = _kept(request)
        answer = getattr(self, name)(request, letters, back=self.url("change", address) + kept)
        filtered = urlencode(parse_qsl(request.GET.get(FILTERS_OF_LIST, "")))
        return answer or HttpResponseRedirect(
            f"{self.url('changelist')}?{filtered}" if filtered else self.list_url(using)
        )

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
        form = (DiscardForm if action == "discard" else ReasonForm)(request.POST if said else None)
        if said and form.is_valid():
            try:
                self._do(request, rows, action, reason=form.cleaned_data["reason"])
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
        done = (redrive if action == "redrive" else discard)(rows, reason=reason, by=by(request))
        if not done:
            messages.warning(request, _("Nothing was changed: these dead letters are not there any more."))
            return
        for consumer in Consumer.objects.using(rows.db).filter(pk__in=letters):
            self.note(request, consumer, f"{action}: {_done(action, letters[consumer.pk], reason)}")
        messages.success(request, _done(action, done, reason))


def _kept(request: HttpRequest) -> str:
    """The filters of the list that the user came from, for the next address."""
    filters = request.GET.get(FILTERS_OF_LIST)
    return f"?{urlencode({FILTERS_OF_LIST: filters})}" if filters else ""


def _done(action: str, number: int, reason: str) -> str:
    if action == "redrive":
        said = ngettext(
            "%(count)d dead letter is handled again as soon as a worker takes it.",
            "%(count)d dead letters are handled again as soon as a worker takes them.",
            number,
        )
        return f"{said % {'count': number}} {reason}".rstrip()
    return _("%(letters)s discarded: %(reason)s") % {"letters": counted.dead_letters(number), "reason": reason}


def _line(row: DeadLetter) -> str:
    return f"{row.consumer}: {row.consumer.topic.name}/{row.event_id}, {without_turning(row.error[:120])}"


def _row(address: str) -> DeadLetter:
    pk, using = addresses.read(address)
    rows = DeadLetter.objects.using(using).select_related("consumer__topic").filter(pk=pk)
    row = payloads.readable(rows).first()
    if row is None:
        raise Http404(_("There is no such dead letter: it was redriven or discarded."))
    return row
