"""What a tailer asks the log: the next events of a topic, for all its listeners, or for one that is behind.

In the log of a topic ids are given and committed in their order, by one writer at a time. So what can be seen has no
gap that is still to be filled, whenever the transactions of the publishers began: a reader passes nothing that comes
later. A gap is what retention or compaction removed; any other one is an error.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from django.db import DatabaseError

from django_events import sql
from django_events.consuming.missing import missing
from django_events.consuming.reading import Rows, bounded
from django_events.consuming.unread import UnreadEvent
from django_events.declarations.limits import is_storable, rest_is_last
from django_events.exceptions import EventExpired, Invalid, LogReplaced
from django_events.log.floors import Floors, floors_of
from django_events.matching import condition, expression, is_pattern
from django_events.received import ReceivedEvent
from django_events.statements import log_table

SQL = sql.beside(__name__)

PORTION = 200  # events that are read at once
SCANNED = 2_000  # ids that are tried at once for a listener that reads by itself


class Tailed(NamedTuple):
    """A topic as it was when a listener began: one that is made anew has another id."""

    id: int
    name: str

    @property
    def log(self) -> str:
        return log_table(self.id)


@dataclass(frozen=True)
class LiveFilter:
    """Which events a listener gets. A process may have thousands of them, so comparing is quick."""

    types: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    where: str | None = None
    metadata: ClassVar[None] = None  # filters of consumers have more
    vars: ClassVar[None] = None

    def refuse_wrong(self) -> None:
        """Invalid for a pattern that no filter can have; of a predicate PostgreSQL says it."""
        for option, patterns in (("types", self.types), ("keys", self.keys)):
            for pattern in patterns or ():
                if not is_storable(pattern):
                    raise Invalid(f"{option} has {pattern!r}, expected texts, like 'order.*'.")
                if not rest_is_last(pattern):
                    raise Invalid(f"The pattern {pattern!r} in {option}: '>' means the rest, so it can only be last.")

    def fits(self, event: ReceivedEvent) -> bool:
        """Whether type and key fit; whether the predicate holds is the database's to say."""
        return self._types.has(event.type) and self._keys.has(event.key)

    @cached_property
    def _types(self) -> "_Texts":
        return _Texts(self.types)

    @cached_property
    def _keys(self) -> "_Texts":
        return _Texts(self.keys)


class _Texts:
    """What patterns are about: texts that are looked up, and one expression for the others."""

    def __init__(self, patterns: Sequence[str] | None) -> None:
        self._all = patterns is None
        self._plain = frozenset(one for one in patterns or () if not is_pattern(one))
        expressions = [expression(one)[1:-1] for one in patterns or () if is_pattern(one)]
        self._expression = re.compile("|".join(expressions), re.DOTALL) if expressions else None

    def has(self, text: str | None) -> bool:
        if self._all or text in self._plain:
            return True
        return self._expression is not None and text is not None and self._expression.fullmatch(text) is not None


class Portion(NamedTuple):
    """Events that were read, up to which id, whether there may be more behind it, and what expired before them."""

    events: list[ReceivedEvent]
    position: int
    more: bool
    expired: EventExpired | None = None


class Reaches(NamedTuple):
    """Up to which id retention removed events, and the last id that was given."""

    floor: int
    last: int


def ends_of(using: str, topic: Tailed) -> Reaches:
    """LogReplaced if the topic was removed."""
    try:
        rows = sql.fetch_whole(using, SQL.ends.on(log=topic.log, topic_id=topic.id))
    except DatabaseError as error:
        if sql.kind_of(error) is not sql.ErrorKind.TABLE_GONE:
            raise
        rows = []
    for floor, last in rows:
        return Reaches(floor, max(floor, last or 0))
    raise LogReplaced(
        f"Topic {topic.name!r} was removed, or made anew: then its ids have begun again. Listen to it from "
        "'beginning', or without `since`."
    )


def refuse_ahead(topic: Tailed, position: int, ends: Reaches) -> None:
    """LogReplaced for a position behind the end of the log."""
    if position > ends.last:
        raise LogReplaced(
            f"There is no event {topic.name}/{position}: the log ends at {topic.name}/{ends.last}. The topic was made "
            "anew, or the database was restored from an older state. Listen from 'beginning', or without `since`."
        )


def standing(using: str, topics: Sequence[Tailed]) -> set[int]:
    """Which of these topics are still there, by their ids."""
    return {topic_id for (topic_id,) in sql.fetch(using, SQL.standing, topic_ids=[topic.id for topic in topics])}


def refuse_predicate(using: str, where: str) -> None:
    """Invalid for a predicate that PostgreSQL doesn't take."""
    try:
        sql.fetch(using, sql.shared.try_predicate, where=where, vars="{}")
    except DatabaseError as error:
        raise_of_predicate(error, where)
        raise


def raise_of_predicate(error: DatabaseError, where: str | None) -> None:
    """Invalid if the error may be a predicate's."""
    if where is not None and (sql.kind_of(error).of_data or sql.kind_of(error) is sql.ErrorKind.OTHER):
        raise Invalid(f"where={where!r} can't be used: {sql.said(error).splitlines()[0]}.") from error


def next_events(using: str, topic: Tailed, position: int) -> Portion:
    """The next events behind a position, as they are in the log, whatever their ids are."""
    chosen = SQL.behind.on(log=topic.log, topic_id=topic.id, position=position, limit=PORTION)
    events, cut = _events(using, topic, bounded(using, chosen, at_most=PORTION))
    return Portion(events, events[-1].id if events else position, cut or len(events) == PORTION)


def holding(
    using: str, topic: Tailed, events: Sequence[ReceivedEvent], predicates: Sequence[str]
) -> dict[str, set[int]]:
    """For which of some events, of which there is one or more, each predicate holds; none if one is there no more."""
    statement = SQL.holding.on(log=topic.log, topic_id=topic.id, first=events[0].id, last=events[-1].id)
    there, found = set[int](), {predicate: set[int]() for predicate in predicates}
    for place, event_id in sql.fetch_whole(using, statement, predicates=list(predicates)):
        (found[predicates[place - 1]] if place else there).add(event_id)
    return found if all(event.id in there for event in events) else {}


def next_wanted(using: str, topic: Tailed, position: int, wanted: LiveFilter) -> Portion:
    """The next events behind a position that a filter fits, for a listener that reads by itself.

    Where retention has removed what comes next, it says so, and no events. EventsMissing for a gap that neither
    retention nor compaction made, LogReplaced if the log is another one.
    """
    match = condition(wanted)
    statement = SQL.ids_behind.on(log=topic.log, topic_id=topic.id, position=position, limit=SCANNED, match=match)
    try:
        ids = sql.fetch_whole(using, statement)
    except DatabaseError as error:
        if sql.kind_of(error) is sql.ErrorKind.TABLE_GONE:
            ends_of(using, topic)  # says so
        raise_of_predicate(error, wanted.where)
        raise
    if not ids or ids[-1][0] - position != len(ids):
        floors = _floors_behind(using, topic, position, [event_id for event_id, _ in ids])
        if position < floors.id:
            return Portion([], floors.id, True, _expired(topic, position + 1, floors.id))
    fitting = [event_id for event_id, fits in ids if fits]
    end, more = (ids[-1][0], len(ids) == SCANNED) if ids else (position, False)
    if not fitting:
        return Portion([], end, more)
    some = fitting[:PORTION]
    these = bounded(using, SQL.these.on(log=topic.log, topic_id=topic.id), at_most=PORTION, ids=some)
    events, cut = _events(using, topic, these)
    read = [event.id for event in events]
    if read != some[: len(read)] or (len(read) < len(some) and not cut):
        return Portion([], position, True)  # retention or compaction came in between: what is left is found anew
    whole = len(read) == len(fitting)
    return Portion(events, end if whole else read[-1], more or not whole)


def _floors_behind(using: str, topic: Tailed, position: int, ids: list[int]) -> Floors:
    """The floors, after a look at gaps. What removed events has written it down before they were gone."""
    if not ids:
        refuse_ahead(topic, position, ends_of(using, topic))
    floors = floors_of(using, topic.id) or Floors(0, [], 0)
    before = position
    for event_id in ids:
        if event_id != before + 1 and event_id - 1 > floors.absent_until:
            raise missing(f"Event {topic.name}/{max(before, floors.absent_until) + 1}")
        before = event_id
    return floors


def _expired(topic: Tailed, first: int, last: int) -> EventExpired:
    what = f"{topic.name}/{first} has" if first == last else f"{topic.name}/{first} to {topic.name}/{last} have"
    return EventExpired(f"{what} expired: the log begins behind {topic.name}/{last}.")


def _events(using: str, topic: Tailed, rows: Rows) -> tuple[list[ReceivedEvent], bool]:
    """Events in their order, and whether one was too much to be read with them; the first one is there in any case."""
    events = [ReceivedEvent(topic.name, row, database=using) for row in rows.read]
    if not events and rows.cut is not None:
        return [UnreadEvent(topic.name, rows.cut, database=using)], True
    return events, rows.cut is not None
