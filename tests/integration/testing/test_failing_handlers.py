"""drain(): errors of handlers, raised or judged as a worker would."""

import logging
from contextlib import suppress
from datetime import timedelta
from unittest import mock

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from django_events import Draft, Ignore, RetryLater, consumer
from django_events.consuming.handlers import BrokenTransaction
from django_events.exceptions import HandlerNotFound, LeaseLost, WorkerEnded
from django_events.models import DeadLetter, Position
from django_events.operations import redrive
from django_events.testing import drain
from testproject.shop.models import Invoice, Product
from tests.integration.testing.conftest import (
    AT_ONCE,
    LATER,
    ONCE,
    assert_nothing_is_leased,
    in_a_transaction,
    in_autocommit,
    position_of,
    stock,
)


def test_an_error_is_raised_as_it_is_with_a_note(anywhere, things):
    @consumer(things, name="fail")
    def fail(event):
        stock(event.value)
        if event.value == "cup":
            raise KeyError("no cups")

    for sku in ("tea", "cup", "pot"):
        things.publish(sku)
    with pytest.raises(KeyError, match="no cups") as raised:
        drain()

    assert raised.value.__notes__ == ["Consumer 'fail', event things/2, attempt 1. Nothing of it is settled."]
    assert raised.value.__context__ is None
    assert raised.traceback[-1].name == "fail"
    assert [product.sku for product in Product.objects.all()] == ["tea"]
    position = position_of("fail")
    assert (position.position, position.attempts, position.failed, position.error) == (1, 0, 0, "")
    assert_nothing_is_leased()


def test_an_event_that_failed_comes_again(anywhere, things, caplog):
    handler = mock.Mock(side_effect=[ValueError, None])
    consumer(things, name="fail")(handler)
    things.publish(1)
    with pytest.raises(ValueError):
        drain()

    assert drain() == 1
    assert [call.args[0].attempt for call in handler.call_args_list] == [1, 1]
    assert not caplog.records, "no worker died, and none took over"


def test_an_error_of_a_batch_is_raised_by_the_first_call(anywhere, things):
    handler = mock.Mock(side_effect=ZeroDivisionError)
    consumer(things, name="fail", batch_size=10)(handler)
    things.publish_many([Draft(value=n) for n in range(3)])
    with pytest.raises(ZeroDivisionError) as raised:
        drain()

    assert handler.call_count == 1
    [note] = raised.value.__notes__
    assert note.startswith("Consumer 'fail', one of the events things/1 to things/3, attempt 1.")
    assert position_of("fail").position == 0
    assert_nothing_is_leased()


def test_an_error_of_the_database_is_raised_as_it_is(anywhere, things):
    @consumer(things, name="fail")
    def fail(event):
        stock("tea")
        stock("tea")

    things.publish(1)
    with pytest.raises(IntegrityError):
        drain()

    assert not Product.objects.exists()
    assert position_of("fail").position == 0


@in_a_transaction
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, pytest.fail.Exception])
def test_what_is_no_exception_comes_out_too(things, error):
    consumer(things, name="fail")(mock.Mock(side_effect=error))
    things.publish(1)
    with pytest.raises(error):
        drain()

    assert_nothing_is_leased()


def test_a_swallowed_error_of_the_database_is_told(anywhere, things):
    @consumer(things, name="swallow")
    def swallow(event):
        stock("tea")
        with suppress(IntegrityError):
            stock("tea")

    things.publish(1)
    with pytest.raises(BrokenTransaction, match=r"Wrap what may fail in transaction.atomic"):
        drain()

    assert not Product.objects.exists()


@in_autocommit
def test_a_handler_that_closes_its_connection_leaves_no_lease(things):
    consumer(things, name="close")(lambda event: connection.close())
    things.publish(1)
    with pytest.raises(BrokenTransaction, match="The handler closed its connection"):
        drain()

    assert_nothing_is_leased()


@in_autocommit
def test_an_error_at_commit_is_raised(things):
    """Of a deferred constraint: the handler itself came back."""
    consumer(things, name="fail")(lambda event: Invoice.objects.create(order_id=7, amount=1, event=event.address))
    things.publish(1)
    with pytest.raises(IntegrityError, match="shop_invoice") as raised:
        drain()

    assert raised.value.__notes__ == ["Consumer 'fail', event things/1, attempt 1. Nothing of it is settled."]
    assert position_of("fail").position == 0
    assert_nothing_is_leased()


def test_an_event_whose_worker_ended_too_often_is_raised_or_buried(anywhere, things):
    handler = mock.Mock()
    consumer(things, name="look", retry=ONCE)(handler)
    drain()
    things.publish(1)
    Position.objects.update(attempted=1, attempts=1)

    with pytest.raises(WorkerEnded):
        drain()
    assert drain(raise_errors=False) == 1
    assert DeadLetter.objects.get().error.startswith("WorkerEnded")
    handler.assert_not_called()


@in_a_transaction
def test_a_filter_that_fails_names_its_consumer_and_leaves_the_transaction_usable(things):
    where = '$.at.datetime() < "2020-01-01T00:00:00+00".datetime()'
    consumer(things, name="early", where=where)(print)
    things.publish({"at": "2020-01-01T00:00:00"})
    with pytest.raises(DatabaseError, match="without time zone usage") as raised:
        drain()

    assert "consumer 'early' of 'things'" in raised.value.__notes__[0]
    assert position_of("early").position == 0
    assert_nothing_is_leased()


def test_not_raised_it_is_retried_when_it_is_due(anywhere, things, seen):
    @consumer(things, name="fail", retry=LATER)
    def fail(event):
        seen.append(event.attempt)
        raise ValueError("not yet")

    things.publish(1)

    assert drain(raise_errors=False) == 0
    assert drain(raise_errors=False) == 0
    assert seen == [1]
    assert_nothing_is_leased()
    waiting = position_of("fail")
    assert (waiting.position, waiting.attempts, waiting.error) == (0, 1, "ValueError: not yet")

    Position.objects.update(retry_at=waiting.retry_at - timedelta(hours=2))
    assert drain(raise_errors=False) == 0
    assert seen == [1, 2]


def test_not_raised_it_becomes_a_dead_letter_after_its_attempts(anywhere, things, seen):
    @consumer(things, name="fail", retry=AT_ONCE)
    def fail(event):
        stock(f"{event.value} {event.attempt}")
        seen.append(event.attempt)
        if event.value == "tea":
            raise ValueError("out of tea")

    things.publish("tea")
    things.publish("cup")

    assert drain(raise_errors=False) == 2
    assert seen == [1, 2, 3, 1]
    [letter] = DeadLetter.objects.all()
    assert (letter.event_id, letter.attempts, letter.error) == (1, 3, "ValueError: out of tea")
    assert [product.sku for product in Product.objects.all()] == ["cup 1"]


@in_a_transaction
def test_a_redriven_dead_letter_is_handled(things):
    handler = mock.Mock(side_effect=[ValueError, None])
    consumer(things, name="fail", retry=ONCE)(handler)
    things.publish("tea")
    drain(raise_errors=False)
    redrive(DeadLetter.objects.all())

    assert drain() == 1
    assert not DeadLetter.objects.exists()


@in_a_transaction
def test_a_partition_that_stops_ends_the_drain(things, seen):
    @consumer(things, name="fail", retry=ONCE, on_exhausted="stop")
    def fail(event):
        seen.append(event.id)
        raise ValueError

    things.publish(1)
    things.publish(2)

    assert drain(raise_errors=False) == 0
    assert seen == [1]
    assert position_of("fail").stopped_at is not None


def test_not_raised_a_batch_goes_on_one_by_one(anywhere, things, seen):
    @consumer(things, name="fail", batch_size=10, retry=ONCE)
    def fail(events):
        seen.append([event.value for event in events])
        if 1 in seen[-1]:
            raise ValueError

    things.publish_many([Draft(value=n) for n in range(3)])

    assert drain(raise_errors=False) == 3
    assert seen == [[0, 1, 2], [0], [1], [2]]
    assert [letter.event_id for letter in DeadLetter.objects.all()] == [2]


@in_a_transaction
def test_retry_later_and_ignore_are_followed_and_not_raised(things, caplog):
    @consumer(things, name="decide", retry=LATER)
    def decide(event):
        stock(event.value)
        raise Ignore("no tea") if event.value == "tea" else RetryLater(after=timedelta(hours=1))

    things.publish("tea")
    things.publish("cup")
    with caplog.at_level(logging.INFO, "django_events.consumer"):
        assert drain() == 1

    assert not Product.objects.exists()
    position = position_of("decide")
    assert (position.position, position.ignored, position.attempted, position.attempts) == (1, 1, 2, 1)
    ignored, retried = (record.getMessage() for record in caplog.records)
    assert "event things/1, attempt 1: Ignore: no tea." in ignored
    assert "event things/2, attempt 1: RetryLater: to be tried again after 1:00:00." in retried


@in_a_transaction
def test_a_handler_that_is_not_there_is_an_error_when_it_is_needed(things):
    consumer(things, name="gone", handler="testproject.shop.nowhere.handle")
    drain()
    things.publish(1)
    with pytest.raises(HandlerNotFound, match=r"testproject.shop.nowhere.handle"):
        drain()

    assert_nothing_is_leased()


@in_a_transaction
def test_a_lease_that_a_handler_loses_is_told(things):
    @consumer(things, name="rob")
    def rob(event):
        Position.objects.update(token=None)

    things.publish(1)
    with pytest.raises(LeaseLost):
        drain()

    assert_nothing_is_leased()


def test_effects_of_a_handler_without_transaction_stay_when_it_fails(anywhere, things):
    @consumer(things, name="fail", transactional=False)
    def fail(event):
        stock("tea")
        raise ValueError

    things.publish(1)
    with pytest.raises(ValueError):
        drain()

    assert Product.objects.get().sku == "tea"
    assert position_of("fail").position == 0


@in_a_transaction
@pytest.mark.parametrize("raise_errors", [True, False])
def test_an_error_of_the_database_breaks_the_test_no_more_than_a_worker(things, raise_errors):
    @consumer(things, name="fail", transactional=False, retry=ONCE)
    def fail(event):
        stock("tea")
        stock("tea")

    things.publish(1)
    if raise_errors:
        with pytest.raises(IntegrityError):
            drain()
    else:
        assert drain(raise_errors=False) == 1

    assert DeadLetter.objects.exists() is not raise_errors
    assert_nothing_is_leased()


def test_a_handler_without_transaction_may_open_a_durable_one(anywhere, things, seen):
    @consumer(things, name="durable", transactional=False)
    def durable(event):
        with transaction.atomic(durable=True):
            seen.append(stock("tea"))

    things.publish(1)

    assert drain() == 1
    assert Product.objects.get() == seen[0]
