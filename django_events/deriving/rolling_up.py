"""Folding ranges of events into the table of a roll-up, by one statement.

    RollUpFold(revenue).fold(subscription, match, after=100, upper=200, nested=False)   # into its table, by a worker
    fold_into(using, revenue, "a_table", log, match, after=100, upper=200)        # into any table of its columns

The statement finds the bucket, the groups and the numbers of each event, adds them up, and adds that to the rows of the
table. What it does to the table is the same in whatever ranges events come.
"""

import json
import logging
import re
from datetime import datetime
from functools import cache
from typing import NamedTuple

from django.db import DatabaseError, ProgrammingError

from django_events import declarations, models, sql
from django_events.consuming.handlers import FoldedRange
from django_events.consuming.missing import left_out, missing
from django_events.consuming.subscriptions import Subscription
from django_events.declarations import DeclaredRollUp
from django_events.declarations.declared_rollup import TIMES, UNTIL
from django_events.log.setbacks import LONGEST_ERROR
from django_events.statements import log_table

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

# What a measure of a kind is in one range, in one group of it, and in the group's row.
OF_KIND = {"sum": SQL.sum_of, "min": SQL.min_of, "max": SQL.max_of}
TOTAL_OF_KIND = {"sum": SQL.total_sum, "min": SQL.total_min, "max": SQL.total_max}
ADD_OF_KIND = {"sum": SQL.add_sum, "min": SQL.add_min, "max": SQL.add_max}

OTHER = "(other)"  # the group of what is beyond the limit
LONGEST, ROOM = 512, 600  # characters of a group; and of all groups of a row, for which an index has room
# Without a limit of time, because halving a range makes no single event quicker.
SETTINGS = {"statement_timeout": "0", "jit": "off", "work_mem": "64MB", **sql.SEES_ALL}
FILTERLESS = sql.all_of([])

# A Decimal is a text in JSON, so such a text is a number too. Its length keeps every sum within what a numeric holds.
NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$"
LONGEST_NUMBER = 400  # characters: all that a double can be has fewer
_LEAP = r"((19(7[26]|8[048]|9[26])|2([0-9](0[48]|[2468][048]|[13579][26])|[048]00))-02-29)"
_DAY = (
    r"((19[7-9][0-9]|2[0-9]{3})-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8])))"
)
OFFSET = r"(Z|[+-](0[0-9]|1[0-4])(:?[0-5][0-9])?)$"
HAS_OFFSET = rf":.*{OFFSET}"  # behind a time: what a day ends with looks the same
TIME = rf"^({_LEAP}|{_DAY})([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{{1,9}})?)?{OFFSET[:-1]}?)?$"
_KEYS = re.compile(r"\$((\.[A-Za-z_][A-Za-z0-9_]*)+)")


class FoldedInto(NamedTuple):
    """What a statement that folded says: the events of the range, those that were for the roll-up, and more."""

    seen: int
    matching: int
    first_at: datetime | None
    is_full: bool


class RollUpFold:
    """What a roll-up has instead of a handler, see `handlers.RangeFold`."""

    def __init__(self, declared: DeclaredRollUp) -> None:
        self.declared = declared
        self._known: dict[str, tuple[int, int]] = {}  # by database: the id of its row, and how many groups it may have

    def __call__(self, event: object) -> None:
        raise TypeError(f"Roll-up {self.declared} is no function: its events are folded in the database.")

    def fold(self, of: Subscription, match: sql.Statement, after: int, upper: int, *, nested: bool) -> FoldedRange:
        """The lock, and the statement behind it, travel in one message: what is known of the row is looked at later."""
        using = of.using
        settings, lock = sql.locally(sql.SEES_ALL if nested else SETTINGS), (SQL.lock, {"name": self.declared.name})
        if (known := self._known.get(using)) is None:
            known = self._row(using, sql.fetch(using, SQL.lock, name=self.declared.name))[:2]
        self._known.pop(using, None)  # until it has worked
        statement = fold_statement(
            self.declared,
            f"{models.RollUp.TABLE}{known[0]:d}",
            of.topic_id,
            match,
            after=after,
            upper=upper,
            most_groups=known[1],
        )
        _, rows, [done] = sql.fetch_each(using, settings, lock, (statement, {}))
        row_id, most_groups, full_since = self._row(using, rows)
        if row_id != known[0]:
            raise ProgrammingError(f"Roll-up {self.declared} was registered anew in this moment.")
        seen, matching, first_at, is_full = done
        if seen < upper - after:
            refuse_missing(using, of.topic, of.topic_id, seen, after, upper)
        if is_full and full_since is None:
            self._tell_full(of, most_groups)
        self._known[using] = row_id, most_groups
        return FoldedRange(matching, first_at)

    def _row(self, using: str, rows: sql.Rows) -> tuple[int, int, datetime | None]:
        """What the row of the roll-up says, if its table is what this code declares."""
        name = self.declared.name
        if not rows or json.loads(rows[0][1]) != self.declared.made_by:
            what = "is not registered" if not rows else "was made for another declaration"
            raise ProgrammingError(
                f"The table of roll-up {name!r} {what} in the database {using!r}. Run: manage.py migrate --database "
                f"{using}, or, if that says so: manage.py events rebuild {name}"
            )
        row_id, _, most_groups, full_since = rows[0]
        return row_id, most_groups, full_since

    def leave_out(self, of: Subscription, event_id: int, error: DatabaseError) -> None:
        note_left_out(of.using, self.declared.name, f"{of.topic}/{event_id}", error)

    def _tell_full(self, of: Subscription, most_groups: int) -> None:
        sql.fetch(of.using, SQL.note_full, name=self.declared.name)
        logger.warning(
            "Roll-up %s has %s groups, as many as it may: events of further ones are counted together, as %r.",
            self.declared.name,
            f"{most_groups:,}",
            OTHER,
            extra=of.fields,
        )


def fold_into(
    using: str,
    declared: DeclaredRollUp,
    table: str,
    topic_id: int,
    match: sql.Statement,
    *,
    after: int,
    upper: int,
    most_groups: int,
) -> FoldedInto:
    """Fold the events behind an id, up to another one, into a table that was made for the declaration.

    In the caller's transaction, which keeps others from folding into the table meanwhile. Where fewer events were seen
    than there are ids, `refuse_missing` says whether retention and compaction account for it.
    """
    statement = fold_statement(declared, table, topic_id, match, after=after, upper=upper, most_groups=most_groups)
    [row] = sql.fetch(using, statement)
    return FoldedInto(*row)


def fold_statement(
    declared: DeclaredRollUp,
    table: str,
    topic_id: int,
    match: sql.Statement,
    *,
    after: int,
    upper: int,
    most_groups: int,
) -> sql.Statement:
    """What folds a range of events into a table, see `FoldedInto` for its answer."""
    log, shape = log_table(topic_id), _shape(declared)
    read = SQL.read.on(
        log=log,
        topic_id=topic_id,
        after=after,
        upper=upper,
        match=match,
        texts=shape.texts,
        columns=shape.read,
    )
    seen = SQL.seen_by_groups
    if match != FILTERLESS:
        seen = SQL.seen_in_log.on(log=log, topic_id=topic_id, after=after, upper=upper)
    if not shape.groups:
        return SQL.fold_ungrouped.on(
            table=table,
            columns=shape.columns,
            read=read,
            aggregates=shape.aggregates,
            totals=shape.totals,
            updates=shape.updates,
            seen=seen,
        )
    return SQL.fold.on(
        table=table,
        columns=shape.columns,
        keys=shape.keys,
        read=read,
        aggregates=shape.aggregates,
        grouped_by=[1, *(("read", group) for group in shape.groups)],
        groups=[("g", group) for group in shape.groups],
        known=shape.known,
        beyond=shape.beyond,
        placed=shape.placed,
        totals=shape.totals,
        ordinals=[*range(1, len(shape.groups) + 2)],
        updates=shape.updates,
        seen=seen,
        most_groups=most_groups,
    )


def refuse_missing(using: str, topic: str, topic_id: int, seen: int, after: int, upper: int) -> None:
    """EventsMissing if retention and compaction don't account for all ids of a range that weren't seen.

    It looks anew. A range that looks otherwise now was changed in between: then nothing is settled either.
    """
    log = log_table(topic_id)
    present = SQL.present.on(log=log, topic_id=topic_id, after=after, upper=upper)
    [[there, behind, absent_until]] = sql.fetch(using, present)
    if there != seen:
        raise left_out(f"{topic}/{after + 1} or one up to {topic}/{upper}")
    absent_until = min(max(absent_until or 0, after), upper)
    if behind < upper - absent_until:
        lost = SQL.first_missing.on(log=log, topic_id=topic_id, after=absent_until, upper=upper)
        [[event_id]] = sql.fetch(using, lost)
        raise missing(f"Event {topic}/{event_id}")


class _Shape(NamedTuple):
    """The parts of the statement that follow from the declaration."""

    groups: list[str]
    keys: list[str]
    columns: list[str]
    texts: list[tuple[str, str] | sql.Statement]
    read: list[tuple[str, str] | sql.Statement]
    aggregates: list[tuple[str, str] | sql.Statement]
    totals: list[sql.Statement]
    updates: list[sql.Statement]
    placed: list[sql.Statement]
    known: sql.Statement
    beyond: sql.Statement


@cache
def _shape(declared: DeclaredRollUp) -> _Shape:
    groups = {f"g{n}": (name, source) for n, (name, source) in enumerate(declared.by)}
    paths = list(dict.fromkeys(path for _, _, path in declared.measures))
    numbers = {path: f"n{n}" for n, path in enumerate(paths)}
    measures = [(kind, name, f"m{n}", numbers[path]) for n, (kind, name, path) in enumerate(declared.measures)]
    in_value = declared.at not in TIMES
    timed = SQL.is_timed
    complete = sql.all_of([timed, *(SQL.is_number.on(number=number) for number in numbers.values())])
    every = sql.literal(f"{declared.every.total_seconds():.0f} seconds")
    time = [_text_of(declared.at, "at")] if in_value else []
    longest = longest_group(declared)
    return _Shape(
        groups=list(groups),
        keys=[name for name, _ in declared.by],
        columns=["count", "skipped", *(name for _, name, _, _ in measures)],
        texts=[
            ("e", "id"),
            ("e", "logged_at"),
            ("e", "published_at"),
            *time,
            *(_text_of(source, group) for group, (_, source) in groups.items()),
            *(_text_of(path, number) for path, number in numbers.items()),
        ],
        read=[
            ("found", "id"),
            ("found", "logged_at"),
            ("found", "published_at"),
            SQL.time_of_text.on(time=sql.literal(TIME), offset=sql.literal(HAS_OFFSET))
            if in_value
            else SQL.time_of_event.on(column=declared.at),
            *(SQL.group_of_text.on(as_name=group, longest=longest) for group in groups),
            *(
                SQL.number_of_text.on(as_name=number, number=sql.literal(NUMBER), longest=LONGEST_NUMBER)
                for number in numbers.values()
            ),
        ],
        aggregates=[
            SQL.bucket_of_untimed.on(every=every) if in_value else SQL.bucket.on(every=every),
            *(("read", group) for group in groups),
            SQL.counts.on(is_timed=timed, is_complete=complete),
            *(OF_KIND[kind].on(number=number, as_name=column, is_timed=timed) for kind, _, column, number in measures),
        ],
        totals=[
            SQL.total_counts,
            *(TOTAL_OF_KIND[kind].on(name=column) for kind, _, column, _ in measures),
        ],
        updates=[
            SQL.add_counts,
            *(ADD_OF_KIND[kind].on(name=name) for kind, name, _, _ in measures),
        ],
        placed=[SQL.place.on(group=group, beyond=sql.literal(OTHER)) for group in groups],
        known=sql.all_of([SQL.same_group.on(column=name, group=group) for group, (name, _) in groups.items()]),
        beyond=sql.all_of([SQL.same_group.on(column=group, group=group) for group in groups]),
    )


def _text_of(source: str, as_name: str) -> sql.Statement:
    """The expression of what a declaration says by a jsonpath, "type", "key", or "key until :"."""
    if source in ("type", "key"):
        return SQL.text_of_column.on(column=source, as_name=as_name)
    if source.startswith(UNTIL):
        return SQL.text_before.on(until=sql.literal(source.removeprefix(UNTIL)), as_name=as_name)
    if keys := _KEYS.fullmatch(source.strip()):
        plain = sql.literal(keys[1][1:].split("."))
        return SQL.text_of_keys.on(keys=plain, path=sql.literal(source), as_name=as_name)
    return SQL.text_of_path.on(path=sql.literal(source), as_name=as_name)


def note_left_out(using: str, name: str, address: str, error: DatabaseError) -> None:
    """Count an event that can't be folded, in the row of the roll-up."""
    sql.fetch(using, SQL.note_left_out, name=name, error=f"{address}: {sql.said(error)}"[:LONGEST_ERROR])


def longest_group(declared: declarations.DeclaredRollUp) -> int:
    """How many characters of the text of a group are kept."""
    return min(LONGEST, ROOM // max(len(declared.by), 1))


def measured_paths(declared: declarations.DeclaredRollUp) -> list[str]:
    """The jsonpaths of a declaration, which PostgreSQL has to be able to use."""
    paths = [source for _, source in declared.by if source not in ("type", "key") and not source.startswith(UNTIL)]
    times = [] if declared.at in TIMES else [declared.at]
    return list(dict.fromkeys([*times, *paths, *(path for _, _, path in declared.measures)]))
