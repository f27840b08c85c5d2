"""Orders, their payments, and what is on the shelves.

Events of orders are published by hand, where orders are placed. Those of payments come of saving them, and those of the
stock of its table, however that is changed.
"""

from django.db import models

from django_events import capture, outbox


class Product(models.Model):
    sku = models.CharField(max_length=20, unique=True)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    on_shelf = models.PositiveIntegerField()

    class Meta:
        triggers = capture(
            "stock",
            key="sku",
            created=None,
            updated="stock.changed",
            deleted=None,
            fields=["sku", "on_shelf"],
        )

    def __str__(self) -> str:
        return self.sku


class Order(models.Model):
    customer = models.CharField(max_length=100)
    product = models.ForeignKey(Product, models.PROTECT, related_name="orders")
    quantity = models.PositiveIntegerField()
    total = models.DecimalField(max_digits=10, decimal_places=2)
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"order {self.pk}"


@outbox(
    "payments",
    key="order_id",
    created="payment.made",
    updated=None,
    deleted=None,
    fields=["order_id", "amount"],
)
class Payment(models.Model):
    order = models.OneToOneField(Order, models.CASCADE, related_name="payment")
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    paid_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"payment of {self.order}"


class Invoice(models.Model):
    """What billing writes for an order. Nothing here forbids a second one: the consumer sees to it."""

    order = models.ForeignKey(Order, models.CASCADE, related_name="invoices")
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    event = models.CharField(max_length=80)
    written_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"invoice of {self.order}"


class Receipt(models.Model):
    """What was mailed for an order. Nothing here forbids a second one either."""

    order = models.ForeignKey(Order, models.CASCADE, related_name="receipts")
    event = models.CharField(max_length=80)
    sent_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"receipt of {self.order}"


class FullMailbox(models.Model):
    """A customer who gets no mail for now."""

    customer = models.CharField(max_length=100, primary_key=True)

    def __str__(self) -> str:
        return self.customer


class SearchEntry(models.Model):
    """An order as the search finds it."""

    order_id = models.BigIntegerField(primary_key=True)
    text = models.TextField()
    status = models.CharField(max_length=20)

    def __str__(self) -> str:
        return self.text


class OrderStatus(models.Model):
    """What has become of an order. The projection `status` keeps it."""

    order_id = models.BigIntegerField(primary_key=True)
    customer = models.CharField(max_length=100, default="")
    sku = models.CharField(max_length=20, default="")
    quantity = models.PositiveIntegerField(default=0)
    status = models.CharField(max_length=20, default="")

    def __str__(self) -> str:
        return f"order {self.order_id}: {self.status}"
