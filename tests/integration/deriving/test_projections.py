"""Projections: rows of a model that are what their events say, each event counted once."""

import threading
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core import checks as django_checks
from django.db import connection, models
from django.test.utils import CaptureQueriesContext, isolate_apps

from django_events import DELETE, Backoff, Draft, Ignore, declarations, publish, publish_many
from django_events.consuming.streams.partitions import claim
from django_events.consuming.subscriptions import subscriptions
from django_events.exceptions import Refused
from django_events.models import Consumer, Position
from django_events.operations import lag, pause, replay, resume, rewind, skip
from tests.support.fix_consumers import (
    dead_letters,
    end_pauses,
    exhaust,
    expire_leases,
    lease_of,
    run_once,
    serve_due,
    serve_lease,
    working,
)
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until
from tests.support.projecting_app.models import Counter, CustomerTotal, Dated, Region, Together
from tests.support.publishing_app.models import AudioBook

pytestmark = pytest.mark.usefixtures("transactional_db")

with isolate_apps("tests.support.projecting_app"):

    class Elsewhere(models.Model):
        """A table that other code makes."""

        code = models.CharField(max_length=10, primary_key=True)

        class Meta:
            app_label = "projecting_app"
            managed = False


AT_ONCE = Backoff(attempts=2, base=timedelta(0), cap=timedelta(0))


def add(row, event):
    """One order more; what the event tells to do instead is done."""
    row.orders += 1
    row.total += Decimal(str(event.value["total"]))
    row.seen = [*row.seen, event.id]


def add_or_delete(row, event):
    if event.type == "gone":
        return DELETE
    add(row, event)
    return None


def order(customer, total=1, **fields):
    return Draft(value={"customer": customer, "total": total}, key=str(customer), **fields)


def totals():
    return {row.customer: (row.orders, row.total) for row in CustomerTotal.objects.all()}


def seen():
    return {row.customer: row.seen for row in CustomerTotal.objects.all()}


# What a row is


@pytest.mark.requirement("X13")
def test_a_row_is_what_its_events_say(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    publish_many(things, [order("ada", 2), order("bob", 3), order("ada", 5)])
    transfer_all()

    assert serve_due(projection) == 3
    assert totals() == {"ada": (2, 7), "bob": (1, 3)}
    assert seen() == {"ada": [1, 3], "bob": [2]}


def test_the_name_is_the_functions_by_default_and_calling_it_calls_the_function(things):
    projection = declarations.projection(things, into=CustomerTotal)(add)
    declarations.consumers.discard(projection)

    assert projection.name == "add"
    assert projection.__doc__ == add.__doc__ and projection.__wrapped__ is add
    row = CustomerTotal(customer="ada")
    projection(row, FakeEvent(7))
    assert (row.orders, row.total) == (1, 7)


class FakeEvent:
    id, type = 1, ""

    def __init__(self, total):
        self.value = {"total": total}


def test_a_batch_reads_its_rows_by_one_query_and_writes_new_and_changed_ones_by_one_each(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    publish_many(things, [order(f"c{n % 50}") for n in range(200)])
    publish_many(things, [order("new")])
    transfer_all()
    lease = lease_of(projection)

    with CaptureQueriesContext(
        connection,
    ) as queries:
        serve_lease(lease)

    on_table = [q["sql"] for q in queries if "customertotal" in q["sql"].lower()]
    assert [text.split()[0] for text in on_table] == ["SELECT", "INSERT"]
    assert len(totals()) == 51

    publish_many(things, [order(f"c{n % 60}") for n in range(200)])
    transfer_all()
    with CaptureQueriesContext(connection) as queries:
        serve_lease(lease_of(projection))
    on_table = [q["sql"] for q in queries if "customertotal" in q["sql"].lower()]
    assert [text.split()[0] for text in on_table] == ["SELECT", "INSERT", "INSERT"]
    assert len(totals()) == 61


def test_rows_that_did_not_change_are_not_written(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=lambda row, event: None)
    CustomerTotal.objects.create(customer="ada", orders=7)
    before = CustomerTotal.objects.get(customer="ada").changed_at
    publish_many(things, [order("ada"), order("bob")])
    transfer_all()

    serve_due(projection)

    assert CustomerTotal.objects.get(customer="ada").changed_at == before
    assert totals() == {"ada": (7, 0), "bob": (0, 0)}  # the first event of a key makes its row


def test_a_list_that_is_changed_in_place_is_a_change(things, make_projection):
    def append(row, event):
        row.seen.append(event.id)

    projection = make_projection(things, into=CustomerTotal, fold=append)
    for _ in range(2):
        publish_many(things, [order("ada")])
        transfer_all()
        serve_due(projection)

    assert seen() == {"ada": [1, 2]}


def test_the_time_of_the_first_write_stays(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    publish_many(things, [order("ada")])
    transfer_all()
    serve_due(projection)
    first = CustomerTotal.objects.get()
    publish_many(things, [order("ada")])
    transfer_all()
    serve_due(projection)
    second = CustomerTotal.objects.get()

    assert second.first_at == first.first_at
    assert second.changed_at > first.changed_at


def test_delete_deletes_the_row_and_a_later_event_begins_a_new_one(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add_or_delete)
    publish_many(things, [order("ada", 5), order("bob", 1)])
    transfer_all()
    serve_due(projection)
    publish_many(
        things,
        [
            order("ada", type="gone"),
            order("bob", type="gone"),
            order("bob", 3),
            order("cyd", type="gone"),
            order("dan", 1),
            order("dan", type="gone"),
        ],
    )
    transfer_all()
    serve_due(projection)

    assert totals() == {"bob": (1, 3)}


def test_what_refers_to_other_tables_is_kept(things, make_projection):
    regions = {region.name: region.pk for region in [Region.objects.create(name=name) for name in ("north", "south")]}

    def place(row, event):
        row.region_id = regions[event.value["region"]]

    projection = make_projection(things, into=CustomerTotal, fold=place)
    publish_many(things, [Draft(value={"region": "north"}, key="ada"), Draft(value={"region": "south"}, key="ada")])
    transfer_all()
    serve_due(projection)

    assert CustomerTotal.objects.get().region.name == "south"


# Keys


def test_a_key_is_a_path_into_the_value(lanes, make_projection):
    projection = make_projection(lanes, into=CustomerTotal, key="$.customer", fold=add)
    values = [{"customer": "ada", "total": 1}, {"customer": "ada", "total": 2}, {"total": 4}, {"customer": None}]
    publish_many(lanes, [Draft(value=value, key=str(n)) for n, value in enumerate(values)])
    transfer_all()
    serve_due(projection)

    assert totals() == {"ada": (2, 3)}  # without a customer, an event is for no row
    assert Position.objects.get(consumer__name="totals").partition == Position.ALL


def test_a_key_is_what_a_function_says(things, make_projection):
    projection = make_projection(
        things, into=Counter, key=lambda event: event.value["n"] % 2, key_field="code", fold=count
    )
    publish_many(things, [Draft(value={"n": n}) for n in range(5)])
    transfer_all()
    serve_due(projection)

    assert {row.code: row.names for row in Counter.objects.all()} == {0: "1 3 5", 1: "2 4"}


def count(row, event):
    row.events += 1
    row.names = f"{row.names} {event.id}".strip()


def test_a_key_of_another_type_is_that_of_the_field(things, make_projection):
    projection = make_projection(things, into=Counter, key_field="code", fold=count, retry=AT_ONCE)
    publish_many(things, [Draft(value={}, key=key) for key in ("7", "8", "7", "none")])
    transfer_all()
    exhaust(projection)
    publish_many(things, [Draft(value={}, key="7")])
    transfer_all()
    exhaust(projection)

    assert {row.code: row.names for row in Counter.objects.all()} == {7: "1 3 5", 8: "2"}
    assert [letter.event_id for letter in dead_letters(projection)] == [4]


def test_a_key_that_is_no_text_and_no_number_fails(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, key="$.customer", fold=add, retry=AT_ONCE)
    publish_many(things, [Draft(value={"customer": ["a"]})])
    transfer_all()
    exhaust(projection)

    [letter] = dead_letters(projection)
    assert "expected a text or a number" in letter.error


@pytest.mark.parametrize(
    "change", [lambda row: setattr(row, "customer", "other"), lambda row: setattr(row, "pk", None)]
)
def test_a_function_that_changes_the_key_fails(things, make_projection, change):
    projection = make_projection(things, into=CustomerTotal, fold=lambda row, event: change(row), retry=AT_ONCE)
    publish_many(things, [order("ada")])
    transfer_all()
    exhaust(projection)

    assert "changed the key of a row" in dead_letters(projection)[0].error
    assert totals() == {}


def test_a_function_that_returns_something_else_fails(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=lambda row, event: row, retry=AT_ONCE)
    publish_many(things, [order("ada")])
    transfer_all()
    exhaust(projection)

    assert "expected None or DELETE" in dead_letters(projection)[0].error


# An ordinary consumer


@pytest.mark.requirement("X13")
def test_an_error_leaves_nothing_half_changed_and_becomes_a_dead_letter(things, make_projection):
    def fragile(row, event):
        add(row, event)
        if event.value["total"] < 0:
            row.total = 999
            raise ValueError("negative")

    projection = make_projection(things, into=CustomerTotal, fold=fragile, retry=AT_ONCE)
    publish_many(things, [order("ada", 1), order("bob", -1), order("ada", -2), order("ada", 4), order("cyd", 1)])
    transfer_all()
    exhaust(projection)

    assert totals() == {"ada": (2, 5), "cyd": (1, 1)}
    assert [(letter.event_id, letter.attempts) for letter in dead_letters(projection)] == [(2, 2), (3, 2)]


def test_what_the_database_refuses_becomes_a_dead_letter(things, make_projection):
    def negative(row, event):
        row.orders = event.value["total"]

    projection = make_projection(things, into=CustomerTotal, fold=negative, retry=AT_ONCE)
    publish_many(things, [order("ada", 1), order("ada", -1), order("bob", 2)])
    transfer_all()
    exhaust(projection)

    assert {row.customer: row.orders for row in CustomerTotal.objects.all()} == {"ada": 1, "bob": 2}
    assert [letter.event_id for letter in dead_letters(projection)] == [2]


def test_a_reference_that_leads_nowhere_becomes_a_dead_letter(things, make_projection):
    def dangling(row, event):
        row.region_id = 4_711 if event.value["total"] < 0 else None

    projection = make_projection(things, into=CustomerTotal, fold=dangling, retry=AT_ONCE)
    publish_many(things, [order("ada", 1), order("bob", -1), order("cyd", 1)])
    transfer_all()
    exhaust(projection)

    assert sorted(totals()) == ["ada", "cyd"]
    assert [letter.event_id for letter in dead_letters(projection)] == [2]


def test_an_ignored_event_changes_nothing(things, make_projection):
    def ignoring(row, event):
        add(row, event)
        if event.value["total"] == 0:
            raise Ignore("nothing bought")

    projection = make_projection(things, into=CustomerTotal, fold=ignoring)
    publish_many(things, [order("ada", 1), order("ada", 0)])
    transfer_all()
    exhaust(projection)

    assert totals() == {"ada": (1, 1)}
    assert not dead_letters(projection)


@pytest.mark.requirement("X13")
def test_a_worker_that_lost_its_lease_writes_no_row(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    publish_many(things, [order("ada", 1), order("ada", 2)])
    transfer_all()
    stale = lease_of(projection)
    stale.read()
    expire_leases(projection)
    serve_due(projection)
    assert totals() == {"ada": (2, 3)}

    with pytest.raises(Exception, match="lost its lease"):
        serve_lease(stale)
    assert totals() == {"ada": (2, 3)}


def test_several_projections_of_one_topic(things, make_projection):
    one = make_projection(things, into=CustomerTotal, fold=add, name="one")
    other = make_projection(things, into=Counter, key="$.total", key_field="code", fold=count, name="other")
    publish_many(things, [order("ada", 1), order("bob", 1)])
    transfer_all()

    run_once(one, other)

    assert totals() == {"ada": (1, 1), "bob": (1, 1)}
    assert [row.names for row in Counter.objects.all()] == ["1 2"]


@pytest.mark.slow
@pytest.mark.requirement("X13")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_row_that_two_partitions_have_events_of_loses_no_update(make_topic, make_projection, is_there):
    """An event may name its partition, whatever its key is."""
    topic, both = make_topic("named", partitions=2), threading.Barrier(2)

    def tally(row, event):
        row.orders += 1
        if event.type == "together":
            with suppress(threading.BrokenBarrierError):  # the other one waits for this one's transaction, as it should
                both.wait(0.5)

    projection = make_projection(topic, into=CustomerTotal, fold=tally, retry=AT_ONCE)
    if is_there:
        publish_many(topic, [order("ada", partition=0)])
        transfer_all()
        exhaust(projection)
    publish_many(topic, [order("ada", partition=n, type="together") for n in range(2)])
    transfer_all()

    run_once(projection, threads=2)
    exhaust(projection)

    assert totals() == {"ada": (2 + is_there, 0)} and not dead_letters(projection)


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_one_projection_of_several_topics_loses_no_update(make_topic, make_projection):
    topics = [make_topic(name, partitions=2) for name in ("sales", "returns")]

    def tally(row, event):
        row.orders += 1

    projection = make_projection(*topics, into=CustomerTotal, fold=tally, batch_size=5)
    for topic in topics:
        publish_many(topic, [order(f"c{n % 3}") for n in range(120)])
    transfer_all()

    run_once(projection, threads=4)

    assert {row.customer: row.orders for row in CustomerTotal.objects.all()} == {"c0": 80, "c1": 80, "c2": 80}


@pytest.mark.requirement("X13")
def test_a_release_that_adds_a_topic_loses_no_update(make_topic, make_projection, in_thread):
    """A worker of the former code folds beside one of the next, and doesn't know of the other topic."""
    sales, returns = make_topic("sales"), make_topic("returns")
    both = threading.Barrier(2)

    def tally(row, event):
        row.orders += 1
        if event.type == "together":
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)

    former = make_projection(sales, into=CustomerTotal, fold=tally)
    publish_many(sales, [order("ada")])
    transfer_all()
    exhaust(former)
    present = make_projection(sales, returns, into=CustomerTotal, fold=tally)
    for topic in (sales, returns):
        publish_many(topic, [order("ada", type="together")])
    transfer_all()
    [of_returns] = [one for one in subscriptions("default", [present]) if one.topic == "returns"]
    [(position_id, partition)] = of_returns.positions
    leases = [lease_of(former), claim(of_returns, position_id, partition, holder="a test")]

    assert [passed.result(60) for passed in [in_thread(serve_lease, lease) for lease in leases]] == [1, 1]

    assert totals() == {"ada": (3, 0)}


def test_filters_pause_and_lag_are_those_of_a_consumer(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add, types=["placed"])
    publish_many(things, [order("ada", 1, type="placed"), order("ada", 2, type="other")])
    transfer_all()
    pause(projection)
    assert serve_due(projection) == 0 and lag(projection) > 0

    resume(projection)
    serve_due(projection)
    assert totals() == {"ada": (1, 1)} and lag(projection) == 0
    assert Consumer.objects.get(name="totals").mode == "stream"


def test_a_skipped_event_is_left_out(things, make_projection):
    def broken(row, event):
        add(row, event)
        if event.id == 2:
            raise ValueError("broken")

    projection = make_projection(things, into=CustomerTotal, fold=broken)
    publish_many(things, [order("ada", 1), order("ada", 2), order("ada", 4)])
    transfer_all()
    serve_due(projection)
    skip(projection, 2, reason="broken")
    exhaust(projection)

    assert totals() == {"ada": (2, 5)}
    assert projection.as_of(3, key="ada").total == 5


@pytest.mark.requirement("X13")
def test_what_would_count_events_twice_is_refused_with_the_way_out(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    publish_many(things, [order("ada", 1)])
    transfer_all()
    serve_due(projection)

    with pytest.raises(Refused, match=r"manage\.py events rebuild totals"):
        rewind(projection, to="beginning")
    with pytest.raises(Refused, match=r"manage\.py events rebuild totals"):
        replay(projection, ids=[1], reason="again")
    publish_many(things, [order("ada", 2)])
    transfer_all()
    rewind(projection, to="end")  # leaves events out, as it was told to
    serve_due(projection)
    assert totals() == {"ada": (1, 1)}


def test_it_works_in_the_background_like_any_consumer(lanes, make_projection):
    projection = make_projection(lanes, into=CustomerTotal, fold=add)
    with working(projection, threads=2):
        for _ in range(5):
            publish_many(lanes, [order(f"c{n}") for n in range(8)])
            transfer_all()
        wait_until(lambda: sum(orders for orders, _ in totals().values()) == 40, what="40 orders")
    assert all(ids == sorted(ids) for ids in seen().values())


def test_a_drain_in_a_test_of_a_site_folds(things, make_projection):
    from django_events.testing import drain

    projection = make_projection(things, into=CustomerTotal, fold=add)
    publish(things, {"total": 3}, key="ada")

    drain(projection)

    assert totals() == {"ada": (1, 3)}


def test_a_retry_does_not_count_twice(things, make_projection):
    failures = []

    def once(row, event):
        add(row, event)
        if not failures:
            failures.append(event.id)
            raise ValueError("the first time")

    projection = make_projection(things, into=CustomerTotal, fold=once, batch_size=1)
    publish_many(things, [order("ada", 1), order("ada", 2)])
    transfer_all()
    serve_due(projection)
    end_pauses(projection)
    serve_due(projection)

    assert totals() == {"ada": (2, 3)}


# Wrong declarations


@pytest.fixture
def declare():
    made = []

    def declare_one(*topics, **options):
        made.append(declarations.projection(*topics, **{"name": f"p{len(made)}", **options})(add))
        return made[-1]

    yield declare_one
    for one in made:
        declarations.consumers.discard(one)


def found(*ids):
    return [message for message in django_checks.run_checks() if message.id in ids]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"into": Dated, "key_field": "code"}, "has key_field='code', which projecting_app.Dated has not"),
        ({"into": Dated, "key_field": "at"}, "which is not unique"),
        ({"into": Counter}, "primary key is counted by the database"),
        ({"into": AudioBook}, "rows in several tables"),
        ({"into": Elsewhere}, "other code makes"),
        ({"into": Together}, "several columns"),
        ({"into": "projecting_app.Nothing"}, "no model of an installed app"),
        ({"into": "CustomerTotal"}, "no model of an installed app: expected one like 'shop.CustomerTotal'"),
        ({"into": int}, "expected a model that has a table"),
    ],
)
def test_a_model_that_cannot_be_kept_is_found_by_check(things, declare, options, said):
    declare(things, **options)

    [message] = found("django_events.E015")
    assert said in message.msg
    assert "It is declared at" in message.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "$.a.*"}, "expected a path of members"),
        ({"key": "customer"}, "expected a path of members"),
        ({"key": 7}, "expected a path like"),
        ({"key": "$.customer", "partitioned": True}, "their order would be lost"),
        ({"start": "end"}, "a rebuild could not find out"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_a_declaration_that_cannot_work_is_found_by_check(things, declare, options, said):
    declare(things, into=CustomerTotal, **options)

    assert any(said in message.msg for message in found("django_events.E007"))


def test_two_projections_into_one_table_are_found_by_check(things, declare):
    declare(things, into=CustomerTotal)
    declare(things, into="projecting_app.CustomerTotal")

    [message] = found("django_events.E015")
    assert "into the same table" in message.msg


def test_a_model_in_another_database_is_found_by_check(things, declare, settings):
    declare(things, into=CustomerTotal)
    settings.DATABASE_ROUTERS = ["tests.integration.deriving.test_projections.Elsewhere_"]

    [message] = found("django_events.E016")
    assert "one transaction" in message.msg


class Elsewhere_:
    def allow_migrate(self, db, app_label, **hints):
        return False if app_label == "projecting_app" else None


def test_a_model_that_others_refer_to_is_found_by_check(things, declare):
    declare(things, into=Region, key_field="name")

    [message] = found("django_events.W009")
    assert "referred to by projecting_app.CustomerTotal.region" in message.msg


def test_what_is_well_is_not_found(things, declare):
    declare(things, into=CustomerTotal)
    declare(things, into="projecting_app.Counter", key_field="code", key="$.total")

    assert found("django_events.E007", "django_events.E015", "django_events.E016", "django_events.W009") == []
