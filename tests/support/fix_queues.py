"""Queue consumers for tests: declared, registered, filled, and looked at by hand."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import QuerySet

from django_events import Backoff, Draft, declarations, models, publish_many
from django_events.consuming.queues.claimed_deliveries import ClaimedDeliveries
from django_events.consuming.queues.deliveries import Queue
from django_events.consuming.queues.filling import fill_some
from django_events.consuming.subscriptions import subscriptions
from django_events.models.functions import ClockTimestamp
from django_events.received import ReceivedEvent
from tests.support.fix_consumers import ConsumerFactory
from tests.support.fix_topics import transfer_all

AT_ONCE = Backoff(attempts=3, base=timedelta(0))
QueueFactory = Callable[..., Queue]


@pytest.fixture
def make_queue(make_consumer: ConsumerFactory) -> Iterator[QueueFactory]:
    """Register a queue consumer of one topic; it is live unless told otherwise. What is left of it is deleted."""
    made = []

    def make(
        topic: declarations.DeclaredTopic | str, *, name: str = "queue", live: bool = True, **options: Any
    ) -> Queue:
        declared = make_consumer(topic, name=name, mode="queue", **{"handler": print, "retry": AT_ONCE, **options})
        queue = queue_of(declared)
        made.append(queue.subscription.consumer_id)
        if live:
            while fill_some(queue.subscription):
                pass
        else:
            models.Consumer.objects.filter(name=name).update(live=False)
        return queue

    yield make
    for model in (models.Delivery, models.DeliveryLease, models.PastDelivery):
        model.objects.filter(consumer_id__in=made).delete()


def queue_of(consumer: declarations.DeclaredConsumer, *, holder: str = "a test") -> Queue:
    """A registered queue consumer as one worker sees it."""
    [subscription] = subscriptions("default", [consumer])
    return Queue(subscription, holder=holder)


def another(queue: Queue, holder: str = "another") -> Queue:
    """The same consumer as another worker sees it."""
    return Queue(queue.subscription, holder=holder)


def fill_topic(topic: declarations.DeclaredTopic | str, *values: Any, key: str | None = None, **options: Any) -> None:
    """Publish these values, and have them moved into the log."""
    publish_many(topic, [Draft(value=value, key=key, **options) for value in values])
    transfer_all()


def deliveries(queue: Queue) -> QuerySet[models.Delivery]:
    return models.Delivery.objects.filter(consumer_id=queue.subscription.consumer_id).order_by("event_id")


def pending(queue: Queue) -> list[int]:
    """The ids of the events that a queue consumer has a delivery of."""
    return list(deliveries(queue).values_list("event_id", flat=True))


def row_of(queue: Queue) -> models.Consumer:
    return models.Consumer.objects.get(pk=queue.subscription.consumer_id)


def values(hand: ClaimedDeliveries | None) -> list[Any]:
    """What is in hand, those included that would be read one by one."""
    assert hand is not None, "nothing could be claimed"
    if hand.unread:
        unread, hand.unread = hand.unread, []
        hand.events = [*hand.events, *hand.read(unread)]
    return [event.value for event in hand.events]


def settle(hand: ClaimedDeliveries, *events: ReceivedEvent, failure: Any = None) -> None:
    with transaction.atomic():
        hand.take_lock()
        settlement = hand.settle(events, failure)
    hand.settled(settlement)


def finish(hand: ClaimedDeliveries) -> None:
    """Settle all that is in hand as handled."""
    values(hand)
    settle(hand, *hand.events)


def fail(hand: ClaimedDeliveries, event: ReceivedEvent, error: BaseException | None = None) -> None:
    settle(hand, failure=hand.judge(event, error or ValueError("bad")))


def expire(hand: ClaimedDeliveries) -> None:
    """As if the time of the lease were over."""
    assert models.DeliveryLease.objects.filter(token=hand.token).update(leased_until=ClockTimestamp())


def end_pauses(queue: Queue) -> None:
    """As if the time until the next attempt were over."""
    assert deliveries(queue).filter(visible_at__isnull=False).update(visible_at=ClockTimestamp())
