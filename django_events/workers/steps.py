"""The steps of maintenance: what has to be done in a database again and again, each in short transactions."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, OperationalError, ProgrammingError

from django_events import models, sql
from django_events.consuming.dead_rows import piles
from django_events.consuming.expiring import expire
from django_events.consuming.histories import prune_histories
from django_events.consuming.orphans import forget_orphans
from django_events.consuming.samples import take
from django_events.log import retention, segments
from django_events.log.inventory import logs
from django_events.publishing.dedup import forget_expired
from django_events.publishing.staging import forget_staged

MINUTE = timedelta(minutes=1)
SECONDS = 20.0  # for which a step may go on beginning something; what is left is done the next time

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something to do in each period of time, by one process. It may be repeated, and ended in the middle."""

    name: str
    help: str
    run: Callable[[str], Result]
    every: timedelta = MINUTE


def make_segments(using: str) -> Result:
    """Room ahead in each topic; and a segment that has its part of what a topic keeps ends there."""
    made = divided = 0
    for topic in _until_late(_found(using, _without_room)):
        made += segments.ensure(using, topic.pk, events=1) > 0
    for topic in _until_late(_found(using, _divisible)):
        with retention.writing(using, topic.pk) as now:
            divided += now is not None and retention.divide(using, now)
    return {"made": made, "divided": divided}


def apply_retention(using: str) -> Result:
    """What topics need not keep is dropped, unless a consumer needs it."""
    dropped: Result = {"segments": 0, "events": 0, "bytes": 0, "kept_for": {}, "waits_for": {}}
    for topic in _until_late(_found(using, _with_outlived)):
        done = expire(using, topic)
        for name in ("segments", "events", "bytes"):
            dropped[name] += getattr(done, name)
        for name in ("kept_for", "waits_for"):
            if reason := getattr(done, name):
                dropped[name][topic.name] = reason
    return dropped


Look = Callable[[str, Sequence[models.Topic]], list[models.Topic]]


def _found(using: str, look: Look) -> list[models.Topic]:
    """The topics that have something to do. Where a log is locked, or dropped in this moment, the others are found."""
    topics = list(models.Topic.objects.using(using).select_related("head").order_by("name"))
    try:
        with sql.batch(using, **sql.UNHURRIED):
            return look(using, topics)
    except DatabaseError as error:
        if sql.state(error) not in (sql.LOCK_NOT_AVAILABLE, sql.UNDEFINED_TABLE):
            raise
    found = []
    for topic in _until_late(topics):
        with suppress(OperationalError, ProgrammingError), sql.batch(using, **sql.UNHURRIED):
            found += look(using, [topic])
    return found


def _without_room(using: str, topics: Sequence[models.Topic]) -> list[models.Topic]:
    rooms = segments.rooms(using, [topic.pk for topic in topics])
    return [log.topic for log in logs(using, topics) if rooms[log.topic.pk] <= log.last_id]


def _divisible(using: str, topics: Sequence[models.Topic]) -> list[models.Topic]:
    return [log.topic for log in retention.divisible(using, logs(using, topics))]


def _with_outlived(using: str, topics: Sequence[models.Topic]) -> list[models.Topic]:
    old = retention.outlived_of(using, topics)
    return [topic for topic in topics if topic.pk in old]


def forget_dedup_keys(using: str) -> Result:
    """Keys whose window is over."""
    return {"deleted": _repeat(lambda: forget_expired(using))}


def forget_staged_events(using: str) -> Result:
    """What tasks of Spark staged, and no driver published."""
    return {"deleted": _repeat(lambda: forget_staged(using))}


def watch_dead_rows(using: str) -> Result:
    """Tables with more dead rows than autovacuum should leave."""
    return {"tables": {pile.table: pile.dead for pile in piles(using)}}


STEPS = (
    Step(name="segments", help="Segments are made ahead of need.", run=make_segments),
    Step(name="retention", help="What topics need not keep is dropped.", run=apply_retention),
    Step(
        name="history",
        help="What queue consumers processed is forgotten when it is old.",
        run=lambda using: {"deleted": prune_histories(using, seconds=SECONDS)},
        every=10 * MINUTE,
    ),
    Step(
        name="dedup",
        help="Dedup keys whose window is over are forgotten.",
        run=forget_dedup_keys,
        every=10 * MINUTE,
    ),
    Step(
        name="staging",
        help="What Spark staged and never published is forgotten.",
        run=forget_staged_events,
        every=10 * MINUTE,
    ),
    Step(
        name="orphans",
        help="What is left of unregistered consumers is deleted.",
        run=lambda using: {"deleted": forget_orphans(using, seconds=SECONDS)},
        every=10 * MINUTE,
    ),
    Step(name="bloat", help="Tables that are not vacuumed are found.", run=watch_dead_rows, every=10 * MINUTE),
    Step(name="samples", help="A sample for charts is taken.", run=lambda using: {"taken": int(take(using))}),
)


def _until_late(things: Iterable[Any]) -> Iterable[Any]:
    """As many of them as there is time for."""
    deadline = time.monotonic() + SECONDS
    for thing in things:
        if time.monotonic() >= deadline:
            return
        yield thing


def _repeat(some: Callable[[], int]) -> int:
    """As long as there is more, and time; how much it was."""
    deadline, done = time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline and (more := some()):
        done += more
    return done
