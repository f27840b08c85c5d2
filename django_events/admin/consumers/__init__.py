"""Consumers: how far they are, what they have in hand, and the actions that move them: `actions` has each."""

from datetime import timedelta

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _

from django_events import sql
from django_events.admin import addresses
from django_events.admin.charts import Chart, Line, Point, chart, period_of, periods, rates
from django_events.admin.consumers.actions import ACTIONS, Action
from django_events.admin.consumers.by_hand import done_by_hand
from django_events.admin.consumers.declared import declared_options
from django_events.admin.consumers.deliveries import LISTED, leases, listed, types_and_keys
from django_events.admin.consumers.kept import kept_table
from django_events.admin.forms import EventField
from django_events.admin.pages import Pages, may
from django_events.admin.problems import problems
from django_events.admin.rollups import rollup_charts, rollup_of
from django_events.admin.rows import consumer_rows
from django_events.exceptions import EventsError, did_you_mean
from django_events.models import Consumer, DeadLetter, Position
from django_events.models.databases import databases
from django_events.observing import samples
from django_events.observing.barriers import barriers
from django_events.observing.findings import Subject
from django_events.observing.lag import importance, progress, standings
from django_events.observing.problems import find_problems
from django_events.observing.queues import figures
from django_events.observing.samples import Pace
from django_events.operating.moved_keys import waiting_consumers
from django_events.operations import rewind


class ConsumerAdmin(Pages):
    """Consumers on their topics."""

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("", "changelist", self.consumers, "view_consumer"),
            self.page("go/<str:name>/", "go", self.go, "view_consumer"),
            self.page("go/<str:name>/<str:topic>/", "go", self.go, "view_consumer"),
            self.page("<str:address>/change/", "change", self.consumer, "view_consumer"),
            self.page("<str:address>/deliveries/", "deliveries", self.deliveries, "view_consumer"),
            self.page("<str:address>/act/<str:name>/", "act", self.act, "view_consumer", post=True),
            *super().get_urls(),
        ]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Consumer | None:
        return _row(object_id)[0]

    def consumers(self, request: HttpRequest) -> HttpResponse:
        using = addresses.database_of(request)
        asked = request.GET.get("q", "").strip()
        found = [o for o in standings(using) if asked.lower() in f"{o.consumer} {o.topic}".lower()]
        page = Paginator(sorted(found, key=importance), LISTED).get_page(request.GET.get("p"))
        context = {
            "title": _("Consumers"),
            "using": using,
            "databases": databases(),
            "q": asked,
            "page": page,
            "consumers": consumer_rows(using, list(page.object_list), Pace.since_sample(using)),
        }
        return self.answer(request, "consumers.html", context)

    def go(self, request: HttpRequest, name: str, topic: str | None = None) -> HttpResponse:
        """A consumer by its name, as metrics and log records call it: `go/ledger/`, or `go/ledger/orders/`."""
        using = addresses.database_of(request)
        rows = Consumer.objects.using(using).filter(name=name)
        found = list((rows if topic is None else rows.filter(topic__name=topic))[:2])
        if not found:
            known = Consumer.objects.using(using).values_list("name", flat=True).distinct()
            raise Http404(
                _("There is no consumer “%(name)s” of this topic.") % {"name": name}
                if topic is not None and rows
                else _("There is no consumer “%(name)s”. %(nearest)s")
                % {"name": name, "nearest": did_you_mean(name, known)}
            )
        if len(found) > 1:
            return HttpResponseRedirect(self.list_url(using, q=name))
        return HttpResponseRedirect(self.url("change", addresses.written(found[0].pk, using)))

    def consumer(self, request: HttpRequest, address: str) -> HttpResponse:
        row, using = _row(address)
        [standing] = standings(using, [row])
        rollup = rollup_of(using, row)
        positions = progress(using, [row])
        context = {
            "title": str(row),
            "rollup": rollup,
            "rollup_charts": rollup_charts(using, rollup, period_of(request)[1]) if rollup else [],
            "trail": [],
            "using": using,
            "consumer": row,
            "row": consumer_rows(using, [standing], Pace.since_sample(using))[0],
            "positions": positions,
            "all": Position.ALL,
            "hands": leases(using, row),
            "queue": figures(using, [standing]).get(row.pk),
            "barriers": barriers(using, [row]),
            "waits": [one for one in waiting_consumers(using, ask=False) if one.consumer_id == row.pk],
            "problems": problems(
                request,
                [one for one in find_problems(using, [], None, [standing]) if _is_of(one.subject, row)],
                consumers={},  # this is its page, with its actions
                topics={row.topic.name: row.topic_id},
            ),
            "declared": declared_options(row),
            "kept": kept_table(using, row, positions),
            "charts": _charts(using, row, period_of(request)[1]),
            "period": period_of(request)[0],
            "periods": periods(),
            "interventions": done_by_hand(using, row),
            "actions": [
                action
                for action in ACTIONS.values()
                if action.offered(request, row, standing.state, rolled_up=rollup is not None)
            ],
            "dead_letters": DeadLetter.objects.using(using).filter(consumer=row).exists(),
        }
        return self.answer(request, "consumer.html", context)

    def deliveries(self, request: HttpRequest, address: str) -> HttpResponse:
        row, using = _row(address)
        state = request.GET.get("state", "")
        found = listed(using, row, state, after=addresses.id_of(request, "after") or 0)
        rows, more = found[:LISTED], len(found) > LISTED
        known = types_and_keys(using, row, [one.event_id for one in rows])
        context = {
            "title": _("Deliveries of %(consumer)s") % {"consumer": row},
            "trail": [(str(row), self.url("change", address))],
            "using": using,
            "consumer": row,
            "state": state,
            "states": [
                ("", _("oldest first")),
                ("retrying", _("retrying")),
                ("waiting", _("waiting for a time")),
                ("leased", _("in hand")),
            ],
            "deliveries": [(one, *known.get(one.event_id, (None, None))) for one in rows],
            "next": rows[-1].event_id if rows and more and state in ("", "leased") else None,
            "may_retry": may(request, "retry_now_consumer"),
            "may_skip": may(request, "skip_consumer"),
            "more": more,
        }
        return self.answer(request, "deliveries.html", context)

    def act(self, request: HttpRequest, address: str, name: str) -> HttpResponse:
        """Ask first, show what would happen where that is not plain, and act when the user confirms."""
        action = ACTIONS.get(name)
        if action is None:
            raise Http404(_("There is no action “%(name)s”.") % {"name": name})
        if not may(request, action.permission):
            raise PermissionDenied
        row, using = _row(address)
        back = self.url("change", address)
        asked = request.POST if request.method == "POST" else (action.previewed and request.GET) or None
        initial = {"event": _attempted(row), **request.GET.dict()}
        form = action.form(asked, initial=initial)
        for field in form.fields.values():
            if isinstance(field, EventField):
                field.topic = row.topic.name
        moves = None
        if asked is not None and not form.is_valid():
            pass
        elif request.method == "POST" or (action.previewed and asked is not None):
            said = form.cleaned_data
            try:
                if request.method == "POST":
                    return self._done(request, row, action, action.act(request, row, said), said["reason"], back)
                moves = rewind(
                    row.name,
                    to=said["start"],
                    topic=row.topic.name,
                    partition=said["partition"],
                    dry_run=True,
                    using=using,
                )
            except EventsError as error:
                form.add_error(None, str(error))
        context = {
            "title": _("%(action)s: %(consumer)s") % {"action": action.label, "consumer": row},
            "trail": [(str(row), back)],
            "using": using,
            "explanation": action.explanation,
            "button": action.label,
            "form": form,
            "moves": moves,
            "total": moves
            and {
                "again": sum(move.again for move in moves),
                "omitted": sum(move.omitted for move in moves),
                "dead_letters": sum(move.dead_letters for move in moves),
            },
            "all": Position.ALL,
            "back": back,
        }
        return self.answer(request, "rewind.html" if action.previewed else "confirm.html", context)

    def _done(
        self, request: HttpRequest, row: Consumer, action: Action, said: str, reason: str, back: str
    ) -> HttpResponse:
        if said:
            self.note(request, row, f"{action.name}: {said} {reason}".rstrip())
            messages.success(request, said)
            if action.name == "unsubscribe":  # it has no page any more
                back = self.list_url(str(row._state.db))
        else:
            messages.info(request, _("Nothing was changed: there was nothing to do."))
        return HttpResponseRedirect(back)


def _charts(using: str, row: Consumer, period: timedelta) -> list[Chart]:
    points = samples.of_consumer(using, row.pk, period)
    end = sql.now(using)
    frame = {"start": end - period, "end": end}
    handled = Line(_("handled or ignored"), rates([Point(one.at, one.handled) for one in points]))
    failed = Line(_("failed attempts"), rates([Point(one.at, one.failed) for one in points]))
    behind = [Point(one.at, one.behind) for one in points if one.behind is not None]
    return [
        chart(_("Lag"), _("events"), [Line(_("not passed"), [Point(one.at, one.lag) for one in points])], **frame),
        chart(_("Handled"), _("events/s"), [handled, failed], **frame),
        chart(_("Behind"), _("seconds"), [Line(_("oldest event not passed"), behind)], **frame),
        chart(_("Dead letters"), _("events"), [Line(_("there"), [Point(one.at, one.dead) for one in points])], **frame),
    ]


def _is_of(subject: Subject, row: Consumer) -> bool:
    return (subject.consumer, subject.topic) == (row.name, row.topic.name)


def _attempted(row: Consumer) -> int | None:
    """The event at which a consumer fails, which the form for skipping offers."""
    failing = row.positions.using(row._state.db).filter(attempted__isnull=False).order_by("partition").first()
    return failing.attempted if failing is not None else None


def _row(address: str) -> tuple[Consumer, str]:
    pk, using = addresses.read(address)
    row = Consumer.objects.using(using).select_related("topic__head").filter(pk=pk).first()
    if row is None:
        raise Http404(_("There is no such consumer."))
    return row, using
