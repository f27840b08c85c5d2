"""Consumers with events that no worker handles, or that a handler keeps: kinds `unserved` and `hung`."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from django.utils.translation import gettext

from django_events import declarations, models, sql
from django_events.exceptions import HandlerNotFound
from django_events.models.functions import ClockTimestamp
from django_events.observing.findings import Finding
from django_events.observing.lag import Standing, oldest_waits
from django_events.observing.problems.registrations import subscribed
from django_events.observing.problems.situation import Declared, Situation, declared_here
from django_events.observing.problems.telling import (
    LOOKED_INTO,
    events_behind,
    is_running,
    is_running_as_registered,
    of_consumer,
    problem,
)
from django_events.phrases import duration

SQL = sql.beside(__name__)

UNSERVED = timedelta(seconds=60)
HUNG = timedelta(minutes=10)  # in hand; of a consumer with a time-out, as much longer than that
COMMAND_OF_WORKERS = "manage.py run_consumer"


def unserved(seen: Situation) -> Iterator[Finding]:
    """Consumers with something to do and no worker. An event that came just now is no problem yet."""
    candidates = _candidates(seen.using, seen.declared, seen.standings)[:LOOKED_INTO]
    for one, age in _left_alone(seen.using, candidates):
        facts = {"events": events_behind(one), "time": duration(age)}
        if broken := _handler_missing(one.consumer):
            what = gettext("%(events)s behind, the oldest for %(time)s: no worker can handle them. %(error)s") % {
                **facts,
                "error": broken,
            }
            yield of_consumer(one, "unserved", what, gettext("Deploy what is missing, and restart the workers."))
            continue
        what = gettext("%(events)s behind, the oldest for %(time)s: no worker handles them.") % facts
        told = is_running if one.served_at else is_running_as_registered
        remedy = told(seen.using, "run_consumer", one.consumer)
        yield of_consumer(one, "unserved", what, remedy)._replace(data={"command": COMMAND_OF_WORKERS})


def _handler_missing(consumer: str) -> str:
    """Why its handler can't be imported here: workers of this code don't serve it then, as the check W002 warns."""
    try:
        declarations.consumers.get(consumer).load()
    except HandlerNotFound as error:
        return str(error)
    return ""


def idle_troubles(using: str, standings: Sequence[Standing]) -> dict[int, str]:
    """Which of these consumers aren't merely idle: `unserved`, or `undeclared`, which nothing will serve."""
    declared = declared_here()
    idle = [one for one in standings if one.state == "idle" and one.mode != "spark"]
    served = declared | subscribed(using)
    undeclared = {one.consumer_id: "undeclared" for one in idle if (one.consumer, one.topic) not in served}
    left_alone = _left_alone(using, _candidates(using, declared, idle))
    return {**undeclared, **{one.consumer_id: "unserved" for one, _ in left_alone}}


def _candidates(using: str, declared: Declared, standings: Sequence[Standing]) -> list[Standing]:
    candidates = []
    failing = set(models.Consumer.objects.using(using).exclude(failure="").values_list("pk", flat=True))
    for one in standings:
        if one.consumer_id in failing:  # they are set aside, and there are workers
            continue
        if not one.lag or one.state not in ("idle", "lost", "retrying") or (one.consumer, one.topic) not in declared:
            continue
        if declarations.consumers.get(one.consumer).is_for_claims:  # a program may come once a day
            continue
        if one.paused_at is not None or (one.unserved_for is not None and one.unserved_for <= UNSERVED):
            continue
        candidates.append(one)
    return candidates


def _left_alone(using: str, candidates: list[Standing]) -> Iterator[tuple[Standing, timedelta]]:
    """Those that have had something due for long, and for how long."""
    waits = oldest_waits(using, [one.consumer_id for one in candidates], due=True) if candidates else {}
    registered = registered_for(using, waits)
    for one in candidates:
        age = waits.get(one.consumer_id)
        patience = declarations.consumers.get(one.consumer).max_wait or timedelta(0)
        if age is not None and min(age, registered[one.consumer_id]) > UNSERVED + patience:
            yield one, age


def registered_for(using: str, consumer_ids: Iterable[int]) -> dict[int, timedelta]:
    """How long ago these consumers were registered: before, no worker could know of them."""
    rows = models.Consumer.objects.using(using).filter(pk__in=consumer_ids).annotate(now=ClockTimestamp())
    return {row.pk: row.now - row.registered_at for row in rows}


def hung(seen: Situation) -> Iterator[Finding]:
    """What workers have in hand for very long, although they live: a handler that doesn't come back."""
    timeouts = {one.name: one.timeout or timedelta(0) for one in declarations.consumers}
    now = sql.now(seen.using)
    statement = SQL.in_hand.on(event_of_position=sql.shared.event_of_position, first_in_hand=sql.shared.first_in_hand)
    for consumer, topic, partition, event_id, holder, since in sql.fetch(
        seen.using, statement, age=HUNG, most=LOOKED_INTO
    ):
        if now - since <= HUNG + timeouts.get(consumer, timedelta(0)):
            continue
        what = gettext("%(holder)s has had %(event)s in hand for %(time)s: its handler has not come back.") % {
            "holder": holder,
            "event": topic if event_id is None else f"{topic}/{event_id}",
            "time": duration(now - since),
        }
        remedy = gettext("See what that process does, and end it: others go on. By itself: consumer(…, timeout=…)")
        on_partition = None if partition == models.Position.ALL else partition
        yield problem("hung", consumer, topic, on_partition, what, remedy)
