"""What an event costs on its way, in round trips to the database: of the transfer, and of a worker."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from statistics import median

import pytest
from django.db import transaction

from django_events import publish
from django_events.workers.background import in_background
from django_events.workers.listening import Listener
from django_events.workers.transferring import TransferWorker
from testproject.shop.models import Order
from tests.support.fix_consumers import working
from tests.support.processes import wait_until
from tests.support.proxies import TurnsProxy, wired

pytestmark = pytest.mark.usefixtures("transactional_db")

EVENTS = 15
HANDLED = b'INTO "shop_order"'


@pytest.fixture
def wires() -> Iterator[tuple[TurnsProxy, TurnsProxy]]:
    """A wire for the transfer and one for the worker."""
    with wired(TurnsProxy, "transfer") as transfer, wired(TurnsProxy, "worker") as worker:
        yield transfer, worker


@pytest.mark.requirement("X11")
@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_an_event_passes_through_three_round_trips(settings, wires, shelf, things, make_consumer, mode):
    """By hand it is six, each with a statement that the server has prepared."""
    settings.DJANGO_EVENTS = {"POLL_INTERVAL": timedelta(hours=1)}
    transfer, worker = wires

    def handle(event):
        Order.objects.using("worker").create(customer=str(event.value), product=shelf, quantity=1, total=1)

    reader = make_consumer(things, handler=handle, mode=mode)
    moved, began, ended = [], [], []
    with (
        closing(Listener("transfer")) as listener,
        in_background(TransferWorker("transfer", listener)),
        working(reader, using="worker"),
    ):
        for n in range(EVENTS):
            before = len(transfer.turns), len(worker.turns)
            with transaction.atomic():
                publish(things, n)
            wait_until(lambda n=n: Order.objects.filter(customer=str(n)).exists(), what=f"event {n} handled")
            of_transfer, of_worker = transfer.turns[before[0] :], worker.turns[before[1] :]
            at = next(i for i, turn in enumerate(of_worker) if HANDLED in turn)
            moved.append(len(of_transfer))
            began.append(at)
            ended.append(len(of_worker) - at - 1)
    # The first ones prepare statements, and a wait may end between two events: most cost the same.
    assert (median(moved), median(began)) == (1, 2)
    assert median(ended) == (2 if mode == "stream" else 3)  # a queue looks whether more is due
