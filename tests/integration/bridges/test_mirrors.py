"""Mirrors: another site's topic under the same ids, whatever becomes of it there. The source is the same database."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.test import override_settings
from psycopg.conninfo import make_conninfo

from django_events import (
    BufferedWriter,
    Draft,
    Receipt,
    declarations,
    log_source,
    publish,
    publish_many,
    sql,
    wait_for,
)
from django_events.bridges.inboxes import log_reader
from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.bridges.inboxes.log_reader import LogReader
from django_events.bridges.inboxes.serving import worker_of
from django_events.exceptions import Refused
from django_events.log import ends, segments
from django_events.log.ends import FEW
from django_events.log.inventory import next_scheduled, waiting
from django_events.log.transfer import Transfer
from django_events.maintaining.expiring import expire
from django_events.models import BufferedEvent, Event, Inbox, Topic, TopicHead
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.observing.verifying.proving import verify
from django_events.operating import inboxes
from django_events.operations import erase, lag, remove_inbox, remove_topic, restart_inbox
from django_events.sql import prepared
from django_events.statements import log_table
from django_events.syncing import sync
from django_events.workers.loop import connect_for_work, run
from django_events.workers.stopping import Stop
from tests.support.fix_consumers import serve_due
from tests.support.fix_inboxes import take_in
from tests.support.fix_mirrors import PASSWORD, lose, rows_of
from tests.support.fix_mirrors import run as run_sql
from tests.support.fix_queues import pending
from tests.support.fix_topics import compact_topic, log_values, transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X22")]

SOURCE = log_source("there", broker="shop")
MIRROR = {"source": SOURCE, "name": "there-here", "keep_ids": True}


def row():
    return Inbox.objects.get(name="there-here")


def send(topic, *values, **options):
    publish_many(topic, [Draft(value=value, key=str(value), **options) for value in values])
    transfer_all()


@pytest.fixture
def there(make_topic):
    return make_topic("there", partitions=3, segment_size=100)


@pytest.fixture
def here(make_topic):
    return make_topic("here", partitions=3, segment_size=100)


@pytest.fixture
def mirror(there, here, make_inbox, shop):
    return make_inbox(here, **MIRROR)


def assert_proved(topic="here"):
    found = verify("default", topic=Topic.objects.select_related("head").get(name=topic))
    assert list(found.offenders) == []


def test_a_mirror_has_the_events_of_its_source_as_they_are(there, mirror):
    publish(there, body=b"\0\xff", type="bytes", key="b", metadata={"trace": "1"})
    publish(there, None, type="null")
    publish(there, {"a": [1.10, "ä", 10**30]}, type="json", partition=2)
    send(there, *range(250))
    erase("there", ids=[7], reason="asked for")
    taken = take_in(mirror)

    assert taken == 253
    assert rows_of("here") == rows_of("there")
    assert (row().taken, row().lag, row().error) == (253, 0, "")
    assert row().position["there"]["id"] == 253
    send(there, 251)
    assert take_in(mirror) == 1
    assert rows_of("here") == rows_of("there")
    assert_proved()


def test_consumers_of_a_mirror_work_as_on_any_topic(there, here, mirror, make_consumer, make_queue):
    seen = []
    stream = make_consumer(here, handler=lambda event: seen.append(event.id), name="stream", transactional=False)
    send(there, *range(30))
    take_in(mirror)
    serve_due(stream)
    assert sorted(seen) == list(range(1, 31))
    assert lag(stream) == 0


def test_nothing_is_published_to_a_mirror(there, here, mirror):
    for refused in (
        lambda: publish("here", 1),
        lambda: publish_many("here", [Draft(value=1)]),
        lambda: BufferedWriter("here"),
        lambda: call_command("events", "publish", "here", "1"),
    ):
        with pytest.raises(Exception, match="mirror of shop there"):
            refused()
    with connection.cursor() as cursor:
        for statement in (
            "SELECT django_events_publish('here', '1'::jsonb)",
            "SELECT django_events_open('here')",
            "SELECT django_events_schedule('here', now() + interval '1 day', '1'::jsonb)",
        ):
            with pytest.raises(DatabaseError, match='"here" is a mirror of shop there'):
                cursor.execute(statement)


def test_a_refused_publish_leaves_the_transaction_of_its_caller_alone(there, here, mirror):
    with transaction.atomic():
        with pytest.raises(Refused, match="mirror of shop there"):
            publish("here", 1)
        publish("there", 2)
    transfer_all()
    assert log_values(there) == [2]


def test_code_that_does_not_declare_the_mirror_is_refused_by_the_database(there, here, mirror):
    declarations.inboxes.discard(mirror)
    for refused in (lambda: publish("here", 1), lambda: publish_many("here", [Draft(value=1)])):
        with pytest.raises(Refused, match=r"(?s)mirror of shop there.*only be rolled back"):
            refused()
    with pytest.raises(Exception, match="mirror of shop there"), BufferedWriter("here") as writer:
        writer.publish(1)
    assert log_values(here) == []


def test_a_topic_that_is_no_mirror_any_more_goes_on_by_itself(there, here, mirror):
    send(there, 1, 2)
    take_in(mirror)
    leave(mirror)
    send(here, 3)
    assert log_values(here) == [1, 2, 3]
    assert_proved()


def test_a_process_that_does_not_declare_a_mirror_leaves_it_one(there, here, mirror, make_inbox):
    declarations.inboxes.discard(mirror)
    assert inboxes.sync("default") == []
    with pytest.raises(Refused, match="mirror of shop there"):
        publish("here", 1)
    make_inbox(here, **{**MIRROR, "keep_ids": False})
    publish("here", 1)


@pytest.mark.parametrize("partitions", [1, 3])
def test_ids_of_the_source_are_not_given_again_behind_a_gap_at_the_end(make_topic, make_inbox, shop, partitions):
    there = make_topic("there", partitions=partitions, segment_size=100)
    here = make_topic("here", partitions=partitions, segment_size=100)
    mirror = make_inbox(here, **MIRROR, expired="skip")
    send(there, *range(10))
    take_in(mirror)
    send(there, *range(10, 350))
    with transaction.atomic():
        segments.cut("default", Topic.objects.select_related("head").get(name="there"), last_id=350)
    Topic.objects.filter(name="there").update(retention=timedelta(microseconds=1))
    expire("default", Topic.objects.select_related("head").get(name="there"))
    take_in(mirror)
    assert (row().gone, row().position["there"]["id"]) == (340, 350)
    leave(mirror)
    send(here, *range(1000, 1150))
    assert [event.id for event in Event.objects.of(here).order_by("id")] == [*range(1, 11), *range(351, 501)]
    assert_proved()


@pytest.mark.parametrize("others", [0, FEW], ids=["by a small batch", "behind an end that is trusted"])
def test_a_transfer_that_knows_an_older_end_gives_no_id_of_a_gap(make_topic, make_inbox, shop, monkeypatch, others):
    monkeypatch.setattr(log_reader, "WINDOW", 20)
    monkeypatch.setattr(ends, "TRUSTED_FOR", 3600.0)
    there, here = make_topic("there", segment_size=100, compact=True), make_topic("here", segment_size=1000)
    more = [make_topic(f"other-{n}") for n in range(others)]
    connect_for_work("default")
    transfer = Transfer("default")
    transfer.session = prepared.begin("default", {**sql.BATCH_SETTINGS, **sql.vanishing()})
    for topic in (here, *more):
        publish_many(topic, [Draft(value=n) for n in range(10)])
    assert transfer.move() == 10 + 10 * others

    publish_many(there, [Draft(value=n, key="one") for n in range(350)])
    transfer_all()
    compact(there)
    mirror = make_inbox(here, **MIRROR)
    restart_inbox(mirror, start="10")
    with live(mirror) as worker, closing(Stop()) as stop:
        stop.request()  # or it would go on to what isn't compacted
        worker.work(stop)
    assert (row().position["there"]["id"], log_values(here)) == (30, [*range(10)])

    leave(mirror)
    for topic in (here, *more):
        publish(topic, "late")
    if not others:
        transfer.move_few([Topic.objects.get(name="here").pk])
    transfer.move()
    connection.close()  # with its settings
    assert [event.id for event in Event.objects.of(here).order_by("id")] == [*range(1, 11), 31]
    assert_proved()


def test_a_receipt_of_the_source_is_not_taken_for_one_of_here(there, here, mirror):
    with pytest.raises(Refused, match="mirror of shop there"):
        wait_for(Receipt("here", 1, using="default"))
    with pytest.raises(Refused, match="mirror of shop there"):
        wait_for("here")


def test_expired_events_are_counted_and_waited_in_front_of(there, here, mirror, make_inbox, make_consumer):
    seen = []
    stream = make_consumer(here, handler=lambda event: seen.append(event.value), name="stream", transactional=False)
    send(there, *range(10))
    take_in(mirror)
    send(there, *range(10, 350))
    cut(there, 200)
    take_in(mirror)
    assert "190 messages of 'there' behind 10 were removed" in row().error
    assert "in front of what is left: 201" in row().error
    assert log_values(here) == list(range(10))

    going_on = again(mirror, make_inbox, expired="skip")
    assert take_in(going_on) == 150
    assert rows_of("here")[10:] == rows_of("there")
    assert (row().gone, row().lag) == (190, 0)
    head = TopicHead.objects.get(topic__name="here")
    assert (head.compacted_until, head.kept_events) == (200, 10)
    serve_due(stream)
    assert sorted(seen) == [*range(10), *range(200, 350)]
    assert_proved()


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_retention_removes_while_it_is_read_is_taken_in_or_said(there, here, mirror, monkeypatch, when):
    copied, left = LogReader._copied, [there]

    def interrupted(reader, *arguments):
        if when == "before" and left:
            cut(left.pop(), 200)
        found = copied(reader, *arguments)
        if when == "after" and left:
            cut(left.pop(), 200)
        return found

    send(there, *range(250))
    monkeypatch.setattr(LogReader, "_copied", interrupted)
    take_in(mirror)
    if when == "before":
        assert "200 messages of 'there' behind 0 were removed" in row().error
        assert log_values(here) == []
    else:
        assert row().error == ""
        assert log_values(here) == list(range(250))


def test_a_mirror_begins_where_the_source_begins_or_where_it_is_told_to(there, here, make_inbox, shop, make_consumer):
    seen = []
    stream = make_consumer(here, handler=lambda event: seen.append(event.value), name="stream", transactional=False)
    send(there, *range(350))
    cut(there, 200)
    mirror = make_inbox(here, **MIRROR)
    assert take_in(mirror) == 150
    assert rows_of("here") == rows_of("there")
    assert (row().gone, row().error) == (0, "")
    serve_due(stream)
    assert sorted(seen) == list(range(200, 350))
    assert_proved()
    assert_retained(here)


@pytest.mark.parametrize(("start", "taken"), [("end", 5), ("120", 135)])
def test_a_mirror_may_begin_later(there, here, make_inbox, shop, start, taken):
    send(there, *range(250))
    mirror = make_inbox(here, **MIRROR, start=start)
    take_in(mirror)
    send(there, *range(250, 255))
    take_in(mirror)
    assert row().taken == taken
    assert rows_of("here") == rows_of("there")[-taken:]
    assert_proved()


@pytest.mark.parametrize(("start", "said"), [("9", "ends at 2"), ("x", "no id of an event")])
def test_a_beginning_that_is_not_there_is_said(there, here, make_inbox, shop, start, said):
    send(there, 1, 2)
    take_in(make_inbox(here, **MIRROR, start=start))
    assert said in row().error


def test_what_was_compacted_is_no_loss(make_topic, make_inbox, shop):
    there = make_topic("there", segment_size=100, compact=True)
    here = make_topic("here", segment_size=100)
    publish_many(there, [Draft(value=n, key=str(n % 7)) for n in range(450)])
    transfer_all()
    compact(there)
    mirror = make_inbox(here, **MIRROR, batch_size=100)
    taken = take_in(mirror)
    assert 0 < taken < 450
    assert rows_of("here") == rows_of("there")
    assert (row().gone, row().lag, row().error) == (0, 0, "")
    assert_proved()
    publish_many(there, [Draft(value=n, key=str(n % 7)) for n in range(450, 900)])
    transfer_all()
    compact(there)
    take_in(mirror)
    assert [one[:4] for one in rows_of("here")][-50:] == [one[:4] for one in rows_of("there")][-50:]
    assert_proved()


@pytest.mark.parametrize("compacts", [True, False])
def test_consumers_read_what_compaction_has_left_in_partitions(make_topic, make_inbox, make_consumer, shop, compacts):
    there = make_topic("there", segment_size=100, compact=True, partitions=3)
    here = make_topic("here", segment_size=100, compact=compacts, partitions=3)
    seen = []
    stream = make_consumer(here, handler=lambda event: seen.append(event.id), name="stream", transactional=False)
    publish_many(there, [Draft(value=n, key=str(n % 40 if n < 200 else n % 7)) for n in range(450)])
    transfer_all()
    compact(there)
    mirror = make_inbox(here, **MIRROR, batch_size=10)
    with live(mirror) as worker, closing(Stop()) as stop:
        while worker.work(stop):
            serve_due(stream)
    assert row().lag == 0
    assert sorted(seen) == [one[0] for one in rows_of("there")]
    assert lag(stream) == 0
    assert_proved()


def test_ids_that_are_all_compacted_are_passed(make_topic, make_inbox, shop, monkeypatch):
    monkeypatch.setattr(log_reader, "WINDOW", 20)
    there, here = make_topic("there", segment_size=100, compact=True), make_topic("here", segment_size=100)
    publish_many(there, [Draft(value=n, key="one") for n in range(350)])
    transfer_all()
    compact(there)
    mirror = make_inbox(here, **MIRROR)
    take_in(mirror)
    assert rows_of("here") == rows_of("there")
    assert (row().lag, row().error) == (0, "")
    assert_proved()


def test_a_topic_that_was_made_anew_is_said(there, here, mirror, make_topic):
    send(there, *range(5))
    take_in(mirror)
    declarations.registry.discard(there)
    remove_topic("there", force=True)
    there = make_topic("there", partitions=3)
    send(there, *range(100, 120))
    take_in(mirror)
    assert "removed and made anew" in row().error
    assert "remove-topic" in row().error
    assert log_values(here) == list(range(5))

    restart_inbox(mirror, start="5")
    take_in(mirror)
    assert log_values(here) == [*range(5), *range(105, 120)]
    assert row().error == ""


def test_a_source_that_was_restored_is_said(there, here, mirror):
    send(there, *range(10))
    take_in(mirror)
    lose(there, 6)
    take_in(mirror)
    assert "ends at 6, and the inbox has taken in up to 10" in row().error
    send(there, *range(100, 110))
    take_in(mirror)
    assert "there/10 is another one than the one that the inbox has taken in" in row().error
    assert log_values(here) == list(range(10))

    remove_topic("here", force=True)
    sync("default")
    take_in(mirror)
    assert rows_of("here") == rows_of("there")
    assert row().error == ""


def test_an_event_that_is_missing_without_a_reason_is_said(there, here, mirror):
    send(there, *range(10))
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {log_table(Topic.objects.get(name='there').pk)} WHERE value = '4'")
    take_in(mirror)
    assert "shop:there/5 is missing, and neither retention nor compaction" in row().error
    assert log_values(here) == []


def test_partitions_are_followed_at_the_same_event(there, here, mirror, make_consumer, make_topic):
    order = []
    stream = make_consumer(here, handler=lambda event: order.append((event.key, event.value)), name="stream")
    publish_many(there, [Draft(value=n, key=str(n % 5)) for n in range(20)])
    transfer_all()
    declare_anew(make_topic, there, partitions=5)
    publish_many(there, [Draft(value=n, key=str(n % 5)) for n in range(20, 40)])
    transfer_all()
    take_in(mirror)
    assert log_values(here) == list(range(20))
    assert "divided into 5 partitions behind 20, and topic 'here' here into 3" in row().error
    assert "declare it with partitions=5" in row().error

    declare_anew(make_topic, here, partitions=5)
    take_in(mirror)
    assert rows_of("here") == rows_of("there")
    assert Topic.objects.get(name="here").layouts == Topic.objects.get(name="there").layouts
    serve_due(stream)
    serve_due(stream)
    for key in range(5):
        assert [value for of, value in order if of == str(key)] == list(range(key, 40, 5))
    assert_proved()


def test_other_partitions_than_those_of_the_source_are_said(there, make_topic, make_inbox, shop):
    send(there, 1)
    take_in(make_inbox(make_topic("here", partitions=2), **MIRROR))
    assert "declare it with partitions=3" in row().error
    assert "manage.py migrate --database default" in row().error


def test_a_log_with_events_of_its_own_is_no_mirror(there, here, make_inbox, shop):
    send(here, *range(3))
    send(there, *range(100, 105))
    mirror = make_inbox(here, **MIRROR)
    take_in(mirror)
    assert "ends at 3 here, and can't go on behind 0" in row().error
    assert log_values(here) == [0, 1, 2]


def test_what_waits_in_the_buffer_of_a_mirror_is_said(there, here, make_inbox, shop):
    publish(here, 1)
    mirror = make_inbox(here, **MIRROR)
    take_in(mirror)
    assert "Events wait to be published to topic 'here'" in row().error
    again(mirror, make_inbox, keep_ids=False)
    transfer_all()
    assert log_values(here) == [1]


def publish_late(topic):
    """As a transaction that found no mirror yet, and is committed when it is one."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_events_topic SET mirror_of = '' WHERE name = %s", [topic.name])
        cursor.execute("SELECT django_events_publish(%s, '1000'::jsonb)", [topic.name])
        cursor.execute("UPDATE django_events_topic SET mirror_of = 'shop there' WHERE name = %s", [topic.name])


def test_no_transfer_writes_the_log_of_a_mirror(there, here, mirror, make_inbox):
    send(there, 1, 2)
    take_in(mirror)
    publish_late(here)
    transfer = Transfer("default")
    assert transfer.move() == 0
    publish(there, 3)
    assert transfer.move() == 1
    take_in(mirror)
    assert (log_values(here), row().error) == ([1, 2, 3], "")
    found = find_problems("default", waiting("default"), next_scheduled("default"), standings("default"))
    [said] = [one for one in found if one.kind == "transfer"]
    assert "the topic is a mirror, so no transfer moves them" in said.what

    restart_inbox(mirror, start="3")
    take_in(mirror)
    assert "Events wait to be published to topic 'here'" in row().error
    again(mirror, make_inbox, keep_ids=False)
    assert transfer.move() == 1
    assert log_values(here) == [1, 2, 3, 1000]


def test_the_transfer_of_another_project_leaves_a_mirror_alone(there, here, mirror):
    send(there, 1, 2)
    take_in(mirror)
    publish_late(here)
    declarations.inboxes.discard(mirror)
    transfer = Transfer("default")
    publish(there, 3)
    assert (transfer.move(), transfer.left) == (1, False)
    assert BufferedEvent.objects.count() == 1
    take_in(mirror)
    assert (log_values(here), row().error) == ([1, 2, 3], "")


@pytest.mark.parametrize("others", [0, FEW], ids=["end is read", "end is trusted"])
def test_a_topic_that_becomes_a_mirror_behind_a_look_is_left_alone(make_topic, monkeypatch, others):
    monkeypatch.setattr(ends, "TRUSTED_FOR", 3600.0)
    here, *more = [make_topic(name) for name in ("here", *(f"other-{n}" for n in range(others)))]
    transfer = Transfer("default")
    for topic in (here, *more):
        publish(topic, "first")
    assert transfer.move() == 1 + others
    for topic in (here, *more):
        publish(topic, "late")
    locked_ends = transfer._locked_ends

    def become_a_mirror(topic_ids):
        Topic.objects.filter(name="here").update(mirror_of="shop there")
        return locked_ends(topic_ids)

    monkeypatch.setattr(transfer, "_locked_ends", become_a_mirror)
    assert transfer.move() == others
    assert transfer.move() == 0
    assert log_values(here) == ["first"]
    Topic.objects.filter(name="here").update(mirror_of="")
    monkeypatch.setattr(transfer, "_locked_ends", locked_ends)
    assert transfer.move() == 1
    assert log_values(here) == ["first", "late"]


def test_a_log_that_something_else_has_written_to_is_said(there, here, mirror, make_inbox):
    send(there, 1, 2)
    take_in(mirror)
    publish_late(here)
    declarations.inboxes.discard(mirror)
    Topic.objects.filter(name="here").update(mirror_of="")  # as the transfer of an older release sees it
    transfer_all()
    mirror = make_inbox(here, **MIRROR)
    send(there, 3)
    take_in(mirror)
    assert "ends at 3 here, and the inbox has taken in up to 2" in row().error


def test_a_filter_of_a_queue_that_fails_stops_the_queue_and_not_the_mirror(there, here, mirror, make_queue):
    make_queue(here, name="broken", where='$.n.datetime() < "2026-01-01".datetime()')
    sound = make_queue(here, name="sound")
    publish_many(there, [Draft(value={"n": "2026-01-01T00:00:00Z"})])
    transfer_all()
    take_in(mirror)
    assert rows_of("here") == rows_of("there")
    assert row().error == ""
    states = {one.consumer: one.state for one in standings("default")}
    assert states["broken"] == "stopped"
    assert states["sound"] != "stopped"
    assert pending(sound) == [1]


def test_a_segment_that_retention_has_cut_meanwhile_is_made_anew(there, here, mirror):
    """The worker believes in room that isn't there any more."""
    with live(mirror) as worker:
        send(there, *range(10))
        turns(worker)
        with transaction.atomic():
            topic = Topic.objects.select_related("head").get(name="here")
            TopicHead.objects.select_for_update().get(topic=topic)
            topic.segment_size = 30
            segments.cut("default", topic, last_id=10)
        send(there, *range(10, 90))
        turns(worker)
    assert rows_of("here") == rows_of("there")
    assert row().error == ""
    assert_proved()


def test_a_compacted_mirror_does_not_go_on_without_events(there, make_topic, make_inbox, shop):
    here = make_topic("here", partitions=3, segment_size=100, compact=True)
    mirror = make_inbox(here, **MIRROR, expired="skip")
    send(there, *range(10))
    take_in(mirror)
    send(there, *range(10, 350))
    cut(there, 200)
    take_in(mirror)
    assert "compacted here, and the events from 11 to 200 are gone" in row().error


def test_queues_get_a_delivery_of_each_event(there, here, mirror, make_queue):
    queue = make_queue(here, name="queue")
    send(there, *range(5))
    take_in(mirror)
    assert pending(queue) == [1, 2, 3, 4, 5]


def test_retention_of_a_mirror_is_its_own(there, here, mirror):
    send(there, *range(350))
    take_in(mirror)
    cut(here, 300)
    send(there, *range(350, 355))
    take_in(mirror)
    assert rows_of("here") == rows_of("there")[300:]
    assert_proved()


def test_two_workers_write_each_event_once(there, here, mirror):
    with live(mirror) as first, live(mirror) as second:
        for round_of in range(5):
            send(there, *range(round_of * 10, round_of * 10 + 10))
            turns(first)
            send(there, round_of * 10 + 1_000)
            turns(second)
            turns(first)
    assert rows_of("here") == rows_of("there")


def test_a_worker_that_waits_is_woken_by_the_transfer_of_the_source(there, here, mirror):
    send(there, 1)
    take_in(mirror)
    patient = {**settings.DJANGO_EVENTS, "POLL_INTERVAL": timedelta(minutes=5)}
    with override_settings(DJANGO_EVENTS=patient), live(mirror) as worker:
        turns(worker)
        send(there, 2)
        with closing(Stop()) as stop:
            worker.wait(stop)
        turns(worker)
    assert log_values(here) == [1, 2]


def test_a_worker_that_waits_for_long_keeps_its_connection(there, here, mirror, shop):
    """It hears nothing meanwhile. That is no server that does not answer."""
    send(there, 1)
    patient = {"BROKERS": {"shop": {**shop, "timeout": 1.0}}, "POLL_INTERVAL": timedelta(minutes=5)}
    with override_settings(DJANGO_EVENTS=patient), live(mirror) as worker, closing(Stop()) as stop:
        turns(worker)
        [known] = readers()
        worker.wait(stop)
        assert readers() == [known]


def readers():
    """The sessions that read for inboxes here."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'django_events inbox'"
            " AND datname = current_database()"
        )
        return [pid for (pid,) in cursor.fetchall()]


def test_no_secret_is_said(there, here, mirror, shop):
    send(there, 1)
    for wrong in ({"port": "1"}, {"password": "another-secret"}, {"dbname": "nowhere"}):
        with override_settings(DJANGO_EVENTS={"BROKERS": {"shop": {**shop, **wrong}}}):
            take_in(mirror)
        assert row().error.startswith("The database of 'shop'")
        assert PASSWORD not in row().error
        assert "another-secret" not in row().error
        assert shop["user"] not in row().error
    with override_settings(DJANGO_EVENTS={"BROKERS": {"shop": {"dsn": "postgresql://a:b@c/d@e"}}}):
        take_in(mirror)
    assert "b@c" not in row().error
    with override_settings(DJANGO_EVENTS={"BROKERS": {}}):
        take_in(mirror)
    assert "has no 'shop'" in row().error


def test_a_dsn_is_as_good(there, here, mirror, shop):
    send(there, 1)
    with override_settings(DJANGO_EVENTS={"BROKERS": {"shop": {"dsn": make_conninfo("", **shop)}}}):
        assert take_in(mirror) == 1


def test_a_login_that_may_read_too_little_is_told_what_to_run(there, here, mirror, shop):
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {shop['user']}_2 LOGIN PASSWORD 'x'")
    try:
        with override_settings(
            DJANGO_EVENTS={"BROKERS": {"shop": {**shop, "user": f"{shop['user']}_2", "password": "x"}}}
        ):
            take_in(mirror)
        assert "manage.py events grants --role mirror" in row().error
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP ROLE {shop['user']}_2")


@pytest.fixture
def reader_of_one(there, shop):
    """The settings have a login that may read the list of topics and one log, as the guide says to grant it by hand."""
    login = f"{shop['user']}_one"
    tables = f"django_events_topic, django_events_topichead, {log_table(Topic.objects.get(name='there').pk)}"
    run_sql(f"CREATE ROLE {login} LOGIN PASSWORD '{PASSWORD}'", f"GRANT SELECT ON {tables} TO {login}")
    options = {**shop, "user": login}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"shop": options}}):
        yield options
    run_sql(f"DROP OWNED BY {login}", f"DROP ROLE {login}")


def test_a_login_that_may_read_one_log_alone_is_enough_for_its_mirror(there, here, mirror, make_inbox, reader_of_one):
    send(there, *range(250))
    take_in(mirror)
    send(there, *range(250, 350))  # segments that were made since
    take_in(mirror)
    assert rows_of("here") == rows_of("there")
    assert (row().taken, row().lag, row().error) == (350, 0, "")
    assert_proved()


def test_a_login_that_may_read_one_log_alone_reads_no_other(there, make_topic, make_inbox, reader_of_one):
    other = make_topic("other", partitions=3, segment_size=100)
    send(other, "of another topic")
    send(there, 1)
    take_in(make_inbox(make_topic("copy", partitions=3), source=log_source("other", broker="shop"), name="there-here"))
    assert log_values("copy") == []
    assert "manage.py events grants --role mirror" in row().error
    tables = [log_table(Topic.objects.get(name="other").pk), "django_events_event", "django_events_bufferedevent"]
    with psycopg.connect(**reader_of_one, autocommit=True) as session:
        for table in (*tables, *segments_of(other)):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(f"SELECT FROM {table}")


def segments_of(topic):
    """The tables that the log of a topic is made of."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass",
            [log_table(Topic.objects.get(name=topic.name).pk)],
        )
        return [table for (table,) in cursor.fetchall()]


def test_the_login_of_a_mirror_may_do_nothing_but_read(there, here, mirror, shop):
    send(there, 1)
    with psycopg.connect(**shop, autocommit=True) as session:
        for statement in (
            "SELECT django_events_publish('there', '1'::jsonb)",
            "DELETE FROM django_events_event",
            "UPDATE django_events_topichead SET id_floor = 0",
            "SELECT FROM django_events_consumer",
            "SELECT FROM django_events_webhooksecret",
            "SELECT FROM django_events_bufferedevent",
            "CREATE TABLE mine ()",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(statement)


def test_bridges_shows_a_mirror(there, here, mirror, capsys):
    send(there, 1, 2)
    take_in(mirror)
    call_command("events", "bridges", "--format", "json")
    [shown] = json.loads(capsys.readouterr().out)["inboxes"]
    assert (shown["keeps_ids"], shown["source"], shown["taken"], shown["lag"]) == (True, "shop there", 2, 0)


def again(mirror, make_inbox, **options):
    declarations.inboxes.discard(mirror)
    return make_inbox(mirror.topic, **{**MIRROR, **options})


def leave(mirror):
    """The mirror becomes a topic as any other."""
    declarations.inboxes.discard(mirror)
    remove_inbox(mirror.name)
    inboxes.sync("default")


def declare_anew(make_topic, topic, **options):
    declarations.registry.discard(topic)
    make_topic(topic.name, **{"segment_size": topic.segment_size, **options})


def compact(topic):
    assert compact_topic(topic).segments


def cut(topic, until):
    """Retention removes what is older."""
    left = Event.objects.of(topic).order_by("-id").first().id - until
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_events_topic SET retention_events = %s WHERE name = %s", [left, topic.name])
    expire("default", Topic.objects.select_related("head").get(name=topic.name))
    assert TopicHead.objects.get(topic__name=topic.name).id_floor == until


def assert_retained(topic):
    cut(topic, 300)
    assert_proved(topic.name)


@contextmanager
def live(inbox) -> Iterator[InboxWorker]:
    with closing(worker_of("default", inbox, once=True)) as worker:
        yield worker


def turns(worker):
    with closing(Stop()) as stop:
        run(worker, stop, once=True)
