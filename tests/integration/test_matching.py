"""Patterns and predicates where they are decided: in the database, which has to agree with Python."""

import json
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_events import DeclaredConsumer, sql, statements
from django_events.matching import condition, matches
from tests.unit.test_matching import TABLE

pytestmark = pytest.mark.django_db

# Letters that mean something to patterns, to regular expressions, to SQL, to arrays and to psycopg, and some others.
HOSTILE = "ab.*>%\\{}()[]|^$?+#'\",:;!~-_ \n\t\r\0".replace("\0", "") + "é\u0301ß日🙂ⓐ²\u2028\ufeff"
hostile = st.text(st.sampled_from(HOSTILE), max_size=8)
anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
tokens = st.one_of(st.sampled_from(["*", "order", "a", ""]), hostile, anything)
patterns = st.builds(
    lambda parts, rest: ".".join(parts + [">"] * rest), st.lists(tokens, min_size=1, max_size=4), st.booleans()
).filter(lambda pattern: ">" not in pattern.split(".")[:-1])
texts = st.one_of(hostile, anything, st.lists(st.one_of(hostile, st.just("order")), max_size=4).map(".".join))


def consumer(**filters):
    for option in ("types", "keys"):
        if option in filters:
            filters[option] = tuple(filters[option])
    declared = DeclaredConsumer(name="reader", topics=("things",), handler=print, **filters)
    assert not list(declared.problems())
    return declared


def is_match(declared, *, type="", key=None, value=None):
    """Ask the database about an event, by the condition that workers use."""
    asked = statements._made(
        "asked",
        f"SELECT {condition(declared).text}"
        " FROM (SELECT %(type)s::text AS type, %(key)s::text AS key, %(value)s::jsonb AS value) AS e",
    )
    [[answer]] = sql.fetch("default", asked, type=type, key=key, value=None if value is None else json.dumps(value))
    return answer


def is_key_match(some, key):
    return bool(is_match(consumer(keys=some), key=key))


@pytest.mark.requirement("S12")
def test_the_database_decides_the_table_of_patterns_as_it_is_written():
    assert [(pattern, text, is_key_match([pattern], text)) for pattern, text, _ in TABLE] == TABLE
    assert [(pattern, text, is_match(consumer(types=[pattern]), type=text)) for pattern, text, _ in TABLE] == TABLE


@pytest.mark.slow
@pytest.mark.requirement("S12")
@given(some=st.lists(patterns, min_size=1, max_size=4), text=texts)
@example(some=["a\\.*"], text="a\\.b")
@example(some=["***=a.*", "(?x)a .*"], text="(?x)a .b")
@example(some=["%s.*", "%(x)s", "%"], text="%")
@example(some=["{0}", "{log}.*"], text="{log}.x")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_python_and_the_database_agree(some, text):
    assert is_key_match(some, text) is matches(some, text)


@pytest.mark.slow
@pytest.mark.requirement("S12")
@given(some=st.lists(patterns, min_size=1, max_size=3), data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_python_and_the_database_agree_about_what_should_match(some, data):
    """Texts that come from a pattern: random ones would hardly ever match."""
    chosen = data.draw(st.sampled_from(some))
    filled = [data.draw(st.one_of(hostile, anything)) if token in ("*", ">") else token for token in chosen.split(".")]
    text = ".".join(filled)

    assert is_key_match(some, text) is matches(some, text)


@pytest.mark.requirement("S12")
def test_every_letter_may_be_part_of_a_pattern():
    """A letter that the database took for an escape would make its whole filter fail."""
    letters = [chr(code) for code in [*range(1, 0x3100), *range(0x3100, 0xD800, 31), *range(0xE000, 0x20000, 31)]]
    for start in range(0, len(letters), 250):
        some = letters[start : start + 250]
        pattern = "".join(some).replace(".", "")
        assert is_key_match([f"{pattern}.*"], f"{pattern}.x")


@pytest.mark.requirement("S12")
def test_types_keys_and_the_predicate_must_all_hold():
    declared = consumer(types=["order.*"], keys=["7", "8"], where="$.total > 100")
    good = {"type": "order.placed", "key": "7", "value": {"total": 101}}

    assert is_match(declared, **good)
    for change in ({"type": "payment.made"}, {"key": "9"}, {"key": None}, {"value": {"total": 100}}):
        assert not is_match(declared, **{**good, **change})


@pytest.mark.requirement("S12")
@pytest.mark.parametrize(
    ("where", "value", "expected"),
    [
        ("$.total > 100", {"total": 101}, True),
        ("$.total > 100", {"total": "101"}, False),
        ("$.total > 100", {}, False),
        ("$.total > 100", [], False),
        ("$.total > 100", "text", False),
        ("$.total > 100", None, False),
        ("strict $.total > 100", 7, False),
        ('$.lines[*].sku == "tea"', {"lines": [{"sku": "cup"}, {"sku": "tea"}]}, True),
        ("exists($.note)", {"note": None}, True),
        ("exists($.note)", {}, False),
        ('$.rate like_regex "^100%"', {"rate": "100% off"}, True),
        ('$."it\'s" == "{0}%s"', {"it's": "{0}%s"}, True),
        ('$.a == "\\\\"', {"a": "\\"}, True),
        ("$.größe == 1", {"größe": 1}, True),
        ("$.a / 0 == 1", {"a": 1}, False),
        ('$.at.datetime() > "2026-01-01".datetime()', {"at": "no date"}, False),
        ("!($.total > 100)", {"total": 1}, True),
    ],
)
def test_predicates(where, value, expected):
    assert is_match(consumer(where=where), value=value) is expected


def test_without_a_filter_everything_matches():
    declared = consumer()

    assert is_match(declared)
    assert re.fullmatch(r"true", condition(declared).text)
