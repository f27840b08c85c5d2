"""What needs somebody's attention, most important first, each with what to do about it."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import NamedTuple

from django_events import declarations, models, sql
from django_events.consuming.lag import Standing
from django_events.log.inventory import NextScheduled, Waiting
from django_events.phrases import count, duration, moment
from django_events.statements import log_table

LATE = timedelta(seconds=10)
UNSERVED = timedelta(seconds=60)
LOOKED_INTO = 20  # consumers; where so many are in trouble, one more tells nothing new

Declared = set[tuple[str, str]]


class Trouble(NamedTuple):
    """What is wrong, with which consumer or topic, and the way out."""

    kind: str
    consumer: str | None
    topic: str | None
    partition: int | None
    what: str
    remedy: str


def troubles(
    using: str, waiting: Iterable[Waiting], scheduled: NextScheduled | None, standings: list[Standing]
) -> list[Trouble]:
    """Judge what was seen in the buffer, among the scheduled events and of the consumers."""
    declared = {(consumer.name, topic) for consumer in declarations.consumers for topic in consumer.topics}
    return [
        *_late(waiting),
        *_overdue(scheduled),
        *_stopped(standings),
        *_unserved(using, declared, standings),
        *_retrying(standings),
        *_dead(standings),
        *_unregistered(using, declared, standings),
        *_undeclared(declared, standings),
        *_paused(standings),
    ]


def _late(waiting: Iterable[Waiting]) -> Iterator[Trouble]:
    for one in waiting:
        if one.age > LATE:
            many = count(one.events, "event", more=one.more)
            what = f"{many} in the buffer, the oldest for {duration(one.age)}: no transfer moves them."
            yield Trouble("transfer", None, one.topic, None, what, "Is one running? manage.py run_transfer")


def _overdue(scheduled: NextScheduled | None) -> Iterator[Trouble]:
    if scheduled is not None and scheduled.overdue > LATE:
        what = f"A scheduled event is due since {duration(scheduled.overdue)}: no transfer publishes it."
        yield Trouble("transfer", None, scheduled.topic, None, what, "Is one running? manage.py run_transfer")


def _stopped(standings: list[Standing]) -> Iterator[Trouble]:
    for one in standings:
        if one.state == "stopped":
            at = f"at {one.topic}/{one.attempted}" if one.attempted else f"behind {one.topic}/{one.position}"
            tried = f" after {count(one.attempts, 'attempt')}" if one.attempts else ""
            remedy = f"Repair the cause, then: manage.py events resume {one.consumer}"
            yield _of_partition(one, "stopped", f"stopped {at}{tried}. {one.error}", remedy)


def _unserved(using: str, declared: Declared, standings: list[Standing]) -> Iterator[Trouble]:
    """Those that have something to do, and nobody who does it. An event that came just now is nobody's fault."""
    looked_into = 0
    for one in standings:
        if not one.lag or one.state not in ("idle", "lost", "retrying") or (one.consumer, one.topic) not in declared:
            continue
        if one.paused_at is not None or (one.unserved_for is not None and one.unserved_for <= UNSERVED):
            continue
        looked_into += 1
        if looked_into > LOOKED_INTO:
            return
        age = _age_of_oldest(using, one)
        patience = declarations.consumers.get(one.consumer).max_wait or timedelta(0)
        if age is not None and age > UNSERVED + patience:
            what = f"{_behind(one)} behind, the oldest for {duration(age)}: no worker handles them."
            yield _of_all(one, "unserved", what, f"Is one running? manage.py run_consumer {one.consumer}")


def _retrying(standings: list[Standing]) -> Iterator[Trouble]:
    for one in standings:
        if one.state == "retrying" and one.retry_at is not None:
            what = f"{one.topic}/{one.attempted} failed {count(one.attempts, 'time')}, next at {moment(one.retry_at)}."
            remedy = f"To try again now: manage.py events resume {one.consumer}"
            yield _of_partition(one, "retrying", f"{what} {one.error}", remedy)


def _dead(standings: list[Standing]) -> Iterator[Trouble]:
    for one in standings:
        if one.dead_letters:
            what = f"{count(one.dead_letters, 'dead letter', more=one.more_dead_letters)}."
            yield _of_all(one, "dead letters", what, f"manage.py events dead-letters {one.consumer}")


def _unregistered(using: str, declared: Declared, standings: list[Standing]) -> Iterator[Trouble]:
    for consumer, topic in sorted(declared - {(one.consumer, one.topic) for one in standings}):
        place = declarations.consumers.get(consumer).declared_at
        what = f"declared at {place}, and not registered in the database {using!r}."
        yield Trouble("not registered", consumer, topic, None, what, f"manage.py migrate --database {using}")


def _undeclared(declared: Declared, standings: list[Standing]) -> Iterator[Trouble]:
    for one in standings:
        if one.mode != "spark" and (one.consumer, one.topic) not in declared:
            what = f"no installed app declares it: nobody handles its events, and {one.topic} is kept for it."
            remedy = f"If it is gone for good: manage.py events unregister {one.consumer} --topic {one.topic}"
            yield _of_all(one, "undeclared", what, remedy)


def _paused(standings: list[Standing]) -> Iterator[Trouble]:
    for one in standings:
        if one.paused_at is not None:
            what = f"paused since {moment(one.paused_at)}, {_behind(one)} behind."
            yield _of_all(one, "paused", what, f"manage.py events resume {one.consumer}")


def _behind(one: Standing) -> str:
    return count(one.lag, "event", more=one.more_lag)


def _of_all(one: Standing, kind: str, what: str, remedy: str) -> Trouble:
    return Trouble(kind, one.consumer, one.topic, None, what, remedy)


def _of_partition(one: Standing, kind: str, what: str, remedy: str) -> Trouble:
    others = f" and {count(one.in_state - 1, 'other')}" if one.in_state > 1 else ""
    lane = "" if one.partition == models.Position.ALL else f"partition {one.partition}{others}: "
    return Trouble(kind, one.consumer, one.topic, one.partition, f"{lane}{what.strip()}", remedy)


def _age_of_oldest(using: str, one: Standing) -> timedelta | None:
    consumer = (
        models.Consumer.objects.using(using).select_related("topic").get(name=one.consumer, topic__name=one.topic)
    )
    topic = consumer.topic
    if consumer.mode == "queue":
        pending = sql.statement("oldest_pending").on(log=log_table(topic.pk), topic_id=topic.pk)
        [[age]] = sql.fetch(using, pending, consumer_id=consumer.pk)
    else:
        whole = not consumer.partitioned or topic.partitions == 1
        events = sql.statement("in_topic").on(topic_id=topic.pk) if whole else sql.statement("in_its_partition")
        unpassed = sql.statement("oldest_unpassed").on(consumer_id=consumer.pk, log=log_table(topic.pk), events=events)
        [[age]] = sql.fetch(using, unpassed)
    result: timedelta | None = age
    return result
