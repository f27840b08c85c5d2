"""What is wrong with an event of a log beside the one before it: a gap, its time, its partition, its number."""

from django_events import models, sql
from django_events.observing.commands import events_command
from django_events.observing.verifying.offenders import SHOWN, Offenders
from django_events.phrases import moment


def report(using: str, topic: models.Topic, rows: sql.Rows, offenders: Offenders, *, partitions: int) -> None:
    """What a close look at a range of ids answered with."""
    shown: dict[str, int] = {}
    for fault, total, event_id, partition, number, before_id, before_number, logged_at, before_at in rows:
        shown[fault] = shown.get(fault, 0) + 1
        if fault == "gap":
            report_gap(topic, offenders, before=before_id, id=event_id)
        else:
            if fault == "time":
                what = f"It was logged at {moment(logged_at)}, before the event before it."
                expected = f"{moment(before_at)} or later: a time is looked for by halving."
                remedy = "Don't rewind or read by time around it; by id, everything works."
            elif fault == "partition":
                what = f"It is in partition {partition}, which the topic doesn't have."
                expected = f"One of 0 to {partitions - 1}."
                publish = events_command(using, "publish")
                remedy = f"No partitioned stream reads it. Publish it again: {publish}."
            else:
                it_has = f"It has the number {number:,} in partition {partition}"
                what = f"{it_has}, and the one before it {before_number:,}."
                expected = f"{before_number + 1:,}: the lag of a partition is a subtraction of numbers."
                remedy = "Lags of this partition are wrong by the difference. Find out who wrote into the table."
            offenders.add(fault, topic.name, what, expected, remedy, partition=partition, id=event_id)
        if shown[fault] == SHOWN:
            offenders.count(fault, total - SHOWN)


def report_gap(topic: models.Topic, offenders: Offenders, *, before: int, id: int) -> None:
    """Nothing between two ids."""
    missing = id - before - 1
    which = f"{before + 1:,}" if missing == 1 else f"{before + 1:,} to {id - 1:,}, {missing:,} events,"
    offenders.add(
        "gap",
        topic.name,
        id=before + 1,
        what=f"{which} {'is' if missing == 1 else 'are'} missing.",
        expected="Ids without a gap, from the first one to the last.",
        remedy="They were deleted by hand, or a backup is incomplete: restore the segment from a backup.",
    )
