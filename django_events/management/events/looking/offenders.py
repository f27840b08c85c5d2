"""What a proof has found, for people: of the invariants, and of copies that are compared with the log."""

from django_events.management.reporting import printable
from django_events.models import Position
from django_events.observing.findings import Finding
from django_events.observing.verifying.offenders import Offenders
from django_events.phrases import count


def told_of(offenders: Offenders) -> str:
    """What is wrong, for people."""
    if not offenders:
        return ""
    blocks = [count(len(offenders), "offender").upper(), *map(_offender, offenders)]
    more = [f"  … and {number:,} more of the kind {kind}" for kind, number in offenders.more.items()]
    return "\n".join([*blocks, *more])


def _offender(one: Finding) -> str:
    consumer, topic, partition, event_id = one.subject
    whom = "" if topic is None else topic if event_id is None else f"{topic}/{event_id}"
    whom += "" if partition in (None, Position.ALL) else f", partition {partition}"
    whom += f", consumer {consumer}" if consumer else ""
    said = ": ".join(part for part in (one.kind, whom, one.what) if part)
    lines = [f"  {said}", f"    expected: {one.data['expected']}", f"    → {one.remedy}"]
    return "\n".join(map(_line, lines))


def _line(text: str) -> str:
    return text[: len(text) - len(text.lstrip())] + printable(text)
