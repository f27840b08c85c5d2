"""drain(): what is handled, what is due, and where it ends."""

from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import pytest
from django.utils import timezone

from django_events import Backoff, Draft, ReceivedEvent, RetryLater, consumer, topic
from django_events.exceptions import Invalid, UnknownName
from django_events.models import BufferedEvent, Consumer, Event
from django_events.operations import pause, resume, rewind
from django_events.testing import drain, published
from django_events.workers import draining
from testproject.shop.models import Product
from tests.integration.testing.conftest import (
    ONCE,
    assert_nothing_is_leased,
    in_a_transaction,
    in_autocommit,
    position_of,
    stock,
)


def test_effects_and_events_of_handlers_are_visible(anywhere, things, make_topic):
    """A chain of two: the second handles what the first published."""
    stocked = make_topic("stocked")

    @consumer(things, name="shelve")
    def shelve(event):
        stock(event.value["sku"])
        stocked.publish({"sku": event.value["sku"]}, type="product.stocked", key=event.key)

    @consumer(stocked, name="price")
    def price(event):
        Product.objects.filter(sku=event.value["sku"]).update(price=9)

    things.publish({"sku": "tea"}, key="tea")
    things.publish({"sku": "cup"}, key="cup")

    assert drain() == 4
    assert set(Product.objects.values_list("sku", "price")) == {("tea", 9), ("cup", 9)}
    assert [event.key for event in published(stocked)] == ["tea", "cup"]
    assert drain() == 0


def test_events_come_in_order_with_all_that_a_worker_would_give(anywhere, things, seen):
    consumer(things, name="look")(seen.append)
    things.publish({"n": 1}, type="thing.made", key="a", metadata={"by": "Ada"})
    things.publish(body=b"\0\1")
    drain()

    first, second = seen
    assert isinstance(first, ReceivedEvent)
    assert (first.address, first.type, first.key, first.value) == ("things/1", "thing.made", "a", {"n": 1})
    assert (first.metadata, first.consumer, first.attempt) == ({"by": "Ada"}, "look", 1)
    assert (second.address, second.value, second.body) == ("things/2", None, b"\0\1")


@pytest.mark.requirement("P2")
def test_scheduled_events_can_be_drained_ahead_of_their_time(anywhere, things, seen):
    consumer(things, name="look")(lambda event: seen.append(event.value))
    now = timezone.now()
    things.publish("tomorrow", publish_at=now + timedelta(days=1))
    things.publish("in an hour", publish_at=now + timedelta(hours=1))
    things.publish("now")

    assert drain() == 1
    assert drain(ahead=timedelta(hours=2)) == 1
    assert drain(ahead=timedelta(hours=2)) == 0
    assert drain(ahead=timedelta(days=2)) == 1
    assert seen == ["now", "in an hour", "tomorrow"]


@in_a_transaction
def test_all_partitions_are_drained(lanes, seen):
    consumer(lanes, name="look")(seen.append)
    for n in range(20):
        lanes.publish(n, key=str(n % 7))

    assert drain() == 20
    for key in range(7):
        assert [event.value for event in seen if event.key == str(key)] == list(range(key, 20, 7))


@in_a_transaction
def test_only_named_consumers_are_drained(things, seen):
    @consumer(things, name="one")
    def one(event):
        seen.append("one")

    @consumer(things, name="two")
    def two(event):
        seen.append("two")

    @consumer(things, name="three")
    def three(event):
        seen.append("three")

    things.publish(1)

    assert drain(one, "two", one) == 2
    assert sorted(seen) == ["one", "two"]
    assert drain() == 1
    assert seen[-1] == "three"


@in_a_transaction
def test_an_unknown_consumer_is_named_with_the_likely_one(things):
    consumer(things, name="billing")(print)

    with pytest.raises(UnknownName, match=r"No installed app declares a consumer 'biling'. Did you mean 'billing'"):
        drain("biling")


@in_a_transaction
def test_without_consumers_the_transfer_runs_all_the_same(things):
    things.publish(1)

    assert drain() == 0
    assert Event.objects.at(things, 1).value == 1
    assert not BufferedEvent.objects.exists()


@in_a_transaction
def test_batches(things, seen):
    consumer(things, name="look", batch_size=3)(seen.append)
    things.publish_many([Draft(value=n) for n in range(5)])

    assert drain() == 5
    assert [[event.value for event in events] for events in seen] == [[0, 1, 2], [3, 4]]


@in_a_transaction
def test_a_small_batch_does_not_wait_for_more(things, seen):
    consumer(things, name="look", batch_size=100, min_batch=50, max_wait=timedelta(hours=1))(seen.append)
    things.publish(1)

    assert drain() == 1
    assert len(seen) == 1


@in_a_transaction
def test_a_consumer_of_several_topics(things, make_topic, seen):
    others = make_topic("others")
    consumer(things, others, name="look")(seen.append)
    things.publish(1)
    others.publish(2)

    assert drain() == 2
    assert sorted(event.address for event in seen) == ["others/1", "things/1"]


@in_a_transaction
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"types": ["thing.*"]}, [1, 3]),
        ({"keys": ["b", "c"]}, [2, 3]),
        ({"where": "$.n > 1"}, [2, 3]),
        ({"types": ["thing.>"], "where": "$.n > 1"}, [3]),
    ],
)
def test_a_filter_is_applied(things, seen, filters, expected):
    consumer(things, name="look", **filters)(seen.append)
    things.publish({"n": 1}, type="thing.made", key="a")
    things.publish({"n": 2}, type="other", key="b")
    things.publish({"n": 3}, type="thing.sold", key="c")

    assert drain() == len(expected)
    assert [event.value["n"] for event in seen] == expected
    assert position_of("look").position == 3


@in_a_transaction
def test_a_paused_consumer_is_not_served(things, seen):
    consumer(things, name="look")(seen.append)
    drain()
    pause("look")
    things.publish(1)

    assert drain() == 0
    resume("look")
    assert drain() == 1


@in_a_transaction
def test_after_a_rewind_events_come_again(things, seen):
    consumer(things, name="look")(seen.append)
    things.publish(1)
    drain()
    rewind("look", to="beginning")

    assert drain() == 1
    assert [event.id for event in seen] == [1, 1]


@in_a_transaction
def test_many_events_take_one_call_each(things):
    """A worker would handle those before a failing one again, in the same transaction."""
    handler = mock.Mock(side_effect=lambda event: 1 / (event.value - 3))
    consumer(things, name="look", retry=ONCE)(handler)
    things.publish_many([Draft(value=n) for n in range(6)])

    assert drain(raise_errors=False) == 6
    assert [call.args[0].value for call in handler.call_args_list] == list(range(6))


@in_a_transaction
def test_what_a_test_declares_is_made_by_the_next_drain(seen):
    wares = topic("wares", partitions=3)
    consumer(wares, name="look")(seen.append)
    drain()
    wares.publish(1, key="a")

    assert drain() == 1
    assert Consumer.objects.get(name="look").positions.count() == 3


@in_a_transaction
def test_a_consumer_that_is_declared_after_publishing_gets_what_was_published(things, seen):
    things.publish(1)
    drain()
    things.publish(2)
    consumer(things, name="all")(seen.append)
    consumer(things, name="new", start="end")(seen.append)

    assert drain() == 3
    assert sorted((event.consumer, event.id) for event in seen) == [("all", 1), ("all", 2), ("new", 2)]


@in_a_transaction
def test_a_consumer_of_a_topic_that_no_app_declares_is_refused():
    consumer("nothing", name="look")(print)

    with pytest.raises(UnknownName, match=r"Consumer look is declared for topic 'nothing'"):
        drain()


@in_a_transaction
def test_a_wrong_declaration_is_refused(things):
    consumer(things, name="Wrong!")(print)

    with pytest.raises(Invalid, match=r"Consumer name 'Wrong!' is not valid"):
        drain()


@pytest.mark.slow
@in_a_transaction
@pytest.mark.parametrize("events", [1, 3])
def test_an_endless_loop_is_told_with_the_name_of_the_consumer(things, events):
    @consumer(things, name="echo")
    def echo(event):
        for _ in range(events):
            things.publish(event.value + 1)

    @consumer(things, name="look")
    def look(event):
        pass

    things.publish(1)
    with pytest.raises(AssertionError, match=r"with no end in sight: [\d,]+ by consumer 'echo' of 'things'"):
        drain(limit=20)

    assert_nothing_is_leased()


@pytest.mark.slow
@in_a_transaction
def test_a_loop_through_two_topics_names_both(things, make_topic):
    others = make_topic("others")
    consumer(things, name="ping")(lambda event: others.publish(1))
    consumer(others, name="pong")(lambda event: things.publish(1))
    things.publish(1)

    with pytest.raises(AssertionError, match=r"6 by consumer 'pong' of 'others', 5 by consumer 'ping' of 'things'"):
        drain(limit=10)


@in_a_transaction
def test_attempts_without_end_are_told(things):
    handler = mock.Mock(side_effect=RetryLater(after=timedelta(0)))
    consumer(things, name="again", retry=Backoff(attempts=10_000))(handler)
    things.publish(1)

    with pytest.raises(AssertionError, match=r"Consumer 'again' of 'things' is due again and again .* behind event 0"):
        drain(limit=10)
    assert handler.call_count == 11
    assert_nothing_is_leased()


@pytest.mark.slow
@in_a_transaction
def test_a_loop_that_ends_is_none(things):
    """Deep, or wide, but not both."""

    @consumer(things, name="countdown")
    def countdown(event):
        if event.value:
            things.publish(event.value - 1)

    things.publish(30)
    assert drain(limit=30) == 31
    things.publish_many([Draft(value=1)] * 40)
    assert drain(limit=30) == 80


@in_autocommit
def test_another_session_that_moves_events_is_waited_for(things, connect, monkeypatch, seen):
    consumer(things, name="look")(seen.append)
    drain()
    things.publish(1)
    other = connect()
    other.execute("SELECT FROM django_events_topichead FOR UPDATE")
    monkeypatch.setattr(draining, "time", SimpleNamespace(sleep=lambda seconds: other.commit()))

    assert drain() == 1


@in_autocommit
def test_another_session_that_holds_a_position_is_waited_for(things, connect, monkeypatch, seen):
    consumer(things, name="look")(seen.append)
    drain()
    things.publish(1)
    other = connect()
    other.execute("SELECT FROM django_events_position FOR UPDATE")
    monkeypatch.setattr(draining, "time", SimpleNamespace(sleep=lambda seconds: other.commit()))

    assert drain() == 1


@pytest.mark.slow
@in_autocommit
@pytest.mark.parametrize("table", ["topichead", "position"])
def test_another_session_is_not_waited_for_for_ever(things, connect, monkeypatch, seen, table):
    consumer(things, name="look")(seen.append)
    drain()
    things.publish(1)
    connect().execute(f"SELECT FROM django_events_{table} FOR UPDATE")
    monkeypatch.setattr(draining, "WAIT", 0)

    with pytest.raises(AssertionError, match=r"Another session keeps drain\(\) from (moving|serving)"):
        drain()


def test_a_number_is_no_time_ahead():
    with pytest.raises(Invalid, match=r"drain\(\) has ahead=3, expected a timedelta"):
        drain(ahead=3)
