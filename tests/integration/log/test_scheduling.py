"""Scheduled events: published when their time has come, in the order of their times, by whichever transfer is there."""

import json
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, transaction
from django.db.models import F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_events import Draft, cancel, publish, publish_many, sql
from django_events.exceptions import InvalidEvent, UnknownName
from django_events.log import channel
from django_events.log.inventory import next_scheduled
from django_events.log.pending import SQL as PENDING_SQL
from django_events.log.schedule import SQL as SCHEDULE_SQL
from django_events.log.schedule import Schedule
from django_events.log.transfer import Transfer
from django_events.models import BufferedEvent, Event, ScheduledEvent
from django_events.models.functions import ClockTimestamp
from tests.plans.test_plans import explain, scans
from tests.support.fix_topics import assert_dense, log_values, transfer_all

committing = pytest.mark.usefixtures("transactional_db")
rolled_back = pytest.mark.django_db
IN_ONE_DATABASE = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

HOUR = timedelta(hours=1)


def now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def let_time_pass(by: timedelta) -> None:
    """Tests move rows, not clocks."""
    ScheduledEvent.objects.update(publish_at=F("publish_at") - by)


@pytest.mark.requirement("P2")
@rolled_back
def test_it_is_published_when_its_time_has_come_and_not_before(things):
    receipt = publish(things, {"id": 7}, type="order.reminded", key="7", metadata={"a": 1}, publish_at=now() + HOUR)
    assert receipt.new
    assert transfer_all() == 0
    assert log_values(things) == []

    let_time_pass(2 * HOUR)
    assert transfer_all() == 1
    [event] = Event.objects.since(things)
    assert (event.value, event.type, event.key, event.metadata) == ({"id": 7}, "order.reminded", "7", {"a": 1})
    assert not ScheduledEvent.objects.exists()
    assert transfer_all() == 0


@pytest.mark.requirement("P2")
@rolled_back
def test_bytes_and_a_partition_arrive_too(lanes):
    publish(lanes, body=b"\0\xff", partition=3, publish_at=now() - HOUR)
    transfer_all()

    [event] = Event.objects.since(lanes)
    assert (bytes(event.body), event.value, event.partition) == (b"\0\xff", None, 3)


@pytest.mark.requirement("P2")
@rolled_back
def test_they_come_in_the_order_of_their_times_and_those_of_one_time_as_they_were_published(things):
    at = now() - HOUR
    publish(things, "last", publish_at=at + timedelta(seconds=2))
    publish_many(things, [Draft(value=f"same {i}", publish_at=at + timedelta(seconds=1)) for i in range(5)])
    publish(things, "first", publish_at=at)
    transfer_all()

    assert log_values(things) == ["first", *(f"same {i}" for i in range(5)), "last"]


@pytest.mark.slow
@pytest.mark.requirement("P2")
@committing
@IN_ONE_DATABASE
@given(
    seconds=st.lists(st.integers(-3_600, -1), min_size=1, max_size=30),
    batch_size=st.integers(1, 7),
)
def test_whatever_the_times_and_the_batches_the_log_is_in_the_order_of_the_times(things, seconds, batch_size):
    before = len(log_values(things))
    at = now()
    publish_many(things, [Draft(value=s, publish_at=at + timedelta(seconds=s)) for s in seconds])
    transfer_all(batch_size=batch_size)

    assert log_values(things)[before:] == sorted(seconds)
    assert_dense(things)


@pytest.mark.requirement("P2")
@rolled_back
def test_the_time_is_the_databases_whatever_the_zone_of_the_session(things):
    at = now()  # Django takes what a session says for UTC
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TimeZone = 'Asia/Kolkata'")
    publish(things, "due", publish_at=at.astimezone(ZoneInfo("Asia/Tokyo")) - timedelta(seconds=1))
    publish(things, "later", publish_at=at + HOUR)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TimeZone = 'America/Chicago'")
    transfer_all()

    assert log_values(things) == ["due"]


@rolled_back
def test_a_mixture_is_published_now_and_later(things):
    at = now() + HOUR
    drafts = [Draft(value="now"), Draft(value="later", publish_at=at), Draft(value="now too")]
    assert publish_many(things, drafts) == 3
    transfer_all()

    assert log_values(things) == ["now", "now too"]
    assert [one.value for one in ScheduledEvent.objects.of(things)] == ["later"]


@pytest.mark.requirement("E3")
@committing
def test_what_is_scheduled_rolls_back_with_its_transaction(things):
    with transaction.atomic():
        publish(things, 1, publish_at=now() - HOUR)
        publish_many(things, [Draft(value=2, publish_at=now() - HOUR)])
        transaction.set_rollback(True)

    assert transfer_all() == 0
    assert not ScheduledEvent.objects.exists()


@committing
def test_one_that_commits_late_is_published_behind_those_that_were(things, connect):
    transfer = Transfer("default")
    session = connect()
    session.execute("SELECT django_events_schedule('things', clock_timestamp() - interval '1 hour', '\"late\"')")
    publish(things, "in time", publish_at=now() - timedelta(minutes=1))
    assert transfer.move() == 1
    session.commit()
    transfer.schedule._look_back_at = 0.0  # a second later
    while transfer.move():
        pass

    assert log_values(things) == ["in time", "late"]


@committing
def test_a_transfer_does_not_wait_for_who_cancels_one_and_publishes_it_if_that_rolls_back(things, connect):
    ticket = publish(things, "locked", publish_at=now() - HOUR).ticket
    publish(things, "free", publish_at=now() - timedelta(minutes=1))
    session = connect()
    session.execute("DELETE FROM django_events_scheduledevent WHERE id = %s", [ticket])
    assert transfer_all() == 1
    session.rollback()
    transfer_all()

    assert log_values(things) == ["free", "locked"]


@committing
def test_one_transfer_at_a_time_publishes_what_is_due(things, connect):
    publish(things, "due", publish_at=now() - HOUR)
    other = connect()
    other.execute("SELECT pg_advisory_xact_lock(%s)", [channel.PUBLISHING_DUE])
    transfer = Transfer("default")
    assert transfer.move() == 0
    assert transfer.schedule.pause is None, "it would look again and again"
    other.commit()

    assert transfer.move() == 1


@committing
def test_what_waits_in_the_buffer_does_not_wait_for_what_is_due(things):
    publish_many(things, [Draft(value="due", publish_at=now() - HOUR)] * 25)
    publish(things, "waiting")
    assert transfer_all(batch_size=10) == 26

    assert log_values(things)[0] == "waiting"


@rolled_back
def test_a_transfer_knows_when_the_next_one_is_due(things):
    transfer = Transfer("default")
    assert (transfer.move(), transfer.schedule.pause) == (0, None)
    publish(things, 1, publish_at=now() + HOUR)
    publish(things, 2, publish_at=now() + timedelta(seconds=20))
    transfer.move()

    assert 0 < transfer.schedule.pause <= 20.1


@rolled_back
def test_times_without_end_or_beginning_do_no_harm(things):
    """Plain SQL may say so."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT django_events_schedule('things', 'infinity', '\"never\"')")
        cursor.execute("SELECT django_events_schedule('things', '-infinity', '\"always\"')")
    transfer_all()

    assert log_values(things) == ["always"]
    assert next_scheduled("default") is None


# Refusals


@pytest.mark.parametrize("at", [datetime(2026, 1, 1), "2026-01-01", 5, timedelta(hours=1)])
@rolled_back
def test_what_is_no_time_with_a_zone_is_refused(things, at):
    with pytest.raises(InvalidEvent, match=r"publish_at is .*expected a datetime with a time zone"):
        publish(things, 1, publish_at=at)
    with pytest.raises(InvalidEvent, match=r"drafts\[0\]: publish_at is"):
        publish_many(things, [Draft(value=1, publish_at=at)])
    assert not BufferedEvent.objects.exists() and not ScheduledEvent.objects.exists()


@pytest.mark.parametrize(
    "at", [datetime.max.replace(tzinfo=timezone(-5 * HOUR)), datetime.min.replace(tzinfo=timezone(5 * HOUR))]
)
@rolled_back
def test_a_time_that_not_every_zone_can_say_is_refused(things, at):
    with pytest.raises(InvalidEvent, match="expected a year from 1900 to 9000"):
        publish(things, 1, publish_at=at)


# Cancelling


@rolled_back
def test_one_is_cancelled_by_its_ticket_once(things, lanes):
    kept, gone = (publish(things, i, publish_at=now() + HOUR) for i in range(2))
    assert cancel(lanes, gone.ticket) is False, "a ticket of another topic"
    assert cancel(things, gone.ticket) is True
    assert cancel(things, gone.ticket) is False
    let_time_pass(2 * HOUR)
    transfer_all()

    assert log_values(things) == [0]
    assert cancel(things, kept.ticket) is False, "it is published"


@rolled_back
def test_a_ticket_of_an_event_that_is_published_now_is_of_no_other(things):
    tickets = []
    for _ in range(3):
        tickets.append(publish(things, 1).ticket)
        tickets.append(publish(things, 1, publish_at=now() + HOUR).ticket)

    assert tickets == sorted(set(tickets))
    assert [cancel(things, ticket) for ticket in tickets] == [False, True] * 3


@committing
def test_a_cancellation_that_rolls_back_was_none(things):
    ticket = publish(things, 1, publish_at=now() + HOUR).ticket
    with transaction.atomic():
        assert cancel(things, ticket)
        transaction.set_rollback(True)

    assert cancel(things, ticket)


@rolled_back
def test_cancelling_in_a_topic_that_is_not_declared_is_refused():
    with pytest.raises(UnknownName):
        cancel("nothing", 1)


@rolled_back
def test_they_are_ordinary_rows_until_then(things):
    publish(things, 1, key="a", publish_at=now() + HOUR)
    publish(things, 2, key="b", publish_at=now() + HOUR)
    ScheduledEvent.objects.of(things).filter(key="a").delete()
    ScheduledEvent.objects.of(things).filter(key="b").update(publish_at=ClockTimestamp() - timedelta(seconds=1))
    transfer_all()

    assert log_values(things) == [2]


# Cost


@pytest.mark.requirement("P2")
@rolled_back
def test_looking_for_the_next_one_and_taking_what_is_due_read_the_index(things):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_scheduledevent (topic_id, publish_at, value)"
            " SELECT t.id, clock_timestamp() + n * interval '1 second', '1'"
            " FROM django_events_topic AS t, generate_series(1, 20000) AS n WHERE t.name = 'things'"
        )
        cursor.execute("ANALYZE django_events_scheduledevent")
    with sql.batch("default"):
        looking = explain(
            PENDING_SQL.pending,
            topic_ids=[],
            marks=[],
            only=None,
            batch_size=10,
            scheduled_from="-infinity",
            clocks=[],
        )
        taking = explain(
            SCHEDULE_SQL.publish_due,
            lock=channel.PUBLISHING_DUE,
            scheduled_from="-infinity",
            ahead=timedelta(0),
            limit=100,
        )
    for plan in (looking, taking):
        how = {way for way, table in scans(plan) if table == "django_events_scheduledevent"}
        assert how <= {"Index Scan", "Index Only Scan"}, json.dumps(plan, indent=1, default=str)
        assert any(node.get("Index Name") == "django_events_scheduled_due" for node in plan)


@rolled_back
def test_the_way_over_rows_that_were_published_is_not_gone_each_time(things):
    schedule = Schedule("default")
    assert schedule.asked() == "-infinity"
    publish(things, 1, publish_at=now() - HOUR)
    schedule.answered(-1.0)
    assert schedule.is_due
    assert schedule.publish(limit=10) == 1

    assert schedule.asked() != "-infinity"
    schedule.forget()
    assert schedule.asked() == "-infinity"


@rolled_back
def test_the_next_one_is_known_to_a_worker_that_looks(things):
    assert next_scheduled("default") is None
    publish(things, 1, publish_at=now() - HOUR)

    found = next_scheduled("default")
    assert (found.topic, found.overdue > HOUR) == ("things", True)
