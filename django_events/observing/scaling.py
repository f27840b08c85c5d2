"""How many workers the lag of a consumer asks for, by the samples of the last minutes.

    for one in wanted(using, standings(using)):
        print(one.consumer, one.workers or one.why)

Arrivals are measured, and so is what a worker handles in a second: in the stretches between two samples in which it
never ran out of work. A consumer that kept up says nothing about how fast it could be.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from django_events import sql
from django_events.observing.lag import Standing
from django_events.observing.samples import per_second
from django_events.phrases import count, duration

SQL = sql.beside(__name__)

OVER, WITHIN = timedelta(minutes=15), timedelta(minutes=10)
FEWEST = 3  # samples that tell a rate
OLDEST = timedelta(minutes=5)  # of the newest sample
NO_TIME = timedelta(0)


KEPT_UP = (
    "It kept up: its workers had less than a second's work before them in each sample, so the samples don't say how "
    "fast they can be. Say how long an event takes: --per-event SECONDS."
)
STOOD_STILL = (
    "It passed nothing while it was behind, so the samples don't say how fast a worker is. Is one running? Say how "
    "long an event takes: --per-event SECONDS."
)
NOT_AT_WORK = (
    "No worker has its events in hand now, so it isn't known how many passed those of the samples. Say how many there "
    "were: --working N."
)


class Moment(NamedTuple):
    """A consumer in a sample: how far it was behind, and how many events had come and had been passed."""

    at: datetime
    lag: int
    arrived: int

    @property
    def passed(self) -> int:
        return self.arrived - self.lag


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How many workers a consumer asks for on a topic; None, and `why` not, where that can't be said.

    Rates are events a second. `at_least` says that more events are behind than were counted. `limit` is how many
    workers can do something at the same time, `per_worker` what one of them passes, measured in `busy` of the `over`.
    """

    consumer: str
    topic: str
    mode: str
    lag: int
    at_least: bool
    working: int
    limit: int | None
    over: timedelta
    samples: int
    arriving: float | None = None
    per_worker: float | None = None
    busy: timedelta = NO_TIME
    catching_up: float | None = None
    workers: int | None = None
    why: str = ""


def wanted(
    using: str,
    consumers: Iterable[Standing],
    *,
    over: timedelta = OVER,
    within: timedelta = WITHIN,
    per_event: timedelta | None = None,
    working: int | None = None,
) -> list[Wanted]:
    """For each of these consumers that has workers: what it takes to keep up, and to have no lag `within` a time.

    `per_event` says how long a worker has for an event, instead of measuring it; `working` how many workers there
    are, instead of counting who has events in hand now.
    """
    found = [one for one in consumers if one.mode != "spark"]
    if not found:
        return []
    samples = _samples(using, over)
    workers: dict[int, int] = dict(sql.fetch(using, SQL.working, consumer_ids=[one.consumer_id for one in found]))
    now = sql.now(using)
    return [
        _wanted(
            one,
            _moments(one, samples),
            now,
            over=over,
            within=within,
            per_event=per_event,
            working=workers.get(one.consumer_id, 0) if working is None else working,
        )
        for one in found
    ]


@dataclass(frozen=True)
class _Sample:
    at: datetime
    topics: dict[str, list[int]]
    consumers: dict[str, list[int]]


def _samples(using: str, over: timedelta) -> list[_Sample]:
    rows = sql.fetch(using, SQL.recent_samples, period=over)
    return [_Sample(at, json.loads(topics), json.loads(consumers)) for at, topics, consumers in rows]


def _moments(one: Standing, samples: Sequence[_Sample]) -> list[Moment]:
    """Of a stream, by the log's ends: events that its filter leaves out are passed too. Of a queue, by its counts."""
    found = []
    for sample in samples:
        counts, topic = sample.consumers.get(str(one.consumer_id)), sample.topics.get(str(one.topic_id))
        if counts is not None and topic is not None:
            lag, handled = counts[:2]
            found.append(Moment(sample.at, lag, handled + lag if one.mode == "queue" else topic[0]))
    return found


def _wanted(
    one: Standing,
    moments: Sequence[Moment],
    now: datetime,
    *,
    over: timedelta,
    within: timedelta,
    per_event: timedelta | None,
    working: int,
) -> Wanted:
    known = Wanted(
        consumer=one.consumer,
        topic=one.topic,
        mode=one.mode,
        lag=one.lag,
        at_least=one.more_lag,
        working=working,
        limit=None if one.mode == "queue" else one.partitions,
        over=over,
        samples=len(moments),
        catching_up=one.lag / within.total_seconds(),
    )
    if one.paused_at is not None or one.state == "stopped":
        return replace(
            known, why=f"It is {'paused' if one.paused_at is not None else 'stopped'}: no worker would help."
        )
    if len(moments) < FEWEST or now - moments[-1].at > OLDEST:
        return replace(known, why=_too_few(moments, now, over))
    arriving = per_second(moments[0].arrived, moments[-1].arrived, moments[-1].at - moments[0].at)
    known = replace(known, arriving=arriving)
    if per_event is not None:
        return _computed(replace(known, per_worker=1 / per_event.total_seconds()))
    passed, busy = _busy(moments)
    if not passed:
        return replace(known, why=KEPT_UP if not one.lag else STOOD_STILL)
    if not working:
        return replace(known, busy=busy, why=NOT_AT_WORK)
    return _computed(replace(known, busy=busy, per_worker=passed / busy.total_seconds() / working))


def _busy(moments: Sequence[Moment]) -> tuple[int, timedelta]:
    """What was passed between samples at both of which at least a second's work was waiting, and how long that was."""
    passed, busy = 0, NO_TIME
    for earlier, later in pairwise(moments):
        done, took = later.passed - earlier.passed, later.at - earlier.at
        if done > 0 and took > NO_TIME and min(earlier.lag, later.lag) >= done / took.total_seconds():
            passed, busy = passed + done, busy + took
    return passed, busy


def _computed(known: Wanted) -> Wanted:
    needed = (known.arriving or 0) + (known.catching_up or 0)
    # Rounded first, so that 3.0000000001 workers are 3.
    return replace(known, workers=math.ceil(round(needed / (known.per_worker or 1), 6)))


def _too_few(moments: Sequence[Moment], now: datetime, over: timedelta) -> str:
    there = f"{count(len(moments), 'sample')} of the last {duration(over)}"
    if moments and len(moments) >= FEWEST:
        there += f", the newest {duration(now - moments[-1].at)} old"
    return (
        f"The samples don't suffice: {there} know it, expected {FEWEST}, not older than {duration(OLDEST)}. "
        "Maintenance takes one a minute, see `events maintain --list`, unless SAMPLES_KEPT is None."
    )
