"""While a bridge sends that promises to send only, the next batch is read; any other bridge may use the database."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from amqp.sasl import PLAIN
from django.db import Error, connection
from django.test import override_settings
from psycopg.pq import TransactionStatus

from django_events import kafka as kafka_topic
from django_events import rabbitmq as rabbitmq_queue
from django_events.bridges.relays import rabbitmq as rabbitmq_bridge
from django_events.bridges.relays.targets import TargetUnavailable
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import log_failure
from django_events.exceptions import MessageRefused
from django_events.testing import check_target
from django_events.workers.lease_renewal import LeaseRenewal
from tests.integration.consuming.test_prepared_claims import fill, serve, server_of
from tests.support.fix_consumers import end_pauses, position_of
from tests.support.own_target import Own
from tests.support.paper import Paper, PaperBridge, ToPaper
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20")]


class Slow(Own):
    """A bridge that notes whether something is asked meanwhile, and fails when it is told to."""

    sends_only, promises = False, True

    def __init__(self):
        self.taken, self.states = [], []
        self.fails = {}

    def open(self):
        self.sends_only = self.promises

    def send(self, messages):
        self.states.append(connection.connection.info.transaction_status)
        if (error := self.fails.pop(len(self.states), None)) is not None:
            if isinstance(error, MessageRefused):
                self.taken.append(messages[0].event_id)
                return [None, error]
            raise error
        self.taken += [one.event_id for one in messages]
        return [None] * len(messages)


class Asking(Slow):
    """One that asks the database whether an event is allowed to be sent."""

    promises = False

    def send(self, messages):
        with connection.cursor() as cursor:
            cursor.execute("SELECT true")
        return super().send(messages)


@pytest.fixture
def served(things, make_relay):
    """A function that makes a relay to a target, with a worker that has sent its first event."""

    def make(target):
        server = server_of(make_relay(things, to=target, batch_size=2))
        fill(things, 0)
        assert serve(server) == 1
        return server

    yield make
    connection.close()


def test_the_next_batch_is_read_while_one_is_sent(served, things):
    target = Slow()
    server = served(target)
    fill(things, *range(1, 7))
    assert serve(server) == 6
    assert target.taken == [1, 2, 3, 4, 5, 6, 7]
    assert target.states[1:] == [TransactionStatus.ACTIVE, TransactionStatus.ACTIVE, TransactionStatus.IDLE]
    position = position_of(server.subscription.consumer)
    assert (position.position, position.number, position.handled, position.token) == (7, 7, 7, None)


def test_a_bridge_that_promises_nothing_may_use_the_database(served, things):
    target = Asking()
    server = served(target)
    fill(things, *range(1, 7))
    assert serve(server) == 6
    assert target.taken == [1, 2, 3, 4, 5, 6, 7]
    assert set(target.states) == {TransactionStatus.IDLE}


@pytest.mark.parametrize(
    "error", [TargetUnavailable("it is shut"), TargetUnavailable("it is shut", acknowledged=1), OSError("a fault")]
)
def test_a_target_that_fails_meanwhile_gets_the_rest_later(served, things, error):
    """What was read meanwhile is left, and what is said of the outage is written by the same connection."""
    target = Slow()
    target.fails = {3: error}
    server = served(target)
    fill(things, *range(1, 7))
    acknowledged = getattr(error, "acknowledged", 0)
    assert serve(server) == 2 + acknowledged
    consumer = server.subscription.consumer
    assert position_of(consumer).position == 3 + acknowledged
    assert "nothing can be sent since" in position_of(consumer).error
    end_pauses(consumer)
    while serve(server):
        pass
    assert target.taken == [1, 2, 3, *([] if acknowledged else [4]), 5, 6, 7]
    assert position_of(consumer).position == 7


def test_an_event_that_is_refused_meanwhile_is_a_dead_letter(served, things):
    target = Slow()
    target.fails = {2: MessageRefused("It is ugly.")}
    server = served(target)
    fill(things, *range(1, 7))
    while serve(server):
        pass
    assert target.taken == [1, 2, 4, 5, 6, 7]
    position = position_of(server.subscription.consumer)
    assert (position.position, position.handled, position.dead_lettered) == (7, 6, 1)


def test_a_bridge_that_promises_to_send_only_and_asks_the_database_is_found_out():
    paper = Paper()
    said = (
        r"(?s)ToPaper breaks 1 of \d+ promises of a bridge.*\n  sends_only: it says sends_only, and its send\(\) asked"
    )
    with pytest.raises(AssertionError, match=said):
        check_target(ToPaper(paper, breaks="asks the database"), received=lambda: paper.entries)


def test_a_bridge_that_does_not_promise_it_is_not_asked(monkeypatch):
    monkeypatch.setattr(PaperBridge, "sends_only", False)
    paper = Paper()
    found = check_target(ToPaper(paper, breaks="asks the database"), received=lambda: paper.entries)
    assert found["sends_only"] == "not checked: it doesn't say so"


@pytest.mark.parametrize("read_before", [False, True])  # the statement is prepared then
def test_waiting_for_the_next_batch_is_no_time_of_the_one_that_is_sent(things, make_relay, read_before):
    """A lock keeps the server from reading for longer than a batch may take to be sent."""
    limit = timedelta(milliseconds=200)
    target = Slow()
    server = server_of(make_relay(things, to=target, batch_size=2, timeout=limit))
    fill(things, 0)
    assert serve(server) == 1
    if read_before:
        fill(things, *range(4))
        assert serve(server) == 4
    before = [*target.taken]
    fill(things, *range(4))
    lease = server.claim()
    assert lease.read_on is not None
    other = psycopg.connect(**connection.get_connection_params())
    other.execute(f"LOCK TABLE {server._prepared.segment.table} IN ACCESS EXCLUSIVE MODE")
    watching = "SELECT cardinality(pg_blocking_pids(%s))"
    pid = connection.connection.info.backend_pid

    def unlock():
        with other:
            wait_until(lambda: other.execute(watching, [pid]).fetchone()[0], seconds=30, what="a read that waits")
            late = time.monotonic() + 5 * limit.total_seconds()
            wait_until(lambda: time.monotonic() > late, seconds=30, what="more time than a batch may take")

    renewal = LeaseRenewal("default", stop=lambda: None, end=lambda code: None)
    try:
        with renewal.renewing(lease), closing(other), ThreadPoolExecutor(1) as pool:
            unlocking = pool.submit(unlock)
            handler = BoundHandler(server.subscription.consumer)
            passed = server.serve(lease, handler, on_failure=log_failure(lease))
            unlocking.result()
    finally:
        renewal.close()
    assert lease.timed_out is None
    assert passed >= 2
    while serve(server):
        pass
    assert target.taken == [*before, *range(len(before) + 1, len(before) + 5)]
    assert position_of(server.subscription.consumer).failed == 0
    connection.close()


@pytest.mark.slow
def test_functions_in_the_settings_of_kafka_may_use_the_database(served, things, kafka):
    """They are called while messages are sent: one that logs in may get its token from a table."""
    told, failed = [], []

    def tell(figures):
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT true")
            told.append(connection.connection.info.transaction_status)
        except Error as error:
            failed.append(error)

    options = {**kafka.options, "statistics.interval.ms": 1, "stats_cb": tell}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": options}}):
        server = served(kafka_topic("shop.things"))
        fill(things, *range(1, 21))
        while serve(server):
            pass
    assert told
    assert not failed
    assert set(told) == {TransactionStatus.IDLE}
    assert position_of(server.subscription.consumer).position == 21


@pytest.mark.parametrize(("options", "promised"), [({}, True), ({"stats_cb": lambda figures: None}, False)])
@pytest.mark.parametrize("by", [{}, {"transactional_id": "shop"}])
def test_kafka_promises_to_send_only_where_the_settings_have_no_functions(by, options, promised):
    broker = {"bootstrap.servers": "127.0.0.1:1", **options}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": broker}}):
        bridge = kafka_topic("shop.things", **by).bridge()
        bridge.open()
        try:
            assert bridge.sends_only is promised
        finally:
            bridge.close()


class ByTable(PLAIN):
    """What logs in to RabbitMQ by a password that is in a table."""

    def __init__(self):
        super().__init__("guest", "guest")
        self.told, self.failed = [], []

    __slots__ = ("failed", "told")

    def start(self, connected):
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT true")
            self.told.append(connection.connection.info.transaction_status)
        except Error as error:
            self.failed.append(error)
        return super().start(connected)


@pytest.mark.slow
def test_what_logs_in_to_rabbitmq_may_use_the_database(things, make_relay, rabbitmq, monkeypatch):
    """A connection that ended while it was idle is replaced while a batch is sent."""
    monkeypatch.setattr(rabbitmq_bridge, "IDLE", 0.0)
    rabbitmq.declare("things")
    login = ByTable()
    options = {**rabbitmq.options, "authentication": login}
    try:
        with override_settings(DJANGO_EVENTS={"BROKERS": {"rabbitmq": options}}):
            server = server_of(make_relay(things, to=rabbitmq_queue("things"), batch_size=2))
            with closing(BoundHandler(server.subscription.consumer)) as handler:
                fill(things, 0)
                assert serve(server, handler) == 1
                rabbitmq.control("close_all_connections", "test")
                fill(things, *range(1, 7))
                while serve(server, handler):
                    pass
        assert [entry.address for entry in rabbitmq.entries("things")] == [f"things/{n}" for n in range(1, 8)]
    finally:
        rabbitmq.remove("things")
        connection.close()
    assert not login.failed
    assert login.told == [TransactionStatus.IDLE] * 2


@pytest.mark.slow
def test_rabbitmq_promises_to_send_only_where_no_function_of_the_settings_runs_meanwhile(rabbitmq):
    for options, promised in [({}, True), ({"authentication": ByTable()}, False), ({"on_open": print}, False)]:
        known = {"BROKERS": {"rabbitmq": {**rabbitmq.options, **options}}}
        with override_settings(DJANGO_EVENTS=known), closing(rabbitmq_queue("things").bridge()) as bridge:
            bridge.open()
            assert bridge.sends_only is promised
