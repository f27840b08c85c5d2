"""Dedup keys whose window is over are deleted by whoever works anyway: the transfer."""

from django_events import sql

AT_ONCE = 5_000


def forget_expired(using: str) -> bool:
    """Delete some of them, in one small transaction; returns whether there may be more."""
    with sql.batch(using, (sql.statement("forget_expired"), {"limit": AT_ONCE})) as [rows]:
        return len(rows) == AT_ONCE
