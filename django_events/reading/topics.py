"""The topics of a database, and the first and last ids of their logs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django_events.exceptions import UnknownName, did_you_mean
from django_events.reading.dsn import Connection, fetch_whole
from django_events.statements import log_table, shared, union_all


@dataclass(frozen=True, kw_only=True)
class TopicChoice:
    """Which topics to read: by their names, or all that a pattern matches."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def has(self, name: str) -> bool:
        """Whether a topic of this name is meant."""
        return name in self.names if self.pattern is None else re.fullmatch(self.pattern, name) is not None


@dataclass(frozen=True)
class TopicLog:
    """A topic when it was looked at: `first` is the id of its oldest event, `end` the id of its next one.

    Up to `compacted_until`, events may be gone that a newer one of their key came after; `first` may be one of them.
    """

    name: str
    id: int
    incarnation: str
    first: int
    end: int
    compacted_until: int
    connection: Connection = field(repr=False, compare=False)

    def first_since(self, moment: datetime) -> int:
        """The id of the first event logged at a moment or later, found by halving: times never decrease along ids."""
        log, first, end, found = log_table(self.id), self.first, self.end, self.end
        while first < end:
            middle = (first + end) // 2
            asked = shared.logged_before.on(log=log, topic_id=self.id, id=middle)
            rows = fetch_whole(self.connection, asked, moment=moment)
            if not rows:  # removed by retention or compaction, also while this looks
                behind = shared.next_logged_before.on(log=log, topic_id=self.id, id=middle)
                rows = fetch_whole(self.connection, behind, moment=moment)
            if rows and not rows[0][0]:
                end, found = middle, rows[0][1]
            else:
                first = middle + 1
        return found


def find(connection: Connection, wanted: TopicChoice, *, fail: bool = True) -> list[TopicLog]:
    """The topics that a choice means, by name; with `fail`, UnknownName for a name without a topic."""
    rows = {name: row for name, *row in fetch_whole(connection, shared.topics)}
    if wanted.pattern is not None:
        names = {name for name in rows if re.fullmatch(wanted.pattern, name)}
    else:
        names = set(wanted.names)
        if fail:
            refuse_unknown(names, rows)
    known = sorted(names & rows.keys())
    if not known:
        return []
    asked = union_all([shared.bounds.on(log=log_table(rows[name][0]), topic_id=rows[name][0]) for name in known])
    bounds = fetch_whole(connection, asked)
    extents_of = {topic_id: extent for topic_id, *extent in bounds}
    found = []
    for name in known:
        topic_id, incarnation = rows[name]
        first, last, floor, compacted = extents_of[topic_id]
        end = max(last or 0, floor) + 1
        first = floor + 1 if compacted > floor else first or end
        found.append(TopicLog(name, topic_id, incarnation, first, end, compacted, connection))
    return found


def refuse_unknown(wanted: Iterable[str], known: Iterable[str]) -> None:
    """UnknownName if a wanted name is not among the known ones."""
    for name in sorted(set(wanted) - set(known)):
        raise UnknownName(f"There is no topic {name!r} in the database. {did_you_mean(name, known)}")
