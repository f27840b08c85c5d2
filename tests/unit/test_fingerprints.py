"""What the same failure has in common each time."""

from dataclasses import replace
from functools import partial

import pytest

from django_events import declarations
from django_events.consuming.failures import Failure, Verdict
from django_events.consuming.fingerprints import LONGEST, alike, fingerprint
from django_events.received import ReceivedEvent


class NoSuchOrder(Exception):
    pass


def charge(order):
    raise NoSuchOrder(f"no order {order}")


def bill(order):
    charge(order)


def raised(order):
    try:
        bill(order)
    except NoSuchOrder as error:
        return error


@pytest.mark.parametrize(
    ("said", "like"),
    [
        ("ValueError: no order 1042 of 17", "ValueError: no order # of #"),
        ("TypeError: <Order object at 0x7f3a9C00>", "TypeError: <Order object at #>"),
        ("KeyError: UUID('6F9619FF-8B86-D011-B42D-00CF4FC964FF')", "KeyError: UUID('#')"),
        ("KeyError: '6f9619ff8b86d011b42d00cf4fc964ff'", "KeyError: '#'"),
        ("Conflict: 9fceb02d0ae598e95dc970b74767f19372d61af8 is newer", "Conflict: # is newer"),
        ("Invalid: deadbeefs, defaced and feedface stay", "Invalid: deadbeefs, defaced and feedface stay"),
        ("Gone: order_6f9619ff8b86, att2", "Gone: order_#, att#"),
        ("\n\nFirst line  \nsecond 2", "First line"),
        ("", ""),
    ],
)
def test_what_differs_is_left_out(said, like):
    assert alike(said) == like


def test_a_long_error_is_cut_when_what_differs_is_gone():
    said = [alike(f"Error: {'x' * 200} {number} {'y' * 300}") for number in ("1", "12345678", "0x7f3a9c00aa")]

    assert len(set(said)) == 1
    assert len(said[0]) == LONGEST


def test_the_place_is_the_deepest_function_of_the_package():
    error = raised(1042)

    assert fingerprint(error, "NoSuchOrder: no order 1042", within="tests") == (
        "NoSuchOrder in tests.unit.test_fingerprints:charge: no order #"
    )
    assert fingerprint(error, "NoSuchOrder: no order 1042", within="test") == "NoSuchOrder: no order #"
    assert fingerprint(error, "NoSuchOrder", within="tests") == "NoSuchOrder in tests.unit.test_fingerprints:charge"
    assert fingerprint(ValueError(), "ValueError", within="tests") == "ValueError"


def test_numbers_in_the_place_stay():
    module = {"__name__": "shop2.api.v2"}
    exec("def charge64(): raise ValueError('no 7')", module)
    with pytest.raises(ValueError, match="no 7") as raised:
        module["charge64"]()

    assert fingerprint(raised.value, "ValueError: no 7", within="shop2") == "ValueError in shop2.api.v2:charge64: no #"


def test_a_failure_has_it_whatever_was_said():
    consumer = declarations.DeclaredConsumer(name="billing", topics=(), handler="tests.unit.test_fingerprints.bill")
    event = ReceivedEvent.__new__(ReceivedEvent)
    error = raised("\0\ud800 7")

    assert consumer.package == "tests"
    assert replace(consumer, handler=partial(partial(charge, 7))).package == "tests"
    assert replace(consumer, handler=object()).package == ""
    assert Failure(event, error, Verdict.DEAD_LETTER).fingerprint(consumer) == (
        "NoSuchOrder in tests.unit.test_fingerprints:charge: no order \\#\\ud# #"
    )
