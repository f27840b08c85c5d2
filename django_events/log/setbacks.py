"""Topics whose log takes no events now: why, and when it is tried again. Others go on meanwhile.

    setbacks = Setbacks(using)
    setbacks.note(topic_id, name, error, told=False)    # what the database said; whether the topic's row says so
    if setbacks.rests(topic_id): ...            # until its time has come
    setbacks.over([topic_id])                   # it was moved
    setbacks.keep(topic_ids)                    # of others nothing waits: another transfer moved them

What an error means is judged here and nowhere else. It is written into the topic's row, for status, doctor and admin.
"""

import logging
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from django.db import DatabaseError, connections

from django_events import sql
from django_events.phrases import duration

logger = logging.getLogger("django_events.transfer")

FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds
MOST_DOUBLINGS = 10  # more than enough for the longest
LONGEST_ERROR = 1_000
HEADLESS = "head"  # in the place of an SQLSTATE: no row of the topic's head


def rest_after(times: int) -> float:
    """For how long to leave alone what failed so many times, in seconds."""
    return min(FIRST_REST * 2.0 ** min(times - 1, MOST_DOUBLINGS), LONGEST_REST)


class Cause(StrEnum):
    """What it means that a batch failed."""

    EVERYBODYS = "the connection or the server: nothing to do with a topic"
    LOCKED = "a lock on a log was not to be had in time"
    CROWDED = "more than the server has memory for at once, of locks for example"
    NO_SEGMENT = "no segment of a log is for these ids"
    REFUSED = "a log is not as it was made, a rule refuses an event, or a filter fails on one"


def cause_of(error: DatabaseError) -> Cause:
    """The one place that judges an error of a batch, or of a consumer."""
    state = sql.state(error)
    if state == sql.LOCK_NOT_AVAILABLE:
        return Cause.LOCKED
    if state == sql.OUT_OF_MEMORY:
        return Cause.CROWDED
    if sql.has_no_segment(error):
        return Cause.NO_SEGMENT
    if state == sql.DISK_FULL:  # of the one tablespace that a log is in, perhaps
        return Cause.REFUSED
    return Cause.EVERYBODYS if sql.passes_by_itself(error) or state == sql.READ_ONLY else Cause.REFUSED


@dataclass(slots=True)
class Setback:
    """A topic that can't be moved: what the database said last, how often by now, and when it is tried again."""

    topic: str
    state: str
    said: str
    error: DatabaseError | None
    times: int = 1
    again_at: float = 0.0


class Setbacks:
    """Those of one transfer. They outlive its connection."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._of: dict[int, Setback] = {}

    def __iter__(self) -> Iterator[Setback]:
        return iter(self._of.values())

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._of

    def forget(self) -> None:
        """They may be other topics by now."""
        self._of.clear()

    def rests(self, topic_id: int) -> bool:
        """Whether a topic is not to be tried yet."""
        found = self._of.get(topic_id)
        return found is not None and time.monotonic() < found.again_at

    def keep(self, waiting: Container[int]) -> None:
        """Forget topics that have nothing to move any more: another transfer could."""
        self._of = {topic_id: found for topic_id, found in self._of.items() if topic_id in waiting}

    def note(self, topic_id: int, topic: str, error: DatabaseError, *, told: bool) -> None:
        """A topic could not be moved, by itself. It is said once, and again if the reason is another one.

        Its row is `told` if it said that it fails. Otherwise another transfer has moved it, and it fails again.
        """
        self._note(topic_id, Setback(topic, sql.state(error) or "", sql.said(error), error), told=told)

    def note_headless(self, topic_id: int, topic: str, *, told: bool) -> None:
        """A topic has lost its row that is locked for each batch."""
        self._note(topic_id, Setback(topic, HEADLESS, "It has no row in django_events_topichead.", None), told=told)

    def over(self, topic_ids: Iterable[int]) -> None:
        """These topics were moved."""
        for topic_id in list(topic_ids):
            if found := self._of.pop(topic_id, None):
                logger.info("Topic %r is moved again, after %d tries.", found.topic, found.times)
            self._write(topic_id, "", "")

    def _note(self, topic_id: int, new: Setback, *, told: bool) -> None:
        before = self._of.get(topic_id)
        if before is not None:
            new.times = before.times + 1
        new.again_at = time.monotonic() + rest_after(new.times)
        self._of[topic_id] = new
        if before is None or before.said != new.said:
            logger.error(
                "Topic %r can't be moved, others are. It is tried again, after %s at most. %s",
                new.topic,
                duration(timedelta(seconds=LONGEST_REST)),
                new.said,
            )
            told = False
        if not told:
            self._write(topic_id, new.state, new.said)

    def _write(self, topic_id: int, failure: str, error: str) -> None:
        """For others to see; where that can't be written down, the log has it all the same."""
        if connections[self.using].in_atomic_block:  # of a caller who is told
            return
        question = (
            sql.statement("note_failure"),
            {"topic_id": topic_id, "failure": failure, "error": error[:LONGEST_ERROR]},
        )
        try:
            with sql.batch(self.using, question, lock_timeout="200ms"):
                pass
        except DatabaseError as failed:
            if sql.is_lost(failed):
                raise
            logger.warning("That can't be written into the row of the topic. %s", sql.said(failed))
