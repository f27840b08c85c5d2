"""Some keys of a projection folded anew from the log, in memory: to compare them with the rows, or to look at the past.

    check(totals, sample=1_000).drifts          # what is otherwise in the rows
    as_of(totals, 1042, key="ada")              # the row as it was when orders/1042 had been folded

Events that are dead letters of the consumer are left out, as they are in the rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from random import sample as any_of
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db import models as django_models

from django_events import models, sql
from django_events.consuming import log_positions
from django_events.consuming.failures import summary_of
from django_events.consuming.registered import registered
from django_events.declarations import DeclaredProjection
from django_events.deriving.folding import Folding
from django_events.deriving.reading import Source, floors, read
from django_events.exceptions import Invalid, Refused
from django_events.models.buffer import writable
from django_events.outcomes import Drift, Drifts
from django_events.received import ReceivedEvent
from django_events.retries import Ignore
from django_events.statements import log_table

SQL = sql.beside(__name__)

CHUNK = 1_000  # events that are read at once
LONGEST = 200  # characters of a value that is told

Rows = dict[Any, django_models.Model]


class _Applied(NamedTuple):
    """Which events of a topic a consumer has folded, as it was in one moment."""

    row: models.Consumer
    positions: dict[int, int]
    layout: int
    dead: frozenset[int]

    def has(self, event: ReceivedEvent) -> bool:
        return event.id not in self.dead and self._is_passed(event)

    def _is_passed(self, event: ReceivedEvent) -> bool:
        if not self.row.partitioned:
            return event.id <= self.positions.get(models.Position.ALL, 0)
        layout = self.row.topic.layout_at(event.id)  # what an earlier one has is handled before the next one is read
        return layout < self.layout or (layout == self.layout and event.id <= self.positions.get(event.partition, 0))

    @property
    def reached(self) -> int:
        return max(self.positions.values(), default=0)


def as_of(
    projection: DeclaredProjection[Any], at: int | Mapping[str, int], *, key: object, using: str | None = None
) -> Any:
    """See `DeclaredProjection.as_of`."""
    using = writable(using)
    rows = registered(using, projection)
    if isinstance(at, int):
        if len(rows) > 1:
            topics = ", ".join(row.topic.name for row in rows)
            raise Invalid(
                f"Projection {projection} reads {topics}, so an id for each of them says which moment is meant: "
                f"as_of({{{rows[0].topic.name!r}: {at}, …}}, key=…)."
            )
        at = {rows[0].topic.name: at}
    until = {row.topic.name: at.get(row.topic.name, 0) for row in rows}
    if unknown := set(at) - set(until):
        raise Invalid(f"Projection {projection} doesn't read {', '.join(sorted(unknown))}.")
    for row in rows:
        last = log_positions.find(using, row.topic, "end") - 1
        if until[row.topic.name] > last:
            raise Refused(
                f"Topic {row.topic} ends at {last}, so event {until[row.topic.name]} doesn't exist yet, and how a row "
                f"is then can't be said. As it is now: {last}."
            )
    folding = Folding(projection)
    wanted = folding.cleaned(key)
    dead = {row.topic.name: _dead(using, row) for row in rows}
    folded, failed = _fold(using, folding, rows, {wanted}, until, lambda event: event.id not in dead[event.topic])
    if failed:
        raise Refused(f"The function of projection {projection} can't fold {failed[0]}.")
    return folded.get(wanted)


def check(projection: DeclaredProjection[Any], *, sample: int = 1_000, using: str | None = None) -> Drifts:
    """See `DeclaredProjection.check`."""
    using = writable(using)
    if sample < 1:
        raise Invalid(f"sample={sample} is too few keys, expected at least 1.")
    if connections[using].in_atomic_block:
        raise Refused("A check compares rows and positions of one moment, so it can't be part of a transaction.")
    folding = Folding(projection)
    with sql.snapshot(using):  # positions and rows are committed together, so in one moment they fit
        rows = registered(using, projection)
        applied = {row.topic.name: _applied(using, row) for row in rows}
        keys = _sampled(using, folding, rows, applied, sample)
        there = folding.rows(using, keys)
    until = {topic: one.reached for topic, one in applied.items()}
    folded, failed = _fold(using, folding, rows, keys, until, lambda event: applied[event.topic].has(event))
    with _stored(using, folding, folded) as stored:
        drifts = [drift for key in sorted(keys, key=str) for drift in _drifts(folding, key, there, stored)]
    return Drifts(projection.name, until, len(keys), drifts, failed)


def _applied(using: str, row: models.Consumer) -> _Applied:
    positions = list(row.positions.using(using))
    layout = max((one.layout for one in positions if one.layout is not None), default=0)
    return _Applied(row, {one.partition: one.position for one in positions}, layout, _dead(using, row))


def _dead(using: str, row: models.Consumer) -> frozenset[int]:
    return frozenset(row.dead_letters.using(using).values_list("event_id", flat=True))


def _sampled(
    using: str, folding: Folding, rows: Iterable[models.Consumer], applied: Mapping[str, _Applied], sample: int
) -> set[Any]:
    """Keys of rows, and, because a row may be missing, of events."""
    keys = set(folding.some_keys(using, (sample + 1) // 2))
    for row in rows:
        first, last = floors(using, row.topic_id).id, applied[row.topic.name].reached
        ids = range(first + 1, last + 1)
        chosen = any_of(ids, min(len(ids), sample))
        source = Source.of(folding.projection, row)
        statement = SQL.chosen.on(log=log_table(row.topic_id), topic_id=row.topic_id, match=source.match)
        for columns in sql.fetch(using, statement, ids=chosen):
            if len(keys) >= sample:
                break
            event = ReceivedEvent(row.topic.name, columns, consumer=row.name, database=using)
            if applied[row.topic.name].has(event) and (key := _key_of(folding, event)) is not None:
                keys.add(key)
    return keys


def _key_of(folding: Folding, event: ReceivedEvent) -> Any:
    """The key of an event; None where that can't be said, so that it can't have been folded either."""
    try:
        return folding.key_of(event)
    except Exception:
        return None


def _fold(
    using: str,
    folding: Folding,
    rows: Iterable[models.Consumer],
    keys: set[Any],
    until: dict[str, int],
    wanted: Callable[[ReceivedEvent], bool],
) -> tuple[Rows, list[str]]:
    """The rows of some keys, folded in memory, and the events that can't be."""
    by_event_key = [str(key) for key in keys] if folding.projection.key is None else None
    rows = list(rows)
    sources = [Source.of(folding.projection, row, keys=by_event_key) for row in rows]
    after = dict.fromkeys(until, 0)
    folded: Rows = {}
    failed: list[str] = []
    while any(after[topic] < end for topic, end in until.items()):
        events, after = read(using, sources, after=after, until=until, most=CHUNK)
        for event in events:
            if not wanted(event) or (key := _key_of(folding, event)) not in keys:
                continue
            try:
                row = folding.step(folded.get(key), key, event)
            except Ignore:
                continue
            except Exception as error:
                failed.append(f"{event.address}: {summary_of(error)}")
                continue
            if row is None:
                folded.pop(key, None)
            else:
                folded[key] = row
    for one in rows:
        if gone := floors(using, one.topic_id).absent_until:
            raise Refused(
                f"Topic {one.topic} has lost events up to {gone} to retention or compaction, so rows can't be folded "
                "anew from its log."
            )
    return folded, failed


@contextmanager
def _stored(using: str, folding: Folding, rows: Rows) -> Iterator[Rows]:
    """The same rows as the database keeps them: rounded, with its defaults. They go through a temporary table."""
    table = folding.model._meta.db_table
    with transaction.atomic(using):
        sql.run(using, SQL.make_temporary.on(table=("pg_temp", table), served=table))
        folding.insert(using, list(rows.values()))
        yield folding.rows(using, rows)
        transaction.set_rollback(True, using)


def _drifts(folding: Folding, key: Any, there: Rows, folded: Rows) -> Iterator[Drift]:
    if key not in there or key not in folded:
        if key in there or key in folded:
            yield Drift(str(key), "", "a row" if key in there else "none", "a row" if key in folded else "none")
        return
    for field in folding.compared:
        values = [getattr(row, field.attname) for row in (there[key], folded[key])]
        if values[0] != values[1]:
            yield Drift(str(key), field.name, *(repr(value)[:LONGEST] for value in values))
