"""Dead letters: copies of events of the log, at or below the position of a stream."""

from django_events import sql
from django_events.verifying.findings import SHOWN, Findings
from django_events.verifying.snapshot import Seen


def verify_dead_letters(seen: Seen, findings: Findings) -> None:
    """Each is of an event that is, or was, in the log, and nobody is going to handle it again unasked."""
    statement = sql.statement("verify_dead_letters").on(log=seen.log, topic_id=seen.topic.pk)
    rows = sql.fetch(seen.using, statement, last_id=seen.last_id, most=SHOWN)
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
        texts = (what, expected, remedy)
        findings.add("dead letter", seen.topic.name, *texts, consumer=consumer, partition=partition, id=event_id)
    findings.count_unlisted("dead letter", [("", row[0]) for row in rows])
