"""The loop of all workers: when it goes on, when it waits, when it gives up. The worker is made up."""

import logging
from types import SimpleNamespace

import psycopg
import pytest
from django.db import DataError, InterfaceError, OperationalError, ProgrammingError
from django.db.utils import InternalError, NotSupportedError

from django_events.exceptions import NotReady
from django_events.workers import loop
from django_events.workers.loop import (
    FIRST_RETRY,
    LEFT_PAUSE,
    LONGEST_RETRY,
    Exit,
    RateMeter,
    Unreachable,
    pause_after,
    run,
)
from django_events.workers.stopping import Stop

LOST = ["08006", "57P01", "57P02", "57P03", "53300", None]
PASSING = ["40001", "40P01", "55P03"]


def failure(sqlstate, kind=OperationalError):
    """What Django raises for an error of the server; without a state, the server was not even reached."""
    error = kind(f"failed with {sqlstate}")
    error.__cause__ = psycopg.errors.lookup(sqlstate)() if sqlstate else psycopg.OperationalError("no route")
    return error


class Script:
    """A worker that does, or raises, one thing after the other, and asks to stop at the end."""

    using = "default"
    left = False

    def __init__(self, *steps, connects=()):
        self.steps = list(steps)
        self.connects = list(connects)
        self.waits = self.resets = 0

    def connect(self):
        if self.connects and (error := self.connects.pop(0)):
            raise error

    def work(self, stop):
        step = self.steps.pop(0)
        if not self.steps:
            stop.request()
        if isinstance(step, Exception):
            raise step
        return step

    def wait(self, stop):
        self.waits += 1

    def reset(self):
        self.resets += 1


class Hurried(Stop):
    """Waits in no time, and remembers how long it should have been."""

    def __init__(self):
        super().__init__()
        self.pauses = []

    def wait(self, seconds, *others):
        self.pauses.append(seconds)


@pytest.fixture
def stop():
    stop = Hurried()
    yield stop
    stop.close()


def test_it_works_without_a_wait_while_there_is_something_to_do(stop):
    worker = Script(5, 3, 2)

    assert run(worker, stop) == 10
    assert worker.waits == 0


def test_it_waits_once_for_each_time_that_there_was_nothing(stop):
    worker = Script(0, 5, 0, 0, 1)

    assert run(worker, stop) == 6
    assert worker.waits == 3


def test_once_ends_when_nothing_is_left(stop):
    worker = Script(5, 3, 0, 100)

    assert run(worker, stop, once=True) == 8
    assert worker.steps == [100]
    assert worker.waits == 0


def test_a_worker_that_is_told_to_stop_before_it_began_does_nothing(stop):
    stop.request()
    worker = Script(5)

    assert run(worker, stop) == 0
    assert worker.steps == [5]


def test_progress_is_told_each_time(stop):
    told = []
    run(Script(5, 0, 3), stop, on_progress=told.append)

    assert told == [5, 0, 3]


@pytest.mark.parametrize("sqlstate", LOST)
def test_a_database_out_of_reach_at_the_start_is_told_to_the_supervisor(stop, sqlstate):
    error = failure(sqlstate)
    with pytest.raises(Unreachable, match="failed with") as caught:
        run(Script(1, connects=[error]), stop)

    assert caught.value.__cause__ is error
    assert stop.pauses == []


@pytest.mark.parametrize("sqlstate", LOST)
def test_a_database_that_was_reached_and_goes_away_in_the_first_work_is_waited_for(stop, sqlstate):
    """Also where it is still out of reach when the worker connects anew."""
    worker = Script(failure(sqlstate), 3, connects=[None, failure(sqlstate), failure(sqlstate), None])

    assert run(worker, stop) == 3
    assert worker.resets == 3


@pytest.mark.parametrize("sqlstate", LOST)
def test_a_database_that_goes_away_during_once_is_told_to_the_supervisor(stop, sqlstate):
    with pytest.raises(Unreachable):
        run(Script(5, failure(sqlstate), 1), stop, once=True)


@pytest.mark.parametrize("sqlstate", LOST)
def test_a_database_that_goes_away_later_is_waited_for(stop, sqlstate):
    worker = Script(5, failure(sqlstate), failure(sqlstate), 3, 0)

    assert run(worker, stop) == 8
    assert worker.resets == 2
    assert len(stop.pauses) == 2


def test_an_interface_error_is_a_lost_connection_too(stop):
    error = InterfaceError("the connection is closed")
    error.__cause__ = psycopg.InterfaceError("the connection is closed")

    assert run(Script(1, error, 2), stop) == 3


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("sqlstate", PASSING)
def test_what_passes_by_itself_is_tried_again_also_at_the_start_and_with_once(stop, sqlstate, once):
    worker = Script(failure(sqlstate), failure(sqlstate), 3, 0, 7)

    assert run(worker, stop, once=once) == (3 if once else 10)
    assert worker.resets == 2
    assert len(stop.pauses) == 2


@pytest.mark.parametrize(
    "error",
    [
        failure("22003", DataError),
        failure("XX000", InternalError),
        failure("0A000", NotSupportedError),
        failure("54001"),  # an OperationalError, yet the server is there
        failure("42501", ProgrammingError),
    ],
    ids=lambda error: str(error),
)
@pytest.mark.parametrize("steps", [[], [5]], ids=["at the start", "later"])
def test_other_errors_of_the_database_end_the_worker(stop, error, steps):
    worker = Script(*steps, error, 1)
    with pytest.raises(type(error)) as caught:
        run(worker, stop)

    assert caught.value is error
    assert worker.resets == 0


@pytest.mark.parametrize("steps", [[], [5]], ids=["at the start", "later"])
def test_missing_tables_end_the_worker_and_its_own_thread_says_so(stop, steps):
    error = failure("42P01", ProgrammingError)
    worker = Script(*steps, error, 1)
    with pytest.raises(NotReady, match="The tables of django_events are not in the database 'default'") as caught:
        run(worker, stop)

    assert caught.value.__cause__ is error
    assert worker.resets == 0


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("a bug"), psycopg.OperationalError("not Django's")])
def test_errors_of_the_program_end_the_worker(stop, error):
    with pytest.raises(type(error)):
        run(Script(5, error, 1), stop)


def test_the_pauses_grow_up_to_a_limit_and_differ_from_worker_to_worker(stop):
    run(Script(1, *[failure("08006")] * 12, 1), stop)

    assert len(stop.pauses) == 12
    for number, pause in enumerate(stop.pauses):
        full = min(FIRST_RETRY * 2**number, LONGEST_RETRY)
        assert 0.75 * full <= pause <= 1.25 * full
    assert len({pause / min(FIRST_RETRY * 2**n, LONGEST_RETRY) for n, pause in enumerate(stop.pauses)}) > 1


def test_after_a_success_the_pauses_begin_anew(stop):
    run(Script(1, *[failure("08006")] * 8, 1, failure("08006"), 1), stop)

    assert stop.pauses[7] > 2 * FIRST_RETRY
    assert stop.pauses[8] <= 1.25 * FIRST_RETRY


def test_a_database_may_be_away_for_longer_than_numbers_can_double():
    assert pause_after(2_000) <= 1.25 * LONGEST_RETRY  # after three hours


def test_it_stops_during_a_pause(stop):
    worker = Script(1, failure("08006"), 9)
    stop.wait = lambda seconds: stop.request()

    assert run(worker, stop) == 1
    assert worker.steps == [9]


def test_the_connection_is_closed_before_the_next_try(stop, monkeypatch):
    closed = []
    connection = SimpleNamespace(connection=None, close=lambda: closed.append(worker.resets))
    monkeypatch.setattr(loop, "connections", {"default": connection})
    worker = Script(1, failure("40P01"), 1)
    run(worker, stop)

    assert closed == [0]  # before the worker was reset


def test_problem_and_its_end_are_in_the_log(stop, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("django_events"), "propagate", True)
    with caplog.at_level(logging.INFO, "django_events.worker"):
        run(Script(1, failure("57P01"), failure("57P01"), 1, 1), stop)

    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert warnings[0].startswith("The database 'default' failed, next try in 0.1 s. failed with 57P01")
    [info] = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert info == "The database 'default' works again, after 2 tries."


def test_exit_codes_are_those_of_the_reference():
    assert {code.name: int(code) for code in Exit} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "ABANDONED": 70,
        "UNREACHABLE": 75,
    }


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_a_rate_is_told_once_in_a_while_and_counts_all_since_the_last(clock):
    rate = RateMeter(every=10)
    assert rate.add(5) is None
    clock.now += 9.5
    assert rate.add(5) is None
    clock.now += 10.5
    assert rate.add(10) == (20, 1.0)
    clock.now += 9
    assert rate.add(7) is None
    clock.now += 1
    assert rate.add(3) == (10, 1.0)


def test_a_rate_of_nothing_is_nothing(clock):
    rate = RateMeter(every=10)
    clock.now += 20

    assert rate.add(0) == (0, 0.0)


def test_what_had_to_be_left_is_tried_again_soon_also_with_once(stop):
    """Another transfer is at it, or a session holds a lock: nothing done is not nothing to do."""

    class Busy(Script):
        def work(self, stop):
            self.left = len(self.steps) > 2
            return super().work(stop)

    worker = Busy(0, 0, 5, 0, 0)
    assert run(worker, stop, once=True) == 5
    assert stop.pauses == [LEFT_PAUSE, LEFT_PAUSE]
    assert worker.waits == 0
    assert len(worker.steps) == 1
