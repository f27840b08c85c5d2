"""Chosen events again, for one consumer: these and no others, each once, whatever happens beside it."""

import json
import threading
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from django_events import Backoff, Draft, declarations, publish_many
from django_events.consuming.fingerprints import alike
from django_events.exceptions import InUse, Invalid, Refused, UnknownName
from django_events.models import DeadLetter, Intervention
from django_events.observing.verifying.proving import verify
from django_events.operations import discard, lag, redrive, replay, rewind
from django_events.outcomes import Replayed
from tests.support.fix_consumers import run_once
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")

WHY = {"reason": "the deploy of Tuesday"}
AT_ONCE = Backoff(attempts=2, base=timedelta(0))
MODES = pytest.mark.parametrize("mode", ["stream", "queue"])


@pytest.fixture
def reader(make_topic, make_consumer, make_queue):
    """A consumer of `things` that remembers what it was given."""

    def make(mode, *, name="reader", fails=lambda event: False, partitions=1, **options):
        seen = []

        def handler(event):
            seen.append(event.value)
            if fails(event):
                raise ValueError(f"no {event.id}")

        if not any(topic.name == "things" for topic in declarations.registry):
            make_topic(partitions=partitions)
        kind = make_queue if mode == "queue" else make_consumer
        kind("things", name=name, handler=handler, retry=AT_ONCE, **options)
        return next(one for one in declarations.consumers if one.name == name), seen

    return make


@pytest.mark.requirement("S9")
@pytest.mark.requirement("X17")
@MODES
def test_these_and_no_others_come_again_to_one_consumer_only(reader, mode):
    ours, seen = reader(mode)
    theirs, others = reader(mode, name="another")
    fill_topic("things", *range(1, 11))
    run_once(ours, theirs)
    seen.clear()
    others.clear()
    assert replay(ours, ids=[7, 2, 3, 2], by="ada", **WHY) == Replayed("things", 3, 0, 0, 0)
    run_once(ours, theirs)

    assert (seen, others) == ([2, 3, 7], [])
    assert not DeadLetter.objects.exists()
    assert lag(ours) == 0
    record = Intervention.objects.get()
    assert (record.action, record.by, record.consumer) == ("replay", "ada", ours.name)
    assert record.details == {"count": 3, "events": [2, 3, 7], **WHY}
    assert list(verify("default").offenders) == []


@MODES
def test_a_range_that_a_filter_fits(reader, mode):
    ours, seen = reader(mode)
    drafts = [Draft(value=n, type=f"order.{'paid' if n % 2 else 'sent'}", key=str(n % 3)) for n in range(1, 21)]
    publish_many("things", drafts)
    transfer_all()
    run_once(ours)
    seen.clear()

    assert replay(ours, first=5, last=14, types=["order.paid"], keys=["1", "2"], **WHY).events == 4
    assert ours.replay(first=19, where="$ > 19", **WHY).events == 1
    run_once(ours)
    assert seen == [5, 7, 11, 13, 20]


@MODES
def test_what_is_not_handled_yet_does_not_come_twice(reader, mode):
    ours, seen = reader(mode)
    fill_topic("things", 1, 2)
    run_once(ours)
    fill_topic("things", 3, 4)
    with pytest.raises(Refused, match="has not handled things/3 yet, so it comes anyway"):
        replay(ours, ids=[2, 3], **WHY)
    assert replay(ours, first=2, **WHY) == Replayed("things", 1, 2, 0, 0)
    run_once(ours)

    assert sorted(seen) == [1, 2, 2, 3, 4]


@pytest.mark.slow
@MODES
def test_what_its_own_filter_leaves_out_is_left_out(reader, mode):
    ours, seen = reader(mode, types=["mine"])
    publish_many("things", [Draft(value=n, type="mine" if n % 2 else "other") for n in range(1, 7)])
    transfer_all()
    run_once(ours)
    seen.clear()

    assert replay(ours, ids=range(1, 7), **WHY) == Replayed("things", 3, 0, 3, 0)
    run_once(ours)
    assert seen == [1, 3, 5]


@pytest.mark.slow
@MODES
def test_said_twice_it_comes_once(reader, mode):
    ours, seen = reader(mode)
    fill_topic("things", 1, 2)
    run_once(ours)
    seen.clear()
    replay(ours, ids=[1, 2], **WHY)
    assert replay(ours, ids=[1, 2], **WHY) == Replayed("things", 0, 0, 0, 2)
    run_once(ours)
    assert seen == [1, 2]

    replay(ours, ids=[1], **WHY)
    run_once(ours)
    assert seen == [1, 2, 1]


@pytest.mark.slow
@MODES
def test_of_two_operators_at_once_each_event_comes_once(reader, mode, in_thread):
    ours, seen = reader(mode)
    fill_topic("things", *range(1, 51))
    run_once(ours)
    seen.clear()
    together = threading.Barrier(4)

    def ask():
        together.wait(60)
        return replay(ours, first=1, **WHY).events

    assert sum(one.result(120) for one in [in_thread(ask) for _ in range(4)]) == 50
    run_once(ours)
    assert sorted(seen) == list(range(1, 51))


@pytest.mark.slow
@MODES
def test_beside_workers_and_publishers_each_replayed_event_comes_once_more(reader, mode, in_thread):
    ours, seen = reader(mode)
    fill_topic("things", *range(1, 101))
    run_once(ours)
    over = threading.Event()

    def work():
        while not over.is_set():
            run_once(ours)

    def move():
        n = 100
        while not over.is_set():
            publish_many("things", [Draft(value=n + one) for one in range(1, 6)])
            n += 5
            transfer_all()
        return n

    busy, last = [in_thread(work) for _ in range(2)], in_thread(move)
    try:
        for n in range(0, 100, 10):
            assert replay(ours, ids=range(n + 1, n + 11), **WHY).events == 10
    finally:
        over.set()
        published = last.result(120)
        for one in busy:
            one.result(120)
    run_once(ours)

    assert sorted(seen) == sorted([*range(1, published + 1), *range(1, 101)])
    assert not DeadLetter.objects.exists()


@pytest.mark.slow
@MODES
def test_one_that_fails_is_a_dead_letter_and_what_came_before_is_not(reader, mode):
    broken = []
    ours, seen = reader(mode, fails=lambda event: event.id in broken)
    fill_topic("things", 1, 2, 3)
    run_once(ours)
    broken.append(2)
    replay(ours, ids=[1, 2, 3], **WHY)
    letter = DeadLetter.objects.get(event_id=2)
    assert letter.error.startswith("Replayed by ")
    assert letter.error.endswith(": the deploy of Tuesday")
    assert letter.fingerprint == alike(letter.error)
    run_once(ours)

    letter = DeadLetter.objects.get()
    assert (letter.event_id, letter.attempts, letter.error, letter.redrive_at) == (2, 2, "ValueError: no 2", None)
    broken.clear()
    redrive(letter)
    run_once(ours)
    assert seen[-1] == 2
    assert not DeadLetter.objects.exists()


@pytest.mark.slow
@MODES
def test_it_is_called_off_by_discarding(reader, mode):
    ours, seen = reader(mode)
    fill_topic("things", 1, 2)
    run_once(ours)
    seen.clear()
    replay(ours, ids=[1, 2], **WHY)
    discard(DeadLetter.objects.of(ours).filter(event_id=1), reason="it was right")
    run_once(ours)

    assert seen == [2]


@pytest.mark.slow
@MODES
def test_a_rewind_behind_it_takes_it_along(reader, mode):
    ours, seen = reader(mode)
    fill_topic("things", 1, 2, 3)
    run_once(ours)
    seen.clear()
    replay(ours, ids=[1, 3], **WHY)
    rewind(ours, to=2)
    run_once(ours)

    assert sorted(seen) == [1, 2, 3]


@pytest.mark.slow
def test_a_dead_letter_of_the_same_key_comes_first(reader):
    broken = [1]
    ours, _ = reader("stream", fails=lambda event: event.id in broken)
    publish_many("things", [Draft(value=n, key="a") for n in (1, 2)])
    transfer_all()
    run_once(ours)
    with pytest.raises(Refused, match="can't be handled before things/1, which is older and has the same key 'a'"):
        replay(ours, ids=[2], **WHY)
    assert DeadLetter.objects.count() == 1
    broken.clear()

    assert replay(ours, ids=[1, 2], **WHY).events == 2
    run_once(ours)
    assert not DeadLetter.objects.exists()


@pytest.mark.slow
def test_partitions_that_are_not_equally_far(reader):
    ours, seen = reader("stream", partitions=4)
    publish_many("things", [Draft(value=n, partition=n % 4) for n in range(1, 21)])
    transfer_all()
    run_once(ours)
    seen.clear()
    publish_many("things", [Draft(value=n, partition=n % 4) for n in range(21, 25)])
    transfer_all()

    assert replay(ours, first=15, **WHY) == Replayed("things", 6, 4, 0, 0)
    run_once(ours)
    assert sorted(seen) == list(range(15, 25))


# What is refused


def test_an_event_that_is_not_there_is_named(reader):
    ours, _ = reader("stream")
    fill_topic("things", 1)
    run_once(ours)
    with pytest.raises(Refused, match="There is no event things/7 in the log"):
        replay(ours, ids=[1, 7], **WHY)
    with pytest.raises(UnknownName):
        replay("unknown", ids=[1], **WHY)
    assert not DeadLetter.objects.exists()


def test_it_is_said_which_and_why(reader):
    ours, _ = reader("stream")
    with pytest.raises(Invalid, match="reason is empty"):
        replay(ours, ids=[1], reason=" ")
    with pytest.raises(Invalid, match="Say which events"):
        replay(ours, types=["order.*"], **WHY)
    with pytest.raises(Invalid, match="with no range and no filter"):
        replay(ours, ids=[1], first=1, **WHY)


def test_too_many_at_once(reader, monkeypatch):
    monkeypatch.setattr("django_events.operating.replaying.MOST", 5)
    ours, _ = reader("stream")
    fill_topic("things", *range(1, 8))
    run_once(ours)
    with pytest.raises(Refused, match="More than 5 events of topic things are chosen"):
        replay(ours, first=1, **WHY)
    assert replay(ours, first=1, last=5, **WHY).events == 5


def test_a_transaction_that_is_rolled_back_replays_nothing(reader):
    ours, seen = reader("stream")
    fill_topic("things", 1)
    run_once(ours)
    with transaction.atomic():
        replay(ours, ids=[1], **WHY)
        transaction.set_rollback(True)
    run_once(ours)
    assert seen == [1]


@pytest.mark.slow
def test_whose_lock_is_in_the_way_is_named(reader, connect, monkeypatch):
    monkeypatch.setattr("django_events.operating.locks.LOCK_TIMEOUT", "300ms")
    ours, _ = reader("stream")
    fill_topic("things", 1)
    run_once(ours)
    session = connect()
    session.execute("SELECT FROM django_events_position FOR UPDATE")
    with pytest.raises(InUse, match=rf"by session {session.info.backend_pid} of .* Nothing was changed"):
        replay(ours, ids=[1], **WHY)
    session.rollback()


# The command


@pytest.mark.slow
def test_the_command_shows_first_what_it_would_do(reader, capsys):
    ours, seen = reader("stream")
    fill_topic("things", *range(1, 8))
    run_once(ours)
    seen.clear()
    call_command("events", "replay", "reader", "--ids", "1,3-5", *("--reason", "x"))
    printed = capsys.readouterr().out
    assert "to be handled again  4" in printed
    assert "Nothing was changed." in printed
    options = ["--ids", "1,3-5", "--reason", "x", "--execute", "--format", "json"]
    call_command("events", "replay", "reader", *options)
    told = json.loads(capsys.readouterr().out)
    assert (told["executed"], told["events"], told["pending"]) == (True, 4, 0)
    run_once(ours)

    assert seen == [1, 3, 4, 5]
    with pytest.raises(CommandError, match="expected something like 17,20-24"):
        call_command("events", "replay", "reader", "--ids", "5-3", "--reason", "x")
