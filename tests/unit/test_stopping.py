"""Stopping: a request that every wait notices, and the signals that make one."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from django_events.workers.stopping import Stop, stop_on_signals

ROOT = Path(__file__).parents[2]
FOR_EVER = 3_600.0
DEADLINE = 20.0


@pytest.fixture
def stop():
    stop = Stop()
    yield stop
    stop.close()


def is_readable(stop):
    return bool(select.select([stop.fileno()], [], [], 0)[0])


def test_nothing_is_requested_at_first(stop):
    assert not stop.requested
    assert not is_readable(stop)


def test_a_request_stays(stop):
    stop.request()
    stop.request()

    assert stop.requested
    assert is_readable(stop)
    stop.wait(FOR_EVER)  # returns at once
    assert is_readable(stop)


def test_a_request_ends_the_wait_of_another_thread(stop):
    waiter = threading.Thread(target=stop.wait, args=[FOR_EVER], daemon=True)
    waiter.start()
    stop.request()
    waiter.join(timeout=60)

    assert not waiter.is_alive()


def test_a_wait_without_request_ends_with_its_time(stop):
    stop.wait(0.001)

    assert not stop.requested


def test_data_on_another_descriptor_ends_a_wait(stop):
    receiver, sender = socket.socketpair()
    with receiver, sender:
        sender.send(b"x")
        stop.wait(FOR_EVER, receiver.fileno())

    assert not stop.requested


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_a_request_to_stop(number):
    with stop_on_signals() as stop:
        os.kill(os.getpid(), number)
        stop.wait(FOR_EVER)

        assert stop.requested


def test_a_signal_ends_a_wait_that_has_begun():
    """The handler runs in the thread that waits, so its request must reach the select that was interrupted."""
    with stop_on_signals() as stop:
        timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGTERM])
        timer.start()
        stop.wait(FOR_EVER)
        timer.join()

        assert stop.requested


def test_the_second_interrupt_ends_the_work_at_once():
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_after_a_request_to_terminate_ends_the_work_too():
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("first", ["SIGTERM", "SIGINT"])
def test_the_second_request_to_terminate_ends_the_process(first):
    program = f"""
import os, signal
from django_events.workers.stopping import stop_on_signals
with stop_on_signals() as stop:
    os.kill(os.getpid(), signal.{first})
    assert stop.requested
    print("goes on", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("never comes here", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stdout == "goes on\n"


@pytest.mark.parametrize("signalled", [False, True])
def test_the_handlers_of_before_are_put_back(signalled):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with stop_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
        if signalled:
            os.kill(os.getpid(), signal.SIGTERM)

    assert {number: signal.getsignal(number) for number in before} == before


def test_the_handlers_of_before_are_put_back_after_an_error_too():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError), stop_on_signals():
        raise RuntimeError

    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_another_thread_gets_ends_the_wait_of_the_main_thread():
    """As when a frozen process is continued and told to stop: the kernel may choose a thread that is awake already."""
    with stop_on_signals() as stop:
        began = time.monotonic()
        other = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        threading.Timer(0.2, other.start).start()
        while not stop.requested:
            stop.wait(DEADLINE)
        assert time.monotonic() - began < DEADLINE


def test_a_signal_of_another_library_ends_one_wait_and_not_all_that_follow():
    taken = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: taken.append(number))
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            stop.wait(DEADLINE)
            waited = time.monotonic()
            stop.wait(0.2)
            assert time.monotonic() - waited >= 0.2
            assert not stop.requested
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert taken == [signal.SIGUSR1]


def test_a_signal_is_taken_while_the_main_thread_waits_for_others_to_finish():
    """As `run_consumer` waits for its threads, which end only when the request is made."""
    with stop_on_signals() as stop, closing(Stop()) as finished:
        worker = threading.Thread(target=lambda: (stop.wait(DEADLINE), finished.request()))
        worker.start()
        threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
        stop.wait_until_requested(finished)
        worker.join()
        assert stop.requested
