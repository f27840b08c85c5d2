"""Stopping: a request that every wait notices, and the signals that make one."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from django_events.workers.stopping import Stop, stop_on_signals

ROOT = Path(__file__).parents[2]
FOR_EVER = 3_600.0


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
