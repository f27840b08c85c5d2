"""What an inbox is at, in a word, for the admin, `events bridges` and the problems alike."""

from datetime import datetime, timedelta

from django_events import declarations, models

UNSERVED = timedelta(seconds=60)  # without a word of a worker


def state_of(row: models.Inbox, now: datetime) -> str:
    """`undeclared`, `paused`, `unserved`, `failing`, `not begun` or `serving`, by the clock of the database.

    What a worker has written down says nothing any more when no worker is there.
    """
    if row.name not in {one.name for one in declarations.inboxes}:
        return "undeclared"
    if row.paused_at is not None:
        return "paused"
    if row.served_at is None:
        return "not begun"
    if now - row.served_at > UNSERVED:
        return "unserved"
    if row.failing_since is not None:
        return "failing"
    return "not begun" if row.position is None else "serving"
