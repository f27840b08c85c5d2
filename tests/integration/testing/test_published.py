"""published() and assert_published(): what was published, and what was published instead."""

from datetime import timedelta
from decimal import Decimal
from unittest import mock

import pytest

from django_events import Draft, publish
from django_events.exceptions import UnknownName
from django_events.testing import assert_published, drain, published
from tests.integration.testing.conftest import in_a_transaction


def test_published_events_are_there_before_and_after_draining(anywhere, things):
    things.publish({"n": 1}, type="thing.made", key="a", metadata={"by": "Ada"})
    [before] = published(things)
    drain()
    [after] = published(things)
    things.publish({"n": 2})

    for event in (before, after):
        assert (event.topic, event.type, event.key, event.value) == ("things", "thing.made", "a", {"n": 1})
        assert (event.body, event.metadata) == (None, {"by": "Ada"})
    assert (before.id, before.number, before.partition, before.logged_at) == (None, None, None, None)
    assert (after.id, after.number, after.partition) == (1, 1, 0)
    assert after.published_at == before.published_at <= after.logged_at
    assert [event.value["n"] for event in published(things)] == [1, 2]


@in_a_transaction
def test_published_events_of_all_topics_are_in_order(things, lanes):
    things.publish(1)
    lanes.publish(2, partition=3)
    drain()
    lanes.publish(3, partition=2)
    things.publish(4)
    publish("orders", 5)

    assert [event.value for event in published()] == [1, 2, 3, 4, 5]
    assert [event.partition for event in published("lanes")] == [3, 2]
    assert [event.id for event in published()] == [1, 1, None, None, None]


@in_a_transaction
def test_published_tells_a_body_from_a_value(things):
    things.publish(body=b"\0")
    things.publish(None)
    drain()
    things.publish(body=b"\1")

    assert [(event.value, event.body) for event in published(things)] == [(None, b"\0"), (None, None), (None, b"\1")]


@in_a_transaction
def test_a_published_event_can_not_be_changed(things):
    things.publish(1)
    with pytest.raises(AttributeError):
        published(things)[0].value = 2


@in_a_transaction
def test_nothing_is_published():
    assert published() == published("orders") == []
    with pytest.raises(UnknownName, match=r"Did you mean 'orders'"):
        published("order")


@pytest.fixture
def sold(db, things):
    things.publish({"sku": "tea", "by": {"name": "Ada", "age": 36}, "tags": ["hot"]}, type="thing.sold", key="1")
    things.publish({"sku": "cup", "by": {"name": "Ben"}}, type="thing.sold", key="2")
    things.publish({"sku": "cup"}, type="thing.made", key="2")
    things.publish(body=b"\0", type="thing.raw")
    return things


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({}, [1, 2, 3, 4]),
        ({"type": "thing.sold"}, [1, 2]),
        ({"type": "thing.sold", "key": "2"}, [2]),
        ({"key": None}, [4]),
        ({"value": {"sku": "cup"}}, [3]),
        ({"value_contains": {"sku": "cup"}}, [2, 3]),
        ({"value_contains": {"by": {"name": "Ada"}}}, [1]),
        ({"value_contains": {"by": {}}}, [1, 2]),
        ({"value_contains": {"by": mock.ANY}}, [1, 2]),
        ({"value_contains": {"tags": ["hot"]}}, [1]),
        ({"value_contains": {"by": {"age": pytest.approx(36.0)}}}, [1]),
    ],
)
@pytest.mark.parametrize("drained", [False, True])
def test_what_was_published_is_found(sold, wanted, ids, drained):
    if drained:
        drain()
    events = published(sold)

    assert assert_published(sold, **wanted) == [events[id - 1] for id in ids]
    assert assert_published("things", **wanted, count=len(ids))


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "thing.lost"},
        {"key": "3"},
        {"key": 1},
        {"value": {"sku": "tea"}},
        {"value": None},
        {"value_contains": {"by": {"name": "Cleo"}}},
        {"value_contains": {"by": {"age": True}}},
        {"value_contains": {"tags": []}},
        {"value_contains": {"by": None}},
        {"value_contains": [1]},
    ],
)
def test_what_was_not_published_is_missed(sold, wanted):
    with pytest.raises(AssertionError, match=r"Expected at least 1 of 'things'.*, got none"):
        assert_published(sold, **wanted)
    assert assert_published(sold, **wanted, count=0) == []


@in_a_transaction
def test_values_are_compared_as_json(things):
    value = {"total": Decimal("25.00"), "took": timedelta(minutes=1), 7: (1, 2.5), "paid": True, "no": None}
    things.publish(value)
    things.publish(None)

    assert len(assert_published(things, value=value)) == 1
    assert len(assert_published(things, value=None)) == 1
    assert_published(things, value={**value, "total": "25.00"}, count=1)
    assert_published(things, value={**value, "paid": 1}, count=0)
    assert_published(things, value_contains={7: [1, 2.5]}, count=1)
    assert_published(things, value_contains={"no": False}, count=0)


def message_of(*args, **wanted):
    with pytest.raises(AssertionError) as failed:
        assert_published(*args, **wanted)
    return str(failed.value)


def test_the_message_shows_what_was_published_closest_first(sold):
    message = message_of(sold, type="thing.sold", key="2", value_contains={"sku": "tea", "by": {"name": "Ben"}})

    assert message.splitlines()[:6] == [
        "Expected at least 1 of 'things' with type='thing.sold', key='2', a value that contains "
        "{'sku': 'tea', 'by': {'name': 'Ben'}}, got none.",
        "Published, closest first:",
        "  things, in the buffer: type='thing.sold', key='2', value={'by': {'name': 'Ben'}, 'sku': 'cup'}",
        "      value['sku'] is 'cup', not 'tea'",
        "  things, in the buffer: type='thing.sold', key='1', value="
        "{'by': {'age': 36, 'name': 'Ada'}, 'sku': 'tea', 'tags': ['hot']}",
        "      key is '1', not '2'",
    ]
    assert "it has a body instead of a value" in message


def test_the_message_says_what_an_exact_value_has_too(sold):
    drain()
    message = message_of(sold, value={"sku": "cup", "by": {"name": "Ben", "age": 20}, "n": [1]}, type="thing.sold")

    assert "  things/2: type='thing.sold', key='2'" in message
    assert "      value has no 'n'\n      value['by'] has no 'age'" in message
    assert "value has 'tags' too" in message


def test_the_message_says_how_many_there_were(sold):
    assert "Expected none of 'things' with type='thing.sold', got 2." in message_of(sold, type="thing.sold", count=0)
    assert "Expected 3 of 'things' with key='2', got 2." in message_of(sold, key="2", count=3)


@in_a_transaction
def test_the_message_is_short(things):
    things.publish_many([Draft(value="x" * 1_000)] * 12)
    message = message_of(things, key="7")

    assert message.endswith("  … and 7 more")
    assert len(message) < 3_000


@in_a_transaction
def test_the_message_says_where_something_was_published_instead(things, lanes):
    assert message_of(things) == ("Expected at least 1 of 'things', got none.\nNothing was published to 'things'.")
    lanes.publish(1)
    lanes.publish(2)

    assert message_of(things).endswith("Nothing was published to 'things'.\n2 to 'lanes'.")


@in_a_transaction
def test_a_misspelt_topic_is_no_success():
    with pytest.raises(UnknownName, match=r"Did you mean 'orders'"):
        assert_published("order", count=0)
