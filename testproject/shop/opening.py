"""The shop stays open, to be looked at in the admin: a few customers, and each time another one's mailbox is full."""

import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta

from django_events import Backoff
from django_events.models import BufferedEvent, DeadLetter
from django_events.workers.all_in_one import Done
from django_events.workers.stopping import Stop
from testproject.shop import events, guest, orders
from testproject.shop.crew import CREW, crew_at_work
from testproject.shop.models import FullMailbox, Product
from testproject.shop.server import HOST, serving
from testproject.shop.simulation import CUSTOMERS, FULL_MAILBOXES, Simulation

OTHERS = [name for name in CUSTOMERS if name not in FULL_MAILBOXES]
PAUSE = 1.5  # of each of two customers, so there is an order or two a second
MAILBOX_STAYS_FULL = 20
DEAD_LETTERS = 3
DEADLINE = 30
# Tried again after a few seconds, which a visitor can see; as declared it is over in an instant.
SLOW_RECEIPTS = replace(events.send_receipt, retry=Backoff(attempts=3, base=timedelta(seconds=3)))


def keep_open(stop: Stop, *, port: int, say: Callable[[str], None]) -> None:
    """Work and serve the admin until told to stop, and say where it is and who may log in."""

    def go_on() -> bool:
        stop.wait(PAUSE)
        return not stop.requested

    customers = Simulation(customers=2, orders_each=sys.maxsize, full_mailboxes=[], go_on=go_on)
    leave_dead_letters(stop)
    with (
        guest.login() as password,
        serving(port) as port_served,
        crew_at_work([SLOW_RECEIPTS, *(one for one in CREW if one is not events.send_receipt)]) as working,
    ):
        customers.start()
        try:
            say(
                "The shop is open: an order or two a second, and some receipts that can't be sent. Ctrl-C closes it.\n"
                f"http://{HOST}:{port_served}/admin/\nuser: {guest.NAME}\npassword: {password}\n"
                f"Its customers order at http://{HOST}:{port_served}/, and see at once what became of it.\n"
                f"What happens to orders shows at http://{HOST}:{port_served}/live/, as it happens."
            )
            look_after(customers, working, stop)
        finally:
            stop.request()
            customers.join()
        wait_for(lambda: not BufferedEvent.objects.filter(topic__name__in=["orders", "payments", "stock"]), working)


def leave_dead_letters(stop: Stop) -> None:
    """Let a few receipts fail for good, of customers whose mailboxes have room again: a redrive sends them."""
    product = Product.objects.first()
    assert product is not None, "The demo has filled the shelves before."
    orders.restock(product, DEAD_LETTERS)
    FullMailbox.objects.bulk_create([FullMailbox(customer=name) for name in FULL_MAILBOXES], ignore_conflicts=True)
    before = DeadLetter.objects.of(events.send_receipt).count()
    with crew_at_work() as working:
        for number in range(DEAD_LETTERS):
            orders.place_order(FULL_MAILBOXES[number % len(FULL_MAILBOXES)], product, 1)
        wait_for(
            lambda: stop.requested or DeadLetter.objects.of(events.send_receipt).count() >= before + DEAD_LETTERS,
            working,
        )
    FullMailbox.objects.all().delete()


def look_after(customers: Simulation, working: "Future[Done]", stop: Stop) -> None:
    """Empty the full mailbox now and then, when another one is full; until told to stop, or something fails."""
    next_change = 0.0
    while customers.running and not working.done() and not stop.requested:
        if time.monotonic() >= next_change:
            FullMailbox.objects.all().delete()
            FullMailbox.objects.create(customer=random.choice(OTHERS))
            next_change = time.monotonic() + MAILBOX_STAYS_FULL
        stop.wait(0.5)


def wait_for(condition: Callable[[], object], working: "Future[Done]") -> None:
    """Wait for what the crew brings about, as long as it works."""
    deadline = time.monotonic() + DEADLINE
    while not condition() and not working.done() and time.monotonic() < deadline:
        time.sleep(0.05)
