"""What an inbox is at, in a word, for the admin, `events bridges` and the problems alike."""

from datetime import datetime, timedelta

from django_events import declarations, models

UNSERVED = timedelta(seconds=60)  # without a word of a worker


def state_of(row: models.Inbox, now: datetime) -> str:
    """`undeclared`, `paused`, `unserved`, `failing`, `waiting`, `not begun` or `serving`, by the clock of the database.

    What a worker has written down says nothing any more when no worker is there.
    """
    sources = {one.name: one.source for one in declarations.inboxes}
    if row.name not in sources:
        return "undeclared"
    if row.paused_at is not None:
        return "paused"
    if row.served_at is None:
        return "not begun"
    if now - row.served_at > UNSERVED:
        return "unserved"
    if row.failing_since is not None:
        return "failing"
    if row.waiting_since is not None:
        return "waiting"
    # A queue has no places, so an inbox from one has no position.
    is_begun = row.position is not None or getattr(sources[row.name], "is_queue", False)
    return "serving" if is_begun else "not begun"
