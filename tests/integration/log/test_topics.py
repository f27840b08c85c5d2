"""Topics: declared in code, made and adapted in the database, repaired when a part of them is gone."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from itertools import pairwise

import pytest
from django.apps import apps
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections, transaction
from django.test import override_settings
from psycopg import IsolationLevel

from django_events import Draft, declarations, publish, publish_many
from django_events.exceptions import Invalid, Refused
from django_events.log import segments
from django_events.log.topics import sync
from django_events.log.transfer import Transfer
from django_events.models import BufferedEvent, Event, Topic, TopicHead
from django_events.statements import log_table
from django_events.syncing import sync_after_migrate
from tests.support.fix_topics import assert_dense, drop_topics, log_values, transfer_all

committing = pytest.mark.usefixtures("transactional_db")
rolled_back = pytest.mark.django_db


@pytest.fixture
def redeclare(make_topic):
    """Change the declaration of a topic, as a deployment does, and migrate."""

    def redeclare_one(topic, **options):
        declarations.registry.discard(topic)
        return make_topic(topic.name, **options)

    return redeclare_one


@contextmanager
def declared(*names, **options):
    """Declare topics without making them."""
    topics = [declarations.topic(name, **options) for name in names]
    try:
        yield topics
    finally:
        for topic in topics:
            declarations.registry.discard(topic)


def row(topic):
    return Topic.objects.get(name=str(topic))


def everything():
    """All that a sync may change: rows, heads, tables and indexes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname, c.relkind, obj_description(c.oid, 'pg_class'), c.relispartition"
            " FROM pg_class AS c WHERE c.relname LIKE 'django\\_events\\_%' ORDER BY c.relname"
        )
        return cursor.fetchall(), list(Topic.objects.order_by("id").values()), list(TopicHead.objects.values())


def indexes(topic):
    """The columns of the indexes of a topic's log."""
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, log_table(row(topic).pk))
    return sorted(tuple(c["columns"]) for c in constraints.values() if c["index"] or c["primary_key"])


def wait_for_a_waiter(session):
    """Return when some session of the test's database waits for a lock."""
    for _ in range(100_000):
        [waiting] = session.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
        if waiting:
            return
    raise AssertionError("no session waits for a lock")


# Made


@rolled_back
@pytest.mark.requirement("E1")
def test_a_declared_topic_gets_its_row_its_head_and_its_log():
    with declared("invoices", partitions=3, retention=timedelta(days=30), segment_size=500, timeline=True) as [
        invoices
    ]:
        assert sync("default") == ["Topic invoices: created, 3 partitions."]

        made = row(invoices)
        assert (made.partitions, made.retention, made.segment_size, made.timeline) == (3, timedelta(days=30), 500, True)
        assert (made.head.id_floor, made.head.number_floors) == (0, [])
        assert [(s.first, s.end) for s in segments.segments("default", made.pk)] == [(1, 501), (501, 1_001)]
        publish(invoices, 1)
        transfer_all()
        assert log_values(invoices) == [1]


@rolled_back
@pytest.mark.requirement("E1")
def test_doing_it_again_changes_nothing(make_topic):
    make_topic("one")
    make_topic("two", partitions=2, timeline=True)
    before = everything()

    assert sync("default") == []
    assert everything() == before


@rolled_back
@pytest.mark.requirement("D1")
@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({}, []),
        ({"partitions": 2}, [("partition", "id")]),
        ({"timeline": True}, [("key", "id")]),
        ({"partitions": 2, "timeline": True}, [("key", "id"), ("partition", "id")]),
    ],
)
def test_a_log_has_the_indexes_that_its_declaration_asks_for(make_topic, options, columns):
    topic = make_topic("indexed", **options)

    assert indexes(topic) == sorted([("topic_id", "id"), *columns])


@rolled_back
def test_a_name_with_dots_and_dashes_is_fine(make_topic):
    topic = make_topic("shop.orders-v2_x")
    publish(topic, 1)
    transfer_all()

    assert log_values(topic) == [1]


@rolled_back
def test_wrong_declarations_are_refused_before_anything_is_made():
    before = everything()
    with declared("fine", "x'; DROP TABLE django_events_topic; --"), pytest.raises(Invalid, match="is not valid"):
        sync("default")
    with declared("fine", "fine") as twins, pytest.raises(Invalid, match="declared twice"):
        declarations.registry._set(
            [*declarations.registry, declarations.DeclaredTopic(name="fine", declared_at="elsewhere:1")]
        )
        try:
            sync("default")
        finally:
            declarations.registry._set([t for t in declarations.registry if t.declared_at != "elsewhere:1"])
    assert len(twins) == 2

    assert everything() == before


@rolled_back
@pytest.mark.parametrize("name", ["x'; DROP TABLE django_events_topic; --", "O'Brien", "{log}", "a\\'b"])
def test_a_name_in_a_comment_is_quoted(name):
    """Names are checked long before; this is the second door."""
    topic = Topic.objects.create(name=name)
    TopicHead.objects.create(topic=topic)
    segments.create_log("default", topic)

    with connection.cursor() as cursor:
        cursor.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", [log_table(topic.pk)])
        assert cursor.fetchone() == (name,)


# Adapted


@rolled_back
@pytest.mark.requirement("E1")
def test_retention_and_segment_size_follow_the_declaration_at_any_time(things, redeclare):
    publish(things, 1)
    transfer_all()
    before = row(things)
    things = redeclare(things, retention=timedelta(days=7), segment_size=250)

    after = row(things)
    assert (after.retention, after.segment_size) == (timedelta(days=7), 250)
    assert (after.pk, after.incarnation) == (before.pk, before.incarnation)
    publish_many(things, [Draft(value=n) for n in range(2, 4)])
    transfer_all()
    assert log_values(things) == [1, 2, 3]
    things = redeclare(things)
    assert (row(things).retention, row(things).segment_size) == (None, 1_000_000)


@rolled_back
@pytest.mark.requirement("E1")
def test_segments_of_the_old_and_the_new_size_follow_each_other(make_topic, redeclare):
    things = make_topic("resized", segment_size=100)
    publish_many(things, [Draft(value=n) for n in range(150)])
    transfer_all()
    things = redeclare(things, segment_size=1_000)
    publish_many(things, [Draft(value=n) for n in range(150, 1_500)])
    transfer_all(batch_size=100)

    assert log_values(things) == list(range(1_500))
    assert_dense(things)
    ranges = [(s.first, s.end) for s in segments.segments("default", row(things).pk)]
    assert all(end == first for (_, end), (first, _) in pairwise(ranges))
    assert {end - first for first, end in ranges} == {100, 1_000}


@rolled_back
@pytest.mark.requirement("E1")
def test_a_change_says_what_it_was_and_is(things):
    declarations.registry.discard(things)
    with declared("things", partitions=4, retention=timedelta(days=1)):
        assert sync("default") == ["Topic things: partitions 1 → 4 from event 1 on, retention None → 1 day, 0:00:00."]


@rolled_back
@pytest.mark.requirement("E1")
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (4, 8), (8, 4)])
def test_partitions_can_change_while_there_are_no_events(make_topic, redeclare, before, after):
    """Those that wait in the buffer get their partition when they are moved."""
    topic = make_topic("resized", partitions=before)
    publish_many(topic, [Draft(value=n, key=str(n)) for n in range(50)])
    publish(topic, "explicit", partition=before - 1)
    topic = redeclare(topic, partitions=after)
    transfer_all()

    assert row(topic).partitions == after
    assert set(Event.objects.of(topic).values_list("partition", flat=True)) == set(range(after))
    assert Event.objects.at(topic, 51).partition == (before - 1) % after
    if after > 1:
        assert ("partition", "id") in indexes(topic)
    assert_dense(topic)


@rolled_back
@pytest.mark.requirement("E1")
def test_a_timeline_can_be_added_while_there_are_no_events(things, redeclare):
    things = redeclare(things, timeline=True)

    assert row(things).timeline
    assert ("key", "id") in indexes(things)


@pytest.mark.requirement("E15", "X7")
@pytest.mark.parametrize("partitions", [1, 3, 5, 8])
def test_other_partitions_hold_from_the_next_event_on(lanes, redeclare, partitions):
    publish_many(lanes, [Draft(value=n, key=str(n)) for n in range(20)])
    transfer_all()
    before = list(Event.objects.of(lanes.name).order_by("id").values_list("id", "partition", "number"))
    redeclare(lanes, partitions=partitions)
    publish_many("lanes", [Draft(value=n, key=str(n)) for n in range(40)])
    transfer_all()

    assert row(lanes).layouts == [[1, 4], [21, partitions]]
    after = list(Event.objects.of(lanes.name).order_by("id").values_list("id", "partition", "number"))
    assert after[:20] == before
    assert {partition for event_id, partition, _ in after if event_id > 20} == set(range(partitions))
    for partition in range(max(partitions, 4)):
        numbers = [number for _, of, number in after if of == partition]
        assert numbers == list(range(1, len(numbers) + 1))
    assert sync("default") == []


@pytest.mark.requirement("X7")
def test_a_partition_that_comes_back_goes_on_with_its_numbers(lanes, redeclare):
    """Also in a transfer that has known the topic since before."""
    transfer = Transfer("default")
    for partitions in (4, 2, 8, 1, 4):
        redeclare(lanes, partitions=partitions)
        publish_many("lanes", [Draft(value=n, key=str(n)) for n in range(30)])
        while transfer.move():
            pass

    events = list(Event.objects.of(lanes.name).order_by("id").values_list("id", "partition", "number"))
    assert [event_id for event_id, _, _ in events] == list(range(1, 151))
    for partition in range(8):
        numbers = [number for _, of, number in events if of == partition]
        assert numbers == list(range(1, len(numbers) + 1))


@rolled_back
@pytest.mark.parametrize("timeline", [True, False])
def test_a_timeline_is_made_or_dropped_while_there_are_events(make_topic, redeclare, timeline):
    """In a transaction, as here, at once; see test_indexing for what goes on meanwhile."""
    topic = make_topic("timed", timeline=not timeline)
    publish(topic, 1, key="a")
    transfer_all()
    redeclare(topic, timeline=timeline)

    assert row(topic).timeline is timeline
    assert (("key", "id") in indexes(topic)) is timeline
    assert Event.objects.timeline(topic, "a").count() == 1


@pytest.mark.requirement("X7")
def test_numbers_go_on_where_retention_has_removed_events(lanes, redeclare):
    TopicHead.objects.filter(topic=row(lanes)).update(id_floor=1_000, number_floors=[100, 200, 300, 400])
    redeclare(lanes, partitions=8)
    publish_many("lanes", [Draft(value=n, key=str(n)) for n in range(100)])
    transfer_all()

    assert row(lanes).layouts == [[1, 4], [1001, 8]]
    first = Event.objects.of(lanes.name).order_by("partition", "id").distinct("partition")
    assert list(first.values_list("number", flat=True)) == [101, 201, 301, 401, 1, 1, 1, 1]


@rolled_back
@pytest.mark.requirement("E1")
def test_a_refused_change_changes_nothing_of_other_topics_either(lanes, things, redeclare):
    publish(lanes, 1, partition=3)
    transfer_all()
    Topic.objects.filter(name="lanes").delete()
    before = everything()
    declarations.registry.discard(things)
    declarations.registry.discard(lanes)
    with (
        declared("things", retention=timedelta(days=1)),
        declared("fresh"),
        declared("lanes", partitions=2),
        declared("fresher"),
        pytest.raises(Refused, match="lost its row"),
    ):
        sync("default")

    assert everything() == before


@committing
@pytest.mark.requirement("E1")
def test_a_change_waits_for_a_transfer_that_is_just_moving_the_first_event(lanes, connect):
    """It looks for events when the head is its own; before, they may not be visible yet."""
    transfer, observer = connect(), connect(autocommit=True)
    pk = row(lanes).pk
    transfer.execute("SELECT FROM django_events_topichead WHERE topic_id = %s FOR UPDATE", [pk])
    transfer.execute(
        "INSERT INTO django_events_event (topic_id, id, partition, number, type, metadata, published_at, logged_at)"
        " VALUES (%s, 1, 0, 1, '', '{}', now(), now())",
        [pk],
    )
    declarations.registry.discard(lanes)
    with declared("lanes", partitions=8), ThreadPoolExecutor(1) as pool:
        change = pool.submit(in_a_session_of_its_own, sync, "default")
        wait_for_a_waiter(observer)
        transfer.commit()
        assert change.result() == ["Topic lanes: partitions 4 → 8 from event 2 on."]

    assert row(lanes).layouts == [[1, 4], [2, 8]]


@rolled_back
@pytest.mark.requirement("E1")
def test_topics_that_are_not_declared_any_more_are_left_alone(things):
    publish(things, 1)
    transfer_all()
    declarations.registry.discard(things)
    before = everything()

    assert sync("default") == []
    assert everything() == before
    assert log_values(things) == [1]


# At the same time


def in_a_session_of_its_own(function, *args):
    try:
        return function(*args)
    finally:
        connection.close()


@pytest.mark.slow
@committing
@pytest.mark.requirement("E1")
def test_processes_that_migrate_at_once_make_each_topic_once():
    names = ["one", "two", "three", "four"]
    try:
        with declared(*names, partitions=2), ThreadPoolExecutor(5) as pool:
            done = list(pool.map(lambda _: in_a_session_of_its_own(sync, "default"), range(5)))
        lines = [line for lines in done for line in lines]
        assert len(lines) == len(set(lines)) == 4
        assert Topic.objects.filter(name__in=names).count() == 4
        assert TopicHead.objects.filter(topic__name__in=names).count() == 4
    finally:
        drop_topics(names)


@committing
@pytest.mark.requirement("E1")
@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
def test_a_session_that_waits_for_another_sees_what_it_made(connect, level):
    """Whatever the isolation of the site: a snapshot from before the wait would be blind."""
    observer = connect(autocommit=True)

    def sync_at_level():
        second = connections["default"].copy("second")
        second.settings_dict["OPTIONS"] = {**second.settings_dict.get("OPTIONS", {}), "isolation_level": level}
        connections["second"] = second
        try:
            return sync("second")
        finally:
            second.close()

    try:
        with declared("one"), ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                assert len(sync("default")) == 1
                waiting = pool.submit(sync_at_level)
                wait_for_a_waiter(observer)
            assert waiting.result() == []
    finally:
        drop_topics(["one"])


@pytest.mark.slow
@committing
@pytest.mark.requirement("E1")
def test_topics_are_made_while_events_are_published_and_moved(things, connect):
    """One session reads, another publishes, all in transactions that are open: none waits for another."""
    reader, publisher = connect(), connect()
    publish(things, "before")
    transfer_all()
    reader.execute("SELECT count(*) FROM django_events_event")
    publisher.publish(things, "meanwhile")
    try:
        with declared("one", partitions=2, timeline=True) as [one], transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '5s'")
            assert sync("default") == ["Topic one: created, 2 partitions."]
            publish(one, 1)
        publisher.commit()
        transfer_all()
        assert log_values(things) == ["before", "meanwhile"]
    finally:
        reader.rollback()
        drop_topics(["one"])


# Repaired


@committing
@pytest.mark.requirement("E1")
@pytest.mark.parametrize("reset_sequences", [False, True], ids=["flush", "restart identity"])
@pytest.mark.few(1)
def test_after_a_flush_topics_are_there_and_ids_begin_anew(make_topic, reset_sequences):
    things, lanes = make_topic("things", segment_size=100), make_topic("lanes", partitions=4)
    worker = Transfer("default")
    publish_many(things, [Draft(value=n) for n in range(250)])
    publish_many(lanes, [Draft(value=n, key=str(n)) for n in range(50)])
    publish(things, "in the buffer")
    while worker.move():
        pass
    publish(things, "in the buffer")
    before = {topic.name: (topic.pk, topic.incarnation) for topic in Topic.objects.all()}
    call_command("flush", interactive=False, verbosity=0, reset_sequences=reset_sequences)

    after = {topic.name: (topic.pk, topic.incarnation) for topic in Topic.objects.all()}
    assert {name: pk for name, (pk, _) in after.items()} == {name: pk for name, (pk, _) in before.items()}
    assert all(after[name][1] != before[name][1] for name in after)
    assert BufferedEvent.objects.count() == 0
    assert Event.objects.count() == 0
    publish_many(things, [Draft(value=n) for n in range(150)])
    publish_many(lanes, [Draft(value=n, key=str(n)) for n in range(50)])
    while worker.move():  # the same worker: what it remembers is of another incarnation
        pass
    assert log_values(things) == list(range(150))
    assert sorted(log_values(lanes)) == list(range(50))
    for topic in (things, lanes):
        assert_dense(topic)


@committing
@pytest.mark.requirement("E1")
@pytest.mark.long
def test_after_a_flush_that_restarts_identities_new_topics_get_ids_of_their_own(make_topic):
    """Logs of topics that no app declares any more keep their tables."""
    things, gone = make_topic("things"), make_topic("gone")
    tables = {log_table(row(topic).pk) for topic in (things, gone)}
    gone_table = log_table(row(gone).pk)
    declarations.registry.discard(gone)
    try:
        call_command("flush", interactive=False, verbosity=0, reset_sequences=True)
        assert not Topic.objects.filter(name="gone").exists()
        for n in range(5):
            new = make_topic(f"new{n}")
            assert log_table(row(new).pk) not in tables
            publish(new, n)
        transfer_all()
        assert [log_values(f"new{n}") for n in range(5)] == [[n] for n in range(5)]
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {gone_table}")


@rolled_back
@pytest.mark.requirement("E1")
def test_a_row_that_was_deleted_is_made_again_for_the_log_that_is_there(lanes, redeclare):
    """Nothing is lost, ids and numbers go on, and readers notice that something happened."""
    publish_many(lanes, [Draft(value=n, key=str(n)) for n in range(20)])
    transfer_all()
    before = row(lanes)
    Topic.objects.filter(pk=before.pk).delete()

    assert sync("default") == ["Topic lanes: its row was missing, made again for the log that is there."]
    assert row(lanes).pk == before.pk
    assert row(lanes).incarnation != before.incarnation
    publish_many(lanes, [Draft(value=n, key=str(n)) for n in range(20, 40)])
    transfer_all()
    assert log_values(lanes) == list(range(40))
    assert_dense(lanes)
    assert sync("default") == []


@rolled_back
@pytest.mark.requirement("E1")
def test_a_log_that_was_dropped_is_made_again_and_its_ids_begin_anew(lanes):
    publish_many(lanes, [Draft(value=n, key=str(n)) for n in range(20)])
    transfer_all()
    publish(lanes, "in the buffer")
    before = row(lanes)
    TopicHead.objects.filter(topic=before).update(id_floor=20, number_floors=[5, 5, 5, 5])
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {log_table(before.pk)}")

    assert sync("default") == ["Topic lanes: its tables were missing, made again."]
    assert row(lanes).incarnation != before.incarnation
    assert indexes(lanes) == [("partition", "id"), ("topic_id", "id")]
    transfer_all()
    assert log_values(lanes) == ["in the buffer"]
    assert_dense(lanes)
    assert sync("default") == []


@rolled_back
@pytest.mark.requirement("E1")
def test_a_row_that_was_renamed_keeps_its_log_and_the_name_gets_a_new_one(things):
    """The comment of the log still says the old name, and that log has an owner."""
    publish(things, "old")
    transfer_all()
    Topic.objects.filter(name="things").update(name="renamed")

    assert sync("default") == ["Topic things: created, 1 partition."]
    publish(things, "new")
    transfer_all()
    assert log_values("things") == ["new"]
    assert log_values("renamed") == ["old"]


# After migrate


@pytest.mark.slow
@rolled_back
def test_migrate_says_what_it_made_and_then_nothing():
    out = StringIO()
    with declared("one"):
        call_command("migrate", stdout=out, no_color=True)
        assert "  Topic one: created, 1 partition." in out.getvalue().splitlines()
        out.truncate(0)
        call_command("migrate", stdout=out)
        assert "Topic" not in out.getvalue()


@rolled_back
@pytest.mark.requirement("E1")
def test_migrate_says_what_it_refused_and_why(lanes):
    publish(lanes, 1, partition=3)
    transfer_all()
    Topic.objects.filter(name="lanes").delete()
    declarations.registry.discard(lanes)
    with declared("lanes", partitions=2), pytest.raises(CommandError, match="lost its row"):
        call_command("migrate", verbosity=0)


@rolled_back
def test_migrate_says_nothing_when_it_is_told_to_be_quiet(capsys):
    with declared("one"):
        call_command("migrate", verbosity=0)

        assert Topic.objects.filter(name="one").exists()
    assert capsys.readouterr().out == ""


class NoEvents:
    """A router that keeps the tables of django_events away from a database."""

    def allow_migrate(self, db, app_label, **hints):
        return False if app_label == "django_events" else None


@rolled_back
def test_a_database_that_gets_no_tables_gets_no_topics(django_assert_num_queries):
    config = apps.get_app_config("django_events")
    with (
        declared("one"),
        override_settings(DATABASE_ROUTERS=[NoEvents()]),
        django_assert_num_queries(0),
    ):
        sync_after_migrate(config, using="default", verbosity=0)

    assert not Topic.objects.filter(name="one").exists()
