"""deliver(): one call of a handler, as by a worker."""

import re
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from unittest import mock

import pytest
from django.db import DatabaseError

from django_events import Draft, ReceivedEvent, RetryLater, consumer
from django_events.consuming.handlers import BrokenTransaction
from django_events.exceptions import InvalidEvent, Refused, UnknownName
from django_events.models import Event, Position
from django_events.testing import deliver, drain, published
from testproject.shop.models import Product
from tests.integration.testing.conftest import in_a_transaction, stock


@in_a_transaction
def test_a_draft_is_delivered(things):
    @consumer(things, name="look")
    def look(event):
        stock("tea")
        return event

    event = deliver(look, Draft(value={"total": Decimal("2.50")}, type="thing.sold", key="1", metadata={"by": "Ada"}))

    assert isinstance(event, ReceivedEvent)
    assert (event.address, event.partition, event.number, event.attempt) == ("things/1", 0, 1, 1)
    assert (event.type, event.key, event.value) == ("thing.sold", "1", {"total": "2.50"})
    assert (event.metadata, event.body, event.consumer) == ({"by": "Ada"}, None, "look")
    assert event.published_at.tzinfo is not None and event.logged_at >= event.published_at
    assert Product.objects.exists()
    assert published() == []


@in_a_transaction
def test_delivering_moves_no_position(things):
    consumer(things, name="look")(lambda event: event.address)
    things.publish(1)
    drain()
    things.publish(2)
    before = list(Position.objects.order_by("id").values())

    assert deliver("look", *published(things)[1:]) == "things/1"
    assert deliver("look", Event.objects.at(things, 1)) == "things/1"
    assert list(Position.objects.order_by("id").values()) == before


@in_a_transaction
@pytest.mark.parametrize("content", [{"value": "text"}, {"value": None}, {"value": [1, {"a": 2.5}]}, {"body": b"\0\1"}])
def test_whatever_holds_an_event_can_be_delivered(lanes, content):
    @consumer(lanes, name="look")
    def look(event):
        return [getattr(event, name) for name in ("topic", "id", "partition", "number", "type", "key", "value", "body")]

    lanes.publish(1, partition=2)
    lanes.publish(**content, type="thing.made", key="a", partition=3)
    drain()
    stored = Event.objects.at(lanes, 2)
    expected = ["lanes", 2, 3, 1, "thing.made", "a", content.get("value"), content.get("body")]

    assert deliver(look, stored) == expected
    assert deliver(look, published(lanes)[1]) == expected
    consumer(lanes, name="same")(lambda event: event)
    received = deliver("same", stored)
    assert received.consumer == "same" and received.published_at == stored.published_at
    assert deliver(look, received.with_attempt(3)) == expected
    assert deliver("same", received.with_attempt(3)).attempt == 3


@in_a_transaction
def test_an_event_in_the_buffer_can_be_delivered(things):
    consumer(things, name="look")(lambda event: (event.id, event.partition, event.number, event.value))
    things.publish(7)

    assert deliver("look", published(things)[0]) == (1, 0, 1, 7)


@in_a_transaction
def test_a_handler_of_batches_gets_a_list(things):
    consumer(things, name="look", batch_size=3)(lambda events: [event.address for event in events])
    draft = Draft(value=1)

    assert deliver("look", draft) == ["things/1"]
    assert deliver("look", draft, draft) == ["things/1", "things/2"]
    for events in ([], [draft] * 4):
        with pytest.raises(ValueError, match=rf"Consumer 'look' takes 1 to 3 events at once, got {len(events)}"):
            deliver("look", *events)


@in_a_transaction
def test_a_handler_of_single_events_gets_one(things):
    consumer(things, name="look")(print)

    with pytest.raises(ValueError, match="Consumer 'look' takes one event at once, got 2"):
        deliver("look", Draft(value=1), Draft(value=1))


@pytest.mark.parametrize("transactional", [True, False])
def test_an_async_handler_is_delivered_to(anywhere, things, transactional):
    @consumer(things, name="look", transactional=transactional)
    async def look(event):
        return (await Product.objects.acreate(sku=event.value, price=1, on_shelf=1)).sku

    assert deliver(look, Draft(value="tea")) == "tea"
    assert Product.objects.get().sku == "tea"


def test_an_error_comes_out_as_it_is_and_undoes_what_was_done(anywhere, things):
    @consumer(things, name="fail")
    def fail(event):
        stock("tea")
        raise event.value and ValueError("no")

    with pytest.raises(ValueError, match="no") as raised:
        deliver(fail, Draft(value=1))

    assert not hasattr(raised.value, "__notes__")
    assert not Product.objects.exists()


def test_without_transaction_an_error_undoes_nothing(anywhere, things):
    @consumer(things, name="fail", transactional=False)
    def fail(event):
        stock("tea")
        raise RetryLater(after=timedelta(hours=1))

    with pytest.raises(RetryLater):
        deliver(fail, Draft(value=1))

    assert Product.objects.exists()


@in_a_transaction
def test_delivering_tells_of_a_swallowed_error_of_the_database(things):
    @consumer(things, name="swallow")
    def swallow(event):
        with suppress(DatabaseError):
            Product.objects.create(sku="tea", price=1, on_shelf=-1)

    with pytest.raises(BrokenTransaction):
        deliver(swallow, Draft(value=1))

    assert not Product.objects.exists()


@in_a_transaction
@pytest.mark.parametrize(
    ("filters", "named"),
    [
        ({"types": ["thing.made"]}, r"takes types=\('thing.made',\)"),
        ({"keys": ["a"]}, r"takes keys=\('a',\)"),
        ({"where": "$.n > 5"}, r"takes where='\$.n > 5'"),
    ],
)
def test_what_a_worker_would_pass_over_is_refused(things, filters, named):
    handler = mock.Mock()
    consumer(things, name="look", **filters)(handler)
    deliver("look", Draft(value={"n": 6}, type="thing.made", key="a"))
    handler.reset_mock()

    with pytest.raises(Refused, match=rf"{named}, and <event things/1 other, .* doesn't fit. A worker would pass"):
        deliver("look", Draft(value={"n": 5}, type="other", key="b"))
    with pytest.raises(Refused):
        deliver("look", Draft(body=b"\0", type="other"))
    handler.assert_not_called()


@in_a_transaction
def test_an_event_of_another_topic_is_refused(things, lanes):
    consumer(things, name="look")(print)
    lanes.publish(1)

    with pytest.raises(Refused, match=r"Consumer 'look' reads 'things', and <event lanes/1 .* is none of it"):
        deliver("look", published(lanes)[0])


@in_a_transaction
def test_what_is_no_event_is_refused(things):
    consumer(things, name="look")(print)

    with pytest.raises(InvalidEvent, match="exactly one of value and body"):
        deliver("look", Draft())
    with pytest.raises(TypeError, match=re.escape("{'n': 1} can't be delivered, expected a Draft or an event")):
        deliver("look", {"n": 1})
    with pytest.raises(UnknownName):
        deliver("lok", Draft(value=1))
