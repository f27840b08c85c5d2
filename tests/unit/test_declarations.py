"""Declarations: what a topic may look like, and how wrong ones are found. No database, no Django."""

import importlib
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_events import DeclaredTopic, declarations, topic
from django_events.declarations import TopicRegistry, declaring
from django_events.exceptions import Invalid, UnknownName

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A registry of the test's own: what it declares is gone afterwards."""
    fresh = TopicRegistry()
    monkeypatch.setattr(declarations, "registry", fresh)
    monkeypatch.setattr(declaring, "registry", fresh)
    return declarations.registry


def problems_of(*args, **options):
    return list(DeclaredTopic(name=args[0] if args else "orders", **options).problems())


@pytest.mark.requirement("E1")
def test_a_topic_without_options_has_one_partition_and_keeps_events_for_ever(registry):
    orders = topic("orders")

    assert orders == DeclaredTopic(name="orders", partitions=1, retention=None, segment_size=1_000_000, timeline=False)
    assert list(registry) == [orders]
    assert not list(registry.problems())


@pytest.mark.parametrize(
    "name", ["a", "orders", "orders.placed", "shop-1_orders.v2", "a" + "b" * 62, "o--", "o..", "x9"]
)
def test_names_that_can_be_used(name):
    assert problems_of(name) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Orders",
        "1orders",
        "_orders",
        "-orders",
        ".orders",
        "ord ers",
        "orders\n",
        "órders",
        "orders/1",
        "a" * 64,
        "o'; DROP TABLE django_events_topic; --",
        None,
        7,
        b"orders",
    ],
)
def test_names_that_can_not_be_used(name):
    [problem] = problems_of(name)

    assert problem.startswith(f"Topic name {name!r} is not valid: it starts with a small letter")


@given(st.from_regex(r"[a-z][a-z0-9_.-]{0,62}", fullmatch=True, alphabet=st.characters(max_codepoint=127)))
def test_every_name_of_the_right_form_can_be_used(name):
    assert problems_of(name) == []


@pytest.mark.requirement("E1")
@pytest.mark.parametrize("partitions", [1, 2, 8, 1_000])
def test_a_topic_has_one_to_a_thousand_partitions(partitions):
    assert problems_of(partitions=partitions) == []


@pytest.mark.requirement("E1")
@pytest.mark.parametrize("partitions", [0, -1, 1_001, 1.0, "8", None, True])
def test_other_numbers_of_partitions_are_refused(partitions):
    assert problems_of(partitions=partitions) == [
        f"Topic 'orders' has partitions={partitions!r}, expected a whole number from 1 to 1,000."
    ]


@pytest.mark.parametrize("size", [0, 99, 2**40 + 1, 1e6, "1000", None, True])
def test_a_segment_size_out_of_range_is_refused(size):
    [problem] = problems_of(segment_size=size)

    assert problem == f"Topic 'orders' has segment_size={size!r}, expected a whole number from 100 to {2**40:,}."


@pytest.mark.parametrize("size", [100, 2**40])
def test_the_limits_of_the_segment_size_can_be_used(size):
    assert problems_of(segment_size=size) == []


@pytest.mark.parametrize("retention", [timedelta(0), timedelta(days=-1), 30, "30 days", True])
def test_a_retention_that_is_no_duration_is_refused(retention):
    [problem] = problems_of(retention=retention)

    assert problem == (
        f"Topic 'orders' has retention={retention!r}, expected a timedelta above zero, or None to keep events for ever."
    )


@pytest.mark.parametrize("timeline", [1, "yes", None])
def test_a_timeline_that_is_not_true_or_false_is_refused(timeline):
    assert problems_of(timeline=timeline) == [f"Topic 'orders' has timeline={timeline!r}, expected True or False."]


def test_every_problem_of_a_topic_is_listed():
    assert len(problems_of("X", partitions=0, segment_size=1, retention=1, timeline=1)) == 5


def test_a_wrong_declaration_does_not_stop_the_import_but_the_check(registry):
    wrong = topic("Orders")

    assert [declared for declared, _ in registry.problems()] == [wrong]
    with pytest.raises(Invalid, match="'Orders' is not valid"):
        registry.check()


@pytest.mark.requirement("E1")
def test_a_topic_that_is_declared_twice_is_found_with_both_places(registry):
    first = topic("orders")
    second = topic("orders", partitions=8)

    [(found, problem)] = registry.problems()
    assert found is second
    assert problem == f"Topic 'orders' is declared twice: {first.declared_at} and {second.declared_at}."
    assert first.declared_at != second.declared_at
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", first.declared_at)


def test_of_two_declarations_the_first_is_meant_until_it_is_discarded(registry):
    first = topic("orders")
    second = topic("orders", partitions=8)

    assert registry.get("orders") is first
    registry.discard(first)
    assert registry.get("orders") is second
    assert not list(registry.problems())


def test_discarding_forgets_only_that_very_declaration(registry):
    orders, twin = topic("orders"), DeclaredTopic(name="orders")
    registry.discard(twin)

    assert list(registry) == [orders]


@pytest.mark.requirement("E1")
def test_a_module_that_is_loaded_again_declares_its_topics_again(registry, tmp_path, monkeypatch):
    module = tmp_path / "reloaded_events.py"
    module.write_text("from django_events import topic\norders = topic('orders')\npayments = topic('payments')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded = importlib.import_module("reloaded_events")
    module.write_text(module.read_text().replace("'orders'", "'orders', partitions=8"))
    importlib.reload(loaded)

    assert not list(registry.problems())
    assert {declared.name for declared in registry} == {"orders", "payments"}
    assert registry.get("orders") is loaded.orders
    assert registry.get("orders").partitions == 8


def test_a_topic_is_found_by_its_name_or_by_a_declaration(registry):
    orders = topic("orders")

    assert registry.get("orders") is orders
    assert registry.get(orders) is orders
    assert registry.get(DeclaredTopic(name="orders", partitions=3)) is orders  # the name is what counts


def test_an_unknown_topic_comes_with_the_likely_one(registry):
    topic("orders")
    topic("payments")

    with pytest.raises(UnknownName) as caught:
        registry.get("oders")
    assert str(caught.value) == (
        "No installed app declares a topic 'oders'. Did you mean 'orders'? "
        "Declare it in an app's events.py: topic('oders')."
    )


def test_an_unknown_topic_that_resembles_none_comes_with_all(registry):
    topic("payments")
    topic("orders")

    with pytest.raises(UnknownName, match=r"a topic 'zzz'\. Known are: orders, payments\."):
        registry.get("zzz")


@pytest.mark.parametrize("name", [None, 7, ["orders"], {}, object()])
def test_something_that_is_no_topic_at_all_is_an_unknown_topic(registry, name):
    with pytest.raises(UnknownName, match="None is known"):
        registry.get(name)


def test_a_declaration_is_frozen():
    orders = topic("orders")

    with pytest.raises(FrozenInstanceError):
        orders.partitions = 2


def test_declarations_compare_and_hash_by_what_they_say_not_by_where():
    one = topic("orders")
    other = topic("orders")

    assert one.declared_at != other.declared_at
    assert one == other
    assert len({one, other}) == 1
    assert one != replace(one, partitions=2)


def test_a_declaration_prints_as_its_name():
    assert str(topic("orders")) == "orders"


def test_declarations_can_be_made_without_django():
    program = """
import sys
from datetime import timedelta
from django_events import DeclaredTopic, topic
orders = topic("orders", partitions=8, retention=timedelta(days=30))
from django_events.declarations import registry
registry.check()
assert registry.get("orders") is orders
loaded = [name for name in sys.modules if name.split(".")[0] in ("django", "psycopg", "pgtrigger")]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], env={}, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
