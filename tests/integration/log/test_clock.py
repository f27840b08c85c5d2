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
from django_events.log.clock import MOST_MISSED
from django_events.log.clock import SQL as CLOCK_SQL
from django_events.log.transfer import Transfer
from django_events.models import BufferedEvent, Clock, Event, Intervention, Topic
from django_events.operations import pause_clock, remove_topic
from django_events.publishing.clocks import sync
from django_events.testing import drain
from tests.support.fix_database import Connect
from tests.support.fix_topics import transfer_all

committing = pytest.mark.usefixtures("transactional_db")
rolled_back = pytest.mark.django_db

MakeClock = Callable[..., declarations.DeclaredClock]


@pytest.fixture
def make_clock(things) -> Iterator[MakeClock]:
    """Declare clocks of `things`, with their rows."""
    made: list[declarations.DeclaredClock] = []

    def make(cron: str = "0 3 * * *", **options: Any) -> declarations.DeclaredClock:
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
    make_clock("0 * * * *", missed=missed)
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    if timezone.now() - hour < timedelta(minutes=1):
        hour -= timedelta(hours=1)  # the latest tick is an hour late then, and there is one more
        count += {"latest": 0, "all": 1, "skip": 1}[missed]
    let_tick(at=hour - timedelta(hours=2))
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
    make_clock("0 3 * * *")
    drain(ahead=timedelta(days=3))
    assert len(ticks()) == 3
    assert all(tick.astimezone(UTC).hour == 3 for tick in ticks())


@rolled_back
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "nonsense"}, "expected five fields"),
        ({"tz": "Europe/Atlantis"}, "like 'Europe/Berlin'"),
        ({"type": ""}, "the type of its events"),
        ({"missed": "none"}, "expected one of latest, all, skip"),
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
    clock = undiscovered.every("0 3 * * *", type="nightly")
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
