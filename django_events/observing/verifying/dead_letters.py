"""Dead letters: copies of events of the log, at or below the position of a stream."""

from django_events import models, sql
from django_events.observing.commands import events_command
from django_events.observing.verifying.offenders import ERASED, SHOWN, Offenders
from django_events.observing.verifying.snapshot import TopicSnapshot

SQL = sql.beside(__name__)

AT_ONCE = 5_000  # dead letters


def verify_dead_letters(seen: TopicSnapshot, offenders: Offenders) -> None:
    """Each is of an event that is, or was, in the log, and no worker handles it again unasked."""
    statement = SQL.verify_dead_letters.on(log=seen.log, topic_id=seen.topic.pk)
    rows = sql.fetch(seen.using, statement, last_id=seen.last_id, most=SHOWN)
    for _, fault, consumer, event_id, partition, number, logged_in, logged_as, position in rows:
        remedy = events_command(seen.using, "discard", consumer, f"{seen.topic}/{event_id}", "--reason … --execute")
        if fault == "beyond":
            what = f"A dead letter of an event that the log doesn't have: its last id is {seen.last_id:,}."
            expected = "Copies of events that are, or were, in the log. The topic was made anew."
        elif fault == "ahead":
            what = f"A dead letter ahead of the position {position:,}."
            expected = f"A position of {event_id:,} or more: the stream handles it again though it was given up."
            rewind = _rewind(seen.using, consumer, seen.topic, event_id + 1)
            remedy = f"Go on behind it: {rewind}, if all before it was handled; or have it handled again: {remedy}"
        else:
            what = f"The dead letter is number {number:,} in partition {partition}."
            expected = f"Number {logged_as:,} in partition {logged_in}, as in the log: it is of another event."
        texts = (what, expected, remedy)
        offenders.add("dead letter", seen.topic.name, *texts, consumer=consumer, partition=partition, id=event_id)
    offenders.count_unlisted("dead letter", [("", row[0]) for row in rows])


def verify_copies(seen: TopicSnapshot, first_id: int, offenders: Offenders) -> None:
    """What they keep is what the event is: by ranges outside of the snapshot, for only an erasure changes either."""
    using, topic = seen.using, seen.topic
    for consumer in models.Consumer.objects.using(using).filter(topic=topic).only("name").order_by("name"):
        after = first_id - 1
        while (upper := _next_dead_letters(using, consumer, after, seen.last_id)) is not None:
            statement = SQL.verify_copies.on(
                log=seen.log, topic_id=topic.pk, consumer_id=consumer.pk, after=after, upper=upper
            )
            with sql.batch(using):
                rows = sql.fetch(using, statement, erased=ERASED, most=SHOWN)
            for _, event_id, partition, column in rows:
                offenders.add(
                    "dead letter",
                    topic.name,
                    consumer=consumer.name,
                    partition=partition,
                    id=event_id,
                    what=f"Its {column} is not that of the event.",
                    expected="A copy of the event: that is what is handled when it is redriven.",
                    remedy="Find out who wrote into the table. To have the event itself handled, and those behind it: "
                    f"{_rewind(using, consumer.name, topic, event_id)}",
                )
            offenders.count_unlisted("dead letter", [("", row[0]) for row in rows])
            after = upper


def _rewind(using: str, consumer: str, topic: models.Topic, to: int) -> str:
    return events_command(using, "rewind", consumer, f"--topic {topic} --to {to} --execute")


def _next_dead_letters(using: str, consumer: models.Consumer, after: int, last_id: int) -> int | None:
    ahead = SQL.next_dead_letters.on(consumer_id=consumer.pk, after=after, last_id=last_id, most=AT_ONCE)
    with sql.batch(using):
        [[upper]] = sql.fetch(using, ahead)
    return None if upper is None else int(upper)
