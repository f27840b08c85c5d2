"""Consumers: how far they are, what they have in hand, and the actions that move them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_events import declarations, sql
from django_events.admin import addresses
from django_events.admin.charts import Chart, Line, Point, chart, period_of, periods, rates
from django_events.admin.forms import ReasonForm, ReplayForm, RetryForm, RewindForm, SkipForm, UnsubscribeForm
from django_events.admin.pages import Pages, by, may
from django_events.admin.problems import problems
from django_events.admin.rollups import rollup_charts, rollup_of
from django_events.admin.rows import consumer_rows
from django_events.deriving.derivation import table_of
from django_events.deriving.reached import of_consumer
from django_events.exceptions import EventsError, did_you_mean
from django_events.models import Consumer, DeadLetter, Delivery, DeliveryLease, Event, Intervention, Position, Rebuild
from django_events.models.databases import databases
from django_events.observing import counted, samples
from django_events.observing.barriers import barriers
from django_events.observing.findings import Subject
from django_events.observing.lag import PartitionProgress, importance, progress, standings
from django_events.observing.problems import find_problems
from django_events.observing.queues import figures
from django_events.observing.samples import Pace
from django_events.operating.moved_keys import waiting_consumers
from django_events.operations import pause, replay, resume, retry_now, rewind, skip, unsubscribe
from django_events.outcomes import UpTo
from django_events.phrases import duration
from django_events.retries import Backoff

SQL = sql.beside(__name__)

LISTED = 100
OF_HANDLERS = ("retry_now", "skip", "replay")  # what has no meaning for a roll-up
BY_HAND, LOOKED_AT = 10, 1_000  # interventions on the page of a consumer, and rows that are looked at for them
LEASED = 10_000  # events in hand that are looked up
IN_HAND = ("event_id", "received_at", "visible_at", "token", "attempts", "delivered", "error")  # in that order
WAIT = timedelta(seconds=5)  # for events in hand: a page must answer sooner than a command
Act = Callable[[HttpRequest, Consumer, dict[str, Any]], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """An action on a consumer, for users with the permission of the same name."""

    name: str
    label: Promise
    explanation: Promise
    act: Act
    form: type[forms.Form] = ReasonForm
    previewed: bool = False

    @property
    def permission(self) -> str:
        return f"{self.name}_consumer"


def _pause(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    if pause(row.name, topic=row.topic.name, reason=said["reason"], by=by(request), using=row._state.db):
        return _("Consumer %(consumer)s is paused: what is in hand is finished, nothing more is begun.") % {
            "consumer": row
        }
    return ""


def _resume(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    if resume(row.name, topic=row.topic.name, reason=said["reason"], by=by(request), using=row._state.db):
        return _("Consumer %(consumer)s goes on, and what failed is tried again now.") % {"consumer": row}
    return ""


def _retry_now(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    only = said["only"]
    how = {"reason": said["reason"], "by": by(request), "using": row._state.db}
    if retry_now(row.name, topic=row.topic.name, event_id=only, **how):
        if only:
            return _("Consumer %(consumer)s tries %(address)s again now.") % {
                "consumer": row,
                "address": f"{row.topic}/{only}",
            }
        return _("Consumer %(consumer)s tries again now what failed.") % {"consumer": row}
    return ""


def _skip(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    skip(row.name, said["event"], topic=row.topic.name, reason=said["reason"], by=by(request), using=row._state.db)
    return _("Event %(address)s is a dead letter of %(consumer)s now: it can be redriven.") % {
        "address": f"{row.topic}/{said['event']}",
        "consumer": row,
    }


def _replay(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    done = replay(
        row.name,
        topic=row.topic.name,
        first=said["first"],
        last=said["last"],
        types=[said["type"]] if said["type"] else None,
        keys=[said["key"]] if said["key"] else None,
        reason=said["reason"],
        by=by(request),
        using=row._state.db,
    )
    if not done.events:
        return ""
    return _("Consumer %(consumer)s handles %(again)s again. Of those chosen, %(left_out)s are left out.") % {
        "consumer": row,
        "again": counted.events(done.events),
        "left_out": counted.events(done.pending + done.filtered + done.waiting),
    }


def _rewind(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    moves = rewind(
        row.name,
        to=said["place"],
        topic=row.topic.name,
        partition=said["partition"],
        reason=said["reason"],
        by=by(request),
        wait=WAIT,
        using=row._state.db,
    )
    again = sum(move.again for move in moves)
    left_out = sum(move.omitted for move in moves)
    return _("Consumer %(consumer)s is rewound: %(again)s come again, %(left_out)s left out.") % {
        "consumer": row,
        "again": counted.events(again),
        "left_out": counted.events(left_out),
    }


def _unsubscribe(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    how = {"reason": said["reason"], "by": by(request), "using": row._state.db}
    unsubscribe(row.name, topic=row.topic.name, force=said["force"], **how)
    return _("Subscription %(consumer)s is removed.") % {"consumer": row}


ACTIONS = {
    action.name: action
    for action in (
        Action(
            name="pause",
            label=gettext_lazy("Pause"),
            explanation=gettext_lazy(
                "What is in hand is finished, and nothing more is begun until the consumer is resumed. Its events wait."
            ),
            act=_pause,
        ),
        Action(
            name="resume",
            label=gettext_lazy("Resume"),
            explanation=gettext_lazy(
                "The consumer goes on where it was. What stopped or waits for another attempt is tried again now."
            ),
            act=_resume,
        ),
        Action(
            name="retry_now",
            label=gettext_lazy("Retry now"),
            explanation=gettext_lazy(
                "What stopped or waits for another attempt is tried again now, its attempts counted anew."
            ),
            act=_retry_now,
            form=RetryForm,
        ),
        Action(
            name="skip",
            label=gettext_lazy("Skip an event"),
            explanation=gettext_lazy(
                "The consumer gives up on one event and goes on behind it. The event becomes a dead letter, with your "
                "reason: nothing is lost, and it can be redriven."
            ),
            act=_skip,
            form=SkipForm,
        ),
        Action(
            name="replay",
            label=gettext_lazy("Replay events"),
            explanation=gettext_lazy(
                "The consumer handles chosen events again, beside what comes. Each waits as a dead letter for its turn."
                " Events that it has not handled yet, or that are not meant for it, are left out."
            ),
            act=_replay,
            form=ReplayForm,
        ),
        Action(
            name="rewind",
            label=gettext_lazy("Rewind"),
            explanation=gettext_lazy(
                "The consumer goes on at another place of the log. You see what would happen before anything changes."
            ),
            act=_rewind,
            form=RewindForm,
            previewed=True,
        ),
        Action(
            name="unsubscribe",
            label=gettext_lazy("Unsubscribe"),
            explanation=gettext_lazy(
                "The subscription is removed, with all events that it has not handled. The log is not kept for it any "
                "longer."
            ),
            act=_unsubscribe,
            form=UnsubscribeForm,
        ),
    )
}


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
            "declared": _declared(row),
            "kept": _kept(using, row, positions),
            "charts": _charts(using, row, period_of(request)[1]),
            "period": period_of(request)[0],
            "periods": periods(),
            "interventions": _done_by_hand(using, row),
            "actions": [
                action
                for action in ACTIONS.values()
                if self._offers(request, row, standing.state, action, derived=rollup is not None)
            ],
            "dead_letters": DeadLetter.objects.using(using).filter(consumer=row).exists(),
        }
        return self.answer(request, "consumer.html", context)

    def deliveries(self, request: HttpRequest, address: str) -> HttpResponse:
        row, using = _row(address)
        state = request.GET.get("state", "")
        found = listed(using, row, state, after=addresses.id_of(request, "after") or 0)
        rows, more = found[:LISTED], len(found) > LISTED
        known = _types_and_keys(using, row, [one.event_id for one in rows])
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
                    to=said["place"],
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

    def _offers(
        self, request: HttpRequest, row: Consumer, state: str, action: Action, *, derived: bool = False
    ) -> bool:
        if row.mode == "spark" or not may(request, action.permission):
            return False
        if derived and action.name in OF_HANDLERS:
            return False
        offered = {
            "pause": row.paused_at is None,
            "resume": row.paused_at is not None or state == "stopped",
            "retry_now": row.paused_at is None and state == "retrying",
            "replay": not _is_derived(row),
            "unsubscribe": row.subscribed,
        }
        return offered.get(action.name, True)


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


def _declared(row: Consumer) -> list[tuple[str, object, bool]]:
    """What the app that declares a consumer says of it, and whether that is code; nothing if no app here does."""
    for one in declarations.consumers:
        if one.name == row.name:
            return [
                (_("Handler"), _named(one.handler), True),
                (_("Declared at"), one.declared_at, True),
                (_("Attempts allowed"), one.retry.attempts, False),
                (_("Pauses between them"), _pauses(one.retry), False),
                (
                    _("After the last one"),
                    _("the partition stops") if one.on_exhausted == "stop" else _("dead letter"),
                    False,
                ),
                (_("Time-out"), duration(one.timeout) if one.timeout else "–", False),
                (_("Lease"), duration(one.lease), False),
                (_("Batch size"), one.batch_size or "–", False),
            ]
    return []


class _Kept(NamedTuple):
    """The table that a consumer keeps: up to which event it is true, and how far another one is filled, if any."""

    table: str
    up_to: UpTo
    rebuild: Rebuild | None

    @property
    def percent(self) -> int:
        """How much of the logs is in the table that is filled."""
        ends = 0 if self.rebuild is None else sum(self.rebuild.ends.values())
        return 100 if self.rebuild is None or not ends else 100 * sum(self.rebuild.reached.values()) // ends


def _kept(using: str, row: Consumer, positions: Sequence[PartitionProgress]) -> _Kept | None:
    for one in declarations.consumers:
        if one.name == row.name and one.derived:
            rebuilds = Rebuild.objects.using(using).filter(consumer=row.name)
            return _Kept(table_of(using, one), of_consumer(using, row, positions), rebuilds.first())
    return None


def _is_derived(row: Consumer) -> bool:
    return any(one.name == row.name and one.derived for one in declarations.consumers)


def _named(handler: object) -> str:
    if isinstance(handler, str):
        return handler
    if handler is None:
        return "–"
    while isinstance(handler, partial):
        handler = handler.func
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    return f"{getattr(handler, '__module__', '')}.{name}"


def _pauses(retry: Backoff) -> str:
    if retry.pauses:
        return ", ".join(map(duration, retry.pauses))
    return _("%(base)s, twice as long each time, up to %(cap)s") % {
        "base": duration(retry.base),
        "cap": duration(retry.cap),
    }


class DoneByHand(NamedTuple):
    """An intervention; of a rewind the first of its partitions, and how many there are."""

    first: Intervention
    partitions: int

    @property
    def details(self) -> dict[str, Any]:
        """What was said, and of one partition all that was changed."""
        details: dict[str, Any] = self.first.details
        if self.partitions == 1:
            return details
        said = {name: value for name, value in details.items() if name in ("to", "reason")}
        return {"partitions": self.partitions, **said}


def _done_by_hand(using: str, row: Consumer) -> list[DoneByHand]:
    """The newest interventions. A rewind is written down for each partition, and is one here."""
    about = Intervention.objects.using(using).filter(consumer=row.name, topic=row.topic.name)
    done: list[DoneByHand] = []
    last: Intervention | None = None
    for one in about.order_by("-at", "-pk")[:LOOKED_AT]:
        if last is not None and _is_same_rewind(last, one):
            done[-1] = done[-1]._replace(partitions=done[-1].partitions + 1)
        elif len(done) == BY_HAND:
            break
        else:
            done.append(DoneByHand(one, 1))
        last = one
    return done


def _is_same_rewind(later: Intervention, one: Intervention) -> bool:
    """Whether these are two partitions of a rewind, which move in one transaction."""
    if (later.action, one.action) != ("rewind", "rewind") or later.at - one.at > timedelta(seconds=1):
        return False
    said = [(each.by, each.details.get("to"), each.details.get("reason")) for each in (later, one)]
    return said[0] == said[1] and later.details.get("partition") != one.details.get("partition")


def leases(using: str, row: Consumer) -> list[DeliveryLease]:
    """What the workers of a queue consumer have in hand, the lease that ends first first."""
    return list(DeliveryLease.objects.using(using).filter(consumer=row).order_by("leased_until")[:LISTED])


def listed(using: str, row: Consumer, state: str, *, after: int) -> list[Delivery]:
    """Deliveries of a consumer as the page lists them, and one more if there are more."""
    with sql.by_index(using):
        return _listed(using, row, state, after)


def _listed(using: str, row: Consumer, state: str, after: int) -> list[Delivery]:
    rows: QuerySet[Delivery] = Delivery.objects.using(using).filter(consumer=row)
    if state == "leased":
        ids = sorted(one for lease in leases(using, row) for one in lease.event_ids if one > after)
        in_hand = SQL.deliveries_in_hand
        found = sql.fetch(using, in_hand, consumer_id=row.pk, event_ids=ids[:LEASED], limit=LISTED + 1)
        return [Delivery(consumer_id=row.pk, **dict(zip(IN_HAND, one, strict=True))) for one in found]
    if state == "retrying":  # among those that are due first: a million may wait for their first attempt
        waiting = rows.filter(visible_at__isnull=False).order_by("visible_at").values_list("event_id", "attempts")
        ids = [event_id for event_id, attempts in waiting[:LEASED] if attempts][: LISTED + 1]
        return sorted(rows.filter(event_id__in=ids), key=lambda one: ids.index(one.event_id))
    if state == "waiting":
        return list(rows.filter(visible_at__isnull=False).order_by("visible_at")[: LISTED + 1])
    return list(rows.filter(event_id__gt=after).order_by("event_id")[: LISTED + 1])


def _types_and_keys(using: str, row: Consumer, event_ids: list[int]) -> dict[int, tuple[str, str | None]]:
    """Of events that are in the log; of a dead letter that is handled again after retention nothing is known here."""
    with sql.by_index(using):
        found = Event.objects.using(using).filter(topic_id=row.topic_id, id__in=event_ids)
        return {event_id: (type_, key) for event_id, type_, key in found.values_list("id", "type", "key")}


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
