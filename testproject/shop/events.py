"""What happens in the shop, and who wants to know."""

from datetime import timedelta

from django_events import Backoff, ReceivedEvent, consumer, projection, rollup, topic
from testproject.shop import mail, upcasters  # noqa: F401  # a module that is imported has declared its upcasters
from testproject.shop.contracts import OrderPaid, OrderPlaced, OrderPlacedBefore
from testproject.shop.models import Invoice, OrderStatus, SearchEntry

orders = topic(
    "orders",
    partitions=8,
    timeline=True,
    schemas=[OrderPlaced, OrderPlacedBefore, OrderPaid],
    undescribed="pass",
)
payments = topic("payments", partitions=4)
stock = topic("stock")


@consumer(orders, name="billing", types=["order.placed"])
def bill(event: ReceivedEvent) -> None:
    """Write an invoice: in the transaction that passes the event, so each order is billed exactly once."""
    placed: OrderPlaced = event.data
    Invoice.objects.create(order_id=placed.order, amount=placed.total, event=event.address)


@consumer(orders, name="search", batch_size=200)
def index(events: list[ReceivedEvent]) -> None:
    """Bring the search index up to date. Orders that changed twice in a batch are written once."""
    placed = {event.data.order: entry_of(event.data) for event in events if event.type == "order.placed"}
    paid = [event.data.order for event in events if event.type == "order.paid"]
    SearchEntry.objects.bulk_create(
        placed.values(), update_conflicts=True, unique_fields=["order_id"], update_fields=["text", "status"]
    )
    SearchEntry.objects.filter(order_id__in=paid).update(status="paid")


def entry_of(placed: OrderPlaced) -> SearchEntry:
    """An order as it is found."""
    text = f"{placed.customer}: {', '.join(map(str, placed.lines))}"
    return SearchEntry(order_id=placed.order, text=text, status="placed")


@consumer(
    orders,
    name="receipts",
    mode="queue",
    types=["order.placed"],
    retry=Backoff(attempts=3, base=timedelta(milliseconds=20)),
    history=timedelta(days=1),
)
def send_receipt(event: ReceivedEvent) -> None:
    """Send a receipt. A full mailbox keeps no other receipt waiting."""
    mail.send(event.data.customer, order_id=event.data.order, about=event.address)


@projection(orders, into=OrderStatus, name="status", types=["order.placed", "order.paid"])
def follow(row: OrderStatus, event: ReceivedEvent) -> None:
    """What the shop's page shows of an order: a row that is nothing but what its events say."""
    if event.type == "order.placed":
        [first, *_] = event.data.lines
        row.customer, row.sku, row.quantity = event.data.customer, first.sku, first.quantity
    row.status = event.type.removeprefix("order.")


earnings = rollup(
    orders,
    name="earnings",
    every=timedelta(hours=1),
    at="logged_at",
    types=["order.placed"],
    sums={"revenue": "$.total"},
)
# By type, for the bars above the log in the admin.
by_type = rollup(orders, name="by-type", at="logged_at", by={"type": "type"})
