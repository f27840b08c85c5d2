"""What tasks of Spark staged and no driver published is deleted by whoever works anyway: the transfer."""

from datetime import timedelta

from django_events import sql

KEPT = timedelta(days=7)
AT_ONCE = 5_000


def forget_staged(using: str) -> bool:
    """Delete some of it, in one small transaction; returns whether there may be more."""
    with sql.batch(using, (sql.statement("forget_staged"), {"age": KEPT, "limit": AT_ONCE})) as [rows]:
        return len(rows) == AT_ONCE
