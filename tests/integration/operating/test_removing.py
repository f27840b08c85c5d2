"""Removing a topic: it is gone in one moment for all who use it, and nothing of it stays behind, whatever happens."""

import json
import threading
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from django_events import Backoff, Draft, declarations, publish, publish_many, redis_source
from django_events.exceptions import InUse, NotReady, Refused, UnknownName
from django_events.log import dropping
from django_events.maintaining.steps import STEPS
from django_events.models import (
    BufferedEvent,
    Consumer,
    DedupKey,
    Delivery,
    Event,
    Inbox,
    Intervention,
    ScheduledEvent,
    StagedEvent,
    Topic,
    TopicHead,
)
from django_events.observing.verifying.proving import verify
from django_events.operations import remove_topic, unregister
from django_events.outcomes import RemovedTopic
from django_events.statements import log_table
from django_events.workers.maintaining import run_steps
from tests.support.fix_consumers import lease_of, run_once
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")

ORPHANS = [step for step in STEPS if step.name == "orphans"]
LATER = timedelta(days=2)


def undeclare(topic):
    declarations.registry.discard(topic)
    return topic


def tables():
    """The tables of logs and segments."""
    with connection.cursor() as cursor:
        cursor.execute(
            r"SELECT relname FROM pg_class WHERE relname ~ '^django_events_event_\d' AND relkind IN ('r', 'p')"
            " ORDER BY relname"
        )
        return {name for (name,) in cursor.fetchall()}


def fill(topic):
    """Something of everything that a topic may have; no app declares it any more."""
    publish_many(topic, [Draft(value=n) for n in range(250)])
    transfer_all()
    publish_many(topic, [Draft(value=n) for n in range(7)])
    publish(topic, "later", publish_at=timezone.now() + LATER)
    publish(topic, "once", dedup_key="k", dedup_window=LATER)
    row = Topic.objects.get(name=topic.name)
    StagedEvent.objects.create(topic=row, attempt=uuid4(), value=1)
    undeclare(topic)
    return row


def assert_nothing_is_left(row, tables_before):
    assert not Topic.objects.filter(name=row.name).exists()
    assert not TopicHead.objects.filter(pk=row.pk).exists()
    for model in (BufferedEvent, ScheduledEvent, StagedEvent, DedupKey, Event):
        assert not model.objects.filter(topic_id=row.pk).exists(), model
    assert not Consumer.objects.filter(topic_id=row.pk).exists()
    assert tables() == tables_before
    assert dropping.forgotten("default") == []
    assert list(verify("default").offenders) == []


# What goes


@pytest.mark.slow
@pytest.mark.requirement("E12")
def test_a_topic_goes_with_all_that_it_has(make_topic):
    make_topic("others")
    before = tables()
    row = fill(make_topic(segment_size=100))
    publish("others", 1)
    would = remove_topic("things", dry_run=True)
    assert would == RemovedTopic("things", 250, 8, 1, 1, (), 0, (), (), finished=False)
    assert Topic.objects.filter(name="things").exists()

    assert remove_topic("things", by="ada") == would._replace(finished=True)
    transfer_all()
    assert Event.objects.since("others").count() == 1
    assert_nothing_is_left(row, before)
    record = Intervention.objects.get()
    assert (record.by, record.action, record.topic, record.consumer) == ("ada", "remove", "things", "")
    assert record.details["events"] == 250


def test_its_name_is_free_and_its_id_is_not(make_topic):
    row = fill(make_topic(segment_size=100))
    remove_topic("things")
    again = make_topic()
    publish(again, "new")
    transfer_all()

    assert Topic.objects.get(name="things").pk > row.pk
    assert list(Event.objects.since(again).values_list("id", "value")) == [(1, "new")]


@pytest.mark.slow
def test_consumers_go_too_if_it_is_forced(make_topic, make_consumer, make_queue):
    before = tables()
    topic = make_topic(segment_size=100)
    make_consumer(topic, name="stream", handler=print)
    queue = make_queue(topic, handler=lambda event: 1 / 0, retry=Backoff(attempts=1))
    fill_topic(topic, *range(5))
    run_once(next(one for one in declarations.consumers if one.name == "queue"))
    assert queue
    row = Topic.objects.get(name="things")
    removed = topic.remove(force=True)

    assert (removed.consumers, removed.dead_letters) == (("stream", "queue"), 5)
    assert not Delivery.objects.exists()
    assert_nothing_is_left(row, before)
    assert list(Intervention.objects.order_by("pk").values_list("action", "consumer")) == [
        ("unregister", "stream"),
        ("unregister", "queue"),
        ("remove", ""),
    ]


# What is refused


@pytest.mark.requirement("E12")
def test_a_topic_that_code_or_a_consumer_names_is_refused(make_topic, make_consumer):
    topic = make_topic()
    reader = make_consumer(topic, handler=print)
    with pytest.raises(Refused, match=r"is declared at .*, so the next migrate would make it"):
        remove_topic(topic)
    undeclare(topic)
    with pytest.raises(Refused, match="is read by reader"):
        remove_topic(topic)
    assert Topic.objects.filter(name="things").exists()

    declarations.consumers.discard(reader)
    unregister(reader)
    assert remove_topic(topic).finished


def test_a_topic_that_is_not_there_is_named(make_topic):
    make_topic()
    with pytest.raises(UnknownName, match="Did you mean 'things'"):
        remove_topic("thing")


def test_what_is_in_hand_is_refused_and_nothing_was_changed(make_topic, make_consumer):
    topic = make_topic()
    reader = make_consumer(topic, handler=print)
    fill_topic(topic, *range(3))
    lease_of(reader)
    with pytest.raises(InUse, match="Nothing was changed"):
        remove_topic(topic, force=True)

    assert Event.objects.since(topic).count() == 3
    assert not Intervention.objects.exists()


def test_not_inside_a_transaction(make_topic):
    undeclare(make_topic())
    with transaction.atomic(), pytest.raises(Refused, match="can't be done inside a transaction"):
        remove_topic("things")


@pytest.mark.slow
def test_of_two_operators_one_removes_it(make_topic, in_thread):
    before = tables()
    row = fill(make_topic(segment_size=100))
    together = threading.Barrier(2)

    def remove():
        together.wait(60)
        return remove_topic("things")

    outcomes = [one.exception(120) or one.result() for one in [in_thread(remove) for _ in range(2)]]
    assert {type(one) for one in outcomes} == {RemovedTopic, UnknownName}
    assert Intervention.objects.count() == 1
    run_steps("default", ORPHANS)
    assert_nothing_is_left(row, before)


# What comes at the worst moment


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_killed_at_any_statement_it_is_there_whole_or_maintenance_removes_the_rest(make_topic, step):
    before = tables()
    at, removed = 0, False
    while not removed:
        row = fill(make_topic(segment_size=100))
        left = [at]

        def killing(execute, statement, parameters, many, context, left=left):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return execute(statement, parameters, many, context)

        try:
            with connection.execute_wrapper(killing):
                remove_topic("things")
            removed = True
        except Killed:
            connection.close()
            if Topic.objects.filter(name="things").exists():
                assert Event.objects.since("things").count() == 250, "half of it is gone"
                assert remove_topic("things").finished
            else:
                run_steps("default", ORPHANS)
        assert_nothing_is_left(row, before)
        at += step

    assert at > 20, "it did next to nothing"


def test_a_publisher_that_commits_afterwards_leaves_nothing(make_topic, connect):
    before = tables()
    row = fill(make_topic())
    late = connect()
    late.execute("SELECT django_events_publish('things', '1'::jsonb)")
    late.execute(
        f"INSERT INTO {ScheduledEvent._meta.db_table} (topic_id, value, publish_at) VALUES (%s, '1', now())", [row.pk]
    )
    remove_topic("things")
    late.commit()
    assert (BufferedEvent.objects.count(), ScheduledEvent.objects.count()) == (1, 1)
    transfer_all()
    run_steps("default", ORPHANS)

    assert_nothing_is_left(row, before)


@pytest.mark.slow
def test_a_log_that_is_locked_goes_with_maintenance(make_topic, connect, capsys):
    before = tables()
    row = fill(make_topic(segment_size=100))
    dump = connect()
    dump.execute(f"SELECT count(*) FROM {log_table(row.pk)}")
    call_command("events", "remove-topic", "things", "--wait", "1", "--execute")
    assert "Some of its tables are locked by other sessions: maintenance drops them." in capsys.readouterr().out
    make_topic()  # which would take over a log that lost its row
    assert not Event.objects.since("things").exists()
    remove_topic("things", force=True, wait=timedelta(0))
    declarations.registry.discard(declarations.registry.get("things"))
    assert run_steps("default", ORPHANS)[0].result["waiting"] == 2  # a reader of one log locks their common root
    dump.rollback()
    assert run_steps("default", ORPHANS)[0].result == {"deleted": 0}

    assert_nothing_is_left(row, before)


@pytest.mark.slow
def test_transfers_and_publishers_of_other_topics_lose_nothing(make_topic, in_thread):
    others = make_topic("others")
    before = tables()
    over, published = threading.Event(), []

    def go_on_publishing():
        while not over.is_set():
            with transaction.atomic():
                publish_many(others, [Draft(value=len(published) + n) for n in range(10)])
            published.extend(range(10))
            with suppress(UnknownName, NotReady):  # it comes and goes
                publish("things", 1)

    def go_on_moving():
        while not over.is_set():
            transfer_all()

    busy = [in_thread(go_on_publishing), in_thread(go_on_moving), in_thread(go_on_moving)]
    try:
        for _ in range(5):
            topic = make_topic(segment_size=100)
            publish_many(topic, [Draft(value=n) for n in range(300)])
            row = Topic.objects.get(name="things")
            assert topic.remove(force=True).finished
            undeclare(topic)
    finally:
        over.set()
        for one in busy:
            one.result(60)
    transfer_all()
    run_steps("default", ORPHANS)

    assert list(Event.objects.since(others).values_list("value", flat=True)) == list(range(len(published)))
    assert_nothing_is_left(row, before)


def test_what_fills_a_topic_is_named_before_it_is_forgotten(make_topic, make_inbox, olga):
    topic = make_topic()
    row = fill(topic)
    make_inbox(topic, source=redis_source("bank"))
    would = remove_topic("things", force=True, dry_run=True)
    assert (would.clocks, would.inboxes) == ((), ("things-in",))
    page = olga.get(f"/admin/django_events/topic/{row.pk}/remove/").content.decode()
    assert "How far its clocks and inboxes are is forgotten: things-in." in page

    assert remove_topic("things", force=True).inboxes == ("things-in",)
    assert not Inbox.objects.exists()


# The command


def test_the_command_shows_first_what_it_would_do(make_topic, capsys):
    fill(make_topic())
    call_command("events", "remove-topic", "things")
    printed = capsys.readouterr().out
    assert "events in the log  250" in printed
    assert "Nothing was changed. To do it, say the same with --execute." in printed
    call_command("events", "remove-topic", "things", "--execute", "--by", "ada", "--format", "json")

    assert json.loads(capsys.readouterr().out) == {
        "executed": True,
        "topic": "things",
        "events": 250,
        "buffered": 8,
        "scheduled": 1,
        "dedup_keys": 1,
        "consumers": [],
        "dead_letters": 0,
        "clocks": [],
        "inboxes": [],
        "finished": True,
    }


# The admin


@pytest.fixture
def olga():
    """Who may do everything in the admin; what she leaves there is deleted."""
    client = Client()
    client.force_login(User.objects.create_superuser("olga"))
    yield client
    for model in (LogEntry, Session, User):
        model.objects.all().delete()


@pytest.mark.slow
def test_the_admin_says_what_goes_and_asks_for_its_name(make_topic, olga):
    before = tables()
    row = fill(make_topic(segment_size=100))
    page = f"/admin/django_events/topic/{row.pk}/"
    assert f'href="{page}remove/"' in olga.get(f"{page}change/").content.decode()
    asked = olga.get(f"{page}remove/").content.decode()
    assert (
        "250 events in the log, 8 events in the buffer and 1 event scheduled; 0 dead letters of its consumers" in asked
    )
    assert "This is not its name: things" in olga.post(f"{page}remove/", {"name": "thing"}).content.decode()
    assert Topic.objects.filter(name="things").exists()

    answer = olga.post(f"{page}remove/", {"name": "things"}, follow=True)
    assert answer.redirect_chain == [("/admin/django_events/topic/", 302)]
    assert "Topic things is removed." in answer.content.decode()
    assert Intervention.objects.get().by == "olga"
    assert LogEntry.objects.get().get_change_message() == "Topic things is removed."
    assert_nothing_is_left(row, before)


def test_the_admin_says_why_it_is_refused(make_topic, make_consumer, olga):
    topic = make_topic()
    make_consumer(topic, handler=print)
    page = f"/admin/django_events/topic/{Topic.objects.get(name='things').pk}/remove/"
    answer = olga.post(page, {"name": "things"}, follow=True).content.decode()
    assert "so the next migrate would make it again, empty. Nothing was changed." in answer
    assert "reader" in answer
    assert Topic.objects.filter(name="things").exists()

    olga.post(page, {"name": "things", "force": "on"})
    assert not Topic.objects.filter(name="things").exists()
