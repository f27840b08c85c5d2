"""What a handler gets: what it says of itself, and that it can't be changed."""

import copy
import json
import pickle
import sys
from datetime import UTC, datetime

import pytest

from django_events import ReceivedEvent
from django_events.event_columns import EVENT

PUBLISHED, LOGGED = datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 7, 2, tzinfo=UTC)
STORED = {
    "id": 1042,
    "partition": 3,
    "number": 140,
    "type": "order.placed",
    "key": "7",
    "value": '{"total": 120, "lines": [1, 2]}',
    "body": None,
    "metadata": '{"trace": "abc"}',
    "published_at": PUBLISHED,
    "logged_at": LOGGED,
}


def make(*, attempt=1, **changes):
    return ReceivedEvent(
        "orders", [({**STORED, **changes})[column] for column in EVENT], consumer="billing", attempt=attempt
    )


def test_it_says_all_that_is_stored_and_where_it_came_from():
    event = make()

    assert (event.topic, event.consumer, event.attempt, event.address) == ("orders", "billing", 1, "orders/1042")
    assert {column: getattr(event, column) for column in EVENT} == {
        **STORED,
        "value": {"total": 120, "lines": [1, 2]},
        "metadata": {"trace": "abc"},
    }


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        ('"text"', "text"),
        ("null", None),
        ("0", 0),
        ("false", False),
        ("[]", []),
        ("12345678901234567890.5", 12345678901234567890.5),
        ('"\\u0000 is no text for PostgreSQL, but 🙂 is"', "\0 is no text for PostgreSQL, but 🙂 is"),
        (None, None),
    ],
)
def test_values_of_every_kind(stored, value):
    assert make(value=stored).value == value


def test_a_body_is_bytes_however_the_driver_hands_it_over():
    assert make().body is None
    assert make(value=None, body=memoryview(b"\0\xff")).body == b"\0\xff"
    assert make(value=None, body=b"").body == b""


def test_json_is_read_when_it_is_asked_for_and_once(monkeypatch):
    read = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: read.append(text) or loads(text))
    event = make()
    assert read == []

    assert event.value is event.value
    assert event.metadata is event.metadata
    assert read == [STORED["value"], STORED["metadata"]]


@pytest.mark.parametrize("name", [*EVENT, "topic", "consumer", "attempt", "address", "another"])
def test_nothing_of_it_can_be_changed(name):
    event = make()

    with pytest.raises(AttributeError, match=f"An event can't be changed: {name} of <event orders/1042"):
        setattr(event, name, "changed")
    with pytest.raises(AttributeError, match=f"An event can't be changed: {name} of"):
        delattr(event, name)


def test_another_attempt_is_another_object_that_knows_nothing_of_what_was_done_to_the_first():
    first = make()
    first.value["total"] = 0
    second = first.with_attempt(2)

    assert (first.attempt, second.attempt) == (1, 2)
    assert second.value["total"] == 120
    assert (second.consumer, second.address, second.key) == ("billing", "orders/1042", "7")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda event: pickle.loads(pickle.dumps(event))])
def test_it_can_be_copied_and_sent_to_another_process(copied):
    event = make(attempt=3, body=memoryview(b"\0\xff"))
    event.value["total"] = 0
    other = copied(event)

    assert (other.address, other.consumer, other.attempt, other.body) == ("orders/1042", "billing", 3, b"\0\xff")
    assert other.value["total"] == 120, "a copy of what was published, not of what was done to it"
    assert repr(other) == repr(event)


def test_it_reads_well_in_a_log():
    assert repr(make()) == "<event orders/1042 order.placed, key '7', attempt 1>"
    assert repr(make(type="", key=None, attempt=3)) == "<event orders/1042 without type, key None, attempt 3>"


def test_it_is_small():
    """A worker makes them by the ten thousand."""
    event = make()

    assert not hasattr(event, "__dict__")
    assert sys.getsizeof(event) < 120


def test_an_attribute_that_it_does_not_have_is_named():
    with pytest.raises(AttributeError, match="payload"):
        make().payload  # noqa: B018
