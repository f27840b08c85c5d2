"""Deliveries of queues, open and past: of events that the log has, in one place, under a lease that names them."""

from typing import Any

from django.db import DatabaseError

from django_events import models, sql
from django_events.matching import FILTER, condition
from django_events.models.databases import for_database
from django_events.observing.commands import events_command
from django_events.observing.verifying.offenders import ERASED, SHOWN, Offenders
from django_events.observing.verifying.snapshot import TopicSnapshot

SQL = sql.beside(__name__)

AT_ONCE = 50_000  # deliveries

FAULTS = {
    "beyond": (
        "A delivery of an event that the log doesn't have: its last id is {last_id:,}.",
        "Deliveries come with their events. The topic was made anew, or restored without its log.",
        "Run: manage.py migrate{database}",
    ),
    "dead": (
        "It is a delivery and a dead letter, whose redrive was not asked for.",
        "One of both: it would be handled though it was given up.",
        "manage.py events redrive {consumer} {address} --execute{database}, or discard it.",
    ),
    "passed": (
        "A delivery at or below the position {position:,}.",
        "A position below the oldest delivery: no worker looks before it.",
        "Have it come again: manage.py events rewind {consumer} --topic {topic} --to {id} --execute{database}",
    ),
    "unleased": (
        "A delivery under a lease that doesn't exist.",
        "A row in django_events_deliverylease: no worker can claim it otherwise.",
        "When its workers are stopped, UPDATE django_events_delivery SET token = NULL for it.",
    ),
    "unnamed": (
        "A delivery under a lease that doesn't name it.",
        "Its id in the lease's event_ids: else no worker takes it over when this one dies.",
        "When its workers are stopped, UPDATE django_events_delivery SET token = NULL for it.",
    ),
}


def verify_deliveries(seen: TopicSnapshot, offenders: Offenders, notes: list[str]) -> None:
    """Those that are not settled."""
    rows = sql.fetch(
        seen.using,
        SQL.verify_deliveries,
        topic_id=seen.topic.pk,
        last_id=seen.last_id,
        id_floor=seen.floors.id,
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
            "database": for_database(seen.using),
            "id": event_id,
            "last_id": seen.last_id,
            "position": position or 0,
            "topic": seen.topic,
        }
        texts = [text.format(**known) for text in FAULTS[fault]]
        offenders.add("delivery", seen.topic.name, *texts, consumer=consumer, id=event_id)
    offenders.count_unlisted("delivery", [((fault, consumer), total) for total, fault, consumer, *_ in wrong])


def verify_leases(seen: TopicSnapshot, offenders: Offenders, notes: list[str]) -> None:
    """Leases of deliveries: of events that the log has, or had."""
    statement = SQL.verify_leases
    rows = sql.fetch(seen.using, statement, topic_id=seen.topic.pk, last_id=seen.last_id, most=SHOWN)
    for total, fault, consumer, _, holder, _ in rows:
        if fault == "empty":
            notes.append(
                f"Consumer {consumer} of {seen.topic}: {total:,} leases whose time is over, the first of {holder}, "
                "with no delivery under them. Its workers delete them when they look."
            )
            break
    strange = [row for row in rows if row[1] == "strange"]
    for _, _, consumer, token, holder, event_id in strange:
        offenders.add(
            "lease",
            seen.topic.name,
            consumer=consumer,
            what=f"The lease {token}, of {holder}, names {event_id or 'nothing'}, which is no event of the log.",
            expected=f"Deliveries of a queue, of events from 1 to {seen.last_id:,}.",
            remedy="When that worker is gone, delete it from django_events_deliverylease.",
        )
    offenders.count_unlisted("lease", [("", row[0]) for row in strange])


def verify_absent(seen: TopicSnapshot, first_id: int, offenders: Offenders, notes: list[str]) -> None:
    """Each event that is for a queue came to it, as far as its history tells: by ranges outside of the snapshot."""
    using, topic = seen.using, seen.topic
    keeping = models.Consumer.objects.using(using).filter(topic=topic, mode="queue", history__isnull=False)
    for consumer in keeping.only("name", *FILTER).order_by("name"):
        after = first_id - 1
        while after < seen.last_id:
            upper = min(after + AT_ONCE, seen.last_id)
            statement = SQL.verify_absent.on(
                log=seen.log,
                topic_id=topic.pk,
                consumer_id=consumer.pk,
                after=after,
                upper=upper,
                match=condition(consumer),
            )
            try:
                with sql.batch(using):
                    rows = sql.fetch(using, statement, most=SHOWN)
            except DatabaseError as error:
                if sql.kind_of(error).passes:
                    raise
                notes.append(
                    f"Consumer {consumer.name} of {topic}: its filter fails on an event from {after + 1:,} to "
                    f"{upper:,}, so it isn't proved that it got those that are for it. {sql.said(error)}"
                )
                rows = []
            for _, event_id in rows:
                offenders.add(
                    "delivery",
                    topic.name,
                    consumer=consumer.name,
                    id=event_id,
                    what="The event is for it, and it has no delivery, no history and no dead letter of it.",
                    expected="One of them: so it is never handled.",
                    remedy="Have it come, with those behind it: "
                    + events_command(using, "rewind", consumer.name, f"--topic {topic} --to {event_id} --execute"),
                )
            offenders.count_unlisted("delivery", [("", row[0]) for row in rows])
            after = upper


def verify_history(seen: TopicSnapshot, offenders: Offenders) -> None:
    """Those that are past."""
    statement = SQL.verify_history
    rows = sql.fetch(seen.using, statement, topic_id=seen.topic.pk, last_id=seen.last_id, most=SHOWN)
    for _, consumer, event_id in rows:
        offenders.add(
            "history",
            seen.topic.name,
            consumer=consumer,
            id=event_id,
            what="Its history has an event that the log doesn't have.",
            expected=f"Events up to {seen.last_id:,}. The topic was made anew.",
            remedy="Delete what is of the former topic from django_events_pastdelivery.",
        )
    offenders.count_unlisted("history", [("", row[0]) for row in rows])


def verify_keys(seen: TopicSnapshot, first_id: int, offenders: Offenders) -> None:
    """Of ordered queues, beside the log: by ranges outside of the snapshot, for only an erasure changes a key."""
    using, topic = seen.using, seen.topic
    ordered = (
        models.Consumer.objects.using(using)
        .filter(topic=topic, mode="queue", ordered=True)
        .only("name")
        .order_by("name")
    )
    for consumer in ordered:
        after = first_id - 1
        while (upper := _next_deliveries(using, consumer, after, seen.last_id)) is not None:
            statement = SQL.verify_keys.on(
                log=seen.log, topic_id=topic.pk, consumer_id=consumer.pk, after=after, upper=upper
            )
            with sql.batch(using):
                rows = sql.fetch(using, statement, erased=ERASED, most=SHOWN)
            for _, event_id, key, key_of_event in rows:
                offenders.add(
                    "delivery",
                    topic.name,
                    consumer=consumer.name,
                    id=event_id,
                    what=f"A delivery with {_named(key)}.",
                    expected=f"One with {_named(key_of_event)}, as its event: it is handled in the order of its key.",
                    remedy="When its workers are stopped, UPDATE django_events_delivery SET key to that of the event.",
                )
            offenders.count_unlisted("delivery", [("", row[0]) for row in rows])
            after = upper


def _next_deliveries(using: str, consumer: models.Consumer, after: int, last_id: int) -> int | None:
    ahead = SQL.next_deliveries.on(consumer_id=consumer.pk, after=after, last_id=last_id, most=AT_ONCE)
    with sql.batch(using):
        [[upper]] = sql.fetch(using, ahead)
    return None if upper is None else int(upper)


def _named(key: str | None) -> str:
    return "no key" if key is None else f"the key {key!r}"
