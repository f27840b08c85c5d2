"""A handler that doesn't come back: its worker lives and renews its lease, and is named all the same."""

import threading
from datetime import timedelta

import pytest

from django_events.models import Delivery, Position
from django_events.models.functions import ClockTimestamp
from django_events.observing import problems
from django_events.observing.lag import standings
from tests.support.fix_consumers import expire_leases, lease_of, working
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def gate():
    """Handlers wait here, until the test ends."""
    opened = threading.Event()
    yield opened
    opened.set()


def hung():
    return [one for one in problems.find_problems("default", [], None, standings("default")) if one.kind == "hung"]


def make_older(by):
    Position.objects.filter(served_at__isnull=False).update(served_at=ClockTimestamp() - by)
    for delivery in Delivery.objects.filter(last_at__isnull=False):
        Delivery.objects.filter(pk=delivery.pk).update(last_at=ClockTimestamp() - by)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_a_handler_that_does_not_come_back_is_a_problem(make_topic, make_consumer, gate, mode):
    entered = threading.Event()

    def handle(event):
        if event.value == "slow":
            entered.set()
            gate.wait(60)

    consumer = make_consumer(make_topic("calls"), handler=handle, name="caller", mode=mode, lease=timedelta(seconds=3))
    fill_topic("calls", "quick", "slow", "after")
    with working(consumer):
        wait_until(entered.is_set, what="the handler")
        assert hung() == []
        make_older(timedelta(minutes=9))
        assert hung() == []

        make_older(timedelta(minutes=11))
        [problem] = hung()
        assert (problem.severity, problem.subject.consumer, problem.subject.topic) == ("error", "caller", "calls")
        assert problem.what.endswith(" in hand for 11 min: its handler has not come back.")
        assert " has had calls/" in problem.what
        gate.set()
        wait_until(lambda: not hung(), what="the handler's end")


def test_a_consumer_may_take_its_declared_time(make_topic, make_consumer, gate):
    entered = threading.Event()

    def handle(event):
        entered.set()
        gate.wait(60)

    consumer = make_consumer(
        make_topic("calls"), handler=handle, name="caller", timeout=timedelta(hours=1), transactional=False
    )
    fill_topic("calls", 1)
    with working(consumer):
        wait_until(entered.is_set, what="the handler")
        make_older(timedelta(minutes=65))
        assert hung() == []
        make_older(timedelta(minutes=75))
        assert len(hung()) == 1
        gate.set()


def test_a_worker_that_is_gone_is_no_hung_one(make_topic, make_consumer):
    consumer = make_consumer(make_topic("calls"), handler=print, name="caller")
    fill_topic("calls", 1)
    assert lease_of(consumer) is not None
    make_older(timedelta(hours=1))
    assert len(hung()) == 1
    expire_leases(consumer)
    assert hung() == []
