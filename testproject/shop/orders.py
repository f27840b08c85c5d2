"""The life of an order. Each step changes rows and says what happened, in one transaction."""

from decimal import Decimal

from django.db import transaction
from django.db.models import F

from testproject.shop import events
from testproject.shop.contracts import Line, OrderPaid, OrderPlaced, OrderPlacedBefore
from testproject.shop.models import Order, Payment, Product


class OutOfStock(Exception):
    """Not enough on the shelf: nothing was ordered, and nothing was published."""


class CardRefused(Exception):
    """The bank said no: nothing was paid, and nothing was published."""


@transaction.atomic
def place_order(customer: str, product: Product, quantity: int, *, as_before: bool = False) -> Order:
    """Reserve the goods and write the order down; `as_before` publishes what the code of before did."""
    order = Order.objects.create(customer=customer, product=product, quantity=quantity, total=product.price * quantity)
    events.orders.publish(_before(order) if as_before else _placed(order), key=str(order.pk))
    # The event above is published already; if there is too little, it goes away with the order.
    if not Product.objects.filter(pk=product.pk, on_shelf__gte=quantity).update(on_shelf=F("on_shelf") - quantity):
        raise OutOfStock(product.sku)
    return order


@transaction.atomic
def pay(order: Order, *, limit: Decimal) -> Payment:
    """Take the money. Those who look at payments learn it from the payment, those who look at orders are told."""
    payment = Payment.objects.create(order=order, amount=order.total)
    events.orders.publish(OrderPaid(order=order.pk), key=str(order.pk))
    if order.total > limit:
        raise CardRefused(order.customer)
    return payment


@transaction.atomic
def restock(product: Product, quantity: int) -> None:
    """Fill the shelf again."""
    Product.objects.filter(pk=product.pk).update(on_shelf=F("on_shelf") + quantity)


def _placed(order: Order) -> OrderPlaced:
    line = Line(sku=order.product.sku, quantity=order.quantity)
    return OrderPlaced(order=order.pk, customer=order.customer, lines=[line], total=order.total)


def _before(order: Order) -> OrderPlacedBefore:
    return OrderPlacedBefore(
        order=order.pk,
        customer=order.customer,
        sku=order.product.sku,
        quantity=order.quantity,
        total=order.total,
    )
