"""Have one consumer handle chosen events again, which it has handled already.

    replay("billing", ids=[17, *range(20, 25)], reason="the deploy of Tuesday")
    replay("billing", first=1042, last=2000, types=["order.*"], reason="the deploy of Tuesday")

Each becomes a dead letter that is to be handled again: it is handled at the side, counted, listed, and discarded like
one. Workers may run meanwhile.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django_events import declarations, models, sql
from django_events.consuming.failures import storable
from django_events.consuming.fingerprints import alike
from django_events.consuming.registered import Named, refuse_several, registered
from django_events.exceptions import Invalid, Refused
from django_events.matching import condition
from django_events.models.buffer import writable
from django_events.models.databases import for_database
from django_events.operating.dead_letters import NAMED, refuse_before_older
from django_events.operating.derived import refuse_derived
from django_events.operating.interventions import record, this_user
from django_events.operating.locks import bounded
from django_events.operating.quiesce import lock, refuse_queries
from django_events.outcomes import Replayed
from django_events.statements import log_table

SQL = sql.beside(__name__)

MOST = 10_000  # events in one transaction


class _Chosen(NamedTuple):
    """Which events are meant: by id, or all of a range that fit."""

    ids: list[int] | None
    first: int | None = None
    last: int | None = None
    types: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    where: str | None = None

    metadata: None = None  # filters of consumers have more
    vars: None = None

    def condition(self) -> sql.Statement:
        ids = [] if self.ids is None else [SQL.of_these.on(ids=sql.literal(self.ids))]
        first = [] if self.first is None else [SQL.from_id.on(first=self.first)]
        last = [] if self.last is None else [SQL.to_id.on(last=self.last)]
        return sql.all_of([*ids, *first, *last, condition(self)])


def replay(
    consumer: Named,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    ids: Iterable[int] | None = None,
    first: int | None = None,
    last: int | None = None,
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    reason: str,
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> Replayed:
    """Let one consumer handle chosen events again: these ids, or those from `first` to `last` that a filter fits.

    In one transaction, all or none. They are handled oldest first, beside what comes; where keys are in order never
    beside another event of the same key. Attempts are counted anew. What the consumer has not handled yet is left out,
    and so is what its own filter leaves out. Refused for an id that is not in the log or not handled yet,
    for more than 10,000 events at once, and where an older dead letter of the same key has to come first; InUse names
    the session that keeps the consumer locked. Repeating it before they are handled changes nothing.
    """
    using = writable(using)
    chosen = _Chosen(None if ids is None else sorted(set(ids)), first, last, types, keys, where)
    _refuse_unclear(chosen, reason)
    rows = registered(using, consumer, topic=topic)
    refuse_queries(rows)
    refuse_derived(using, rows, verb="replay")
    refuse_several(rows, (chosen.ids or [first or 1])[0])
    [row] = rows
    ids = [event_id for event_id, *_ in _look(using, row, chosen)]  # which may take long, so it locks nothing
    with bounded(using, f"Consumer {row}"):
        _hold(using, row)
        found = _look(using, row, _Chosen(ids))
        again = _again(row, chosen, found)
        outcome = Replayed(
            topic=row.topic.name,
            events=len(again),
            pending=sum(not (passed or waits) for _, _, passed, waits in found),
            filtered=sum(passed and not (fits or waits) for _, fits, passed, waits in found),
            waiting=sum(waits for *_, waits in found),
        )
        if again and not dry_run:
            who = by or this_user()
            error = storable(f"Replayed by {who}: {reason}")
            letters = _copy(using, row, again, error)
            refuse_before_older(using, [pk for (pk,) in letters])
            record(using, row, "replay", by=who, reason=reason, count=len(again), events=again[:NAMED])
    return outcome


def _refuse_unclear(chosen: _Chosen, reason: str) -> None:
    if not reason.strip():
        raise Invalid("Events are replayed for a reason: reason is empty.")
    if chosen.ids is None and chosen.first is None and chosen.keys is None:
        raise Invalid("Say which events: ids, the first of a range, or keys. To handle all again, rewind the consumer.")
    if chosen.ids is not None and any(one is not None for one in chosen[1:]):
        raise Invalid("Ids name events one by one, so they go with no range and no filter.")


def _hold(using: str, row: models.Consumer) -> None:
    """Until the transaction ends, no rewind sets the consumer back, and a queue is not filled."""
    if row.mode == "queue":
        lock(using, row)
    else:
        sql.fetch(using, sql.shared.lock_positions, consumer_ids=[row.pk], partition=None)


def _look(using: str, row: models.Consumer, chosen: _Chosen) -> sql.Rows:
    """Of each chosen event, whether it is for the consumer, was passed, and waits to be handled again already."""
    statement = SQL.chosen.on(
        log=log_table(row.topic_id),
        topic_id=row.topic_id,
        chosen=chosen.condition(),
        match=condition(row),
        passed=SQL.passed_by_queue if row.mode == "queue" else SQL.passed_by_stream,
    )
    return sql.fetch(using, statement, consumer_id=row.pk, most=MOST + 1)


def _again(row: models.Consumer, chosen: _Chosen, found: sql.Rows) -> list[int]:
    """The ids of the events that are to be handled again."""
    if len(found) > MOST:
        raise Refused(
            f"More than {MOST:,} events of topic {row.topic} are chosen. Nothing was changed. Replay them in parts. To "
            f"handle all from one event on: manage.py events rewind {row.name} --to ID{for_database(row._state.db)}"
        )
    if chosen.ids is not None:
        there = {event_id for event_id, *_ in found}
        if lost := [event_id for event_id in chosen.ids if event_id not in there]:
            raise Refused(
                f"There is no event {row.topic}/{lost[0]} in the log: it has expired, or never was. Nothing was "
                "changed."
            )
        if early := [event_id for event_id, _, passed, waits in found if not (passed or waits)]:
            raise Refused(
                f"Consumer {row} has not handled {row.topic}/{early[0]} yet, so it comes anyway. Nothing was changed."
            )
    return [event_id for event_id, fits, passed, waits in found if fits and passed and not waits]


def _copy(using: str, row: models.Consumer, ids: list[int], error: str) -> sql.Rows:
    statement = SQL.replay.on(log=log_table(row.topic_id), topic_id=row.topic_id, ids=sql.literal(ids))
    return sql.fetch(using, statement, consumer_id=row.pk, error=error, fingerprint=alike(error))
