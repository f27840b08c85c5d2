"""Prepared claims: a partition is leased and read by one prepared statement, or, where anything is unusual, as ever."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F

from django_events import Draft, publish, publish_many
from django_events.consuming import handling
from django_events.consuming.handlers import BoundHandler, FailedAt
from django_events.consuming.handling import log_failure
from django_events.consuming.streams import leased_partitions
from django_events.consuming.streams.partitions import PreparedClaim
from django_events.consuming.streams.server import StreamServer
from django_events.consuming.subscriptions import subscriptions
from django_events.exceptions import LeaseLost
from django_events.models import DeadLetter, Position, Topic
from django_events.models.functions import ClockTimestamp
from django_events.operations import pause, resume
from django_events.signals import event_handled
from django_events.sql.prepared import SharedSession
from django_events.statements import log_table
from django_events.workers.loop import connect_for_work
from tests.plans.test_plans import nodes
from tests.support.fix_consumers import position_of, working
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")


def fill(topic, *values, **fields):
    publish_many(topic, [Draft(value=value, **fields) for value in values])
    transfer_all()


def prepared_claim(server):
    """A claim by the prepared statement alone."""
    assert server._prepared is not None
    return server._claim_prepared()


def serve(server, handler=None):
    """A turn as a worker has it, by a handler of its own if none is given; returns how many events were passed."""
    lease = server.claim()
    if lease is None:
        return 0
    return server.serve(lease, handler or BoundHandler(server.subscription.consumer), on_failure=log_failure(lease))


@pytest.fixture
def warm(things, make_consumer):
    """A server of a consumer that has served its first event, so that the next claim is a prepared one."""
    seen = []
    consumer = make_consumer(things, handler=lambda event: seen.append(event.value))
    server = server_of(consumer)
    fill(things, "first")
    assert serve(server) == 1
    server.seen = seen
    yield server
    connection.close()


def server_of(consumer, partition=None, session=None):
    connect_for_work("default")
    session = session or SharedSession("default")
    session.renew()
    [subscription] = subscriptions("default", [consumer])
    lanes = {lane: position_id for position_id, lane in subscription.positions}
    lane = min(lanes) if partition is None else partition
    return StreamServer(subscription, lanes[lane], lane, holder="a test", session=session)


@pytest.mark.requirement("S1")
def test_it_reads_what_it_leases(warm, things, django_assert_num_queries):
    fill(things, 1, 2, 3)
    with django_assert_num_queries(0):  # of Django's: it is one message of its own
        lease = prepared_claim(warm)
        batch = lease.read()

    assert [event.value for event in batch.events] == [1, 2, 3]
    assert (batch.position, batch.number, lease.readable_until) == (4, 4, 4)
    position = position_of(warm.subscription.consumer)
    assert (position.token, position.holder, position.position) == (lease.token, "a test", 1)
    assert position.leased_until - position.served_at >= timedelta(seconds=1)
    warm.serve(lease, BoundHandler(warm.subscription.consumer), on_failure=log_failure(lease))


@pytest.mark.slow
@pytest.mark.requirement("S1")
@pytest.mark.parametrize("options", [{}, {"batch_size": 7}, {"types": ["good.*"]}], ids=str)
def test_it_reads_the_same_as_ever(lanes, make_consumer, options):
    def note(given):
        for event in given if isinstance(given, list) else [given]:
            seen.setdefault(event.consumer, []).append((event.id, event.number, event.type, event.value, event.key))

    seen = {}
    one, other = (
        make_consumer(lanes, handler=note, name=name, partitioned=True, **options) for name in ("one", "other")
    )
    servers = [server_of(one, lane) for lane in range(4)]
    plain = [server_of(other, lane) for lane in range(4)]
    for server in plain:
        server._session = None
    claimed = 0
    for turn in range(12):
        fill(lanes, *range(turn * 3), type="good.one" if turn % 3 else "bad")
        fill(lanes, turn, key=str(turn), type="good.two")
        for server in [*servers, *plain]:
            while serve(server):
                claimed += server._prepared is not None
    connection.close()

    assert sorted(seen["one"]) == sorted(seen["other"]) != []
    assert list(
        Position.objects.filter(consumer__name="one").order_by("partition").values_list("position", "number")
    ) == list(Position.objects.filter(consumer__name="other").order_by("partition").values_list("position", "number"))
    assert claimed > 20


UNUSUAL = {
    "leased": {"token": 4711, "leased_until": ClockTimestamp() + timedelta(hours=1)},
    "overdue": {"token": 4711, "leased_until": ClockTimestamp() - timedelta(hours=1)},
    "a failed attempt": {"attempted": 2, "attempts": 1},
    "careful": {"careful_until": 2},
    "stopped": {"stopped_at": ClockTimestamp()},
    "waits for a retry": {"retry_at": ClockTimestamp() + timedelta(hours=1)},
    "at the end": {"position": F("position") + 1},
}


@pytest.mark.parametrize("unusual", UNUSUAL.values(), ids=list(UNUSUAL))
def test_where_anything_is_unusual_it_does_nothing(warm, things, unusual):
    fill(things, 1)
    Position.objects.filter(pk=warm.position_id).update(**unusual)
    before = Position.objects.filter(pk=warm.position_id).values().get()

    assert prepared_claim(warm) is None
    assert Position.objects.filter(pk=warm.position_id).values().get() == before


def test_a_paused_consumer_and_one_with_a_dead_letter_to_redrive_are_left(warm, things):
    fill(things, 1)
    consumer = warm.subscription.consumer
    pause(consumer)
    assert prepared_claim(warm) is None
    resume(consumer)
    assert DeadLetter.objects.count() == 0
    DeadLetter.objects.create(
        consumer_id=warm.subscription.consumer_id,
        event_id=1,
        partition=0,
        number=1,
        type="",
        metadata={},
        published_at=ClockTimestamp(),
        logged_at=ClockTimestamp(),
        attempts=1,
        error="",
        redrive_at=ClockTimestamp(),
    )
    assert prepared_claim(warm) is None
    assert serve(warm) == 2


@pytest.mark.slow
def test_it_goes_from_segment_to_segment(make_topic, make_consumer):
    things, seen = make_topic("things", segment_size=100), []
    server = server_of(make_consumer(things, handler=lambda event: seen.append(event.value)))
    by_statement = 0
    for n in range(350):
        fill(things, n)
        server._prepare_at = 0.0
        by_statement += server._prepared is not None and (lease := prepared_claim(server)) is not None
        if by_statement and lease is not None:
            server.serve(lease, BoundHandler(server.subscription.consumer), on_failure=log_failure(lease))
            lease = None
        else:
            assert serve(server) == 1
    connection.close()

    assert seen == list(range(350))
    assert by_statement > 330


def test_a_position_that_was_rewound_below_its_segment_is_left(make_topic, make_consumer):
    things, seen = make_topic("things", segment_size=100), []
    server = server_of(make_consumer(things, handler=lambda event: seen.append(event.value)))
    fill(things, *range(150))
    while serve(server):
        pass
    server._prepare_at = 0.0
    server._prepare(151)
    fill(things, 150)
    Position.objects.filter(pk=server.position_id).update(position=20, number=20)

    assert prepared_claim(server) is None
    while serve(server):
        pass
    assert seen == [*range(150), *range(20, 151)]
    connection.close()


@pytest.mark.requirement("S1")
def test_a_large_event_is_read_by_itself(warm, things):
    fill(things, 1, "x" * 5_000, 3)
    lease = prepared_claim(warm)
    assert lease.read_ahead is None
    warm.serve(lease, BoundHandler(warm.subscription.consumer), on_failure=log_failure(lease))
    assert warm.seen == ["first", 1, "x" * 5_000, 3]


@pytest.mark.requirement("S1")
def test_it_reads_on_in_the_same_way(make_topic, make_consumer, monkeypatch):
    things, seen, apart = make_topic("things", segment_size=1_000), [], []
    server = server_of(make_consumer(things, handler=seen.extend, batch_size=50))
    fill(things, "first")
    assert serve(server) == 1
    bounded = leased_partitions.bounded
    monkeypatch.setattr(leased_partitions, "bounded", lambda *a, **k: apart.append(1) or bounded(*a, **k))
    fill(things, *range(500))
    assert serve(server) == 500
    assert apart == []

    fill(things, *range(500, 700), "x" * 5_000, *range(700, 1_500))
    while serve(server):
        pass
    assert apart != []
    connection.close()
    assert [event.value for event in seen] == ["first", *range(700), "x" * 5_000, *range(700, 1_500)]


@pytest.fixture
def together(monkeypatch):
    """What the messages that settle and read on have answered; None where nothing of that was done."""
    done, settle_and_read = [], PreparedClaim.settle_and_read

    def note(*arguments):
        done.append(settle_and_read(*arguments))
        return done[-1]

    monkeypatch.setattr(PreparedClaim, "settle_and_read", note)
    return done


def batches_of(things, make_consumer, handle):
    """A server of a consumer that handles two events at a time outside of a transaction, and claims by its session."""
    server = server_of(make_consumer(things, handler=handle, batch_size=2, transactional=False))
    fill(things, "first")
    assert serve(server) == 1
    return server


@pytest.mark.requirement("S1")
def test_what_was_handled_is_settled_in_the_message_that_reads_on(things, make_consumer, together):
    seen, found = [], []

    def handle(events):
        seen.extend(event.value for event in events)
        found.append(max(Position.objects.values_list("position", flat=True)))

    server = batches_of(things, make_consumer, handle)
    fill(things, *range(8))
    assert serve(server) == 8

    assert seen == ["first", *range(8)]
    assert found == [0, 1, 3, 5, 7]  # all in front of a batch, and nothing of it
    assert [(len(settled), len(read)) for settled, read in together] == [(1, 2)] * 3
    position = position_of(server.subscription.consumer)
    assert (position.position, position.number, position.handled, position.token) == (9, 9, 9, None)


@pytest.mark.parametrize("large", [False, True])
def test_what_can_not_be_read_with_it_is_settled_all_the_same(things, make_consumer, together, large):
    seen = []

    def handle(events):
        seen.extend(event.value for event in events)
        if not large and seen[-1] == 3:
            with connection.cursor() as cursor:
                cursor.connection.pgconn.exec_(b"DEALLOCATE ALL")

    server = batches_of(things, make_consumer, handle)
    fill(things, 0, 1, 2, 3, "x" * 5_000 if large else 4, 5, 6)
    while serve(server):
        pass

    assert together[0] is not None
    assert together[1][1] is None if large else together[1] is None
    assert seen == ["first", 0, 1, 2, 3, "x" * 5_000 if large else 4, 5, 6]
    position = position_of(server.subscription.consumer)
    assert (position.position, position.handled, position.token) == (8, 8, None)


def test_what_was_handled_is_settled_where_reading_on_takes_too_long(things, make_consumer, together):
    """The table is locked for a moment, and the site's limit for statements ends the reading."""
    seen, other = [], connection.copy()

    def handle(events):
        seen.extend(event.value for event in events)
        if seen[-1] == 1:
            other.set_autocommit(False)
            other.cursor().execute(f"LOCK TABLE {server._prepared.segment.table} IN ACCESS EXCLUSIVE MODE")
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = '300ms'")

    server = batches_of(things, make_consumer, handle)
    fill(things, *range(6))
    try:
        with pytest.raises(OperationalError, match="statement timeout"):
            serve(server)
    finally:
        other.close()
        connection.close()

    assert together == [None]
    assert seen == ["first", 0, 1]
    position = position_of(server.subscription.consumer)
    assert (position.position, position.handled) == (3, 3)


def test_a_statement_that_is_given_up_and_was_forgotten_settles_nothing_twice(things, make_consumer, together):
    """The session keeps one statement, so the one that reads on takes the place of the one that has claimed."""
    seen = []

    def handle(events):
        seen.extend(event.value for event in events)
        with connection.cursor() as cursor:
            cursor.connection.pgconn.exec_(b"DEALLOCATE ALL")

    session = SharedSession("default", most=1)
    server = server_of(make_consumer(things, handler=handle, batch_size=2, transactional=False), session=session)
    fill(things, "first")
    assert serve(server) == 1
    fill(things, *range(4))
    while serve(server):
        pass

    assert seen == ["first", *range(4)]
    assert together
    position = position_of(server.subscription.consumer)
    assert (position.position, position.handled) == (5, 5)


def test_the_time_of_a_handler_is_without_that_of_reading_on(things, make_consumer, together, monkeypatch):
    clock, told, settle_and_read = [0.0], [], PreparedClaim.settle_and_read

    def take(seconds):
        clock[0] += seconds

    def slowly(*arguments):
        take(seconds=100.0)
        return settle_and_read(*arguments)

    def note(seconds, **others):
        told.append(seconds)

    server = batches_of(things, make_consumer, lambda events: take(seconds=1.0))
    fill(things, *range(6))
    monkeypatch.setattr(PreparedClaim, "settle_and_read", slowly)
    monkeypatch.setattr(handling.time, "perf_counter", lambda: clock[0])
    event_handled.connect(note)
    try:
        assert serve(server) == 6
    finally:
        event_handled.disconnect(note)

    assert len(together) == 2
    assert told == [1.0] * 3


def test_a_worker_that_freezes_while_events_are_sent_to_it_has_locked_nothing(things, make_consumer, monkeypatch):
    """The server sends more than fits between the two, so it waits for the worker, and doesn't come to the settling."""
    size, execute, found = 10_000, psycopg.ClientCursor.execute, []

    def freeze(cursor, query, *arguments, **options):
        if not (isinstance(query, bytes) and b"handled = handled +" in query):
            return execute(cursor, query, *arguments, **options)
        line = cursor.connection.pgconn
        line.send_query(query)
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(is_free, line.backend_pid).result())
        line.finish()
        raise psycopg.OperationalError("the worker was cut off")

    def is_free(pid):
        """As another worker, while the server waits for the frozen one to take what it sends."""
        waits = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        try:
            wait_until(lambda: answer(waits, pid) == "ClientWrite", seconds=30, what="a server that waits")
            with transaction.atomic():
                return Position.objects.select_for_update(nowait=True).get(token__isnull=False).position
        finally:
            connection.close()

    def answer(question, *parameters):
        with connection.cursor() as cursor:
            return cursor.execute(question, parameters).fetchone()[0]

    server = server_of(make_consumer(things, handler=lambda events: None, batch_size=size, transactional=False))
    fill(things, "first")
    assert serve(server) == 1
    fill(things, *["x" * 1_500] * 2 * size)
    monkeypatch.setattr(psycopg.ClientCursor, "execute", freeze)
    with pytest.raises(OperationalError):
        serve(server)
    connection.close()

    assert found == [1]


def test_a_lease_that_was_lost_settles_nothing_and_reads_nothing_on(things, make_consumer, together):
    seen = []

    def handle(events):
        seen.extend(event.value for event in events)
        if seen[-1] == 1:
            Position.objects.filter(token__isnull=False).update(token=7)

    server = batches_of(things, make_consumer, handle)
    fill(things, *range(6))
    with pytest.raises(LeaseLost):
        serve(server)

    assert seen == ["first", 0, 1]
    assert [settled for settled, _ in together] == [[]]
    position = position_of(server.subscription.consumer)
    assert (position.position, position.handled, position.token) == (1, 1, 7)


def test_an_event_that_fails_behind_what_was_read_ahead_waits_for_its_next_attempt(things, make_consumer, together):
    seen = []

    def handle(events):
        if events[0].value == 4:
            raise FailedAt(1, ValueError("not now"))
        seen.extend(event.value for event in events)

    server = batches_of(things, make_consumer, handle)
    fill(things, *range(8))
    assert serve(server) == 5

    assert seen == ["first", *range(4)]
    position = position_of(server.subscription.consumer)
    assert (position.position, position.attempted, position.attempts, position.token) == (6, 7, 1, None)


@pytest.mark.parametrize("forget", ["DISCARD ALL", "DEALLOCATE ALL"])
def test_a_session_that_was_told_to_forget_claims_as_ever(warm, things, forget):
    for n in range(3):
        fill(things, n)
        assert serve(warm) == 1
    with connection.cursor() as cursor:
        cursor.connection.pgconn.exec_(forget.encode())
    for n in range(3, 6):
        fill(things, n)
        assert serve(warm) == 1

    assert warm.seen == ["first", *range(6)]
    assert names() == []
    warm._prepare_at = 0.0  # as if the while were over
    fill(things, 6)
    assert serve(warm) == 1
    fill(things, 7)
    assert prepared_claim(warm) is not None


def names():
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements WHERE name LIKE 'django\\_events\\_%%'")
        return [name for (name,) in cursor.fetchall()]


def prepared_scans(name):
    """How a prepared statement reads each table, under the settings that come with it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = %s", [name])
        [[count]] = cursor.fetchall()
        settings = "plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_bitmapscan = off"
        cursor.execute(";".join(f"SET {one}" for one in settings))
        given = f"({', '.join(['NULL'] * count)})" if count else ""
        cursor.execute(f'EXPLAIN (FORMAT JSON) EXECUTE "{name}" {given}')
        [[plan]] = cursor.fetchall()
        cursor.execute("RESET ALL")
    plan = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    return {(one["Node Type"], one["Relation Name"]) for one in nodes(plan) if "Relation Name" in one}


def test_a_connection_that_django_made_anew_is_looked_at_first(warm, things):
    fill(things, 1)
    connection.close()
    Topic.objects.count()

    assert prepared_claim(warm) is None
    warm._session.renew()
    lease = prepared_claim(warm)
    assert [event.value for event in lease.read().events] == [1]


def test_an_altered_log_is_planned_anew(warm, things):
    fill(things, 1)
    assert serve(warm) == 1
    topic_id = warm.subscription.topic_id
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE INDEX ON {log_table(topic_id)} (published_at)")
        cursor.execute("ANALYZE")
    fill(things, 2)
    lease = prepared_claim(warm)
    assert [event.value for event in lease.read().events] == [2]


def test_a_log_that_is_gone_is_left_to_the_claim_of_always(warm, things):
    fill(things, 1)
    table = warm._prepared.segment.table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO hidden")
    try:
        assert prepared_claim(warm) is None
        assert warm._prepared is None
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE hidden RENAME TO {table}")
    assert serve(warm) == 1


def test_settings_of_the_session_stay(warm, things):
    known = ("row_security", "plan_cache_mode", "enable_seqscan", "enable_bitmapscan", "jit", "synchronous_commit")
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'serializable'; SET plan_cache_mode = force_custom_plan")

    def shown():
        with connection.cursor() as cursor:
            found = []
            for name in (*known, "default_transaction_isolation"):
                cursor.execute(f"SHOW {name}")
                found.append(cursor.fetchone()[0])
        return found

    before = shown()
    fill(things, 1)
    assert prepared_claim(warm) is not None
    assert shown() == before


def test_statements_that_are_not_asked_for_are_given_up(things, make_consumer):
    session = SharedSession("default", most=2)
    other_topics = [make_consumer(things, handler=print, name=f"c{n}", types=[f"t{n}"]) for n in range(5)]
    servers = [server_of(one, session=session) for one in other_topics]
    fill(things, 1, type="t1")
    for server in servers:
        serve(server)
    fill(things, 2)
    for server in servers:
        assert prepared_claim(server) is not None
    assert len(names()) == 2


@pytest.mark.slow
@pytest.mark.requirement("S3")
def test_of_many_that_claim_at_once_one_gets_each_event(things, make_consumer):
    """In one snapshot of each, while others settle: the row's newest version says where a batch begins."""
    seen, over, errors = [], threading.Event(), []
    consumer = make_consumer(things, handler=lambda event: seen.append(event.value), batch_size=None)
    fill(things, "first")
    assert serve(server_of(consumer)) == 1

    def work():
        try:
            server = server_of(consumer)
            server._prepare(2)
            while not over.is_set() or Position.objects.get(pk=server.position_id).position < 101:
                if (lease := prepared_claim(server)) is not None:
                    server.serve(lease, BoundHandler(consumer), on_failure=log_failure(lease))
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(100):
        publish(things, n)
        transfer_all()
    over.set()
    for thread in threads:
        thread.join()

    assert errors == []
    assert seen == ["first", *range(100)]


@pytest.mark.slow
@pytest.mark.requirement("X6")
def test_a_worker_claims_by_it_and_asks_nothing_while_it_is_told(things, make_consumer):
    seen = []
    consumer = make_consumer(things, handler=lambda event: seen.append((event.value, time.monotonic())))
    with working(consumer) as pool:
        wait_until(lambda: pool.is_told, what="a worker that listens")
        for n in range(20):
            fill(things, n)
            wait_until(
                lambda n=n: position_of(consumer).position == n + 1 and not position_of(consumer).token, what=f"{n}"
            )
    assert [value for value, _ in seen] == list(range(20))


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_its_plan_is_by_index_though_it_was_made_for_empty_tables(warm, things, make_topic, make_consumer):
    fill(things, 1)
    assert serve(warm) == 1
    fill(things, *range(20_000))
    [name] = names()
    scans = prepared_scans(name)
    assert not any(kind in ("Seq Scan", "Bitmap Heap Scan") for kind, _ in scans)
    of_log = {table for _, table in scans if table.startswith(log_table(warm.subscription.topic_id))}
    assert of_log <= {warm._prepared.segment.table, log_table(warm.subscription.topic_id)}
    assert warm._prepared.segment.table in of_log
