"""Indexes of a log that has events: built while others go on, by one or two at a time, and whatever interrupts it."""

import threading

import pytest
from django.db import connection

from django_events import Draft, declarations, publish, publish_many, sql
from django_events.exceptions import InUse
from django_events.log import indexing, topics
from django_events.log.segments import segments
from django_events.log.transfer import Transfer
from django_events.models import Event, Topic
from django_events.observing.doctoring.database import Database
from django_events.observing.doctoring.logs import tables
from django_events.operations import repartition
from django_events.statements import log_table
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("E12", "H5")]


@pytest.fixture
def logged(make_topic):
    """A topic with three segments of events and one in reserve."""
    topic = make_topic("things", segment_size=100)
    publish_many(topic, [Draft(value=n, key=str(n % 7)) for n in range(250)])
    transfer_all()
    return topic


def redeclare(topic, **options):
    declarations.registry.discard(topic)
    for name, value in options.items():
        object.__setattr__(topic, name, value)
    declarations.registry.add(topic)


def sync():
    return [line for line in topics.sync("default") if "things" in line]


def is_whole(kind="timeline"):
    """Whether the index of the log is valid, and each segment has its part of it and no other one like it."""
    topic = Topic.objects.get(name="things")
    log = log_table(topic.pk)
    with connection.cursor() as cursor:
        cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [f"{log}_{kind}"])
        valid = cursor.fetchall()
        cursor.execute(
            "SELECT count(*), count(*) FILTER (WHERE i.indisvalid) FROM pg_index i"
            " JOIN pg_attribute a ON a.attrelid = i.indexrelid AND a.attnum = 1"
            " WHERE i.indrelid = ANY(%s::regclass[]) AND a.attname = %s",
            [[one.table for one in segments("default", topic.pk)], indexing.COLUMNS[kind][0]],
        )
        [(there, whole)] = cursor.fetchall()
    return valid == [(True,)] and there == whole == len(segments("default", topic.pk))


# What is built and dropped


def test_a_timeline_is_built_and_segments_that_come_have_it(logged):
    redeclare(logged, timeline=True)
    assert sync() == ["Topic things: timeline False → True."]
    publish_many(logged, [Draft(value=n, key="late") for n in range(250)])
    transfer_all()

    assert is_whole()
    assert Event.objects.timeline(logged, "late").count() == 250
    assert sync() == []


def test_it_is_dropped_when_it_is_not_declared_any_more(logged):
    redeclare(logged, timeline=True)
    sync()
    redeclare(logged, timeline=False)
    assert sync() == ["Topic things: timeline True → False."]

    assert not Topic.objects.get(name="things").timeline
    with connection.cursor() as cursor:
        log = log_table(Topic.objects.get(name="things").pk)
        cursor.execute(
            "SELECT relname FROM pg_class WHERE starts_with(relname, %s) AND relname ~ '_key_id_idx|_timeline$'",
            [f"{log}_"],
        )
        assert cursor.fetchall() == []


def test_publishers_and_the_transfer_go_on_meanwhile(logged, in_thread):
    stop, moved = threading.Event(), []

    def go_on():
        transfer = Transfer("default")
        while not stop.is_set():
            publish("things", 1, key="meanwhile")
            moved.append(transfer.move())

    going_on = in_thread(go_on)
    wait_until(lambda: len(moved) > 5, what="a transfer at work")
    redeclare(logged, timeline=True)
    sync()
    before = len(moved)
    wait_until(lambda: len(moved) > before + 5, what="a transfer that goes on")
    stop.set()
    going_on.result()
    transfer_all()

    assert is_whole()
    assert Event.objects.timeline(logged, "meanwhile").count() == len(moved)


@pytest.mark.slow
def test_two_at_once_build_one_index(logged, in_thread):
    redeclare(logged, timeline=True)
    for building in [in_thread(topics.sync, "default") for _ in range(2)]:
        building.result()

    assert is_whole()


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, 9))
def test_an_interruption_leaves_what_the_next_migration_goes_on_with(logged, monkeypatch, step):
    run, ran = sql.run, []

    def interrupted(using, statement):
        ran.append(statement)
        if len(ran) == step:
            raise KeyboardInterrupt
        run(using, statement)

    redeclare(logged, timeline=True)
    with monkeypatch.context() as patch:
        patch.setattr(indexing.sql, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sync()
    assert not Topic.objects.get(name="things").timeline
    publish_many(logged, [Draft(value=n, key="late") for n in range(150)])
    transfer_all()
    assert sync() == ["Topic things: timeline False → True."]

    assert is_whole()


def test_a_part_that_a_cancelled_build_left_invalid_is_built_anew(logged):
    topic = Topic.objects.get(name="things")
    part = segments("default", topic.pk)[1].table
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE INDEX {part}_timeline ON {part} (key, id)")
        cursor.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", [f"{part}_timeline"])
    redeclare(logged, timeline=True)
    sync()

    assert is_whole()


def test_a_segment_that_retention_drops_meanwhile_is_left_out(logged, monkeypatch):
    topic, build_part = Topic.objects.get(name="things"), indexing._build_part
    oldest = segments("default", topic.pk)[0]

    def build_after_drop(using, part, kind):
        if part.segment == oldest.table:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE {oldest.table}")
        build_part(using, part, kind)

    monkeypatch.setattr(indexing, "_build_part", build_after_drop)
    redeclare(logged, timeline=True)
    sync()

    assert is_whole()
    assert len(segments("default", topic.pk)) == 3


@pytest.mark.slow
def test_a_lock_that_stays_is_said_and_what_was_built_stays(logged, connect, monkeypatch):
    monkeypatch.setattr(indexing, "PATIENCE", 0.5)
    other = connect()
    other.execute("LOCK TABLE django_events_event IN ROW EXCLUSIVE MODE")
    redeclare(logged, timeline=True)
    with pytest.raises(InUse, match=r"keeps the log of things locked for more than 0 s\. What was built so far stays"):
        sync()
    other.rollback()

    assert sync() == ["Topic things: timeline False → True."]
    assert is_whole()


# Partitions


def test_a_topic_that_gets_more_than_one_partition_has_its_index_before_its_log_is_locked(logged, monkeypatch):
    built = []
    build = indexing.build

    def note(using, topic, kind):
        built.append((kind, connection.in_atomic_block))
        build(using, topic, kind)

    monkeypatch.setattr(indexing, "build", note)
    repartition("things", 4)

    assert built == [("partition", False), ("partition", True)]
    assert is_whole("partition")
    publish_many(logged, [Draft(value=n, key=str(n % 7)) for n in range(250)])
    transfer_all()
    assert is_whole("partition")


def test_the_doctor_says_that_an_index_is_not_whole(logged, monkeypatch):
    redeclare(logged, timeline=True)
    monkeypatch.setattr(indexing, "_attach", lambda using, index, part: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        sync()
    [found] = [one for one in tables(Database("default")) if one.severity != "ok"]

    assert "is not whole: it is being built, or that was interrupted" in found.what
    assert found.remedy.startswith("manage.py migrate, unless one runs.")
