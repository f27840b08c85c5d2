"""Proving the invariants on a whole database: what is in the log, and what consumers say about it.

    verified = verify(using)
    verified.findings    # the offenders
    verified.notes       # what is no offence, and worth knowing

It only reads, and nobody waits for it. What has to be consistent, as positions and the end of the log, is read in one
snapshot per topic; the log itself, which never changes, by ranges of ids outside of it.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from django.db import OperationalError, ProgrammingError, transaction

from django_events import models, sql
from django_events.log.findings import SHOWN, Findings
from django_events.log.segments import segments
from django_events.log.walking import Head, head_of, walk
from django_events.phrases import count
from django_events.statements import log_table

AT_ONCE = 50_000  # deliveries
ERASED = "^erased-[0-9a-f]{32}$"  # what stands in the place of a key that was erased
TRIES = 5  # for a lock that somebody else has, of two seconds each

MIGRATE = "Run: manage.py migrate"
FAULTS_OF_DELIVERIES = {
    "beyond": (
        "A delivery of an event that the log doesn't have: its last id is {last_id:,}.",
        "Deliveries come with their events. The topic was made anew, or restored without its log.",
        MIGRATE,
    ),
    "dead": (
        "It is a delivery and a dead letter, which nobody asked to handle again.",
        "One of both: it would be handled though it was given up.",
        "manage.py events redrive {consumer} {address} --execute, or discard it.",
    ),
    "passed": (
        "A delivery at or below the position {position:,}.",
        "A position below the oldest delivery: nobody looks before it.",
        "Have it come again: manage.py events rewind {consumer} --topic {topic} --to {id} --execute",
    ),
    "unleased": (
        "A delivery under a lease that doesn't exist.",
        "A row in django_events_deliverylease: nobody else can claim it.",
        "When its workers are stopped, UPDATE django_events_delivery SET token = NULL for it.",
    ),
    "unnamed": (
        "A delivery under a lease that doesn't name it.",
        "Its id in the lease's event_ids: else nobody takes it over when a worker dies.",
        "When its workers are stopped, UPDATE django_events_delivery SET token = NULL for it.",
    ),
}


class Proved(NamedTuple):
    """What was looked at of a topic: the events that were walked, from which id to which."""

    topic: str
    first_id: int
    last_id: int
    events: int
    consumers: int
    positions: int
    deliveries: int
    dead_letters: int


class Verified(NamedTuple):
    """What was proved, what is wrong, and what is no offence but worth knowing."""

    topics: list[Proved]
    findings: Findings
    notes: list[str]
    took: timedelta


class Seen(NamedTuple):
    """A topic's log at the moment of a snapshot."""

    topic: models.Topic
    head: Head
    first_id: int | None
    last_id: int
    counts: tuple[int, int, int, int]  # consumers, positions, deliveries, dead letters


def verify(
    using: str,
    *,
    topic: models.Topic | None = None,
    last: int | None = None,
    on_progress: Callable[[str, int], None] = lambda topic, events: None,
) -> Verified:
    """Look at one topic or at the whole database; of each log at the `last` so many ids, or at all of it.

    Not inside of a transaction. `on_progress` is told how many events of a topic were walked.
    """
    began, findings, notes, proved = time.monotonic(), Findings(), list[str](), list[Proved]()
    with sql.snapshot(using):
        _logs(using, findings, only=topic)
        if topic is None:
            _left(using, findings, notes)
        topics = [topic] if topic else list(models.Topic.objects.using(using).order_by("name"))
    for one in topics:
        if (seen := _seen(using, one, findings, notes)) is not None:
            proved.append(_walk(using, seen, last, findings, notes, on_progress))
    return Verified(proved, findings, notes, timedelta(seconds=time.monotonic() - began))


def _walk(
    using: str,
    seen: Seen,
    last: int | None,
    findings: Findings,
    notes: list[str],
    on_progress: Callable[[str, int], None],
) -> Proved:
    topic = seen.topic
    walked = walk(
        using,
        topic,
        seen.head,
        first_id=seen.first_id,
        last_id=seen.last_id,
        last=last,
        findings=findings,
        on_progress=lambda events: on_progress(topic.name, events),
    )
    if walked.elsewhere:
        notes.append(
            f"Topic {topic}: {count(walked.elsewhere, 'event')} with a key in another partition than the one of their "
            "key. Whoever published them said which, so the order of such keys is not proved."
        )
    first_id = seen.last_id + 1 if seen.first_id is None else seen.first_id
    if last is not None:
        first_id = max(first_id, seen.last_id - last + 1)
    _keys(using, seen, first_id, findings)
    return Proved(topic.name, first_id, seen.last_id, walked.events, *seen.counts)


def _seen(using: str, topic: models.Topic, findings: Findings, notes: list[str]) -> Seen | None:
    """What consumers say of a topic, and what its log is, at one moment; None where one of its tables is missing."""
    for left in reversed(range(TRIES)):
        locked = False
        try:
            with sql.snapshot(using):
                # The savepoint lets go of the log: what comes behind it is of the same moment, and needs no lock.
                with transaction.atomic(using):
                    sql.run(using, sql.statement("keep_segments").on(log=log_table(topic.pk)))
                    locked = True
                    seen = _with_log(using, topic, findings, notes)
                    transaction.set_rollback(True, using)
                if seen is not None:
                    _filling(using, seen, findings)
                    _deliveries(using, seen, findings, notes)
                    _history(using, seen, findings)
                return seen
        except OperationalError as error:
            if locked or not left or sql.state(error) != sql.LOCK_NOT_AVAILABLE:
                raise
        except ProgrammingError as error:
            if locked or sql.state(error) != sql.UNDEFINED_TABLE:
                raise
            return None  # it is reported, or was dropped a moment ago
    return None


def _with_log(using: str, topic: models.Topic, findings: Findings, notes: list[str]) -> Seen | None:
    """What has to be read while no segment can be dropped."""
    now = models.Topic.objects.using(using).filter(pk=topic.pk).first()
    head = head_of(using, topic.pk)
    if now is None or head is None:
        return None
    [[_, first_id, last_id, _]] = sql.fetch(using, sql.statement("bounds").on(topic_id=now.pk, log=log_table(now.pk)))
    [counts] = sql.fetch(using, sql.statement("count_of_consumers"), topic_id=now.pk)
    seen = Seen(now, head, first_id, head.id_floor if last_id is None else max(last_id, head.id_floor), counts)
    _floors(seen, findings)
    _segments(using, seen, findings, notes)
    _positions(using, seen, findings)
    _dead_letters(using, seen, findings)
    return seen


def _logs(using: str, findings: Findings, *, only: models.Topic | None) -> None:
    """A log and a head for each topic, and a topic for each log."""
    for fault, topic_id, name in sql.fetch(using, sql.statement("verify_logs")):
        if only is not None and topic_id != only.pk:
            continue
        log = log_table(topic_id)
        if fault == "topic":
            what, remedy = f"The log {log} has no topic.", f"Declare a topic of this name, and run: {MIGRATE[5:]}"
        elif fault == "log":
            what, remedy = (
                f"It has no log: the table {log} is not there.",
                f"Restore it from a backup. {MIGRATE} begins anew.",
            )
        else:
            what, remedy = (
                "It has no head, so no transfer moves its events.",
                "Insert a row of it into django_events_topichead.",
            )
        findings.add("topic", name or log, what=what, expected="A row, a head and a log for each topic.", remedy=remedy)


def _left(using: str, findings: Findings, notes: list[str]) -> None:
    """What is left of topics and consumers that are gone."""
    for topic_id, events in sql.fetch(using, sql.statement("left_in_buffer")):
        findings.add(
            "buffer",
            f"id {topic_id}",
            what=f"{count(events, 'event')} in the buffer, of a topic that is gone.",
            expected="Events of topics that are there: no transfer moves others.",
            remedy="Publish them again under another topic, and delete them from django_events_bufferedevent.",
        )
    tables = {
        models.Delivery._meta.db_table: "deliveries",
        models.PastDelivery._meta.db_table: "past deliveries",
        models.DeliveryLease._meta.db_table: "leases",
    }
    for table, what in tables.items():
        for consumer_id, rows in sql.fetch(using, sql.statement("left_of_consumers").on(table=table)):
            notes.append(
                f"{rows:,} {what} of a consumer that is gone, with the id {consumer_id}. "
                "They disturb nobody, and are deleted the next time that a consumer is unregistered."
            )


def _floors(seen: Seen, findings: Findings) -> None:
    floor, floors = seen.head
    if sum(floors) != floor:
        findings.add(
            "floor",
            seen.topic.name,
            id=floor,
            what=f"Its head says that {floor:,} events were removed, and by partitions {sum(floors):,}.",
            expected="The same number: lags and numbers begin there.",
            remedy="Put number_floors in django_events_topichead right: the last numbers up to that id.",
        )
    if seen.first_id is not None and seen.first_id <= floor:
        there = min(floor, seen.last_id)
        which = f"{there:,} is" if seen.first_id == there else f"{seen.first_id:,} to {there:,} are"
        findings.add(
            "floor",
            seen.topic.name,
            id=seen.first_id,
            what=f"Its head says that all up to {floor:,} was removed, and {which} in the log.",
            expected=f"At most {seen.first_id - 1:,}: retention drops whole segments, and says so at the same time.",
            remedy=f"Put id_floor in django_events_topichead right, {seen.first_id - 1}, and number_floors with it.",
        )


def _segments(using: str, seen: Seen, findings: Findings, notes: list[str]) -> None:
    name, log = seen.topic.name, log_table(seen.topic.pk)
    there = segments(using, seen.topic.pk)
    for before, after in pairwise(there):
        if before.end != after.first and before.end <= seen.last_id:
            findings.add(
                "segment",
                name,
                id=before.end,
                what=f"No segment for {before.end:,} to {after.first - 1:,}, between {before.table} and {after.table}.",
                expected="Segments without a gap up to the end of the log.",
                remedy="Attach it again if it is there, or restore it from a backup.",
            )
    if not there or there[-1].end <= seen.last_id + 1:
        notes.append(
            f"Topic {name}: no segment for the next event, {seen.last_id + 1:,}. The transfer makes it, if it can have "
            "a lock on the log: pg_locks says who has one."
        )
    like = log.replace("_", r"\_") + r"\_%"
    for table, first in sql.fetch(using, sql.statement("unattached_segments"), log=log, like=like):
        findings.add(
            "segment",
            name,
            id=first,
            what=f"The table {table} is not attached to the log, so nobody reads what is in it.",
            expected="Segments that are attached, or dropped.",
            remedy=f"Attach it, or drop it if its events are to be gone: up to {seen.head.id_floor:,} they are.",
        )


def _positions(using: str, seen: Seen, findings: Findings) -> None:
    rows = sql.fetch(
        using,
        sql.statement("verify_positions").on(
            log=log_table(seen.topic.pk), topic_id=seen.topic.pk, partitions=seen.topic.partitions
        ),
        last_id=seen.last_id,
        id_floor=seen.head.id_floor,
        floors=seen.head.number_floors,
        most=SHOWN,
    )
    for _, fault, consumer, partition, position, number, expected_number in rows:
        rewind = f"manage.py events rewind {consumer} --topic {seen.topic} --to ID"
        what, expected, remedy = {
            "missing": ("It has no position there.", "One for each partition: nobody reads it otherwise.", MIGRATE),
            "partition": (
                "A position in a partition that it doesn't read by itself.",
                "Positions in the topic's partitions, or one of all of them together.",
                MIGRATE,
            ),
            "beyond": (
                f"Its position is {position or 0:,}, beyond the end of the log.",
                f"At most {seen.last_id:,}: it leaves out what comes until then.",
                f"{MIGRATE}, or say where it goes on: {rewind}",
            ),
            "number": (
                f"At the position {position or 0:,} it has the number {number or 0:,}.",
                f"{expected_number or 0:,}, as the log has it: its lag is wrong by the difference.",
                f"Have it set anew: {rewind}, with the event behind its position.",
            ),
        }[fault]
        findings.add(
            "position",
            seen.topic.name,
            consumer=consumer,
            partition=partition,
            id=position,
            what=what,
            expected=expected,
            remedy=remedy,
        )
    _count_rest(findings, "position", [("", row[0]) for row in rows], len(rows))


def _filling(using: str, seen: Seen, findings: Findings) -> None:
    rows = sql.fetch(using, sql.statement("verify_filling"), topic_id=seen.topic.pk, last_id=seen.last_id)
    for consumer, filled_until in rows:
        findings.add(
            "filling",
            seen.topic.name,
            consumer=consumer,
            id=filled_until,
            what=f"It is filled until {filled_until:,}, beyond the end of the log.",
            expected=f"At most {seen.last_id:,}: events until then would be left out.",
            remedy=f"Say where it goes on: manage.py events rewind {consumer} --topic {seen.topic} --to ID",
        )


def _deliveries(using: str, seen: Seen, findings: Findings, notes: list[str]) -> None:
    rows = sql.fetch(
        using,
        sql.statement("verify_deliveries"),
        topic_id=seen.topic.pk,
        last_id=seen.last_id,
        id_floor=seen.head.id_floor,
        most=SHOWN,
    )
    removed = {consumer: total for total, fault, consumer, *_ in rows if fault == "removed"}
    for consumer, total in removed.items():
        notes.append(
            f"Consumer {consumer} of {seen.topic}: {total:,} deliveries of events that retention removed. "
            "It gets nothing for them, and says so in its log."
        )
    wrong = [row for row in rows if row[1] != "removed"]
    for _, fault, consumer, event_id, position in wrong:
        known: dict[str, Any] = {
            "address": f"{seen.topic}/{event_id}",
            "consumer": consumer,
            "id": event_id,
            "last_id": seen.last_id,
            "position": position or 0,
            "topic": seen.topic,
        }
        what, expected, remedy = (text.format(**known) for text in FAULTS_OF_DELIVERIES[fault])
        findings.add(
            "delivery",
            seen.topic.name,
            consumer=consumer,
            id=event_id,
            what=what,
            expected=expected,
            remedy=remedy,
        )
    _count_rest(findings, "delivery", [((row[1], row[2]), row[0]) for row in wrong], len(wrong))


def _keys(using: str, seen: Seen, first_id: int, findings: Findings) -> None:
    """Of ordered queues, beside the log: by ranges outside of the snapshot, for only an erasure changes a key."""
    topic = seen.topic
    ordered = models.Consumer.objects.using(using).filter(topic=topic, mode="queue", ordered=True).order_by("name")
    for consumer in ordered:
        after = first_id - 1
        while (upper := _next_deliveries(using, consumer, after, seen.last_id)) is not None:
            statement = sql.statement("verify_keys").on(
                log=log_table(topic.pk), topic_id=topic.pk, consumer_id=consumer.pk, after=after, upper=upper
            )
            with sql.batch(using):
                rows = sql.fetch(using, statement, erased=ERASED, most=SHOWN)
            for _, event_id, key, key_of_event in rows:
                findings.add(
                    "delivery",
                    topic.name,
                    consumer=consumer.name,
                    id=event_id,
                    what=f"A delivery with {_named(key)}.",
                    expected=f"One with {_named(key_of_event)}, as its event: it is handled in the order of its key.",
                    remedy="When its workers are stopped, UPDATE django_events_delivery SET key to that of the event.",
                )
            _count_rest(findings, "delivery", [("", row[0]) for row in rows], len(rows))
            after = upper


def _next_deliveries(using: str, consumer: models.Consumer, after: int, last_id: int) -> int | None:
    ahead = sql.statement("next_deliveries").on(consumer_id=consumer.pk, after=after, last_id=last_id, most=AT_ONCE)
    with sql.batch(using):
        [[upper]] = sql.fetch(using, ahead)
    return None if upper is None else int(upper)


def _named(key: str | None) -> str:
    return "no key" if key is None else f"the key {key!r}"


def _dead_letters(using: str, seen: Seen, findings: Findings) -> None:
    statement = sql.statement("verify_dead_letters").on(log=log_table(seen.topic.pk), topic_id=seen.topic.pk)
    rows = sql.fetch(using, statement, last_id=seen.last_id, most=SHOWN)
    for _, fault, consumer, event_id, partition, number, logged_in, logged_as, position in rows:
        remedy = f"manage.py events discard {consumer} {seen.topic}/{event_id} --reason … --execute"
        if fault == "beyond":
            what = f"A dead letter of an event that the log doesn't have: its last id is {seen.last_id:,}."
            expected = "Copies of events that are, or were, in the log. The topic was made anew."
        elif fault == "ahead":
            what = f"A dead letter ahead of the position {position:,}."
            expected = f"A position of {event_id:,} or more: the stream handles it again though it was given up."
            remedy = (
                f"Go on behind it: manage.py events rewind {consumer} --topic {seen.topic} --to {event_id + 1} "
                f"--execute, if all before it was handled; or have it handled again: {remedy}"
            )
        else:
            what = f"The dead letter is number {number:,} in partition {partition}."
            expected = f"Number {logged_as:,} in partition {logged_in}, as in the log: it is of another event."
        findings.add(
            "dead letter",
            seen.topic.name,
            consumer=consumer,
            partition=partition,
            id=event_id,
            what=what,
            expected=expected,
            remedy=remedy,
        )
    _count_rest(findings, "dead letter", [("", row[0]) for row in rows], len(rows))


def _history(using: str, seen: Seen, findings: Findings) -> None:
    statement = sql.statement("verify_history")
    rows = sql.fetch(using, statement, topic_id=seen.topic.pk, last_id=seen.last_id, most=SHOWN)
    for _, consumer, event_id in rows:
        findings.add(
            "history",
            seen.topic.name,
            consumer=consumer,
            id=event_id,
            what="Its history has an event that the log doesn't have.",
            expected=f"Events up to {seen.last_id:,}. The topic was made anew.",
            remedy="Delete what is of the former topic from django_events_pastdelivery.",
        )
    _count_rest(findings, "history", [("", row[0]) for row in rows], len(rows))


def _count_rest(findings: Findings, kind: str, totals: list[tuple[Any, int]], listed: int) -> None:
    """Those that the statement found and didn't list."""
    findings.count(kind, sum(dict(totals).values()) - listed)
