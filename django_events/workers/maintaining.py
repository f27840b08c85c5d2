"""Maintenance: runs the steps that are due, in one process at a time, beside the transfer or from cron.

    with in_background(Maintenance("default")):
        ...
    outcomes = run_steps("default", STEPS)     # now, due or not

An error in a step stops neither the other steps nor the process: it is written into the step's row, and tried again.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import Error, connections

from django_events import sql
from django_events.maintaining.steps import STEPS, Result, Step, StepFailed
from django_events.operating.moved_keys import release
from django_events.workers.loop import connect_for_work
from django_events.workers.stopping import Stop

logger = logging.getLogger("django_events.maintenance")
SQL = sql.beside(__name__)

LEASE = timedelta(minutes=5)  # longer than any step takes: after it, the process that ran the step has died
LATE = 1.0  # seconds after the full minute, so that a database whose clock is a little late is in that minute too
PERIOD, SOON = 60.0, 1.0


class StepRun(NamedTuple):
    """How a run of a step went: its result, or its error; neither if another process runs the step now."""

    step: str
    seconds: float
    result: Result | None
    error: str = ""


def run_due(using: str, steps: Sequence[Step] = STEPS, *, until: Callable[[], bool] = lambda: False) -> list[StepRun]:
    """Run those of these steps that are due and that no other process runs, until `until` is true between two."""
    names, periods = [step.name for step in steps], [step.every for step in steps]
    asked: sql.Question = SQL.due_steps, {"names": names, "periods": periods}
    with sql.batch(using, asked, **sql.UNHURRIED) as [rows]:
        due = {name for (name,) in rows}
    return list(_run([step for step in steps if step.name in due], using, until=until, as_scheduled=True))


def run_steps(using: str, steps: Sequence[Step] = STEPS) -> list[StepRun]:
    """Run these steps now, due or not, but for those that another process runs."""
    return list(_run(steps, using, until=lambda: False, as_scheduled=False))


def _run(steps: Iterable[Step], using: str, *, until: Callable[[], bool], as_scheduled: bool) -> Iterator[StepRun]:
    for step in steps:
        if until():
            return
        begun = _begin(using, step, as_scheduled=as_scheduled)
        if begun is None:
            if not as_scheduled:
                yield StepRun(step.name, 0.0, None)
            continue
        began = time.monotonic()
        outcome = StepRun(step.name, 0.0, None)
        try:
            outcome = outcome._replace(result=step.run(using, until))
        except Exception as error:
            logger.warning(
                "The step %r of maintenance of %r failed, it is tried again. %s",
                step.name,
                using,
                sql.said(error),
                exc_info=not isinstance(error, Error | StepFailed),
                extra={"database": using, "step": step.name},
            )
            outcome = outcome._replace(error=sql.said(error) or type(error).__name__)
            if sql.kind_of(error) is sql.ErrorKind.LOST:
                raise
        except BaseException as error:  # Ctrl-C, for example: other processes need not wait until the lease runs out
            _end(using, begun, outcome._replace(error=f"interrupted by {type(error).__name__}"))
            raise
        yield _end(using, begun, outcome._replace(seconds=time.monotonic() - began))


def _begin(using: str, step: Step, *, as_scheduled: bool) -> datetime | None:
    asked: sql.Question = (
        SQL.begin_step,
        {
            "name": step.name,
            "period": step.every if as_scheduled else None,
            "lease": LEASE,
            "holder": f"{socket.gethostname()}:{os.getpid()}"[:200],
        },
    )
    with sql.batch(using, asked, **sql.UNHURRIED) as [rows]:
        return rows[0][0] if rows else None


def _end(using: str, begun: datetime, outcome: StepRun) -> StepRun:
    asked: sql.Question = (
        SQL.end_step,
        {
            "name": outcome.step,
            "started_at": begun,
            "result": json.dumps(outcome.result or {}),
            "error": outcome.error,
        },
    )
    with sql.batch(using, asked, **sql.UNHURRIED):
        return outcome


class Maintenance:
    """A worker that runs what is due once a minute, in a thread, which has a connection for as long as it takes."""

    left = False

    def __init__(self, using: str) -> None:
        self.using = using
        self._fails = False
        self._soon = False

    def connect(self) -> None:
        """`work` connects by itself."""

    def work(self, stop: Stop) -> int:
        """Run what is due. If that fails, it is logged once, and tried again a minute later."""
        try:
            connect_for_work(self.using)
            run_due(self.using, until=lambda: stop.requested)
            # Not as a step, which a process that was killed keeps from others for minutes. Several may do it at once.
            self._soon = bool(release(self.using))
        except Exception as error:
            if not self._fails:
                logger.warning(
                    "The maintenance of %r can't be done now, it is tried every minute. %s",
                    self.using,
                    sql.said(error),
                    exc_info=not isinstance(error, Error),
                    extra={"database": self.using},
                )
            self._fails, self._soon = True, False
        else:
            self._fails = False
        finally:
            connections[self.using].close()
        return 0

    def wait(self, stop: Stop) -> None:
        """Until the next minute has begun; while a consumer waits for another shard, for a second."""
        stop.wait(SOON if self._soon else PERIOD - (time.time() - LATE) % PERIOD)

    def reset(self) -> None:
        """Nothing is learnt on a connection."""

    def close(self) -> None:
        """Nothing is to be released."""
