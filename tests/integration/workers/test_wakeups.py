"""Wake-ups: milliseconds when quiet, no NOTIFY when busy, and polling wherever they can't be had."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from importlib import import_module

import psycopg
import pytest
from django.db import connections, transaction
from django.utils import timezone

from django_events import DeclaredTopic, Draft, publish, publish_many
from django_events.log import channel
from django_events.log.transfer import Transfer
from django_events.models import BufferedEvent, Event
from django_events.statements import _made
from django_events.workers import wakeups
from django_events.workers.background import in_background
from django_events.workers.listening import LISTENING_POLL, Listener
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from django_events.workers.transferring import TransferWorker
from django_events.workers.wakeup_flag import WakeupFlag
from django_events.workers.wakeups import SHORTEST_PAUSE, WakeUps, why_polling
from tests.support.fix_database import Connect, Session
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")

NEVER = {"POLL_INTERVAL": timedelta(hours=1)}


@contextmanager
def running_transfer() -> Iterator[TransferWorker]:
    """A transfer in a thread of its own."""
    with closing(Listener("default")) as listener:
        worker = TransferWorker("default", listener)
        with in_background(worker):
            yield worker


@pytest.fixture
def bystander(connect: Connect) -> Session:
    """A session that hears every notification."""
    session = connect(autocommit=True)
    session.execute(f"LISTEN {channel.WAKE_UP}")
    return session


def heard(bystander: Session) -> int:
    """How many notifications came since the last time. Those of earlier commits come before an answer."""
    bystander.execute("SELECT 1")
    return len(list(bystander.notifies(timeout=0)))


@pytest.mark.slow
@pytest.mark.requirement("X6")
def test_every_event_arrives_by_wake_ups_alone(settings, things):
    """Polling is an hour away: each event arrives because its publisher rang."""
    settings.DJANGO_EVENTS = NEVER
    with running_transfer():
        for i in range(150):
            publish(things, i)
            if i % 3 == 0:  # at other times the transfer is about to fall asleep, asleep, or just awake
                wait_until(lambda: not BufferedEvent.objects.exists(), what=f"event {i} in the log")
        wait_until(lambda: Event.objects.of(things).count() == 150, what="all events in the log")


@pytest.mark.slow
@pytest.mark.requirement("X6")
def test_where_publishers_notify_nothing_events_that_follow_each_other_are_found_soon(settings, things):
    """The poll interval is an hour: each event arrives because the one before it has just been moved."""
    settings.DJANGO_EVENTS = {**NEVER, "WAKE_UPS": False}
    publish(things, 0)
    with running_transfer() as worker:
        for i in range(1, 31):
            wait_until(lambda: not BufferedEvent.objects.exists(), what=f"event {i - 1} in the log")
            publish(things, i)
        wait_until(lambda: Event.objects.of(things).count() == 31, what="all events in the log")
        wait_until(lambda: worker._wake_ups._pause > 0.1, what="longer and longer pauses while none comes")


@pytest.mark.slow
@pytest.mark.requirement("X6")
def test_topics_that_publishers_name_are_moved_without_looking_at_others(settings, make_topic, monkeypatch):
    settings.DJANGO_EVENTS = NEVER
    topics, looks = [make_topic(f"things.{n}") for n in range(3)], []
    look = Transfer._look_and_move
    monkeypatch.setattr(Transfer, "_look_and_move", lambda self: looks.append(1) or look(self))
    with running_transfer() as worker:
        for topic in topics:
            publish(topic, 0)
        wait_until(lambda: Event.objects.count() == 3, what="the first events")
        wait_until(lambda: worker._wake_ups.asleep, what="a transfer that sleeps")
        before = len(looks)
        for n in range(1, 21):
            publish(topics[n % 3], n)
            wait_until(lambda n=n: Event.objects.count() == 3 + n, what=f"event {n}")

        assert len(looks) - before < 10  # the first look after falling asleep, and any after two batches in a row


def test_a_notice_that_names_no_topic_has_all_looked_at(settings, connect, things):
    settings.DJANGO_EVENTS = NEVER
    with running_transfer() as worker:
        publish(things, 1)
        wait_until(lambda: Event.objects.count() == 1, what="the first event")
        wait_until(lambda: worker._wake_ups.asleep, what="a transfer that sleeps")
        other = connect(autocommit=True)
        for n, payload in enumerate(["", "nonsense", "4711", "²", "1" * 50], 2):
            other.execute(
                "INSERT INTO django_events_bufferedevent (topic_id, value)"
                " SELECT t.id, to_jsonb(%s::int) FROM django_events_topic AS t WHERE t.name = %s",
                [n, things.name],
            )
            other.execute("SELECT pg_notify(%s, %s)", [channel.WAKE_UP, payload])
            wait_until(lambda n=n: Event.objects.count() == n, what=f"event {n} after the notice {payload!r}")


@pytest.mark.slow
@pytest.mark.requirement("X6")
@pytest.mark.parametrize("all_notify", [True, False])
def test_wake_ups_put_no_look_off_that_finds_what_was_inserted_without(
    settings, make_topic, make_wake_ups, stop, all_notify: bool
):
    """Each wake-up began the wait anew, so in a flow of them an event that woke no transfer was never found."""
    settings.DJANGO_EVENTS = {"WAKE_UPS": None if all_notify else False}
    wake_ups, busy = make_wake_ups(poll=0.5), make_topic("busy")
    fall_asleep(wake_ups, stop)
    assert wake_ups.take() is None  # the look that follows on falling asleep

    def is_looked_for() -> bool:
        publish_by_sql(busy)
        wake_ups.wait(stop)
        return wake_ups.take() is None

    wait_until(is_looked_for, seconds=20, what="a look at all topics between wake-ups")


def test_while_it_is_quiet_a_transfer_looks_less_and_less_often(make_wake_ups, stop, things):
    wake_ups = make_wake_ups(soon=0.01)
    fall_asleep(wake_ups, stop)
    for _ in range(30):
        assert wake_ups.take() is None
        wake_ups.wait(stop, at_most=0.0)

    assert wake_ups._pause > LISTENING_POLL
    assert wake_ups._look_by - time.monotonic() > 0.5


@pytest.mark.slow
def test_what_a_publisher_scheduled_beside_the_topic_that_it_named_is_found(settings, monkeypatch, things):
    """The small batch of what it published now leaves the schedule to a look, which has been far away until then."""
    monkeypatch.setattr(wakeups, "LISTENING_POLL", 3600.0)
    with running_transfer() as worker:
        publish(things, 0)
        wait_until(lambda: Event.objects.count() == 1, what="the first event")
        wait_until(lambda: worker._wake_ups.asleep, what="a transfer that sleeps")
        worker._wake_ups._pause = 3600.0
        wait_until(lambda: (worker._wake_ups._look_by or 0) > time.monotonic() + 60, what="a long sleep")
        with transaction.atomic():
            publish(things, 1)
            publish(things, 2, publish_at=timezone.now() + timedelta(seconds=0.1))
        wait_until(lambda: Event.objects.count() == 3, what="the scheduled event")


def test_only_events_that_were_looked_for_shorten_the_pause(settings, stop, things):
    """Of those that a publisher woke the transfer for, none says that others come without."""
    settings.DJANGO_EVENTS = {"WAKE_UPS": False}
    with closing(Listener("default")) as listener, closing(TransferWorker("default", listener)) as worker:
        wake_ups = worker._wake_ups
        connections["default"].close()  # small batches need the connection that the worker made
        worker.connect()
        publish(things, 0)
        assert worker.work(stop) == 1  # now it knows the topic
        fall_asleep(wake_ups, stop)
        assert worker.work(stop) == 0  # the look that follows on falling asleep
        wake_ups._pause = 0.4
        publish_by_sql(things)
        wait_until(lambda: wake_ups._named, what="the wake-up")
        assert worker.work(stop) == 1
        assert wake_ups._pause == 0.4
        publish(things, 2)
        wake_ups.look_again()
        assert worker.work(stop) == 1
        assert wake_ups._pause == SHORTEST_PAUSE


def publish_by_sql(topic: DeclaredTopic) -> None:
    """SQL publishers notify on this server, whatever the site's WAKE_UPS."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT django_events_publish(%s, '1')", [topic.name])


@pytest.mark.slow
@pytest.mark.requirement("X6")
def test_no_wake_up_is_lost_between_many_publishers(settings, lanes):
    settings.DJANGO_EVENTS = NEVER

    def work(name: int) -> None:
        try:
            for i in range(60):
                with transaction.atomic():
                    publish(lanes, i, key=str(name))
        finally:
            connections.close_all()

    with running_transfer():
        for _ in range(3):
            threads = [threading.Thread(target=work, args=[name]) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            wait_until(lambda: not BufferedEvent.objects.exists(), what="an empty buffer")


@pytest.fixture
def stop() -> Iterator[Stop]:
    stop = Stop()
    yield stop
    stop.close()


@pytest.fixture
def make_wake_ups(connect: Connect) -> Iterator[Callable[[], WakeUps]]:
    """The wake-ups of transfers that do nothing else, each of another process."""
    with ExitStack() as stack:

        def make(**options: float) -> WakeUps:
            listener = stack.enter_context(closing(Listener("default")))
            wake_ups = WakeUps(listener, stack.enter_context(closing(WakeupFlag())), **{"poll": 0.01, **options})
            stack.callback(wake_ups.close)
            listener.start()
            wait_until(lambda: listener.listening, what="a LISTEN connection")
            return wake_ups

        yield make


def fall_asleep(wake_ups: WakeUps, stop: Stop) -> None:
    """Wait until it sleeps: the server may not have ended the connection of the test before yet."""
    wait_until(lambda: wake_ups.asleep or wake_ups.wait(stop) or wake_ups.asleep, what="sleep")


@pytest.mark.requirement("P2")
def test_a_transfer_sleeps_no_longer_than_until_the_next_scheduled_event(make_wake_ups, stop, things):
    wake_ups = make_wake_ups(poll=3_600)
    for _ in range(3):  # once it locks, and then it sleeps
        wake_ups.wait(stop, at_most=0.01)
    wake_ups.wait(stop, at_most=-1)

    assert not stop.requested


@pytest.mark.requirement("X6")
def test_publishers_notify_only_while_the_transfer_sleeps(make_wake_ups, stop, bystander, things):
    wake_ups = make_wake_ups()
    publish(things, "no transfer sleeps")
    publish_many(things, [Draft(value="no transfer sleeps")])
    assert heard(bystander) == 0

    fall_asleep(wake_ups, stop)
    publish(things, "it sleeps")
    assert heard(bystander) == 1
    publish_many(things, [Draft(value="it sleeps")] * 2)
    assert heard(bystander) == 1

    wake_ups.wait(stop)
    publish(things, "it was woken for a moment")
    assert heard(bystander) == 1
    wake_ups.busy()
    publish(things, "it is awake")
    assert heard(bystander) == 0


def test_a_transfer_does_not_fall_asleep_while_a_publisher_is_at_work(make_wake_ups, stop, connect, bystander, things):
    wake_ups = make_wake_ups()
    at_work = connect()
    at_work.publish(things, "not committed yet")
    for _ in range(3):
        wake_ups.wait(stop)
    assert not wake_ups.asleep
    publish(things, "another")
    assert heard(bystander) == 0  # it is awake, so no publisher needs to ring

    at_work.commit()
    fall_asleep(wake_ups, stop)
    publish(things, "now it sleeps")
    assert heard(bystander) == 1


@pytest.mark.slow
@pytest.mark.requirement("E6")
def test_a_missed_wake_up_costs_a_poll_interval(connect, settings, things):
    settings.DJANGO_EVENTS = {"POLL_INTERVAL": timedelta(seconds=0.2)}
    with running_transfer():
        publish(things, "first")
        wait_until(lambda: Event.objects.of(things).count() == 1, what="the first event")
        connect(autocommit=True).execute(
            "INSERT INTO django_events_bufferedevent (topic_id, value)"
            " SELECT id, '\"no bell\"' FROM django_events_topic WHERE name = 'things'"
        )
        wait_until(lambda: Event.objects.of(things).count() == 2, what="the event without a bell")


def test_a_lost_listen_connection_is_made_again(connect, settings, caplog, things):
    settings.DJANGO_EVENTS = {"POLL_INTERVAL": timedelta(seconds=0.1)}
    killer = connect(autocommit=True)

    def kill() -> int:
        rows = killer.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND (query LIKE 'LISTEN%' OR query LIKE '%pg_try_advisory%')"
        ).fetchall()
        return len(rows)

    with running_transfer() as worker:
        wait_until(kill, what="a LISTEN connection to kill")
        publish(things, "while polling")
        wait_until(lambda: Event.objects.of(things).count() == 1, what="the event by polling")
        wait_until(lambda: "is back" in caplog.text, what="the LISTEN connection")
    assert "polling every" in caplog.text
    assert not worker._wake_ups._listener.listening  # closed with it


def test_two_transfers_both_rest(make_wake_ups, stop, things):
    """The second one can't have the lock: it must not spin, and neither sleeps through an event."""
    one, two = make_wake_ups(), make_wake_ups()
    fall_asleep(one, stop)
    two.wait(stop)
    assert not two.asleep
    session = two._listener.session
    assert session is not None
    assert two._another_sleeps(session)
    one.close()
    fall_asleep(two, stop)


def test_where_transactions_can_be_prepared_publishers_leave_it_to_polling(fault_server):
    """A transaction that notified can't be prepared; they may be told to ring all the same."""
    functions = import_module("django_events.migrations.0001_initial").CREATE_FUNCTIONS
    with psycopg.connect(fault_server.url) as session, psycopg.connect(fault_server.url) as sleeper:
        session.execute("CREATE TABLE django_events_topic (id int, name text, mirror_of text)")
        session.execute("INSERT INTO django_events_topic VALUES (1, 'things')")
        session.execute(functions)
        session.commit()
        sleeper.execute("SELECT pg_advisory_lock(7235707310506407027)")
        session.execute("SELECT django_events_open('things')")
        session.execute("PREPARE TRANSACTION 'fine'")
        session.commit()
        session.autocommit = True
        session.execute("ROLLBACK PREPARED 'fine'")
        session.autocommit = False
        session.execute("SELECT django_events_open('things', true)")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            session.execute("PREPARE TRANSACTION 'refused'")
        session.rollback()
        session.execute(
            "DROP TABLE django_events_topic; DROP FUNCTION django_events_open; DROP FUNCTION django_events_publish"
        )


def test_when_the_one_that_slept_ends_the_other_transfer_looks_soon(make_wake_ups, stop, settings, things):
    """No publisher notifies then, so it must not wait for a poll interval of an hour."""
    settings.DJANGO_EVENTS = NEVER
    sleeper = make_wake_ups()
    fall_asleep(sleeper, stop)
    with running_transfer() as other:
        wait_until(lambda: other._wake_ups._listener.listening, what="the other transfer's connection")
        sleeper.close()
        publish(things, 1)
        wait_until(lambda: Event.objects.of(things).count() == 1, what="the event")


def test_events_that_had_to_be_left_are_not_slept_on(settings, connect, things):
    settings.DJANGO_EVENTS = NEVER
    holder = connect()
    holder.execute("SELECT FROM django_events_topichead FOR UPDATE")
    with running_transfer():
        publish(things, 1)
        wait_until(lambda: BufferedEvent.objects.exists(), what="the event in the buffer")
        holder.rollback()
        wait_until(lambda: Event.objects.of(things).count() == 1, what="the event")


def test_a_lost_listen_connection_misses_nothing_for_long(settings, connect, things):
    settings.DJANGO_EVENTS = NEVER
    with running_transfer() as worker:
        wait_until(lambda: worker._wake_ups.asleep, what="sleep")
        connect(autocommit=True).execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND query LIKE '%pg_try_advisory%'"
        )
        publish(things, 1)
        wait_until(lambda: Event.objects.of(things).count() == 1, what="the event")


def test_sleep_is_forgotten_with_the_connection_that_held_the_lock(make_wake_ups, stop, connect, bystander, things):
    """The server has released the lock: publishers don't notify, so who believed to sleep must look."""
    wake_ups = make_wake_ups(poll=NEVER["POLL_INTERVAL"].total_seconds())
    fall_asleep(wake_ups, stop)
    before = wake_ups._listener.session
    assert before is not None
    bystander.execute("SELECT pg_terminate_backend(%s)", [before.ask(_made("asked", "SELECT pg_backend_pid()"))])
    wait_until(lambda: wake_ups.wait(stop) or not wake_ups.asleep, what="the news")  # each wait returns: it was told

    wait_until(lambda: wake_ups._listener.listening, what="another connection")
    assert not wake_ups.asleep
    publish(things, "no transfer sleeps")
    assert heard(bystander) == 0
    fall_asleep(wake_ups, stop)
    publish(things, "it sleeps")
    assert heard(bystander) == 1
    wake_ups.busy()
    assert connect(autocommit=True).execute(f"SELECT pg_try_advisory_lock({channel.ASLEEP})").fetchone() == (True,)


def test_closing_lets_the_lock_go_although_the_connection_stays(make_wake_ups, stop, bystander, things):
    wake_ups = make_wake_ups()
    fall_asleep(wake_ups, stop)
    wake_ups.close()
    wake_ups.close()

    assert wake_ups._listener.listening
    publish(things, "no transfer sleeps")
    assert heard(bystander) == 0


def test_a_transfer_that_works_until_nothing_is_left_opens_no_connection_to_listen(things):
    with closing(Listener("default")) as listener, closing(TransferWorker("default", listener)) as worker:
        publish(things, 1)
        with closing(Stop()) as stop:
            assert run(worker, stop, once=True) == 1
        assert not any("listener" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize(("wake_ups", "reason"), [(None, None), (True, None), (False, "WAKE_UPS'] is False")])
def test_why_a_transfer_polls_is_told(settings, wake_ups: bool | None, reason: str | None):
    """Our server allows no prepared transactions, so only the setting can switch wake-ups off."""
    settings.DJANGO_EVENTS = {"WAKE_UPS": wake_ups}
    told = why_polling("default")
    assert told is None if reason is None else reason in str(told)
