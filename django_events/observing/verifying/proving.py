"""Proving the invariants on a whole database: what is in the log, and what consumers say about it.

    verified = verify(using)
    verified.offenders    # the offenders
    verified.notes       # what is no offence, and worth knowing

It only reads, and no other session waits for it. What has to be consistent, as positions and the end of the log, is
read in one snapshot per topic; the log itself, which never changes, by ranges of ids outside of it.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from django.db import OperationalError, ProgrammingError, transaction

from django_events import models, sql
from django_events.observing.verifying.dead_letters import verify_copies, verify_dead_letters
from django_events.observing.verifying.deliveries import (
    verify_absent,
    verify_deliveries,
    verify_history,
    verify_keys,
    verify_leases,
)
from django_events.observing.verifying.logs import (
    verify_buffer,
    verify_floors,
    verify_leftovers,
    verify_logs,
    verify_segments,
)
from django_events.observing.verifying.offenders import Offenders
from django_events.observing.verifying.positions import verify_attempts, verify_filling, verify_positions
from django_events.observing.verifying.rests import verify_rests
from django_events.observing.verifying.snapshot import TopicSnapshot, seen_now
from django_events.observing.verifying.walking import walk
from django_events.phrases import count
from django_events.statements import log_table

SQL = sql.beside(__name__)

TRIES = 5  # for a lock that another session has, of two seconds each


class Proved(NamedTuple):
    """What was looked at of a topic: the events that were walked, from which id to which."""

    topic: str
    first_id: int
    last_id: int
    events: int
    consumers: int
    positions: int
    deliveries: int
    dead_letters: int


class Verified(NamedTuple):
    """What was proved, what is wrong, and what is no offence but worth knowing."""

    topics: list[Proved]
    offenders: Offenders
    notes: list[str]
    took: timedelta


def verify(
    using: str,
    *,
    topic: models.Topic | None = None,
    last: int | None = None,
    on_progress: Callable[[str, int], None] = lambda topic, events: None,
) -> Verified:
    """Look at one topic or at the whole database; of each log at the `last` so many ids, or at all of it.

    Not inside of a transaction. `on_progress` is told how many events of a topic were walked.
    """
    began, offenders, notes, proved = time.monotonic(), Offenders(), list[str](), list[Proved]()
    with sql.snapshot(using):
        verify_logs(using, offenders, only=topic)
        if topic is None:
            verify_leftovers(using, offenders, notes)
        topics = [topic] if topic else list(models.Topic.objects.using(using).order_by("name"))
    for one in topics:
        if (seen := _seen(using, one, offenders, notes)) is not None:
            proved.append(_walk(seen, last, offenders, notes, on_progress))
    return Verified(proved, offenders, notes, timedelta(seconds=time.monotonic() - began))


def _seen(using: str, topic: models.Topic, offenders: Offenders, notes: list[str]) -> TopicSnapshot | None:
    """What consumers say of a topic, and what its log is, at one moment; None where one of its tables is missing."""
    for left in reversed(range(TRIES)):
        locked = False
        try:
            with sql.snapshot(using):
                # The savepoint lets go of the log: what comes behind it is of the same moment, and needs no lock.
                with transaction.atomic(using):
                    sql.run(using, SQL.keep_segments.on(log=log_table(topic.pk)))
                    locked = True
                    seen = seen_now(using, topic)
                    if seen is not None:
                        _with_log(seen, offenders, notes)
                    transaction.set_rollback(True, using)
                if seen is not None:
                    _without_log(seen, offenders, notes)
                return seen
        except OperationalError as error:
            if locked or not left or sql.kind_of(error) is not sql.ErrorKind.LOCKED:
                raise
        except ProgrammingError as error:
            if locked or sql.kind_of(error) is not sql.ErrorKind.TABLE_GONE:
                raise
            return None  # it is reported, or was dropped a moment ago
    return None


def _with_log(seen: TopicSnapshot, offenders: Offenders, notes: list[str]) -> None:
    """What has to be read while no segment can be dropped."""
    verify_floors(seen, offenders)
    verify_segments(seen, offenders, notes)
    if seen.counts.consumers:
        verify_positions(seen, offenders)
        verify_attempts(seen, offenders)
        verify_dead_letters(seen, offenders)


def _without_log(seen: TopicSnapshot, offenders: Offenders, notes: list[str]) -> None:
    """What is of the same moment, and needs no lock on the log."""
    verify_buffer(seen, offenders, notes)
    if seen.counts.consumers:
        verify_filling(seen, offenders)
        verify_rests(seen, offenders)
        verify_deliveries(seen, offenders, notes)
        verify_leases(seen, offenders, notes)
        verify_history(seen, offenders)


def _walk(
    seen: TopicSnapshot,
    last: int | None,
    offenders: Offenders,
    notes: list[str],
    on_progress: Callable[[str, int], None],
) -> Proved:
    """What needs no common moment: the log itself, and beside it what consumers have of its events."""
    topic = seen.topic
    walked = walk(seen, last=last, offenders=offenders, on_progress=lambda events: on_progress(topic.name, events))
    if walked.elsewhere:
        notes.append(
            f"Topic {topic}: {count(walked.elsewhere, 'event')} with a key in another partition than the one of their "
            "key. Their publishers said which, so the order of such keys is not proved."
        )
    first_id = seen.last_id + 1 if seen.first_id is None else seen.first_id
    if last is not None:
        first_id = max(first_id, seen.last_id - last + 1)
    if seen.counts.consumers:
        verify_keys(seen, first_id, offenders)
        verify_absent(seen, first_id, offenders, notes)
        verify_copies(seen, first_id, offenders)
    return Proved(topic.name, first_id, seen.last_id, walked.events, *seen.counts)
