"""Changes of models as events, events for later, and large ones: each beside the same without."""

import json
from collections.abc import Callable, Iterator

import pgtrigger
from django.db import connection, models, transaction

from django_events import capture, outbox, publish
from django_events.log.transfer import Transfer
from tests.benchmarks.database import settle, truncate
from tests.benchmarks.harness import Effort, Row, Samples, at_least, at_most, figure, interleave, timed
from tests.benchmarks.samples import TYPE, fill, key, value

TRANSACTIONS = 20
ROWS = 100_000
SCHEDULED = 1_000_000
BUFFER, LOG = "django_events_bufferedevent", "django_events_event"


class Fields(models.Model):
    """Five columns, as the shop's orders have them."""

    customer = models.CharField(max_length=100)
    status = models.CharField(max_length=20)
    quantity = models.PositiveIntegerField()
    total = models.DecimalField(max_digits=10, decimal_places=2)
    placed_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True
        app_label = "benchmarks"


class Plain(Fields):
    class Meta(Fields.Meta):
        db_table = "bench_plain"


class ByHand(Fields):
    class Meta(Fields.Meta):
        db_table = "bench_by_hand"


class Captured(Fields):
    class Meta(Fields.Meta):
        db_table = "bench_captured"
        triggers = capture("payments")


@outbox("payments")
class Outboxed(Fields):
    class Meta(Fields.Meta):
        db_table = "bench_outboxed"


MODELS: tuple[type[Fields], ...] = (Plain, ByHand, Captured, Outboxed)


def create_tables() -> None:
    if Plain._meta.db_table in connection.introspection.table_names():
        truncate(BUFFER, *(model._meta.db_table for model in MODELS))
        return
    with connection.schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)
    for model, trigger in pgtrigger.registered():
        if model is Captured:
            trigger.install(Captured)


def publish_by_hand(row: Fields) -> None:
    said = {name: getattr(row, name) for name in ("id", "customer", "status", "quantity", "total", "placed_at")}
    publish("payments", said, type="byhand.created", key=str(row.pk))


@figure("N20", "@outbox on a save in atomic(), against publishing the same by hand")
def saves(effort: Effort) -> Iterator[Row]:
    create_tables()

    def create(model: type[Fields], then: Callable[[Fields], object] = lambda row: None) -> Callable[[], float]:
        def repeat() -> None:
            for n in range(TRANSACTIONS):
                with transaction.atomic():
                    then(model._default_manager.create(customer="Ada", status="new", quantity=n, total="44.98"))

        return lambda: timed(repeat) / TRANSACTIONS

    def update(model: type[Fields], then: Callable[[Fields], object] = lambda row: None) -> Callable[[], float]:
        row = model._default_manager.create(customer="Ada", status="new", quantity=1, total="44.98")

        def repeat() -> None:
            for n in range(TRANSACTIONS):
                with transaction.atomic():
                    row.status = str(n)
                    row.save()
                    then(row)

        return lambda: timed(repeat) / TRANSACTIONS

    for what, save in (("create", create), ("update", update)):
        samples = interleave(
            {
                "save": save(Plain),
                "by hand": save(ByHand, publish_by_hand),
                "outbox": save(Outboxed),
                "captured": save(Captured),
            },
            rounds=effort.rounds(200),
        )
        yield samples.row(f"{what} with @outbox", "outbox", "by hand", unit="s", goal=at_most(1.25))
        yield samples.row(f"{what} with capture()", "captured", "by hand", unit="s")
        yield samples.row(f"{what} with @outbox", "outbox", "save", unit="s")
        yield samples.row(f"{what} and publish() by hand", "by hand", "save", unit="s")


@figure("N21", "capture() on one UPDATE of 100,000 rows, against the bare UPDATE")
def updates(effort: Effort) -> Iterator[Row]:
    create_tables()
    rows = effort.events(ROWS)
    for model in (Plain, Captured):
        execute(
            f"INSERT INTO {model._meta.db_table} (customer, status, quantity, total, placed_at)"
            f" SELECT 'Ada Lovelace', 'new', n, 44.98, now() FROM generate_series(1, {rows}) AS n"
        )
    turn = iter(range(1_000_000))

    def update(model: type[Fields]) -> Callable[[], float]:
        def measure() -> float:
            settle(model._meta.db_table)
            took = timed(execute, f"UPDATE {model._meta.db_table} SET status = 'status {next(turn)}'")
            truncate(BUFFER)
            return rows / took

        return measure

    samples = interleave({"bare": update(Plain), "captured": update(Captured)}, rounds=effort.rounds(5))
    yield samples.row(f"an UPDATE of {rows:,} rows with capture()", "captured", "bare", unit="rows/s")


@figure("N11", "publishing and moving with 1,000,000 scheduled events, against none")
def with_many_scheduled(effort: Effort) -> Iterator[Row]:
    truncate(BUFFER, LOG, "django_events_scheduledevent")
    scheduled, moved = effort.events(SCHEDULED), effort.events(100_000)
    [[topic_id]] = execute("SELECT id FROM django_events_topic WHERE name = 'stock'")

    def publish_one() -> float:
        def repeat() -> None:
            for n in range(TRANSACTIONS):
                with transaction.atomic():
                    publish("stock", value(n), type=TYPE, key=key(n))

        return timed(repeat) / TRANSACTIONS

    def move() -> float:
        truncate(BUFFER, LOG)
        fill(BUFFER, [topic_id], moved)
        transfer = Transfer("default")

        def everything() -> None:
            while transfer.move() or transfer.left:
                pass

        return moved / timed(everything)

    measured: dict[str, list[float]] = {}
    for which in ("none", "many"):
        if which == "many":
            execute(
                "INSERT INTO django_events_scheduledevent (topic_id, publish_at, type, key, value)"
                f" SELECT {topic_id}, now() + n * interval '1 minute', 'reminder', n::text, '{json.dumps(value(1))}'"
                f" FROM generate_series(1, {scheduled}) AS n"
            )
            settle("django_events_scheduledevent")
        samples = interleave({"publish": publish_one, "move": move}, rounds=effort.rounds(20))
        for name, values in samples.values.items():
            measured[f"{name} {which}"] = values
    both = Samples(measured)
    many = f"{scheduled:,} scheduled events"
    yield both.row(f"publish() beside {many}", "publish many", "publish none", unit="s", goal=at_most(3))
    yield both.row(f"the transfer beside {many}", "move many", "move none", unit="events/s", goal=at_least(0.9))
    truncate("django_events_scheduledevent")


@figure("N23", "large payloads, as JSON and as bytes, through publish() and the transfer")
def large_payloads(effort: Effort) -> Iterator[Row]:
    truncate(BUFFER, LOG)
    for size, times in ((1_000, 200), (100_000, 40), (1_000_000, 8)):
        text, raw = "ab cd 12 " * (size // 9), bytes(range(256)) * (size // 256)

        def send(times: int = times, **payload: object) -> Callable[[], float]:
            def repeat() -> None:
                for _ in range(times):
                    with transaction.atomic():
                        publish("payments", type=TYPE, **payload)  # type: ignore[arg-type]

            def measure() -> float:
                took = timed(repeat)
                Transfer("default").move()
                return times / took

            return measure

        samples = interleave(
            {
                "value": send(value={"text": text}),
                "body": send(body=raw),
                "small": send(value={"id": 1}),
            },
            rounds=effort.rounds(10),
        )
        yield samples.row(f"a value of {size:,} bytes", "value", "small", unit="tx/s")
        yield samples.row(f"a body of {size:,} bytes", "body", "small", unit="tx/s")


def execute(statement: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []
