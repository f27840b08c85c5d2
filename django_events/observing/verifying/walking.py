"""Walking a log: every event beside the one before it, so that what is missing or out of order is found.

    walked = walk(seen, last=None, offenders=offenders, on_progress=print)

A statement for each range of ids, which reads only that: however long the log is, no other session waits for it, and
it keeps no old snapshot. What is in the log never changes, so these need no common one. Only retention removes
something meanwhile, the oldest, and compaction what a newer event of its key came after; the topic's head says so.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django_events import models, sql
from django_events.log.floors import Floors, floors_of
from django_events.models.topics import Layout
from django_events.observing.verifying import neighbours
from django_events.observing.verifying.offenders import SHOWN, Offenders
from django_events.observing.verifying.snapshot import TopicSnapshot
from django_events.statements import log_table

SQL = sql.beside(__name__)

AT_ONCE = 50_000  # ids
SETTINGS = {"work_mem": "64MB"}  # a range is sorted by partition: not on disk


class LastOfPartition(NamedTuple):
    """The last event of a partition that the walk met, and how many events of the log it had met by then."""

    id: int
    number: int
    ordinal: int


@dataclass(slots=True)
class Walk:
    """How far a walk is, and what it has met."""

    after: int
    before_id: int | None
    lasts: dict[int, LastOfPartition]
    before_at: datetime | None = None
    events: int = 0
    elsewhere: int = 0


def walk(seen: TopicSnapshot, *, last: int | None, offenders: Offenders, on_progress: Callable[[int], None]) -> Walk:
    """Walk the log up to where it ended: all of it, or the last so many ids."""
    using, topic, floors, first_id, last_id, _ = seen
    compacted = floors.compacted_until
    at = _from_floor(topic, floors)
    if first_id is not None and first_id <= floors.id:  # an offence of the floors: `verify_floors` tells it
        at = _from_unknown(topic, first_id - 1)
    if last is not None and last_id - last > at.after:
        at = _from_unknown(topic, last_id - last)
    while at.after < last_id:
        layout, end = _layout_behind(topic, at.after)
        upper = min(at.after + AT_ONCE, last_id, end - 1)
        rows = _look(using, topic, at, upper, layout.partitions, compacted)
        if any(wrong for *_, wrong in rows) or sum(row[1] for row in rows) < upper - max(at.after, compacted):
            now = floors_of(using, topic.pk)
            if now is not None and now.compacted_until > compacted:  # it was faster
                compacted = now.compacted_until
                continue
            if now is not None and now.id > max(at.after, floors.id):  # retention was faster
                floors, events, elsewhere = now, at.events, at.elsewhere
                at = _from_floor(topic, floors)
                at.events, at.elsewhere = events, elsewhere
                at.lasts = {partition: last._replace(ordinal=events) for partition, last in at.lasts.items()}
                continue
            wrong = _look_closely(using, topic, at, upper, layout.partitions, compacted)
            neighbours.report(using, topic, wrong, offenders, partitions=layout.partitions)
        _go_on(at, rows, upper)
        on_progress(at.events)
    if at.before_id is not None and max(at.before_id, compacted) < last_id:
        neighbours.report_gap(topic, offenders, before=at.before_id, id=last_id + 1)
    return at


def _layout_behind(topic: models.Topic, after: int) -> tuple[Layout, int]:
    """The layout of the event behind an id, and the first id of the layout that follows."""
    layouts = topic.all_layouts
    index = topic.layout_at(after + 1)
    return layouts[index], layouts[index + 1].first_id if index + 1 < len(layouts) else sys.maxsize


def _from_floor(topic: models.Topic, floors: Floors) -> Walk:
    """From the first event that retention left, with all that is known by then."""
    lasts = {of: LastOfPartition(floors.id, floors.number(of), 0) for of in range(topic.most_partitions)}
    return Walk(floors.id, floors.id, lasts)


def _from_unknown(topic: models.Topic, after: int) -> Walk:
    """From somewhere in the log: the first event of each partition is believed, unless ids tell its number."""
    if after == 0 or topic.is_undivided:
        return Walk(after, after, {of: LastOfPartition(after, after, 0) for of in range(topic.most_partitions)})
    return Walk(after, after, {})


def _go_on(at: Walk, rows: sql.Rows, upper: int) -> None:
    for partition, events, last_id, number, ordinal, logged_at, elsewhere, _ in rows:
        at.lasts[partition] = LastOfPartition(last_id, number, ordinal)
        at.events += events
        at.elsewhere += elsewhere
        if last_id > (at.before_id or 0):
            at.before_id, at.before_at = last_id, logged_at
    at.after = upper


def _look(using: str, topic: models.Topic, at: Walk, upper: int, partitions: int, compacted: int) -> sql.Rows:
    statement = SQL.walk.on(
        walked=SQL.walked.on(
            log=log_table(topic.pk), topic_id=topic.pk, after=at.after, upper=upper, partitions=partitions
        )
    )
    lasts = at.lasts.values()
    with sql.batch(using, **SETTINGS):
        return sql.fetch(
            using,
            statement,
            before_id=at.before_id,
            before_at=at.before_at,
            walked=at.events,
            compacted_until=compacted,
            prior_partitions=list(at.lasts),
            prior_ids=[last.id for last in lasts],
            prior_numbers=[last.number for last in lasts],
            prior_ordinals=[last.ordinal for last in lasts],
        )


def _look_closely(using: str, topic: models.Topic, at: Walk, upper: int, partitions: int, compacted: int) -> sql.Rows:
    statement = SQL.walk_closely.on(
        walked=SQL.walked.on(
            log=log_table(topic.pk), topic_id=topic.pk, after=at.after, upper=upper, partitions=partitions
        )
    )
    lasts = at.lasts.values()
    with sql.batch(using, **SETTINGS):
        return sql.fetch(
            using,
            statement,
            most=SHOWN,
            before_id=at.before_id,
            before_at=at.before_at,
            walked=at.events,
            compacted_until=compacted,
            prior_partitions=list(at.lasts),
            prior_ids=[last.id for last in lasts],
            prior_numbers=[last.number for last in lasts],
            prior_ordinals=[last.ordinal for last in lasts],
        )
