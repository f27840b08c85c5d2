"""A copy of an event of the log: nothing of it changes, and it is an event like any other."""

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_events import event_context, publish
from django_events.exceptions import InvalidEvent, NotInTransaction, NotReady, UnknownName
from django_events.models import BufferedEvent, Event, Topic
from django_events.operations import publish_again
from django_events.signals import event_published
from tests.support.fix_topics import assert_dense, transfer_all

pytestmark = pytest.mark.django_db


def rows(topic):
    """What is stored, JSON as the server writes it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT value::text, body, type, key, partition, (metadata - 'copy_of')::text, metadata ->> 'copy_of'"
            " FROM django_events_event WHERE topic_id = %s ORDER BY id",
            [Topic.objects.get(name=topic.name).pk],
        )
        return [tuple(bytes(o) if isinstance(o, memoryview) else o for o in row) for row in cursor.fetchall()]


def publish_sql(value):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT django_events_publish('lanes', %s::jsonb, type => 'made', key => 'k', metadata => %s::jsonb)",
            [value, '{"n": 1e400}'],
        )


@pytest.mark.parametrize(
    "value",
    [
        "null",
        '{"big": 1e400, "exact": 0.10000000000000000000000000001, "trailing": 1.500}',
        "[" * 5_000 + "]" * 5_000,
        '{"text": "\\ud83d\\ude00 %s {log}"}',
    ],
    ids=["null", "numbers", "deep", "text"],
)
def test_a_copy_is_the_same_to_the_byte(lanes, value):
    publish_sql(value)
    transfer_all()
    receipt = publish_again(lanes, 1)
    assert (receipt.topic, receipt.new) == ("lanes", True)
    assert receipt.ticket == BufferedEvent.objects.values_list("id", flat=True).get()
    transfer_all()
    original, copy = rows(lanes)
    assert copy[:-1] == original[:-1]
    assert (original[-1], copy[-1]) == (None, "lanes/1")
    assert_dense(lanes)


def test_a_copy_of_a_body(lanes):
    publish(lanes, body=b"\x00\xff%s", key="k")
    transfer_all()
    publish_again("lanes", 1)
    transfer_all()
    original, copy = rows(lanes)
    assert copy[:-1] == original[:-1]
    assert copy[1] == b"\x00\xff%s"


def test_the_partition_follows_from_the_key(lanes):
    publish(lanes, 1, key="k")
    transfer_all()
    of_key = Event.objects.at(lanes, 1).partition
    publish(lanes, 2, key="k", partition=(of_key + 1) % 4)
    transfer_all()
    publish_again(lanes, 2)
    transfer_all()
    assert Event.objects.at(lanes, 3).partition == of_key


def test_a_copy_of_a_copy_names_what_it_was_copied_from(things):
    publish(things, 1)
    transfer_all()
    for event_id in (1, 2):
        publish_again(things, event_id)
        transfer_all()
    assert [e.metadata for e in Event.objects.since(things)] == [{}, {"copy_of": "things/1"}, {"copy_of": "things/2"}]


def test_what_the_original_says_wins_over_the_context(things):
    publish(things, 1, metadata={"user": "ada"})
    transfer_all()
    with event_context(user="bob", request=7):
        publish_again(things, 1)
    transfer_all()
    assert Event.objects.at(things, 2).metadata == {"user": "ada", "request": 7, "copy_of": "things/1"}


def test_it_is_of_the_callers_transaction(things):
    publish(things, 1)
    transfer_all()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        publish_again(things, 1)
        1 / 0  # noqa: B018
    assert not BufferedEvent.objects.exists()


def test_what_is_not_there_can_not_be_copied(things, undiscovered):
    with pytest.raises(Event.DoesNotExist, match="There is no event things/1 in the log"):
        publish_again(things, 1)
    with pytest.raises(UnknownName):
        publish_again("nothing", 1)
    with pytest.raises(NotReady, match=r"manage\.py migrate"):
        publish_again(undiscovered, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_where_a_transaction_is_required(things):
    publish(things, 1)
    transfer_all()
    with override_settings(DJANGO_EVENTS={"REQUIRE_TRANSACTION": True}), pytest.raises(NotInTransaction):
        publish_again(things, 1)


def test_receivers_hear_of_it(things, django_capture_on_commit_callbacks):
    told = []

    def hear(sender, topic, type, count, using, **kwargs):
        told.append((sender, topic, type, count, using))

    publish(things, 1, type="made")
    transfer_all()
    event_published.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            publish_again(things, 1)
    finally:
        event_published.disconnect(hear)
    assert told == [(things, "things", "made", 1, "default")]


def test_a_key_that_is_taken_publishes_no_second_copy(things):
    things.publish({"n": 1})
    transfer_all()

    first = publish_again(things, 1, dedup_key="button 7")
    again = publish_again(things, 1, dedup_key="button 7")

    assert first.new and first.ticket is not None
    assert (again.new, again.ticket) == (False, None)
    assert BufferedEvent.objects.count() == 1


def test_a_key_of_an_event_that_is_not_there_stays_free(things):
    with pytest.raises(Event.DoesNotExist):
        publish_again(things, 1, dedup_key="button 7")
    things.publish({"n": 1})
    transfer_all()

    assert publish_again(things, 1, dedup_key="button 7").new


@pytest.mark.parametrize("key", ["x" * 513, 7, "\x00"])
def test_a_dedup_key_that_is_none_is_refused(things, key):
    with pytest.raises(InvalidEvent, match="dedup_key"):
        publish_again(things, 1, dedup_key=key)
