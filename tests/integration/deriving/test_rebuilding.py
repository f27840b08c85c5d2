"""A table is filled anew beside the one that is served, and takes its place at one id."""

import io
from contextlib import redirect_stderr
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import IntegrityError, connection, transaction

from django_events import Backoff, declarations, publish_many
from django_events.deriving import projecting, rebuilding
from django_events.exceptions import InUse, LeaseLost, NotReady, Refused, UnknownName
from django_events.maintaining.expiring import expire
from django_events.models import Consumer, Intervention, Rebuild, Topic, TopicHead
from django_events.models.functions import ClockTimestamp
from django_events.operations import (
    abandon_rebuild,
    lag,
    pause,
    rebuild,
    redrive,
    remove_topic,
    repartition,
    unregister,
)
from django_events.syncing import sync
from tests.integration.deriving.test_projections import add, add_or_delete, count, order, seen, totals
from tests.support.fix_consumers import (
    dead_letters,
    exhaust,
    expire_leases,
    lease_of,
    positions,
    reached,
    serve_due,
    serve_lease,
    working,
)
from tests.support.fix_topics import transfer_all
from tests.support.projecting_app.models import Counter, CustomerTotal, Region

pytestmark = pytest.mark.usefixtures("transactional_db", "no_schema_left")

AT_ONCE = Backoff(attempts=2, base=timedelta(0), cap=timedelta(0))
TABLE = "projecting_app_customertotal"


@pytest.fixture
def no_schema_left(transactional_db):
    yield
    for [schema] in ask("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'django_events_rebuild%%'"):
        ask(f'DROP SCHEMA "{schema}" CASCADE')


@pytest.fixture
def small_chunks(monkeypatch):
    """Seven events at a time, and all but the last few beside the workers."""
    monkeypatch.setattr(projecting, "CHUNK", 7)
    monkeypatch.setattr(rebuilding, "SHORT", 10)


def ask(statement, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def anatomy():
    """What the catalog says of the table: columns, constraints, indexes, triggers, rights, options."""
    oid = ask("SELECT %s::regclass::oid", TABLE)[0][0]
    return {
        "columns": ask(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,"
            " pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a LEFT JOIN pg_attrdef d"
            " ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attrelid = %s AND a.attnum > 0 ORDER BY attnum",
            oid,
        ),
        "constraints": ask(
            "SELECT conname, contype, condeferrable, condeferred, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = %s AND contype <> 'n' ORDER BY 1",
            oid,
        ),
        "indexes": ask(
            "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s"
            " ORDER BY 1",
            oid,
        ),
        "triggers": ask(
            "SELECT tgname, pg_get_triggerdef(oid), tgenabled, obj_description(oid, 'pg_trigger') FROM pg_trigger"
            " WHERE tgrelid = %s AND NOT tgisinternal ORDER BY 1",
            oid,
        ),
        "rights": ask("SELECT relacl::text, reloptions, relowner FROM pg_class WHERE oid = %s", oid),
        "comment": ask("SELECT obj_description(%s, 'pg_class')", oid),
    }


def filled(topic, projection, *drafts):
    publish_many(topic, drafts or [order(f"c{n % 5}", n) for n in range(30)])
    transfer_all()
    serve_due(projection)
    return totals()


# What it does


@pytest.mark.requirement("X13")
def test_a_rebuilt_table_is_what_its_events_say(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add_or_delete)
    expected = filled(things, projection)
    CustomerTotal.objects.filter(customer="c1").update(total=-1)
    CustomerTotal.objects.filter(customer="c2").delete()
    CustomerTotal.objects.create(customer="not of an event")

    done = rebuild(projection, reason="it was changed by hand", by="ada")

    assert totals() == expected
    assert all(ids == sorted(ids) for ids in seen().values())
    assert (done.finished, done.reached, done.events, done.failed) == (True, {"things": 30}, 30, 0)
    assert reached(projection) == [30] and lag(projection) == 0
    assert not Rebuild.objects.exists()
    intervention = Intervention.objects.get(action="rebuild")
    assert (intervention.by, intervention.consumer) == ("ada", "totals")
    assert intervention.details["until"] == 30 and intervention.details["reason"] == "it was changed by hand"


def test_the_method_of_the_declaration_does_the_same(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)
    CustomerTotal.objects.all().delete()

    assert projection.rebuild().finished
    assert totals() == expected


@pytest.mark.requirement("X13")
def test_the_table_keeps_its_indexes_constraints_rights_and_triggers(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    ask(f"CREATE INDEX by_lower ON {TABLE} (lower(customer)) WHERE orders > 0")
    ask(f"GRANT SELECT, UPDATE (orders) ON {TABLE} TO pg_monitor")
    ask(f"GRANT INSERT ON {TABLE} TO PUBLIC")
    ask(f"ALTER TABLE {TABLE} SET (fillfactor = 70)")
    ask(f"COMMENT ON TABLE {TABLE} IS 'it''s 100%% true'")
    ask("CREATE FUNCTION touched() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    ask(f"CREATE TRIGGER touch BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION touched()")
    ask(f"COMMENT ON TRIGGER touch ON {TABLE} IS 'a hash'")
    ask(f"CREATE TRIGGER off BEFORE UPDATE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION touched()")
    ask(f"ALTER TABLE {TABLE} DISABLE TRIGGER off")
    before = anatomy()
    try:
        rebuild(projection)

        assert anatomy() == before
        with pytest.raises(IntegrityError), transaction.atomic():
            CustomerTotal.objects.filter(customer="c1").update(region_id=4_711)
            ask("SET CONSTRAINTS ALL IMMEDIATE")
        rebuild(projection)
        assert anatomy() == before
    finally:
        ask(f"DROP TRIGGER touch ON {TABLE}; DROP TRIGGER off ON {TABLE}; DROP FUNCTION touched")
        ask(f"DROP INDEX by_lower; REVOKE ALL ON {TABLE} FROM pg_monitor, PUBLIC")
        ask(f"ALTER TABLE {TABLE} RESET (fillfactor)")
        ask(f"COMMENT ON TABLE {TABLE} IS NULL")


def test_what_a_row_refers_to_is_referred_to_afterwards(things, make_projection):
    region = Region.objects.create(name="north")

    def place(row, event):
        row.region_id = region.pk

    projection = make_projection(things, into=CustomerTotal, fold=place)
    filled(things, projection)

    rebuild(projection)

    assert region.totals.count() == 5
    region.delete()  # cascades
    assert not CustomerTotal.objects.exists()


def test_a_counted_primary_key_goes_on(things, make_projection):
    projection = make_projection(things, into=Counter, key="$.customer", key_field="code", fold=count)
    publish_many(things, [order(n % 3) for n in range(9)])
    transfer_all()
    serve_due(projection)

    for _ in range(2):
        rebuild(projection)
        publish_many(things, [order(n) for n in range(5)])
        transfer_all()
        serve_due(projection)

    assert {row.code: row.events for row in Counter.objects.all()} == {0: 5, 1: 5, 2: 5, 3: 2, 4: 2}
    Counter.objects.create(code=99)  # by the sequence that the table has now


def test_a_serial_primary_key_keeps_its_sequence(things, make_projection):
    table = Counter._meta.db_table
    ask(f"ALTER TABLE {table} ALTER id DROP IDENTITY; CREATE SEQUENCE counting OWNED BY {table}.id")
    ask(f"ALTER TABLE {table} ALTER id SET DEFAULT nextval('counting')")
    try:
        projection = make_projection(things, into=Counter, key="$.customer", key_field="code", fold=count)
        publish_many(things, [order(n % 3) for n in range(9)])
        transfer_all()
        serve_due(projection)

        rebuild(projection)

        assert Counter.objects.create(code=99).pk == 7
        assert ask("SELECT pg_get_serial_sequence(%s, 'id')", table) == [("public.counting",)]
    finally:
        ask(f"ALTER TABLE {table} ALTER id DROP DEFAULT; DROP SEQUENCE counting")
        ask(f"ALTER TABLE {table} ALTER id ADD GENERATED BY DEFAULT AS IDENTITY (START 1000)")


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_what_comes_meanwhile_is_in_both(lanes, make_projection, small_chunks):
    projection = make_projection(lanes, into=CustomerTotal, fold=add)
    filled(lanes, projection)
    asked = []

    def publish_more(so_far):
        if len(asked) < 10:
            asked.append(so_far)
            publish_many(lanes, [order(f"c{n}", 1) for n in range(3)])
            transfer_all()
            serve_due(projection)
            assert sum(orders for orders, _ in totals().values()) == 30 + 3 * len(asked)  # the served one goes on

    done = rebuild(projection, on_progress=publish_more)

    came = 30 + 3 * len(asked)
    assert done.reached == {"lanes": came} and len(asked) > 5
    assert sum(orders for orders, _ in totals().values()) == came
    assert serve_due(projection) == 0
    publish_many(lanes, [order("c0", 1)])
    transfer_all()
    assert serve_due(projection) == 1
    assert sum(orders for orders, _ in totals().values()) == came + 1
    assert all(ids == sorted(ids) for ids in seen().values())


def test_progress_says_how_much_is_left(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    told = []

    rebuild(projection, on_progress=told.append)

    assert [(one.ids, one.left) for one in told] == [(0, 30), (7, 23), (14, 16), (21, 9), (28, 2)]


@pytest.mark.slow
def test_several_topics_are_folded_in_the_order_of_their_times(make_topic, make_projection, small_chunks):
    topics = [make_topic(name) for name in ("sales", "returns")]
    noted = []

    def note(row, event):
        noted.append(event.logged_at)
        add(row, event)

    projection = make_projection(*topics, into=CustomerTotal, fold=note)
    for n in range(20):
        publish_many(topics[n % 2], [order("ada", 1), order("bob", 1)])
        transfer_all()
    serve_due(projection)
    before = totals()
    noted.clear()

    done = rebuild(projection)

    assert totals() == before and done.reached == {"sales": 20, "returns": 20}
    assert noted == sorted(noted) and len(noted) == 40


def test_a_topic_that_is_added_meanwhile_is_not_lost(make_topic, make_projection, small_chunks):
    """The workers of the next code fold its events into the table that is served, and the new one hasn't them."""
    sales, returns = make_topic("sales"), make_topic("returns")
    former = make_projection(sales, into=CustomerTotal, fold=add)
    publish_many(sales, [order("ada", 1)] * 3)
    transfer_all()
    serve_due(former)
    present = []

    def release(progress):
        if not present:
            present.append(make_projection(sales, returns, into=CustomerTotal, fold=add))
            publish_many(returns, [order("ada", 10)])
            transfer_all()
            serve_due(*present)

    with pytest.raises(
        NotReady, match="declared for sales, and registered in the database 'default' for returns, sale"
    ):
        rebuild(former, on_progress=release)
    assert totals() == {"ada": (4, 13)}

    assert rebuild(*present).reached == {"sales": 3, "returns": 1}
    assert totals() == {"ada": (4, 13)}


@pytest.mark.slow
def test_a_repartitioned_topic(lanes, make_projection, small_chunks):
    projection = make_projection(lanes, into=CustomerTotal, fold=add)
    filled(lanes, projection)
    repartition(lanes, 2, reason="a test")
    publish_many(lanes, [order(f"c{n}", 1) for n in range(5)])
    transfer_all()

    rebuild(projection)

    assert sum(orders for orders, _ in totals().values()) == 35
    assert serve_due(projection) == 0
    assert set(reached(projection)) == {35}


@pytest.mark.slow
def test_a_consumer_that_turns_to_read_all_partitions_together(lanes, make_projection, small_chunks):
    projection = make_projection(lanes, into=CustomerTotal, fold=add)
    filled(lanes, projection)
    publish_many(lanes, [order(f"c{n}", 1) for n in range(5)])
    transfer_all()
    projection = make_projection(lanes, into=CustomerTotal, fold=add, partitioned=False)
    publish_many(lanes, [order(f"c{n}", 1) for n in range(5)])
    transfer_all()

    rebuild(projection)
    publish_many(lanes, [order(f"c{n}", 1) for n in range(5)])
    transfer_all()

    assert serve_due(projection) == 5
    assert reached(projection) == [45]
    assert sum(orders for orders, _ in totals().values()) == 45
    assert projection.check().drifts == []


def test_a_consumer_that_waits_for_other_shards_is_not_rebuilt(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    Consumer.objects.filter(name="totals").update(waits_from=20)

    with pytest.raises(Refused, match="waits from things/20"):
        rebuild(projection)
    assert not Rebuild.objects.exists()


def test_a_paused_consumer_stays_paused(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    publish_many(things, [order("ada", 1)])
    transfer_all()
    pause(projection)

    rebuild(projection)

    assert totals() == {"ada": (1, 1)}  # what was not handled yet is folded, too
    publish_many(things, [order("ada", 1)])
    transfer_all()
    assert serve_due(projection) == 0


def test_a_dry_run_says_what_would_be_done(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)

    would = rebuild(projection, dry_run=True)

    assert (would.reached, would.ends, would.finished, would.continued) == ({"things": 0}, {"things": 30}, False, False)
    assert not Rebuild.objects.exists()


# Stopped, and gone on with


class Stopped(Exception):
    pass


def stop_after(chunks):
    told = []

    def stop(so_far):
        told.append(so_far)
        if len(told) > chunks:
            raise Stopped

    return stop


@pytest.mark.requirement("X13")
def test_a_rebuild_that_was_stopped_goes_on(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)
    with pytest.raises(Stopped):
        rebuild(projection, on_progress=stop_after(2))
    assert Rebuild.objects.get().reached == {"things": 14}
    assert rebuild(projection, dry_run=True).continued
    told = []

    done = rebuild(projection, on_progress=told.append)

    assert told[0].reached == {"things": 14} and done.continued and done.events == 30
    assert totals() == expected


def test_it_begins_again_when_told_so(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)
    with pytest.raises(Stopped):
        rebuild(projection, on_progress=stop_after(2))

    assert not rebuild(projection, anew=True).continued
    assert totals() == expected


def test_it_can_be_given_up(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)
    with pytest.raises(Stopped):
        rebuild(projection, on_progress=stop_after(1))
    [[schema]] = Rebuild.objects.values_list("schema")

    assert abandon_rebuild(projection)

    assert not abandon_rebuild(projection)
    assert totals() == expected and not Rebuild.objects.exists()
    assert ask("SELECT to_regnamespace(%s)", schema) == [(None,)]


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_it_begins_again_where_the_function_or_the_table_is_another_one(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    with pytest.raises(Stopped):
        rebuild(projection, on_progress=stop_after(2))

    def double(row, event):
        row.total += 2 * Decimal(event.value["total"])

    projection = make_projection(things, into=CustomerTotal, fold=double)
    assert not rebuild(projection, dry_run=True).continued
    with pytest.raises(Stopped):
        rebuild(projection, on_progress=stop_after(2))
    ask(f"CREATE INDEX added ON {TABLE} (orders)")
    try:
        assert not rebuild(projection).continued
        assert any(name == "added" for name, _ in anatomy()["indexes"])
    finally:
        ask("DROP INDEX added")
    assert sum(total for _, total in totals().values()) == 2 * sum(range(30))


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_it_begins_again_where_its_topic_was_made_anew(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    with pytest.raises(Stopped):
        rebuild(projection, on_progress=stop_after(2))
    remove_topic(things, force=True)
    CustomerTotal.objects.all().delete()
    sync("default")
    expected = filled(things, projection, *[order(f"new{n % 5}", n) for n in range(30)])

    assert not rebuild(projection).continued
    assert totals() == expected


def test_one_whose_consumer_is_gone_says_so_and_stops(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)

    def forget(so_far):
        Consumer.objects.filter(name="totals").delete()

    with pytest.raises(UnknownName, match="was unregistered or registered anew"):
        rebuild(projection, on_progress=forget)
    assert totals() == expected


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_a_migration_meanwhile_is_noticed_and_the_served_table_is_as_it_was(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)

    def migrate(so_far):
        if so_far.ids == 14:
            ask(f"ALTER TABLE {TABLE} ADD COLUMN added integer")

    try:
        with pytest.raises(Refused, match="changed since the rebuild began"):
            rebuild(projection, on_progress=migrate)
        assert totals() == expected
        assert not rebuild(projection).continued
        assert "added" in [name for name, *_ in anatomy()["columns"]]
    finally:
        ask(f"ALTER TABLE {TABLE} DROP COLUMN added")
    assert totals() == expected
    rebuild(projection)  # the column that was dropped is no column of the new one
    assert totals() == expected


def test_what_it_reads_is_of_each_moment_whatever_the_default_of_the_site_is(things, make_projection, small_chunks):
    """A snapshot would not say what retention has removed since, of the events that it does not find."""
    levels = set()

    def look(row, event):
        add(row, event)
        levels.update(ask("SHOW transaction_isolation"))

    projection = make_projection(things, into=CustomerTotal, fold=look)
    filled(things, projection)
    levels.clear()
    ask("SET default_transaction_isolation = 'repeatable read'")
    try:
        assert rebuild(projection).finished
    finally:
        ask("RESET default_transaction_isolation")
    assert levels == {("read committed",)}


def test_what_was_filled_for_a_consumer_that_is_unregistered_goes_with_migrate(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    with pytest.raises(Stopped):
        rebuild(projection, on_progress=stop_after(1))
    [[schema]] = Rebuild.objects.values_list("schema")
    assert sync("default") == [] and Rebuild.objects.exists()

    declarations.consumers.discard(projection)
    unregister(projection)
    Rebuild.objects.update(leased_until=ClockTimestamp() + timedelta(minutes=1))
    assert sync("default") == [] and Rebuild.objects.exists()  # a process is still at it

    Rebuild.objects.update(leased_until=None)
    [said] = sync("default")
    assert "what a rebuild had filled is dropped" in said
    assert ask("SELECT to_regnamespace(%s)", schema) == [(None,)]
    assert not Rebuild.objects.exists()


@pytest.mark.requirement("X13")
def test_two_at_once_never_both_write(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)
    refused = []

    def another(so_far):
        with pytest.raises(InUse, match="is under way") as error:
            rebuild(projection)
        refused.append(error)
        with pytest.raises(InUse, match="is under way"):
            abandon_rebuild(projection)

    rebuild(projection, on_progress=another)

    assert refused and totals() == expected


@pytest.mark.requirement("X13")
def test_a_process_that_wakes_up_too_late_writes_nothing(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)

    def froze(so_far):
        if so_far.ids == 14:
            Rebuild.objects.update(leased_until=ClockTimestamp())
            with pytest.raises(Stopped):
                rebuild(projection, on_progress=stop_after(1))

    with pytest.raises(LeaseLost, match="taken over"):
        rebuild(projection, on_progress=froze)

    assert Rebuild.objects.get().reached == {"things": 21}  # by the other one
    assert rebuild(projection).events == 30
    assert totals() == expected


def test_one_that_wakes_up_after_the_change_over_writes_nothing(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)

    def froze(so_far):
        if so_far.ids == 28:
            Rebuild.objects.update(leased_until=ClockTimestamp())
            rebuild(projection)

    with pytest.raises(LeaseLost):
        rebuild(projection, on_progress=froze)
    assert totals() == expected


# Workers


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_a_lease_in_hand_is_waited_for_and_then_lost(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    publish_many(things, [order("late", 1)])
    transfer_all()
    stale = lease_of(projection)
    stale.read()
    with pytest.raises(InUse, match="still handling events"):
        rebuild(projection, wait=timedelta(seconds=0.2))
    assert Rebuild.objects.exists()
    expire_leases(projection)

    rebuild(projection)

    with pytest.raises(LeaseLost):
        serve_lease(stale)
    assert totals()["late"] == (1, 1)
    assert sum(orders for orders, _ in totals().values()) == 31


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_workers_go_on_while_it_is_rebuilt(lanes, make_projection, small_chunks):
    projection = make_projection(lanes, into=CustomerTotal, fold=add)
    filled(lanes, projection)

    def publish_more(so_far):
        if so_far.ids < 300:
            publish_many(lanes, [order(f"c{n}", 1) for n in range(5)])
            transfer_all()

    with working(projection, threads=2):
        done = rebuild(projection, on_progress=publish_more)
    exhaust(projection)
    last = positions(projection).count() and done.ends["lanes"]

    assert sum(orders for orders, _ in totals().values()) == last
    assert all(ids == sorted(ids) and len(set(ids)) == len(ids) for ids in seen().values())


@pytest.mark.slow
def test_a_reader_that_keeps_the_table_is_named_and_nothing_is_lost(things, make_projection, connect):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)
    reader = connect(application_name="a report")
    reader.execute(f"SELECT count(*) FROM {TABLE}")

    with pytest.raises(InUse, match="a report"):
        rebuild(projection, wait=timedelta(seconds=0.3))
    assert totals() == expected and Rebuild.objects.get().reached == {"things": 0}
    reader.rollback()

    assert rebuild(projection).continued
    assert totals() == expected


# Events that can't be folded, or aren't there


def broken_at(*ids):
    def broken(row, event):
        add(row, event)
        if event.id in ids:
            raise ValueError(f"broken at {event.id}")

    return broken


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_an_event_that_cannot_be_folded_stops_it_and_is_named(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    before = filled(things, projection)
    projection = make_projection(things, into=CustomerTotal, fold=broken_at(10, 20, 29))

    with pytest.raises(Refused, match=r"Event things/10 can't be folded: ValueError: broken at 10\."):
        rebuild(projection)
    assert totals() == before and Rebuild.objects.get().reached == {"things": 9}

    done = rebuild(projection, past_failures=True)

    assert done.failed == 3 and done.events == 27
    assert sum(orders for orders, _ in totals().values()) == 27
    letters = dead_letters(projection)
    assert [(letter.event_id, letter.error) for letter in letters] == [
        (n, f"ValueError: broken at {n}") for n in (10, 20, 29)
    ]
    assert letters[0].value == {"customer": "c4", "total": 9}


@pytest.mark.slow
def test_dead_letters_whose_events_were_folded_are_gone_and_others_can_be_redriven(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=broken_at(3, 5), retry=AT_ONCE)
    publish_many(things, [order("ada", n) for n in range(6)])
    transfer_all()
    exhaust(projection)
    assert len(dead_letters(projection)) == 2

    projection = make_projection(things, into=CustomerTotal, fold=broken_at(5), retry=AT_ONCE)
    rebuild(projection, past_failures=True)
    assert [letter.event_id for letter in dead_letters(projection)] == [5]
    assert totals() == {"ada": (5, 11)}

    projection = make_projection(things, into=CustomerTotal, fold=add, retry=AT_ONCE)
    redrive(dead_letters(projection))
    serve_due(projection)
    assert totals() == {"ada": (6, 15)} and not dead_letters(projection)


@pytest.mark.requirement("X13")
def test_a_log_that_lost_events_is_refused_unless_told(make_topic, make_projection):
    from django_events.log import retention

    topic = make_topic("short", segment_size=100, retention_events=50)
    projection = make_projection(topic, into=CustomerTotal, fold=add)
    before = filled(topic, projection, *[order(f"c{n % 5}", 1) for n in range(250)])
    with retention.writing("default", topic_id(topic)) as row:
        retention.remove("default", row, retention.outlived("default", row))

    with pytest.raises(Refused, match="lost events up to 100 to retention"):
        rebuild(projection)
    with pytest.raises(Refused, match="lost events up to 100"):
        projection.as_of(200, key="c1")
    assert totals() == before and not Rebuild.objects.exists()

    rebuild(projection, from_what_is_there=True)
    assert sum(orders for orders, _ in totals().values()) == 150


def topic_id(topic):

    return Topic.objects.get(name=topic.name).pk


def test_events_that_go_meanwhile_stop_it(make_topic, make_projection, small_chunks):
    from django_events.log import retention

    topic = make_topic("short", segment_size=100, retention_events=50)
    projection = make_projection(topic, into=CustomerTotal, fold=add)
    before = filled(topic, projection, *[order(f"c{n % 5}", 1) for n in range(250)])

    def lose(so_far):
        if so_far.ids == 14:
            with retention.writing("default", topic_id(topic)) as row:
                retention.remove("default", row, retention.outlived("default", row))

    with pytest.raises(Refused, match="behind 14 were not folded yet"):
        rebuild(projection, on_progress=lose)
    assert totals() == before


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_retention_keeps_what_is_not_folded_yet(make_topic, make_projection, small_chunks):
    topic = make_topic("short", segment_size=100, retention_events=50)
    projection = make_projection(topic, into=CustomerTotal, fold=add)
    before = filled(topic, projection, *[order(f"c{n % 5}", 1) for n in range(250)])
    kept = []

    def clean_up(so_far):
        kept.append(expire("default", Topic.objects.get(name="short")).kept_for)

    rebuild(projection, on_progress=clean_up)

    assert set(kept[:-1]) == {"totals", None} and kept[0] == "totals"
    assert totals() == before
    assert expire("default", Topic.objects.get(name="short")).kept_for is None


def test_a_compacted_log_is_refused_unless_told(make_topic, make_projection):
    topic = make_topic("prices", compact=True)
    projection = make_projection(topic, into=CustomerTotal, fold=add)
    filled(topic, projection)
    TopicHead.objects.filter(topic__name="prices").update(compacted_until=20)

    with pytest.raises(Refused, match="lost events up to 20 to retention or compaction"):
        rebuild(projection)
    assert rebuild(projection, from_what_is_there=True).finished


def test_it_begins_where_the_declaration_does(things, make_projection):
    publish_many(things, [order("ada", n) for n in range(10)])
    transfer_all()
    projection = make_projection(things, into=CustomerTotal, fold=add, start=6)
    serve_due(projection)
    before = totals()

    rebuild(projection)

    assert totals() == before == {"ada": (5, 5 + 6 + 7 + 8 + 9)}


# What is refused


def test_a_consumer_that_keeps_no_table_is_refused(things, make_consumer):
    reader = make_consumer(things, handler=lambda event: None)

    with pytest.raises(Refused, match="keeps no table"):
        rebuild(reader)
    with pytest.raises(UnknownName):
        rebuild("nothing")


def test_it_is_no_part_of_a_transaction(things, make_projection):
    projection = make_projection(things, into=CustomerTotal, fold=add)

    with pytest.raises(Refused, match="part of a transaction"), transaction.atomic():
        rebuild(projection)


@pytest.mark.parametrize(
    ("make", "undo", "said"),
    [
        (
            f"CREATE TABLE refers (c varchar(64) REFERENCES {TABLE})",
            "DROP TABLE refers",
            "referenced by refers_c_fkey of refers",
        ),
        (f"CREATE VIEW sees AS SELECT * FROM {TABLE}", "DROP VIEW sees", "read by the view sees"),
        (f"CREATE TABLE child () INHERITS ({TABLE})", "DROP TABLE child", "others inherit"),
        (
            f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {TABLE} DISABLE ROW LEVEL SECURITY",
            "row-level security",
        ),
    ],
)
def test_a_table_that_others_hang_on_is_refused(things, make_projection, make, undo, said):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    ask(make)
    try:
        with pytest.raises(Refused, match=said):
            rebuild(projection)
        with pytest.raises(Refused, match=said):
            rebuild(projection, dry_run=True)
    finally:
        ask(undo)


@pytest.fixture
def other_role():
    """A role that may do everything with tables, and owns none."""
    ask("CREATE ROLE rebuilder")
    for things in ("ALL TABLES IN SCHEMA public", "ALL SEQUENCES IN SCHEMA public"):
        ask(f"GRANT ALL ON {things} TO rebuilder")
    ask("GRANT ALL ON SCHEMA public TO rebuilder")
    yield
    ask("RESET ROLE")
    ask(f"ALTER TABLE {TABLE} OWNER TO CURRENT_USER")
    ask("DROP OWNED BY rebuilder")
    ask("DROP ROLE rebuilder")


def test_a_role_that_does_not_own_the_table_is_told(things, make_projection, other_role):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)
    ask("SET ROLE rebuilder")

    with pytest.raises(NotReady, match="only its owner can replace it"):
        rebuild(projection)
    ask(f"RESET ROLE; ALTER TABLE {TABLE} OWNER TO rebuilder; SET ROLE rebuilder")
    with pytest.raises(NotReady, match="GRANT CREATE ON DATABASE"):
        rebuild(projection)

    ask("RESET ROLE")
    ask(f'GRANT CREATE ON DATABASE "{connection.settings_dict["NAME"]}" TO rebuilder; SET ROLE rebuilder')
    rebuild(projection)
    ask("RESET ROLE")
    assert ask("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = %s::regclass", TABLE) == [("rebuilder",)]
    assert totals() == expected


# As a command


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stderr(err):
        call_command("events", *arguments, stdout=out)
    return out.getvalue(), err.getvalue()


@pytest.mark.requirement("X13")
def test_the_command_rebuilds_when_told_to_execute(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)
    CustomerTotal.objects.all().delete()

    would, _ = run("rebuild", "totals")
    assert "--execute" in would and not totals()

    done, progress = run("rebuild", "totals", "--execute", "--reason", "gone")
    assert "is served now" in done
    assert "of 30 ids" in progress
    assert totals() == expected


def test_the_command_drops_what_was_filled(things, make_projection, small_chunks):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    filled(things, projection)
    with pytest.raises(Stopped):
        rebuild(projection, on_progress=stop_after(1))

    assert "would be dropped" in run("rebuild", "totals", "--abandon")[0]
    assert Rebuild.objects.exists()
    assert "is dropped" in run("rebuild", "totals", "--abandon", "--execute")[0]
    assert not Rebuild.objects.exists()
    assert "No rebuild" in run("rebuild", "totals", "--abandon", "--execute")[0]


def test_the_command_says_what_is_refused(things, make_consumer):
    make_consumer(things, handler=lambda event: None)

    with pytest.raises(CommandError, match="keeps no table"):
        run("rebuild", "reader", "--execute")
    with pytest.raises(CommandError, match="is no projection"):
        run("check-projection", "reader")
