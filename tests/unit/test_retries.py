"""The schedule of attempts, and what handlers raise to decide by hand. No database, no Django."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_events import Backoff, Ignore, RetryLater

SECOND = timedelta(seconds=1)
LONGEST = timedelta(days=3_650)
durations = st.timedeltas(min_value=timedelta(0), max_value=LONGEST)


@pytest.mark.requirement("E10")
def test_a_backoff_without_options_tries_eight_times_up_to_ten_minutes_apart():
    assert Backoff() == Backoff(attempts=8, base=SECOND, cap=timedelta(minutes=10))
    assert not list(Backoff().problems())


@pytest.mark.requirement("E10")
@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (7, 64), (8, 100), (9, 100), (100, 100), (10**6, 100)]
)
def test_each_pause_is_twice_as_long_up_to_the_cap(attempt, seconds):
    backoff = Backoff(attempts=10**6, base=SECOND, cap=timedelta(seconds=100))
    pauses = {backoff.pause(attempt) for _ in range(50)}

    assert all(0.75 * seconds <= pause.total_seconds() <= seconds for pause in pauses)
    assert len(pauses) > 1, "what failed together would be tried together"


@pytest.mark.requirement("E10")
@given(base=durations, cap=durations, attempt=st.integers(1, 10**9))
def test_no_pause_is_longer_than_the_cap_whatever_the_attempt(base, cap, attempt):
    assert timedelta(0) <= Backoff(base=base, cap=cap).pause(attempt) <= cap


@given(base=durations, attempt=st.integers(1, 100))
def test_a_pause_never_gets_much_shorter_with_another_attempt(base, attempt):
    backoff = Backoff(base=base, cap=LONGEST)

    assert backoff.pause(attempt + 1) >= backoff.pause(attempt) * 0.75 - timedelta(microseconds=1)


@pytest.mark.requirement("E10")
@pytest.mark.parametrize(("attempt", "seconds"), [(1, 5), (2, 300), (3, 3_600), (4, 3_600), (10**6, 3_600)])
def test_each_pause_may_be_said_and_the_last_one_comes_again(attempt, seconds):
    backoff = Backoff(pauses=[timedelta(seconds=5), timedelta(minutes=5), timedelta(hours=1)])
    pauses = {backoff.pause(attempt) for _ in range(50)}

    assert not list(backoff.problems())
    assert all(0.75 * seconds <= pause.total_seconds() <= seconds for pause in pauses)
    assert len(pauses) > 1, "what failed together would be tried together"
    assert hash(backoff) == hash(Backoff(pauses=(timedelta(seconds=5), timedelta(minutes=5), timedelta(hours=1))))


@pytest.mark.parametrize("pauses", [[timedelta(-1)], [5], "1s", SECOND, None, {1: SECOND}])
def test_pauses_that_can_not_be_used(pauses):
    [problem] = Backoff(pauses=pauses).problems()
    assert problem.startswith("Backoff has pauses=")
    assert problem.endswith("expected a list of timedeltas from zero to ten years.")


def test_pauses_and_a_base_are_two_answers_to_one_question():
    assert list(Backoff(pauses=[SECOND], cap=SECOND).problems()) == [
        "Backoff has pauses, and base or cap too: pauses say how long each one is."
    ]


def test_without_a_pause_it_is_tried_again_at_once():
    assert Backoff(base=timedelta(0)).pause(1_000) == timedelta(0)
    assert Backoff(cap=timedelta(0)).pause(1_000) == timedelta(0)


def test_a_base_above_the_cap_is_the_cap():
    pause = Backoff(base=timedelta(hours=1), cap=SECOND).pause(1)

    assert timedelta(seconds=0.75) <= pause <= SECOND


@pytest.mark.parametrize("attempts", [0, -1, 1.5, "3", None, True])
def test_numbers_of_attempts_that_can_not_be_used(attempts):
    assert list(Backoff(attempts=attempts).problems()) == [
        f"Backoff has attempts={attempts!r}, expected a whole number from 1."
    ]


@pytest.mark.parametrize("option", ["base", "cap"])
@pytest.mark.parametrize("value", [timedelta(microseconds=-1), LONGEST + SECOND, timedelta.max, 5, "1s", None])
def test_durations_that_can_not_be_used(option, value):
    assert list(Backoff(**{option: value}).problems()) == [
        f"Backoff has {option}={value!r}, expected a timedelta from zero to ten years."
    ]


@pytest.mark.parametrize("value", [timedelta(0), LONGEST])
def test_durations_that_can_be_used(value):
    assert not list(Backoff(base=value, cap=value).problems())


@pytest.mark.requirement("E10")
def test_retry_says_when():
    asked = RetryLater("the bank is closed", after=timedelta(hours=1))

    assert asked.after == timedelta(hours=1)
    assert str(asked) == "the bank is closed"
    assert str(RetryLater(after=timedelta(hours=1))) == "to be tried again after 1:00:00"
    assert RetryLater(after=timedelta(0)).after == timedelta(0)


@pytest.mark.parametrize("after", [timedelta(seconds=-1), LONGEST + SECOND, timedelta.max, 5, "1h", None])
def test_retry_after_something_else_is_refused(after):
    with pytest.raises(ValueError) as caught:
        RetryLater(after=after)
    assert str(caught.value) == f"RetryLater has after={after!r}, expected a timedelta from zero to ten years."


def test_retry_has_no_default():
    with pytest.raises(TypeError, match="after"):
        RetryLater("later")


def test_ignore_says_why():
    assert (Ignore("nothing to bill").reason, str(Ignore("nothing to bill"))) == (
        "nothing to bill",
        "nothing to bill",
    )
    with pytest.raises(TypeError, match="reason"):
        Ignore()
