"""BufferedWriter: what closes a batch, order, back pressure, and what comes back from a database that fails."""

import asyncio
import gc
import json
import logging
import signal
import threading
import weakref
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import psycopg
import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.utils import timezone
from django.utils.connection import ConnectionDoesNotExist
from psycopg import IsolationLevel

from django_events import UNSET, BufferedWriter, close_writers, declarations, publish
from django_events.exceptions import InvalidEvent, NotReady, NotWritten, Refused, UnknownName, WriterFull
from django_events.models import BufferedEvent, DedupKey, ScheduledEvent
from django_events.publishing import writer_threads as lanes_module
from tests.support.fix_topics import assert_dense, log_values, transfer_all
from tests.support.processes import wait_until
from tests.support.proxies import CuttingProxy, wired

pytestmark = pytest.mark.usefixtures("transactional_db")

LONG = timedelta(hours=1)
SOON = timedelta(milliseconds=10)
BRIEF = timedelta(milliseconds=50)
ENOUGH = 60  # seconds, for what is going to happen
LOST = "lose_next_answer", "lose_next_commit", "strand_next_commit"


@pytest.fixture(autouse=True)
def nothing_left(transactional_db, make_topic):
    """No test leaves events in the buffer, or marks of batches, and no writer a handler of signals."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    transfer_all()
    assert not marks()
    DedupKey.objects.all().delete()


@pytest.fixture
def blocked(connect):
    """No session can write to the buffer until it is committed."""
    session = connect()
    session.execute("LOCK TABLE django_events_bufferedevent IN ACCESS EXCLUSIVE MODE")
    return session


@pytest.fixture
def proxy():
    """A wire to the test's database that can be cut, and the alias "wired" that uses it."""
    with wired(CuttingProxy) as proxy:
        yield proxy


def batches():
    """The values in the buffer, by the transaction that wrote them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT jsonb_agg(value ORDER BY id) FROM django_events_bufferedevent GROUP BY xmin::text ORDER BY min(id)"
        )
        return [json.loads(values) for (values,) in cursor.fetchall()]


def flushes_waiting():
    """How many transactions wait for the lock on the buffer."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE relation = 'django_events_bufferedevent'::regclass AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return cursor.fetchone()[0]


def marks():
    return DedupKey.objects.filter(key__startswith="django_events.writer")


def writer_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("django_events writer")]


def results(futures):
    return [future.result(ENOUGH) for future in futures]


# What closes a batch


@pytest.mark.requirement("H2")
def test_a_batch_is_closed_when_it_has_so_many_events(things):
    with BufferedWriter(things, max_items=3, max_age=LONG) as writer:
        futures = [writer.publish(n) for n in range(7)]
        assert results(futures[:6]) == [True] * 6
        assert not futures[6].done()
        assert batches() == [[0, 1, 2], [3, 4, 5]]
    assert futures[6].result(0) is True
    assert batches() == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.requirement("H2")
def test_a_batch_is_closed_when_another_event_would_make_it_too_large(things):
    short, long = "x" * 36, "y" * 300  # 40 bytes with the quotes and the metadata
    with BufferedWriter(things, max_bytes=100, max_age=LONG) as writer:
        futures = [writer.publish(value) for value in (short, short, short, long, short)]
        assert results(futures[:4]) == [True] * 4
        assert not futures[4].done()
    assert batches() == [[short, short], [short], [long], [short]]


@pytest.mark.requirement("H2")
def test_a_batch_is_closed_when_its_oldest_event_is_so_old(things):
    with BufferedWriter(things, max_age=SOON) as writer:
        assert writer.publish(1).result(ENOUGH) is True
        assert writer.publish(2).result(ENOUGH) is True
        assert batches() == [[1], [2]]


def test_flush_writes_what_was_published_before(things):
    with BufferedWriter(things, max_age=LONG) as writer:
        for turn in range(3):
            futures = [writer.publish([turn, n], key=str(n)) for n in range(20)]
            writer.flush()
            assert [future.result(0) for future in futures] == [True] * 20
        writer.flush()
    transfer_all()
    assert len(log_values(things)) == 60
    assert_dense(things)


# Flushes at the same time


@pytest.mark.requirement("H2")
def test_there_are_as_many_flushes_at_once_as_allowed_and_not_one_more(lanes, blocked):
    most = 0
    with BufferedWriter(lanes, max_items=5, max_age=LONG, max_flushes=3) as writer:
        for n in range(3 * 5 + 3 * 4):  # as many as there is room for
            writer.publish(n)
        wait_until(lambda: flushes_waiting() == 3, what="three flushes at once")
        for _ in range(20):
            most = max(most, flushes_waiting())
        assert len(writer_threads()) == 3
        blocked.commit()
    assert most == 3
    transfer_all()
    assert sorted(log_values(lanes)) == list(range(27))


@pytest.mark.slow
@pytest.mark.requirement("H2")
def test_order_by_key_under_many_threads(lanes):
    def place(thread, writer):
        return [writer.publish([thread, n], key=f"{thread}/{n % 5}") for n in range(400)]

    with BufferedWriter(lanes, max_items=7, max_age=SOON, max_flushes=4) as writer, ThreadPoolExecutor(8) as pool:
        futures = [future for placed in pool.map(place, range(8), [writer] * 8) for future in placed]
    assert all(results(futures))
    transfer_all()

    by_key = defaultdict(list)
    for thread, n in log_values(lanes):
        by_key[thread, n % 5].append(n)
    assert by_key == {(thread, rest): list(range(rest, 400, 5)) for thread in range(8) for rest in range(5)}
    assert_dense(lanes)


@pytest.mark.requirement("H2")
def test_events_without_a_key_keep_their_order_in_a_topic_of_one_partition(things):
    with BufferedWriter(things, max_items=7, max_flushes=4) as writer:
        for n in range(500):
            writer.publish(n)
    transfer_all()
    assert log_values(things) == list(range(500))


def test_events_of_a_partition_keep_their_order(lanes):
    with BufferedWriter(lanes, max_items=7, max_flushes=3) as writer:
        for n in range(500):
            writer.publish(n, partition=n % 4)
    transfer_all()
    for partition in range(4):
        assert [n for n in log_values(lanes) if n % 4 == partition] == list(range(partition, 500, 4))


def test_events_without_a_key_fill_one_batch_after_the_other(lanes):
    with BufferedWriter(lanes, max_items=10, max_age=LONG, max_flushes=4) as writer:
        for n in range(80):
            writer.publish(n)
        writer.flush()
        assert sorted(batches()) == [list(range(n, n + 10)) for n in range(0, 80, 10)]


# Beside the caller's transaction


def test_it_is_written_whatever_becomes_of_the_callers_transaction(things):
    with BufferedWriter(things, max_age=SOON) as writer:
        with pytest.raises(RuntimeError), transaction.atomic():
            publish(things, "rolled back")
            future = writer.publish("written")
            raise RuntimeError
        assert future.result(ENOUGH)
    transfer_all()
    assert log_values(things) == ["written"]


@pytest.mark.parametrize(
    "unusual",
    [
        {"AUTOCOMMIT": False},
        {"OPTIONS": {"server_side_binding": True}},
        {"OPTIONS": {"isolation_level": IsolationLevel.SERIALIZABLE}},
    ],
    ids=str,
)
def test_aliases_with_unusual_settings(things, proxy, unusual):
    connections.settings["wired"].update(unusual)
    with BufferedWriter(things, using="wired", max_items=10, max_flushes=2) as writer:
        for n in range(100):
            writer.publish(n, dedup_key=str(n))
    transfer_all()
    assert log_values(things) == list(range(100))


@pytest.mark.slow
def test_a_limit_that_is_meant_for_pages_cuts_no_batch_off(things, proxy, blocked, caplog):
    connections.settings["wired"]["OPTIONS"] = {"options": "-c statement_timeout=1s"}
    with BufferedWriter(things, max_age=SOON, max_flushes=1, using="wired") as writer:
        future = writer.publish(1)
        wait_until(lambda: waits_for_a_lock() > timedelta(seconds=2), what="a batch that takes longer than the limit")
        blocked.commit()
        assert future.result(ENOUGH) is True
    assert "next try" not in caplog.text


def waits_for_a_lock():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(max(clock_timestamp() - query_start), interval '0') FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return cursor.fetchone()[0]


def test_what_publish_takes(lanes):
    with BufferedWriter("lanes") as writer:
        writer.publish({"a": 1}, type="t", key="k", metadata={"m": 1}, partition=2)
        writer.publish(body=b"\0\1")
        writer.publish(None)
        writer.publish("later", publish_at=timezone.now() + LONG)
    assert ScheduledEvent.objects.filter(topic__name="lanes").delete()[0] == 1
    rows = BufferedEvent.objects.order_by("id").values_list("value", "body", "type", "key", "metadata", "partition")
    assert sorted(rows, key=str) == sorted(
        [
            ({"a": 1}, None, "t", "k", {"m": 1}, 2),
            (None, b"\0\1", "", None, {}, None),
            (None, None, "", None, {}, None),
        ],
        key=str,
    )


def test_a_dedup_key_that_is_taken_makes_the_future_false(things):
    publish(things, "first", dedup_key="a")
    with BufferedWriter(things, max_age=LONG) as writer:
        futures = [writer.publish(n, dedup_key=key) for n, key in enumerate(["a", "b", None, "b"])]
        writer.flush()
    assert results(futures) == [False, True, True, False]
    transfer_all()
    assert log_values(things) == ["first", 1, 2]


# Errors of events and of the database


@pytest.mark.requirement("H2")
def test_an_invalid_event_hurts_no_other(things):
    with BufferedWriter(things, max_age=LONG) as writer:
        first = writer.publish(1)
        for wrong in ({"value": {1, 2}}, {"value": 1, "key": 7}, {"value": UNSET}, {"value": 1, "partition": 1}):
            with pytest.raises(InvalidEvent):
                writer.publish(**wrong)
        second = writer.publish(2)
    assert results([first, second]) == [True, True]
    assert batches() == [[1, 2]]


REFUSED = "refused by a rule of the site"


@pytest.fixture
def refusing():
    """A rule of the site on the buffer that refuses a value, as PostgreSQL refuses data that it can't take."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE FUNCTION refuse_one() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                RAISE EXCEPTION 'not this one' USING ERRCODE = 'invalid_text_representation';
            END $$;
            CREATE TRIGGER refuse_one BEFORE INSERT ON django_events_bufferedevent
            FOR EACH ROW WHEN (NEW.value = '"{REFUSED}"') EXECUTE FUNCTION refuse_one()
            """
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION refuse_one() CASCADE")


@pytest.mark.requirement("H2")
def test_data_that_the_database_refuses_hits_its_culprits_only(things, refusing, caplog):
    with pytest.raises(NotWritten) as caught, BufferedWriter(things, max_age=LONG) as writer:
        futures = [writer.publish(REFUSED if n in (17, 63) else n, key="k") for n in range(100)]
    for n, future in enumerate(futures):
        if n in (17, 63):
            assert isinstance(future.exception(0), DatabaseError)
        else:
            assert future.result(0) is True
    transfer_all()
    assert log_values(things) == [n for n in range(100) if n not in (17, 63)]
    assert str(caught.value).startswith("2 of 100 events for topic 'things' were not written. The first one, because:")
    assert caught.value.__cause__ is futures[17].exception()
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.name == "django_events.writer"
    assert record.getMessage().startswith("2 events for topic 'things' were not written: ")
    assert "\n" not in record.getMessage()


@pytest.mark.requirement("H2")
def test_an_error_of_the_database_reaches_every_event_of_the_batch_and_the_lane_goes_on(things, caplog):
    other = declarations.topic("undiscovered")
    try:
        writer = BufferedWriter(other, max_items=2, max_age=LONG)
        futures = [writer.publish(n) for n in range(3)]
        with pytest.raises(NotWritten, match="3 of 3 events for topic 'undiscovered' were not written") as caught:
            writer.flush()
        assert [type(future.exception()) for future in futures] == [NotReady] * 3
        assert caught.value.__cause__ is futures[0].exception()
        writer.flush()  # it was said
        writer.publish(3)
        with pytest.raises(NotWritten, match="1 of 1 events"):
            writer.close()
        writer.close()
        assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 3
    finally:
        declarations.registry.discard(other)


def test_a_topic_that_no_app_declares_is_refused_at_once(things):
    with pytest.raises(UnknownName, match="Did you mean 'things'"):
        BufferedWriter("thing")
    with pytest.raises(ConnectionDoesNotExist):
        BufferedWriter("things", using="nowhere")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_items": 0}, "BufferedWriter has max_items=0, expected a whole number from 1 to 100,000."),
        ({"max_bytes": 1.5}, "BufferedWriter has max_bytes=1.5, expected a whole number from 1 to 1,073,741,824."),
        ({"max_flushes": True}, "BufferedWriter has max_flushes=True, expected a whole number from 1 to 64."),
        ({"max_age": 0.2}, "BufferedWriter has max_age=0.2, expected a timedelta above zero."),
        (
            {"max_wait": timedelta(0)},
            "BufferedWriter has max_wait=datetime.timedelta(0), expected a timedelta above zero.",
        ),
    ],
)
def test_options_are_checked(things, options, said):
    with pytest.raises(ValueError, match="BufferedWriter has") as caught:
        BufferedWriter(things, **options)
    assert str(caught.value) == said


# Back pressure


@pytest.mark.requirement("H2")
def test_publishing_waits_for_room_and_goes_on(things, blocked, in_thread):
    with BufferedWriter(things, max_items=2, max_age=LONG, max_flushes=1) as writer:
        for n in range(4):
            writer.publish(n)
        waiting = in_thread(writer.publish, 4)
        wait_until(lambda: flushes_waiting() == 1, what="a flush that waits")
        assert not wait([waiting], timeout=0.05).done
        blocked.commit()
        last = waiting.result(ENOUGH)
    assert last.result(0) is True
    transfer_all()
    assert log_values(things) == list(range(5))


def test_an_event_that_may_go_anywhere_takes_the_lane_that_has_room(lanes, blocked, monkeypatch):
    with BufferedWriter(lanes, max_bytes=200, max_age=LONG, max_flushes=2) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(writer._moved, "wait", lambda seconds: pytest.fail("it waits, and there is room"))
            for partition, size in [
                (1, 150),
                (1, 150),
                (None, 150),
                (None, 60),
            ]:  # in flight and filling, in both lanes
                writer.publish(body=b"x" * size, partition=partition)
            last = writer.publish(body=b"x" * 100)  # the next lane has no room for so much
        blocked.commit()
        writer.flush(LONG)
    assert last.result(0) is True


@pytest.mark.requirement("H2")
def test_a_writer_that_is_full_says_so_and_keeps_nothing_of_the_event(things, blocked):
    with BufferedWriter(things, max_items=2, max_age=LONG, max_flushes=1, max_wait=BRIEF) as writer:
        futures = [writer.publish("x" * 10) for n in range(4)]
        for _ in range(2):
            with pytest.raises(WriterFull) as caught:
                writer.publish("refused")
        assert str(caught.value).startswith(
            "The writer for topic 'things' is full: 4 events with 56 bytes wait for the database 'default', and there "
            "was no room within 0.05 s. The event was not kept: "
        )
        blocked.commit()
        assert results(futures) == [True] * 4
    transfer_all()
    assert log_values(things) == ["x" * 10] * 4


@pytest.mark.slow
@pytest.mark.requirement("H2")
@pytest.mark.requirement("X8")
def test_a_hanging_database_bounds_the_memory_and_gets_everything_once(lanes, proxy):
    """Nothing gets through any more, in the middle of publishing; then it goes on."""
    accepted = []
    with BufferedWriter(lanes, max_items=10, max_age=LONG, max_flushes=2, max_wait=BRIEF, using="wired") as writer:
        accepted += [writer.publish(n, key=str(n)) for n in range(20)]
        writer.flush(LONG)
        proxy.hold()
        refused = kept = 0
        while refused < 20:
            try:
                accepted.append(writer.publish(len(accepted), key=str(len(accepted) + refused)))
                kept += 1
            except WriterFull:
                refused += 1
            assert kept <= 2 * 2 * 10
        assert kept >= 20
        proxy.go_on()
        writer.flush(LONG)
        accepted.append(writer.publish(len(accepted)))
        writer.flush(LONG)  # closing has a moment's patience only
    assert results(accepted) == [True] * len(accepted)
    transfer_all()
    assert sorted(log_values(lanes)) == list(range(len(accepted)))


# A connection that is lost


@pytest.mark.requirement("X8")
@pytest.mark.parametrize("lose", LOST)
def test_a_connection_that_is_lost_at_commit_loses_and_doubles_nothing(things, proxy, lose, caplog):
    publish(things, "before", dedup_key="taken")
    with BufferedWriter(things, max_age=LONG, max_flushes=1, using="wired") as writer:
        writer.publish("connected")
        writer.flush()
        getattr(proxy, lose)()
        futures = [writer.publish(n, dedup_key="taken" if n == 7 else None) for n in range(20)]
        writer.flush()
        assert proxy.lost.is_set()
        writer.publish("after")
    assert results(futures) == [n != 7 for n in range(20)]
    transfer_all()
    assert log_values(things) == ["before", "connected", *(n for n in range(20) if n != 7), "after"]
    assert "wait for the database 'wired', next try in" in caplog.text


@pytest.mark.slow
@pytest.mark.requirement("X8")
def test_every_second_commit_gets_no_answer(lanes, proxy, monkeypatch):
    monkeypatch.setattr(lanes_module, "PAUSES", lanes_module.Backoff(base=timedelta(0)))
    with BufferedWriter(lanes, max_items=5, max_age=SOON, max_flushes=3, using="wired") as writer:
        for turn in range(12):
            getattr(proxy, LOST[turn % 3])()
            for n in range(10):
                writer.publish(turn * 10 + n, key=str(n))
            wait_until(proxy.lost.is_set, what="a lost COMMIT")
    transfer_all()
    values = log_values(lanes)
    assert sorted(values) == list(range(120))
    for rest in range(10):
        assert [n for n in values if n % 10 == rest] == list(range(rest, 120, 10))


@pytest.mark.slow
@pytest.mark.requirement("X8")
def test_a_backend_that_is_ended_in_the_middle_of_a_flush(things, blocked):
    with BufferedWriter(things, max_items=5, max_flushes=1) as writer:
        futures = [writer.publish(n) for n in range(10)]
        for _ in range(3):
            wait_until(lambda: flushes_waiting() == 1, what="a flush that waits")
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE NOT granted"
                    " AND relation = 'django_events_bufferedevent'::regclass"
                    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
        wait_until(lambda: flushes_waiting() == 1, what="another try")
        blocked.commit()
        assert results(futures) == [True] * 10
    transfer_all()
    assert log_values(things) == list(range(10))


@pytest.mark.slow
@pytest.mark.requirement("X8")
def test_backends_that_are_ended_at_any_moment(lanes, proxy, monkeypatch):
    monkeypatch.setattr(lanes_module, "PAUSES", lanes_module.Backoff(base=timedelta(0)))
    connections.settings["wired"]["OPTIONS"] = {"application_name": "a writer"}
    ended = n = 0
    with BufferedWriter(lanes, max_items=20, max_age=SOON, max_flushes=3, using="wired") as writer:
        while ended < 40:
            for _ in range(20):
                writer.publish(n, key=str(n % 10), dedup_key=str(n))
                n += 1
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'a writer'"
                    " AND datname = current_database() AND state <> 'idle' ORDER BY random() LIMIT 1"
                )
                ended += len(cursor.fetchall())
    transfer_all()
    values = log_values(lanes)
    assert sorted(values) == list(range(n))
    for rest in range(10):
        assert [value for value in values if value % 10 == rest] == list(range(rest, n, 10))
    marks().delete()  # a connection that was ended after the last batch forgets none


@pytest.mark.requirement("X8")
@pytest.mark.parametrize(
    ("problem", "state"),
    [("default_transaction_read_only=on", "read-only transaction"), ("lock_timeout=10ms", "lock timeout")],
)
def test_what_passes_by_itself_is_waited_for(things, proxy, blocked, problem, state, caplog):
    """A server that became a standby, and a migration that locks the buffer."""
    connections.settings["wired"]["OPTIONS"] = {"options": f"-c {problem}"}
    with BufferedWriter(things, max_age=SOON, max_flushes=1, using="wired") as writer:
        future = writer.publish(1)
        wait_until(lambda: state in caplog.text, what="an attempt that fails")
        blocked.commit()
        connections.settings["wired"]["OPTIONS"] = {}
        assert future.result(ENOUGH) is True
    assert "1 events" not in caplog.text
    transfer_all()
    assert log_values(things) == [1]


# Flushing and closing


@pytest.mark.requirement("H2")
def test_flush_gives_up_waiting_and_the_writer_goes_on(things, blocked):
    with BufferedWriter(things, max_items=2, max_flushes=1) as writer:
        futures = [writer.publish(n) for n in range(3)]
        with pytest.raises(NotWritten) as caught:
            writer.flush(timeout=timedelta(milliseconds=50))
        assert str(caught.value) == (
            "3 of 3 events for topic 'things' were not written. 3 still wait for the database 'default': "
            "none was settled for 0.05 s. The writer goes on trying."
        )
        blocked.commit()
        writer.flush()
        assert results(futures) == [True] * 3
    transfer_all()
    assert log_values(things) == [0, 1, 2]


@pytest.mark.requirement("H2")
def test_close_gives_up_what_waits_and_leaves_no_thread(things, blocked):
    writer = BufferedWriter(things, max_items=2, max_flushes=1)
    futures = [writer.publish(n) for n in range(3)]
    wait_until(lambda: flushes_waiting() == 1, what="a flush that waits")
    with pytest.raises(NotWritten) as caught:
        writer.close(timeout=timedelta(milliseconds=50))
    assert str(caught.value) == (
        "3 of 3 events for topic 'things' were not written. The reason: none was settled by the database 'default' "
        "for 0.05 s while the writer was being closed."
    )
    for future in futures:
        with pytest.raises(NotWritten, match="was not written: none was settled by the database 'default' for"):
            future.result(0)
    wait_until(lambda: not writer_threads(), what="threads that end")
    blocked.commit()
    wait_until(lambda: flushes_waiting() == 0, what="the backend to notice")
    writer.close()
    transfer_all()
    assert log_values(things) == []


@pytest.mark.requirement("H2")
def test_all_writers_of_the_process_are_closed_at_once_and_what_they_hold_is_written(things):
    one, other = BufferedWriter(things, max_age=LONG), BufferedWriter(things, max_age=LONG)
    futures = [one.publish("one"), other.publish("other")]
    close_writers()

    assert [future.result(0) for future in futures] == [True, True]
    for writer in (one, other):
        with pytest.raises(Refused):
            writer.publish("late")
    close_writers()


@pytest.mark.slow
def test_closing_all_writers_says_what_each_of_them_could_not_write(things, blocked):
    writers = [BufferedWriter(things, max_age=LONG) for _ in range(2)]
    futures = [writer.publish("waits") for writer in writers]
    with pytest.raises(NotWritten, match="1 of 1 events for topic 'things' were not written") as caught:
        close_writers(BRIEF)

    [note] = caught.value.__notes__
    assert "1 of 1 events for topic 'things' were not written" in note
    for future in futures:
        with pytest.raises(NotWritten):
            future.result(0)


def test_close_says_when_it_is_not_known_whether_events_are_in_the_log(things, proxy):
    writer = BufferedWriter(things, max_age=LONG, max_items=3, max_flushes=1, using="wired")
    writer.publish("connected")
    writer.flush()
    proxy.lose_next_answer()
    connections.settings["wired"]["PORT"] = "1"  # the connection that is there stays, another one can't be made
    futures = [writer.publish(n) for n in range(4)]
    wait_until(proxy.lost.is_set, what="a lost COMMIT")
    with pytest.raises(
        NotWritten, match="3 of them may or may not be in the log: their COMMIT was on its way"
    ) as caught:
        writer.close(timeout=timedelta(milliseconds=200))
    assert isinstance(caught.value.__cause__, DatabaseError)
    for future in futures[:3]:
        with pytest.raises(NotWritten, match="may or may not be in the log"):
            future.result(0)
    with pytest.raises(NotWritten, match="was not written"):
        futures[3].result(0)
    transfer_all()
    assert log_values(things) == ["connected", 0, 1, 2]
    assert marks().delete()  # they would stay for a week


@pytest.mark.slow
def test_a_slow_database_that_makes_progress_is_waited_for(things, monkeypatch):
    """`timeout` is for the time without progress: each of these batches takes most of it."""
    writer = BufferedWriter(things, max_items=1, max_flushes=1)
    write = lanes_module.Flusher.write

    def slowly(self, rows, before_commit):
        threading.Event().wait(0.5)
        return write(self, rows, before_commit)

    monkeypatch.setattr(lanes_module.Flusher, "write", slowly)
    for n in range(2):
        writer.publish(n)
    writer.close(timeout=timedelta(seconds=0.8))
    transfer_all()
    assert log_values(things) == [0, 1]


def test_nothing_can_be_published_after_closing(things, blocked, in_thread):
    writer = BufferedWriter(things, max_items=1, max_flushes=1)
    futures = [writer.publish(n) for n in range(2)]
    waiting = in_thread(writer.publish, 2)
    wait_until(lambda: flushes_waiting() == 1, what="a flush that waits")
    closing = in_thread(writer.close)
    with pytest.raises(Refused, match="The writer for topic 'things' is closed"):
        waiting.result(ENOUGH)
    with pytest.raises(Refused):
        writer.publish(3)
    blocked.commit()
    closing.result(ENOUGH)
    assert results(futures) == [True, True]
    assert not writer_threads()
    transfer_all()
    assert log_values(things) == [0, 1]


def test_an_error_of_the_body_is_not_replaced_by_one_of_closing(things, blocked, caplog):
    with (
        pytest.raises(ZeroDivisionError),
        BufferedWriter(things, max_wait=timedelta(milliseconds=50), max_flushes=1) as writer,
    ):
        writer.publish(1)
        raise ZeroDivisionError
    assert "1 of 1 events for topic 'things' were not written" in caplog.text
    blocked.commit()
    wait_until(lambda: flushes_waiting() == 0, what="the backend to notice")


def test_an_idle_lane_closes_its_connection_and_opens_another_one(things, monkeypatch):
    monkeypatch.setattr(lanes_module, "IDLE", 0.01)
    with BufferedWriter(things, max_age=SOON, max_flushes=1) as writer:
        before = sessions()
        for n in range(3):
            assert writer.publish(n).result(ENOUGH)
            wait_until(lambda: not writer_threads(), what="a thread that ends")
            wait_until(lambda: sessions() == before, what="a connection that is closed")
        writer.publish(3)
    wait_until(lambda: sessions() == before, what="a connection that is closed")
    transfer_all()
    assert log_values(things) == list(range(4))


@pytest.mark.slow
def test_a_writer_without_a_reference_writes_what_it_took_in_and_goes(things, monkeypatch):
    monkeypatch.setattr(lanes_module, "IDLE", 0.01)
    writer = BufferedWriter(things, max_age=SOON)
    writer.publish(1)
    gone = weakref.ref(writer)
    del writer
    wait_until(lambda: gc.collect() is not None and gone() is None, what="a writer that is collected")
    assert not writer_threads()
    transfer_all()
    assert log_values(things) == [1]
    assert marks().delete()


def sessions():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return cursor.fetchone()[0]


# Futures


def test_a_future_can_not_be_cancelled_and_its_callbacks_may_fail(things, caplog):
    def fail(future):
        raise SystemExit("of a callback")

    told = []
    with BufferedWriter(things, max_age=LONG) as writer:
        future = writer.publish(1)
        assert not future.cancel()
        future.add_done_callback(fail)
        future.add_done_callback(lambda future: told.append("the others are not called"))
        writer.flush()
        writer.publish(2).add_done_callback(lambda future: told.append(writer.publish("from a callback")))
        writer.flush()
        [again] = told
    assert again.result(0) is True
    assert "could not be settled" in caplog.text
    transfer_all()
    assert log_values(things) == [1, 2, "from a callback"]


def test_a_callback_can_not_wait_for_the_writer_that_calls_it(things):
    told = []

    def attempt(future):
        with pytest.raises(RuntimeError, match="can't wait for the writer that calls it"):
            writer.flush()
        with pytest.raises(RuntimeError):
            writer.close()
        told.append(writer.publish(2))

    with BufferedWriter(things, max_age=LONG, max_flushes=1) as writer:
        writer.publish(1).add_done_callback(attempt)
        writer.flush()
        [future] = told
    assert future.result(0) is True


def test_a_callback_of_a_full_writer_is_told_at_once(things, blocked):
    """In the one thread that makes room, waiting for room would be in vain."""
    told = []

    def again(future):
        try:
            told.append(writer.publish("again"))
        except WriterFull as error:
            told.append(error)

    with BufferedWriter(things, max_items=1, max_flushes=1, max_wait=LONG) as writer:
        first = writer.publish(1)
        first.add_done_callback(again)
        wait_until(lambda: flushes_waiting() == 1, what="a flush that waits")
        writer.publish(2)
        blocked.commit()
        writer.flush()
    assert first.result(0) is True
    assert [isinstance(one, WriterFull) for one in told] in ([True], [False])
    transfer_all()


def test_a_handler_of_the_log_may_publish(things, proxy, blocked):
    """What is said of a database that is away is said without the writer's lock."""
    told = []

    class Publishing(logging.Handler):
        def emit(self, record):
            told.append(writer.publish("of the log"))

    handler = Publishing()
    logging.getLogger("django_events.writer").addHandler(handler)
    try:
        with BufferedWriter(things, max_age=LONG, max_flushes=1, using="wired") as writer:
            writer.publish("connected")
            proxy.lose_next_commit()
            blocked.rollback()
            writer.flush()
            wait_until(lambda: told, what="a warning")
            assert writer.publish("goes on")
    finally:
        logging.getLogger("django_events.writer").removeHandler(handler)
    transfer_all()
    assert sorted(log_values(things)) == ["connected", "goes on", *["of the log"] * len(told)]


@pytest.fixture
def failing_log():
    """A handler of the log that raises, and what it was told."""
    told = []

    class Failing(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())
            raise SystemExit("the log is away") if len(told) % 2 else RuntimeError("the log is away")

    handler = Failing()
    logging.getLogger("django_events.writer").addHandler(handler)
    yield told
    logging.getLogger("django_events.writer").removeHandler(handler)


def test_a_handler_of_the_log_that_fails_ends_no_thread_and_refuses_nothing(things, proxy, refusing, failing_log):
    def fail(future):
        raise SystemExit("of a callback")

    with BufferedWriter(things, max_age=SOON, max_flushes=1, using="wired") as writer:
        for number in range(2):
            assert writer.publish(number).result(ENOUGH)
            thread = writer_threads()
            assert isinstance(writer.publish(REFUSED).exception(ENOUGH), DatabaseError)
            proxy.lose_next_commit()
            future = writer.publish("not lost")
            future.add_done_callback(fail)
            assert future.result(ENOUGH)
        with pytest.raises(NotWritten, match="2 of 6 events"):
            writer.flush()
        assert writer_threads() == thread
    assert ["not written" in one or "wait for" in one or "settled" in one for one in failing_log] == [True] * 6
    transfer_all()
    assert log_values(things) == [0, "not lost", 1, "not lost"]


def test_a_handler_of_the_log_that_fails_does_not_replace_an_error_of_the_body(things, blocked, failing_log):
    failing_log.append("the next one is an Exception")
    with (
        pytest.raises(ZeroDivisionError),
        BufferedWriter(things, max_wait=BRIEF, max_flushes=1) as writer,
    ):
        writer.publish(1)
        raise ZeroDivisionError
    assert len(failing_log) > 1
    blocked.commit()
    wait_until(lambda: flushes_waiting() == 0, what="the backend to notice")


def test_a_lost_answer_and_a_refusal_say_that_it_is_not_known(things, proxy, monkeypatch):
    with BufferedWriter(things, max_age=SOON, max_flushes=1, using="wired") as writer:
        writer.publish("connected").result(ENOUGH)
        proxy.lose_next_answer()
        refused = lanes_module.Flusher.write

        def refuse(flusher, rows, progress):
            if proxy.lost.is_set():
                raise DatabaseError("permission denied") from psycopg.errors.InsufficientPrivilege("permission denied")
            return refused(flusher, rows, progress)

        monkeypatch.setattr(lanes_module.Flusher, "write", refuse)
        future = writer.publish("committed")
        with pytest.raises(NotWritten, match=r"may or may not be in the log.*permission denied"):
            future.result(ENOUGH)
        monkeypatch.undo()
        with pytest.raises(NotWritten):
            writer.flush()
    transfer_all()
    assert log_values(things) == ["connected", "committed"]
    assert marks().delete()[0] == 1  # for as long as a transaction may come back


def test_an_error_without_a_meaning_is_tried_again_and_not_for_ever(things, monkeypatch):
    """A pooler that loses its server says things like: received 2 results from command 'COMMIT'."""
    monkeypatch.setattr(lanes_module, "PAUSES", lanes_module.Backoff(base=timedelta(0)))
    write, left = lanes_module.Flusher.write, [3]

    def odd(flusher, rows, progress):
        if left[0]:
            left[0] -= 1
            raise ValueError("too many values to unpack")
        return write(flusher, rows, progress)

    monkeypatch.setattr(lanes_module.Flusher, "write", odd)
    with BufferedWriter(things, max_age=SOON, max_flushes=1) as writer:
        assert writer.publish(1).result(ENOUGH) is True
        left[0] = 100
        with pytest.raises(ValueError, match="too many values"):
            writer.publish(2).result(ENOUGH)
        assert left[0] == 100 - lanes_module.MOST_ODD - 1
        left[0] = 0
        with pytest.raises(NotWritten):
            writer.flush()
        assert writer.publish(3).result(ENOUGH) is True
    transfer_all()
    assert log_values(things) == [1, 3]


def test_a_thread_that_could_not_be_started_leaves_the_lane_as_it_was(things, monkeypatch):
    start = threading.Thread.start

    def interrupted(thread):
        if thread.name.startswith("django_events writer"):
            monkeypatch.setattr(threading.Thread, "start", start)
            start(thread)
            raise KeyboardInterrupt
        start(thread)

    with BufferedWriter(things, max_age=SOON, max_flushes=1) as writer:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.publish("interrupted")
        assert results([writer.publish(n) for n in range(200)]) == [True] * 200
    transfer_all()
    assert log_values(things) == list(range(200))


def test_a_batch_is_as_large_as_all_that_its_events_say(things):
    with BufferedWriter(things, max_bytes=4_000, max_age=LONG, max_flushes=1) as writer:
        writer.publish(1, key="ü" * 500)
        writer.publish(2, key="ä" * 500)
        writer.publish(3, key="ö" * 500)
        wait_until(lambda: batches() == [[1], [2]] or batches() == [[1]], what="a batch that is closed")
    transfer_all()
    assert log_values(things) == [1, 2, 3]


def test_async_code_awaits_futures(things):
    async def place(writer):
        return await asyncio.gather(*(asyncio.wrap_future(writer.publish(n)) for n in range(10)))

    with BufferedWriter(things, max_age=SOON) as writer:
        assert asyncio.run(place(writer)) == [True] * 10


def test_there_is_one_mark_for_the_last_batch_and_closing_forgets_it(things):
    with BufferedWriter(things, max_items=1, max_flushes=1) as writer:
        for n in range(5):
            writer.publish(n)
        writer.flush()
        assert marks().count() == 1
    assert not marks()
