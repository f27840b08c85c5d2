"""What a type checker makes of the public names. Nothing here runs: `test_typing.py` has mypy read it, strictly."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import pgtrigger
from django.db import models
from pydantic import BaseModel

from django_events import (
    DELETE,
    Backoff,
    BufferedWriter,
    Claimed,
    DeclaredConsumer,
    DeclaredProjection,
    DeclaredRollUp,
    DeclaredTopic,
    Deletion,
    Draft,
    Receipt,
    ReceivedEvent,
    apublish,
    apublish_many,
    cancel,
    capture,
    claim,
    consumer,
    outbox,
    projection,
    publish,
    publish_many,
    queue,
    rollup,
    schema,
    topic,
    upcaster,
)
from django_events import operations as by_hand
from django_events.operations import Move, Retried, Skipped

# Declaring

orders = topic("orders", partitions=8, retention=timedelta(days=30))
assert_type(orders, DeclaredTopic)
assert_type(orders.name, str)
assert_type(orders.partitions, int)


@schema("order.placed", version=2)
class OrderPlaced(BaseModel):
    customer: str


assert_type(OrderPlaced(customer="Ada").customer, str)
described = topic("described", schemas=[OrderPlaced], schema_check="warn", undescribed="pass", compatibility="full")
assert_type(described.publish(OrderPlaced(customer="Ada"), key="7"), Receipt)


@upcaster("order.placed", 1)
def with_customer(value: dict[str, Any]) -> dict[str, Any]:
    return {"customer": "?", **value}


assert_type(with_customer({}), dict[str, Any])


@consumer(orders, "payments", name="billing", types=["order.placed"])
def bill(event: ReceivedEvent) -> None: ...


exports = queue(orders, name="exports", retry=Backoff(attempts=3), lease=timedelta(minutes=10))
assert_type(exports, DeclaredConsumer)


@consumer(orders, name="search", batch_size=200, max_wait=timedelta(seconds=1))
def index(events: list[ReceivedEvent]) -> None: ...


@consumer(orders, name="mail", mode="queue", transactional=False)
async def send(event: ReceivedEvent) -> None: ...


@consumer(orders, name="news", batch_size=10, transactional=False)
async def tell(events: list[ReceivedEvent]) -> int:
    return len(events)


class Total(models.Model):
    class Meta:
        app_label = "typing"


@projection(orders, into=Total, key="$.customer")
def totals(row: Total, event: ReceivedEvent) -> None: ...


@projection(orders, into=Total, key=lambda event: event.key, name="others", batch_size=10)
def others(row: Total, event: ReceivedEvent) -> Deletion | None:
    return DELETE if event.type == "gone" else None


assert_type(totals, DeclaredProjection[Total])
assert_type(totals.model, type[Total])
assert_type(totals.as_of(7, key="ada"), Total | None)
assert_type(totals.check(sample=10).keys, int)
assert_type(totals.rebuild(dry_run=True).finished, bool)

billing = consumer(orders, name="by-path", handler="shop.billing.bill", batch_size=5)

assert_type(bill, DeclaredConsumer)
assert_type(index, DeclaredConsumer)
assert_type(send, DeclaredConsumer)
assert_type(tell, DeclaredConsumer)
assert_type(billing, DeclaredConsumer)
assert_type(consumer(orders, name="one"), Callable[[Callable[[ReceivedEvent], object]], DeclaredConsumer])
assert_type(
    consumer(orders, name="some", batch_size=5), Callable[[Callable[[list[ReceivedEvent]], object]], DeclaredConsumer]
)

revenue = rollup(orders, name="revenue", by={"store": "$.store"}, sums={"revenue": "$.total"}, every=timedelta(hours=1))
assert_type(revenue, DeclaredRollUp)
days = revenue.between(datetime.now(UTC), datetime.now(UTC)).every("1 day", tz="Europe/Berlin").by("store").filled()
assert_type(days.order_by("-revenue")[0], dict[str, Any])
assert_type(days[:10], list[dict[str, Any]])
assert_type([row["count"] for row in days], list[Any])
assert_type(len(days), int)
assert_type(revenue.up_to()[0].id, int)

# A handler's parameter: a lambda has its type from `consumer` alone.

consumer(orders, name="plain")(lambda event: assert_type(event, ReceivedEvent))
consumer(orders, name="batch", batch_size=5)(lambda events: assert_type(events, list[ReceivedEvent]))


def read(event: ReceivedEvent) -> None:
    assert_type(event.id, int)
    assert_type(event.topic, str)
    assert_type(event.partition, int)
    assert_type(event.number, int)
    assert_type(event.type, str)
    assert_type(event.key, str | None)
    assert_type(event.value, Any)  # whatever JSON there is
    assert_type(event.data, Any)  # of whichever model its type has
    assert_type(event.data_as(OrderPlaced), OrderPlaced)
    assert_type(event.data_as(OrderPlaced).customer, str)
    match event.data:
        case OrderPlaced(customer=customer):
            assert_type(customer, str)
    if isinstance(event.data, OrderPlaced):
        assert_type(event.data, OrderPlaced)
    assert_type(event.body, bytes | None)
    assert_type(event.metadata, dict[str, Any])
    assert_type(event.published_at, datetime)
    assert_type(event.attempt, int)
    assert_type(event.address, str)
    assert_type(event.erased, bool)


# Publishing

assert_type(publish(orders, {"id": 7}, type="order.placed", key="7"), Receipt)
assert_type(publish("orders", body=b"raw"), Receipt)
assert_type(publish_many(orders, [Draft(value=1)]), int)
assert_type(orders.publish({"id": 7}, publish_at=datetime.now()), Receipt)
assert_type(orders.publish_many([Draft(value=1)]), int)
assert_type(cancel(orders, 7), bool)


async def later() -> None:
    assert_type(await apublish(orders, 1), Receipt)
    assert_type(await apublish_many(orders, [Draft(value=1)]), int)
    assert_type(await orders.apublish(1), Receipt)


with BufferedWriter(orders) as writer:
    assert_type(writer, BufferedWriter)
    assert_type(writer.publish({"id": 7}), Future[bool])

with claim(bill, 10) as claimed:
    assert_type(claimed, Claimed)
    assert_type(iter(claimed), Iterator[ReceivedEvent])

# Changes of models: what is decorated stays what it was.


class Parcel(models.Model):
    class Meta:
        app_label = "typing"
        triggers = capture(orders, fields=["id"])

    def weigh(self) -> int:
        return 1


assert_type(capture(orders), list[pgtrigger.Trigger])
assert_type(outbox(orders)(Parcel), type[Parcel])
assert_type(outbox("orders", value=lambda parcel: {})(Parcel)().weigh(), int)

# What an operator does, by name and as methods

assert_type(bill.lag(), int)
assert_type(bill.pause(), list[str])
assert_type(bill.resume(topic=orders), list[str])
assert_type(bill.rewind(to="beginning", topic="orders"), list[Move])
assert_type(bill.retry_now(), list[Retried])
assert_type(bill.skip(7, reason="a ticket"), Skipped)
assert_type(bill.unregister(), list[str])
assert_type(by_hand.lag("billing"), int)
assert_type(by_hand.pause(bill), list[str])
assert_type(by_hand.resume(bill), list[str])
assert_type(by_hand.rewind(bill, to=datetime.now()), list[Move])
assert_type(by_hand.retry_now(bill), list[Retried])
assert_type(by_hand.skip(bill, 7, reason="a ticket"), Skipped)
assert_type(by_hand.unregister(bill), list[str])
assert_type(bill.rewind(to=7)[0].after, int)
