"""Small batches: the few events of a topic that a publisher has named, moved by one prepared statement.

    batch = SmallBatches(session, known).move(topic_id, filenode="16412")

They go behind the last event that this transfer knows. Where the log, the buffer or the topic is not as this transfer
left it, the statement moves nothing, and a full look finds out what has happened.
"""

from collections.abc import Mapping
from typing import NamedTuple

from django.db import DatabaseError

from django_events import sql
from django_events.log import channel, segments
from django_events.log.ends import Known, Moved
from django_events.sql.prepared import PreparedSession

SQL = sql.beside(__name__)

MOST = 100  # events: more of them are moved faster by the statement for large batches


class SmallBatch(NamedTuple):
    """What was moved, up to which ticket; nothing where the list is empty."""

    moved: list[Moved]
    upper: int = 0

    @property
    def events(self) -> int:
        return sum(one.events for one in self.moved)


class SmallBatches:
    """The small batches of one transfer, by what it knows of its topics."""

    def __init__(self, session: PreparedSession, known: Mapping[int, Known]) -> None:
        self._session = session
        self._known = known

    def move(self, topic_id: int, *, filenode: str) -> SmallBatch:
        """Move the first events of a topic, at most MOST.

        `filenode` is the file of the buffer for which the marks hold. After an error of the log nothing is moved.
        """
        known = self._known.get(topic_id)
        if known is None or known.incarnation is None or (segment := self._segment(topic_id, known)) is None:
            return SmallBatch([])
        try:
            rows = self._session.ask(
                SQL.move.on(topic_id=topic_id, segment=segment.table),
                mark=known.mark,
                most=MOST,
                last_id=known.last_id,
                incarnation=known.incarnation,
                partitions=known.partitions,
                filenode=filenode,
                number_partitions=list(known.numbers),
                numbers=list(known.numbers.values()),
                channel=channel.LOG,
                longest=channel.LONGEST_PAYLOAD,
            )
        except DatabaseError as error:
            if sql.kind_of(error).of_server:
                raise
            known.segment = None
            return SmallBatch([])
        return SmallBatch([Moved(*row[:5]) for row in rows], max((row[5] for row in rows), default=0))

    def _segment(self, topic_id: int, known: Known) -> segments.Segment | None:
        """The segment in which the log ends, if it has room for a batch."""
        if known.segment is None or not known.segment.first <= known.last_id < known.segment.end:
            known.segment = segments.holding(self._session.using, topic_id, known.last_id)
        if known.segment is None or known.last_id + MOST >= known.segment.end:
            return None
        return known.segment
