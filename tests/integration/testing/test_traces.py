"""drain(): nothing is left in the session, the process or the database; async handlers work in place."""

import threading
import unittest
from datetime import timedelta
from unittest import mock

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction
from django.test import TestCase

from django_events import Draft, consumer
from django_events.models import BufferedEvent, Consumer, DeadLetter, Event, Position
from django_events.testing import assert_published, drain, published
from testproject.shop.models import Product
from tests.integration.testing.conftest import (
    ONCE,
    assert_nothing_is_leased,
    backends,
    in_a_transaction,
    in_autocommit,
    pid,
    position_of,
    settings_of_the_session,
    stock,
)


@pytest.mark.parametrize("transactional", [True, False])
def test_an_async_handler_works_on_the_connection_of_the_test(anywhere, things, seen, transactional):
    @consumer(things, name="look", transactional=transactional)
    async def look(event):
        await Product.objects.acreate(sku=event.value, price=1, on_shelf=await Product.objects.acount())
        seen.append((await sync_to_async(pid)(), await sync_to_async(threading.get_ident)()))

    threads = set(threading.enumerate())
    before = backends()
    things.publish("tea")
    things.publish("cup")

    assert drain() == 2
    assert list(Product.objects.order_by("id").values_list("sku", "on_shelf")) == [("tea", 0), ("cup", 1)]
    assert seen == [(pid(), threading.get_ident())] * 2
    assert backends() <= before
    assert set(threading.enumerate()) <= threads


def test_an_error_of_an_async_handler_is_raised_and_undone(anywhere, things):
    @consumer(things, name="fail")
    async def fail(event):
        await Product.objects.acreate(sku="tea", price=1, on_shelf=1)
        raise ValueError("no")

    things.publish(1)
    with pytest.raises(ValueError, match="no"):
        drain()

    assert not Product.objects.exists()


@in_a_transaction
def test_an_async_handler_may_publish(things, make_topic, seen):
    others = make_topic("others")

    @consumer(things, name="forward", batch_size=5)
    async def forward(events):
        for event in events:
            await others.apublish(event.value, key=event.key)

    consumer(others, name="look")(seen.append)
    things.publish(1)

    assert drain() == 2
    assert seen[0].value == 1


@pytest.mark.slow
@in_autocommit
def test_nothing_is_left_when_the_transaction_is_rolled_back(things):
    consumer(things, name="look")(lambda event: stock(event.value))
    consumer(things, name="fail", retry=ONCE)(mock.Mock(side_effect=ValueError))
    drain()
    with transaction.atomic():
        things.publish("tea")
        assert drain(raise_errors=False) == 2
        assert Event.objects.of(things).exists() and DeadLetter.objects.exists()
        transaction.set_rollback(True)

    for model in (Product, Event, BufferedEvent, DeadLetter):
        assert not model.objects.exists()
    assert set(Position.objects.values_list("position", "handled", "failed")) == {(0, 0, 0)}
    things.publish("cup")
    assert drain(raise_errors=False) == 2
    assert Event.objects.at(things, 1).value == "cup"


@in_autocommit
def test_a_plain_test_case_commits_nothing(things, connect, seen):
    """As a runner runs it, and another session looks on."""
    stranger = connect(autocommit=True)

    class Case(TestCase):
        def test(self):
            @consumer(things, name="look")
            def look(event):
                stock(event.value)

            things.publish("tea")
            seen.append(drain())
            seen.append(len(assert_published(things, value="tea")))
            seen.append(stranger.execute("SELECT count(*) FROM django_events_event").fetchone()[0])
            seen.append(Product.objects.count())

    result = unittest.TestResult()
    unittest.TestSuite([Case("test")]).run(result)

    assert not result.errors and not result.failures, result
    assert seen == [1, 1, 0, 1]
    for model in (Product, Event, BufferedEvent):
        assert not model.objects.exists()
    assert not Consumer.objects.filter(name="look").exists()


@pytest.mark.parametrize("commits", ["on", "off", "local"])
def test_settings_of_the_session_are_as_they_were(anywhere, things, commits):
    """Through a batch that fails, attempts that are counted, and an error that is raised."""

    @consumer(things, name="fail", batch_size=10, retry=ONCE)
    def fail(events):
        if 1 in [event.value for event in events]:
            raise ValueError

    with connection.cursor() as cursor:
        cursor.execute(f"SET synchronous_commit = {commits}")
    try:
        before = settings_of_the_session()
        things.publish_many([Draft(value=n) for n in range(3)])
        assert drain(raise_errors=False) == 3
        assert settings_of_the_session() == before
        things.publish(1)
        with pytest.raises(ValueError):
            drain()
        assert settings_of_the_session() == before
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET synchronous_commit")


@in_autocommit
def test_a_transaction_of_the_users_keeps_its_settings_and_can_be_committed(things):
    consumer(things, name="look")(lambda event: stock(event.value))
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")
        before = settings_of_the_session()
        things.publish("tea")
        assert drain() == 1
        assert settings_of_the_session() == before

    assert Product.objects.get().sku == "tea"
    assert position_of("look").position == 1


@in_autocommit
def test_after_an_error_an_outer_transaction_goes_on(things):
    @consumer(things, name="fail")
    def fail(event):
        stock(event.value)
        stock(event.value)

    with transaction.atomic():
        stock("cup")
        things.publish("tea")
        with pytest.raises(IntegrityError):
            drain()
        assert not connection.needs_rollback
        stock("pot")

    assert [product.sku for product in Product.objects.order_by("id")] == ["cup", "pot"]
    assert [event.value for event in published(things)] == ["tea"]
    assert_nothing_is_leased()


def test_no_thread_no_connection_and_no_lease_is_left(anywhere, things, seen):
    consumer(things, name="look", timeout=timedelta(seconds=5))(
        lambda event: seen.append((pid(), threading.get_ident()))
    )
    threads, before, mine = set(threading.enumerate()), backends(), pid()
    things.publish(1)
    drain()

    assert seen == [(mine, threading.get_ident())]
    assert set(threading.enumerate()) <= threads
    assert backends() <= before
    assert_nothing_is_leased()


@in_a_transaction
def test_on_commit_functions_are_left_to_the_test(things, seen, django_capture_on_commit_callbacks):
    """Those of handlers, and no others."""

    @consumer(things, name="look")
    def look(event):
        transaction.on_commit(lambda: seen.append(event.id))

    things.publish(1)
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        drain()
        assert seen == []

    assert seen == [1]
    assert len(callbacks) == 1


@in_autocommit
def test_on_commit_functions_run_after_each_event_in_autocommit(things, seen):
    @consumer(things, name="look")
    def look(event):
        seen.append(event.id)
        transaction.on_commit(lambda: seen.append("committed"))

    things.publish(1)
    things.publish(2)
    drain()

    assert seen == [1, "committed", 2, "committed"]
