"""What a process leaves alone for a while because it can't be served: why, and when it is tried again.

    setbacks = TopicSetbacks(using)
    setbacks.note(topic_id, name, error, told=False)    # what the database said; whether the topic's row says so
    if setbacks.rest(topic_id): ...             # seconds until its time has come
    setbacks.over([topic_id])                   # it was moved
    setbacks.keep(topic_ids)                    # of others nothing waits: another transfer moved them

Others go on meanwhile. What the error said is written into the row of the topic, or
of the consumer, for status, doctor and admin.
"""

import logging
import threading
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from django.db import DatabaseError, connections

from django_events import sql
from django_events.exceptions import EventsMissing
from django_events.phrases import duration

logger = logging.getLogger("django_events.transfer")
SQL = sql.beside(__name__)

FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds
MOST_DOUBLINGS = 10  # more than enough for the longest
LONGEST_ERROR = 1_000
AT_MOST = duration(timedelta(seconds=LONGEST_REST))
# In the place of an SQLSTATE: no row of the topic's head, rows that a policy hides, events that are missing.
HEADLESS, HIDDEN, MISSING = "head", "rls", "lost"

Failing = DatabaseError | EventsMissing


def rest_after(times: int) -> float:
    """For how long to leave alone what failed so many times, in seconds."""
    return min(FIRST_REST * 2.0 ** min(times - 1, MOST_DOUBLINGS), LONGEST_REST)


def code_of(error: Failing) -> str:
    """What a row has as the kind of its failure: an SQLSTATE, or a word where that would say too little."""
    if isinstance(error, EventsMissing):
        return MISSING
    return HIDDEN if sql.kind_of(error) is sql.ErrorKind.ROWS_HIDDEN else sql.state(error) or ""


@dataclass(slots=True)
class Setback:
    """Something that can't be served: what the database said last, how often by now, and when it is tried again."""

    name: str
    said: str
    error: Failing
    times: int
    again_at: float


class Setbacks:
    """Those of one process, each by the number of what is tried. They outlive connections, and threads share them."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._of: dict[int, Setback] = {}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Setback]:
        """One for each name, in their order."""
        with self._lock:
            found = {one.name: one for one in self._of.values()}
        return iter([found[name] for name in sorted(found)])

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, number: int) -> bool:
        return number in self._of

    def rest(self, number: int) -> float:
        """For how many seconds something is not to be tried yet."""
        found = self._of.get(number)
        return 0.0 if found is None else max(found.again_at - time.monotonic(), 0.0)

    def raise_first(self) -> None:
        """For callers who are to be told by the database's own error."""
        for setback in self:
            raise setback.error

    def _noted(self, name: str, numbers: Iterable[int], error: Failing) -> bool:
        """Returns whether the reason is a new one, which has to be said."""
        said, now = sql.said(error), time.monotonic()
        with self._lock:
            before = {one.said for one in self._of.values() if one.name == name}
            for number in numbers:
                times = self._of[number].times + 1 if number in self._of else 1
                self._of[number] = Setback(name, said, error, times, now + rest_after(times))
        return said not in before

    def _ended(self, numbers: Iterable[int]) -> int:
        """How often these were tried, at most; 0 if none of them was set aside."""
        with self._lock:
            return max((one.times for number in numbers if (one := self._of.pop(number, None))), default=0)

    def _write(self, question: sql.Question) -> str:
        """For others to see. Returns why it can't be written down, if so: the log has it all the same."""
        if connections[self.using].in_atomic_block:  # of a caller who is told
            return ""
        try:
            with sql.batch(self.using, question, lock_timeout="200ms"):
                pass
        except DatabaseError as failed:
            if sql.kind_of(failed) is sql.ErrorKind.LOST:
                raise
            return sql.said(failed)
        return ""


class TopicSetbacks(Setbacks):
    """The topics that one transfer can't move."""

    def forget(self) -> None:
        """They may be other topics by now."""
        self._of.clear()

    def keep(self, waiting: Container[int]) -> None:
        """Forget topics that have nothing to move any more: another transfer could."""
        self._of = {topic_id: found for topic_id, found in self._of.items() if topic_id in waiting}

    def note(self, topic_id: int, topic: str, error: DatabaseError, *, told: bool) -> None:
        """A topic could not be moved, by itself. It is said once, and again if the reason is another one.

        Its row is `told` if it said that it fails. Otherwise another transfer has moved it, and it fails again.
        """
        self._note(topic_id, topic, code_of(error), error, told=told)

    def note_headless(self, topic_id: int, topic: str, *, told: bool) -> None:
        """A topic has lost its row that is locked for each batch."""
        error = DatabaseError("It has no row in django_events_topichead.")
        self._note(topic_id, topic, HEADLESS, error, told=told)

    def over(self, topic_ids: Iterable[int]) -> None:
        """These topics were moved."""
        for topic_id in list(topic_ids):
            if found := self._of.get(topic_id):
                about = {"database": self.using, "topic": found.name}
                logger.info(
                    "Topic %r is moved again, after %d tries.", found.name, self._ended([topic_id]), extra=about
                )
            self._tell(topic_id, "", "")

    def _note(self, topic_id: int, topic: str, failure: str, error: DatabaseError, *, told: bool) -> None:
        said = sql.said(error)
        if self._noted(topic, [topic_id], error):
            logger.error(
                "Topic %r can't be moved, others are. It is tried again, after %s at most. %s",
                topic,
                AT_MOST,
                said,
                extra={"database": self.using, "topic": topic},
            )
            told = False
        if not told:
            self._tell(topic_id, failure, said)

    def _tell(self, topic_id: int, failure: str, error: str) -> None:
        question = (
            SQL.note_failure,
            {"topic_id": topic_id, "failure": failure, "error": error[:LONGEST_ERROR]},
        )
        if failed := self._write(question):
            logger.warning("That can't be written into the row of the topic. %s", failed)
