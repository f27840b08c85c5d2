"""The filters of listeners, which are compared in Python, are those of consumers."""

import random

from django_events.live.reading import LiveFilter
from django_events.matching import matches
from django_events.received import ReceivedEvent

PATTERNS = ["a", "a.b", "a.*", "*.b", ">", "a.>", "x-y", "a|b", "a.b.c", "*", "$x", "a.*.c", "é.*"]
TEXTS = ["a", "a.b", "a.c", "b.b", "a.b.c", "x-y", "a|b", "", "$x", "a\nb.b", "é.1", "b"]


def event(type, key):
    return ReceivedEvent("things", (1, 0, 1, type, key))


def test_patterns_fit_the_same_events():
    dice = random.Random(1)
    for _ in range(2_000):
        patterns = tuple(dice.sample(PATTERNS, dice.randint(1, 3)))
        text = dice.choice(TEXTS)
        assert LiveFilter(keys=patterns).fits(event("", text)) == matches(patterns, text), (patterns, text)
        assert LiveFilter(types=patterns).fits(event(text, None)) == matches(patterns, text), (patterns, text)


def test_both_have_to_fit_and_an_event_without_a_key_has_none():
    both = LiveFilter(types=("a",), keys=("k",))
    assert both.fits(event("a", "k"))
    assert not both.fits(event("a", "l")) and not both.fits(event("b", "k"))
    assert not LiveFilter(keys=(">",)).fits(event("a", None))
    assert LiveFilter().fits(event("a", None))
