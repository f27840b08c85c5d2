"""Patterns of types and keys, decided in Python; that the database agrees is tested beside the consumers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_events.matching import matches

YES, NO = True, False

# what is said, what of, and whether it matches
TABLE = [
    ("order.placed", "order.placed", YES),
    ("order.placed", "order.paid", NO),
    ("order.placed", "order", NO),
    ("order.placed", "order.placed.twice", NO),
    ("order.placed", "Order.Placed", NO),
    ("order.placed", "orderXplaced", NO),
    ("order.placed", " order.placed", NO),
    ("order.placed", "order.placed\n", NO),
    ("order.*", "order.placed", YES),
    ("order.*", "order.", NO),
    ("order.*", "order", NO),
    ("order.*", "order.placed.twice", NO),
    ("order.*", "order.a b\tc", YES),
    ("*.placed", "order.placed", YES),
    ("*.placed", ".placed", NO),
    ("*.placed", "shop.order.placed", NO),
    ("*.*", "order.placed", YES),
    ("*.*", "order", NO),
    ("*", "order", YES),
    ("*", "order.placed", NO),
    ("*", "", NO),
    ("order.*.twice", "order.placed.twice", YES),
    ("order.*.twice", "order..twice", NO),
    ("order.>", "order.placed", YES),
    ("order.>", "order.placed.twice", YES),
    ("order.>", "order.a\nb", YES),
    ("order.>", "order", NO),
    ("order.>", "order.", NO),
    ("order.>", "orders.placed", NO),
    ("*.>", "order.placed.twice", YES),
    ("*.>", "order", NO),
    (">", "order", YES),
    (">", "order.placed", YES),
    (">", "\n", YES),
    (">", "", NO),
    ("", "", YES),
    ("", "a", NO),
    (".", ".", YES),
    (".", "..", NO),
    # a sign is a sign only where it is a token of its own
    ("a*", "a*", YES),
    ("a*", "aaa", NO),
    ("*a", "ba", NO),
    ("a>", "a>", YES),
    ("order>.placed", "order>.placed", YES),
    ("**", "**", YES),
    ("**", "ab", NO),
    (">>", ">>", YES),
    # what means something to regular expressions, to SQL or to psycopg means itself here
    ("100%", "100%", YES),
    ("%s", "%s", YES),
    ("%(key)s.*", "%(key)s.a", YES),
    ("%%", "%", NO),
    ("{}.*", "{}.a", YES),
    ("{log}", "{log}", YES),
    ("a{2}", "aa", NO),
    ("it's", "it's", YES),
    ("it's.*", "it's.so", YES),
    ('"a",NULL.*', '"a",NULL.b', YES),
    ("a\\", "a\\", YES),
    ("a\\.*", "a\\.b", YES),
    ("\\d.*", "7.a", NO),
    ("\\d.*", "\\d.a", YES),
    ("[a-z].*", "b.a", NO),
    ("(a|b).*", "a.x", NO),
    ("a+.*", "aa.x", NO),
    ("^a$.*", "^a$.x", YES),
    ("***:a.*", "***:a.x", YES),
    ("(?i)a.*", "(?i)a.x", YES),
    ("(?i)a.*", "A.x", NO),
    ("#a b.*", "#a b.x", YES),
    ("a\nb.*", "a\nb.c", YES),
    ("a\nb.*", "anb.c", NO),
    ("größe.*", "größe.x", YES),
    ("größe.*", "GRÖSSE.x", NO),
    ("日本.>", "日本.東京.新宿", YES),
    ("🙂.*", "🙂.🙃", YES),
    ("é.*", "e\u0301.a", NO),  # the same to look at, and another text
    ("e\u0301.*", "e\u0301.a", YES),
    ("ⓐ².*", "ⓐ².a", YES),
]


@pytest.mark.requirement("S12")
@pytest.mark.parametrize(("pattern", "text", "expected"), TABLE)
def test_a_pattern_and_a_text(pattern, text, expected):
    assert matches([pattern], text) is expected


@pytest.mark.requirement("S12")
def test_one_of_several_patterns_is_enough():
    assert matches(["order.*", "payment.made"], "payment.made")
    assert not matches(["order.*", "payment.made"], "payment.refused")


@pytest.mark.requirement("S12")
def test_an_event_without_a_key_matches_no_pattern():
    assert not matches([">"], None)


@given(st.text(max_size=30).filter(lambda text: not {"*", ">"} & set(text.split("."))), st.text(max_size=30))
def test_a_pattern_without_signs_matches_itself_and_nothing_else(pattern, text):
    assert matches([pattern], pattern)
    assert matches([pattern], text) is (pattern == text)


@given(st.lists(st.text(st.characters(exclude_characters="."), min_size=1), min_size=1, max_size=5))
def test_every_text_of_so_many_tokens_matches_so_many_signs(tokens):
    text = ".".join(tokens)

    assert matches([".".join("*" for _ in tokens)], text)
    assert matches([">"], text)
    assert not matches([".".join("*" for _ in [*tokens, "one more"])], text)
