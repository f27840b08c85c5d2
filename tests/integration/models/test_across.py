"""One topic of several databases, read as if it were one log."""

from datetime import timedelta

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

from django_events import ReceivedEvent
from django_events.log.transfer import Transfer
from django_events.models import Event, Topic
from django_events.models import events as events_module
from django_events.models.databases import databases
from django_events.statements import log_table
from django_events.syncing import sync
from tests.support.fix_consumers import run_once
from tests.support.fix_topics import transfer_all

pytestmark = [
    pytest.mark.requirement("E11"),
    pytest.mark.django_db(transaction=True, databases=["default", "archive"]),
]


@pytest.fixture
def prices(archive, make_topic):
    """A topic of both databases."""
    made = make_topic("prices")
    sync(archive)
    yield made
    row = Topic.objects.using(archive).get(name="prices")
    with connections[archive].cursor() as cursor:
        cursor.execute(f"DROP TABLE {log_table(row.pk)} CASCADE")


def publish_in_turn(topic, number):
    """Each event is in the log before the next is published: in one database, then in the other."""
    for value in range(number):
        using = ("default", "archive")[value % 2]
        topic.publish(value, type="even" if value % 4 < 2 else "odd", using=using)
        Transfer(using).move()


@pytest.mark.slow
def test_events_come_by_time_and_say_where_they_are_from(archive, prices, monkeypatch):
    monkeypatch.setattr(events_module, "PAGE", 2)
    publish_in_turn(prices, 9)

    found = list(Event.objects.across(prices, ["default", "archive"]))
    assert [one.value for one in found] == list(range(9))
    assert [one.database for one in found] == ["default", "archive"] * 4 + ["default"]
    newest = Event.objects.across("prices", newest_first=True)
    assert [next(newest).value for _ in range(3)] == [8, 7, 6]
    assert [one.value for one in Event.objects.filter(type="odd").across(prices)] == [2, 3, 6, 7]


@pytest.mark.slow
def test_a_stretch_of_time_of_both(archive, prices):
    publish_in_turn(prices, 6)
    times = [one.logged_at for one in Event.objects.across(prices)]

    found = Event.objects.across(prices, start=times[1], end=times[4])
    assert [one.value for one in found] == [1, 2, 3]
    assert list(Event.objects.across(prices, start=timezone.now() + timedelta(days=1))) == []


@pytest.mark.slow
def test_a_database_that_can_t_be_reached_is_an_error_and_is_not_left_out(archive, prices, monkeypatch):
    publish_in_turn(prices, 2)
    connections[archive].close()
    nowhere = {**connections[archive].get_connection_params(), "host": "127.0.0.1", "port": 1}
    with monkeypatch.context() as patch:
        patch.setattr(connections[archive], "get_connection_params", lambda: nowhere)
        with pytest.raises(OperationalError):
            list(Event.objects.across(prices))


@pytest.mark.slow
def test_a_handler_knows_the_database_of_its_event(transactional_db, make_topic, make_consumer):
    seen = []

    def handler(event: ReceivedEvent) -> None:
        seen.append((event.consumer, event.database, event.with_attempt(2).database))

    things = make_topic("things")
    readers = [
        make_consumer(things, handler=handler, name="reader"),
        make_consumer(things, handler=handler, name="picker", mode="queue"),
    ]
    things.publish(1)
    transfer_all()
    run_once(*readers)

    assert sorted(seen) == [("picker", "default", "default"), ("reader", "default", "default")]


@pytest.mark.slow
def test_all_databases_that_hold_topics_the_usual_one_first(archive):
    assert databases() == ["default", "archive"]
