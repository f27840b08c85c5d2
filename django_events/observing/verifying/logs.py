"""The tables of logs: one for each topic, with a head that tells what was removed, and segments without a gap."""

from itertools import pairwise

from django_events import models, sql
from django_events.log.segments import segments
from django_events.observing.commands import manage_command
from django_events.observing.verifying.offenders import Offenders
from django_events.observing.verifying.snapshot import TopicSnapshot
from django_events.phrases import count
from django_events.statements import log_table

SQL = sql.beside(__name__)

LOOKED_AT = 10_000  # events in the buffer


def verify_logs(using: str, offenders: Offenders, *, only: models.Topic | None) -> None:
    """A log and a head for each topic, and a topic for each log."""
    migrate = manage_command(using, "migrate")
    for fault, topic_id, name in sql.fetch(using, SQL.verify_logs):
        if only is not None and topic_id != only.pk:
            continue
        log = log_table(topic_id)
        if fault == "topic":
            what, remedy = (
                f"The log {log} has no topic.",
                f"Declare a topic of this name, and run: {migrate}",
            )
        elif fault == "log":
            what, remedy = (
                f"It has no log: the table {log} is not there.",
                f"Restore it from a backup. Run: {migrate} begins anew.",
            )
        else:
            what, remedy = (
                "It has no head, so no transfer moves its events.",
                "Insert a row of it into django_events_topichead.",
            )
        offenders.add("topic", name or log, what, "A row, a head and a log for each topic.", remedy)


def verify_leftovers(using: str, offenders: Offenders, notes: list[str]) -> None:
    """What is left of topics and consumers that are gone."""
    for topic_id, events in sql.fetch(using, SQL.left_in_buffer.on(owners=sql.shared.owners_in_buffer)):
        offenders.add(
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
        for consumer_id, rows in sql.fetch(using, SQL.left_of_consumers.on(table=table)):
            notes.append(
                f"{rows:,} {what} of a consumer that is gone, with the id {consumer_id}. "
                "They do no harm, and are deleted the next time that a consumer is unregistered."
            )


def verify_buffer(seen: TopicSnapshot, offenders: Offenders, notes: list[str]) -> None:
    """What waits to be moved into the log: below the next ticket."""
    using, topic = seen.using, seen.topic
    statement = SQL.verify_buffer
    rows = sql.fetch(using, statement, topic_id=topic.pk, partitions=topic.partitions, most=LOOKED_AT)
    for last, ticket, elsewhere in rows:
        if ticket is not None and last > ticket:
            offenders.add(
                "buffer",
                topic.name,
                what=f"The ticket {last:,} waits in the buffer, and the last one of its sequence is {ticket:,}.",
                expected=f"{last:,} or more: tickets come again, and a transfer may have passed them already.",
                remedy="Stop the publishers and transfers, and: SELECT setval(pg_get_serial_sequence("
                f"'django_events_bufferedevent', 'id'), {last})",
            )
        if elsewhere:
            notes.append(
                f"Topic {topic}: {count(elsewhere, 'event')} in the buffer with a partition that the topic doesn't "
                f"have. The transfer takes it modulo {topic.partitions}."
            )


def verify_floors(seen: TopicSnapshot, offenders: Offenders) -> None:
    """What the head says of events that were removed."""
    floor, floors = seen.floors.id, seen.floors.numbers
    if sum(floors) < floor or (sum(floors) > floor and seen.floors.compacted_until <= floor):
        offenders.add(
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
        offenders.add(
            "floor",
            seen.topic.name,
            id=seen.first_id,
            what=f"Its head says that all up to {floor:,} was removed, and {which} in the log.",
            expected=f"At most {seen.first_id - 1:,}: retention drops whole segments, and says so at the same time.",
            remedy=f"Put id_floor in django_events_topichead right, {seen.first_id - 1}, and number_floors with it.",
        )


def verify_segments(seen: TopicSnapshot, offenders: Offenders, notes: list[str]) -> None:
    """Segments that are attached, one behind the other."""
    name = seen.topic.name
    there = segments(seen.using, seen.topic.pk)
    for before, after in pairwise(there):
        if before.end != after.first and before.end <= seen.last_id:
            offenders.add(
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
    for table, first in sql.fetch(seen.using, SQL.unattached_segments, log=seen.log):
        offenders.add(
            "segment",
            name,
            id=first,
            what=f"The table {table} is not attached to the log, so no reader finds what is in it.",
            expected="Segments that are attached, or dropped.",
            remedy=f"Attach it, or drop it if its events are to be gone: up to {seen.floors.id:,} they are.",
        )
