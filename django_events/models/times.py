"""Times in a log: they never decrease along ids, so halving finds the first event at or after a moment.

first_since("default", topic_id, moment, first=1, end=1_043)  # 871
"""

from datetime import datetime

from django_events import sql
from django_events.exceptions import Invalid
from django_events.statements import log_table


def first_since(using: str, topic_id: int, moment: datetime, *, first: int, end: int) -> int:
    """The id of the first event from `first` on that was logged at a moment or after it; `end` if there is none."""
    refuse_naive(moment)
    log, found = log_table(topic_id), end
    while first < end:
        middle = (first + end) // 2
        statement = sql.shared.logged_before.on(log=log, topic_id=topic_id, id=middle)
        rows = sql.fetch(using, statement, moment=moment)
        if not rows:  # removed by retention or compaction, also while this looks
            behind = sql.shared.next_logged_before.on(log=log, topic_id=topic_id, id=middle)
            rows = sql.fetch(using, behind, moment=moment)
        if rows and not rows[0][0]:
            end, found = middle, rows[0][1]
        else:
            first = middle + 1
    return found


def refuse_naive(moment: datetime) -> None:
    if moment.tzinfo is None:
        raise Invalid(f"{moment!r} has no time zone, so it is not clear which moment is meant.")
