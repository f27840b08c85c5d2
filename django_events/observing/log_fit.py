"""Up to which id the log of a topic fits the schemas that this code declares, and which events don't.

    found = fit("default", row, after=0, limit=None, on_progress=print)

Each event is read as a handler would: upcast, and made a model. A statement for each range of ids reads only that, so
memory is bounded and no old snapshot is kept; ids are dense, so what was proved up to one is proved for good.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from django_events import models, sql
from django_events.consuming.reading import ALL, Rows, bounded
from django_events.consuming.unread import UnreadEvent
from django_events.contracts.misfits import Misfit, said
from django_events.contracts.reading import is_newer, read
from django_events.declarations import DeclaredTopic, registry
from django_events.exceptions import EventsError
from django_events.log.floors import floors_of
from django_events.received import ReceivedEvent
from django_events.statements import log_table

SQL = sql.beside(__name__)

AT_ONCE = 1_000  # ids
TOLD = 10  # events that don't fit


class MisfitEvent(NamedTuple):
    """An event that its schema refuses, and why. The value isn't in it."""

    address: str
    id: int
    type: str
    problems: tuple[str, ...]


class LogFit(NamedTuple):
    """How much of a log was looked at, what of it was described, and the first events that don't fit.

    `newer` of them fit the newest model, though they are of a version that is newer: newer code published them.
    """

    topic: str
    after: int
    until: int
    last_id: int
    events: int
    undescribed: int
    misfits: int
    newer: int
    first: list[MisfitEvent]
    interrupted: bool

    @property
    def next(self) -> int | None:
        """The id to go on with; None if the end of the log was reached."""
        return self.until + 1 if self.until < self.last_id else None


def fit(
    using: str, topic: models.Topic, *, after: int, limit: int | None, on_progress: Callable[[str, int], None]
) -> LogFit:
    """Look at a log from behind an id to its end, or at so many ids. Ctrl-C ends it, and what was proved is told."""
    declared = registry.get(topic.name)
    floors = floors_of(using, topic.pk)
    floor = 0 if floors is None else floors.id
    log = log_table(topic.pk)
    [[last_id]] = sql.fetch(using, sql.shared.last_id.on(topic_id=topic.pk, log=log, floor=floor))
    after = max(after, floor)
    until = last_id if limit is None else min(after + limit, last_id)
    at, events, undescribed, misfits, newer, interrupted = after, 0, 0, 0, 0, False
    first: list[MisfitEvent] = []
    try:
        while at < until:
            upper = min(at + AT_ONCE, until)
            found: list[MisfitEvent] = []
            known = passed = ahead = 0
            for event in _events(using, topic, at, upper):
                if event.type not in declared.contract.newest and declared.undescribed == "pass":
                    passed += 1
                    continue
                known += 1
                if problems := _problems(declared, event):
                    found.append(MisfitEvent(event.address, event.id, event.type, problems))
                elif is_newer(declared, event):
                    ahead += 1
            # All of a range at once: Ctrl-C leaves a range out, or has it whole.
            at, events, undescribed = upper, events + known, undescribed + passed
            misfits, newer, first = misfits + len(found), newer + ahead, (first + found)[:TOLD]
            on_progress(topic.name, at)
    except KeyboardInterrupt:
        interrupted = True
    return LogFit(topic.name, after, at, last_id, events, undescribed, misfits, newer, first, interrupted)


def _problems(declared: DeclaredTopic, event: ReceivedEvent) -> tuple[str, ...]:
    try:
        read(declared, event)
    except Misfit as misfit:
        return misfit.problems
    except EventsError as error:
        return (str(error),)
    except Exception as error:  # a validator of the site's own
        return (said(error),)
    return ()


def _events(using: str, topic: models.Topic, after: int, upper: int) -> Iterator[ReceivedEvent]:
    """The events of a range, oldest first, no more of them in memory than MAX_BATCH_BYTES allows."""
    while after < upper:
        rows, cut = _read(using, topic, after, upper, most=upper - after)
        if cut is not None and not rows:  # the next one alone is larger than that, or can't be read
            rows, _ = _read(using, topic, after, upper, most=1, most_bytes=ALL)
            if not rows:
                yield UnreadEvent(topic.name, cut, database=using)
                after = cut[0]
                continue
        for row in rows:
            yield ReceivedEvent(topic.name, row, database=using)
        if cut is None:
            return
        after = rows[-1][0]


def _read(using: str, topic: models.Topic, after: int, upper: int, *, most: int, most_bytes: int | None = None) -> Rows:
    log = log_table(topic.pk)
    chosen = SQL.between.on(log=log, topic_id=topic.pk, after=after, upper=upper, most=most)
    return bounded(using, chosen, at_most=most, most_bytes=most_bytes)
