"""An erasure finds the stops of consumers by the sentences that they are written with."""

import re

import pytest

from django_events.log import stops


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (stops.filter_fails("orders/7", 'invalid "secret"'), stops.FILTER_FAILS.format(where="orders/7")),
        (
            stops.filter_fails("an event that comes behind orders/7", "of\nlines"),
            stops.FILTER_FAILS.format(where="an event that comes behind orders/7"),
        ),
        (stops.unreadable("secret. Its filter fails on orders/8."), stops.UNREADABLE),
    ],
)
def test_what_a_stop_says_is_recognised(error: str, sentence: str):
    assert re.sub(stops.STOPS, r"\1", error, flags=re.S) == sentence


@pytest.mark.parametrize("error", ["ValueError: What follows can't be read. secret", "It failed on orders/7. secret"])
def test_what_a_handler_raised_is_none(error: str):
    assert re.search(stops.STOPS, error, flags=re.S) is None
