"""What `events status`, `doctor` and `verify`, the admin, the metrics and the probes find: one class for all of them.

yield error("fsync is off.", "ALTER SYSTEM SET fsync = on", fsync="off")
"""

from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning", "unknown", "ok"]
WORST_FIRST: tuple[Severity, ...] = ("error", "warning", "unknown", "ok")


class Subject(NamedTuple):
    """What a finding is about, as far as it is about one: a consumer, a topic, a partition, an event."""

    consumer: str | None = None
    topic: str | None = None
    partition: int | None = None
    id: int | None = None

    def __str__(self) -> str:
        return " of ".join(name for name in (self.consumer, self.topic) if name)


class Finding(NamedTuple):
    """One thing that was found: of which kind, how bad, about what, a sentence or two, the way out, and the numbers.

    A finding that is an error or a warning is a problem. A `kind` is a name that never changes with the language.
    """

    kind: str
    severity: Severity
    subject: Subject
    what: str
    remedy: str
    data: dict[str, Any]

    def flat(self) -> dict[str, Any]:
        """With stable keys, for JSON."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            **self.subject._asdict(),
            "what": self.what,
            "remedy": self.remedy,
            "data": self.data,
        }


# The caller of an examination gives the kind: it is the examination's name.


def ok(what: str, **data: Any) -> Finding:
    return Finding("", "ok", Subject(), what, "", data)


def warning(what: str, remedy: str, **data: Any) -> Finding:
    """A warning: it works, but it costs something, or will."""
    return Finding("", "warning", Subject(), what, remedy, data)


def error(what: str, remedy: str, **data: Any) -> Finding:
    """An error: something doesn't work, or events can be lost."""
    return Finding("", "error", Subject(), what, remedy, data)


def unknown(what: str, remedy: str = "", **data: Any) -> Finding:
    """Unknown: this process or role can't see it, and `what` says why."""
    return Finding("", "unknown", Subject(), what, remedy, data)
