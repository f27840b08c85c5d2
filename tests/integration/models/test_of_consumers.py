"""What consumers have in hand, have finished and gave up on, asked by names that may be misspelt."""

import pytest
from django.db import transaction
from django.db.models import Count
from django.utils import timezone

from django_events.exceptions import UnknownName
from django_events.models import Consumer, DeadLetter, Delivery, PastDelivery, Topic

pytestmark = pytest.mark.django_db
KINDS = pytest.mark.parametrize("rows", [DeadLetter.objects, Delivery.objects, PastDelivery.objects], ids=str)


@pytest.fixture
def packing(make_topic):
    """A consumer of two topics, and another one."""
    for name, topic in (("packing", "things"), ("packing", "lanes"), ("search", "others")):
        make_topic(topic)
        Consumer.objects.create(topic=Topic.objects.get(name=topic), name=name)


@KINDS
@pytest.mark.parametrize(
    "ask",
    [
        lambda rows: list(rows),
        lambda rows: rows.count(),
        lambda rows: rows.exists(),
        lambda rows: rows.filter(event_id=7).first(),
        lambda rows: rows.aggregate(Count("event_id")),
        lambda rows: list(Consumer.objects.filter(pk__in=rows.order_by().values("consumer"))),
        lambda rows: rows.delete(),
    ],
    ids=["all", "count", "exists", "first", "aggregate", "in another query", "delete"],
)
def test_a_consumer_that_is_not_registered_is_unknown(packing, rows, ask):
    asked = rows.of("paking")
    with pytest.raises(UnknownName, match=r"^No consumer 'paking' is registered in the database 'default'\. .*packing"):
        ask(asked)


@KINDS
def test_a_topic_that_a_consumer_does_not_read_is_unknown(packing, rows):
    for topic in ("others", "thing"):
        with pytest.raises(UnknownName, match=f"^Consumer 'packing' doesn't read topic '{topic}'"):
            rows.of("packing", topic=topic).exists()


@pytest.mark.parametrize("rows", [Delivery.objects, PastDelivery.objects], ids=str)
def test_an_event_of_a_topic_that_the_database_does_not_have_is_unknown(packing, rows):
    with pytest.raises(UnknownName, match='There is no topic "thing" in this database'), transaction.atomic():
        rows.at("thing", 1).exists()
    assert not rows.at("things", 1).exists()


def test_letters_of_a_consumer_and_of_one_of_its_topics(packing):
    for consumer in Consumer.objects.order_by("pk"):
        DeadLetter.objects.create(
            consumer=consumer,
            event_id=1,
            partition=0,
            number=1,
            metadata={},
            published_at=timezone.now(),
            logged_at=timezone.now(),
            attempts=1,
            error="ValueError",
        )
    assert [one.consumer.topic.name for one in DeadLetter.objects.of("packing")] == ["lanes", "things"]
    assert [one.consumer.topic.name for one in DeadLetter.objects.of("packing", topic="things")] == ["things"]
