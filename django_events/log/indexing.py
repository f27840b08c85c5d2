"""Indexes of a log that has events: made segment by segment, while publishers, transfers and readers go on.

    build(using, topic, "timeline")
    drop(using, topic, "timeline")

The index of a log is made of indexes of its segments, and is valid when each of them has its part. The parts are built
beside what is written, the newest segment first, and then attached. What an interruption leaves, the next call goes on
with. Inside a transaction the parts are built at once, and writers wait.
"""

import logging
import time
from typing import NamedTuple

from django.db import DatabaseError, OperationalError, connections

from django_events import sql
from django_events.exceptions import InUse, Refused
from django_events.models import Topic
from django_events.statements import log_table

logger = logging.getLogger("django_events.topics")
SQL = sql.beside(__name__)

COLUMNS = {"partition": ["partition", "id"], "timeline": ["key", "id"]}
LOCK_TIMEOUT = "200ms"
PATIENCE, PAUSE = 30.0, 0.2  # seconds: how long locks are tried for, and between two tries


class SegmentPart(NamedTuple):
    """A segment, whether its part of the index is attached, and, if there is one that isn't, whether that is valid."""

    segment: str
    is_attached: bool
    is_valid: bool | None


def build(using: str, topic: Topic, kind: str) -> None:
    """Have the log of a topic the index of this kind, whole; Refused if this role can't make it."""
    log = log_table(topic.pk)
    index, columns = f"{log}_{kind}", COLUMNS[kind]
    try:
        if not _is_there(using, index):
            _under_head(using, topic, SQL.make_index.on(index=index, log=log, columns=columns))
        told = 0
        while missing := [part for part in _parts(using, log, kind) if not part.is_attached]:
            if len(missing) != told:
                about = {"database": using, "topic": topic.name}
                logger.info("Topic %s: %d segments to go for its index %s.", topic, len(missing), index, extra=about)
                told = len(missing)
            for part in missing:
                _build_part(using, part, kind)
            for part in reversed(missing):
                _attach(using, index, f"{part.segment}_{kind}")
    except DatabaseError as error:
        if sql.kind_of(error) is not sql.ErrorKind.FORBIDDEN:
            raise
        raise Refused(
            f"Topic {topic} needs the index {index}, and only the owner of its log can make it. Nothing was changed. "
            "Run migrate as the owner."
        ) from error


def drop(using: str, topic: Topic, kind: str) -> None:
    """Drop the index of this kind, and what an interruption left of it."""
    log = log_table(topic.pk)
    _under_head(using, topic, SQL.drop_index.on(index=f"{log}_{kind}"))
    for part in _parts(using, log, kind):
        if part.is_valid is not None:
            _under_head(using, topic, SQL.drop_index.on(index=f"{part.segment}_{kind}"))


def _is_there(using: str, index: str) -> bool:
    [[there]] = sql.fetch(using, SQL.index_is_there, index=index)
    return bool(there)


def _parts(using: str, log: str, kind: str) -> list[SegmentPart]:
    """The segments of a log, newest first."""
    rows = sql.fetch(using, SQL.parts, log=log, index=f"{log}_{kind}", kind=kind)
    return [SegmentPart._make(row) for row in rows]


def _build_part(using: str, part: SegmentPart, kind: str) -> None:
    """Build the part of one segment. While another session builds it, or both are in each other's way, only wait."""
    index, columns = f"{part.segment}_{kind}", COLUMNS[kind]
    try:
        if connections[using].in_atomic_block:
            sql.run(using, SQL.build_part_at_once.on(index=index, segment=part.segment, columns=columns))
        elif part.is_valid is None:
            sql.run(using, SQL.build_part.on(index=index, segment=part.segment, columns=columns))
        elif not part.is_valid and sql.fetch(using, SQL.builders, segment=part.segment):
            time.sleep(PAUSE)
        elif not part.is_valid:
            sql.run(using, SQL.rebuild_part.on(index=index))
    except DatabaseError as error:
        if sql.kind_of(error) is sql.ErrorKind.CONFLICT and not connections[using].in_atomic_block:
            time.sleep(PAUSE)
        elif sql.kind_of(error) is not sql.ErrorKind.TABLE_GONE:  # retention has dropped the segment
            raise


def _attach(using: str, index: str, part: str) -> None:
    """Attach a part; nothing if it is gone, or is not valid yet: the next look at the parts finds it.

    It is dropped if compaction has put a table in the segment's place that has one.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with sql.committed(using), sql.batch(using, lock_timeout=LOCK_TIMEOUT):
                for is_valid, has_another in sql.fetch(using, SQL.part_is_whole, part=part, index=index):
                    if has_another:
                        sql.run(using, SQL.drop_index.on(index=part))
                    elif is_valid:
                        sql.run(using, SQL.attach_part.on(index=index, part=part))
            return
        except OperationalError as error:
            _wait(using, error, index, deadline)


def _under_head(using: str, topic: Topic, statement: sql.Statement) -> None:
    """Run a statement that locks a log for a moment, while the transfer waits; others are waited for a moment only."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with sql.committed(using), sql.batch(using, lock_timeout=LOCK_TIMEOUT):
                sql.fetch(using, sql.shared.lock_head, topic_id=topic.pk)
                sql.run(using, statement)
            return
        except OperationalError as error:
            _wait(using, error, f"the log of {topic}", deadline)


def _wait(using: str, error: OperationalError, what: str, deadline: float) -> None:
    if sql.kind_of(error) is not sql.ErrorKind.LOCKED or connections[using].in_atomic_block:
        raise error
    if time.monotonic() >= deadline:
        raise InUse(
            f"Another session keeps {what} locked for more than {PATIENCE:.0f} s. What was built so far stays. "
            "Run migrate again."
        ) from error
    time.sleep(PAUSE)
