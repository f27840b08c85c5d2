"""Schemas on a real database: each way to publish keeps to them, and each way to read makes models of what is there."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import override_settings
from pydantic import BaseModel, Field

from django_events import (
    Backoff,
    BufferedWriter,
    Draft,
    Ignore,
    apublish,
    claim,
    declarations,
    event_context,
    listen,
    publish,
    publish_many,
    schema,
    upcaster,
)
from django_events.exceptions import InvalidEvent, UnfitEvent
from django_events.models import BufferedEvent, DeadLetter, Event
from django_events.observing.log_fit import fit
from django_events.received import ReceivedEvent
from django_events.testing import assert_published, deliver, drain, isolate_declarations, published
from tests.support.fix_topics import transfer_all
from tests.support.projecting_app.models import CustomerTotal

pytestmark = [pytest.mark.requirement("X9"), pytest.mark.usefixtures("transactional_db")]

ONCE = Backoff(attempts=1)


class Color(Enum):
    RED = "red"


class Line(BaseModel):
    sku: str
    quantity: int = Field(gt=0)


class PlacedFields(BaseModel):
    customer: str
    total: Decimal
    at: datetime | None = None
    number: UUID | None = None
    color: Color = Color.RED
    lines: list[Line] = []
    notes: dict[str, str | None] = {}


@schema("order.placed", version=2)
class Placed(PlacedFields):
    currency: str


@schema("order.paid")
class Paid(BaseModel):
    card: str


ADA = Placed(
    customer="Ada",
    total=Decimal("12345678901234567890.10"),
    at=datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC),
    number=UUID(int=2**127 + 1),
    lines=[Line(sku="ü\\", quantity=2**60)],
    notes={"a.b": None, "": "x"},
    currency="EUR",
)
OLD = {"customer": "Bob", "total": "1.50"}


@pytest.fixture(autouse=True)
def isolated(transactional_db):
    with isolate_declarations():
        upcaster("order.placed", 1)(lambda value: {**value, "currency": "EUR"})
        yield


@pytest.fixture
def orders(make_topic):
    return make_topic("described", schemas=[Placed, Paid])


def stored() -> list[tuple[str, Any, Any]]:
    return list(BufferedEvent.objects.order_by("id").values_list("type", "value", "metadata"))


@contextmanager
def described_as(topic: declarations.DeclaredTopic, **changed: Any) -> Iterator[None]:
    """A topic of a test's app, described for a while."""
    before = {name: getattr(topic, name) for name in changed}
    lower(topic, **changed)
    try:
        yield
    finally:
        lower(topic, **before)


def lower(topic: declarations.DeclaredTopic, **changed: Any) -> None:
    """Have events of before there: published by code that described nothing."""
    for name, value in changed.items():
        object.__setattr__(topic, name, value)
    vars(topic).pop("contract", None)


def unchecked(topic: declarations.DeclaredTopic, *drafts: Draft) -> None:
    with described_as(topic, schemas=()):
        publish_many(topic, drafts)
    transfer_all()


def refused_each_way(topic: declarations.DeclaredTopic) -> dict[str, Callable[[], Any]]:
    wrong: dict[str, Any] = {"type": "order.placed"}

    def write() -> None:
        with BufferedWriter(topic) as writer:
            writer.publish({"total": 1}, **wrong)

    def command() -> None:
        try:
            call_command("events", "publish", topic.name, '{"total": 1}', "--type", "order.placed")
        except CommandError as error:
            raise InvalidEvent(str(error)) from error

    return {
        "publish": lambda: publish(topic, {"total": 1}, **wrong),
        "method": lambda: topic.publish({"total": 1}, **wrong),
        "async": lambda: async_to_sync(apublish)(topic, {"total": 1}, **wrong),
        "few": lambda: publish_many(topic, [Draft(value=ADA), Draft(value={"total": 1}, **wrong)]),
        "many": lambda: publish_many(topic, [*[Draft(value=ADA)] * 150, Draft(value={"total": 1}, **wrong)]),
        "writer": write,
        "command": command,
    }


@pytest.mark.parametrize("way", ["publish", "method", "async", "few", "many", "writer", "command"])
def test_each_way_to_publish_is_checked_and_leaves_nothing(orders, way):
    with pytest.raises(InvalidEvent, match=r"doesn't fit 'order\.placed' version 2 of topic 'described': \$\.customer"):
        refused_each_way(orders)[way]()
    assert stored() == []


def test_a_transaction_goes_on_after_a_refusal(orders):
    with transaction.atomic():
        with pytest.raises(InvalidEvent):
            orders.publish({}, type="order.paid")
        orders.publish(Paid(card="1"), key="a")
    assert stored() == [("order.paid", {"card": "1"}, {"schema_version": 1})]


@pytest.mark.parametrize("how", ["publish", "async", "many", "writer", "later"])
def test_what_is_published_comes_back_as_it_was(orders, make_consumer, how):
    seen: list[Any] = []
    make_consumer(orders, name="reader", handler=lambda event: seen.append(event.data))
    if how == "publish":
        orders.publish(ADA, key="a")
    elif how == "async":
        async_to_sync(orders.apublish)(ADA, key="a")
    elif how == "many":
        orders.publish_many([Draft(value=ADA, key="a")])
    elif how == "later":
        orders.publish(ADA, key="a", publish_at=datetime(2026, 1, 1, tzinfo=UTC), dedup_key="k")
    else:
        with BufferedWriter(orders) as writer:
            assert writer.publish(ADA, key="a").result() is True
    drain("reader")
    assert seen == [ADA]
    [event] = Event.objects.since(orders)
    assert (event.type, event.key, event.metadata) == ("order.placed", "a", {"schema_version": 2})


def test_handlers_get_the_newest_version_of_whatever_is_in_the_log(orders, make_consumer):
    unchecked(
        orders,
        Draft(value=OLD, type="order.placed"),
        Draft(value=OLD, type="order.placed", metadata={"schema_version": 1}),
    )
    orders.publish(ADA)
    seen: list[Any] = []
    make_consumer(orders, name="reader", handler=lambda event: seen.append(event.data))
    drain("reader")
    bob = Placed(**OLD, currency="EUR")
    assert seen == [bob, bob, ADA]


def test_batches_read_models_too(orders, make_consumer):
    seen: list[Any] = []
    make_consumer(orders, name="reader", batch_size=10, handler=lambda events: seen.extend(one.data for one in events))
    orders.publish_many([Draft(value=ADA), Draft(value=Paid(card="1"))])
    drain("reader")
    assert seen == [ADA, Paid(card="1")]


@pytest.mark.parametrize("batch_size", [1, 10])
def test_projections_read_models_of_the_newest_version(orders, make_projection, batch_size):
    def add(row: CustomerTotal, event: ReceivedEvent) -> None:
        placed = event.data_as(Placed)
        row.orders += 1
        row.total += placed.total
        row.seen = [*row.seen, placed.currency]

    totals = make_projection(
        orders, into=CustomerTotal, fold=add, key=lambda event: event.data.customer, batch_size=batch_size
    )
    unchecked(orders, Draft(value=OLD, type="order.placed"), Draft(value=OLD, type="order.placed"))
    orders.publish(Placed(customer="Bob", total=Decimal("0.05"), currency="CHF"))
    orders.publish(Placed(customer="Ada", total=Decimal(7), currency="EUR"))
    drain("totals")
    found = {row.customer: (row.orders, row.total, row.seen) for row in CustomerTotal.objects.all()}
    assert found == {
        "Bob": (3, Decimal("3.05"), ["EUR", "EUR", "CHF"]),
        "Ada": (1, Decimal("7.00"), ["EUR"]),
    }
    checked = totals.check()
    assert (checked.drifts, checked.failed, checked.keys) == ([], [], 2)


def test_a_projection_fails_what_does_not_fit_and_goes_on(orders, make_projection):
    def add(row: CustomerTotal, event: ReceivedEvent) -> None:
        row.total += event.data_as(Placed).total

    make_projection(orders, into=CustomerTotal, fold=add, key="$.customer", retry=ONCE)
    unchecked(orders, Draft(value={"customer": "Bob", "total": "x"}, type="order.placed"))
    orders.publish(Placed(customer="Bob", total=Decimal(7), currency="EUR"))
    drain("totals", raise_errors=False)
    assert list(CustomerTotal.objects.values_list("customer", "total")) == [("Bob", Decimal(7))]
    [letter] = DeadLetter.objects.filter(consumer__name="totals")
    assert "Event described/1 of type 'order.placed' doesn't fit: $.total: Input should be a valid d" in letter.error


def test_what_does_not_fit_is_a_failure_like_any_other(orders, make_consumer):
    unchecked(orders, Draft(value={"total": 1}, type="order.placed"), Draft(value={"card": "1"}, type="order.paid"))
    seen: list[Any] = []
    make_consumer(orders, name="reader", retry=ONCE, handler=lambda event: seen.append(event.data))
    drain("reader", raise_errors=False)
    assert seen == [Paid(card="1")]
    [letter] = DeadLetter.objects.filter(consumer__name="reader")
    assert letter.event_id == 1 and "total" not in letter.traceback.split("UnfitEvent", 1)[-1]
    assert "Event described/1 of type 'order.placed' doesn't fit: $.customer: Field required." in letter.error
    with pytest.raises(UnfitEvent):
        make_consumer(orders, name="another", handler=lambda event: event.data)
        drain("another")


def test_a_handler_may_pass_over_what_does_not_fit(orders, make_consumer):
    def take(event: Any) -> None:
        try:
            _ = event.data
        except UnfitEvent as error:
            raise Ignore(str(error)) from error

    unchecked(orders, Draft(value={"total": 1}, type="order.placed"))
    make_consumer(orders, name="reader", handler=take)
    drain("reader")
    assert not DeadLetter.objects.filter(consumer__name="reader").exists()


def test_claims_listeners_and_tests_read_models(orders, make_queue, make_consumer):
    make_queue(orders, name="work")
    orders.publish(ADA, key="a")
    [before] = published(orders)
    assert before.data == ADA
    transfer_all()
    with claim("work", 1) as claimed:
        [event] = claimed
        assert event.data == ADA
        claimed.ack(event)
    with listen(orders, since="described/0") as listener:
        assert next(iter(listener)).data == ADA
    [one] = assert_published(orders, value=ADA, count=1)
    assert one.data == ADA
    reader = make_consumer(orders, name="reader", handler=lambda event: event.data)
    assert deliver(reader, Draft(value=ADA)) == ADA
    assert deliver(reader, one) == ADA
    with pytest.raises(InvalidEvent):
        deliver(reader, Draft(value={}, type="order.paid"))


def run(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("events", "schemas", "check", *arguments, "--against-log", stdout=out)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


def look(topic: declarations.DeclaredTopic, *, after: int = 0, limit: int | None = None, **options: Any) -> Any:
    from django_events.log.inventory import existing

    options.setdefault("on_progress", lambda name, at: None)
    return fit("default", existing("default", topic), after=after, limit=limit, **options)


def test_the_log_is_proved_up_to_an_id(orders):
    assert look(orders)[1:8] == (0, 0, 0, 0, 0, 0, 0)
    orders.publish_many([Draft(value=ADA)] * 5)
    unchecked(orders, Draft(value=OLD, type="order.placed"), Draft(value={"card": 7}, type="order.paid"))
    found = look(orders)
    assert (found.until, found.last_id, found.events, found.misfits, found.next) == (7, 7, 7, 1, None)
    [one] = found.first
    assert (one.address, one.type, one.problems) == (
        "described/7",
        "order.paid",
        ("$.card: Input should be a valid string",),
    )
    code, said = run("described")
    assert code == 1
    assert said == (
        "described: ids 1 to 7: 7 events looked at, 1 don't fit.\n"
        "described/7 order.paid: $.card: Input should be a valid string\n"
    )


@pytest.mark.parametrize("compatibility", ["backward", "none", "forward", "full"])
def test_a_newer_version_fits_where_the_newest_model_reads_it(make_topic, compatibility):
    """As older code finds it that is to be deployed again."""
    described = make_topic("described", schemas=[Placed, Paid], compatibility=compatibility)
    unchecked(
        described,
        Draft(value={**OLD, "currency": "EUR", "new": 1}, type="order.placed", metadata={"schema_version": 3}),
        Draft(value={"currency": "EUR"}, type="order.placed", metadata={"schema_version": 3}),
        Draft(body=b"x", type="other", metadata={"schema_version": 3}),
        Draft(value={"card": "1"}, type="order.paid", metadata={"schema_version": 1}),
    )
    lower(described, undescribed="pass")
    found, (code, said) = look(described), run("described")
    assert (code, found.events, found.undescribed) == (1, 3, 1)
    promised = compatibility in ("forward", "full")
    assert (found.misfits, found.newer) == ((1, 1) if promised else (2, 0))
    read_it = (
        "  1 event of a newer version than the newest one here, whose model reads them. Newer code published them."
    )
    newer = "its version 3 is newer than 2, which is the newest one here. Deploy the newer code, or declare"
    assert (read_it in said, f"described/1 order.placed: {newer}" in said) == (promised, not promised)
    if promised:
        assert "described/2 order.placed: $.customer: Field required; $.total: Field required" in said
    assert run("described", "--limit", "1")[0] == (0 if promised else 1)


def undescribed_ways() -> dict[str, tuple[str, str, Callable[[Any], Any]]]:
    """Each way in: its topic, the type that it publishes, and how."""
    from tests.support.publishing_app.models import Account, Book

    def write(topic: declarations.DeclaredTopic) -> None:
        with BufferedWriter(topic) as writer:
            writer.publish({"a": 1}, type="other")

    return {
        "publish": ("described", "other", lambda topic: publish(topic, {"a": 1}, type="other")),
        "publish_many": ("described", "other", lambda topic: publish_many(topic, [Draft(value=1, type="other")] * 2)),
        "BufferedWriter": ("described", "other", write),
        "outbox": ("library", "book.created", transaction.atomic(lambda topic: Book.objects.create(title="Emma"))),
        "capture": ("accounts", "account.created", lambda topic: Account.objects.create(iban="DE1", pin="1")),
    }


@pytest.mark.parametrize("way", ["publish", "publish_many", "BufferedWriter", "outbox", "capture"])
@pytest.mark.parametrize("schema_check", ["strict", "warn", "off"])
@pytest.mark.parametrize("undescribed", ["refuse", "pass"])
def test_a_type_that_no_schema_has_is_refused_or_passes(orders, way, schema_check, undescribed, caplog):
    """However it gets in, but for what the database writes by itself."""
    name, kind, do = undescribed_ways()[way]
    topic = declarations.registry.get(name)
    transfer_all()
    before = len(published(topic))
    told = undescribed == "refuse" and way != "capture" and schema_check != "off"
    with (
        described_as(topic, schemas=(Paid,), schema_check=schema_check, undescribed=undescribed),
        caplog.at_level("WARNING", "django_events.contracts"),
    ):
        if told and schema_check == "strict":
            said = f"Topic '{name}' describes no events of type '{kind}'"
            with pytest.raises(InvalidEvent, match=said), transaction.atomic():
                do(topic)
        else:
            do(topic)
    came = published(topic)[before:]
    assert {one.type for one in came} == (set() if told and schema_check == "strict" else {kind})
    assert all("schema_version" not in one.metadata for one in came)
    warned = [one for one in caplog.records if one.name == "django_events.contracts"]
    assert bool(warned) == (told and schema_check == "warn")
    assert all((one.topic, one.event_type) == (name, kind) for one in warned)


def test_the_log_is_looked_at_in_pieces(orders):
    orders.publish_many([Draft(value=ADA)] * 10)
    transfer_all()
    code, said = run("described", "--limit", "4")
    assert (code, said) == (
        0,
        "described: ids 1 to 4: 4 events looked at, all fit.\nThe log goes on to 10. Go on with: "
        "manage.py events schemas check described --against-log --from 5\n",
    )
    code, said = run("described", "--from", "5", "--format", "json")
    [told] = json.loads(said)
    assert (code, told["after"], told["until"], told["events"], told["next"]) == (0, 4, 10, 6, None)
    code, said = run("described", "--from", "11")
    assert (code, said) == (0, "described: no events behind id 10.\n")


def test_an_interrupted_look_says_what_it_proved(orders, monkeypatch):
    monkeypatch.setattr("django_events.observing.log_fit.AT_ONCE", 3)
    orders.publish_many([Draft(value=ADA)] * 10)
    transfer_all()

    def interrupt(name: str, at: int) -> None:
        if at == 6:
            raise KeyboardInterrupt

    found = look(orders, on_progress=interrupt)
    assert (found.until, found.events, found.interrupted, found.next) == (6, 6, True, 7)


def test_masked_values_are_not_printed(orders):
    unchecked(orders, Draft(value={"card": {"number": "4111"}}, type="order.paid"))
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]}):
        code, said = run("described")
    assert code == 1 and "$.card: ••• (string_type)" in said and "4111" not in said


def test_only_the_first_are_named_and_all_are_counted(orders):
    unchecked(orders, *[Draft(value={}, type="order.paid")] * 25)
    found = look(orders)
    assert (found.misfits, [one.id for one in found.first]) == (25, list(range(1, 11)))
    assert "  … and 15 more\n" in run("described")[1]


def test_other_types_and_erased_events_and_tombstones(make_topic):
    mixed = make_topic("mixed", schemas=[Paid], undescribed="pass", compact=True)
    mixed.publish_many(
        [
            Draft(value={}, type="other", key="a"),
            Draft(body=b"x", type="other", key="a"),
            Draft(value=Paid(card="1"), key="a"),
            Draft(value=None, type="order.paid", key="a"),
        ]
    )
    transfer_all()
    found = look(mixed)
    assert (found.events, found.undescribed, found.misfits) == (2, 2, 0)
    assert "2 events of other types passed over, all fit" in run("mixed")[1]
    lower(mixed, undescribed="refuse")
    assert [one.type for one in look(mixed).first] == ["other", "other"]


def test_large_events_are_read_one_by_one(orders):
    orders.publish_many([Draft(value=Paid(card="x" * 9_000)) for _ in range(7)])
    transfer_all()
    with override_settings(DJANGO_EVENTS={"MAX_BATCH_BYTES": 20_000}):
        assert (look(orders).events, look(orders).misfits) == (7, 0)
    with override_settings(DJANGO_EVENTS={"MAX_BATCH_BYTES": 5_000}):
        assert (look(orders).events, look(orders).misfits) == (7, 0)


def test_a_validator_that_fails_otherwise_is_told(make_topic):
    @schema("odd")
    class Odd(BaseModel):
        number: int

        def model_post_init(self, context: Any) -> None:
            raise RuntimeError("not today")

    odd = make_topic("odd", schemas=[Odd])
    unchecked(odd, Draft(value={"number": 1}, type="odd"))
    assert look(odd).first[0].problems == ("RuntimeError: not today",)


def test_a_read_of_a_piece_goes_by_the_primary_key(orders):
    from django_events.models import Topic
    from django_events.observing.log_fit import SQL
    from django_events.statements import log_table

    orders.publish_many([Draft(value=ADA)] * 2_000)
    transfer_all()
    pk = Topic.objects.get(name="described").pk
    chosen = SQL.between.on(log=log_table(pk), topic_id=pk, after=1_000, upper=1_010, most=10)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {log_table(pk)}")
        cursor.execute(f"EXPLAIN {chosen.text}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Scan" in plan and "Seq Scan" not in plan and "Sort" not in plan


def test_published_again_it_keeps_its_version(orders):
    from django_events.operations import publish_again

    unchecked(orders, Draft(value=OLD, type="order.placed", metadata={"schema_version": 1}))
    publish_again(orders, 1)
    transfer_all()
    assert Event.objects.at(orders, 2).metadata["schema_version"] == 1


def test_a_retry_waits_for_code_that_can_read_it(orders, make_consumer):
    """A version that newer code published: older workers fail it, and it is handled after the deploy."""
    unchecked(orders, Draft(value={}, type="order.placed", metadata={"schema_version": 3}))
    seen: list[Any] = []
    make_consumer(
        orders,
        name="reader",
        retry=Backoff(attempts=5, base=timedelta(0), cap=timedelta(0)),
        handler=lambda event: seen.append(event.data),
    )
    with pytest.raises(UnfitEvent, match="its version 3 is newer than 2"):
        drain("reader")
    assert not DeadLetter.objects.filter(consumer__name="reader").exists()

    @schema("order.placed", version=3)
    class Newer(BaseModel):
        """The code after the deploy."""

    lower(orders, schemas=(Newer,))
    drain("reader")
    assert seen == [Newer()]


def test_an_outbox_publishes_what_fits_and_nothing_else(make_topic):
    from tests.support.publishing_app.models import Book

    @schema("book.created")
    class BookCreated(BaseModel):
        id: int
        title: str = Field(min_length=3)
        price: Decimal
        copies: int

    library = declarations.registry.get("library")
    with described_as(library, schemas=(BookCreated,), undescribed="pass"):
        with transaction.atomic():
            book = Book.objects.create(title="Emma", price=Decimal("7.50"))
        [event] = published(library)
        assert event.data == BookCreated(id=book.pk, title="Emma", price=Decimal("7.50"), copies=0)
        with pytest.raises(InvalidEvent, match=r"\$\.title: String should have at least 3"), transaction.atomic():
            Book.objects.create(title="It", price=Decimal("7.50"))
        assert list(Book.objects.values_list("title", flat=True)) == ["Emma"]
        with transaction.atomic():
            book.save()
        assert [one.type for one in published(library)] == ["book.created", "book.updated"]


def test_an_outbox_may_make_models(make_topic):
    from tests.support.publishing_app.models import Book, Fine, Loan

    @schema("fine.created")
    class FineCreated(BaseModel):
        fine: str

    lending = declarations.registry.get("lending")
    with described_as(lending, schemas=(FineCreated,), undescribed="pass"), transaction.atomic():
        loan = Loan.objects.create(book=Book.objects.create(title="Emma"), reader="Ada")
        Fine.objects.create(loan=loan, amount=7)
        assert [one.data for one in published(lending) if one.type == "fine.created"] == [FineCreated(fine="7 for Ada")]


def test_what_triggers_write_is_held_against_the_log_only(make_topic):
    from tests.support.publishing_app.models import Account

    accounts = declarations.registry.get("accounts")

    @schema("account.created")
    class AccountCreated(BaseModel):
        note: str = Field(max_length=3)

    with described_as(accounts, schemas=(AccountCreated,), undescribed="pass"):
        Account.objects.create(note="Ada", iban="DE1", pin="1")
        Account.objects.create(note="Grace", iban="DE2", pin="2")
        transfer_all()
        found = look(accounts, after=found_after(accounts))
        assert (found.events, found.misfits) == (2, 1)
        assert found.first[0].problems == ("$.note: String should have at most 3 characters",)
        assert Event.objects.since(accounts, found.after).first().metadata.get("schema_version") is None


def found_after(topic: declarations.DeclaredTopic) -> int:
    """The id behind which a topic of an app has the two events of this test."""
    return Event.objects.of(topic).order_by("-id").values_list("id", flat=True)[0] - 2


def test_sql_may_say_a_version(orders):
    with connection.cursor() as cursor:
        for version in (1, 2):
            cursor.execute(
                "SELECT django_events_publish(%s, %s::jsonb, %s, metadata => %s::jsonb)",
                [orders.name, json.dumps(OLD), "order.placed", json.dumps({"schema_version": version})],
            )
    transfer_all()
    [one] = look(orders).first
    assert (one.id, one.problems) == (2, ("$.currency: Field required",))


def test_in_a_handler_the_version_is_beside_the_cause(orders, make_consumer, make_topic):
    results = make_topic("results", schemas=[Paid])
    make_consumer(orders, name="reader", handler=lambda event: publish(results, Paid(card=event.data.customer)))
    orders.publish(ADA)
    drain("reader")
    [event] = published(results)
    assert event.metadata == {"caused_by": "described/1", "schema_version": 1}
    with event_context(schema_version=9, user="ada"):
        results.publish(Paid(card="2"))
    assert published(results)[-1].metadata == {"schema_version": 1, "user": "ada"}


def test_snapshots_of_an_outbox_are_of_a_type_of_their_own(make_topic):
    """`book.snapshot` is described like any other type, or passes."""
    from django_events.operations import snapshot
    from tests.support.publishing_app.models import Book

    library = declarations.registry.get("library")
    with transaction.atomic():
        Book.objects.create(title="Emma", price=Decimal("7.50"))
    before = len(published(library))
    with (
        described_as(library, schemas=(Paid,)),
        pytest.raises(InvalidEvent, match=r"no events of type 'book\.snapshot'"),
    ):
        snapshot(Book, reason="a test")
    assert len(published(library)) == before
    with described_as(library, schemas=(Paid,), undescribed="pass"):
        snapshot(Book, reason="a test", restart=True)
    assert len(published(library)) == before + 1


def test_a_log_out_of_reach_is_said(orders):
    elsewhere = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": "1"}
    connections.settings["away"] = {**connections["default"].settings_dict, **elsewhere}
    try:
        with pytest.raises(CommandError, match="The database 'away' can't be reached") as raised:
            run("described", "--database", "away")
        assert raised.value.returncode == 75
    finally:
        connections["away"].close()
        del connections["away"]
        del connections.settings["away"]


def test_a_topic_that_is_not_migrated_is_said(orders):
    declarations.topic("unmigrated", schemas=[Placed])
    with pytest.raises(CommandError, match="has no topic 'unmigrated'"):
        run("unmigrated")
