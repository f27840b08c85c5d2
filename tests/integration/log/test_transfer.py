"""The transfer: dense ids in the order of the commits, whatever the publishers do."""

import threading
import traceback
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, IntegrityError, ProgrammingError, connection, connections, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_events import Draft, publish, publish_many, sql
from django_events.log import channel, inventory, retention, transfer
from django_events.log.inventory import TOPICS_AT_ONCE
from django_events.log.segments import of_topics, segments
from django_events.log.transfer import Transfer
from django_events.models import BufferedEvent, Event, Topic, TopicHead
from django_events.observing import lag
from django_events.observing.lag import standings
from django_events.statements import log_table
from tests.support.fix_topics import assert_dense, log_values, transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.requirement("E4")
def test_a_late_commit_gets_the_higher_id(two_sessions, things):
    early, late = two_sessions
    early.publish(things, "assigned first, committed last")
    late.publish(things, "committed first")
    late.commit()
    transfer_all()
    early.commit()
    transfer_all()

    assert log_values(things) == ["committed first", "assigned first, committed last"]
    assert_dense(things)


@pytest.mark.slow
@pytest.mark.requirement("E4")
def test_a_worker_that_goes_on_sees_a_late_commit_too(two_sessions, things):
    """Its mark must not pass an id that can still commit, however often it moves meanwhile."""
    early, late = two_sessions
    worker = Transfer("default")
    early.publish(things, "late")
    for round in range(50):
        late.publish(things, f"round {round}")
        late.commit()
        worker._final._noted_at = 0.0  # as if a second had passed: ask who may still commit every time
        worker.move()
    early.commit()
    worker.move()

    assert log_values(things)[-1] == "late"
    assert len(log_values(things)) == 51
    assert_dense(things)


def test_the_mark_moves_up_when_no_writer_can_commit_below(two_sessions, things):
    one, idle = two_sessions
    idle.execute("CREATE TEMPORARY TABLE mine (id int); INSERT INTO mine VALUES (1)")  # an unrelated writer
    worker = Transfer("default")
    tickets = []
    for round in range(3):
        tickets.append(one.publish(things, f"round {round}"))
        one.commit()
        worker._final._noted_at = 0.0
        worker.move()
    worker.move()

    [known] = worker._known.values()
    assert known.mark == tickets[-1]


@pytest.mark.requirement("E4")
def test_savepoints_that_roll_back_leave_nothing(things):
    with transaction.atomic():
        publish(things, "kept")
        with pytest.raises(RuntimeError), transaction.atomic():
            publish(things, "dropped")
            raise RuntimeError
        publish(things, "kept too")
    transfer_all()

    assert log_values(things) == ["kept", "kept too"]
    assert_dense(things)


@pytest.mark.slow
@pytest.mark.requirement("E6")
def test_thirty_thousand_events_of_one_key_keep_their_order(lanes):
    for start in range(0, 30_000, 10_000):
        publish_many(lanes, [Draft(value=start + i, key="the one") for i in range(10_000)])
    transfer_all()

    assert log_values(lanes) == list(range(30_000))
    assert Event.objects.of(lanes).values("partition").distinct().count() == 1
    assert_dense(lanes)


@pytest.mark.requirement("E6")
def test_a_row_inserted_by_plain_sql_is_moved(things):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_bufferedevent (topic_id, value, partition)"
            " SELECT id, '\"by hand\"', 17 FROM django_events_topic WHERE name = 'things'"
        )
    transfer_all()

    event = Event.objects.at(things, 1)
    assert (event.value, event.partition, event.type, event.metadata) == ("by hand", 0, "", {})


@pytest.mark.requirement("E6")
def test_a_quiet_topic_waits_one_batch_of_each_other_topic_at_most(make_topic):
    flooded, also_flooded, quiet = (make_topic(name) for name in ("flood", "flood2", "quiet"))
    for topic in (flooded, also_flooded):
        publish_many(topic, [Draft(value=i) for i in range(1_000)])
    worker = Transfer("default", batch_size=100)
    publish(quiet, "here")
    worker.move()

    assert log_values(quiet) == ["here"]
    assert Event.objects.of(flooded).count() <= 100
    assert Event.objects.of(also_flooded).count() <= 100


def test_a_batch_is_bounded(things):
    publish_many(things, [Draft(value=i) for i in range(25)])
    worker = Transfer("default", batch_size=10)

    assert [worker.move(), worker.move(), worker.move(), worker.move()] == [10, 10, 5, 0]
    assert log_values(things) == list(range(25))


def test_the_turns_end_when_asked(make_topic):
    for name in ("one", "two"):
        publish_many(make_topic(name), [Draft(value=i) for i in range(50)])

    assert Transfer("default", batch_size=10).move(until=lambda: True) == 10


@pytest.mark.requirement("X3")
def test_topics_that_share_a_batch_are_numbered_on_their_own(make_topic):
    topics = [make_topic(f"topic{i}", partitions=i + 1) for i in range(5)]
    for round in range(3):
        for i, topic in enumerate(topics):
            publish_many(topic, [Draft(value=[round, n], key=str(n % 7)) for n in range(i * 5 + 1)])
        transfer_all()
    for i, topic in enumerate(topics):
        assert Event.objects.of(topic).count() == 3 * (i * 5 + 1)
        assert_dense(topic)


def test_segments_are_made_ahead_and_a_burst_past_the_last_one_fits(make_topic):
    topic = make_topic("short", segment_size=100)
    topic_id = Topic.objects.get(name="short").pk
    publish_many(topic, [Draft(value=i) for i in range(1_234)])
    transfer_all(batch_size=500)

    assert log_values(topic) == list(range(1_234))
    bounds = [(segment.first, segment.end) for segment in segments("default", topic_id)]
    assert bounds == [(first, first + 100) for first in range(1, 1_302, 100)]


def test_a_segment_that_is_missing_is_made_again(make_topic):
    """A session dropped the empty ones while a worker remembers them."""
    topic = make_topic("short", segment_size=100)
    topic_id = Topic.objects.get(name="short").pk
    worker = Transfer("default")
    publish(topic, "first")
    worker.move()
    for segment in segments("default", topic_id)[1:]:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {segment.table}")
    publish_many(topic, [Draft(value=i) for i in range(150)])
    worker.move()

    assert log_values(topic) == ["first", *range(150)]
    assert_dense(topic)


def test_ids_and_numbers_go_on_after_dropped_segments(make_topic):
    """What retention leaves behind: floors for what the log can't tell any more."""
    topic = make_topic("short", segment_size=100, partitions=2)
    row = Topic.objects.get(name="short")
    publish_many(topic, [Draft(value=i, partition=i % 2) for i in range(10)])
    transfer_all()
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {segments('default', row.pk)[0].table}")
    TopicHead.objects.filter(topic=row).update(id_floor=10, number_floors=[5, 5])
    publish_many(topic, [Draft(value="next", partition=1)])
    transfer_all()

    [event] = Event.objects.since(topic)
    assert (event.id, event.partition, event.number) == (11, 1, 6)


@pytest.mark.slow
def test_a_worker_notices_that_the_topics_were_made_anew(make_topic):
    """A flush that restarts the sequence gives events ids that its marks have passed."""
    topic = make_topic("things")
    worker = Transfer("default")
    for i in range(5):
        publish(topic, i)
        worker._final._noted_at = 0.0
        worker.move()
    worker.move()
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE django_events_topic, django_events_topichead, django_events_bufferedevent,"
            " django_events_event RESTART IDENTITY CASCADE"
        )
    from django_events.log.topics import sync

    sync("default")
    publish(topic, "after the flush")
    worker.move()

    assert log_values(topic) == ["after the flush"]


def test_a_topic_that_is_dropped_between_look_and_move_harms_no_other(make_topic, connect, monkeypatch):
    gone, stays = make_topic("gone"), make_topic("stays")
    row = Topic.objects.get(name="gone")
    worker = Transfer("default")
    for topic in (gone, stays):
        publish(topic, 1)
    worker.move()
    for topic in (gone, stays):
        publish(topic, 2)
    fits = Transfer._fits_one_batch

    def drop(transfer, pending):
        monkeypatch.setattr(Transfer, "_fits_one_batch", fits)
        with connect(autocommit=True) as other:
            other.execute("DELETE FROM django_events_bufferedevent WHERE topic_id = %s", [row.pk])
            other.execute(f"DROP TABLE {log_table(row.pk)}")
            other.execute("DELETE FROM django_events_topichead WHERE topic_id = %s", [row.pk])
            other.execute("DELETE FROM django_events_topic WHERE id = %s", [row.pk])
        return fits(transfer, pending)

    monkeypatch.setattr(Transfer, "_fits_one_batch", drop)
    assert worker.move() == 1
    assert log_values(stays) == [1, 2]


def test_a_table_that_stays_missing_is_named(make_topic):
    """A log that is gone is looked for once more; something else that is missing is a mistake."""
    topic = make_topic("things")
    log = log_table(Topic.objects.get(name="things").pk)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN INSERT INTO nowhere VALUES (1); RETURN NEW; END'"
        )
        cursor.execute(f"CREATE TRIGGER audit AFTER INSERT ON {log} FOR EACH ROW EXECUTE FUNCTION audit()")
    try:
        publish(topic, 1)
        with pytest.raises(ProgrammingError, match='relation "nowhere" does not exist'):
            transfer_all()
        assert BufferedEvent.objects.count() == 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION audit CASCADE")


@pytest.mark.parametrize(
    ("rule", "refusal"),
    [
        ("ALTER TABLE {log} ADD CONSTRAINT no_secrets CHECK (value->>'name' <> 'secret')", "no_secrets"),
        ("ALTER TABLE {log} ALTER key SET NOT NULL", 'null value in column "key"'),
        (
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.value->>'name' = 'secret' "
            "THEN RAISE 'refused here' USING ERRCODE = 'check_violation'; END IF; RETURN NEW; END $$; "
            "CREATE TRIGGER refuse BEFORE INSERT ON {log} FOR EACH ROW EXECUTE FUNCTION refuse()",
            "refused here",
        ),
    ],
    ids=["CHECK", "NOT NULL", "trigger"],
)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside others"])
def test_what_a_rule_of_the_site_refuses_is_raised_and_stays_and_others_go_on(make_topic, rule, refusal, alone):
    """It isn't taken for a segment that is missing, which has the same SQLSTATE and is looked for again and again."""
    strict, free = make_topic("strict"), make_topic("free")
    log = log_table(Topic.objects.get(name="strict").pk)
    with connection.cursor() as cursor:
        cursor.execute(rule.format(log=log))
    try:
        publish(strict, {"name": "secret"})
        if not alone:
            publish_many(free, [Draft(value=n) for n in range(3)])
        for worker in (Transfer("default"), Transfer("default", batch_size=1)):
            worker.move()
            with pytest.raises(DatabaseError, match=refusal) as raised:
                worker.setbacks.raise_first()
            assert "Failing row" not in "".join(traceback.format_exception(raised.value))
        assert log_values(free) == ([] if alone else [0, 1, 2])
        assert BufferedEvent.objects.count() == 1
        with pytest.raises(CommandError, match=refusal):
            call_command("run_transfer", "--once")
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {log} DROP CONSTRAINT IF EXISTS no_secrets, ALTER key DROP NOT NULL")
            cursor.execute("DROP FUNCTION IF EXISTS refuse CASCADE")
    transfer_all()
    assert log_values(strict) == [{"name": "secret"}]
    assert_dense(strict)


def test_a_missing_segment_and_a_check_are_told_apart(make_topic):
    topic = make_topic("things")
    row = Topic.objects.get(name=topic.name)
    insert = (
        f"INSERT INTO {log_table(row.pk)} (topic_id, id, partition, number, type, metadata, value, published_at, "
        "logged_at) VALUES (%s, %s, 0, 1, '', '{}', '1', now(), now())"
    )
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {log_table(row.pk)} ADD CONSTRAINT small CHECK (id < 5)")
        with pytest.raises(IntegrityError) as missing:
            cursor.execute(insert, [row.pk, 2**40])
        with pytest.raises(IntegrityError) as refused:
            cursor.execute(insert, [row.pk, 7])
    assert sql.state(missing.value) == sql.state(refused.value) == "23514"
    assert sql.kind_of(missing.value) is sql.ErrorKind.NO_SEGMENT
    assert sql.kind_of(refused.value) is sql.ErrorKind.OTHER


def test_a_topic_that_is_being_written_is_left_to_its_writer(connect, make_topic):
    busy, free = make_topic("busy"), make_topic("free")
    publish(busy, 1)
    publish(free, 1)
    other = connect()
    worker = Transfer("default")
    worker.move()
    publish(busy, "later")
    publish(free, "later")
    other.execute(
        "SELECT FROM django_events_topichead h JOIN django_events_topic t ON t.id = h.topic_id"
        " WHERE t.name = 'busy' FOR UPDATE OF h"
    )

    assert worker.move() == 1
    assert log_values(free) == [1, "later"]
    other.rollback()
    assert worker.move() == 1
    assert log_values(busy)[-1] == "later"
    assert_dense(busy)


@pytest.mark.requirement("E5")
def test_eight_transfers_at_once_stay_dense(make_topic):
    """Threads here; processes in tests/acceptance."""
    topics = [make_topic(f"topic{i}", partitions=3) for i in range(4)]
    for topic in topics:
        publish_many(topic, [Draft(value=i, key=str(i % 10)) for i in range(2_000)])
    barrier = threading.Barrier(8)
    errors: list[BaseException] = []

    def run() -> None:
        worker = Transfer("default", batch_size=97)
        barrier.wait()
        try:
            while BufferedEvent.objects.exists():
                worker.move()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not errors
    for topic in topics:
        assert log_values(topic) == list(range(2_000))
        assert_dense(topic)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["publish", "savepoint", "commit", "rollback", "move"])),
        max_size=40,
    )
)
@pytest.mark.requirement("X3", "E4")
def test_the_log_holds_what_was_committed_in_an_order_that_readers_can_trust(connect, make_topic, steps):
    """Any interleaving of three sessions: nothing lost, nothing doubled, no event below one that was readable."""
    topic = make_topic("things")
    sessions = [connect() for _ in range(3)]
    open_values: list[list[str]] = [[], [], []]
    committed: set[str] = set()
    after: dict[str, set[str]] = {}
    worker = Transfer("default", batch_size=3)
    readable: list[str] = []
    counter = 0
    try:
        for who, what in steps:
            session = sessions[who]
            if what == "publish":
                counter += 1
                value = f"event {counter}"
                after[value] = set(committed)
                session.publish(topic, value)
                open_values[who].append(value)
            elif what == "savepoint":
                counter += 1
                session.execute("SAVEPOINT a")
                session.publish(topic, f"dropped {counter}")
                session.execute("ROLLBACK TO a")
            elif what == "commit":
                session.commit()
                committed |= set(open_values[who])
                open_values[who] = []
            elif what == "rollback":
                session.rollback()
                open_values[who] = []
            else:
                worker._final._noted_at = 0.0
                worker.move()
                now = log_values(topic)
                assert now[: len(readable)] == readable
                readable = now
        for who, session in enumerate(sessions):
            session.commit()
            committed |= set(open_values[who])
        while worker.move():
            pass
        log = log_values(topic)
        assert log[: len(readable)] == readable
        assert sorted(log) == sorted(committed)
        place = {value: i for i, value in enumerate(log)}
        for value in log:
            assert all(place[earlier] < place[value] for earlier in after[value])
        assert_dense(topic)
    finally:
        for session in sessions:
            session.close()
        from tests.support.fix_topics import drop_topics

        drop_topics(["things"])


def test_times_never_go_back_within_a_topic(things):
    publish(things, "now")
    transfer_all()
    future = Event.objects.at(things, 1).logged_at + timedelta(hours=1)
    with connection.cursor() as cursor:
        table = log_table(Topic.objects.get(name="things").pk)
        cursor.execute(f"UPDATE {table} SET logged_at = %s", [future])  # as if the clock had been set back since
    publish(things, "later")
    transfer_all()

    assert Event.objects.at(things, 2).logged_at == future


@pytest.mark.requirement("E6", "P3")
def test_a_transaction_that_commits_while_a_batch_is_on_its_way_keeps_its_order(connect, make_topic):
    """Its events lie on both sides of what was seen: none of them may overtake another."""
    for partitions in (1, 4):
        topic = make_topic(f"straddled{partitions}", partitions=partitions)
        straddling = connect()
        straddling.publish(topic, "first", key="k")
        publish(topic, "other 1")
        straddling.publish(topic, "second", key="k")
        publish(topic, "other 2")
        straddling.publish(topic, "third", key="k")
        worker = Transfer("default")
        turn = worker._look()
        straddling.commit()
        worker._take(turn)
        while worker.move():
            pass

        assert [v for v in log_values(topic) if not v.startswith("other")] == ["first", "second", "third"]
        assert_dense(topic)


@pytest.mark.slow
def test_a_flood_that_commits_while_a_batch_is_on_its_way_stays_within_the_batch(connect, make_topic):
    topic = make_topic("short", segment_size=100)
    late = connect()
    for i in range(500):
        late.publish(topic, f"late {i}")
    publish(topic, "seen")
    worker = Transfer("default", batch_size=50)
    turn = worker._look()
    late.commit()

    assert worker._take(turn) == 1
    while worker.move():
        pass
    assert log_values(topic) == [*(f"late {i}" for i in range(500)), "seen"]


@pytest.mark.slow
def test_another_transfer_that_fills_the_segments_is_no_failure(make_topic):
    topic = make_topic("short", segment_size=100)
    one, other = Transfer("default", batch_size=90), Transfer("default", batch_size=90)
    for start in range(0, 1_000, 50):
        publish_many(topic, [Draft(value=start + i) for i in range(50)])
        (one if start % 200 == 0 else other).move()
    transfer_all()

    assert log_values(topic) == list(range(1_000))
    assert_dense(topic)


LOCK_HEAD = (
    "SELECT FROM django_events_topichead h JOIN django_events_topic t ON t.id = h.topic_id"
    " WHERE t.name = %s FOR UPDATE OF h"
)


def test_a_head_that_a_session_holds_stops_no_other_topic(connect, make_topic):
    """A transfer that has just started, so that it needs room as well."""
    busy, free = make_topic("busy", segment_size=100), make_topic("free")
    publish_many(busy, [Draft(value=i) for i in range(450)])
    publish(free, 1)
    other = connect()
    other.execute(LOCK_HEAD, ["busy"])
    worker = Transfer("default")

    assert worker.move() == 1
    assert worker.left
    assert log_values(free) == [1]
    other.rollback()
    transfer_all()
    assert log_values(busy) == list(range(450))


@pytest.mark.slow
def test_a_lock_on_one_log_stops_no_other_topic(connect, make_topic, caplog):
    """As CREATE INDEX on a segment takes it, for as long as that lasts."""
    locked, free = make_topic("locked"), make_topic("free")
    topic_id = Topic.objects.get(name="locked").pk
    other = connect()
    other.execute(f"LOCK TABLE {segments('default', topic_id)[0].table} IN SHARE MODE")
    publish(locked, 1)
    publish(free, 1)
    worker = Transfer("default")

    assert worker.move() == 1
    assert worker.left
    assert "'locked' waits for a lock" in caplog.text
    other.rollback()
    assert worker.move() == 1
    assert not worker.left


@pytest.mark.slow
def test_a_transfer_that_starts_beside_an_exclusive_lock_on_one_log_stops_no_other_topic(connect, make_topic):
    """It doesn't know yet how much room there is, and looking waits for the holder of the lock."""
    locked, free = make_topic("locked"), make_topic("free")
    table = segments("default", Topic.objects.get(name="locked").pk)[0].table
    other = connect()
    other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    publish(locked, 1)
    publish(free, 1)
    worker = Transfer("default")

    assert worker.move() == 1
    assert worker.left
    other.rollback()
    assert worker.move() == 1
    assert not worker.left


@pytest.mark.slow
def test_what_is_attached_ahead_is_enough_while_the_log_is_locked_against_new_segments(connect, make_topic):
    topic = make_topic("short", segment_size=100)
    topic_id = Topic.objects.get(name="short").pk
    analyze = connect()
    analyze.execute(f"LOCK TABLE {log_table(topic_id)} IN SHARE UPDATE EXCLUSIVE MODE")
    worker = Transfer("default", batch_size=60)
    publish_many(topic, [Draft(value=i) for i in range(240)])
    while worker.move():
        pass

    assert log_values(topic) == list(range(180))  # two segments of 100: a third batch of 60 fits, a fourth doesn't
    assert worker.left
    analyze.rollback()
    worker.move()
    assert log_values(topic) == list(range(240))


@pytest.mark.parametrize("tables", ["django_events_bufferedevent", "django_events_event"])
def test_a_worker_survives_a_truncate_by_hand(things, tables):
    worker = Transfer("default")
    for i in range(5):
        publish(things, i)
        worker._final._noted_at = 0.0
        worker.move()
    worker.move()
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")
    publish(things, "afterwards")
    worker.move()

    assert log_values(things)[-1] == "afterwards"
    assert_dense(things)


def test_a_site_without_time_zones_keeps_times_in_order(settings, connect, things):
    """Local time goes back an hour in autumn; the log's time doesn't."""
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/Chicago"
    connection.close()
    try:
        publish(things, 1)
        transfer_all()
        table = log_table(Topic.objects.get(name="things").pk)
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET logged_at = '2050-11-06 06:30Z'")  # the second 1:30 of that night
        publish(things, 2)
        transfer_all()
        [(same,)] = connect(autocommit=True).execute(f"SELECT count(DISTINCT logged_at) = 1 FROM {table}").fetchall()
        assert same
    finally:
        connection.close()


@pytest.fixture
def reader(connect):
    """A session that is told when events come into the log."""
    session = connect(autocommit=True)
    session.execute(f"LISTEN {channel.LOG}")
    return session


def told(reader):
    """What was told since the last time. Notifications of earlier commits come before an answer."""
    reader.execute("SELECT 1")
    return [notify.payload for notify in reader.notifies(timeout=0)]


def test_readers_are_told_once_per_batch_which_partitions_got_events(make_topic, reader):
    one, two, _ = (make_topic(name, partitions=3) for name in ("one", "two", "silent"))
    ids = dict(Topic.objects.values_list("name", "id"))
    worker = Transfer("default", batch_size=30)
    assert worker.move() == 0
    assert told(reader) == []

    for topic in (two, one):
        publish_many(topic, [Draft(value=i, partition=partition) for i in range(5) for partition in (0, 2)])
    assert worker.move() == 20
    [payload] = told(reader)
    assert sorted(payload.split(",")) == sorted(
        f"{ids[name]}:{partition}" for name in ("one", "two") for partition in (0, 2)
    )

    publish_many(one, [Draft(value=i, partition=1) for i in range(60)])
    assert worker.move() + worker.move() == 60
    assert told(reader) == [f"{ids['one']}:1"] * 2
    assert worker.move() == 0
    assert told(reader) == []


def test_readers_are_told_nothing_of_a_batch_that_rolls_back(things, reader):
    publish(things, 1)
    with pytest.raises(RuntimeError), transaction.atomic():
        assert Transfer("default").move() == 1
        raise RuntimeError
    assert told(reader) == []

    transfer_all()
    assert len(told(reader)) == 1


def test_a_batch_of_very_many_topics_tells_readers_to_look_at_all(things, reader, monkeypatch):
    monkeypatch.setattr(channel, "LONGEST_PAYLOAD", 0)
    publish(things, 1)
    transfer_all()

    assert told(reader) == [""]


def test_the_longest_payload_is_one_that_the_server_takes(reader):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel.LOG, "1" * channel.LONGEST_PAYLOAD])
    assert told(reader) == ["1" * channel.LONGEST_PAYLOAD]


def locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
            " WHERE l.pid = pg_backend_pid() AND c.relname ~ '^django_events_event_[0-9]'"
        )
        [[count]] = cursor.fetchall()
    return int(count)


@pytest.mark.slow
@pytest.mark.requirement("E6")
def test_very_many_topics_share_batches_of_some(make_topic, monkeypatch):
    """Each topic costs some entries of the server's table of locks, until the batch ends."""
    monkeypatch.setattr(transfer, "TOPICS_AT_ONCE", 3)
    monkeypatch.setattr(transfer, "TRUSTED_AT_ONCE", 3)
    topics = [make_topic(f"many{n}") for n in range(8)]
    sizes = []
    move = Transfer._move_locked

    def counted(worker, pending):
        sizes.append(len(pending))
        return move(worker, pending)

    monkeypatch.setattr(Transfer, "_move_locked", counted)
    worker = Transfer("default")
    for round in range(2):
        for topic in topics:
            publish(topic, round)
        assert worker.move() == 8
    assert sizes == [3, 3, 2] * 2
    publish(topics[0], 2)
    for topic in topics[4:]:
        publish_many(topic, [Draft(value=n) for n in range(2_000)])
    while worker.move():
        pass
    assert max(sizes) == 3
    assert log_values(topics[0]) == [0, 1, 2]
    assert log_values(topics[7]) == [0, 1, *range(2_000)]


@pytest.mark.slow
def test_what_the_servers_table_of_locks_has_no_room_for_is_moved_one_by_one(make_topic, monkeypatch):
    topics = [make_topic(f"many{n}") for n in range(4)]
    move = Transfer._move_locked

    def crowded(worker, pending):
        if len(pending) > 1:
            with connection.cursor() as cursor:  # as the server says it
                cursor.execute("DO $$ BEGIN RAISE 'out of shared memory' USING ERRCODE = '53200'; END $$")
        return move(worker, pending)

    monkeypatch.setattr(Transfer, "_move_locked", crowded)
    for topic in topics:
        publish(topic, 1)
    worker = Transfer("default")
    assert worker.move() == 4
    assert worker._trusted_at_once == TOPICS_AT_ONCE


@pytest.mark.slow
def test_a_look_at_many_logs_leaves_no_locks_to_the_transaction_that_looks(make_topic, make_consumer, monkeypatch):
    """As doctor, maintenance and samples do it."""
    for module in (inventory, lag, retention):
        monkeypatch.setattr(module, "TOPICS_AT_ONCE", 2)
    for n in range(12):
        topic = make_topic(f"many{n}", retention_events=1)
        make_consumer(topic, name=f"reader{n}", handler=print)
        publish(topic, n)
    transfer_all()
    with transaction.atomic():
        rows = list(Topic.objects.select_related("head"))
        assert len(inventory.logs("default", rows)) == len(rows)
        retention.outlived_of("default", rows)
        retention.divisible("default", inventory.logs("default", rows), of_topics("default", [row.pk for row in rows]))
        assert standings("default")
        assert locks() == 0
