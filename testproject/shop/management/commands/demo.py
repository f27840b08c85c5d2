"""`manage.py demo`: a busy hour in the shop, and the proof that no event is missing and nothing is done twice."""

import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.db.models import Count, DecimalField, Max, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils import timezone

from django_events.consuming.registered import registered
from django_events.declarations import DeclaredConsumer
from django_events.management.spark import explained
from django_events.models import DeadLetter, Event, PastDelivery
from django_events.observing.lag import PartitionProgress, progress
from django_events.operations import Rebuilt, lag, rebuild, redrive
from django_events.workers.all_in_one import Done
from django_events.workers.stopping import stop_on_signals
from testproject.shop import broker, events
from testproject.shop.crew import CONSUMERS, CREW, crew_at_work
from testproject.shop.lake import kept_as_a_table, orders_in
from testproject.shop.models import FullMailbox, Order, OrderStatus, Payment, SearchEntry
from testproject.shop.opening import keep_open
from testproject.shop.patience import Patience
from testproject.shop.revenue import revenue_by_hour
from testproject.shop.simulation import Simulation

TOPICS = [events.orders, events.payments, events.stock]
BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


class Command(BaseCommand):
    help = "Simulate customers, move and handle their events, and prove that none is missing or handled twice."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--customers", type=int, default=4, help="How many shop at the same time.")
        parser.add_argument("--orders", type=int, default=750, help="How many orders each of them tries.")
        parser.add_argument("--keep", metavar="PATH", help="Where to leave the exported files.")
        parser.add_argument(
            "--relay",
            choices=["redis"],
            help="Relay the orders to a Redis of the demo's own, and read them back there.",
        )
        parser.add_argument(
            "--serve", action="store_true", help="Stay open afterwards: serve the admin, with a login, until Ctrl-C."
        )
        parser.add_argument(
            "--port", type=int, default=8000, help="Where --serve listens, or the next free one (default: %(default)s)."
        )

    def handle(
        self,
        *args: Any,
        customers: int,
        orders: int,
        keep: str | None,
        relay: str | None,
        serve: bool,
        port: int,
        **options: Any,
    ) -> None:
        self.stdout.write("Preparing the database …")
        call_command("migrate", verbosity=0)
        before, counts_before = {topic.name: last_id(topic.name) for topic in TOPICS}, counts()
        simulation = Simulation(customers=customers, orders_each=orders, as_before=orders // 2)
        with explained("lake"), tempfile.TemporaryDirectory(prefix="shop-") as lake:
            with kept_as_a_table(lake):
                if relay:
                    with broker.orders_relayed() as (to_redis, options_of_redis):
                        self._work(simulation, before, counts_before, [*CREW, to_redis])
                        self._report_relay(options_of_redis)
                else:
                    self._work(simulation, before, counts_before, CREW)
            self._report_table(lake)
        self._report_revenue(keep)
        if serve:
            self._serve(port)

    def _work(
        self,
        simulation: Simulation,
        before: dict[str, int],
        counts_before: dict[str, Counter[str]],
        crew: list[DeclaredConsumer],
    ) -> None:
        """The busy hour, and what is to be said of it."""
        self.stdout.write(
            f"{simulation.customers} customers try {simulation.orders_each} orders each. Beside them run the transfer\n"
            "and five consumers: billing and search are streams, receipts is a queue, and some customers'\n"
            "mailboxes are full; status is a projection, which is rebuilt meanwhile, and earnings a roll-up.\n"
            "A table of Delta follows the orders. In the middle, order.placed gets another version."
        )
        started = time.monotonic()
        with crew_at_work(crew) as working, ThreadPoolExecutor(1) as executor:
            simulation.start()
            rebuilding = executor.submit(rebuild_status, simulation)
            self._watch(simulation, before)
            simulation.join()
            rebuilt = rebuilding.result()
            self._wait(simulation, before, working)
            for one in crew:
                self._wait_for(one, working)
            seconds = time.monotonic() - started
            dead = self._repair(simulation, before, working)
        self._report(simulation, before)
        self._report_consumers(counts_before, seconds)
        self._report_receipts(dead)
        self._report_status(rebuilt)

    def _serve(self, port: int) -> None:
        with stop_on_signals() as stop:
            keep_open(stop, port=port, say=self._say)

    def _say(self, text: str) -> None:
        self.stdout.write(f"\n{text}")
        self.stdout.flush()

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
        """Until all that was published is in the log and handled, for as long as that goes on."""
        patience = Patience()
        while not working.done():
            moved = new_events(before)
            stages = stages_of_consumers()
            left = {
                f"{name}, not in the log yet": simulation.published[name] - moved[name]
                for name in before
                if simulation.published[name] != moved[name]
            }
            left |= {f"{one.consumer}, behind": one.lag for one in stages if one.lag}
            if not left:
                return
            self._go_on_waiting(patience, (moved, [stage_of(one) for one in stages]), left)

    def _repair(self, simulation: Simulation, before: dict[str, int], working: "Future[Done]") -> int:
        """The mailboxes are emptied, and what was given up on is sent after all; returns how many that were."""
        FullMailbox.objects.all().delete()
        letters = DeadLetter.objects.of(events.send_receipt)
        dead = redrive(letters)
        patience = Patience()
        while not working.done() and (left := letters.count()):
            self._go_on_waiting(patience, (left, lag(events.send_receipt)), {"receipts, dead letters": left})
            if (died_since := letters.filter(redrive_at=None)).exists():
                redrive(died_since)
        self._wait(simulation, before, working)
        return dead

    def _wait_for(self, consumer: DeclaredConsumer, working: "Future[Done]") -> None:
        """Also those that are no part of the proof."""
        patience = Patience()
        while not working.done() and (left := lag(consumer)):
            self._go_on_waiting(patience, left, {f"{consumer}, behind": left})

    def _go_on_waiting(self, patience: Patience, seen: object, left: dict[str, int]) -> None:
        """A line once in a while. What stands still for a minute comes to no end: then the demo says what it is."""
        said = "; ".join(f"{what}: {number:,}" for what, number in left.items())
        if patience.is_over(seen):
            raise CommandError(
                f"Nothing has moved for {patience.seconds:.0f} s. What stands still: {said}. "
                "See manage.py events status"
            )
        if patience.is_time_to_tell():
            self.stdout.write(f"  still to do: {said}")
            self.stdout.flush()
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

    def _report_consumers(self, counts_before: dict[str, Counter[str]], seconds: float) -> None:
        self.stdout.write("")
        self.stdout.write(
            f"{'consumer':<10}{'handled':>11}{'per second':>13}{'failed':>12}{'dead letters':>14}{'lag':>12}"
        )
        for name, now in counts().items():
            done = now - counts_before[name]
            self.stdout.write(
                f"{name:<10}{done['handled']:>11,}{done['handled'] / seconds:>13,.0f}{done['failed']:>12,}"
                f"{done['dead_lettered']:>14,}{lag(name):>12,}"
            )
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

    def _report_receipts(self, dead: int) -> None:
        orders = Order.objects.count()
        not_once = Order.objects.annotate(sent=Count("receipts")).exclude(sent=1).count()
        if not_once or DeadLetter.objects.of(events.send_receipt).exists():
            raise CommandError(f"Of {orders} orders, {not_once} have not got one receipt.")
        longest = PastDelivery.objects.of(events.send_receipt).timed().aggregate(Max("took"))["took__max"]
        self.stdout.write("")
        self.stdout.write(
            f"Each order has one receipt. {dead:,} of them went to full mailboxes: tried three times each, they were\n"
            "dead letters, kept no others waiting, and were redriven when the mailboxes were empty. The longest\n"
            f"took {longest.total_seconds():.1f} s, says the consumer's history."
        )

    def _report_status(self, rebuilt: Rebuilt) -> None:
        orders, paid = Order.objects.count(), Payment.objects.count()
        found = Counter(OrderStatus.objects.values_list("status", flat=True))
        checked = events.follow.check()
        if found != Counter(placed=orders - paid, paid=paid) or checked.drifts:
            raise CommandError(f"Of {orders} orders, {paid} are paid, and the projection has {dict(found)}.")
        self.stdout.write("")
        self.stdout.write(
            f"The projection has the status of each order: {paid:,} are paid, {orders - paid:,} are not. Its table\n"
            f"was filled anew from {rebuilt.events:,} events while it was served. {checked.keys:,} orders were folded\n"
            "once more, and don't differ."
        )

    def _report_relay(self, options: dict[str, Any]) -> None:
        found = broker.in_redis(options)
        ids = sorted(one for stream in found.values() for one in stream)
        in_order = all(stream == sorted(stream) for stream in found.values())
        if not in_order or ids != [event.id for event in Event.objects.of("orders").only("id").order_by("id")]:
            raise CommandError("What the relay has sent to Redis is not what the log holds.")
        self.stdout.write("")
        self.stdout.write(
            f"A relay, a consumer like the others, has sent the orders to Redis: {len(ids):,} events\n"
            f"in {len(found)} streams, one for each partition: each event once, and in the order of the log."
        )

    def _report_table(self, path: str) -> None:
        placed = Event.objects.of("orders").filter(type="order.placed")
        with_lines = placed.filter(metadata__schema_version=2).count()
        found, orders = orders_in(path), Order.objects.all()
        sold = Counter(dict(orders.values_list("product__sku").annotate(Sum("quantity")).order_by()))
        if (found.rows, found.rescued) != (last_id("orders"), 0) or found.sold != sold:
            raise CommandError(f"The table of Delta has {found}, which is not what the log holds.")
        if found.revenue != orders.aggregate(Sum("total"))["total__sum"]:
            raise CommandError("The table of Delta comes to another sum than the shop.")
        self.stdout.write("")
        self.stdout.write(
            f"Of the {placed.count():,} events order.placed, {with_lines:,} are of version 2, in which an order has "
            "lines. An upcaster\n"
            "brings the others along, so all of this is true of both. A table of Delta, which followed the log\n"
            "meanwhile, has the lines of all of them, and as much was sold by it as by the shop's own tables."
        )

    def _report_revenue(self, keep: str | None) -> None:
        self.stdout.write("")
        self.stdout.write("Spark exports the orders to Parquet and adds them up by the hour …")
        with explained(), revenue_by_hour(keep) as (summary, path, hours):
            size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
            self.stdout.write(
                f"{summary.events:,} events are new in the files, which hold {summary.total:,} now, in {size:,} bytes."
            )
        self.stdout.write("")
        self.stdout.write(f"{'hour (UTC)':<18}{'orders':>10}{'revenue':>16}")
        for hour, orders, revenue in hours:
            self.stdout.write(f"{hour:<18}{orders:>10,}{revenue:>16,.2f}")
        placed = Event.objects.of("orders").filter(type="order.placed")
        totals = placed.aggregate(revenue=Sum(Cast(KT("value__total"), DecimalField(max_digits=12, decimal_places=2))))
        if summary.total != last_id("orders") or sum(revenue for *_, revenue in hours) != totals["revenue"]:
            raise CommandError("What Spark read from the files is not what the log holds.")
        rolled_up = events.earnings.between(BEGINNING, timezone.now())
        if hours != [(f"{row['bucket']:%Y-%m-%d %H:00}", row["count"], row["revenue"]) for row in rolled_up]:
            raise CommandError("What the roll-up has counted is not what Spark read from the files.")
        self.stdout.write("")
        self.stdout.write("PostgreSQL comes to the same sum from the log. The roll-up has the same hours.")


def rebuild_status(simulation: Simulation) -> Rebuilt:
    """Fill the projection's table anew, while customers order and workers keep the one that is served."""
    try:
        while simulation.running and last_id("orders") < simulation.customers * simulation.orders_each:
            time.sleep(0.05)
        return rebuild(events.follow, reason="the demo shows it")
    finally:
        connections.close_all()


def counts() -> dict[str, Counter[str]]:
    """How many events each consumer handled so far, how many attempts failed, and what it gave up on."""
    totals = {consumer.name: Counter[str]() for consumer in CONSUMERS}
    for one in progress("default"):
        if one.consumer in totals:
            totals[one.consumer] += counts_of(one)
    return totals


def counts_of(one: PartitionProgress) -> Counter[str]:
    return Counter(handled=one.handled, failed=one.failed, dead_lettered=one.dead_lettered)


def stages_of_consumers() -> list[PartitionProgress]:
    rows = [row for consumer in CONSUMERS for row in registered("default", consumer)]
    return progress("default", rows, counted=None)


def stage_of(one: PartitionProgress) -> tuple[object, ...]:
    """What changes while a consumer gets on. An attempt that fails is no progress, and a dead letter is one."""
    return one.consumer, one.partition, one.position, one.lag, one.handled, one.ignored, one.dead_lettered


def last_id(topic: str) -> int:
    return next((event.id for event in Event.objects.peek(topic, limit=1)), 0)


def new_events(before: dict[str, int]) -> dict[str, int]:
    """How many events each topic got since, by subtraction."""
    return {name: last_id(name) - last for name, last in before.items()}
