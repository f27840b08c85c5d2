"""Old buckets of roll-ups go, where they are declared with a retention; and groups that have none any more."""

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta

from django_events import models, sql

SQL = sql.beside(__name__)

AT_ONCE = 5_000


def forget_old_buckets(using: str, *, seconds: float, at_once: int = AT_ONCE) -> int:
    """Delete buckets that are older than their roll-ups keep, for `seconds` at most; returns how many rows.

    Repeating it goes on. A group without a bucket makes room for another one.
    """
    deadline, forgotten = time.monotonic() + seconds, 0
    for row in models.RollUp.objects.using(using).exclude(retention=None).order_by("pk"):
        gone, any_gone = at_once, False
        while gone == at_once and time.monotonic() < deadline:
            question = (SQL.forget_buckets.on(table=row.table), {"age": row.retention, "limit": at_once})
            with sql.batch(using, **sql.UNHURRIED) as _:
                gone = len(sql.fetch_each(using, question)[0])
            forgotten += gone
            any_gone |= gone > 0
        groups = list(row.made_by["by"])
        if any_gone and groups:
            _forget_groups(using, row, groups)
    return forgotten


def forget_while_filling(using: str, table: str, *, retention: timedelta, groups: Sequence[str]) -> None:
    """Have a table that is filled anew keep no longer what the served one has lost by now, so that groups have room.

    In the caller's transaction, which alone folds into the table.
    """
    gone, any_gone = AT_ONCE, False
    while gone == AT_ONCE:
        gone = len(sql.fetch(using, SQL.forget_buckets.on(table=table), age=retention, limit=AT_ONCE))
        any_gone |= gone > 0
    if any_gone and groups:
        sql.fetch(using, SQL.forget_groups.on(table=table, same=_same(groups)))


def _same(groups: Iterable[str]) -> sql.Statement:
    return sql.all_of([SQL.is_same_group.on(column=name) for name in groups])


def _forget_groups(using: str, row: models.RollUp, groups: list[str]) -> None:
    """Under the lock that folding takes: meanwhile no event comes for such a group."""
    with sql.batch(using, **sql.UNHURRIED):
        if sql.fetch(using, SQL.lock, name=row.name):
            sql.fetch(using, SQL.forget_groups.on(table=row.table, same=_same(groups)))
            sql.fetch(using, SQL.note_room, name=row.name)
