"""Reading the log as it grows: a micro-batch is the range of each topic from one offset to another.

Ids are dense and in commit order, so that nothing is ever added below an offset that was read. What is checkpointed
is, of each topic, the next offset and the incarnation: a topic that was made anew has another incarnation, and its ids
begin at 1 again. Where a batch doesn't begin at the end of the batch before, the checkpoint says where it begins, so
that Spark reads the same events when it runs the batch again.
"""

import logging
import time
from collections.abc import Iterator
from typing import NotRequired, TypedDict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from django_events.exceptions import EventsMissing
from django_events.reading import topics
from django_events.reading.dsn import KeptConnection
from django_events.reading.following import Follower
from django_events.reading.ranges import Range, split
from django_events.reading.topics import TopicLog
from django_events.spark.options import ReadOptions
from django_events.spark.reading.batch import read
from django_events.spark.reading.limits import BatchSizes, shared

logger = logging.getLogger("django_events.spark")

PAUSE = 0.5  # seconds until the driver looks again at logs that had no new events


class Checkpointed(TypedDict):
    """How far a query is in one topic: the next offset, and the incarnation that it belongs to.

    `first` is where the batch that ends here began, if the batch before ended elsewhere: in the first batch, in a topic
    that is new to the query, and after a loss that `failOnDataLoss=false` allowed. `left` is set while the topic is
    gone or not subscribed to, and that option allowed it: when the topic comes back, the query goes on at `offset`.
    """

    offset: int
    incarnation: str
    first: NotRequired[int]
    left: NotRequired[bool]


Offsets = dict[str, Checkpointed]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver plans micro-batches of ranges that don't overlap; the executors read the ranges."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._until: dict[str, int] | None = None  # the ends of topics, for a query with availableNow
        self._session = KeptConnection(options.dsn)
        self._follower = Follower(options.consumer) if options.consumer else None

    def initialOffset(self) -> Offsets:  # noqa: N802  # Spark's names, here and below
        start, fail = self.options.start, self.options.fail_on_data_loss
        self._session.run(self.options.filter.refuse_unusable)
        found = self._found(fail=True)  # nothing was read yet, so a missing topic is a wrong name and no loss
        start.refuse_others(found)
        begins = {topic.name: start.of(topic, fail_on_data_loss=fail) for topic in found}
        return {topic.name: _ended(topic, begins[topic.name], begins[topic.name], None) for topic in found}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One limit is all that Spark takes: where both are said, this reader heeds that of bytes beside its own."""
        events, size = self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger
        if events is not None:
            return ReadMaxRows(events)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = {topic.name: topic.end for topic in self._found()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Where the next micro-batch ends: at the ends of the topics, or after each topic's share of the limit."""
        found = self._found()
        if self._until is None and {t.name: t.end for t in found} == _offsets_in_use(start):
            time.sleep(PAUSE)  # without it Spark would ask again at once, and keep the server busy
            found = self._found()
        left = self._left(start, found)
        begins = {topic.name: self._begin(topic, start.get(topic.name)) for topic in found}
        if follower := self._follower:
            offsets = {topic.id: begins[topic.name] for topic in found}
            self._session.run(lambda connection: follower.tell(connection, offsets))
        ends = {topic.name: self._end(topic, begins[topic.name]) for topic in found}
        if isinstance(limit, ReadMaxRows):
            ends = shared(begins, ends, limit.max_rows)
        if not isinstance(limit, ReadAllAvailable) and (size := self.options.max_bytes_per_trigger) is not None:
            whole = [Range(topic.name, topic.id, begins[topic.name], ends[topic.name]) for topic in found]
            ends |= BatchSizes(self._session, self.options.plain_reader()).within(whole, size)
        return left | {t.name: _ended(t, begins[t.name], ends[t.name], start.get(t.name)) for t in found}

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        return {topic.name: {"offset": topic.end, "incarnation": topic.incarnation} for topic in self._found()}

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        return [InputPartition(part) for part in split(self.planned(start, end), least=self.options.min_partitions)]

    def planned(self, start: Offsets, end: Offsets) -> list[Range]:
        """The range of each topic in a micro-batch, which Spark may have planned before a restart."""
        found = {topic.name: topic for topic in self._found()}
        whole = []
        for name, until in end.items():
            if "left" in until or until == start.get(name):
                continue
            topic = found.get(name)
            if topic is None or topic.incarnation != until["incarnation"]:
                self._lost(f"Topic {name!r} is gone, or was made anew, before offset {until['offset']} of it was read.")
            elif until["offset"] > topic.end:
                self._lost(f"The log of topic {name!r} ends at {topic.end - 1}, before offset {until['offset']}.")
            else:
                begin = self._begin(topic, _began(start.get(name), until))
                whole.append(Range(name, topic.id, begin, max(begin, until["offset"])))
        return whole

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self.options, partition)

    def commit(self, end: Offsets) -> None:
        if follower := self._follower:
            # An offset above the log's end isn't stored: the database is older than the checkpoint, and the next batch
            # was planned from the log's end already.
            offsets = {t.id: end[t.name]["offset"] for t in self._found() if _is_within(t, end.get(t.name))}
            self._session.run(lambda connection: follower.tell(connection, offsets))

    def stop(self) -> None:
        self._session.close()

    def _found(self, *, fail: bool | None = None) -> list[TopicLog]:
        subscription, fail = self.options.subscription, self.options.fail_on_data_loss if fail is None else fail
        return self._session.run(lambda connection: topics.find(connection, subscription, fail=fail))

    def _left(self, start: Offsets, found: list[TopicLog]) -> Offsets:
        """The checkpoints of topics that are missing, as left; EventsMissing for one that the last batch still had."""
        missing = sorted(start.keys() - {topic.name for topic in found})
        for name in missing:
            if "left" not in start[name]:
                self._lost(f"Topic {name!r}, which this query was reading, is gone, or not subscribed to any more.")
        return {name: {**start[name], "left": True} for name in missing}

    def _begin(self, topic: TopicLog, known: Checkpointed | None) -> int:
        """The offset at which the next batch begins in a topic: the oldest event if the topic is new to the query."""
        if known is None:
            return topic.first
        if known["incarnation"] != topic.incarnation:
            self._lost(f"Topic {topic.name!r} was made anew: its offsets began again since this query read it.")
            return topic.first
        if known["offset"] < topic.first:
            self._lost(
                f"Topic {topic.name!r} begins at {topic.first}: the events from {known['offset']} on have "
                "expired before this query read them."
            )
            return topic.first
        if known["offset"] > topic.end:
            self._lost(
                f"Topic {topic.name!r} ends at {topic.end - 1}, and this query has read up to {known['offset'] - 1}: "
                "the database is older than the checkpoint."
            )
            return topic.end
        return known["offset"]

    def _end(self, topic: TopicLog, begin: int) -> int:
        if self._until is None:
            return topic.end
        return max(begin, min(topic.end, self._until.get(topic.name, begin)))

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise EventsMissing(
                f"{what} Go on with what is there by failOnDataLoss=false, or begin again with a new checkpoint."
            )
        logger.warning(what)


def _began(known: Checkpointed | None, until: Checkpointed) -> Checkpointed | None:
    """The checkpoint at which a batch begins in one topic.

    When Spark runs the first batch again, it asks for the initial offsets anew, and they may have moved: what `until`
    says counts.
    """
    return {"offset": until["first"], "incarnation": until["incarnation"]} if "first" in until else known


def _ended(topic: TopicLog, begin: int, end: int, known: Checkpointed | None) -> Checkpointed:
    """The checkpoint after a batch in one topic; `known` is the one before it."""
    goes_on = known is not None and known["incarnation"] == topic.incarnation and known["offset"] == begin
    if known is not None and goes_on and end == begin and "left" not in known:
        return known  # unchanged: for another checkpoint Spark would run an empty batch
    if known is not None and goes_on and known.get("first") != begin:
        return {"offset": end, "incarnation": topic.incarnation}
    return {"offset": end, "incarnation": topic.incarnation, "first": begin}


def _offsets_in_use(start: Offsets) -> dict[str, int]:
    return {name: known["offset"] for name, known in start.items() if "left" not in known}


def _is_within(topic: TopicLog, known: Checkpointed | None) -> bool:
    return known is not None and known["incarnation"] == topic.incarnation and known["offset"] <= topic.end
