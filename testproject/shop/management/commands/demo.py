"""`manage.py demo`: a busy hour in the shop, and the proof that no event is missing and no order billed twice."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count

from django_events import lag
from django_events.consuming.lag import progress
from django_events.models import Event
from django_events.workers.crew import Crew, Done
from django_events.workers.stopping import Stop
from testproject.shop import events
from testproject.shop.models import Order, Payment, SearchEntry
from testproject.shop.simulation import Simulation

TOPICS = [events.orders, events.payments, events.stock]
CONSUMERS = [events.bill, events.index]
DEADLINE = 60


class Command(BaseCommand):
    help = "Simulate customers, move and handle their events, and prove that none is missing or handled twice."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--customers", type=int, default=4, help="How many shop at the same time.")
        parser.add_argument("--orders", type=int, default=750, help="How many orders each of them tries.")

    def handle(self, *args: Any, customers: int, orders: int, **options: Any) -> None:
        self.stdout.write("Preparing the database …")
        call_command("migrate", verbosity=0)
        before, handled_before = {topic.name: last_id(topic.name) for topic in TOPICS}, handled()
        simulation = Simulation(customers=customers, orders_each=orders)
        self.stdout.write(
            f"{customers} customers try {orders} orders each; the transfer and two consumers, billing and search, run "
            "beside them."
        )
        started = time.monotonic()
        with crew_at_work() as working:
            simulation.start()
            self._watch(simulation, before)
            simulation.join()
            self._wait(simulation, before, working)
            seconds = time.monotonic() - started
        self._report(simulation, before)
        self._report_consumers(handled_before, seconds)

    def _watch(self, simulation: Simulation, before: dict[str, int]) -> None:
        """A line that changes, or on a file a line a second."""
        interactive = self.stdout.isatty()
        while True:
            running = simulation.running
            published, in_log = sum(simulation.published.values()), sum(new_events(before).values())
            rolled_back = sum(simulation.rolled_back.values())
            line = f"  published {published:>6,}   rolled back {rolled_back:>5,}   in the log {in_log:>6,}"
            self.stdout.write(f"\r{line}" if interactive else line, ending="" if interactive else "\n")
            self.stdout.flush()
            if not running:
                break
            time.sleep(0.2 if interactive else 1)
        if interactive:
            self.stdout.write("")

    def _wait(self, simulation: Simulation, before: dict[str, int], working: "Future[Done]") -> None:
        deadline = time.monotonic() + DEADLINE
        while new_events(before) != {name: simulation.published[name] for name in before} or any(map(lag, CONSUMERS)):
            if working.done() or time.monotonic() > deadline:
                break
            time.sleep(0.05)

    def _report(self, simulation: Simulation, before: dict[str, int]) -> None:
        self.stdout.write("")
        self.stdout.write(
            f"{'topic':<10}{'published':>11}{'rolled back':>13}{'in the log':>12}{'ids':>26}{'missing':>9}"
        )
        wrong = []
        for topic in TOPICS:
            name = topic.name
            first, last = before[name] + 1, last_id(name)
            in_log = Event.objects.since(name, before[name]).count()
            missing = (last - first + 1) - in_log
            self.stdout.write(
                f"{name:<10}{simulation.published[name]:>11,}{simulation.rolled_back[name]:>13,}{in_log:>12,}"
                f"{f'{first:,} to {last:,}':>26}{missing:>9,}"
            )
            if missing or in_log != simulation.published[name]:
                wrong.append(name)
        if wrong:
            raise CommandError(f"The log of {', '.join(wrong)} doesn't match what was published.")
        self.stdout.write("")
        self.stdout.write(
            "Nothing is missing: ids have no gaps, so last - first + 1 is how many events there are, and that is\n"
            "what was committed. What was rolled back left no trace."
        )

    def _report_consumers(self, handled_before: dict[str, int], seconds: float) -> None:
        self.stdout.write("")
        self.stdout.write(f"{'consumer':<10}{'handled':>11}{'per second':>13}{'lag':>12}")
        for consumer in CONSUMERS:
            done = handled()[consumer.name] - handled_before[consumer.name]
            self.stdout.write(f"{consumer.name:<10}{done:>11,}{done / seconds:>13,.0f}{lag(consumer):>12,}")
        orders = Order.objects.count()
        not_once = Order.objects.annotate(bills=Count("invoices")).exclude(bills=1).count()
        unfound = Order.objects.exclude(pk__in=SearchEntry.objects.values("order_id")).count()
        unpaid = Payment.objects.exclude(order_id__in=SearchEntry.objects.filter(status="paid").values("order_id"))
        if not_once or unfound or unpaid.exists():
            raise CommandError(
                f"Of {orders} orders, {not_once} are not billed once, {unfound} are not in the search index, and "
                f"{unpaid.count()} that are paid are not marked so there."
            )
        self.stdout.write("")
        self.stdout.write(
            f"Each order was billed once: {orders:,} orders, as many invoices, one for each. The search index has all\n"
            "of them, and knows which are paid."
        )


@contextmanager
def crew_at_work() -> Iterator["Future[Done]"]:
    """The transfer and the consumers, beside the customers; their error comes out at the end."""
    stop = Stop()
    with closing(Crew("default", CONSUMERS, threads=2)) as crew, ThreadPoolExecutor(1) as executor:
        working = executor.submit(crew.run, stop)
        try:
            yield working
        finally:
            stop.request()
        working.result()
    stop.close()


def handled() -> dict[str, int]:
    """How many events each consumer handled so far."""
    totals = {consumer.name: 0 for consumer in CONSUMERS}
    for one in progress("default"):
        if one.consumer in totals:
            totals[one.consumer] += one.handled
    return totals


def last_id(topic: str) -> int:
    return next((event.id for event in Event.objects.peek(topic, limit=1)), 0)


def new_events(before: dict[str, int]) -> dict[str, int]:
    """How many events each topic got since, by subtraction."""
    return {name: last_id(name) - last for name, last in before.items()}
