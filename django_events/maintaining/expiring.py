"""Retention beside consumers: drops segments that no consumer needs, and with keep_unread=False unread ones too.

    expire(using, topic)      # drops what is older or more than the topic keeps, oldest first

A consumer keeps what it has not handled, paused or not, until it is unregistered; unless the topic is declared with
keep_unread=False, see drop_unread.py.
"""

import time
from dataclasses import dataclass

from django.db import DatabaseError, OperationalError

from django_events import models, sql
from django_events.log import retention
from django_events.log.retention import Outlived, Paused
from django_events.maintaining.drop_unread import LogLocked, NotNow, leave_behind
from django_events.sql.blocking import blocker_of

TRIES, PAUSE = 5, 0.1  # a reader of the log is done soon


@dataclass
class Expired:
    """What retention removed from a topic's log, and what keeps it from removing more, if anything does."""

    segments: int = 0
    events: int = 0
    bytes: int = 0
    kept_for: str | None = None
    waits_for: str | None = None

    def add(self, old: Outlived) -> None:
        """One more segment is gone."""
        self.segments += 1
        self.events += old.events
        self.bytes += old.bytes


def expire(using: str, topic: models.Topic, *, seconds: float = 10.0) -> Expired:
    """Drop the segments that are more than the topic keeps, each in a transaction of its own, for `seconds` at most.

    Repeating it goes on where it stopped. Publishing never waits for it; the transfer of this topic waits some
    milliseconds.
    """
    done, tries, deadline = Expired(), 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if not _drop_oldest(using, topic.pk, done, deadline):
                break
            tries = 0
        except Paused as paused:
            done.waits_for = str(paused)
            break
        except (OperationalError, LogLocked) as error:
            if isinstance(error, OperationalError) and sql.kind_of(error) is not sql.ErrorKind.LOCKED:
                raise
            tries += 1
            if tries == TRIES:
                done.waits_for = a_lock(error)
                break
            time.sleep(PAUSE)
    return done


def a_lock(error: DatabaseError | LogLocked) -> str:
    """What maintenance waits for where a lock was not granted."""
    return f"a lock of {error if isinstance(error, LogLocked) else blocker_of(error)}"


def _drop_oldest(using: str, topic_id: int, done: Expired, deadline: float) -> bool:
    """Drop one segment; False if there is nothing to drop, or something that is still needed."""
    with retention.writing(using, topic_id) as topic:
        if topic is None or (old := retention.outlived(using, topic)) is None:
            return False
        behind = retention.behind(using, topic, old)
        if not behind:
            retention.remove(using, topic, old)
        elif topic.keep_unread:
            done.kept_for = behind[0].consumer
            return False
        else:
            retention.refuse_paused(using)  # before deliveries are deleted whose events stay
    if behind:
        try:
            if not leave_behind(using, topic, old, behind, deadline=deadline):
                return True  # a position or the log changed meanwhile: look again
        except NotNow as error:
            done.waits_for = str(error)
            return False
    done.add(old)
    return True
