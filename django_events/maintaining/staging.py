"""What tasks of Spark staged and no driver published is deleted by maintenance."""

from datetime import timedelta

from django_events import sql

KEPT = timedelta(days=7)
AT_ONCE = 5_000


def forget_staged(using: str) -> int:
    """Delete some of it, in one small transaction; returns how many: 0 when nothing is left to delete."""
    with sql.batch(using, (sql.statement("forget_staged"), {"age": KEPT, "limit": AT_ONCE}), **sql.UNHURRIED) as [rows]:
        return len(rows)
