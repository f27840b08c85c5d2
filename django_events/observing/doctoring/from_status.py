"""What `events status` has to say: the examinations that are about a kind of problem, and all other kinds."""

from collections.abc import Iterator

from django_events.observing.doctoring.database import Database
from django_events.observing.findings import Finding, ok

EXAMINED = {
    "transfer",
    "prepared",
    "unserved",
    "snapshot",
    "bloat",
    "not registered",
    "declared otherwise",
    "undeclared",
}


def of_kinds(database: Database, *kinds: str) -> Iterator[Finding]:
    """The problems of some kinds. The examination says which kinds it is about."""
    return (one for one in database.problems if one.kind in kinds)


def others(database: Database) -> Iterator[Finding]:
    """Those of kinds that no other examination is about."""
    found = [one._replace(data={"problem": one.kind}) for one in database.problems if one.kind not in EXAMINED]
    yield from found or [ok("No other problem.")]
