"""Declarations of consumers: what they may look like, and how wrong ones are found. No database, no Django."""

import asyncio
import importlib
import inspect
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from pathlib import Path

import pytest

from django_events import Backoff, DeclaredConsumer, DeclaredTopic, consumer, declarations
from django_events.declarations import ConsumerRegistry, declaring
from django_events.exceptions import HandlerNotFound, Invalid, UnknownName

ROOT = Path(__file__).parents[2]
WHAT = "Consumer 'billing'"


@pytest.fixture(autouse=True)
def consumers(monkeypatch):
    """A registry of the test's own: what it declares is gone afterwards."""
    fresh = ConsumerRegistry()
    monkeypatch.setattr(declarations, "consumers", fresh)
    monkeypatch.setattr(declaring, "consumers", fresh)
    return declarations.consumers


def handle(event):
    """Do something about an event."""
    return f"handled {event}"


def declare(*topics, name="billing", **options):
    return consumer(*(topics or ["orders"]), name=name, **options)(handle)


def problems_of(*topics, name="billing", **options):
    return list(declare(*topics, name=name, **options).problems())


@pytest.mark.requirement("E12")
def test_a_consumer_without_options(consumers):
    billing = declare(DeclaredTopic(name="orders"))

    assert billing == DeclaredConsumer(
        name="billing",
        topics=("orders",),
        handler=handle,
        batch_size=None,
        min_batch=1,
        max_wait=None,
        types=None,
        keys=None,
        where=None,
        partitioned=True,
        transactional=True,
        start="beginning",
        retry=Backoff(attempts=8, base=timedelta(seconds=1), cap=timedelta(minutes=10)),
        on_exhausted="dead_letter",
        timeout=None,
        lease=timedelta(seconds=30),
    )
    assert list(consumers) == [billing]
    assert not list(consumers.problems())
    assert not billing.filtered


def test_a_consumer_with_every_option():
    options = {
        "batch_size": 500,
        "min_batch": 20,
        "max_wait": timedelta(seconds=2),
        "where": "$.total > 100",
        "partitioned": False,
        "transactional": False,
        "start": "end",
        "retry": Backoff(attempts=3),
        "on_exhausted": "stop",
        "timeout": timedelta(seconds=5),
        "lease": timedelta(minutes=1),
    }
    billing = declare("orders", "payments", types=["order.*", "payment.>"], keys=["7"], **options)

    assert not list(billing.problems())
    assert {name: getattr(billing, name) for name in options} == options
    assert billing.topics == ("orders", "payments")
    assert (billing.types, billing.keys) == (("order.*", "payment.>"), ("7",))
    assert billing.filtered


@pytest.mark.parametrize("option", [{"types": ["a"]}, {"keys": ["a"]}, {"where": "$.a == 1"}])
def test_each_filter_makes_a_consumer_filtered(option):
    assert declare(**option).filtered


def test_types_and_keys_may_be_one_text_or_any_collection():
    assert declare(types="order.placed").types == ("order.placed",)
    assert declare(keys=(str(n) for n in range(3))).keys == ("0", "1", "2")


def test_the_decorated_function_can_still_be_called_and_read():
    billing = declare()

    assert billing("7") == "handled 7"
    assert billing.__doc__ == "Do something about an event."
    assert inspect.unwrap(billing) is handle
    assert billing.load() is handle


def test_an_async_handler_is_still_awaited_by_its_caller():
    @consumer("orders", name="billing")
    async def bill(event):
        return f"billed {event}"

    assert asyncio.run(bill("7")) == "billed 7"


def test_an_object_that_can_be_called_is_a_handler():
    class Billing:
        def __call__(self, event):
            return f"billed {event}"

    assert consumer("orders", name="billing")(Billing())("7") == "billed 7"


def test_a_handler_may_be_a_path_that_is_imported_when_it_is_called(tmp_path, monkeypatch):
    module = tmp_path / "handlers_by_path.py"
    module.write_text("def bill(event):\n    return f'billed {event}'\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    billing = consumer("orders", name="billing", handler="handlers_by_path.bill")
    assert isinstance(billing, DeclaredConsumer)
    assert not list(billing.problems())
    assert "handlers_by_path" not in sys.modules

    monkeypatch.syspath_prepend(tmp_path)
    assert billing("7") == "billed 7"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def pay(event): ...", "AttributeError: module 'broken_handlers' has no attribute 'bill'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def bill(", "SyntaxError: '(' was never closed (broken_handlers.py, line 1)"),
    ],
)
def test_a_handler_that_can_not_be_imported_says_why(source, said, tmp_path, monkeypatch):
    (tmp_path / "broken_handlers.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "broken_handlers", raising=False)
    importlib.invalidate_caches()
    billing = consumer("orders", name="billing", handler="broken_handlers.bill")

    with pytest.raises(HandlerNotFound) as caught:
        billing.load()
    assert str(caught.value) == (
        f"The handler 'broken_handlers.bill' of consumer 'billing', declared at {billing.declared_at}, "
        f"can't be imported: {said}"
    )


def test_a_handler_that_is_no_function_says_what_it_is():
    with pytest.raises(HandlerNotFound, match=r"'sys\.path' of consumer 'billing' is \[.*\], not a function\."):
        consumer("orders", name="billing", handler="sys.path").load()


@pytest.mark.parametrize("handler", ["", "bill"])
def test_a_path_without_a_module_is_refused(handler):
    assert list(consumer("orders", name="billing", handler=handler).problems()) == [
        f"{WHAT} has handler={handler!r}, expected a path like 'shop.billing.bill'."
    ]


@pytest.mark.parametrize(
    "name", ["", "Billing", "1st", "bill ing", "bill\n", "b" * 64, "b'; DROP TABLE x; --", None, 7]
)
def test_names_that_can_not_be_used(name):
    [problem] = problems_of(name=name)

    assert problem.startswith(f"Consumer name {name!r} is not valid: it starts with a small letter")


@pytest.mark.parametrize("name", ["b", "billing", "billing-v2.search_index", "b" + "9" * 62])
def test_names_that_can_be_used(name):
    assert problems_of(name=name) == []


def test_a_name_is_needed():
    with pytest.raises(TypeError, match="name"):
        consumer("orders")


def test_a_consumer_without_topics_is_refused():
    billing = consumer(name="billing")(handle)

    assert list(billing.problems()) == [
        f"{WHAT} has no topic, expected at least one: @consumer(orders, name='billing')."
    ]


def test_a_topic_that_is_named_twice_is_refused():
    assert problems_of("orders", DeclaredTopic(name="payments"), "payments") == [
        f"{WHAT} names topic 'payments' twice."
    ]


def _number(option, value):
    return f"{WHAT} has {option}={value!r}, expected a whole number from 1 to 10,000."


@pytest.mark.requirement("E9")
@pytest.mark.parametrize("value", [0, -1, 10_001, 1.5, "7", True])
def test_batch_sizes_that_can_not_be_used(value):
    assert problems_of(batch_size=value) == [_number("batch_size", value)]


@pytest.mark.requirement("E9")
@pytest.mark.parametrize("value", [1, 10_000])
def test_batch_sizes_that_can_be_used(value):
    assert problems_of(batch_size=value) == []


@pytest.mark.requirement("E9")
@pytest.mark.parametrize("value", [0, -1, 2.5, "7", None, True])
def test_numbers_to_wait_for_that_can_not_be_used(value):
    assert problems_of(batch_size=10, min_batch=value) == [_number("min_batch", value)]


@pytest.mark.requirement("E9")
def test_a_batch_that_waits_for_more_than_it_may_hold_is_refused():
    wait = timedelta(seconds=1)

    assert problems_of(batch_size=5, min_batch=5, max_wait=wait) == []
    assert problems_of(batch_size=5, min_batch=6, max_wait=wait) == [
        f"{WHAT} has min_batch=6, expected at most batch_size, which is 5."
    ]
    assert problems_of(min_batch=2, max_wait=wait) == [
        f"{WHAT} has min_batch=2 without batch_size, so it takes events one by one."
    ]


@pytest.mark.requirement("E9")
def test_waiting_for_a_batch_needs_an_end_and_a_beginning():
    assert problems_of(batch_size=10, min_batch=5) == [
        f"{WHAT} has min_batch without max_wait, so a few events would wait for ever. Say how long at most."
    ]
    assert problems_of(batch_size=10, max_wait=timedelta(seconds=1)) == [
        f"{WHAT} has max_wait without min_batch, so there is nothing to wait for."
    ]


@pytest.mark.requirement("S12")
@pytest.mark.parametrize("option", ["types", "keys"])
def test_a_filter_that_nothing_matches_is_refused(option):
    assert problems_of(**{option: []}) == [
        f"{WHAT} has {option}=[], so no event would match. Leave it out to take all."
    ]


@pytest.mark.requirement("S12")
@pytest.mark.parametrize("option", ["types", "keys"])
@pytest.mark.parametrize("wrong", [7, None, b"order", "order\0placed", "order\ud800"])
def test_patterns_that_are_no_text_are_refused(option, wrong):
    assert problems_of(**{option: ["order.*", wrong]}) == [
        f"{WHAT} has {option}={['order.*', wrong]!r}, expected texts, like ['order.*']."
    ]


@pytest.mark.requirement("S12")
@pytest.mark.parametrize("pattern", [">.placed", "order.>.now", ">.>"])
def test_the_rest_can_only_come_last(pattern):
    assert problems_of(types=[pattern]) == [
        f"{WHAT} has the pattern {pattern!r} in types: '>' means the rest, so it can only be last."
    ]


@pytest.mark.parametrize("pattern", ["", ".", "order.>", ">", "*", "*.*", "a>b.c", "a*", "order>.placed", "x" * 1_000])
def test_patterns_that_can_be_used(pattern):
    assert problems_of(keys=[pattern]) == []


@pytest.mark.requirement("S12")
@pytest.mark.parametrize("where", ["", " \n", 7, b"$.a == 1", ["$.a == 1"], '$.a == "\0"', '$.a == "\ud800"'])
def test_predicates_that_are_no_text_are_refused(where):
    assert problems_of(where=where) == [
        f"{WHAT} has where={where!r}, expected a jsonpath predicate, like '$.total > 100'."
    ]


@pytest.mark.parametrize("option", ["partitioned", "transactional"])
@pytest.mark.parametrize("value", [None, 0, "yes"])
def test_switches_are_true_or_false(option, value):
    assert problems_of(**{option: value}) == [f"{WHAT} has {option}={value!r}, expected True or False."]


@pytest.mark.requirement("E10")
@pytest.mark.parametrize("value", [None, "", "dead-letter", "skip", True])
def test_what_comes_after_the_last_attempt_is_one_of_two(value):
    assert problems_of(on_exhausted=value) == [f"{WHAT} has on_exhausted={value!r}, expected 'dead_letter' or 'stop'."]


@pytest.mark.parametrize("start", ["beginning", "end", 1, 2**40, datetime(2026, 1, 1, tzinfo=UTC)])
def test_places_to_start_from(start):
    assert problems_of(start=start) == []


@pytest.mark.parametrize("start", ["", "begin", "1", 0, -1, 1.0, True, None, timedelta(days=1)])
def test_places_that_do_not_exist(start):
    assert problems_of(start=start) == [
        f"{WHAT} has start={start!r}, expected 'beginning', 'end', a datetime, or the id of the first event to handle."
    ]


def test_a_time_without_a_zone_is_refused():
    start = datetime(2026, 1, 1)

    assert problems_of(start=start) == [
        f"{WHAT} has start={start!r} without a time zone, so it is not clear which moment is meant."
    ]


@pytest.mark.requirement("P9")
@pytest.mark.parametrize("value", [timedelta(0), timedelta(seconds=-1), 5, "5s", True])
def test_timeouts_that_can_not_be_used(value):
    assert problems_of(timeout=value) == [f"{WHAT} has timeout={value!r}, expected a timedelta above zero, or None."]


@pytest.mark.requirement("E9")
@pytest.mark.parametrize("value", [timedelta(0), timedelta(seconds=-1), 5, "5s", True])
def test_waits_that_can_not_be_used(value):
    assert problems_of(batch_size=5, min_batch=2, max_wait=value) == [
        f"{WHAT} has max_wait={value!r}, expected a timedelta above zero, or None."
    ]


@pytest.mark.parametrize("value", [None, 30, "30s", timedelta(0), timedelta(seconds=0.99), timedelta.max])
def test_leases_that_can_not_be_used(value):
    assert problems_of(lease=value) == [f"{WHAT} has lease={value!r}, expected a timedelta from 1 second to 1 day."]


@pytest.mark.parametrize("value", [timedelta(seconds=1), timedelta(days=1)])
def test_leases_that_can_be_used(value):
    assert problems_of(lease=value) == []


@pytest.mark.parametrize("value", [None, 5, timedelta(seconds=1), "forever"])
def test_a_retry_that_is_no_backoff_is_refused(value):
    assert problems_of(retry=value) == [f"{WHAT} has retry={value!r}, expected a Backoff, like Backoff(attempts=5)."]


@pytest.mark.parametrize("handler", [None, 7, ["bill"]])
def test_what_can_not_be_called_is_refused(handler):
    assert list(consumer("orders", name="billing")(handler).problems()) == [
        f"{WHAT} has the handler {handler!r}, expected a function."
    ]


def takes_nothing(): ...


def takes_two(event, topic): ...


def yields(event):
    yield event


async def yields_async(event):
    yield event


class Billing:
    """A class that is made of an event, and handles none."""

    def __init__(self, event):
        self.event = event

    def bill(self, event): ...

    def __call__(self, event): ...


def with_topic(function):
    @wraps(function)
    def with_one_more(event):
        return function(event, "orders")

    return with_one_more


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (takes_nothing, "which takes (), expected a function of event"),
        (takes_two, "which takes (event, topic), expected a function of event"),
        (Billing.bill, "which takes (self, event), expected a function of event"),
        (yields, "expected a function without yield: to call a generator does nothing"),
        (yields_async, "expected a function without yield: to call a generator does nothing"),
        (Billing, "expected a function: to call a class only makes one of it"),
    ],
)
def test_a_handler_that_would_fail_on_each_event_or_do_nothing_is_refused(handler, why):
    [problem] = consumer("orders", name="billing")(handler).problems()
    assert problem == f"{WHAT} has the handler {handler!r}, {why}."


def test_what_a_handler_is_given_beside_the_event_is_not_told():
    """It may be a secret."""

    def send(event, url, *, token): ...

    [problem] = consumer("orders", name="billing")(partial(partial(send, "event"), "url", token="hush")).problems()
    assert problem == f"{WHAT} has the handler {send!r}, which takes (*, token), expected a function of event."


@pytest.mark.parametrize(
    "handler",
    [
        handle,
        print,
        Billing(1),
        Billing(1).bill,
        partial(takes_two, topic="orders"),
        with_topic(takes_two),
        lambda *events, **options: None,
    ],
)
def test_whatever_can_be_called_with_an_event_is_a_handler(handler):
    assert not list(consumer("orders", name="billing")(handler).problems())


def test_a_list_of_topics_is_refused_where_it_is_declared():
    with pytest.raises(Invalid, match=r"expected a declared topic or its name. Give each as an argument"):
        consumer(["orders", "payments"], name="billing")


def test_what_is_wrong_with_a_backoff_is_said_with_its_consumer():
    assert problems_of(retry=Backoff(attempts=0)) == [
        f"{WHAT}: Backoff has attempts=0, expected a whole number from 1."
    ]


def test_every_problem_of_a_consumer_is_listed():
    assert len(problems_of(name="X", batch_size=0, types=[], where="", start=0, lease=None, retry=None)) == 7


def test_a_wrong_declaration_does_not_stop_the_import_but_the_check(consumers):
    wrong = declare(name="Billing")

    assert [declared for declared, _ in consumers.problems()] == [wrong]
    with pytest.raises(Invalid, match="'Billing' is not valid"):
        consumers.check()


@pytest.mark.requirement("E12")
def test_a_consumer_that_is_declared_twice_is_found_with_both_places(consumers):
    first = consumer("orders", name="billing")(handle)
    second = consumer("orders", name="billing")(handle)

    [(found, problem)] = consumers.problems()
    assert found is second
    assert problem == f"Consumer 'billing' is declared twice: {first.declared_at} and {second.declared_at}."
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", first.declared_at)


def test_the_place_of_a_declaration_is_the_caller_s_in_both_forms():
    line = inspect.currentframe().f_lineno
    decorated = consumer("orders", name="billing")(handle)
    by_path = consumer("orders", name="search", handler="shop.search.index")

    assert decorated.declared_at == f"{__file__}:{line + 1}"
    assert by_path.declared_at == f"{__file__}:{line + 2}"


def test_nothing_is_declared_before_a_handler_is_decorated(consumers):
    consumer("orders", name="billing")

    assert not list(consumers)


@pytest.mark.requirement("E12")
def test_a_module_that_is_loaded_again_declares_its_consumers_again(consumers, tmp_path, monkeypatch):
    module = tmp_path / "reloaded_consumers.py"
    module.write_text(
        "from django_events import consumer\n\n"
        "@consumer('orders', name='billing')\n"
        "def bill(event): ...\n"
        "search = consumer('orders', name='search', handler='shop.search')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded = importlib.import_module("reloaded_consumers")
    module.write_text(module.read_text().replace("name='billing')", "name='billing', batch_size=5)"))
    importlib.reload(loaded)

    assert not list(consumers.problems())
    assert {one.name for one in consumers} == {"billing", "search"}
    assert consumers.get("billing") is loaded.bill
    assert loaded.bill.batch_size == 5


@pytest.mark.requirement("E12")
def test_a_consumer_is_found_by_its_name_or_by_a_declaration(consumers):
    billing = declare()

    assert consumers.get("billing") is billing
    assert consumers.get(replace(billing, batch_size=7)) is billing  # the name is what counts


@pytest.mark.requirement("E12")
def test_an_unknown_consumer_comes_with_the_likely_one(consumers):
    declare(name="billing")
    declare(name="search")

    with pytest.raises(UnknownName) as caught:
        consumers.get("biling")
    assert str(caught.value) == (
        "No installed app declares a consumer 'biling'. Did you mean 'billing'? "
        "Declare it in an app's events.py: @consumer(…, name='biling')."
    )
    with pytest.raises(UnknownName, match=r"a consumer 'zzz'\. Known are: billing, search\."):
        consumers.get("zzz")


@pytest.mark.parametrize("name", [None, 7, ["billing"], {}, object()])
def test_something_that_is_no_consumer_at_all_is_an_unknown_consumer(consumers, name):
    with pytest.raises(UnknownName, match="None is known"):
        consumers.get(name)


def test_what_is_discarded_is_forgotten_and_nothing_else(consumers):
    billing, search = declare(), declare(name="search")
    consumers.discard(replace(search))
    consumers.discard(billing)

    assert list(consumers) == [search]
    with pytest.raises(UnknownName):
        consumers.get("billing")


def test_a_declaration_is_frozen():
    with pytest.raises(FrozenInstanceError):
        declare().batch_size = 2


def test_declarations_compare_and_hash_by_what_they_say_not_by_where_or_by_the_handler():
    one, other = declare(), consumer("orders", name="billing", handler="shop.bill")

    assert one.declared_at != other.declared_at
    assert one == other
    assert len({one, other}) == 1
    assert one != replace(one, batch_size=2)


def test_a_declaration_prints_as_its_name():
    assert str(declare()) == "billing"


def test_consumers_can_be_declared_without_django():
    program = """
import sys
from django_events import Backoff, Ignore, RetryLater, consumer, topic
orders = topic("orders")
@consumer(orders, name="billing", types=["order.*"], retry=Backoff(attempts=3))
def bill(event):
    return event
from django_events.declarations import consumers
consumers.check()
assert bill(7) == 7
loaded = [name for name in sys.modules if name.split(".")[0] in ("django", "psycopg", "pgtrigger", "asgiref")]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], env={}, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
