"""How long the demo waits: for as long as something moves."""

from io import StringIO

import pytest
from django.core.management import CommandError

from testproject.shop.management.commands.demo import Command
from testproject.shop.patience import Patience


def test_what_moves_is_waited_for():
    patience = Patience(seconds=-1)  # the time is over at once
    assert not Patience(seconds=60).is_over(1)
    assert patience.is_over(1)


def test_each_progress_begins_the_deadline_anew(monkeypatch):
    now = iter([0.0, 50.0, 100.0, 161.0])
    monkeypatch.setattr("testproject.shop.patience.time.monotonic", lambda: next(now))
    patience = Patience(seconds=60)

    assert [patience.is_over(seen) for seen in ("a", "b", "b")] == [False, False, True]


def test_it_is_told_once_in_a_while(monkeypatch):
    now = iter([0.0, 1.0, 5.0, 6.0])
    monkeypatch.setattr("testproject.shop.patience.time.monotonic", lambda: next(now))
    patience = Patience(tell_every=5)

    assert [patience.is_time_to_tell() for _ in range(3)] == [False, True, False]


def test_the_demo_tells_what_is_left_and_ends_at_a_standstill_with_what_stands_still():
    out = StringIO()
    demo = Command(stdout=out)
    demo._go_on_waiting(Patience(tell_every=0), "moved", {"receipts, behind": 1_204})
    assert out.getvalue() == "  still to do: receipts, behind: 1,204\n"

    with pytest.raises(CommandError, match=r"^Nothing has moved for -1 s\. What stands still: receipts, behind: 3\. "):
        demo._go_on_waiting(Patience(seconds=-1), "moved", {"receipts, behind": 3})
