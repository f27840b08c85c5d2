"""Problems as pages list them: by kind, worst first, each with its severity, links, and the repair as a button."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from django_events.admin.pages import may
from django_events.observing.findings import WORST_FIRST, Finding

SHOWN = 5  # of a kind; the others are there to be opened
MOST = 100  # of a kind
# How the kinds of problems are called.
KINDS = {
    "transfer": gettext_lazy("transfer"),
    "clock": gettext_lazy("clock"),
    "stopped": gettext_lazy("stopped"),
    "set aside": gettext_lazy("set aside"),
    "prepared": gettext_lazy("prepared transaction"),
    "unserved": gettext_lazy("unserved"),
    "hung": gettext_lazy("hung"),
    "retrying": gettext_lazy("retrying"),
    "dead letters": gettext_lazy("dead letters"),
    "groups": gettext_lazy("too many groups"),
    "left out": gettext_lazy("left out"),
    "not registered": gettext_lazy("not registered"),
    "declared otherwise": gettext_lazy("declared otherwise"),
    "undeclared": gettext_lazy("undeclared"),
    "paused": gettext_lazy("paused"),
    "snapshot": gettext_lazy("old snapshot"),
    "bloat": gettext_lazy("bloat"),
    "behind retention": gettext_lazy("behind retention"),
    "expired": gettext_lazy("expired"),
    "maintenance": gettext_lazy("maintenance"),
    "webhook disabled": gettext_lazy("webhook disabled"),
    "webhook fails": gettext_lazy("webhook fails"),
    "inbox": gettext_lazy("inbox"),
    "inbox waits": gettext_lazy("inbox waits"),
    "unreadable": gettext_lazy("unreadable messages"),
    "messages gone": gettext_lazy("messages gone"),
}
# The action of a consumer that its remedy names, with its label and permission.
REPAIRS = {
    "stopped": ("resume", gettext_lazy("Resume…"), "resume_consumer"),
    "paused": ("resume", gettext_lazy("Resume…"), "resume_consumer"),
    "webhook disabled": ("resume", gettext_lazy("Resume…"), "resume_consumer"),
    "webhook fails": ("retry_now", gettext_lazy("Retry now…"), "retry_now_consumer"),
    "retrying": ("retry_now", gettext_lazy("Retry now…"), "retry_now_consumer"),
}


class Repair(NamedTuple):
    """An action of the consumer's page."""

    action: str
    label: "str | Promise"


class ProblemLine(NamedTuple):
    """A problem with the ids of its consumer, its topic and its event, as far as they have pages."""

    problem: Finding
    consumer: int | None
    topic: int | None
    event: int | None
    repair: Repair | None


class Kind(NamedTuple):
    """The problems of one kind: those that are seen at once, those that are opened, and how many more there are."""

    name: "str | Promise"
    severity: str
    number: int
    shown: Sequence[ProblemLine]
    rest: Sequence[ProblemLine]
    left_out: int


class Problems(NamedTuple):
    """All of them, and how many are errors and warnings."""

    kinds: list[Kind]
    errors: int
    warnings: int


def problems(
    request: HttpRequest,
    found: Iterable[Finding],
    *,
    consumers: dict[tuple[str, str], int],
    topics: dict[str, int],
) -> Problems:
    """What was found, for a page. The ids of consumers are by name and topic, those of topics by name."""
    by_kind: dict[str, list[Finding]] = {}
    for one in found:
        by_kind.setdefault(one.kind, []).append(one)
    kinds = []
    for name, same in sorted(by_kind.items(), key=lambda item: WORST_FIRST.index(item[1][0].severity)):
        lines = [_line(request, one, consumers, topics) for one in same[:MOST]]
        kinds.append(
            Kind(KINDS[name], same[0].severity, len(same), lines[:SHOWN], lines[SHOWN:], max(len(same) - MOST, 0))
        )
    errors = sum(kind.number for kind in kinds if kind.severity == "error")
    return Problems(kinds, errors, sum(kind.number for kind in kinds) - errors)


def _line(
    request: HttpRequest, one: Finding, consumers: dict[tuple[str, str], int], topics: dict[str, int]
) -> ProblemLine:
    subject = one.subject
    consumer = consumers.get((subject.consumer or "", subject.topic or ""))
    topic = topics.get(subject.topic or "")
    repair = REPAIRS.get(one.kind)
    offered = repair is not None and consumer is not None and may(request, repair[2])
    event = one.data.get("event")
    return ProblemLine(
        one,
        consumer,
        topic,
        event if topic is not None and isinstance(event, int) else None,
        Repair(repair[0], repair[1]) if repair is not None and offered else None,
    )
