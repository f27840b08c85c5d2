"""What an examination answers with: how it is, what was seen, and what to do.

yield problem("fsync is off.", "ALTER SYSTEM SET fsync = on", fsync="off")
"""

from typing import Any, Literal, NamedTuple

Verdict = Literal["problem", "warning", "unknown", "ok"]
WORST_FIRST: tuple[Verdict, ...] = ("problem", "warning", "unknown", "ok")


class Answer(NamedTuple):
    """A sentence or two about what was seen, what to do if anything, and the numbers behind it."""

    verdict: Verdict
    what: str
    remedy: str
    seen: dict[str, Any]


class Finding(NamedTuple):
    """An answer, and whose it is."""

    examination: str
    verdict: Verdict
    what: str
    remedy: str
    seen: dict[str, Any]


def ok(what: str, **seen: Any) -> Answer:
    return Answer("ok", what, "", seen)


def warning(what: str, remedy: str, **seen: Any) -> Answer:
    """It works, and costs something or is going to."""
    return Answer("warning", what, remedy, seen)


def problem(what: str, remedy: str, **seen: Any) -> Answer:
    """Something doesn't work, or events can be lost."""
    return Answer("problem", what, remedy, seen)


def unknown(what: str, remedy: str = "", **seen: Any) -> Answer:
    """It can't be seen from here, or not by this role: `what` says why."""
    return Answer("unknown", what, remedy, seen)
