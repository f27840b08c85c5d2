"""Filters of listeners are found by key and type: exactly those that fit, and few others are looked at."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_events.live.followers import ANY, FilterIndex, terms
from django_events.live.reading import LiveFilter
from django_events.received import ReceivedEvent

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOKENS = st.sampled_from(["a", "b", "ab", "", "*", ">", "ü"])
TEXTS = st.lists(TOKENS, min_size=1, max_size=3).map(".".join)
PATTERNS = st.none() | st.lists(TEXTS.filter(lambda text: ">" not in text.split(".")[:-1]), max_size=3).map(tuple)
FILTERS = st.lists(st.builds(LiveFilter, types=PATTERNS, keys=PATTERNS), max_size=8)


def event(kind, key):
    return ReceivedEvent("things", (1, 0, 1, kind, key, None, None, {}, NOW, NOW), database="default")


@given(FILTERS, TEXTS, st.none() | TEXTS, st.sets(st.integers(0, 7)))
def test_found_is_what_fits(filters, kind, key, removed):
    index = FilterIndex()
    for wanted in filters:
        index.add(wanted)
    gone = {wanted for place, wanted in enumerate(filters) if place in removed}
    for wanted in gone:
        index.discard(wanted)
    found = list(index.fitting(event(kind, key)))
    assert len(found) == len(set(found))
    assert set(found) == {wanted for wanted in set(filters) - gone if wanted.fits(event(kind, key))}
    for wanted in filters:
        index.discard(wanted)
    assert index._by_term == {}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (LiveFilter(), {ANY}),
        (LiveFilter(keys=("*.1",)), {ANY}),
        (LiveFilter(keys=("42", "*.1")), {ANY}),
        (LiveFilter(keys=("42",), types=("order.*",)), {("key", "42")}),
        (LiveFilter(keys=("42.>", "7")), {("begin of the key", "42"), ("key", "7")}),
        (
            LiveFilter(keys=(">",), types=("order.paid", "visit.*")),
            {("type", "order.paid"), ("begin of the type", "visit")},
        ),
        (LiveFilter(keys=()), set()),
    ],
)
def test_terms_are_the_literal_part(wanted, expected):
    assert terms(wanted) == expected


def test_an_event_of_one_key_looks_at_the_filters_of_that_key_only(monkeypatch):
    index, tried = FilterIndex(), []
    for number in range(2_000):
        index.add(LiveFilter(keys=(f"{number}.>",)))
    fits = LiveFilter.fits
    monkeypatch.setattr(LiveFilter, "fits", lambda wanted, event: tried.append(wanted) or fits(wanted, event))
    assert [one.keys for one in index.fitting(event("order.paid", "42.7"))] == [("42.>",)]
    assert len(tried) == 1
