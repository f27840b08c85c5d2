"""Customers who come, order, pay, and sometimes don't get what they want."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal

from django.db import connections

from testproject.shop import orders
from testproject.shop.models import FullMailbox, Order, Product

SKUS = {"tea": "4.50", "coffee": "7.90", "cup": "12.00", "kettle": "49.00", "grinder": "89.00"}
CUSTOMERS = [f"{name} {family}" for name in ("Ada", "Ben", "Cleo", "Dan") for family in ("Ito", "Kaya", "Lund", "Moss")]
CARD_LIMIT = Decimal(300)
FULL_MAILBOXES = CUSTOMERS[::8]


class Simulation:
    """Several customers at once, each in a thread of its own; counts what was published and what was not.

    Each asks before an order whether to `go_on`, which may take its time. The first orders of each, `as_before`, are
    placed by the code of before.
    """

    def __init__(
        self,
        *,
        customers: int,
        orders_each: int,
        as_before: int = 0,
        full_mailboxes: Sequence[str] = FULL_MAILBOXES,
        go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self.customers = customers
        self.orders_each = orders_each
        self.as_before = as_before
        self.full_mailboxes = full_mailboxes
        self.go_on = go_on
        self.published: Counter[str] = Counter()
        self.rolled_back: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._counting = threading.Lock()
        self._threads = [threading.Thread(target=self._shop, args=[number]) for number in range(customers)]

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        for sku, price in SKUS.items():
            Product.objects.get_or_create(sku=sku, defaults={"price": Decimal(price), "on_shelf": 200})
        for customer in self.full_mailboxes:
            FullMailbox.objects.get_or_create(customer=customer)
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _shop(self, number: int) -> None:
        dice = random.Random(number)
        try:
            for turn in range(self.orders_each):
                if not self.go_on():
                    break
                self._order(dice, as_before=turn < self.as_before)
        except BaseException as error:
            self.errors.append(error)
        finally:
            connections.close_all()

    def _order(self, dice: random.Random, *, as_before: bool) -> None:
        product = Product.objects.get(sku=dice.choice(list(SKUS)))
        quantity = dice.choice([1, 1, 1, 2, 3, 5])
        order: Order | None = None
        # Where too little is on the shelf, that is not changed, so there is no event of it to be rolled back.
        with self._counted({"orders": 1, "stock": 1}, orders.OutOfStock, undone={"orders": 1}):
            order = orders.place_order(dice.choice(CUSTOMERS), product, quantity, as_before=as_before)
        if order is None:
            with self._counted({"stock": 1}):
                orders.restock(product, 200)
        else:
            with self._counted({"payments": 1, "orders": 1}, orders.CardRefused):
                orders.pay(order, limit=CARD_LIMIT)

    @contextmanager
    def _counted(
        self, events: dict[str, int], *refusals: type[Exception], undone: dict[str, int] | None = None
    ) -> Iterator[None]:
        """Count the events of a transaction by how it ended."""
        outcome = self.published
        try:
            yield
        except refusals:
            outcome, events = self.rolled_back, undone or events
        with self._counting:
            outcome.update(events)
