"""The steps of maintenance, which a process repeats in each database. Each step works in short transactions."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from django.db import DatabaseError

from django_events import models, sql
from django_events.deriving.forgetting import forget_old_buckets
from django_events.log import compaction, retention, segments
from django_events.log.dropping import drop_forgotten, drop_stranded
from django_events.log.inventory import logs
from django_events.maintaining.expiring import a_lock, expire
from django_events.maintaining.notifying import STEP, notify
from django_events.maintaining.pruning import (
    forget_dedup_keys,
    forget_staged,
    forget_webhook_attempts,
    prune_histories,
)
from django_events.maintaining.queues import serve_queues
from django_events.observing.dead_rows import piles
from django_events.observing.samples import take
from django_events.operating.moved_keys import release
from django_events.operating.orphans import forget_orphans
from django_events.operating.subscribing import STEP as SUBSCRIPTIONS
from django_events.operating.subscribing import expire_some

MINUTE = timedelta(minutes=1)
SECONDS = 20.0  # a step begins nothing more after so long; its next run does the rest

Result = dict[str, Any]
Until = Callable[[], bool]
Topics = Sequence[models.Topic]
Found = TypeVar("Found")


class StepFailed(Exception):
    """Some topics could not be served; the others were."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Work that one process does once in each period. Repeating it, or ending it in the middle, does no harm.

    `run` gets the database alias, and a function that says whether to stop.
    """

    name: str
    help: str
    run: Callable[[str, Until], Result]
    every: timedelta = MINUTE


def make_segments(using: str, until: Until) -> Result:
    """Make segments ahead of need, and end a segment early that holds its share of what the topic keeps."""
    result: Result = {"made": 0, "divided": 0, "waits_for": {}}

    def make(topic: models.Topic) -> None:
        result["made"] += segments.ensure(using, topic.pk, events=1) > 0

    def divide(topic: models.Topic) -> None:
        with retention.writing(using, topic.pk) as now:
            result["divided"] += now is not None and retention.divide(using, now)

    found = _found(using, _wanting)
    failed = _each([topic for want, topic in found if want == "room"], make, until, result["waits_for"])
    failed |= _each([topic for want, topic in found if want == "end"], divide, until, result["waits_for"])
    return _told(result, failed)


def apply_retention(using: str, until: Until) -> Result:
    """Drop what is more than the topics keep, unless a consumer needs it."""
    result: Result = {"segments": 0, "events": 0, "bytes": 0, "kept_for": {}, "waits_for": {}}

    def drop(topic: models.Topic) -> None:
        done = expire(using, topic)
        for name in ("segments", "events", "bytes"):
            result[name] += getattr(done, name)
        for name in ("kept_for", "waits_for"):
            if reason := getattr(done, name):
                result[name][topic.name] = reason

    topics = _found(using, _with_outlived)
    # Those that may have to wait for workers come last.
    return _told(result, _each(sorted(topics, key=lambda t: not t.keep_unread), drop, until, result["waits_for"]))


def compact_logs(using: str, until: Until) -> Result:
    """Remove events that a newer one of their key came after, where topics say so and all consumers passed them."""
    result: Result = {"segments": 0, "events": 0, "bytes": 0, "kept_for": {}, "waits_for": {}}

    full: dict[str, str] = {}

    def compact(topic: models.Topic) -> None:
        try:
            done = compaction.compact(using, topic)
        except retention.Paused as paused:
            result["waits_for"][topic.name] = str(paused)
            return
        except OSError as error:  # of the temporary file
            full[topic.name] = str(error)
            return
        for name in ("segments", "events", "bytes"):
            result[name] += getattr(done, name)
        for name in ("kept_for", "waits_for"):
            if reason := getattr(done, name):
                result[name][topic.name] = reason

    with sql.batch(using, **sql.UNHURRIED):
        topics = list(models.Topic.objects.using(using).filter(compact=True))
    random.shuffle(topics)
    failed = _each(topics, compact, until, result["waits_for"])
    return _told(result, failed | full)


def watch_dead_rows(using: str, until: Until) -> Result:
    """Find the tables with more dead rows than autovacuum should leave."""
    return {"tables": {pile.table: pile.dead for pile in piles(using)}}


def delete_leftovers(using: str, until: Until) -> Result:
    """Delete what a consumer or a topic left that was removed, as far as its tables are not locked."""
    deleted = forget_orphans(using, seconds=SECONDS) + drop_stranded(using)
    left = drop_forgotten(using, until=until)
    return {"deleted": deleted, **({"waiting": left} if left else {})}


def let_go_on(using: str, until: Until) -> Result:
    """Let consumers go on that waited for other shards, since keys moved from there."""
    return {"waiting": [f"{one.consumer} of {one.topic}" for one in release(using)]}


STEPS = (
    Step(name="segments", help="Segments are made ahead of need.", run=make_segments),
    Step(name="retention", help="What topics need not keep is dropped.", run=apply_retention),
    Step(name="compaction", help="Of compacted topics, what newer events replace is removed.", run=compact_logs),
    Step(
        name="history",
        help="What queue consumers processed is forgotten when it is old.",
        run=lambda using, until: {"deleted": prune_histories(using, seconds=SECONDS)},
        every=10 * MINUTE,
    ),
    Step(
        name="roll-ups",
        help="Buckets of roll-ups that are old are forgotten.",
        run=lambda using, until: {"deleted": forget_old_buckets(using, seconds=SECONDS)},
        every=10 * MINUTE,
    ),
    Step(
        name="dedup",
        help="Dedup keys whose window is over are forgotten.",
        run=lambda using, until: {"deleted": _repeat(lambda: forget_dedup_keys(using), until)},
        every=10 * MINUTE,
    ),
    Step(
        name="staging",
        help="What Spark staged and never published is forgotten.",
        run=lambda using, until: {"deleted": _repeat(lambda: forget_staged(using), until)},
        every=10 * MINUTE,
    ),
    Step(
        name="webhooks",
        help="Attempts to send webhooks are forgotten when they are old.",
        run=lambda using, until: {"deleted": _repeat(lambda: forget_webhook_attempts(using), until)},
        every=10 * MINUTE,
    ),
    Step(
        name="orphans",
        help="What is left of unregistered consumers and removed topics is deleted.",
        run=lambda using, until: delete_leftovers(using, until),
        every=10 * MINUTE,
    ),
    Step(
        name=SUBSCRIPTIONS,
        help="Subscriptions that nothing serves any more are removed.",
        run=lambda using, until: {"removed": expire_some(using, until=until, seconds=SECONDS)},
    ),
    Step(name="queues", help="Queues that programs claim from are filled and redriven.", run=serve_queues),
    Step(name="shards", help="Consumers that waited for other shards go on.", run=let_go_on),
    Step(name="bloat", help="Tables that are not vacuumed are found.", run=watch_dead_rows, every=10 * MINUTE),
    Step(name="samples", help="A sample for charts is taken.", run=lambda using, until: {"taken": int(take(using))}),
    # The last one: hooks may take long.
    Step(name=STEP, help="New problems are told.", run=lambda using, until: notify(using)),
)


def _found(using: str, look: Callable[[str, Topics], list[Found]]) -> list[Found]:
    """The topics that `look` finds work for, in a random order, so that none is always the last in time.

    If one log is locked, or dropped in this moment, topics are looked at one by one, and the others are found.
    """
    with sql.batch(using, **sql.UNHURRIED):
        topics = list(models.Topic.objects.using(using).select_related("head"))
    random.shuffle(topics)
    try:
        with sql.batch(using, **sql.UNHURRIED):
            return look(using, topics)
    except DatabaseError as error:
        if sql.kind_of(error) is sql.ErrorKind.LOST:
            raise
    found: list[Found] = []
    for topic in _until_late(topics, lambda: False):
        try:
            with sql.batch(using, **sql.UNHURRIED):
                found += look(using, [topic])
        except DatabaseError as error:
            if sql.kind_of(error) is sql.ErrorKind.LOST:
                raise
    return found


def _wanting(using: str, topics: Topics) -> list[tuple[str, models.Topic]]:
    """The topics that want room for their next event, and those whose last segment should end."""
    in_logs = logs(using, topics)
    existing = segments.of_topics(using, [topic.pk for topic in topics])
    full = [log.topic for log in in_logs if segments.room_in(existing[log.topic.pk]) <= log.last_id]
    divisible = retention.divisible(using, in_logs, existing)
    return [*(("room", topic) for topic in full), *(("end", log.topic) for log in divisible)]


def _with_outlived(using: str, topics: Topics) -> list[models.Topic]:
    old = retention.outlived_of(using, topics)
    return [topic for topic in topics if topic.pk in old]


def _each(
    topics: Topics, act: Callable[[models.Topic], None], until: Until, waits_for: dict[str, str]
) -> dict[str, str]:
    """Call `act` for each topic. An error of one stops no other; returns the errors by topic."""
    failed = {}
    for topic in _until_late(topics, until):
        try:
            act(topic)
        except DatabaseError as error:
            if sql.kind_of(error) is sql.ErrorKind.LOST:
                raise
            if sql.kind_of(error) is sql.ErrorKind.LOCKED:
                waits_for[topic.name] = a_lock(error)
            else:
                failed[topic.name] = sql.said(error)
    return failed


def _told(result: Result, failed: dict[str, str]) -> Result:
    if failed:
        raise StepFailed("; ".join(f"{topic}: {error}" for topic, error in sorted(failed.items())))
    return result


def _until_late(topics: Iterable[models.Topic], until: Until) -> Iterator[models.Topic]:
    """Yield topics until the step has to stop, or its time is over."""
    deadline = time.monotonic() + SECONDS
    for topic in topics:
        if until() or time.monotonic() >= deadline:
            return
        yield topic


def _repeat(some: Callable[[], int], until: Until) -> int:
    """Call `some` until it returns 0, or the time is over; returns the sum."""
    deadline, done = time.monotonic() + SECONDS, 0
    while not until() and time.monotonic() < deadline and (more := some()):
        done += more
    return done
