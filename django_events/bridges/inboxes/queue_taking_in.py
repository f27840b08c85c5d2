"""What an inbox writes of a queue's messages: their dedup keys, the events of those that are new, and how many.

    known = taken_already(using, row, keys)   # of what comes again: it isn't transformed anew
    intake = take_in_queued(using, row, topic, queued)
    reader.acknowledge(…)                # now they may be forgotten

All is in one transaction. A message that comes again finds its key taken, and nothing is published. While another
transaction takes the same key, this one waits for its end.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django_events import sql, telemetry
from django_events.bridges.inboxes.taking_in import UNLIMITED, InboxRow
from django_events.declarations import DeclaredTopic
from django_events.exceptions import NotReady
from django_events.publishing.encoding import Encoded
from django_events.publishing.storing import explained, store, take_dedup_keys

SQL = sql.beside(__name__)


class QueuedEvent(NamedTuple):
    """What a message becomes."""

    dedup_key: str | None
    event: Encoded | None  # None if it is left out
    unread: str = ""  # the address of a message whose event says that it can't be read


@dataclass(kw_only=True)
class QueueIntake:
    """What was written."""

    taken: int
    left_out: int
    unread: list[str]


def last_word(using: str, row: InboxRow) -> tuple[datetime | None, str]:
    """When any worker of the inbox wrote down that it serves it, and what it then found wrong."""
    for served_at, error in sql.fetch(using, SQL.last_word, inbox_id=row.id):
        return served_at, error
    return None, ""


def taken_already(using: str, row: InboxRow, keys: Collection[str]) -> set[str]:
    """Which of these dedup keys are taken, as far as is committed: what has one of them is an event already."""
    if not keys:
        return set()
    return {key for (key,) in sql.fetch(using, SQL.taken, topic_id=row.topic_id, keys=list(keys))}


def take_in_queued(
    using: str,
    row: InboxRow,
    topic: DeclaredTopic,
    queued: Sequence[QueuedEvent],
    *,
    window: timedelta,
    lag: int | None,
    is_well: bool,
) -> QueueIntake:
    """Publish the events of messages that did not come before; returns what was written.

    What held the inbox up is forgotten if it `is_well`.
    """
    events = sum(one.event is not None for one in queued)
    with telemetry.publishing(topic.name, events=events), explained(using, topic), sql.committed(using, **UNLIMITED):
        keys = {index: one.dedup_key for index, one in enumerate(queued) if one.dedup_key is not None}
        repeated = take_dedup_keys(using, topic, keys, dict.fromkeys(keys, window))
        new = [one for index, one in enumerate(queued) if index not in repeated]
        published = [one.event for one in new if one.event is not None]
        dropped = store(using, topic, published) if published else ()  # by dedup keys that transform gave them
        unread = [one.unread for one in new if one.unread]
        taken = len(published) - len(dropped) - len(unread)
        intake = QueueIntake(taken=taken, left_out=len(new) - len(unread) - taken, unread=unread)
        noted = sql.fetch(
            using,
            SQL.count,
            inbox_id=row.id,
            generation=row.generation,
            taken=intake.taken,
            left_out=intake.left_out,
            unreadable=len(unread),
            lag=lag,
            is_well=is_well,
        )
        if not noted:
            raise NotReady("The inbox was paused or removed meanwhile. Nothing was taken in.")
    return intake
