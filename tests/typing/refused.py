"""Wrong uses that a type checker must refuse. mypy warns of a `type: ignore` that ignores nothing, so each must."""

from pydantic import BaseModel

from django_events import (
    BufferedWriter,
    ReceivedEvent,
    capture,
    claim,
    consumer,
    outbox,
    projection,
    publish,
    publish_many,
    schema,
    topic,
    upcaster,
)
from django_events.models import Sample, Topic

orders = topic("orders")


class Placed(BaseModel):
    customer: str


topic("orders", partitions="8")  # type: ignore[arg-type]
topic("orders", partition=8)  # type: ignore[call-arg]
topic()  # type: ignore[call-arg]


@consumer(orders, name="one")  # type: ignore[arg-type]
def given_a_list(events: list[ReceivedEvent]) -> None: ...


@consumer(orders, name="some", batch_size=5)  # type: ignore[arg-type]
def given_one(event: ReceivedEvent) -> None: ...


@consumer(orders, name="async")  # type: ignore[arg-type]
async def given_a_list_too(events: list[ReceivedEvent]) -> None: ...


@consumer(orders, name="two")  # type: ignore[arg-type]
def takes_two(event: ReceivedEvent, other: int) -> None: ...


@consumer(orders, name="fine")
def bill(event: ReceivedEvent) -> None:
    event.key.upper()  # type: ignore[union-attr]
    event.key = "new"  # type: ignore[misc]
    event.data_as(Placed).customre  # type: ignore[attr-defined]  # noqa: B018
    event.data_as("order.placed")  # type: ignore[arg-type]
    event.vaule  # type: ignore[attr-defined]  # noqa: B018


@projection(orders, into=Topic)  # type: ignore[arg-type]
def of_another_model(row: Sample, event: ReceivedEvent) -> None: ...


@projection(orders, into=Topic)  # type: ignore[arg-type]
def answers(row: Topic, event: ReceivedEvent) -> str:
    return row.name


consumer(orders)  # type: ignore[call-overload]
consumer(orders, name="mode", mode="que")  # type: ignore[call-overload]
consumer(orders, name="size", batch_size="5")  # type: ignore[call-overload]
consumer(orders, name="typo", batchsize=5)  # type: ignore[call-overload]

publish(7, {})  # type: ignore[arg-type]
publish(orders, {}, key=7)  # type: ignore[arg-type]
publish(orders, {}, kye="7")  # type: ignore[call-arg]
orders.publish({}, key=7)  # type: ignore[arg-type]
orders.publish({}, kye="7")  # type: ignore[call-arg]
publish_many(orders, [{"id": 7}])  # type: ignore[list-item]
orders.publish_many([{"id": 7}])  # type: ignore[list-item]
BufferedWriter(orders).publish({}, key=7)  # type: ignore[arg-type]
claim(bill, "10")  # type: ignore[arg-type]

capture(orders, fields=7)  # type: ignore[arg-type]
capture(orders, create="order.placed")  # type: ignore[call-arg]
topic("t", schema_check="maybe")  # type: ignore[arg-type]
topic("t", schemas=[7])  # type: ignore[list-item]
schema("t", version="2")  # type: ignore[arg-type]
upcaster("t", 1)(7)  # type: ignore[type-var]
outbox(orders, too_large="drop")  # type: ignore[arg-type]
outbox(orders)(int)  # type: ignore[type-var]

bill.lag() + "behind"  # type: ignore[operator]
bill.pause()[0].paused_at  # type: ignore[attr-defined]  # noqa: B018
bill.rewind()  # type: ignore[call-arg]
bill.rewind(to="start")  # type: ignore[arg-type]
bill.skip(7)  # type: ignore[call-arg]
bill.lag(topic=bill)  # type: ignore[arg-type]
