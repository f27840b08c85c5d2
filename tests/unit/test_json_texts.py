"""An encoder that is made once writes what Python's own writes, and refuses what that refuses."""

import json.encoder
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from hypothesis import example, given
from hypothesis import strategies as st

from django_events.publishing.json_texts import made_once

IN_C = json.encoder.c_make_encoder
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.dates()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner))
OPTIONS = (
    {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":"), "sort_keys": True},
    {"sort_keys": False},
    {"skipkeys": True},
)


def outcome(encode, value):
    try:
        return encode(value)
    except (TypeError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("options", OPTIONS)
@given(VALUES)
@example(
    {"b": 1, "a": [{"d": datetime(2026, 1, 31, tzinfo=UTC), "c": UUID(int=7)}, Decimal("1.50"), date(2026, 1, 31)]}
)
@example({(1, 2): 1})
@example({1: 1, "a": 2})
@example([float("nan")])
@example(object())
@example("alone")
@example("\udc80\x00\n\u2028ä")
def test_it_writes_what_the_encoder_writes(options, value):
    encoder = DjangoJSONEncoder(**options)
    assert outcome(made_once(encoder), value) == outcome(encoder.encode, value)


def test_it_is_the_one_in_c():
    """Else it would be no faster, and nothing would say so."""
    encoder = DjangoJSONEncoder(sort_keys=True)
    assert made_once(encoder) != encoder.encode


def without_options():
    """One that takes none of them."""


@pytest.mark.parametrize("there", [None, without_options])
def test_another_python_keeps_its_own(monkeypatch, there):
    monkeypatch.setattr(json.encoder, "c_make_encoder", there)
    encoder = DjangoJSONEncoder(sort_keys=True)
    assert made_once(encoder) == encoder.encode


def test_a_python_that_writes_something_else_by_it_keeps_its_own(monkeypatch):
    """As if its options were in another order: what is asked first is answered with something else."""
    first = iter([("else",)])

    def another(*options):
        return lambda *asked: next(first, None) or IN_C(*options)(*asked)

    monkeypatch.setattr(json.encoder, "c_make_encoder", another)
    encoder = DjangoJSONEncoder(sort_keys=True)
    assert made_once(encoder) == encoder.encode


def test_what_a_site_puts_into_the_encoder_later_counts(monkeypatch):
    encoder = DjangoJSONEncoder(sort_keys=True)
    encode = made_once(encoder)
    assert encode([UUID(int=7)]) == encoder.encode([UUID(int=7)])
    monkeypatch.setattr(DjangoJSONEncoder, "default", lambda self, value: value.int)
    assert encode([UUID(int=7)]) == encoder.encode([UUID(int=7)]) == "[7]"


class Asked(json.JSONEncoder):
    """One that can be asked for anything, and counts that."""

    def __init__(self, answer=lambda value: "told", **options):
        super().__init__(sort_keys=True, **options)
        self.times, self._answer = 0, answer

    def default(self, value):
        self.times += 1
        return self._answer(value)


def test_what_is_within_itself_is_told_where_it_begins():
    """Else it would be written again and again, until the stack ends: a large one takes the memory by then."""
    value = {"first": object()}
    value["me"] = [value]
    encoder = Asked()
    with pytest.raises(ValueError, match="Circular reference"):
        made_once(encoder)(value)
    assert encoder.times == 1


def test_what_could_not_be_encoded_can_be_when_it_is_mended():
    encode = made_once(DjangoJSONEncoder(sort_keys=True))
    inner = {"a": object()}
    value = {"inner": [inner]}
    for _ in range(3):
        with pytest.raises(TypeError, match="object"):
            encode(value)
    inner["a"] = 1
    assert encode(value) == encode(value) == '{"inner": [{"a": 1}]}'


def test_a_value_is_encoded_while_it_is_encoded():
    """By other threads, or by what its own objects do."""
    value = {"a": object()}
    deeper = iter([True, False])

    def answer(_):
        return encode(value) if next(deeper) else "told"

    encode = made_once(Asked(answer))
    assert json.loads(encode(value)) == {"a": '{"a": "told"}'}


def test_threads_encode_one_value_at_once():
    both = threading.Barrier(2, timeout=90)

    def answer(_):
        both.wait()
        return "told"

    encode = made_once(Asked(answer))
    value = [{"a": object()}]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            assert list(threads.map(encode, [value, value])) == ['[{"a": "told"}]'] * 2
