"""The flag between threads: a ring lets one of those go that wait, and none is lost."""

import select
import threading
from collections import deque
from types import SimpleNamespace

import pytest

from django_events.workers import wakeup_flag as module
from django_events.workers.stopping import Stop
from django_events.workers.wakeup_flag import WakeupFlag
from tests.support.processes import wait_until

FOR_EVER = 3_600.0


@pytest.fixture
def stop():
    stop = Stop()
    yield stop
    stop.close()


@pytest.fixture
def flag():
    flag = WakeupFlag()
    yield flag
    flag.close()


@pytest.fixture
def start():
    """Start threads; a test that passes has ended them all."""
    threads = []

    def start_one(target, *args):
        threads.append(threading.Thread(target=target, args=args, daemon=True))
        threads[-1].start()

    yield start_one
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def is_readable(flag):
    return bool(select.select([flag], [], [], 0)[0])


def test_a_ring_ends_a_wait(flag, stop):
    flag.set()

    assert flag.wait(stop, FOR_EVER)
    assert not flag.wait(stop, 0)


def test_rings_that_no_waiter_took_are_one(flag, stop):
    for _ in range(100_000):  # more than a socket has room for
        flag.set()

    assert flag.wait(stop, FOR_EVER)
    assert not flag.wait(stop, 0)
    assert not is_readable(flag)


def test_a_wait_of_no_time_takes_a_ring_too(flag, stop):
    flag.set()

    assert flag.wait(stop, 0)


def test_a_select_notices_a_ring_until_it_is_taken(flag):
    assert not is_readable(flag)
    flag.set()
    assert is_readable(flag)
    assert flag.consume()
    assert not is_readable(flag)
    assert not flag.consume()


def test_a_request_to_stop_ends_every_wait_and_takes_no_ring(flag, stop, start):
    results = []
    for _ in range(3):
        start(lambda: results.append(flag.wait(stop, FOR_EVER)))
    stop.request()
    wait_until(lambda: results == [False] * 3, what="the end of every wait")

    flag.set()
    assert not flag.wait(stop, FOR_EVER)
    assert flag.consume()


def test_each_ring_lets_one_go(flag, stop, start):
    results = []
    for _ in range(5):
        start(lambda: results.append(flag.wait(stop, FOR_EVER)))
    for number in range(1, 6):
        flag.set()
        wait_until(lambda: len(results) >= number, what=f"the end of {number} waits")

    # Had a ring let two go, the last one would still be there.
    assert results == [True] * 5
    assert not flag.consume()


def test_who_came_too_late_waits_for_the_rest_of_its_time(flag, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    waits = []

    def woken_for_nothing(seconds, *others):
        assert others == (flag.fileno(),)
        waits.append(seconds)
        clock.now += 4  # then another waiter took the ring

    stop = SimpleNamespace(requested=False, wait=woken_for_nothing)

    assert not flag.wait(stop, 10)
    assert waits == [10, 6, 2]


def test_nothing_is_left_lying_however_many_ring_and_wait(flag, stop, start):
    work, done = deque(), deque()

    def give(name):
        for i in range(2_000):
            work.append((name, i))
            flag.set()

    def take():
        while flag.wait(stop, FOR_EVER):
            while work:
                try:
                    done.append(work.popleft())
                except IndexError:
                    break

    for _ in range(3):
        start(take)
    for name in range(4):
        start(give, name)
    wait_until(lambda: len(done) == 8_000, what="all that was given")
    stop.request()

    assert set(done) == {(name, i) for name in range(4) for i in range(2_000)}


def test_a_closed_bell_may_be_rung_and_closed(stop):
    flag = WakeupFlag()
    flag.set()
    flag.close()
    flag.close()
    flag.set()

    assert not flag.consume()
