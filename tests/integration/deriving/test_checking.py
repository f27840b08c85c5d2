"""A sample of keys is folded anew and compared; and the past is folded to any point."""

import io
import json
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction

from django_events import Backoff, declarations, publish_many
from django_events.exceptions import Invalid, Refused
from django_events.outcomes import Drift
from tests.integration.deriving.test_projections import add, add_or_delete, count, order, totals
from tests.integration.deriving.test_rebuilding import broken_at
from tests.support.fix_consumers import exhaust, serve_due
from tests.support.fix_topics import transfer_all
from tests.support.projecting_app.models import Counter, CustomerTotal

pytestmark = pytest.mark.usefixtures("transactional_db")

AT_ONCE = Backoff(attempts=2, base=timedelta(0), cap=timedelta(0))


def filled(topic, projection, drafts=None):
    publish_many(topic, drafts or [order(f"c{n % 7}", n) for n in range(70)])
    transfer_all()
    exhaust(projection)


@pytest.mark.requirement("X13")
def test_rows_that_are_what_their_events_say_do_not_drift(lanes, make_projection):
    projection = make_projection(lanes, into=CustomerTotal, fold=add_or_delete)
    filled(lanes, projection, [order(f"c{n % 7}", n, type="gone" if n % 30 == 29 else "placed") for n in range(70)])

    found = projection.check()

    assert (found.drifts, found.failed, found.keys) == ([], [], 7)
    assert found.reached == {"lanes": 70}


@pytest.mark.requirement("X13")
def test_what_was_changed_by_hand_is_named_by_key_and_field(lanes, make_projection):
    projection = make_projection(lanes, into=CustomerTotal, fold=add)
    filled(lanes, projection)
    CustomerTotal.objects.filter(customer="c1").update(total=1, orders=2)
    CustomerTotal.objects.filter(customer="c2").delete()
    CustomerTotal.objects.create(customer="made up")

    found = projection.check()

    assert found.drifts == [
        Drift("c1", "orders", "2", "10"),
        Drift("c1", "total", "Decimal('1.00')", "Decimal('325.00')"),
        Drift("c2", "", "none", "a row"),
        Drift("made up", "", "a row", "none"),
    ]


def test_what_is_not_handled_yet_is_no_drift(lanes, make_projection):
    projection = make_projection(lanes, into=CustomerTotal, fold=add)
    filled(lanes, projection)
    publish_many(lanes, [order(f"c{n % 7}", n) for n in range(70)])
    transfer_all()

    assert projection.check().drifts == []


@pytest.mark.slow
def test_dead_letters_are_no_drift(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=broken_at(3), retry=AT_ONCE)
    filled(things, projection)

    found = projection.check()
    assert (found.drifts, found.failed) == ([], [])


def test_an_event_that_can_not_be_folded_any_more_is_named(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    projection = make_projection(things, into=CustomerTotal, fold=broken_at(3))

    found = projection.check()
    assert found.failed == ["things/3: ValueError: broken at 3"]


def test_values_are_compared_as_the_database_keeps_them(things, make_projection):
    def exact(row, event):
        row.orders = "7"
        row.total = Decimal("0.005")

    projection = make_projection(things, into=CustomerTotal, fold=exact)
    filled(things, projection)

    assert projection.check().drifts == []


def test_a_sample_is_as_large_as_it_is_to_be(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection, [order(f"c{n}") for n in range(100)])

    assert projection.check(sample=10).keys == 10
    with pytest.raises(Invalid):
        projection.check(sample=0)


def test_a_check_is_no_part_of_a_transaction(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)

    with pytest.raises(Refused, match="part of a transaction"), transaction.atomic():
        projection.check()


def test_keys_of_another_kind(lanes, make_projection):
    projection = make_projection(lanes, into=Counter, key="$.total", key_field="code", fold=count)
    filled(lanes, projection, [order("x", n % 4) for n in range(40)])

    assert projection.check().drifts == []
    Counter.objects.filter(code=2).update(events=99)
    assert projection.check().drifts == [Drift("2", "events", "99", "10")]
    assert projection.as_of(8, key=2).names == "3 7"


@pytest.mark.requirement("X13")
def test_the_past_is_folded_to_any_point(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add_or_delete)
    drafts = [order("ada", 1), order("bob", 2), order("ada", 4), order("ada", type="gone"), order("ada", 8)]
    filled(things, projection, drafts)
    now = totals()

    def total(at):
        row = projection.as_of(at, key="ada")
        return None if row is None else (row.orders, row.total)

    assert [total(at) for at in range(6)] == [None, (1, 1), (1, 1), (2, 5), None, (1, 8)]
    assert projection.as_of(5, key="of no event") is None
    assert totals() == now


def test_the_past_of_several_topics_is_named_for_each(make_topic, make_projection):
    topics = [make_topic(name) for name in ("sales", "returns")]
    projection = make_projection(*topics, into=CustomerTotal, fold=add)
    for topic in topics:
        publish_many(topic, [order("ada", n) for n in range(3)])
    transfer_all()
    serve_due(projection)

    assert projection.as_of({"sales": 2, "returns": 1}, key="ada").orders == 3
    with pytest.raises(Invalid, match=r"sales, returns"):
        projection.as_of(2, key="ada")
    with pytest.raises(Invalid, match="doesn't read stock"):
        projection.as_of({"stock": 1}, key="ada")


def test_a_moment_that_is_to_come_is_refused(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection, [order("ada", 1), order("ada", 4)])

    assert projection.as_of(2, key="ada").orders == 2
    with pytest.raises(Refused, match=r"ends at 2, so event 3 doesn't exist yet"):
        projection.as_of(3, key="ada")


def test_the_past_by_the_command(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection, [order("ada", 1), order("ada", 4)])

    def run(*words):
        out = io.StringIO()
        call_command("events", "as-of", "totals", *words, stdout=out)
        return out.getvalue()

    assert "total     1" in run("--key", "ada", "--at", "1")
    assert json.loads(run("--key", "ada", "--at", "things/2", "--format", "json"))["row"]["total"] == "5"
    assert "there was no row of 'bob'" in run("--key", "bob", "--at", "2")
    with pytest.raises(CommandError, match="each with its id"):
        run("--key", "ada", "--at", "1", "--at", "2")


@pytest.mark.requirement("X13")
def test_the_command_says_it_by_its_exit_code(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    out = io.StringIO()
    call_command("events", "check-projection", "totals", "--sample", "100", stdout=out)
    assert "7 keys were folded anew up to things/70. The rows are what their events say." in out.getvalue()

    CustomerTotal.objects.filter(customer="c1").update(total=1)
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("events", "check-projection", "totals", "--format", "json", stdout=out)
    assert ended.value.code == 1
    [drift] = json.loads(out.getvalue())["drifts"]
    assert (drift["key"], drift["field"]) == ("c1", "total")
    assert declarations.consumers.get("totals") is projection
