"""How far consumers are: positions within the log and right, queues filled no further than it goes."""

from django_events import models, sql
from django_events.observing.commands import events_command, manage_command
from django_events.observing.verifying.offenders import SHOWN, Offenders
from django_events.observing.verifying.snapshot import TopicSnapshot

SQL = sql.beside(__name__)


def verify_positions(seen: TopicSnapshot, offenders: Offenders) -> None:
    """A position for each partition, at an event or at the end, with the number that the log has there."""
    rows = sql.fetch(
        seen.using,
        SQL.verify_positions.on(
            log=seen.log, topic_id=seen.topic.pk, is_undivided=sql.literal(seen.topic.is_undivided)
        ),
        most_partitions=_most_partitions(seen.topic),
        last_id=seen.last_id,
        id_floor=seen.floors.id,
        compacted_until=seen.floors.compacted_until,
        floors=seen.floors.numbers,
        most=SHOWN,
    )
    for _, fault, consumer, partition, position, number, expected_number in rows:
        rewind, migrate = _rewind(seen, consumer), f"Run: {manage_command(seen.using, 'migrate')}"
        texts = {
            "missing": ("It has no position there.", "One for each partition: no worker reads it otherwise.", migrate),
            "partition": (
                "A position in a partition that it doesn't read by itself.",
                "Positions in the topic's partitions, or one of all of them together.",
                migrate,
            ),
            "beyond": (
                f"Its position is {position or 0:,}, beyond the end of the log.",
                f"At most {seen.last_id:,}: it leaves out what comes until then.",
                f"{migrate}, or say where it goes on: {rewind}",
            ),
            "number": (
                f"At the position {position or 0:,} it has the number {number or 0:,}.",
                f"{expected_number or 0:,}, as the log has it: its lag is wrong by the difference.",
                f"Have it set anew: {rewind}, with the event behind its position.",
            ),
        }[fault]
        offenders.add("position", seen.topic.name, *texts, consumer=consumer, partition=partition, id=position)
    offenders.count_unlisted("position", [("", row[0]) for row in rows])


def _rewind(seen: TopicSnapshot, consumer: str) -> str:
    return events_command(seen.using, "rewind", consumer, f"--topic {seen.topic} --to ID")


def _most_partitions(topic: models.Topic) -> list[int]:
    """How many partitions there are from each layout of the topic on, at most: a consumer has positions in them."""
    return [topic.partitions_from(index) for index in range(len(topic.all_layouts))]


def verify_attempts(seen: TopicSnapshot, offenders: Offenders) -> None:
    """What streams try, and what they handle one by one, are events of theirs."""
    rows = sql.fetch(
        seen.using,
        SQL.verify_attempts.on(log=seen.log, topic_id=seen.topic.pk),
        last_id=seen.last_id,
        id_floor=seen.floors.absent_until,
        most=SHOWN,
    )
    for _, fault, consumer, partition, event_id in rows:
        where = "the topic" if partition == models.Position.ALL else f"partition {partition}"
        what = "Attempts are counted for" if fault == "attempted" else "Events are handled one by one until"
        offenders.add(
            "position",
            seen.topic.name,
            consumer=consumer,
            partition=partition,
            id=event_id,
            what=f"{what} {event_id:,}, which is no event of {where}.",
            expected=f"An event of {where}: the attempts of a worker that ends with its event are counted by it.",
            remedy=f"Have it set anew: {_rewind(seen, consumer)}, with the event behind its position.",
        )
    offenders.count_unlisted("position", [("", row[0]) for row in rows])


def verify_filling(seen: TopicSnapshot, offenders: Offenders) -> None:
    """Of queues that are not live."""
    rows = sql.fetch(seen.using, SQL.verify_filling, topic_id=seen.topic.pk, last_id=seen.last_id)
    for consumer, filled_until in rows:
        offenders.add(
            "filling",
            seen.topic.name,
            consumer=consumer,
            id=filled_until,
            what=f"It is filled until {filled_until:,}, beyond the end of the log.",
            expected=f"At most {seen.last_id:,}: events until then would be left out.",
            remedy=f"Say where it goes on: {_rewind(seen, consumer)}",
        )
