"""Maintenance: each step once in its period, by one process, and no error stops it."""

import json
import logging
import threading
from contextlib import closing
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test import override_settings

from django_events import Draft, models, publish, publish_many
from django_events.log import retention, segments
from django_events.maintaining import steps
from django_events.maintaining.steps import STEPS, Step
from django_events.models import DedupKey, MaintenanceStep, Sample, Topic
from django_events.models.functions import ClockTimestamp
from django_events.observing.doctoring.examining import examine
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.statements import log_table
from django_events.workers import maintaining
from django_events.workers.background import in_background
from django_events.workers.maintaining import LEASE, Maintenance, run_due, run_steps
from django_events.workers.stopping import Stop
from tests.support.fix_queues import deliveries, fill_topic
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")

MINUTE = timedelta(minutes=1)
NAMES = [step.name for step in STEPS]


def step_of(run, *, name="test", every=MINUTE):
    return Step(name=name, help="", run=run, every=every)


def later(by):
    """As if the last runs had been so much earlier."""
    for row in MaintenanceStep.objects.all():
        for field in ("started_at", "finished_at", "leased_until", "failing_since"):
            if getattr(row, field) is not None:
                setattr(row, field, getattr(row, field) - by)
        row.save()


def ran(outcomes):
    return [one.step for one in outcomes if one.result is not None]


def maintenance_problems():
    found = find_problems("default", [], None, standings("default"))
    return [one.what for one in found if one.kind == "maintenance"]


# When, and by whom


@pytest.mark.slow
def test_each_step_is_run_once_in_its_period():
    assert ran(run_due("default")) == NAMES
    assert ran(run_due("default")) in (
        [],
        [name for name in NAMES if name not in ("orphans", "bloat")],
    )  # a minute ended
    later(MINUTE)
    assert ran(run_due("default"))[:2] == ["segments", "retention"]
    later(10 * MINUTE)
    assert ran(run_due("default")) == NAMES


def test_several_at_once_share_the_steps(in_thread):
    calls, ready = [], threading.Barrier(4)
    step = step_of(lambda using, until: calls.append(using))

    def due():
        ready.wait(60)
        return run_due("default", [step])

    outcomes = [future.result() for future in [in_thread(due) for _ in range(4)]]
    assert calls == ["default"]
    assert sorted(len(outcome) for outcome in outcomes) == [0, 0, 0, 1]


def test_a_step_that_one_process_runs_now_is_not_begun_by_others(in_thread):
    began, go_on = threading.Event(), threading.Event()

    def run(using, until):
        began.set()
        assert go_on.wait(60)
        return {}

    step = step_of(run)
    first = in_thread(run_due, "default", [step])
    assert began.wait(60)
    assert [run_steps("default", [step])[0].result, run_due("default", [step])] == [None, []]
    go_on.set()

    assert ran(first.result()) == ["test"]


def test_a_step_whose_runner_died_is_begun_anew_when_its_time_is_over():
    step = step_of(lambda using, until: {"done": 1})
    assert maintaining._begin("default", step, as_scheduled=True) is not None  # and then it is killed
    later(2 * MINUTE)
    assert run_due("default", [step]) == []
    later(LEASE)

    assert ran(run_due("default", [step])) == ["test"]


def test_a_runner_that_froze_overwrites_nothing():
    step = step_of(lambda using, until: {"done": 1})
    begun = maintaining._begin("default", step, as_scheduled=True)
    later(LEASE + MINUTE)
    run_due("default", [step])
    maintaining._end("default", begun, maintaining.StepRun("test", 0.0, {"done": "frozen"}))

    assert MaintenanceStep.objects.get().result == {"done": 1}


# What goes wrong


def test_a_step_that_fails_is_written_down_and_the_others_are_run(caplog):
    bad = Step(name="bad", help="", run=lambda using, until: 1 / 0)
    good = Step(name="good", help="", run=lambda using, until: {"done": 2})
    outcomes = run_due("default", [bad, good])

    assert [(one.step, one.result, one.error) for one in outcomes] == [
        ("bad", None, "division by zero"),
        ("good", {"done": 2}, ""),
    ]
    row = MaintenanceStep.objects.get(name="bad")
    assert (row.error, row.leased_until, row.failing_since) == ("division by zero", None, row.started_at)
    assert "The step 'bad' of maintenance of 'default' failed" in caplog.text
    assert maintenance_problems()[0].startswith("the step bad fails since")
    later(MINUTE)
    run_due("default", [step_of(lambda using, until: {"done": 3}, name="bad")])
    row.refresh_from_db()
    assert (row.error, row.failing_since, row.result) == ("", None, {"done": 3})
    assert maintenance_problems() == []


def test_a_statement_that_takes_too_long_is_given_up(monkeypatch, connect):
    from django_events import sql

    monkeypatch.setitem(sql.UNHURRIED, "statement_timeout", "50ms")
    session = connect()
    session.execute("LOCK TABLE django_events_dedupkey IN ACCESS EXCLUSIVE MODE")
    outcomes = run_steps("default", [step for step in STEPS if step.name == "dedup"])
    session.rollback()

    assert "canceling statement due to" in outcomes[0].error
    assert run_steps("default", [step for step in STEPS if step.name == "dedup"])[0].error == ""


def test_nothing_stops_the_worker_and_it_is_said_once(monkeypatch, caplog):
    times = []

    def fail(using, **options):
        times.append(1)
        raise DatabaseError("no tables")

    monkeypatch.setattr(maintaining, "run_due", fail)
    worker = Maintenance("default")
    with closing(Stop()) as stop, caplog.at_level(logging.WARNING):
        worker.work(stop)
        worker.work(stop)

    assert len(times) == 2
    assert caplog.text.count("can't be done now") == 1


def test_none_for_long_is_a_problem_and_none_ever_is_not():
    assert maintenance_problems() == []
    run_due("default")
    assert maintenance_problems() == []
    later(timedelta(hours=1))
    assert maintenance_problems()[0].startswith("none since")


def test_the_worker_runs_what_is_due_and_ends_when_it_is_told():
    with in_background(Maintenance("default")):
        wait_until(lambda: MaintenanceStep.objects.filter(finished_at__isnull=False).count() == len(STEPS))
    assert Sample.objects.count() == 1


# The steps


def step(name):
    [found] = [one for one in STEPS if one.name == name]
    return found.run("default", lambda: False)


def test_segments_are_made_ahead(make_topic):
    topic = make_topic(segment_size=100)
    row = Topic.objects.get(name=topic.name)
    fill_topic(topic, *range(50))
    while segments.room("default", row.pk) > 50:  # as if a lock had been in the way
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {segments.segments('default', row.pk)[-1].table}")
    assert step("segments")["made"] == 1
    assert segments.room("default", row.pk) >= 100
    assert step("segments")["made"] == 0


@pytest.mark.requirement("P1")
def test_a_burst_far_past_the_prepared_segments_is_moved_and_publishing_never_fails(make_topic):
    topic = make_topic(segment_size=100)
    row = Topic.objects.get(name=topic.name)
    assert segments.room("default", row.pk, reserve=True) < 1_000
    publish_many(topic, [Draft(value=n) for n in range(5_000)])
    transfer_all()

    assert list(models.Event.objects.since(topic).values_list("id", flat=True)) == list(range(1, 5_001))


@pytest.mark.requirement("S10")
def test_retention_is_applied_to_every_topic_that_has_one(make_topic):
    short, whole = make_topic("short", segment_size=100, retention_events=1), make_topic("whole", segment_size=100)
    fill_topic(short, *range(150))
    fill_topic(whole, *range(150))
    done = step("retention")

    assert (done["segments"], done["events"], done["kept_for"]) == (1, 100, {})
    assert models.Event.objects.of(short).count() == 50
    assert models.Event.objects.of(whole).count() == 150


@pytest.mark.slow
def test_a_lock_on_one_log_holds_up_no_other(make_topic, connect):
    locked, free = (make_topic(name, segment_size=100, retention_events=1) for name in ("locked", "free"))
    for topic in (locked, free):
        fill_topic(topic, *range(150))
    session = connect()
    session.execute(f"LOCK TABLE {log_table(Topic.objects.get(name='locked').pk)} IN ACCESS EXCLUSIVE MODE")
    try:
        assert step("retention")["segments"] == 1
        assert models.Event.objects.of(free).count() == 50
        assert step("segments") is not None
    finally:
        session.rollback()
    assert step("retention")["segments"] == 1


def test_it_says_for_whom_events_are_kept(make_topic, make_consumer):
    topic = make_topic(segment_size=100, retention_events=1)
    make_consumer(topic, handler=print)
    fill_topic(topic, *range(150))

    assert step("retention")["kept_for"] == {"things": "reader"}


def test_histories_are_pruned_also_of_consumers_whose_workers_rest(make_topic, make_queue):
    topic = make_topic()
    queue = make_queue(topic, history=timedelta(hours=1))
    long_ago = ClockTimestamp() - timedelta(hours=2)
    for event_id, processed_at in ((1, long_ago), (2, long_ago), (3, ClockTimestamp())):
        models.PastDelivery.objects.create(
            consumer_id=queue.subscription.consumer_id,
            event_id=event_id,
            received_at=long_ago,
            first_at=long_ago,
            last_at=long_ago,
            processed_at=processed_at,
            attempts=0,
            delivered=1,
            outcome="handled",
            worker="a test",
        )
    assert step("history") == {"deleted": 2}
    assert models.PastDelivery.objects.get().event_id == 3


def test_dedup_keys_and_orphans_go(make_topic, make_queue):
    topic = make_topic()
    publish(topic, 1, dedup_key="a")
    DedupKey.objects.update(expires_at=ClockTimestamp() - MINUTE)
    assert step("dedup") == {"deleted": 1}
    queue = make_queue(topic)
    fill_topic(topic, 1, 2)
    models.Consumer.objects.filter(pk=queue.subscription.consumer_id).delete()  # by hand, without `unregister`
    assert step("orphans") == {"deleted": deliveries(queue).count() or 3}
    assert not deliveries(queue).exists()


def test_a_site_may_do_without_samples():
    with override_settings(DJANGO_EVENTS={"SAMPLES_KEPT": None}):
        assert step("samples") == {"taken": 0}


# The command


@pytest.mark.requirement("S10")
def test_from_cron(capsys, make_topic):
    call_command("events", "maintain", "--format", "json")
    data = json.loads(capsys.readouterr().out)

    assert [one["step"] for one in data] == NAMES
    assert all(one["error"] == "" for one in data)


def test_some_steps_only_and_how_the_last_runs_went(capsys):
    call_command("events", "maintain", "segments", "samples")
    call_command("events", "maintain", "--list", "--format", "json")
    printed = capsys.readouterr().out
    data = json.loads(printed[printed.index("[") :])

    assert [one["step"] for one in data] == NAMES
    assert [one["step"] for one in data if one["finished_at"]] == ["segments", "samples"]


def test_a_step_that_fails_is_exit_code_1(capsys, monkeypatch):
    bad = Step(name="bad", help="", run=lambda using, until: 1 / 0)
    monkeypatch.setattr("django_events.management.events.maintaining.STEPS", (bad,))
    with pytest.raises(SystemExit) as raised:
        call_command("events", "maintain")

    assert raised.value.code == 1
    assert "division by zero" in capsys.readouterr().out


def test_a_step_that_does_not_exist_is_refused():
    with pytest.raises(CommandError, match="Did you mean 'retention'"):
        call_command("events", "maintain", "retentions")


def test_not_inside_a_transaction():
    with transaction.atomic(), pytest.raises(CommandError, match="can't run inside a transaction"):
        call_command("events", "maintain")


def test_a_step_has_so_much_time(monkeypatch):
    monkeypatch.setattr(steps, "SECONDS", 0.0)
    assert steps._repeat(lambda: 5, lambda: False) == 0


def test_a_process_that_is_told_to_stop_begins_no_other_step():
    begun = []

    def run(using, until):
        begun.append(until())
        return {}

    given = [step_of(run, name=name) for name in "abc"]
    assert ran(run_due("default", given, until=lambda: bool(begun))) == ["a"]
    assert begun == [False]


def test_ctrl_c_gives_the_step_back():
    def interrupted(using, until):
        raise KeyboardInterrupt

    step = step_of(interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_steps("default", [step])
    row = MaintenanceStep.objects.get()
    assert (row.leased_until, row.error) == (None, "interrupted by KeyboardInterrupt")


def test_a_topic_that_fails_stops_no_other(make_topic, monkeypatch):
    for name in ("aaa", "zzz"):
        fill_topic(make_topic(name, segment_size=100, retention_events=1), *range(150))
    expire = steps.expire

    def failing(using, topic):
        if topic.name == "aaa":
            raise DatabaseError("broken")
        return expire(using, topic)

    monkeypatch.setattr(steps, "expire", failing)
    [outcome] = run_steps("default", [one for one in STEPS if one.name == "retention"])
    assert outcome.error == "aaa: broken"
    assert models.Event.objects.of("zzz").count() == 50


@pytest.mark.slow
def test_a_long_reader_of_one_log_holds_up_no_other(make_topic, connect):
    for name in ("aaa", "zzz"):
        fill_topic(make_topic(name, segment_size=1_000, retention_events=1_000), *range(150))
    session = connect()
    session.execute(f"SELECT FROM {log_table(Topic.objects.get(name='aaa').pk)}")
    done = step("segments")
    session.rollback()

    assert (done["divided"], list(done["waits_for"])) == (1, ["aaa"])
    assert done["waits_for"]["aaa"].startswith(f"a lock of session {session.info.backend_pid} of {session.info.user}")
    assert step("segments")["divided"] == 1


def test_a_log_that_is_gone_stops_no_other(make_topic):
    for name in ("aaa", "zzz"):
        fill_topic(make_topic(name, segment_size=100, retention_events=1), *range(150))
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {log_table(Topic.objects.get(name='aaa').pk)}")
    assert step("retention")["segments"] == 1
    step("segments")


def test_a_connection_that_is_lost_while_topics_are_looked_at_one_by_one_is_told_as_lost(make_topic):
    """Else the next one would be looked at by another, and the step would be done with half of them."""
    make_topic("one")
    make_topic("two")
    looks = []

    def look(using, topics):
        looks.append(topics)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0" if len(topics) > 1 else "SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(OperationalError):
        steps._found("default", look)
    assert [len(topics) > 1 for topics in looks] == [True, False]


@pytest.mark.slow
@pytest.mark.requirement("S10")
def test_a_pause_before_the_first_run_is_no_run_that_never_ended(capsys):
    """The row of the step is made by the pause: it says so, and nothing complains."""
    until = retention.pause("default", timedelta(hours=1))
    assert [row.name for row in MaintenanceStep.objects.all()] == ["retention"]
    [seen] = [one for one in examine("default") if one.kind == "maintenance"]
    assert (seen.severity, seen.what) == ("unknown", "It never ran here.")
    call_command("events", "maintain", "--list", "--format", "json")
    [listed] = [one for one in json.loads(capsys.readouterr().out) if one["step"] == "retention"]
    assert (listed["finished_at"], listed["error"], listed["failing_since"]) == (None, "", None)
    assert [one for one in find_problems("default", [], None, standings("default")) if one.kind == "maintenance"] == []

    [outcome] = run_steps("default", [step for step in STEPS if step.name == "retention"])
    assert not outcome.error
    row = MaintenanceStep.objects.get(name="retention")
    assert row.finished_at is not None
    assert row.paused_until == until, "the first run leaves the pause"
    [seen] = [one for one in examine("default") if one.kind == "maintenance"]
    assert seen.severity == "ok"
