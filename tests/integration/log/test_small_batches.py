"""Small batches: what a publisher has named is moved by one prepared statement, or left to a full look."""

import json
import threading
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_events import Draft, publish, publish_many, sql
from django_events.log.segments import segments
from django_events.log.small_batches import MOST
from django_events.log.transfer import FEW_TOPICS, Transfer
from django_events.models import BufferedEvent, Event, Topic, TopicHead
from django_events.sql import prepared
from django_events.statements import log_table
from django_events.workers.loop import connect_for_work
from tests.plans.test_plans import nodes
from tests.support.fix_topics import assert_dense, log_values, transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")

NOTHING = (0, False)


def transfer_of(using: str) -> Transfer:
    """A transfer as its worker has it: on a connection of its own, after a full look."""
    connect_for_work(using)
    worker = Transfer(using)
    worker.session = prepared.begin(using, {**sql.BATCH_SETTINGS, **sql.vanishing()})
    worker.move()
    return worker


@pytest.fixture
def worker() -> Iterator[Transfer]:
    yield transfer_of("default")
    connection.close()  # with its settings


def id_of(topic) -> int:
    return Topic.objects.get(name=topic.name).pk


def warm_up(worker: Transfer, topic) -> int:
    """Let the transfer know where the log of a topic ends; returns the topic's id."""
    publish(topic, "first")
    worker.move()
    return id_of(topic)


@pytest.mark.slow
@pytest.mark.requirement("E1", "E4")
@pytest.mark.parametrize("partitions", [1, 8])
def test_events_go_where_a_large_batch_takes_them(worker, make_topic, partitions):
    small, large = make_topic("small", partitions=partitions), make_topic("large", partitions=partitions)
    drafts = [Draft(value=n, key=str(n % 7), type="made", metadata={"n": n}) for n in range(40)]
    drafts += [Draft(value=n, partition=n % partitions) for n in range(10)] + [Draft(body=b"\0")]
    for topic in (small, large):
        publish(topic, "first", key="a")
    worker.move()
    for start in range(0, len(drafts), 5):
        for topic in (small, large):
            publish_many(topic, drafts[start : start + 5])
        assert worker.move_few([id_of(small)]) == (min(5, len(drafts) - start), True)
        worker.move()

    columns = ("id", "partition", "number", "type", "key", "value", "body", "metadata")
    keyed = [list(Event.objects.of(topic).exclude(key=None).values_list(*columns)) for topic in (small, large)]
    assert keyed[0] == keyed[1] != []
    for topic in (small, large):
        assert_dense(topic)
        assert Event.objects.of(topic).count() == len(drafts) + 1
    assert not BufferedEvent.objects.exists()


def test_a_topic_that_the_transfer_does_not_know_is_looked_at(worker, things):
    publish(things, 1)
    assert worker.move_few([id_of(things)]) == NOTHING
    assert worker.move_few([4711]) == NOTHING
    assert worker.move() == 1


def test_what_waits_for_a_mirror_is_left_to_its_source(worker, things):
    topic_id = warm_up(worker, things)
    publish(things, "late")
    Topic.objects.filter(pk=topic_id).update(mirror_of="shop things")
    assert worker.move_few([topic_id]) == NOTHING
    assert worker.move() == 0
    Topic.objects.filter(pk=topic_id).update(mirror_of="")
    assert worker.move_few([topic_id]) == (1, True)
    assert log_values(things) == ["first", "late"]


@pytest.mark.slow
def test_many_topics_are_moved_together(worker, make_topic):
    topics = [make_topic(f"things.{n}") for n in range(FEW_TOPICS + 1)]
    for value in ("first", "second"):
        worker.move()
        for topic in topics:
            publish(topic, value)

    assert worker.move_few([id_of(topic) for topic in topics]) == NOTHING
    assert worker.move_few([id_of(topic) for topic in topics[1:]]) == (FEW_TOPICS, True)
    assert worker.move() == 1


@pytest.mark.slow
def test_no_more_than_a_small_batch_takes(worker, things):
    topic_id = warm_up(worker, things)
    publish_many(things, [Draft(value=n) for n in range(MOST + 1)])

    assert worker.move_few([topic_id]) == (MOST, False)
    assert worker.move_few([topic_id]) == (1, True)
    assert log_values(things) == ["first", *range(MOST + 1)]


@pytest.mark.long
def test_segments_are_made_by_a_full_look(worker, make_topic):
    things = make_topic("things", segment_size=2 * MOST)
    topic_id, small = warm_up(worker, things), 0
    for n in range(5 * MOST):
        publish(things, n)
        moved, complete = worker.move_few([topic_id])
        small += moved
        assert complete or worker.move() == 1

    assert log_values(things) == ["first", *range(5 * MOST)]
    assert_dense(things)
    assert len(segments("default", topic_id)) >= 3
    assert small > MOST


@pytest.mark.slow
def test_what_another_transfer_has_moved_is_found_by_a_full_look(worker, things):
    topic_id = warm_up(worker, things)
    publish(things, 1)
    transfer_all()
    publish(things, 2)

    assert worker.move_few([topic_id]) == NOTHING
    assert worker.move() == 1
    publish(things, 3)
    assert worker.move_few([topic_id]) == (1, True)
    assert log_values(things) == ["first", 1, 2, 3]


@pytest.mark.slow
def test_a_topic_that_another_transfer_has_locked_is_left(worker, things, connect):
    topic_id = warm_up(worker, things)
    publish(things, 1)
    other = connect()
    other.execute("SELECT FROM django_events_topichead FOR UPDATE")

    assert worker.move_few([topic_id]) == NOTHING
    other.rollback()
    assert worker.move_few([topic_id]) == (1, True)


@pytest.mark.slow
def test_of_two_that_take_the_same_ids_the_primary_key_refuses_the_second(worker, things, connect):
    """The end of the log is read before the topic's lock is taken: what came in between is met at the insert."""
    topic_id = warm_up(worker, things)
    ticket = publish(things, "mine").ticket
    other, done = connect(), []
    other.execute("SELECT FROM django_events_bufferedevent WHERE id = %s FOR UPDATE", [ticket])

    def move() -> None:
        mine = transfer_of_thread()
        done.append(mine.move_few([topic_id]))
        connection.close()

    def transfer_of_thread() -> Transfer:
        connect_for_work("default")
        mine = Transfer("default")
        mine.session = prepared.begin("default", {**sql.BATCH_SETTINGS, "lock_timeout": "0"})
        mine._looks._fingerprint = worker._looks._fingerprint
        mine._known.update(worker._known)
        return mine

    thread = threading.Thread(target=move)
    thread.start()
    try:
        with connection.cursor() as cursor:
            wait_until(lambda: waiting(cursor) == 1, what="a small batch that waits for the row")
        other.execute(
            "INSERT INTO django_events_event"
            " (topic_id, id, partition, number, type, value, metadata, published_at, logged_at)"
            " VALUES (%s, 2, 0, 2, '', to_jsonb('theirs'::text), '{}', now(), now())",
            [topic_id],
        )
        other.commit()
    finally:
        other.rollback()
        thread.join()

    assert done == [NOTHING]
    assert log_values(things) == ["first", "theirs"]
    assert BufferedEvent.objects.count() == 1
    assert transfer_all() == 1
    assert log_values(things) == ["first", "theirs", "mine"]
    assert_dense(things)


def waiting(cursor) -> int:
    cursor.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
    )
    [[count]] = cursor.fetchall()
    return count


@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE django_events_bufferedevent RESTART IDENTITY",
        "UPDATE django_events_topic SET incarnation = gen_random_uuid()",
        "UPDATE django_events_topichead SET id_floor = 7",
    ],
)
def test_what_is_not_as_it_was_is_looked_at(worker, things, change):
    topic_id = warm_up(worker, things)
    for n in range(3):
        publish(things, n)
        assert worker.move_few([topic_id]) == (1, True)
    with connection.cursor() as cursor:
        cursor.execute(change)
    publish(things, "later")

    assert worker.move_few([topic_id]) == NOTHING
    assert not Event.objects.filter(value="later").exists()
    worker.move()
    assert log_values(things)[-1] == "later"


@pytest.mark.slow
def test_a_log_that_was_rewritten_by_hand_is_looked_at(worker, things, connect):
    topic_id = warm_up(worker, things)
    publish(things, 1)
    worker.move()
    other = connect(autocommit=True)
    other.execute("SET session_replication_role = replica")  # or triggers refuse it
    other.execute("DELETE FROM django_events_event WHERE id = 2")
    publish(things, 2)

    assert worker.move_few([topic_id]) == NOTHING


@pytest.mark.slow
def test_an_error_of_the_log_is_left_to_a_full_look(worker, things):
    topic_id = warm_up(worker, things)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE django_events_event_{topic_id} ADD CONSTRAINT few CHECK (type <> 'bad')")
    publish(things, 1, type="bad")

    assert worker.move_few([topic_id]) == NOTHING
    assert worker.move() == 0
    assert topic_id in worker.setbacks
    assert worker.move_few([topic_id]) == NOTHING
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE django_events_event_{topic_id} DROP CONSTRAINT few")


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["closed", "forgotten"])
def test_a_connection_that_is_not_the_prepared_one_is_for_full_looks(worker, things, ended):
    topic_id = warm_up(worker, things)
    publish(things, 1)
    assert worker.move_few([topic_id]) == (1, True)
    publish(things, 2)
    if ended == "closed":
        connection.close()
    else:
        with connection.cursor() as cursor:
            cursor.connection.pgconn.exec_(b"DEALLOCATE ALL")  # behind psycopg's back, which would prepare it again
    TopicHead.objects.count()  # Django connects anew without a word

    assert worker.move_few([topic_id]) == NOTHING
    assert not worker.session.is_good
    assert worker.move() == 1
    assert log_values(things) == ["first", 1, 2]


@pytest.mark.slow
def test_a_transaction_of_the_caller_is_not_used(worker, things):
    topic_id = warm_up(worker, things)
    publish(things, 1)
    with transaction.atomic():
        assert worker.move_few([topic_id]) == NOTHING


def test_no_statement_is_prepared_on_a_connection_of_a_pool(other_alias):
    pooled = connections[other_alias]
    pooled.settings_dict["OPTIONS"] = {**pooled.settings_dict.get("OPTIONS", {}), "pool": {"min_size": 1}}
    pooled.ensure_connection()
    try:
        assert prepared.begin(other_alias, sql.BATCH_SETTINGS) is None
    finally:
        pooled.close()
        pooled.close_pool()


@pytest.mark.slow
@pytest.mark.requirement("E1", "E4")
def test_two_transfers_that_are_told_of_the_same_topic_keep_it_dense(worker, make_topic):
    """Each is named everything, and meets what the other one has done in between."""
    things = make_topic("things", partitions=3)
    topic_id = warm_up(worker, things)
    over, errors, small = threading.Event(), [], []

    def move() -> None:
        try:
            mine = transfer_of("default")
            while not over.is_set() or BufferedEvent.objects.exists():
                moved, complete = mine.move_few([topic_id])
                small.append(moved)
                if not complete:
                    mine.move()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    def send(who: int) -> None:
        try:
            for n in range(150):
                publish(things, [who, n], key=str(who))
        finally:
            connection.close()

    movers = [threading.Thread(target=move) for _ in range(2)]
    senders = [threading.Thread(target=send, args=[who]) for who in range(3)]
    for thread in movers + senders:
        thread.start()
    for thread in senders:
        thread.join()
    over.set()
    for thread in movers:
        thread.join()

    assert errors == []
    assert_dense(things)
    values = [value for value in log_values(things) if value != "first"]
    assert len(values) == 450
    assert sum(small) > 0
    for who in range(3):
        assert [n for by, n in values if by == who] == list(range(150))


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_its_plan_is_by_index_though_it_was_made_for_empty_tables(worker, make_topic):
    other, things = make_topic("other"), make_topic("things", partitions=4)
    topic_id = warm_up(worker, things)
    publish(things, 1)
    assert worker.move_few([topic_id]) == (1, True)
    publish_many(other, [Draft(value=n) for n in range(5_000)])
    transfer_all()
    publish_many(other, [Draft(value=n) for n in range(20_000)])

    scans = prepared_scans("django_events_topichead")
    assert "Seq Scan" not in {kind for kind, _ in scans}
    assert {table for _, table in scans} >= {"django_events_bufferedevent", segments("default", topic_id)[0].table}
    assert not any(table.startswith(f"{log_table(id_of(other))}_") for _, table in scans)
    conditions = [one["Index Cond"] for one in prepared_nodes("django_events_topichead") if "Index Cond" in one]
    of_buffer = [one for one in conditions if "topic_id" in one and "id >" in one]
    assert len(of_buffer) == 2, conditions  # dead entries before the range are not walked over


def prepared_scans(about: str) -> set[tuple[str, str]]:
    """How the prepared statement about a table reads each table."""
    return {
        (node["Node Type"], node["Relation Name"])
        for node in prepared_nodes(about)
        if "Relation Name" in node and "Scan" in node["Node Type"]
    }


def prepared_nodes(about: str) -> list[dict[str, object]]:
    """The plan of the prepared statement about a table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE strpos(statement, %s) > 0",
            [about],
        )
        [[name, parameters]] = cursor.fetchall()
        cursor.execute(f'EXPLAIN (FORMAT JSON) EXECUTE "{name}" ({", ".join(["NULL"] * parameters)})')
        [[plan]] = cursor.fetchall()
    return list(nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))


def test_a_connection_that_is_lost_before_it_is_prepared_is_an_error_of_the_database(other_alias):
    """The loop of a worker tries again after those."""
    connections[other_alias].ensure_connection()
    pid = connections[other_alias].connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    with pytest.raises(OperationalError):
        prepared.begin(other_alias, sql.BATCH_SETTINGS)
