"""`manage.py events bench`: what it tells, that it adds up, and that nothing of it stays."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_events import declarations, publish
from django_events.benching import flow, timeline
from django_events.benching.load import Load
from django_events.benching.publishers import Publishers
from django_events.benching.scratch_topic import _holding, drop, leftovers, scratch_topic
from django_events.exceptions import Refused
from django_events.log import dropping
from django_events.log.topics import create
from django_events.management.commands.events import Command
from django_events.models import BufferedEvent, Consumer, Event, Topic
from django_events.workers.stopping import Stop
from tests.support.fix_consumers import serve_due
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")

# Everything that a run makes: rows, tables, indexes, functions, types. Sequences go on.
TABLES = ("topic", "topichead", "bufferedevent", "consumer", "position", "delivery", "deliverylease", "pastdelivery")
TABLES = (*TABLES, "deadletter", "intervention", "scheduledevent", "dedupkey", "stagedevent", "sinkbatch")
CATALOG = "SELECT relname, relkind::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `manage.py events bench` as from a shell; returns its code and what it said."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code: Any = 0
        try:
            Command().run_from_argv(["manage.py", "events", "bench", *map(str, arguments)])
        except SystemExit as ending:
            code = ending.code or 0
        return (int(code), *capsys.readouterr())

    return run


def everything() -> tuple[Any, ...]:
    """The catalog, and the rows of all tables."""
    with connection.cursor() as cursor:
        cursor.execute(CATALOG)
        found: list[Any] = [sorted(cursor.fetchall())]
        for table in TABLES:
            cursor.execute(f"SELECT t::text FROM django_events_{table} AS t ORDER BY 1")
            found.append(cursor.fetchall())
    return tuple(found)


@pytest.mark.slow
@pytest.mark.requirement("E14")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--via", "publish", "--rate", "400"],
        ["--via", "publish_many", "--many", "70", "--consumers", "2", "--threads", "2", "--skew", "0.5"],
        ["--via", "writer", "--mode", "queue", "--publishers", "2", "--partitions", "1"],
        ["--batch-size", "0", "--keys", "0", "--size", "3000"],
        ["--consumers", "0"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_a_flow_adds_up_and_nothing_of_it_stays(bench, arguments: list[str]):
    before = everything()
    code, out, err = bench("--events", 200, *arguments, "--execute", "--format", "json")
    data = json.loads(out)

    assert code == 0, err
    assert (data["complete"], data["stopped"]) == (True, False)
    assert (data["planned"], data["published"]["events"], data["logged"], data["moved"]) == (200, 200, 200, 200)
    assert all(rate["events"] == 200 for rate in data["handled"].values())
    assert len(data["handled"]) == data["load"]["consumers"]
    assert {"due → committed", "published → log"} <= set(data["latencies"])
    for summary in data["latencies"].values():
        assert summary["events"] == 200
        assert 0 <= summary["p50"] <= summary["p90"] <= summary["p99"] <= summary["max"]
        assert summary["average"] <= summary["max"]
    assert data["database"].startswith("database ")
    assert everything() == before


@pytest.mark.slow
@pytest.mark.requirement("E14")
def test_a_rate_that_is_too_high_is_not_complete(bench):
    """What was due and never published is in no percentile, so it has to be told."""
    code, out, err = bench("--rate", 100_000, "--for", 1, "--consumers", 0, "--execute", "--format", "json")
    data = json.loads(out)

    assert (code, data["complete"], data["stopped"]) == (1, False, False)
    assert 0 < data["not_published"] == data["planned"] - data["published"]["events"]
    assert "were due and not published in time: the rate is too high" in err


@pytest.mark.slow
@pytest.mark.requirement("E14")
def test_for_people_it_is_tables_and_says_beforehand_where_and_how_much(bench):
    code, out, err = bench("--events", 50, "--execute")

    assert code == 0
    assert "50 events of about 200 bytes, as fast as they go through" in err
    assert connection.settings_dict["NAME"] in err
    assert "MiB to the tables" in err
    assert out.splitlines()[0].split() == ["what", "events", "per", "second"]
    assert "p50" in out
    assert "p99" in out


@pytest.mark.parametrize("what", ["flow", "timeline"])
def test_without_execute_nothing_is_done(bench, what: str):
    before = everything()
    code, out, _ = bench(what)

    assert code == 0
    assert connection.settings_dict["NAME"] in out
    assert "Nothing was done. To do it, say the same with --execute." in out
    assert everything() == before


@pytest.mark.slow
@pytest.mark.requirement("E14")
def test_events_of_others_are_left_to_their_transfer_and_topics_as_they_are(bench, make_topic, make_consumer):
    things = make_topic("things", partitions=2)
    reader = make_consumer(things, handler=lambda event: None)
    declarations.registry.discard(things)
    changed = declarations.topic("things", partitions=7)  # migrate has not run since
    try:
        publish("things", 1)
        before = everything()
        code, _, err = bench("--events", 20, "--execute")
    finally:
        declarations.registry.discard(changed)
        declarations.registry.add(things)

    assert code == 0, err
    assert everything() == before
    assert not Event.objects.of("things").exists()
    transfer_all()
    assert serve_due(reader) == 1


@pytest.mark.slow
@pytest.mark.requirement("H7")
def test_timelines_are_read_by_their_index_and_have_no_events_of_others(bench):
    before = everything()
    arguments = ["--tenants", 4, "--resources", 500, "--each", 3, "--samples", 40]
    code, out, err = bench("timeline", *arguments, "--execute", "--format", "json")
    data = json.loads(out)

    assert code == 0, err
    assert (data["seeded"], data["samples"], data["wrong"], data["complete"]) == (6_000, 40, [], True)
    assert set(data["milliseconds"]) == {"events", "average", "p50", "p90", "p99", "max"}
    [index] = data["read_by"]
    assert index.endswith("_key_id_idx")
    assert index in data["plan"]
    assert everything() == before


@pytest.mark.requirement("H7")
def test_an_event_of_another_tenant_ends_it_with_a_failure(bench, monkeypatch):
    key = timeline.Resources.key

    def same_key(self: Any, tenant: int, resource: int) -> str:
        return key(self, 0, resource)

    monkeypatch.setattr(timeline.Resources, "key", same_key)
    before = everything()
    code, out, _ = bench("timeline", "--tenants", 2, "--resources", 5, "--each", 2, "--samples", 20, "--execute")

    assert code == 1
    assert "of tenant-0/resource-" in out
    assert everything() == before


# --- what it refuses


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--events", "6_000_000", "--execute"], "--events is 6,000,000, expected 1 to 5,000,000"),
        (["--for", "99999"], "--for is 99,999.0, expected 1 to 3,600"),
        (["--rate", "0"], "--rate is 0"),
        (["--rate", "nan"], "'nan' is no number"),
        (["--tenants", "3"], "--tenants is for: manage.py events bench timeline"),
        (["timeline", "--rate", "3"], "--rate is for: manage.py events bench flow"),
        (["timeline", "--tenants", "1000000", "--resources", "1000000"], "Ask for fewer"),
        (["timeline", "--samples", "1000000"], "--samples is 1,000,000"),
        (["sideways"], "invalid choice"),
    ],
)
def test_what_is_absurd_is_refused(bench, arguments: list[str], said: str):
    before = everything()
    code, _, err = bench(*arguments)

    assert code == 2
    assert said in err
    assert everything() == before


def test_a_transaction_of_the_caller_is_refused(bench):
    with transaction.atomic():
        code, _, err = bench("--execute")

    assert code == 2
    assert "can't run inside a transaction of the caller" in err


@pytest.fixture
def reader_role() -> Iterator[str]:
    """A role that may use all tables, and make none."""
    name = f"bench_reader_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {name}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
        cursor.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}")
    yield name
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_role_that_may_not_make_tables_is_told_which_may(bench, reader_role: str):
    before = everything()
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {reader_role}")  # until the command closes the connection
    code, _, err = bench("--execute")

    assert code == 1
    assert "may not make a topic" in err
    assert "Measure with the role that migrates" in err
    assert everything() == before


# --- whatever happens


@pytest.mark.parametrize("where", ["publisher", "handler", "transfer"])
def test_an_error_is_told_and_nothing_stays(bench, monkeypatch, where: str):
    def fail(*arguments: Any, **options: Any) -> Any:
        raise ZeroDivisionError(where)

    target = {
        "publisher": "django_events.benching.publishers.publish",
        "handler": "django_events.consuming.streams.server.StreamServer.serve",
        "transfer": "django_events.benching.moving.TransferOfOne.work",
    }[where]
    monkeypatch.setattr(target, fail)
    before = everything()
    with pytest.raises(ZeroDivisionError, match=where):
        bench("--events", 20, "--execute")

    assert everything() == before


@pytest.mark.slow
def test_what_an_earlier_run_left_is_dropped_unless_a_session_uses_it(bench, make_topic):
    before = everything()
    killed = declarations.DeclaredTopic(name="events-bench.0123456789ab", declared_at="a test", segment_size=3)
    create("default", killed)
    declarations.registry.add(killed)
    try:
        for n in range(10):
            publish(killed, n)
        transfer_all()
        publish(killed, 11)  # in the buffer still
    finally:
        declarations.registry.discard(killed)
    assert [(one.topic.name, one.kept) for one in leftovers("default")] == [(killed.name, "")]

    _, out, _ = bench()
    assert f"left {killed.name}, which is dropped first" in out
    assert Topic.objects.filter(name=killed.name).exists()

    with _holding("default", killed.name):
        code, _, err = bench("--events", 10, "--execute")
        assert (code, f"{killed.name} is there too, and stays: it is in use." in err) == (0, True)
        assert Topic.objects.filter(name=killed.name).exists()

    code, _, err = bench("--events", 10, "--execute")
    assert (code, f"Dropped {killed.name}, which an earlier run had left." in err) == (0, True)
    assert everything() == before


def test_a_topic_that_an_app_declares_or_another_consumer_reads_stays(make_topic, make_consumer):
    declared = make_topic("events-bench.0123456789ab")
    [one] = leftovers("default")
    assert one.kept == "an app declares it"

    make_consumer(declared, handler=lambda event: None)
    declarations.registry.discard(declared)
    [one] = leftovers("default")
    assert one.kept == "consumer reader reads it"


def test_topics_with_a_name_that_is_only_alike_are_no_leftovers(make_topic):
    make_topic("events-bench.mine")
    make_topic("events-bench.0123456789abc")

    assert leftovers("default") == []


def test_a_run_is_seen_as_in_use_by_another_one():
    with scratch_topic("default") as made:
        [one] = leftovers("default")
        assert (one.topic.name, one.kept) == (made.topic.name, "an app declares it")
        declarations.registry.discard(made.declared)
        [one] = leftovers("default")
        assert one.kept == "it is in use"
    assert leftovers("default") == []


def test_a_lock_on_the_log_of_all_topics_is_waited_for(connect, in_thread):
    """Dropping asks for it again and again, for a moment each, so that no session queues behind it for long."""
    with scratch_topic("default") as made:
        reader = connect()
        reader.execute("SELECT count(*) FROM django_events_event")
        dropping = in_thread(drop, "default", made.topic)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM django_events_topic")  # others go on
        assert Topic.objects.filter(pk=made.topic.pk).exists()
        reader.rollback()
        dropping.result(60)
        assert not Topic.objects.filter(pk=made.topic.pk).exists()


@pytest.mark.slow
def test_a_lock_that_is_held_for_too_long_leaves_it_to_the_next_run(bench, connect):
    before = everything()
    reader = connect()
    with pytest.raises(Refused, match="Maintenance drops it"), scratch_topic("default", patience=timedelta(0)) as made:
        reader.execute("SELECT count(*) FROM django_events_event")
    assert not Topic.objects.filter(pk=made.topic.pk).exists()
    assert dropping.forgotten("default") == [made.topic.pk]

    reader.rollback()
    assert bench("--events", 10, "--execute")[0] == 0
    assert everything() == before


@pytest.mark.slow
def test_publishers_without_a_rate_wait_while_too_much_is_in_flight(monkeypatch):
    monkeypatch.setattr("django_events.benching.publishers.MOST_IN_FLIGHT", 10)
    most = []

    def note(self: Any, numbers: range) -> None:
        most.append(self._timings.in_flight)

    monkeypatch.setattr("django_events.benching.publishers.Publishers._one", with_note(note))
    with closing(Stop()) as stop:
        measured = flow.run("default", Load(events=60), stop)

    assert measured.complete
    assert max(most) <= 10
    assert BufferedEvent.objects.count() == Consumer.objects.filter(name__startswith="events-bench").count() == 0


def with_note(note: Callable[..., None]) -> Callable[..., None]:
    publish_one = Publishers._one

    def both(self: Any, numbers: range) -> None:
        publish_one(self, numbers)
        note(self, numbers)

    return both
