"""Which processes work: told by leases, sessions and maintenance, and never by a heartbeat."""

import json
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection

from django_events import Draft, publish_many
from django_events.consuming.programs.claiming import claim
from django_events.models import Consumer, DeadLetter, DeliveryLease, MaintenanceStep, Position
from django_events.models.functions import ClockTimestamp
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.observing.workers import at_work, look
from django_events.sql.direct import raw
from tests.support.fix_consumers import lease_of
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(autouse=True)
def no_steps(transactional_db):
    MaintenanceStep.objects.all().delete()


def take(event): ...


def fill(topic, number=4):
    publish_many(topic, [Draft(value=n, key=str(n)) for n in range(number)])
    transfer_all()


def test_a_stream_in_hand_names_process_thread_and_event(things, make_consumer):
    reader = make_consumer(things, handler=take, lease=timedelta(seconds=30))
    assert at_work("default") == []
    fill(things)
    lease_of(reader)
    Position.objects.filter(token__isnull=False).update(holder="web-1:4711/2")

    [worker] = at_work("default")
    assert (worker.host, worker.pid, worker.threads, worker.consumers) == ("web-1", "4711", ["2"], [reader.name])
    [one] = worker.in_hand
    assert (one.topic, one.event is not None, one.events, one.lost) == (things.name, True, None, False)
    assert one.renewed_at == one.leased_until - timedelta(seconds=30) == worker.seen_at
    assert worker.since == one.since

    Position.objects.filter(token__isnull=False).update(leased_until=ClockTimestamp() - timedelta(seconds=9))
    [worker] = at_work("default")
    assert worker.lost


def test_deliveries_in_hand_of_several_processes(things, make_consumer):
    queue = make_consumer(things, handler=take, mode="queue", name="emails")
    fill(things)
    with claim(queue, 3) as claimed:
        assert len(claimed) == 3
        DeliveryLease.objects.update(holder="mailer")
        DeliveryLease.objects.create(
            token=1, consumer_id=DeliveryLease.objects.get().consumer_id, leased_until=ClockTimestamp(),
            holder="web-2:12/1", event_ids=[],
        )  # fmt: skip
        [gone, here] = at_work("default")
    assert (gone.name, gone.lost, gone.in_hand[0].event) == ("web-2:12", True, None)
    assert (here.name, here.pid, here.in_hand[0].event, here.in_hand[0].events) == ("mailer", "", 1, 3)
    DeliveryLease.objects.all().delete()


def test_a_session_that_listens_and_a_process_of_maintenance_are_seen(things):
    MaintenanceStep.objects.create(
        name="samples", started_at=ClockTimestamp(), finished_at=ClockTimestamp(), holder="web-3:9"
    )
    other = raw("default", connect_timeout=5)
    try:
        other.execute('LISTEN "django_events_log"')
        pid = other.info.backend_pid
        seen = look("default")
    finally:
        other.close()

    assert [one.what for one in seen.sessions if one.pid == pid] == ["listens"]
    assert [(one.holder, one.steps) for one in seen.maintainers] == [("web-3:9", ["samples"])]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')")
        assert seen.sees_all is cursor.fetchone()[0]


def test_the_command_says_it_for_people_and_for_programs(things, make_consumer, capsys):
    call_command("events", "workers")
    assert "No worker has anything in hand." in capsys.readouterr().out
    fill(things)
    lease_of(make_consumer(things, handler=take))
    Position.objects.filter(token__isnull=False).update(holder="web-1:4711/2")
    call_command("events", "workers")
    told = capsys.readouterr().out
    assert "web-1" in told and "4711" in told and "An idle worker writes nothing" in told
    call_command("events", "workers", "--format", "json")
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["workers", "sessions", "maintenance", "sees_all"]
    assert data["workers"][0]["in_hand"][0]["topic"] == things.name


def named():
    """The event that each of the two looks says is in hand."""
    [worker] = at_work("default")
    Position.objects.filter(token__isnull=False).update(served_at=ClockTimestamp() - timedelta(minutes=11))
    hung, *_ = [one for one in find_problems("default", [], None, standings("default")) if one.kind == "hung"]
    return worker.in_hand[0].event, hung.what.partition(" has had ")[2].partition(" in hand ")[0]


def test_an_event_of_another_partition_is_not_said_to_be_in_hand(lanes, make_consumer):
    """Events of other partitions lie between those of one: which is the next one behind a position isn't known."""
    reader = make_consumer(lanes, handler=take)
    fill(lanes, 12)
    assert any(lease_of(reader, lane) for lane in range(4))

    assert named() == (None, "lanes")
    Position.objects.filter(token__isnull=False).update(attempted=7)
    assert named() == (7, "lanes/7")


def test_a_dead_letter_that_is_handled_again_is_not_taken_for_the_next_event(things, make_consumer):
    """The worker may have either in hand. Behind the last event of the log there is none."""
    reader = make_consumer(things, handler=take)
    fill(things, 1)
    Position.objects.filter(consumer__name=reader.name).update(position=1, number=1)
    row = Consumer.objects.get(name=reader.name)
    letter = DeadLetter.objects.create(
        consumer=row, event_id=1, partition=0, number=1, type="t", key="0", value=0, metadata={}, attempts=1,
        published_at=row.registered_at, logged_at=row.registered_at, redrive_at=ClockTimestamp(),
    )  # fmt: skip
    assert lease_of(reader) is not None

    assert named() == (None, "things")
    letter.delete()
