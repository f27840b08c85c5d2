"""The tree of errors: which there are, and what each one is."""

import inspect

import pytest

from django_events import exceptions
from django_events.exceptions import EventsError, did_you_mean

# Each with its parents: callers catch by them, so a change here is a change of the public interface.
TREE = {
    "EventsError": ("Exception",),
    "Refused": ("EventsError",),
    "InUse": ("Refused",),
    "Invalid": ("Refused", "ValueError"),
    "InvalidEvent": ("Invalid",),
    "HandlerNotFound": ("Invalid",),
    "UnknownName": ("Refused", "LookupError"),
    "NotReady": ("Refused",),
    "WrongShard": ("Refused",),
    "NotInTransaction": ("Refused",),
    "WriterFull": ("Refused",),
    "NotWritten": ("EventsError",),
    "NotSeen": ("EventsError", "TimeoutError"),
    "LeaseLost": ("EventsError",),
    "EventExpired": ("EventsError", "LookupError"),
    "EventsMissing": ("EventsError",),
    "LogReplaced": ("EventsError",),
    "HandlerTimeout": ("EventsError", "TimeoutError"),
    "UnreadableEvent": ("EventsError",),
    "MessageRefused": ("EventsError",),
    "UnfitEvent": ("EventsError",),
    "WorkerEnded": ("EventsError",),
}


def drawn() -> dict[str, str]:
    """The names in the tree at the top of the module, each with the one that it stands below."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getdoc(exceptions).splitlines():
        name = line.lstrip("│├└─ ").partition(" ")[0]
        if name in TREE:
            depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
            above[depth:] = [name]
            found[name] = above[depth - 1] if depth else ""
    return found


def test_these_are_the_errors_with_their_parents():
    found = {name: value for name, value in vars(exceptions).items() if inspect.isclass(value)}
    classes = {name: value for name, value in found.items() if value.__module__ == exceptions.__name__}
    assert {name: tuple(base.__name__ for base in one.__bases__) for name, one in classes.items()} == TREE


def test_the_module_begins_with_the_tree():
    assert drawn() == {name: parents[0] if name != "EventsError" else "" for name, parents in TREE.items()}


@pytest.mark.parametrize("name", [name for name, parents in TREE.items() if "Refused" in parents])
def test_what_is_refused_can_be_caught_at_once(name):
    with pytest.raises(exceptions.Refused) as caught:
        raise getattr(exceptions, name)("No.")
    assert isinstance(caught.value, EventsError) and str(caught.value) == "No."


def test_of_many_names_the_nearest_are_said():
    known = [f"consumer-{number:02}" for number in range(60)] + ["ledger", "mailer"]

    assert did_you_mean("ledgr", known) == "Did you mean 'ledger'?"
    said = did_you_mean("mail!!!!!!", known)
    assert said.startswith("The nearest of 62 are: mailer, ")
    assert said.count(",") == 9
