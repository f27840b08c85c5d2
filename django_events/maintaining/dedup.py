"""Dedup keys whose window is over are deleted by maintenance."""

from django_events import sql

AT_ONCE = 5_000


def forget_expired(using: str) -> int:
    """Delete some of them, in one small transaction; returns how many: 0 when nothing is left to delete."""
    with sql.batch(using, (sql.statement("forget_expired"), {"limit": AT_ONCE}), **sql.UNHURRIED) as [rows]:
        return len(rows)
