"""An encoder that is made once writes what Python's own writes, and refuses what that refuses."""

import json.encoder
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


def another(watching, *options):
    """One that writes something else where nothing watches over circles, which Python always has."""
    return lambda value, indent: ("else",) if watching is None else IN_C(watching, *options)(value, indent)


@pytest.mark.parametrize("there", [None, without_options, another])
def test_another_python_keeps_its_own(monkeypatch, there):
    monkeypatch.setattr(json.encoder, "c_make_encoder", there)
    encoder = DjangoJSONEncoder(sort_keys=True)
    assert made_once(encoder) == encoder.encode


def test_what_is_within_itself_is_told():
    value = {}
    value["me"] = [value]
    with pytest.raises(ValueError, match="Circular reference"):
        made_once(DjangoJSONEncoder(sort_keys=True))(value)
    assert made_once(DjangoJSONEncoder(sort_keys=True))({"me": 1}) == '{"me": 1}'
