"""`manage.py demo`: a busy hour in the shop, and the proof that no event is missing."""

import time
from contextlib import closing
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_events.models import Event
from django_events.workers.background import in_background
from django_events.workers.listening import Listener
from django_events.workers.transferring import TransferWorker
from testproject.shop import events
from testproject.shop.simulation import Simulation

TOPICS = [events.orders, events.payments, events.stock]
DEADLINE = 60


class Command(BaseCommand):
    help = "Simulate customers, move their events into the log, and prove that none is missing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--customers", type=int, default=4, help="How many shop at the same time.")
        parser.add_argument("--orders", type=int, default=750, help="How many orders each of them tries.")

    def handle(self, *args: Any, customers: int, orders: int, **options: Any) -> None:
        self.stdout.write("Preparing the database …")
        call_command("migrate", verbosity=0)
        before = {topic.name: last_id(topic.name) for topic in TOPICS}
        simulation = Simulation(customers=customers, orders_each=orders)
        self.stdout.write(f"{customers} customers try {orders} orders each; the transfer runs beside them.")
        with closing(Listener("default")) as listener, in_background(TransferWorker("default", listener)) as errors:
            simulation.start()
            self._watch(simulation, before)
            simulation.join()
            self._wait_for_log(simulation, before, errors)
        self._report(simulation, before)

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

    def _wait_for_log(self, simulation: Simulation, before: dict[str, int], errors: list[BaseException]) -> None:
        deadline = time.monotonic() + DEADLINE
        while new_events(before) != {name: simulation.published[name] for name in before}:
            if errors or time.monotonic() > deadline:
                break
            time.sleep(0.05)

    def _report(self, simulation: Simulation, before: dict[str, int]) -> None:
        self.stdout.write("")
        self.stdout.write(
            f"{'topic':<10}{'published':>11}{'rolled back':>13}{'in the log':>12}{'ids':>18}{'missing':>9}"
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


def last_id(topic: str) -> int:
    return next((event.id for event in Event.objects.peek(topic, limit=1)), 0)


def new_events(before: dict[str, int]) -> dict[str, int]:
    """How many events each topic got since, by subtraction."""
    return {name: last_id(name) - last for name, last in before.items()}
