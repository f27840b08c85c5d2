"""Queues whose claims are prepared: the same deliveries as ever, with their events read in the same message."""

import threading
from datetime import timedelta

import pytest
from django.db import connection

from django_events import Backoff, Draft, publish, publish_many
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import log_failure
from django_events.consuming.queues.deliveries import Queue
from django_events.consuming.queues.server import QueueServer
from django_events.consuming.subscriptions import subscriptions
from django_events.models import DeadLetter, Delivery, DeliveryLease, PastDelivery
from django_events.sql.prepared import SharedSession
from django_events.workers.loop import connect_for_work
from tests.integration.consuming.test_prepared_claims import names, prepared_scans
from tests.support.fix_consumers import working
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")
AT_ONCE = Backoff(attempts=3, base=timedelta(0))


def fill(topic, *values, **fields):
    publish_many(topic, [Draft(value=value, **fields) for value in values])
    transfer_all()


def server_of(consumer):
    connect_for_work("default")
    session = SharedSession("default")
    session.renew()
    [subscription] = subscriptions("default", [consumer])
    return QueueServer(Queue(subscription, holder="a test", session=session))


def serve(server):
    lease = server.claim()
    if lease is None:
        return 0
    return server.serve(lease, BoundHandler(server.subscription.consumer), on_failure=log_failure(lease))


@pytest.fixture
def make_warm(things, make_consumer):
    """A server of a queue consumer that has served its first event."""
    made = []

    def make(**options):
        seen = []
        consumer = make_consumer(things, mode="queue", **{"handler": lambda event: seen.append(event.value), **options})
        server = server_of(consumer)
        server.seen = seen
        fill(things, "first")
        assert serve(server) == 1
        assert server.queue._segment is not None
        made.append(server)
        return server

    yield make
    connection.close()


@pytest.mark.requirement("S2")
@pytest.mark.parametrize("ordered", [False, True])
def test_it_reads_what_it_claims(make_warm, things, ordered, monkeypatch):
    warm = make_warm(ordered=ordered)
    fill(things, 1, 2, 3, key="a")
    monkeypatch.setattr("django_events.consuming.queues.claimed_deliveries.bounded", None)  # nothing is read apart
    claimed = warm.claim()

    assert [event.value for event in claimed.events] == [1, 2, 3]
    assert set(claimed.attempts.values()) == {0}
    assert DeliveryLease.objects.get().token == claimed.token
    assert warm.serve(claimed, BoundHandler(warm.subscription.consumer), on_failure=log_failure(claimed)) == 3
    assert not Delivery.objects.exists()


@pytest.mark.slow
def test_events_of_several_segments_and_large_ones_are_read_as_ever(make_topic, make_consumer):
    things, seen = make_topic("things", segment_size=100), []
    server = server_of(make_consumer(things, mode="queue", handler=lambda event: seen.append(event.value)))
    values = []
    for n in range(40):
        more = [n, n + 0.5, "x" * 5_000 if n % 7 == 0 else "x", {"n": n}, n, n, n]
        values += more
        fill(things, *more)
        server.queue._prepare_at = 0.0
        while serve(server):
            pass
    connection.close()

    assert seen == values
    assert not Delivery.objects.exists()


@pytest.mark.requirement("S4")
def test_retries_and_dead_letters_are_as_ever(make_warm, things):
    calls = []

    def fail(event):
        calls.append((event.value, event.attempt))
        if event.value == "bad":
            raise ValueError("bad")

    warm = make_warm(handler=fail, retry=AT_ONCE, history=timedelta(days=1))
    calls.clear()
    fill(things, 1, "bad", 2)
    while serve(warm) or Delivery.objects.exists():
        pass

    assert [one for one in calls if one[0] == "bad"] == [("bad", n) for n in (1, 2, 3)]
    assert DeadLetter.objects.get().value == "bad"
    assert PastDelivery.objects.count() == 4


def test_what_another_worker_lost_is_taken_over(make_warm, things):
    warm = make_warm()
    fill(things, 1, 2)
    lost = warm.claim()
    lost.give_up()
    taken = warm.claim()
    assert taken.lost_token == lost.token
    assert warm.serve(taken, BoundHandler(warm.subscription.consumer), on_failure=log_failure(taken)) == 2
    assert warm.seen == ["first", 1, 2]


@pytest.mark.parametrize("forget", ["DISCARD ALL", "DEALLOCATE ALL"])
def test_a_session_that_was_told_to_forget_claims_as_ever(make_warm, things, forget):
    warm = make_warm()
    fill(things, 1)
    assert serve(warm) == 1
    with connection.cursor() as cursor:
        cursor.connection.pgconn.exec_(forget.encode())
    fill(things, 2)
    assert serve(warm) == 1
    assert warm.queue._plain_until > 0
    warm.queue._plain_until = 0.0  # as if the while were over
    fill(things, 3)
    assert serve(warm) == 1
    assert warm.seen == ["first", 1, 2, 3]


@pytest.mark.slow
@pytest.mark.requirement("S2")
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.few(1)
def test_of_many_at_once_each_delivery_is_handled_once(things, make_consumer, ordered):
    seen, errors, over = [], [], threading.Event()
    consumer = make_consumer(
        things, mode="queue", ordered=ordered, handler=lambda event: seen.append((event.key, event.value))
    )
    fill(things, "first", key="0")

    def work():
        try:
            server = server_of(consumer)
            while not over.is_set() or Delivery.objects.exists():
                serve(server)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(200):
        publish(things, n, key=str(n % 5))
        transfer_all()
    over.set()
    for thread in threads:
        thread.join()

    assert errors == []
    assert sorted(value for _, value in seen if value != "first") == list(range(200))
    if ordered:
        for key in range(5):
            of_key = [value for of, value in seen if of == str(key) and value != "first"]
            assert of_key == sorted(of_key)


@pytest.mark.slow
def test_a_worker_serves_a_queue_by_it(things, make_consumer):
    seen = []
    consumer = make_consumer(things, mode="queue", handler=lambda event: seen.append(event.value))
    with working(consumer):
        for n in range(20):
            fill(things, n)
            wait_until(lambda n=n: len(seen) == n + 1, what=f"event {n}")
    assert seen == list(range(20))


@pytest.mark.requirement("D1")
@pytest.mark.parametrize("ordered", [False, True])
def test_its_plans_are_by_index_though_they_were_made_for_empty_tables(make_warm, things, ordered):
    warm = make_warm(ordered=ordered)
    fill(things, 1, key="a")
    assert serve(warm) == 1
    fill(things, *range(10_000), key="a")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_events_topic")  # a change of statistics of another table plans nothing anew

    found = set().union(*(prepared_scans(name) for name in names()))
    assert len(names()) == 4
    assert not any(kind in ("Seq Scan", "Bitmap Heap Scan") for kind, _ in found)
    assert {"django_events_delivery", warm.queue._segment.table} <= {table for _, table in found}
