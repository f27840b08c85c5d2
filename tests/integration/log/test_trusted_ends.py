"""Batches of many topics: where their logs end is not read as long as this transfer is the only one that writes."""

import threading
from contextlib import contextmanager

import pytest
from django.db import DatabaseError, connection, connections, transaction

from django_events import Draft, publish_many, sql
from django_events.log import ends, transfer
from django_events.log.ends import FEW
from django_events.log.segments import segments
from django_events.log.transfer import Transfer
from django_events.models import BufferedEvent, Event, Topic, TopicHead
from tests.support.fix_topics import assert_dense, log_values, transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def topics(make_topic):
    """One more than are always looked into; one of them has partitions."""
    return [make_topic("parts", partitions=3), *(make_topic(f"many{n}", segment_size=100) for n in range(FEW))]


def publish_all(topics, value) -> None:
    for topic in topics:
        publish_many(topic, [Draft(value=value, key=f"key {n}") for n in range(3)])


def values(*each):
    return [value for value in each for _ in range(3)]


@contextmanager
def reads():
    """The statements that read the ends of logs; none may fail, but for those that meet another transfer."""
    read = []

    def see(execute, statement, parameters, many, context):
        if "AS last ON true" in statement:
            read.append(statement)
        try:
            return execute(statement, parameters, many, context)
        except DatabaseError as error:
            assert sql.kind_of(error) is sql.ErrorKind.DUPLICATE
            raise

    with connection.execute_wrapper(see):
        yield read


def knowing(topics) -> Transfer:
    """A transfer that has read the ends of these logs and has written behind them."""
    worker = Transfer("default")
    for value in ("first", "second"):
        publish_all(topics, value)
        assert worker.move() == 3 * len(topics)
    return worker


@pytest.mark.slow
def test_they_are_read_once(topics):
    worker = Transfer("default")
    with reads() as read:
        for round in range(5):
            publish_all(topics, round)
            assert worker.move() == 3 * len(topics)
    assert len(read) == 1
    for topic in topics:
        assert log_values(topic) == values(*range(5))
        assert_dense(topic)


@pytest.mark.slow
@pytest.mark.parametrize("why", ["few", "later"])
def test_they_are_read_where_it_costs_little_and_again_after_a_while(topics, monkeypatch, why):
    if why == "few":
        topics = topics[:FEW]
    else:
        monkeypatch.setattr(ends, "TRUSTED_FOR", 0.0)
    with reads() as read:
        knowing(topics)
    assert len(read) == 2


@pytest.mark.slow
@pytest.mark.requirement("E1", "E4")
def test_what_another_transfer_wrote_is_met_at_the_primary_key_and_read(topics):
    worker = knowing(topics)
    publish_all(topics[1:3], "theirs")
    assert transfer_all() == 6
    publish_all(topics, "mine")

    with reads() as read:
        assert worker.move() == 3 * len(topics)
        publish_all(topics, "again")
        assert worker.move() == 3 * len(topics)
    assert len(read) == 2  # where another one writes, they are read for a while
    for topic in topics:
        theirs = ["theirs"] if topic in topics[1:3] else []
        assert log_values(topic) == values("first", "second", *theirs, "mine", "again")
        assert_dense(topic)


@pytest.mark.slow
@pytest.mark.requirement("E1", "E4")
def test_what_another_transfer_wrote_and_retention_dropped_is_told_by_the_floor(topics):
    """No primary key speaks of an event that is gone."""
    worker = knowing(topics)
    topic = topics[1]
    publish_many(topic, [Draft(value="theirs") for _ in range(150)])
    transfer_all()
    row = Topic.objects.get(name=topic.name)
    oldest = segments("default", row.pk)[0]
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {oldest.table}")
    TopicHead.objects.filter(topic=row).update(id_floor=100, number_floors=[100])
    publish_all(topics, "mine")
    with reads() as read:
        while worker.move():
            pass

    assert len(read) == 2
    assert Event.objects.since(topic).last().id == 159
    assert log_values(topic) == ["theirs"] * 56 + ["mine"] * 3
    assert log_values(topics[2]) == values("first", "second", "mine")


@pytest.mark.slow
def test_a_topic_that_another_session_keeps_is_left_and_its_end_is_read(topics, connect):
    worker = knowing(topics)
    other = connect()
    other.execute(
        "SELECT FROM django_events_topichead AS h JOIN django_events_topic AS t ON t.id = h.topic_id"
        " WHERE t.name = 'many0' FOR UPDATE OF h"
    )
    publish_all(topics, "mine")
    assert worker.move() == 3 * FEW
    other.rollback()
    publish_all(topics, "again")
    with reads() as read:
        assert worker.move() == 3 * len(topics) + 3
    [statement] = read
    assert statement.count("AS last ON true") == 1
    for topic in topics:
        assert log_values(topic) == values("first", "second", "mine", "again")
        assert_dense(topic)


@pytest.mark.slow
def test_a_topic_of_other_partitions_is_read(topics):
    worker = knowing(topics)
    Topic.objects.filter(name="parts").update(partitions=2)
    publish_all(topics, "mine")
    with reads() as read:
        worker.move()
    [statement] = read
    assert statement.count("AS last ON true") == 1
    assert set(Event.objects.since(topics[0]).values_list("partition", flat=True).filter(value="mine")) <= {0, 1}


@pytest.mark.slow
def test_what_a_caller_rolls_back_was_never_written(topics):
    worker = knowing(topics)
    publish_all(topics, "mine")
    with transaction.atomic():
        assert worker.move() == 3 * len(topics)
        transaction.set_rollback(True)
    while worker.move():
        pass
    for topic in topics:
        assert log_values(topic) == values("first", "second", "mine")
        assert_dense(topic)


@pytest.mark.slow
def test_a_rule_of_the_site_that_refuses_a_duplicate_stops_its_topic_alone(topics):
    worker = knowing(topics)
    row = Topic.objects.get(name=topics[1].name)
    publish_all(topics, "mine")
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE UNIQUE INDEX ON {segments('default', row.pk)[0].table} (topic_id) WHERE value = '\"mine\"'"
        )
    worker.move()

    assert row.pk in worker.setbacks
    assert log_values(topics[1]) == values("first", "second")
    for topic in [topics[0], *topics[2:]]:
        assert log_values(topic) == values("first", "second", "mine")


@pytest.mark.slow
def test_very_many_ends_leave_no_locks_to_the_batch(topics, monkeypatch):
    monkeypatch.setattr(transfer, "TOPICS_AT_ONCE", 2)
    worker = Transfer("default")
    with reads() as read:
        publish_all(topics, 1)
        worker.move()
        assert len(read) == 3
        publish_all(topics, 2)
        worker.move()  # all in one, for they are trusted
        assert len(read) == 3
        publish_all(topics[:1], "theirs")
        transfer_all()
        publish_all(topics, 3)
        read.clear()
        worker.move()
        assert len(read) == 3
    assert log_values(topics[0]) == values(1, 2, "theirs", 3)
    assert_dense(topics[0])


@pytest.mark.slow
@pytest.mark.requirement("E1", "E4", "E5")
def test_four_transfers_of_a_flow_in_many_topics_stay_dense(topics, monkeypatch):
    """They trust again at once, so they meet all the time."""
    monkeypatch.setattr(ends, "DOUBTED_FOR", 0.0)
    over, errors, met = threading.Event(), [], []

    def run() -> None:
        worker = Transfer("default", batch_size=200)
        try:
            while not over.is_set() or BufferedEvent.objects.exists():
                worker.move()
            met.append(sum(known.met_at is not None for known in worker._known.values()))
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(60):
        publish_all(topics, n)
    over.set()
    for thread in threads:
        thread.join()

    assert not errors
    assert sum(met)
    for topic in topics:
        assert log_values(topic) == values(*range(60))
        assert_dense(topic)


@pytest.mark.slow
def test_the_kind_of_error_that_says_so(topics):
    knowing(topics)
    event = Event.objects.since(topics[1]).first()
    with pytest.raises(Exception) as refused, transaction.atomic():
        Event.objects.bulk_create([event])
    assert sql.kind_of(refused.value) is sql.ErrorKind.DUPLICATE
