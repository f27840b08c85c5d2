"""What `events status` has to say: the examinations that are about a kind of trouble, and all other kinds."""

from collections.abc import Iterator

from django_events.observing.doctoring.findings import Answer, Verdict, ok
from django_events.observing.doctoring.subject import Patient
from django_events.observing.problems import Trouble

VERDICTS: dict[str, Verdict] = {
    "transfer": "problem",
    "stopped": "problem",
    "set aside": "problem",
    "prepared": "problem",
    "unserved": "problem",
    "snapshot": "problem",
    "bloat": "problem",
    "not registered": "problem",
}
EXAMINED = {"transfer", "prepared", "unserved", "snapshot", "bloat", "not registered", "undeclared"}


def of_kinds(patient: Patient, *kinds: str) -> Iterator[Answer]:
    """The troubles of some kinds, in their own words. The examination says which kinds it is about."""
    return (_answer(one) for one in patient.troubles if one.kind in kinds)


def others(patient: Patient) -> Iterator[Answer]:
    """Those of kinds that no other examination is about."""
    found = [_answer(one, one.kind) for one in patient.troubles if one.kind not in EXAMINED]
    yield from found or [ok("No other trouble.")]


def _answer(one: Trouble, kind: str = "") -> Answer:
    whom = " of ".join(name for name in (one.consumer, one.topic) if name)
    what = ": ".join(part for part in (kind, whom, one.what) if part)
    seen = {"consumer": one.consumer, "topic": one.topic, "partition": one.partition}
    return Answer(VERDICTS.get(one.kind, "warning"), what, one.remedy, seen)
