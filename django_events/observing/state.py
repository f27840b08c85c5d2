"""The metrics that are read from the database: the same numbers in every process.

    for metric, labels, value in read("default"):
        ...

It costs some statements and a look by index for each consumer and partition, however many events are behind.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import NamedTuple

from django.db import DatabaseError, connections

from django_events import declarations, models, sql
from django_events.exceptions import rights_missing, rows_hidden
from django_events.log.inventory import logs, next_scheduled, sizes, waiting
from django_events.models.databases import databases
from django_events.models.functions import ClockTimestamp
from django_events.observing.lag import Standing, ends_of, oldest_waits, standings
from django_events.observing.problems import find_problems
from django_events.observing.queues import figures
from django_events.observing.scaling import wanted
from django_events.sql.each import in_each
from django_events.telemetry import OF_CONSUMER, Kind, Metric

logger = logging.getLogger("django_events.metrics")

COUNTED, COUNTED_OF_ALL = 10_000, 100_000  # dead letters and deliveries, of one consumer and of all together
NO_TIME = timedelta(0)
LIMITS = {"statement_timeout": "5s", "lock_timeout": "500ms"}
SECONDS = 6  # for each answer where several databases are read: a little longer than LIMITS
OF_TOPIC = ("database", "topic")


class Measurement(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    value: float


def _metric(name: str, help: str, *, labels: tuple[str, ...], unit: str = "", kind: Kind = "gauge") -> Metric:
    return Metric(name=name, kind=kind, help=help, labels=labels, unit=unit)


UP = _metric("up", "Whether the state of the database could be read.", labels=("database",))
READING = _metric("read", "How long reading the state took.", labels=("database",), unit="seconds")
FIRST_ID = _metric("topic_first_id", "The id of the oldest event in the log.", labels=OF_TOPIC)
LAST_ID = _metric("topic_last_id", "The id of the newest event, so how many there ever were.", labels=OF_TOPIC)
EVENTS = _metric("topic_events", "Events in the log.", labels=OF_TOPIC, unit="events")
SEGMENTS = _metric("topic_segments", "Tables of the log.", labels=OF_TOPIC)
SIZE = _metric("topic_log", "Bytes of the log on disk, indexes included.", labels=OF_TOPIC, unit="bytes")
BUFFERED = _metric("buffer_events", "Events that wait for the transfer, counted up to 10,000.", labels=OF_TOPIC)
WAITING = _metric("buffer_oldest", "For how long the oldest of them waits.", labels=OF_TOPIC, unit="seconds")
OVERDUE = _metric(
    "scheduled_overdue", "For how long a scheduled event is due already.", labels=("database",), unit="seconds"
)
CLOCK_OVERDUE = _metric(
    "clock_overdue", "For how long a tick of a declared clock is due.", labels=("database", "clock"), unit="seconds"
)
LAG = _metric("consumer_lag_events", "Events that were not passed yet; of a queue, counted.", labels=OF_CONSUMER)
BEHIND = _metric(
    "consumer_lag",
    "For how long the oldest of them waits, in hand or for a retry too; 0 without one.",
    labels=OF_CONSUMER,
    unit="seconds",
)
HANDLED = _metric("consumer_handled", "Events that were handled.", labels=OF_CONSUMER, kind="counter")
FAILED = _metric(
    "consumer_failed",
    "Attempts that failed, without those of a relay whose target is down.",
    labels=OF_CONSUMER,
    kind="counter",
)
IGNORED = _metric("consumer_ignored", "Events that were ignored.", labels=OF_CONSUMER, kind="counter")
DEAD_LETTERED = _metric("consumer_dead_lettered", "Events that died.", labels=OF_CONSUMER, kind="counter")
DEAD = _metric("consumer_dead_letters", "Dead letters that are there, counted.", labels=OF_CONSUMER)
STATE = _metric(
    "consumer_state",
    "How many partitions are in the worst state: stopped, retrying, lost, paused, handling or idle.",
    labels=(*OF_CONSUMER, "state"),
)
PAUSED = _metric("consumer_paused", "Whether it is paused.", labels=OF_CONSUMER)
WANTED = _metric(
    "consumer_workers_wanted",
    "Workers that arrivals and lag ask for, to be done within 10 minutes. Missing where the samples don't tell it.",
    labels=OF_CONSUMER,
)
OF_QUEUE = (*OF_CONSUMER, "state")
QUEUE_EVENTS = _metric(
    "queue_events", "Events of a queue: available, in_hand, waiting, retrying or dead, counted.", labels=OF_QUEUE
)
QUEUE_OLDEST = _metric(
    "queue_oldest", "How long ago the oldest of them came, or died; 0 without one.", labels=OF_QUEUE, unit="seconds"
)
IN_HAND = _metric(
    "queue_longest_in_hand", "For how long a worker has had an event in hand.", labels=OF_CONSUMER, unit="seconds"
)
RELAY_FAILING = _metric(
    "relay_failing",
    "For how long the target of a relay has taken nothing; 0 while it takes all, or the relay is paused.",
    labels=OF_CONSUMER,
    unit="seconds",
)
OF_INBOX = ("database", "inbox")
INBOX_LAG = _metric("inbox_lag", "Messages of its source that an inbox has not taken in, if known.", labels=OF_INBOX)
INBOX_FAILING = _metric(
    "inbox_failing",
    "For how long an inbox has been held up by its source; 0 while it works, waits or is paused.",
    labels=OF_INBOX,
    unit="seconds",
)
INBOX_WAITING = _metric(
    "inbox_waiting", "For how long an inbox has waited for the transfer or a consumer.", labels=OF_INBOX, unit="seconds"
)
OF_STEP = ("database", "step")
MAINTAINED = _metric(
    "maintenance_age", "For how long no run of a step of maintenance has ended.", labels=OF_STEP, unit="seconds"
)
FAILING = _metric("maintenance_failing", "Whether the last run of the step failed.", labels=OF_STEP)
PROBLEMS = _metric(
    "problems",
    "What needs attention: how many problems of a kind a consumer or a topic has.",
    labels=("database", "kind", "severity", "consumer", "topic"),
)

STATE_METRICS = tuple(one for one in vars().copy().values() if isinstance(one, Metric))


def read_all() -> list[Measurement]:
    """The metrics of every database. One that can't be read has `up` 0; the others are read all the same, and at the
    same time, so that one that gives no answer holds none of them up."""
    aliases = databases()
    if len(aliases) == 1:
        return read(aliases[0])
    found = in_each(aliases, read, seconds=SECONDS)
    return [sample for using in aliases for sample in found[using].value()]


def read(using: str) -> list[Measurement]:
    """The state of a database, in a transaction that only reads."""
    began = time.monotonic()
    try:
        with sql.batch(using, **LIMITS):
            found = list(_of_database(using))
    except Exception as error:  # also what a site's own way to connect raises
        logger.warning("The state of the database %r can't be read. %s", using, _said(using, error))
        _leave_usable(using)
        return [Measurement(UP, (using,), 0)]
    return [Measurement(UP, (using,), 1), Measurement(READING, (using,), time.monotonic() - began), *found]


def _said(using: str, error: Exception) -> str:
    if sql.kind_of(error) is sql.ErrorKind.ROWS_HIDDEN:
        return rows_hidden(connections[using].settings_dict["USER"], error)
    if sql.kind_of(error) is sql.ErrorKind.FORBIDDEN:  # the site publishes, and may read nothing
        return rights_missing(connections[using].settings_dict["USER"], error, kind="reader")
    return sql.said(error)


def _of_database(using: str) -> Iterator[Measurement]:
    topics = list(models.Topic.objects.using(using).select_related("head").order_by("name"))
    buffered, scheduled = waiting(using, **LIMITS), next_scheduled(using)
    ends = ends_of(using, topics)
    consumers = models.Consumer.objects.using(using).count()
    counted = max(min(COUNTED, COUNTED_OF_ALL // max(consumers, 1)), 1)
    found = standings(using, counted=counted, known=ends)
    waits = {one.topic_id: (one.events, one.age.total_seconds()) for one in buffered}
    for log in logs(using, topics):
        of = using, log.topic.name
        events, age = waits.get(log.topic.pk, (0, 0.0))
        yield Measurement(FIRST_ID, of, log.first_id)
        yield Measurement(LAST_ID, of, log.last_id)
        yield Measurement(EVENTS, of, log.events)
        yield Measurement(BUFFERED, of, events)
        yield Measurement(WAITING, of, max(age, 0.0))
    yield from _sizes(using, topics)
    yield Measurement(OVERDUE, (using,), max(scheduled.overdue.total_seconds(), 0.0) if scheduled else 0)
    yield from _of_clocks(using)
    yield from _of_inboxes(using)
    yield from _of_consumers(using, found)
    for one in wanted(using, found):
        if one.workers is not None:
            yield Measurement(WANTED, (using, one.consumer, one.topic), one.workers)
    yield from _of_queues(using, found, counted)
    for step in models.MaintenanceStep.objects.using(using).annotate(now=ClockTimestamp()).order_by("name"):
        if step.finished_at is not None:
            yield Measurement(MAINTAINED, (using, step.name), (step.now - step.finished_at).total_seconds())
        yield Measurement(FAILING, (using, step.name), bool(step.error))
    problems = Counter(
        (one.kind, one.severity, one.subject.consumer or "", one.subject.topic or "")
        for one in find_problems(using, buffered, scheduled, found)
    )
    for labels, number in sorted(problems.items()):
        yield Measurement(PROBLEMS, (using, *labels), number)


def _sizes(using: str, topics: list[models.Topic]) -> Iterator[Measurement]:
    """A session that rebuilds a segment holds this up: then the rest is told without it."""
    try:
        with sql.batch(using, **LIMITS):
            found = sizes(using, topics)
    except DatabaseError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        return
    for topic, (segments, size) in found.items():
        yield Measurement(SEGMENTS, (using, topic), segments)
        yield Measurement(SIZE, (using, topic), size)


def _of_clocks(using: str) -> Iterator[Measurement]:
    """Of a clock that is paused, or that no app here declares, no tick is due."""
    names = [one.name for one in declarations.clocks]
    if not names:
        return
    rows = models.Clock.objects.using(using).annotate(now=ClockTimestamp()).only("name", "next_at", "paused_at")
    for row in rows.filter(name__in=names).order_by("name"):
        late = NO_TIME if row.paused_at is not None else max(row.now - row.next_at, NO_TIME)
        yield Measurement(CLOCK_OVERDUE, (using, row.name), late.total_seconds())


def _of_inboxes(using: str) -> Iterator[Measurement]:
    """One that is paused takes nothing in because a person said so, whatever its last worker left in its row."""
    names = [one.name for one in declarations.inboxes]
    if not names:
        return
    rows = models.Inbox.objects.using(using).annotate(now=ClockTimestamp())
    rows = rows.only("name", "lag", "failing_since", "waiting_since", "paused_at")
    for row in rows.filter(name__in=names).order_by("name"):
        if row.lag is not None:
            yield Measurement(INBOX_LAG, (using, row.name), row.lag)
        for metric, since in ((INBOX_FAILING, row.failing_since), (INBOX_WAITING, row.waiting_since)):
            age = NO_TIME if since is None or row.paused_at is not None else max(row.now - since, NO_TIME)
            yield Measurement(metric, (using, row.name), age.total_seconds())


def _of_consumers(using: str, found: Iterable[Standing]) -> Iterator[Measurement]:
    found = list(found)
    relays = {one.name for one in declarations.consumers if one.is_relay}
    now = sql.now(using)
    waits = oldest_waits(using, [one.consumer_id for one in found if one.lag])
    for one in found:
        of = using, one.consumer, one.topic
        yield Measurement(LAG, of, one.lag)
        yield Measurement(BEHIND, of, max(waits.get(one.consumer_id, NO_TIME), NO_TIME).total_seconds())
        yield Measurement(HANDLED, of, one.handled)
        yield Measurement(FAILED, of, one.failed)
        yield Measurement(IGNORED, of, one.ignored)
        yield Measurement(DEAD_LETTERED, of, one.dead_lettered)
        yield Measurement(DEAD, of, one.dead_letters)
        yield Measurement(STATE, (*of, one.state), one.in_state)
        yield Measurement(PAUSED, of, one.paused_at is not None)
        if one.consumer in relays:
            since = now if one.failing_since is None or one.paused_at is not None else one.failing_since
            yield Measurement(RELAY_FAILING, of, max(now - since, NO_TIME).total_seconds())


def _of_queues(using: str, found: list[Standing], counted: int) -> Iterator[Measurement]:
    queues = figures(using, found, counted=counted)
    for one in found:
        if queue := queues.get(one.consumer_id):
            of = using, one.consumer, one.topic
            for name, (events, _, oldest) in queue.states():
                state = name.replace(" ", "_")
                yield Measurement(QUEUE_EVENTS, (*of, state), events)
                yield Measurement(QUEUE_OLDEST, (*of, state), max(oldest or NO_TIME, NO_TIME).total_seconds())
            yield Measurement(IN_HAND, of, max(queue.longest_in_hand or NO_TIME, NO_TIME).total_seconds())


def _leave_usable(using: str) -> None:
    """What is broken must not wait for the next one who reads."""
    connection = connections[using]
    if not connection.in_atomic_block:
        connection.close()
