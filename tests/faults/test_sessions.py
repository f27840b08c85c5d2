"""Sessions that stall, prepare, hold snapshots or write elsewhere: none of them loses an event or holds up others."""

import psycopg
import pytest
from django.db import connection

from django_events import Draft, publish, publish_many, sql
from django_events.log.mark import SQL as MARK_SQL
from django_events.log.pending import SQL as PENDING_SQL
from django_events.log.transfer import Transfer
from django_events.models import Topic
from tests.support.fix_topics import assert_dense, log_values, transfer_all
from tests.support.processes import Processes

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.quick]

COPY = "COPY django_events_bufferedevent (topic_id, value) FROM STDIN"


def move(worker: Transfer) -> int:
    """Move as if a second had passed since the worker last asked who may still commit."""
    worker._final._noted_at = 0.0
    return worker.move()


@pytest.mark.requirement("E4")
def test_a_copy_that_stalls_after_taking_its_ids(connect, things):
    topic_id = Topic.objects.get(name="things").pk
    stalled = connect()
    worker = Transfer("default")
    with stalled.cursor() as cursor, cursor.copy(COPY) as copy:
        for i in range(5_000):  # enough for the server to have taken ids for the first of them
            copy.write_row((topic_id, f'"copied {i}"'))
        for i in range(20):
            publish(things, f"meanwhile {i}")
            move(worker)
        assert log_values(things) == [f"meanwhile {i}" for i in range(20)]
    stalled.commit()
    move(worker)

    assert log_values(things)[20:] == [f"copied {i}" for i in range(5_000)]
    assert_dense(things)


@pytest.mark.slow
@pytest.mark.requirement("E4")
def test_a_prepared_transaction_is_waited_for_and_holds_up_no_other_event(processes: Processes):
    def log() -> list[str]:
        assert processes.run("run_transfer", "--once").returncode == 0
        rows = other.execute("SELECT value #>> '{}' FROM django_events_event ORDER BY id").fetchall()
        other.commit()
        return [value for (value,) in rows]

    with psycopg.connect(processes.url) as one, psycopg.connect(processes.url) as other:
        one.execute("SELECT django_events_publish('stock', '\"prepared\"')")
        one.execute("PREPARE TRANSACTION 'kept'")
        one.commit()
        other.execute("SELECT django_events_publish('stock', '\"meanwhile\"')")
        other.commit()
        assert log() == ["meanwhile"]
        one.autocommit = True
        one.execute("COMMIT PREPARED 'kept'")

        assert log() == ["meanwhile", "prepared"]


@pytest.mark.requirement("E4")
def test_a_prepared_transaction_holds_the_mark_of_a_worker_that_goes_on(fault_server):
    """Its lock on the buffer is listed under the same name before and after, so the mark stays below its ids."""
    statement = MARK_SQL.writers.text
    with psycopg.connect(fault_server.url, autocommit=True) as one, psycopg.connect(fault_server.url) as other:
        one.execute("DROP TABLE IF EXISTS django_events_bufferedevent")
        one.execute("CREATE TABLE django_events_bufferedevent (id int)")
        other.execute("INSERT INTO django_events_bufferedevent VALUES (1)")
        [[while_open, counts_since]] = one.execute(statement)
        other.execute("PREPARE TRANSACTION 'kept'")
        [[while_prepared, still]] = one.execute(statement)
        one.execute("COMMIT PREPARED 'kept'")
        [[afterwards, _]] = one.execute(statement)
        one.execute("DROP TABLE django_events_bufferedevent")

    assert len(while_open) == 1
    assert while_prepared == while_open
    assert still == counts_since
    assert afterwards == []


@pytest.mark.requirement("E4")
def test_an_open_transaction_holds_up_no_event_of_others(connect, things):
    idle = connect()
    idle.publish(things, "in no hurry")
    worker = Transfer("default")
    for i in range(10):
        publish(things, i)
        assert move(worker) == 1
    idle.commit()
    move(worker)

    assert log_values(things) == [*range(10), "in no hurry"]


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_callers_of_every_isolation_level_publish(connect, things, isolation):
    one, two = connect(), connect()
    for session in (one, two):
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        session.execute("SELECT count(*) FROM django_events_topic")  # its snapshot is taken here
    publish(things, "in between")
    transfer_all()
    one.publish(things, "one")
    two.publish(things, "two")
    two.commit()
    transfer_all()
    one.commit()
    transfer_all()

    assert log_values(things) == ["in between", "two", "one"]


@pytest.mark.slow
@pytest.mark.requirement("X4")
def test_an_old_snapshot_does_not_make_the_transfer_walk_over_what_it_moved(connect, things):
    """What it reads is counted in pages of the buffer, by the server, not in seconds."""
    old = connect()
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT count(*) FROM django_events_bufferedevent")
    worker = Transfer("default", batch_size=1_000)
    publish_many(things, [Draft(value=i) for i in range(1_000)])
    move(worker)
    at_first = pages_of_a_look(worker)
    for _ in range(20):
        publish_many(things, [Draft(value=i) for i in range(1_000)])
        move(worker)
    move(worker)
    with_marks = pages_of_a_look(worker)
    without = pages_of_a_look(Transfer("default", batch_size=1_000))

    assert with_marks <= at_first + 10
    assert without > 10 * with_marks  # the old snapshot does keep what was moved
    assert old.execute("SELECT count(*) FROM django_events_bufferedevent").fetchone() == (0,)


def pages_of_a_look(worker: Transfer) -> int:
    publish_many("things", [Draft(value="look")])
    with sql.batch("default"), connection.cursor() as cursor:
        cursor.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {PENDING_SQL.pending.text}",
            {
                "topic_ids": list(worker._known),
                "marks": [known.mark for known in worker._known.values()],
                "only": None,
                "batch_size": 1_000,
                "scheduled_from": worker.schedule.asked(),
                "clocks": [],
            },
        )
        [[plan]] = cursor.fetchall()
    move(worker)
    return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
