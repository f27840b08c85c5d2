"""Clocks: an event at each tick, exactly one, whichever transfers are there."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from django_events import declarations, sql
from django_events.exceptions import InUse, Invalid, UnknownName
from django_events.log.clock import MOST_MISSED, DueTicks
from django_events.log.clock import SQL as CLOCK_SQL
from django_events.log.transfer import Transfer
from django_events.models import (
    BufferedEvent,
    Clock,
    Consumer,
    DeadLetter,
    Event,
    Intervention,
    Position,
    Topic,
)
from django_events.models.functions import ClockTimestamp
from django_events.operations import pause_clock, remove_topic
from django_events.publishing.clocks import sync
from django_events.statements import log_table
from django_events.testing import drain
from tests.support.fix_database import Connect
from tests.support.fix_queues import end_pauses, fail, values
from tests.support.fix_topics import transfer_all

committing = pytest.mark.usefixtures("transactional_db")
rolled_back = pytest.mark.django_db

MakeClock = Callable[..., declarations.DeclaredClock]

NIGHT = (datetime.now(UTC).hour + 12) % 24  # half a day from now: no tick comes while tests run but those that they set
NIGHTLY = f"0 {NIGHT} * * *"


@pytest.fixture
def make_clock(things) -> Iterator[MakeClock]:
    """Declare clocks of `things`, with their rows."""
    made: list[declarations.DeclaredClock] = []

    def make(cron: str = NIGHTLY, **options: Any) -> declarations.DeclaredClock:
        made.append(things.every(cron, **{"type": "nightly", **options}))
        sync("default")
        return made[-1]

    yield make
    for clock in made:
        declarations.clocks.discard(clock)


def row() -> Clock:
    return Clock.objects.get()


def let_tick(ago: timedelta = timedelta(seconds=5), *, at: datetime | None = None) -> datetime:
    """Tests move rows, not clocks."""
    tick = at or (timezone.now() - ago).replace(microsecond=0)
    Clock.objects.update(next_at=tick)
    return tick


def ticks() -> list[datetime]:
    events = Event.objects.order_by("topic_id", "id").filter(metadata__has_key="tick")
    return [datetime.fromisoformat(event.metadata["tick"]) for event in events]


@pytest.mark.requirement("X14")
@rolled_back
def test_a_tick_is_one_event_that_says_which_tick_it_is(things, make_clock):
    make_clock(tz="Europe/Berlin", key="k", value={"kind": "full"})
    assert row().next_at > timezone.now()
    assert transfer_all() == 0

    tick = let_tick()
    assert transfer_all() == 1
    [event] = Event.objects.since(things)
    assert (event.type, event.key, event.value, event.metadata["clock"]) == (
        "nightly",
        "k",
        {"kind": "full"},
        "things.nightly",
    )
    assert event.metadata["tick"].endswith(("+01:00", "+02:00"))
    assert ticks() == [tick]
    assert row().last_at == tick
    assert row().next_at > timezone.now()
    assert transfer_all() == 0


@pytest.mark.requirement("X14")
@rolled_back
def test_the_time_is_the_databases_whatever_the_zone_of_the_session(make_clock):
    make_clock()
    tick = let_tick()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TimeZone = 'Asia/Kolkata'")
    transfer_all()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TimeZone = 'UTC'")
    assert ticks() == [tick]
    assert timezone.now() < row().next_at < timezone.now() + timedelta(days=1, minutes=1)


@pytest.mark.requirement("X14")
@rolled_back
@pytest.mark.parametrize(("missed", "count"), [("latest", 1), ("all", 3), ("skip", 0)])
def test_after_an_outage_the_latest_tick_is_published_or_all_or_none(make_clock, missed, count):
    latest = (timezone.now() - timedelta(minutes=30)).replace(second=0, microsecond=0)
    make_clock(f"{latest.minute} * * * *", missed=missed)
    let_tick(at=latest - timedelta(hours=2))
    transfer_all()

    assert len(ticks()) == count
    assert ticks() == sorted(ticks())
    assert row().next_at > timezone.now()
    assert transfer_all() == 0


@pytest.mark.requirement("X14")
@rolled_back
def test_skip_publishes_a_tick_that_is_less_than_a_minute_late(make_clock):
    make_clock(missed="skip")
    tick = let_tick(timedelta(seconds=50))
    transfer_all()
    assert ticks() == [tick]


@pytest.mark.requirement("X14")
@rolled_back
def test_of_very_many_missed_ticks_the_newest_are_published(make_clock):
    make_clock("* * * * *", missed="all")
    let_tick(timedelta(days=400))
    transfer_all()

    found = ticks()
    assert len(found) == MOST_MISSED
    assert found[-1] > timezone.now() - timedelta(minutes=2)
    assert {after - before for before, after in pairwise(found)} == {timedelta(minutes=1)}


@pytest.mark.requirement("X14")
@rolled_back
def test_of_several_clocks_each_ticks(things, make_clock):
    for n in range(3):
        make_clock(type=f"kind.{n}")
    let_tick()
    transfer_all()
    assert sorted(event.type for event in Event.objects.since(things)) == ["kind.0", "kind.1", "kind.2"]


@pytest.mark.requirement("X14")
@committing
def test_a_row_that_another_session_has_locked_is_left_and_its_events_hold_nothing_up(
    things, make_clock, connect: Connect
):
    """As if a transfer were frozen in the transaction of the tick, until the server ends its session."""
    make_clock()
    tick = let_tick()
    frozen = connect()
    frozen.execute("SELECT FROM django_events_clock FOR UPDATE")
    frozen.execute("UPDATE django_events_clock SET next_at = next_at + interval '1 day'")
    transfer = Transfer("default")
    things.publish("besides")
    assert transfer.move() == 1
    assert ticks() == []
    assert 0 < transfer.ticks.pause <= 1.0  # it rests, and doesn't ask again and again

    frozen.rollback()
    transfer.forget()
    assert transfer.move() == 1
    assert ticks() == [tick]


@pytest.mark.requirement("X14")
@committing
def test_two_transfers_at_once_publish_a_tick_once(make_clock, in_thread):
    make_clock("* * * * *", missed="all")
    for _ in range(5):
        let_tick(timedelta(minutes=20))
        for one in [in_thread(Transfer("default").move) for _ in range(2)]:
            one.result()
        transfer_all()
    found = ticks()
    assert 90 <= len(found) <= 110
    assert all(len({*found[n : n + 20]}) == 20 for n in range(0, 80, 20))


@pytest.mark.requirement("X14")
@committing
def test_killed_in_the_transaction_of_the_tick_it_is_published_by_the_next(make_clock, connect: Connect, monkeypatch):
    """Its session is ended after the events are in the buffer, before the commit."""
    make_clock()
    tick = let_tick()
    killer, fetch = connect(autocommit=True), sql.fetch

    def die(using: str, statement: Any, **parameters: Any) -> Any:
        rows = fetch(using, statement, **parameters)
        if statement is CLOCK_SQL.move_on:
            pid = connection.connection.info.backend_pid
            killer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        return rows

    monkeypatch.setattr("django_events.log.clock.sql.fetch", die)
    with pytest.raises(OperationalError):
        Transfer("default").move()
    monkeypatch.undo()
    connection.close()
    assert ticks() == []

    transfer_all()
    assert ticks() == [tick]


@pytest.mark.requirement("X14")
@rolled_back
def test_what_is_not_declared_in_this_process_is_not_published(make_clock):
    clock = make_clock()
    let_tick()
    declarations.clocks.discard(clock)
    assert transfer_all() == 0
    declarations.clocks.add(clock)
    assert transfer_all() == 1


@pytest.mark.requirement("X14")
@rolled_back
def test_migrate_again_changes_nothing_and_keeps_a_tick_that_is_due(make_clock):
    make_clock()
    tick = let_tick()
    assert sync("default") == []
    assert row().next_at == tick


@pytest.mark.requirement("X14")
@rolled_back
def test_a_changed_value_counts_from_the_next_tick_on_which_stays(things, make_clock):
    declarations.clocks.discard(make_clock(value={"a": 1}))
    tick = let_tick()
    make_clock(value={"a": 2}, key="other", missed="all")
    assert row().next_at == tick
    transfer_all()
    assert [(event.value, event.key) for event in Event.objects.since(things)] == [({"a": 2}, "other")]


@pytest.mark.requirement("X14")
@rolled_back
@pytest.mark.parametrize("changed", [{"cron": "30 4 * * *"}, {"tz": "Asia/Tokyo"}])
def test_a_changed_expression_or_zone_begins_with_the_next_tick_to_come(make_clock, changed):
    declarations.clocks.discard(make_clock())
    let_tick()
    make_clock(**changed)
    assert row().next_at > timezone.now()
    assert transfer_all() == 0


@pytest.mark.requirement("X14")
@rolled_back
def test_a_removed_topic_takes_its_clocks_along(things, make_clock):
    make_clock()
    let_tick()
    Topic.objects.filter(name=things.name).delete()
    assert not Clock.objects.exists()
    assert transfer_all() == 0


@pytest.mark.requirement("X14")
@committing
def test_a_topic_that_is_removed_while_its_clock_ticks_leaves_no_event(things, make_clock, in_thread):
    clock = make_clock("* * * * *", missed="all")
    let_tick(timedelta(minutes=30))
    moving, removing = in_thread(Transfer("default").move), in_thread(lambda: remove_topic(things, force=True))
    assert removing.result().topic == things.name
    moving.result()
    transfer_all()
    assert not Clock.objects.exists()
    assert not BufferedEvent.objects.exists()
    with pytest.raises(UnknownName):
        clock.run()


@pytest.mark.requirement("X14")
@rolled_back
def test_drain_ahead_publishes_all_ticks_of_that_time(make_clock):
    make_clock(NIGHTLY)
    drain(ahead=timedelta(days=3))
    assert len(ticks()) == 3
    assert all(tick.astimezone(UTC).hour == NIGHT for tick in ticks())


@rolled_back
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "nonsense"}, "expected five fields"),
        ({"tz": "Europe/Atlantis"}, "like 'Europe/Berlin'"),
        ({"type": ""}, "the type of its events"),
        ({"missed": "none"}, "expected one of latest, all, skip"),
        ({"overlap": "none"}, "expected one of allow, skip"),
        ({"overlap": "skip", "missed": "all"}, "contradict each other"),
        ({"value": object()}, "JSON"),
        ({"key": "x" * 600}, "512"),
    ],
)
def test_a_wrong_declaration_is_refused(make_clock, options, said):
    with pytest.raises(Invalid, match=said):
        make_clock(**options)
    assert not Clock.objects.exists()


@rolled_back
def test_two_clocks_of_one_name_are_refused(things, make_clock):
    clock = make_clock()
    other = things.every("0 4 * * *", type="nightly")
    try:
        with pytest.raises(Invalid, match="is declared twice"):
            sync("default")
    finally:
        declarations.clocks.discard(other)
    assert row().cron == clock.cron


@rolled_back
def test_a_clock_of_an_unknown_topic_is_refused(undiscovered):
    clock = undiscovered.every(NIGHTLY, type="nightly")
    try:
        with pytest.raises(UnknownName, match="has no such topic"):
            sync("default")
    finally:
        declarations.clocks.discard(clock)


@pytest.mark.requirement("X14")
@rolled_back
def test_a_paused_clock_publishes_nothing_and_goes_on_with_the_next_tick_to_come(make_clock):
    clock = make_clock(missed="all")
    assert clock.pause(by="ada")
    assert not clock.pause()
    let_tick()
    assert transfer_all() == 0

    assert clock.resume(by="ada")
    assert not clock.resume()
    assert row().next_at > timezone.now()
    assert transfer_all() == 0
    let_tick()
    assert transfer_all() == 1
    done = Intervention.objects.order_by("pk").values_list("action", "by", "topic", "details")
    assert list(done) == [(action, "ada", "things", {"clock": clock.name}) for action in ("pause", "resume")]


@pytest.mark.requirement("X14")
@rolled_back
def test_run_now_publishes_one_event_more_also_of_a_paused_clock(make_clock):
    clock = make_clock(tz="Europe/Berlin")
    clock.pause()
    before = row().next_at
    said = [clock.run(by="ada") for _ in range(2)]
    assert transfer_all() == 2
    assert ticks() == said
    assert (row().next_at, row().last_at) == (before, None)


@pytest.mark.requirement("X14")
@committing
def test_two_operators_at_once_pause_it_once_and_run_it_twice(make_clock, in_thread):
    clock = make_clock()
    for _ in range(3):
        assert sorted(one.result() for one in [in_thread(clock.pause) for _ in range(2)]) == [False, True]
        assert sorted(one.result() for one in [in_thread(clock.resume) for _ in range(2)]) == [False, True]
    for one in [in_thread(clock.run) for _ in range(2)]:
        one.result()
    transfer_all()
    assert len(ticks()) == 2


@committing
def test_an_operator_is_told_which_session_has_the_clock_locked(make_clock, connect: Connect, monkeypatch):
    monkeypatch.setattr("django_events.operating.locks.LOCK_TIMEOUT", "100ms")
    clock = make_clock()
    connect().execute("SELECT FROM django_events_clock FOR UPDATE")
    for act in (clock.pause, clock.resume, clock.run):
        with pytest.raises(InUse, match=f"Clock {clock} is locked, by "):
            act()


@rolled_back
def test_an_unknown_clock_is_named_with_the_likely_one(make_clock):
    make_clock()
    with pytest.raises(UnknownName, match=r"Did you mean 'things.nightly'"):
        pause_clock("things.nightl")


@rolled_back
def test_where_a_time_zone_is_unknown_other_clocks_tick(things, make_clock, caplog):
    make_clock(type="broken")
    Clock.objects.update(tz="Europe/Atlantis")
    make_clock(type="good")
    let_tick()
    Clock.objects.filter(type="broken").update(tz="Europe/Atlantis")
    assert transfer_all() == 1
    assert "Clock things.broken can't tick in this process" in caplog.text
    assert [event.type for event in Event.objects.since(things)] == ["good"]


HANDLED: Any = lambda event: None  # noqa: E731


def left_out() -> tuple[int, str, str]:
    clock = row()
    return clock.overlapped, clock.overlapped_by, clock.overlapped_as


def tick_again() -> int:
    """How many events the next tick makes."""
    before = len(ticks())
    let_tick()
    transfer_all()
    return len(ticks()) - before


@pytest.mark.requirement("X14")
@rolled_back
def test_overlap_is_allowed_unless_told_otherwise(things, make_clock, make_consumer):
    make_clock()
    make_consumer(things, handler=HANDLED)
    assert [tick_again(), tick_again()] == [1, 1]
    assert (row().overlap, row().last_ticket, left_out()) == ("allow", None, (0, "", ""))


@pytest.mark.requirement("X14")
@rolled_back
def test_a_tick_is_left_out_until_the_stream_has_passed_the_one_before(things, make_clock, make_consumer, caplog):
    make_clock(overlap="skip")
    reader = make_consumer(things, handler=HANDLED)
    assert tick_again() == 1
    things.publish("besides")
    assert tick_again() == 0
    missed = let_tick()
    transfer_all()
    assert len(ticks()) == 1
    assert left_out() == (2, "reader", "pending")
    assert row().overlapped_at == missed and row().next_at > timezone.now()
    [*_, said] = [record for record in caplog.records if record.name == "django_events.transfer"]
    assert "leaves out its tick" in said.message
    assert (said.clock, said.consumer, said.state) == ("things.nightly", "reader", "pending")

    drain(reader)
    assert tick_again() == 1
    assert tick_again() == 0


@pytest.mark.requirement("X14")
@rolled_back
def test_a_tick_is_left_out_until_the_queue_has_settled_the_one_before(things, make_clock, make_queue):
    make_clock(overlap="skip")
    queue = make_queue(things)
    assert [tick_again(), tick_again()] == [1, 0]
    assert left_out() == (1, "queue", "pending")
    hand = queue.claim(1)
    assert tick_again() == 0
    assert left_out() == (2, "queue", "in hand")
    values(hand)
    fail(hand, hand.events[0])
    assert tick_again() == 0
    assert left_out() == (3, "queue", "retrying")

    for _ in range(2):
        end_pauses(queue)
        hand = queue.claim(1)
        values(hand)
        fail(hand, hand.events[0])
    assert DeadLetter.objects.count() == 1
    assert tick_again() == 1


@pytest.mark.requirement("X14")
@rolled_back
def test_of_a_queue_that_is_not_filled_yet_the_tick_is_open(things, make_clock, make_queue):
    make_clock(overlap="skip")
    make_queue(things, live=False)
    make_queue(things, name="other", live=False, types=["another"])
    assert [tick_again(), tick_again()] == [1, 0]
    assert left_out() == (1, "queue", "pending")


@pytest.mark.requirement("X14")
@rolled_back
@pytest.mark.parametrize("state", ["paused", "stopped"])
def test_a_consumer_that_stands_keeps_ticks_away_and_is_named(things, make_clock, make_consumer, state):
    make_clock(overlap="skip")
    make_consumer(things, name="a_reader", handler=HANDLED)
    make_consumer(things, name="standing", handler=HANDLED)
    if state == "paused":
        Consumer.objects.filter(name="standing").update(paused_at=ClockTimestamp())
    else:
        Position.objects.filter(consumer__name="standing").update(stopped_at=ClockTimestamp())
    assert [tick_again(), tick_again()] == [1, 0]
    assert left_out() == (1, "standing", state)


@pytest.mark.slow
@pytest.mark.requirement("X14")
@rolled_back
def test_consumers_whose_filter_does_not_match_and_topics_without_consumers_leave_nothing_out(
    things, make_topic, make_clock, make_consumer
):
    make_clock(overlap="skip", key="a", value={"n": 1})
    assert [tick_again(), tick_again()] == [1, 1]
    make_consumer(make_topic("others"), name="elsewhere", handler=HANDLED)
    make_consumer(things, name="by_type", handler=HANDLED, types=["other"])
    make_consumer(things, name="by_pattern", handler=HANDLED, types=["other.>"])
    make_consumer(things, name="by_key", handler=HANDLED, keys=["b"])
    make_consumer(things, name="by_value", handler=HANDLED, where="$.n == 2")
    assert [tick_again(), tick_again()] == [1, 1]
    make_consumer(things, name="of_it", handler=HANDLED, types=["*"], where="$.n == 1")
    assert tick_again() == 0  # it begins with the oldest event
    assert left_out() == (1, "of_it", "pending")


@pytest.mark.requirement("X14")
@rolled_back
def test_a_predicate_that_fails_on_the_tick_leaves_it_unhandled(things, make_clock, make_consumer):
    make_clock(overlap="skip", value={"at": "2026-11-26T03:00:00+01:00"})
    make_consumer(things, handler=HANDLED, where='$.at.datetime() > "2026-11-26".datetime()')
    assert [tick_again(), tick_again()] == [1, 0]
    assert left_out()[1] == "reader"


@pytest.mark.requirement("X14")
@rolled_back
def test_each_partition_counts_for_the_ticks_in_it(lanes, make_clock, make_consumer):
    clock = lanes.every(NIGHTLY, type="nightly", key="k", overlap="skip")
    try:
        sync("default")
        reader = make_consumer(lanes, handler=HANDLED)
        assert [tick_again(), tick_again()] == [1, 0]
        [partition] = Event.objects.since(lanes).values_list("partition", flat=True)
        Position.objects.exclude(partition=partition).update(position=1_000)
        assert tick_again() == 0
        Position.objects.exclude(partition=partition).update(position=0)
        drain(reader)
        assert tick_again() == 1
    finally:
        declarations.clocks.discard(clock)


@pytest.mark.requirement("X14")
@rolled_back
def test_while_the_one_before_is_in_the_buffer_a_tick_is_left_out(things, make_clock, make_consumer):
    make_clock(overlap="skip")
    make_consumer(things, handler=HANDLED)
    for _ in range(2):
        let_tick()
        DueTicks("default").publish()
    assert BufferedEvent.objects.count() == 1
    assert left_out() == (1, "reader", "unlogged")


@pytest.mark.requirement("X14")
@rolled_back
def test_an_event_that_is_gone_from_the_log_is_not_open(things, make_clock, make_consumer):
    make_clock(overlap="skip")
    make_consumer(things, handler=HANDLED)
    assert tick_again() == 1
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {log_table(Topic.objects.get(name='things').pk)}")
    assert tick_again() == 1


@pytest.mark.requirement("X14")
@rolled_back
def test_a_tick_that_is_run_by_hand_is_not_the_last_one_and_is_never_left_out(things, make_clock, make_consumer):
    clock = make_clock(overlap="skip")
    reader = make_consumer(things, handler=HANDLED)
    assert tick_again() == 1
    clock.run()
    assert tick_again() == 1  # that of the hand
    assert left_out() == (1, "reader", "pending")
    drain(reader)
    clock.run()
    transfer_all()
    assert tick_again() == 1


@pytest.mark.requirement("X14")
@rolled_back
def test_migrate_adapts_overlap_and_another_topic_begins_anew(make_topic, make_clock, make_consumer, things):
    make_consumer(things, handler=HANDLED)
    former = make_clock()
    assert tick_again() == 1
    declarations.clocks.discard(former)
    former = make_clock(overlap="skip")
    assert row().overlap == "skip"
    assert [tick_again(), tick_again()] == [1, 0]
    declarations.clocks.discard(former)
    others = make_topic("others")
    make_consumer(others, name="elsewhere", handler=HANDLED)
    moved = others.every(NIGHTLY, type="nightly", name="things.nightly", overlap="skip")
    try:
        assert sync("default") == ["Clock things.nightly: topic things → others."]
        assert [tick_again(), tick_again()] == [1, 0]
    finally:
        declarations.clocks.discard(moved)


@pytest.mark.requirement("X14")
@rolled_back
def test_drain_ahead_handles_each_tick_before_the_next_one(things, make_clock, make_consumer):
    make_clock(overlap="skip")
    reader = make_consumer(things, handler=HANDLED)
    assert drain(reader, ahead=timedelta(days=3)) == 3
    assert (len(ticks()), left_out()) == (3, (0, "", ""))

    Consumer.objects.update(paused_at=ClockTimestamp())
    drain(reader, ahead=timedelta(days=6))
    assert (len(ticks()), left_out()) == (4, (2, "reader", "paused"))


@pytest.mark.slow
@pytest.mark.requirement("X14")
@committing
def test_a_log_that_cannot_be_read_now_keeps_the_tick_and_holds_up_no_other_clock(
    things, make_topic, make_clock, connect: Connect, caplog
):
    make_clock(overlap="skip")
    other = make_topic("others").every("0 4 * * *", type="other")
    try:
        sync("default")
        let_tick()
        locker = connect()
        locker.execute(f"LOCK TABLE {log_table(Topic.objects.get(name='things').pk)} IN ACCESS EXCLUSIVE MODE")
        DueTicks("default").publish()
        assert list(BufferedEvent.objects.values_list("type", flat=True)) == ["other"]
        assert "Clock things.nightly waits" in caplog.text
        locker.rollback()
        transfer_all()
        assert len(ticks()) == 2
    finally:
        declarations.clocks.discard(other)


@pytest.mark.slow
@pytest.mark.requirement("X14")
@committing
def test_two_transfers_at_once_never_have_two_ticks_open(things, make_clock, make_consumer, in_thread):
    """The second one waits for nothing: what it finds locked it leaves; what it has locked it looks at anew."""
    make_clock(overlap="skip")
    reader = make_consumer(things, handler=HANDLED)
    for n in range(1, 6):
        let_tick()
        for one in [in_thread(Transfer("default").move) for _ in range(2)]:
            one.result()
        for _ in range(2):
            let_tick()
            for one in [in_thread(Transfer("default").move) for _ in range(2)]:
                one.result()
        transfer_all()
        assert len(ticks()) == n
        drain(reader)
    assert left_out() == (10, "reader", "pending")


@pytest.mark.requirement("X14")
@committing
def test_a_transfer_decides_by_what_was_handled_before_it_had_the_clock(
    things, make_clock, make_consumer, connect: Connect, monkeypatch
):
    """Its consumer passes the event behind the look for what is due: that is seen."""
    make_clock(overlap="skip")
    make_consumer(things, handler=HANDLED)
    assert tick_again() == 1
    other, fetch = connect(autocommit=True), sql.fetch

    def handle(using: str, statement: Any, **parameters: Any) -> Any:
        if statement.name == "look_behind":
            other.execute("UPDATE django_events_position SET position = 1")
        return fetch(using, statement, **parameters)

    monkeypatch.setattr("django_events.log.clock.sql.fetch", handle)
    assert tick_again() == 1
    assert left_out() == (0, "", "")
