"""Drafts: what can be an event, and how everything else is refused before anything is written."""

import json
import string
import sys
from array import array
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import MappingProxyType
from uuid import UUID

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from django_events import UNSET, DeclaredTopic, Draft
from django_events.exceptions import InvalidEvent
from django_events.publishing import encoding
from django_events.publishing.encoding import to_json

ORDERS = DeclaredTopic(name="orders", partitions=4)


def encode(value=UNSET, body=UNSET, type="", key=None, metadata=None, partition=None):
    return encoding.encode(ORDERS, value, body, type, key, metadata, partition)


def nested(depth, inner=0):
    """A value in so many lists."""
    for _ in range(depth):
        inner = [inner]
    return inner


def refusal(*args, **fields):
    with pytest.raises(InvalidEvent) as caught:
        encode(*args, **fields)
    return str(caught.value)


class Kind(models.TextChoices):
    PLACED = "order.placed", "placed"


def test_an_event_of_defaults_has_its_value_only():
    assert encode(None) == encoding.BufferRow(partition=None, type="", key=None, value="null", body=None, metadata="{}")


def test_a_draft_is_frozen_and_has_the_fields_of_publish():
    draft = Draft(value=1)

    assert (draft.body, draft.type, draft.key, draft.metadata, draft.partition) == (UNSET, "", None, None, None)
    with pytest.raises(AttributeError):
        draft.value = 2


# One payload


def test_an_event_without_payload_is_refused():
    assert refusal() == (
        "An event has exactly one of value and body, got neither. "
        "Use value for JSON (None is JSON null), body for bytes."
    )


@pytest.mark.parametrize("value", [None, 0, "", {"id": 7}])
def test_an_event_with_two_payloads_is_refused(value):
    assert refusal(value, b"bytes").startswith("An event has exactly one of value and body, got both.")


@pytest.mark.parametrize("body", [b"", b"\0\xff", b"x" * 100_000])
def test_a_body_is_kept_as_it_is(body):
    row = encode(body=body)

    assert (row.body, row.value) == (body, None)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abc"), b"abc"),
        (memoryview(b"a-b-c")[::2], b"abc"),
        (memoryview(array("H", [1, 2])), array("H", [1, 2]).tobytes()),
    ],
)
def test_other_kinds_of_bytes_are_taken_as_bytes(body, expected):
    row = encode(body=body)

    assert type(row.body) is bytes
    assert row.body == expected


@pytest.mark.parametrize("body", ["text", None, 7, [1, 2], {"id": 7}])
def test_a_body_that_is_not_bytes_is_refused(body):
    message = refusal(body=body)

    assert message.startswith(f"body is of type {type(body).__name__}, expected bytes.")


# JSON


def decode(text):
    return json.loads(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def texts_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_in(key)
            yield from texts_in(item)


def storable(text):
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


@pytest.mark.slow
@given(JSON)
def test_any_json_is_encoded_or_refused_for_a_character_that_postgresql_has_not(value):
    if all(map(storable, texts_in(value))):
        assert decode(encode(value).value) == value
    else:
        assert "contains" in refusal(value)


# Backslashes and the letters of \u0000 in any order, so that an escape is told from what looks like one.
@given(st.text(alphabet='\\u0"n\0', max_size=24))
def test_a_null_character_is_told_from_text_that_looks_like_one(text):
    if "\0" in text:
        assert "U+0000" in refusal([text])
        assert "U+0000" in refusal({text: 1})
    else:
        assert decode(encode([text, {text: 1}]).value) == [text, {text: 1}]


@pytest.mark.parametrize("text", [r"\u0000", r"\\u0000", r"C:\u0000", "\\\\", "u0000", "\\"])
def test_a_backslash_and_u0000_as_text_is_no_null_character(text):
    assert decode(encode({"path": text, text: 1}).value) == {"path": text, text: 1}
    assert decode(encode(1, metadata={"path": text}).metadata) == {"path": text}
    assert encode(1, key=text, type=text)[1:3] == (text, text)


def test_a_null_character_is_refused_wherever_it_is():
    ways_out = "Remove it, or publish the data as body."
    assert refusal("a\0b") == (f"value contains the character U+0000, which PostgreSQL can't store in JSON. {ways_out}")
    assert "value contains the character U+0000" in refusal([{"deep": ["\0"]}])
    assert "value contains the character U+0000" in refusal({"\0": 1})
    assert "value contains the character U+0000" in refusal("\\\0")
    assert "metadata contains the character U+0000" in refusal(1, metadata={"user": "a\0"})
    assert "metadata contains the character U+0000" in refusal(1, metadata={"\0": 1})
    assert refusal(1, key="a\0b") == "key contains the character U+0000, which PostgreSQL can't store: 'a\\x00b'."
    assert refusal(1, type="a\0b") == "type contains the character U+0000, which PostgreSQL can't store: 'a\\x00b'."


def test_a_null_byte_in_a_body_is_a_byte_like_others():
    assert encode(body=b"a\0b").body == b"a\0b"


@pytest.mark.parametrize("half", ["\ud800", "\udfff", "ok \ud83d ok"])
def test_half_a_surrogate_pair_is_refused_wherever_it_is(half):
    for field, message in {
        "value": refusal(half),
        "metadata": refusal(1, metadata={"user": half}),
        "key": refusal(1, key=half),
        "type": refusal(1, type=half),
    }.items():
        assert message.startswith(f"{field} contains half a surrogate pair ('\\ud")
    assert "half a surrogate pair" in refusal({half: 1})


@pytest.mark.parametrize("text", ["grün", "\U0001f600", "\ue000", "\uffff", "日本", "\x7f\x80", "\u2028"])
def test_text_of_any_language_is_kept(text):
    row = encode({text: text}, type=text, key=text, metadata={text: text})

    assert decode(row.value) == decode(row.metadata) == {text: text}
    assert (row.type, row.key) == (text, text)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: [{"a": n}], lambda n: {n: 1}], ids=["bare", "deep", "key"])
def test_numbers_that_json_has_not_are_refused(number, wrap):
    assert refusal(wrap(number)).startswith("value can't be written as JSON: Out of range float values")
    assert refusal(1, metadata={"a": wrap(number)}).startswith("metadata can't be written as JSON: Out of range")


@pytest.mark.parametrize("value", [{1, 2}, frozenset(), object(), b"bytes", 1j, Exception(), iter([]), {"a": {1}}])
def test_values_that_json_has_not_are_refused(value):
    message = refusal(value)

    assert message.startswith("value can't be written as JSON: Object of type ")
    assert message.removesuffix(" It is value['a'].").endswith("is not JSON serializable.")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"id": 7, "lines": [{"sku": "a"}, {"sku": {1}}]}, " It is value['lines'][1]['sku']."),
        (({"a": 1}, b"x"), " It is value[1]."),
        ({7: object()}, " It is value[7]."),
        ([float("nan")], " It is value[0]."),
    ],
)
def test_it_is_said_where_in_a_value_that_is(value, place):
    assert refusal(value).endswith(place)


@pytest.mark.parametrize("value", [{1}, {(1, 2): 1}, {1: 1, "1": 2}])
def test_no_place_is_said_of_what_is_the_whole_value_or_a_key(value):
    assert "It is" not in refusal(value)


@pytest.mark.parametrize("key", [(1, 2), b"a", date(2026, 1, 1), UUID(int=0)])
def test_keys_that_json_has_not_are_refused(key):
    assert refusal({key: 1}).startswith("value can't be written as JSON: keys must be str, int, float, bool or None")
    assert refusal({"a": 1, key: 1}).startswith("value can't be written as JSON: keys must be str")


def test_a_nesting_too_deep_is_refused():
    value = []
    for _ in range(100_000):
        value = [value]

    assert "more than 500 deep" in refusal(value)
    assert "more than 500 deep" in refusal({1: value, "2": 1})


def test_a_nesting_of_a_hundred_is_fine():
    value = []
    for _ in range(100):
        value = [value]

    assert decode(encode(value).value) == value


def test_a_value_that_contains_itself_is_refused():
    value = {}
    value["me"] = value
    within = {"lines": [*range(10), value]}

    assert refusal(value) == "value can't be written as JSON: Circular reference detected. It is value['me']."
    assert refusal(within).endswith(" It is value['lines'][10]['me'].")


def test_where_a_value_contains_itself_is_found_in_one_walk(monkeypatch):
    """Not by walking around in it, as deep as Python goes."""
    value = {"lines": [*range(10)]}
    value["me"] = value
    encode_one, encoded = encoding._encode_distinct, []
    monkeypatch.setattr(encoding, "_encode_distinct", lambda one: encoded.append(one) or encode_one(one))
    refusal(value)
    assert [one for one in encoded if one is not value] == [*range(10)]


def test_a_number_of_very_many_digits_is_refused():
    assert "value contains a whole number of more than 4,300 digits" in refusal(10**5_000)
    assert decode(encode(10**4_000).value) == 10**4_000


def test_values_of_django_sites_are_encoded_as_django_does():
    value = {
        "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "time": time(3, 4, 5),
        "took": timedelta(minutes=1, seconds=1.5),
        "total": Decimal("120.50"),
        "id": UUID("12345678-1234-5678-1234-567812345678"),
        "kind": Kind.PLACED,
        "label": gettext_lazy("label"),
        "lines": (1, 2),
        "ordered": OrderedDict(b=1, a=2),
    }

    assert decode(encode(value).value) == {
        "at": "2026-01-02T03:04:05.678Z",
        "day": "2026-01-02",
        "time": "03:04:05",
        "took": "P0DT00H01M01.500000S",
        "total": "120.50",
        "id": "12345678-1234-5678-1234-567812345678",
        "kind": "order.placed",
        "label": "label",
        "lines": [1, 2],
        "ordered": {"b": 1, "a": 2},
    }


def test_a_time_of_day_with_a_zone_is_refused():
    assert "JSON can't represent timezone-aware times" in refusal(time(3, tzinfo=UTC))


# Keys of objects


def test_keys_that_are_not_text_become_text_as_in_python_json():
    assert decode(encode({1: "a", 2: "b"}).value) == {"1": "a", "2": "b"}
    assert decode(encode({1: "a", "b": {None: 1, True: 2, 1.5: 3}}).value) == {
        "1": "a",
        "b": {"null": 1, "true": 2, "1.5": 3},
    }


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({1: "a", "1": "b"}, "1"),
        ({"x": 0, "1": "b", 1: "a"}, "1"),
        ({True: 1, "true": 2}, "true"),
        ({None: 1, "null": 2}, "null"),
        ({1.5: 1, "1.5": 2}, "1.5"),
        ([{"deep": {1: "a", "1": "b"}}], "1"),
        ({1: "x", "y": {2: "a", "2": "b"}}, "2"),
    ],
)
def test_keys_that_become_the_same_are_refused_instead_of_losing_one(value, key):
    assert refusal(value) == f"value can't be written as JSON: two keys of one object are both {key!r} in JSON."
    assert refusal(1, metadata={"a": value}).startswith("metadata can't be written as JSON: two keys")


@given(
    st.dictionaries(st.text(alphabet="12.", max_size=2) | st.integers(0, 22) | st.booleans() | st.none(), st.just(0))
)
def test_an_object_is_encoded_with_as_many_keys_as_it_has_or_refused(value):
    keys = [key if isinstance(key, str) else json.dumps(key) for key in value]
    if len(set(keys)) == len(keys):
        assert set(decode(encode(value).value)) == set(keys)
    else:
        assert "two keys of one object are both" in refusal(value)


# Type and key


@pytest.mark.parametrize(("field", "longest"), [("type", 200), ("key", 512)])
def test_text_that_is_too_long_is_refused(field, longest):
    assert getattr(encode(1, **{field: "x" * longest}), field) == "x" * longest
    assert getattr(encode(1, **{field: "é" * longest}), field) == "é" * longest  # characters count, not bytes
    assert refusal(1, **{field: "x" * (longest + 1)}) == (
        f"{field} has {longest + 1} characters, at most {longest} are possible: '{'x' * 40}'…"
    )


@pytest.mark.parametrize("field", ["type", "key"])
@pytest.mark.parametrize("text", [7, 1.5, b"7", True, ["7"], UUID(int=7), gettext_lazy("7")])
def test_a_type_or_key_that_is_not_text_is_refused(field, text):
    message = refusal(1, **{field: text})

    assert message.startswith(f"{field} is {text!r:.60} ({type(text).__name__}), expected text.")
    assert message.endswith("Use str(...) if that is what you mean.")


def test_a_type_of_none_is_refused_and_a_key_of_none_is_no_key():
    assert refusal(1, type=None).startswith("type is None (NoneType), expected text.")
    assert encode(1, key=None).key is None


def test_an_empty_key_is_a_key():
    assert encode(1, key="").key == ""


def test_choices_are_text():
    assert encode(1, type=Kind.PLACED).type == "order.placed"


# Metadata


@pytest.mark.parametrize("metadata", [None, {}, MappingProxyType({}), OrderedDict()])
def test_no_metadata_is_an_empty_object(metadata):
    assert encode(1, metadata=metadata).metadata == "{}"


def test_metadata_may_be_any_mapping():
    for metadata in ({"user": 7}, MappingProxyType({"user": 7}), OrderedDict(user=7)):
        assert decode(encode(1, metadata=metadata).metadata) == {"user": 7}


@pytest.mark.parametrize("metadata", [[], [("user", 7)], "user", "", 0, 7, b"", (), set(), False])
def test_metadata_that_is_no_mapping_is_refused(metadata):
    assert refusal(1, metadata=metadata) == (
        f"metadata is of type {type(metadata).__name__}, expected a mapping, like {{'user': 7}}."
    )


def test_metadata_that_is_not_json_is_refused():
    assert refusal(1, metadata={"user": {1}}).startswith("metadata can't be written as JSON: Object of type set")


# Partition


@pytest.mark.requirement("E2")
@pytest.mark.parametrize("partition", [-99, -1, 4, 5, 2**40])
def test_a_partition_that_the_topic_has_not_is_refused(partition):
    assert refusal(1, partition=partition) == (
        f"Topic 'orders' has no partition {partition}: it has 4, so 0 to 3 are possible. "
        "Leave partition out to place events by their key."
    )


@pytest.mark.requirement("E2")
@pytest.mark.parametrize("partition", [True, False, "1", 1.0, [1], Decimal(1)])
def test_a_partition_that_is_no_whole_number_is_refused(partition):
    assert refusal(1, partition=partition) == (
        f"partition is {partition!r} ({type(partition).__name__}), expected a whole number."
    )


@pytest.mark.requirement("E2")
@given(st.integers(1, 1_000), st.integers())
def test_exactly_the_partitions_of_the_topic_can_be_named(partitions, partition):
    topic = DeclaredTopic(name="orders", partitions=partitions)
    if partition in range(partitions):
        assert encoding.encode(topic, 1, UNSET, "", None, None, partition).partition == partition
    else:
        with pytest.raises(InvalidEvent, match=f"has no partition {partition}"):
            encoding.encode(topic, 1, UNSET, "", None, None, partition)


def test_a_long_value_is_cut_in_a_message():
    assert len(refusal(1, key=list(string.printable))) < 200


def test_a_lazy_value_is_refused_rather_than_guessed():
    assert "not JSON serializable" in refusal(SimpleLazyObject(lambda: {"id": 7}))


@pytest.mark.requirement("D5")
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"n": 10**5000}, "value contains a whole number of more than 4,300 digits"),
        ([1, {"n": -(10**4300)}], "value contains a whole number of more than 4,300 digits"),
        (nested(3_000), "value has lists or objects in each other more than 500 deep"),
        (nested(501), "value has lists or objects in each other more than 500 deep"),
        ([nested(300, {"a": nested(300)}), "[" * 2_000], "value has lists or objects in each other more than 500 deep"),
    ],
)
def test_what_a_reader_could_not_read_is_refused(value, told):
    with pytest.raises(InvalidEvent, match=told):
        to_json("value", value)


@pytest.mark.requirement("D5")
@pytest.mark.parametrize(
    "value",
    [
        10**4299,
        "1" * 10_000,
        {"1" * 10_000: 1},
        1.7976931348623157e308,
        5e-324,
        Decimal("1e131000"),
        nested(500),
        [nested(3) for _ in range(1_000)],
        "[" * 10_000 + '\\"' * 1_000 + "{" * 10_000,
        ["[" * 1_000, {"]" * 1_000: nested(400)}],
    ],
)
def test_what_a_reader_can_read_is_not_refused(value):
    text = to_json("value", value)

    assert json.loads(text) == json.loads(json.dumps(value, cls=DjangoJSONEncoder))


def test_a_process_that_allows_itself_more_digits_publishes_none_that_others_can_not_read():
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(InvalidEvent, match="value contains a whole number of more than 4,300 digits"):
            to_json("value", [10**5000])
    finally:
        sys.set_int_max_str_digits(limit)
