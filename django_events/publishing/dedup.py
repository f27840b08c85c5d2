"""Dedup keys whose window is over are deleted by whoever works anyway: the transfer."""

from django_events import sql

AT_ONCE = 5_000


def forget_expired(using: str) -> int:
    """Delete them, in small transactions; returns how many they were."""
    total = 0
    while True:
        with sql.batch(using, (sql.statement("forget_expired"), {"limit": AT_ONCE})) as [rows]:
            total += len(rows)
        if len(rows) < AT_ONCE:
            return total
