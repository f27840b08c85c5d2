"""The life of an order. Each step changes rows and says what happened, in one transaction."""

from decimal import Decimal

from django.db import transaction
from django.db.models import F

from testproject.shop import events
from testproject.shop.models import Order, Payment, Product


class OutOfStock(Exception):
    """Not enough on the shelf: nothing was ordered, and nothing was published."""


class CardRefused(Exception):
    """The bank said no: nothing was paid, and nothing was published."""


@transaction.atomic
def place_order(customer: str, product: Product, quantity: int) -> Order:
    """Reserve the goods and write the order down."""
    order = Order.objects.create(customer=customer, product=product, quantity=quantity, total=product.price * quantity)
    events.orders.publish(
        {"order": order.pk, "customer": customer, "sku": product.sku, "quantity": quantity, "total": order.total},
        type="order.placed",
        key=str(order.pk),
    )
    # The event above is published already; if there is too little, it goes away with the order.
    if not Product.objects.filter(pk=product.pk, on_shelf__gte=quantity).update(on_shelf=F("on_shelf") - quantity):
        raise OutOfStock(product.sku)
    return order


@transaction.atomic
def pay(order: Order, *, limit: Decimal) -> Payment:
    """Take the money. Those who look at payments learn it from the payment, those who look at orders are told."""
    payment = Payment.objects.create(order=order, amount=order.total)
    events.orders.publish({"order": order.pk}, type="order.paid", key=str(order.pk))
    if order.total > limit:
        raise CardRefused(order.customer)
    return payment


@transaction.atomic
def restock(product: Product, quantity: int) -> None:
    """Fill the shelf again."""
    Product.objects.filter(pk=product.pk).update(on_shelf=F("on_shelf") + quantity)
