"""What a handler publishes says because of which event: by every way to publish, and of no other event."""

import asyncio
from contextlib import closing
from contextlib import suppress as ignoring
from datetime import timedelta

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection, connections, transaction
from django.utils import timezone

from django_events import (
    Backoff,
    BufferedWriter,
    Draft,
    apublish,
    claim,
    event_context,
    publish,
    publish_many,
    suppress,
)
from django_events.models import Event, ScheduledEvent, Topic
from django_events.operations import publish_again, redrive, replay
from django_events.publishing import session_settings
from django_events.publishing.session_settings import SQL
from django_events.statements import log_table
from testproject.shop.models import Order, Payment, Product
from tests.support.fix_consumers import dead_letters, exhaust, run_once, serve_due
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.requirement("X16"), pytest.mark.usefixtures("transactional_db")]

AT_ONCE = Backoff(attempts=3, base=timedelta(0))


@pytest.fixture
def results(make_topic):
    return make_topic("results")


def causes(topic="results"):
    """Of the events in the log, in their order: what they are, and because of which event."""
    transfer_all()
    return list(Event.objects.since(topic).values_list("value", "metadata__caused_by"))


@pytest.fixture
def stock(shelf):
    """What is captured of the product: what is on the shelf, and because of which event."""
    yield lambda: [(value["on_shelf"], cause) for value, cause in causes("stock")]
    # The topics are the test project's: what other tests find in their logs is not to be ours.
    transfer_all()
    for topic in Topic.objects.filter(name__in=["stock", "payments"]):
        ask_nothing(f"DELETE FROM {log_table(topic.pk)}")


def ask(statement, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()


@pytest.mark.parametrize("mode", ["stream", "queue"])
@pytest.mark.parametrize("transactional", [True, False])
def test_each_event_is_the_cause_of_what_its_handler_publishes(make_topic, make_consumer, results, mode, transactional):
    def handle(event):
        publish(results, event.value)
        publish_many(results, [Draft(value=event.value)])
        publish_many(results, [Draft(value=event.value, metadata={"n": n}) for n in range(101)])

    topic = make_topic()
    consumer = make_consumer(topic, mode=mode, transactional=transactional, handler=handle, retry=AT_ONCE)
    fill_topic(topic, "a", "b", "c")
    run_once(consumer)

    assert causes() == [(v, f"things/{i}") for i, v in enumerate("abc", 1) for _ in range(103)]


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_async_handlers(make_topic, make_consumer, results, mode):
    async def handle(event):
        await apublish(results, event.value)
        await sync_to_async(publish)(results, event.value)
        await asyncio.gather(*[apublish(results, event.value) for _ in range(3)])

    topic = make_topic()
    fill_topic(topic, "a", "b")
    run_once(make_consumer(topic, mode=mode, handler=handle, transactional=False))

    assert causes() == [("a", "things/1")] * 5 + [("b", "things/2")] * 5


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_a_list_of_one_has_a_cause_and_a_longer_one_only_what_the_handler_says(
    make_topic, make_consumer, results, mode
):
    def handle(events):
        publish(results, "all")
        for event in events:
            publish(results, event.value, metadata={"caused_by": event.address})
            with event_context(caused_by=event.address):
                publish(results, event.value)

    topic = make_topic()
    fill_topic(topic, "a", "b", "c")
    run_once(make_consumer(topic, mode=mode, handler=handle, batch_size=2))

    a, b, c = (("a", "things/1"), ("b", "things/2"), ("c", "things/3"))
    assert causes() == [("all", None), a, a, b, b, ("all", "things/3"), c, c]


def test_scheduled_events_and_those_with_a_dedup_key(make_topic, make_consumer, results):
    def handle(event):
        publish(results, event.value, publish_at=timezone.now() + timedelta(days=1))
        publish(results, event.value, dedup_key="one")
        ask("SELECT django_events_schedule('results', now() + interval '1 day', '1')")

    topic = make_topic()
    fill_topic(topic, "a", "b")
    run_once(make_consumer(topic, handler=handle))

    scheduled = ScheduledEvent.objects.order_by("pk").values_list("metadata__caused_by", flat=True)
    assert list(scheduled) == ["things/1", "things/1", "things/2", "things/2"]
    assert causes() == [("a", "things/1")]


def test_an_outbox_and_a_captured_table(make_topic, make_consumer, shelf, stock):
    def handle(event):
        order = Order.objects.create(customer="c", product=shelf, quantity=1, total=1)
        Payment.objects.create(order=order, amount=1)
        Product.objects.filter(pk=shelf.pk).update(on_shelf=event.value)

    topic = make_topic()
    fill_topic(topic, 1, 2)
    run_once(make_consumer(topic, handler=handle))

    assert [cause for _, cause in causes("payments")] == ["things/1", "things/2"]
    assert stock() == [(1, "things/1"), (2, "things/2")]


@pytest.fixture
def restocked(shelf):
    """A function of the site's own that writes to a captured table, called by a SELECT."""
    ask_nothing(
        "CREATE FUNCTION restocked(stock int) RETURNS int LANGUAGE sql AS "
        "$$ UPDATE shop_product SET on_shelf = stock RETURNING 1 $$"
    )
    yield
    ask_nothing("DROP FUNCTION restocked")


def ask_nothing(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.parametrize("transactional", [True, False])
def test_sql_functions(make_topic, make_consumer, results, transactional):
    def handle(event):
        ask("SELECT django_events_publish('results', to_jsonb(%s::text))", event.value)
        ask("SELECT django_events_publish('results', '0', metadata => '{\"caused_by\": \"me\", \"n\": 1}')")
        ask("SELECT django_events_publish('results', '1', metadata => '[]')")

    topic = make_topic()
    fill_topic(topic, "a", "b")
    run_once(make_consumer(topic, handler=handle, transactional=transactional))

    a, b, own, none = ("a", "things/1"), ("b", "things/2"), (0, "me"), (1, None)
    assert causes() == [a, own, none, b, own, none]


def test_a_function_that_hides_what_it_writes_never_has_the_event_before_for_a_cause(
    make_topic, make_consumer, restocked, stock
):
    def handle(event):
        if event.value == 1:
            Product.objects.update(on_shelf=1)
        ask("SELECT restocked(%s)", event.value * 10)

    topic = make_topic()
    fill_topic(topic, 1, 2, 3)
    run_once(make_consumer(topic, handler=handle))

    assert stock() == [
        (1, "things/1"), (10, "things/1"), (20, "things/2"), (30, "things/3"),
    ]  # fmt: skip


def test_after_a_savepoint_is_rolled_back(make_topic, make_consumer, results, stock):
    """It takes along what was told inside of it."""

    def handle(event):
        try:
            with transaction.atomic():
                Product.objects.update(on_shelf=event.value)
                raise LookupError
        except LookupError:
            pass
        ask("SELECT django_events_publish('results', to_jsonb(%s::int))", event.value)
        Product.objects.update(on_shelf=event.value + 10)
        publish(results, event.value)

    topic = make_topic()
    fill_topic(topic, 1, 2)
    run_once(make_consumer(topic, handler=handle))

    assert causes() == [(1, "things/1"), (1, "things/1"), (2, "things/2"), (2, "things/2")]
    assert stock() == [(11, "things/1"), (12, "things/2")]


def test_a_buffered_writer_and_a_thread_of_its_own(make_topic, make_consumer, results, in_thread):
    def handle(event):
        with BufferedWriter(results) as writer:
            writer.publish(event.value)
        in_thread(publish, results, "thread").result()

    topic = make_topic()
    fill_topic(topic, "a", "b")
    run_once(make_consumer(topic, handler=handle))

    assert causes() == [("a", "things/1"), ("thread", None), ("b", "things/2"), ("thread", None)]


def test_a_copy_exists_because_of_the_event_in_hand_and_not_of_what_caused_the_original(
    make_topic, make_consumer, results
):
    def handle(event):
        publish_again(results, 1)

    topic = make_topic()
    with event_context(caused_by="elsewhere/7"):
        fill_topic(results, "original")
    fill_topic(topic, "a")
    run_once(make_consumer(topic, handler=handle))
    publish_again(results, 1)

    assert causes() == [("original", "elsewhere/7"), ("original", "things/1"), ("original", "elsewhere/7")]


def test_what_the_site_says_itself_wins(make_topic, make_consumer, results):
    def handle(event):
        publish(results, 1, metadata={"caused_by": "ticket 7"})
        publish(results, 2, metadata={"caused_by": None})
        with event_context(caused_by="block"):
            publish(results, 3)
            ask("SELECT django_events_publish('results', '4')")
        publish(results, 5)
        ask("SELECT django_events_publish('results', '6')")

    topic = make_topic()
    fill_topic(topic, "a")
    run_once(make_consumer(topic, handler=handle))

    assert causes() == [(1, "ticket 7"), (2, None), (3, "block"), (4, "block"), (5, "things/1"), (6, "things/1")]


def test_nothing_is_left_behind(make_topic, make_consumer, results, stock):
    def handle(event):
        Product.objects.update(on_shelf=event.value)
        transaction.on_commit(lambda: publish(results, "after the commit"))

    topic = make_topic()
    consumer = make_consumer(topic, handler=handle)
    fill_topic(topic, 1)
    with transaction.atomic():
        serve_due(consumer)
        publish(results, "in the same transaction")
        ask("SELECT django_events_publish('results', '\"by a function\"')")
        Product.objects.update(on_shelf=99)

    assert {cause for _, cause in causes()} == {None}
    assert stock() == [(1, "things/1"), (99, None)]


def test_an_attempt_that_is_rolled_back_leaves_nothing_and_a_later_one_its_own(make_topic, make_consumer, results):
    def handle(event):
        publish(results, event.attempt)
        if event.attempt < 3:
            raise ValueError

    topic = make_topic()
    consumer = make_consumer(topic, handler=handle, retry=AT_ONCE)
    fill_topic(topic, "a")
    exhaust(consumer)

    assert causes() == [(3, "things/1")]


def test_a_failed_event_does_not_touch_the_causes_of_those_that_are_handled_again_with_it(
    make_topic, make_consumer, results, stock
):
    def handle(event):
        Product.objects.update(on_shelf=event.value)
        publish(results, event.value)
        if event.value == 2 and event.attempt == 1:
            raise ValueError

    topic = make_topic()
    consumer = make_consumer(topic, handler=handle, retry=AT_ONCE)
    fill_topic(topic, 1, 2, 3)
    exhaust(consumer)

    assert causes() == [(1, "things/1"), (2, "things/2"), (3, "things/3")]
    assert stock() == [(1, "things/1"), (2, "things/2"), (3, "things/3")]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_redriven_and_replayed_events_are_the_cause_again(make_topic, make_consumer, results, mode):
    def handle(event):
        publish(results, event.attempt)
        if broken:
            raise ValueError

    broken = True
    topic = make_topic()
    consumer = make_consumer(topic, mode=mode, handler=handle, retry=Backoff(attempts=1))
    fill_topic(topic, "a")
    run_once(consumer)
    assert causes() == []
    broken = False
    assert redrive(dead_letters(consumer)) == 1
    run_once(consumer)
    assert [cause for _, cause in causes()] == ["things/1"]
    replay(consumer, first=1, last=1, reason="again")
    run_once(consumer)

    assert [cause for _, cause in causes()] == ["things/1", "things/1"]


def test_a_claim_says_it_by_a_block(make_topic, make_consumer, results):
    topic = make_topic()
    make_consumer(topic, mode="queue", handler=print, name="claimed")
    fill_topic(topic, "a", "b")
    with claim("claimed", 2) as claimed:
        for event in claimed.events:
            publish(results, event.value)
            with event_context(caused_by=event.address):
                publish(results, event.value)

    assert causes() == [("a", None), ("a", "things/1"), ("b", None), ("b", "things/2")]


def test_publishing_alone_tells_the_server_nothing(make_topic, make_consumer, results):
    """One statement, as outside of a handler: the metadata say it already."""

    def look(execute, statement, parameters, many, context):
        seen.append(context["cursor"].cursor)
        return execute(statement, parameters, many, context)

    def handle(event):
        with connection.execute_wrapper(look):
            publish(results, event.value)
        sent.append(bytes(seen[-1]._query.query))

    seen, sent = [], []
    topic = make_topic()
    fill_topic(topic, "a")
    run_once(make_consumer(topic, handler=handle))

    assert sent and not any(b"set_config" in one for one in sent)


def test_a_database_that_others_write_to_has_no_cause(make_topic, make_consumer, results):
    """A session that isn't Django's hears nothing."""

    def handle(event):
        parameters = connections["default"].get_connection_params()
        parameters = {k: v for k, v in parameters.items() if k in ("dbname", "user", "password", "host", "port")}
        with closing(psycopg.connect(**parameters, autocommit=True)) as other:
            other.execute("SELECT django_events_publish('results', '1')")

    topic = make_topic()
    fill_topic(topic, "a")
    run_once(make_consumer(topic, handler=handle))

    assert causes() == [(1, None)]


HEARS = "CREATE FUNCTION hears() RETURNS bigint "


@pytest.mark.parametrize(
    ("function", "heard"),
    [
        (None, False),
        (f"{HEARS} LANGUAGE sql AS 'SELECT 1::bigint'", False),
        (f"{HEARS} LANGUAGE sql AS $$SELECT django_events_publish('stock', '1')$$", True),
        (f"{HEARS} LANGUAGE sql BEGIN ATOMIC SELECT django_events_schedule('stock', now(), '1'); END", True),
        (f"{HEARS} LANGUAGE sql AS $$SELECT length(current_setting('django_events.context', true))::bigint$$", True),
    ],
    ids=["none", "another", "publishes", "has a body of its own", "reads it"],
)
def test_handlers_tell_a_database_only_if_a_function_there_hears_it(function, heard):
    with transaction.atomic():
        for (name,) in ask("SELECT oid::regprocedure FROM pg_proc WHERE prosrc LIKE '%%django_events.context%%'"):
            if not name.startswith("django_events_"):
                ask_nothing(f"DROP FUNCTION {name} CASCADE")
        if function:
            ask_nothing(function)
        assert ask(SQL.is_heard.text) == [(heard,)]
        transaction.set_rollback(True)


def test_what_no_function_hears_is_not_told(make_topic, make_consumer, stock, monkeypatch):
    """Neither in front of a statement, nor at its end."""

    def handle(event):
        Product.objects.update(on_shelf=event.value)
        told.append(ask("SELECT current_setting('django_events.context', true)"))

    told = []
    topic = make_topic()
    fill_topic(topic, 1, 2)
    consumer = make_consumer(topic, handler=handle)
    monkeypatch.setattr(session_settings, "_is_heard", lambda connection: False)
    run_once(consumer)

    assert {value for [[value]] in told} <= {None, ""}


@transaction.atomic
def restock(shelf, count):
    """A decorated function has one block of Django's for all its calls."""
    list(Product.objects.filter(pk=shelf.pk))
    Product.objects.filter(pk=shelf.pk).update(on_shelf=count)


def test_each_call_of_a_decorated_function_is_a_transaction_of_its_own(shelf, stock):
    with event_context(caused_by="a restock"):
        restock(shelf, 1)
        restock(shelf, 2)
        with ignoring(DatabaseError), transaction.atomic():
            restock(shelf, 3)
            ask("SELECT 1 / 0")
        restock(shelf, 4)
        with suppress():
            restock(shelf, 5)
            restock(shelf, 6)
    restock(shelf, 7)

    assert stock() == [(1, "a restock"), (2, "a restock"), (4, "a restock"), (7, None)]


def test_a_decorated_handler_is_called_again(make_topic, make_consumer, shelf, stock):
    calls = []

    @transaction.atomic
    def handle(event):
        restock(shelf, event.value)
        calls.append(event)
        if len(calls) == 1:
            raise ValueError("the first attempt fails")

    topic = make_topic()
    consumer = make_consumer(topic, mode="queue", handler=handle, transactional=False, retry=AT_ONCE)
    fill_topic(topic, 1)
    run_once(consumer)
    serve_due(consumer)

    assert stock() == [(1, "things/1")]


@pytest.mark.parametrize("many", [False, True])
def test_a_statement_that_was_never_sent_has_told_nothing(shelf, stock, many):
    with event_context(caused_by="a form"), transaction.atomic():
        with connection.cursor() as cursor, pytest.raises(DatabaseError):
            run = cursor.executemany if many else cursor.execute
            run("UPDATE shop_product SET on_shelf = %s", [[object()]] if many else [object()])
        Product.objects.filter(pk=shelf.pk).update(on_shelf=1)

    assert stock() == [(1, "a form")]
