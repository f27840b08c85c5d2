"""Publishing: what goes in comes out, in the caller's transaction, all of it or nothing."""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, IntegrityError, OperationalError, connection, models, transaction
from django.db.transaction import TransactionManagementError
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_events import (
    Draft,
    Receipt,
    apublish,
    apublish_many,
    declarations,
    publish,
    publish_many,
)
from django_events.exceptions import InvalidEvent, NotInTransaction, NotReady, UnknownName
from django_events.models import BufferedEvent, Event
from tests.support.fix_topics import assert_dense, log_values, transfer_all

IN_ONE_DATABASE = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
committing = pytest.mark.usefixtures("transactional_db")
rolled_back = pytest.mark.django_db

TEXT = st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
DRAFTS = st.lists(
    st.builds(
        Draft,
        value=JSON,
        type=st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200),
        key=st.none()
        | st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=99),
        metadata=st.none() | st.dictionaries(TEXT, JSON, max_size=3),
        partition=st.none() | st.integers(0, 3),
    )
    | st.builds(Draft, body=st.binary(max_size=99)),
    min_size=1,
    max_size=8,
)


class Kind(models.TextChoices):
    PLACED = "order.placed", "placed"


def same(came, went):
    """Equal as JSON: jsonb keeps 1e+23 as the number of that many digits, where Python's float is near it."""
    if isinstance(went, float):
        return float(came) == went and not isinstance(came, bool)
    if isinstance(went, dict):
        return came.keys() == went.keys() and all(same(came[key], went[key]) for key in went)
    if isinstance(went, list):
        return len(came) == len(went) and all(map(same, came, went))
    return type(came) is type(went) and came == went


def database_time():
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def buffered():
    return list(BufferedEvent.objects.order_by("id").values_list("value", flat=True))


# What goes in comes out


@pytest.mark.slow
@rolled_back
@pytest.mark.requirement("E2")
@given(drafts=DRAFTS)
@IN_ONE_DATABASE
def test_whatever_is_published_comes_out_of_the_log_as_it_was(lanes, drafts):
    """One by one and many at once take different ways to the server, and end in the same."""
    before = Event.objects.of(lanes).count()
    for d in drafts:
        publish(lanes, d.value, body=d.body, type=d.type, key=d.key, metadata=d.metadata, partition=d.partition)
    assert publish_many(lanes, drafts) == len(drafts)
    transfer_all()

    events = list(Event.objects.since(lanes, before))
    assert len(events) == 2 * len(drafts)
    for event, draft in zip(events, drafts + drafts, strict=True):
        if isinstance(draft.body, bytes):
            assert (bytes(event.body), event.value) == (draft.body, None)
        else:
            assert same(event.value, draft.value), (event.value, draft.value)
            assert event.body is None
        assert (event.type, event.key) == (draft.type, draft.key)
        assert same(event.metadata, dict(draft.metadata or {}))
        assert draft.partition in (None, event.partition)


@rolled_back
@pytest.mark.requirement("E2")
@pytest.mark.parametrize(
    "value",
    [None, False, 0, "", [], {}, "null", "O'Brien", '"', "\\", "%s %(id)s {log}", "\\N", "\\.", "\t\n\r", "--", 2**200],
)
def test_values_that_look_like_something_else_come_out_as_they_were(things, value):
    publish(things, value, type=str(value)[:200], key=str(value)[:200], metadata={"also": value})
    publish_many(things, [Draft(value=value, type=str(value)[:200], key=str(value)[:200], metadata={"also": value})])
    transfer_all()

    for event in Event.objects.since(things):
        assert same(event.value, value)
        assert same(event.metadata, {"also": value})
        assert event.type == event.key == str(value)


@rolled_back
@pytest.mark.requirement("E2")
@pytest.mark.parametrize("body", [b"", b"\0", b"\\x00", b"\\N", b"\\", bytes(range(256)), b"x" * 1_000_000])
def test_bytes_come_out_as_they_were(things, body):
    publish(things, body=body)
    publish_many(things, [Draft(body=body), Draft(body=memoryview(body))])
    transfer_all()

    assert [bytes(event.body) for event in Event.objects.since(things)] == [body] * 3
    assert log_values(things) == [None] * 3


@rolled_back
def test_json_null_is_a_value_and_a_body_is_none(things):
    publish(things, None)
    publish(things, body=b"")

    with connection.cursor() as cursor:
        cursor.execute("SELECT value::text, body IS NULL FROM django_events_bufferedevent ORDER BY id")
        assert cursor.fetchall() == [("null", True), (None, False)]


@rolled_back
def test_choices_are_published_by_their_value(things):
    publish(things, Kind.PLACED, type=Kind.PLACED, key=Kind.PLACED)
    publish_many(things, [Draft(value=Kind.PLACED, type=Kind.PLACED, key=Kind.PLACED)])
    transfer_all()

    assert list(Event.objects.since(things).values_list("value", "type", "key")) == [("order.placed",) * 3] * 2


@rolled_back
def test_the_longest_type_and_key_fit(things):
    publish(things, 1, type="é" * 200, key="日" * 512)
    publish_many(things, [Draft(value=1, type="é" * 200, key="日" * 512)])
    transfer_all()

    assert set(Event.objects.since(things).values_list("type", "key")) == {("é" * 200, "日" * 512)}


@rolled_back
def test_a_topic_publishes_to_itself(things):
    things.publish("one", type="t", key="k", metadata={"a": 1})
    things.publish_many([Draft(value="two")])
    publish("things", "three")
    async_to_sync(things.apublish)("four", key="k")
    transfer_all()

    assert log_values(things) == ["one", "two", "three", "four"]


@rolled_back
@pytest.mark.parametrize("zone", ["UTC", "America/Chicago", "Asia/Kolkata"])
def test_the_time_is_the_databases_whatever_the_zone_of_the_session(things, zone):
    """Two events of one transaction have times of their own, though now() stands still there."""
    before = database_time()
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('TimeZone', %s, true)", [zone])
        publish(things, 1)
        publish_many(things, [Draft(value=2)])
        cursor.execute("SELECT set_config('TimeZone', 'UTC', true)")
    transfer_all()

    one, two = Event.objects.since(things)
    assert before < one.published_at < two.published_at < two.logged_at < database_time()
    assert one.published_at.utcoffset() == timedelta(0)
    assert abs(one.published_at - datetime.now(UTC)) < timedelta(minutes=15)  # the server's zone is not in it


# Transactions


@committing
def test_publishing_outside_a_transaction_commits_at_once(things, connect):
    receipt = publish(things, "one")
    publish_many(things, [Draft(value="two"), Draft(value="three")])

    with connect() as session:
        assert session.execute("SELECT count(*) FROM django_events_bufferedevent").fetchone() == (3,)
    assert receipt == Receipt("things", receipt.ticket)


@committing
@pytest.mark.requirement("E3")
def test_events_are_there_when_the_transaction_commits_and_not_before(things, connect):
    session = connect(autocommit=True)
    with transaction.atomic():
        publish(things, "one")
        publish_many(things, [Draft(value="two")])
        assert session.execute("SELECT count(*) FROM django_events_bufferedevent").fetchone() == (0,)
    assert session.execute("SELECT count(*) FROM django_events_bufferedevent").fetchone() == (2,)


@committing
@pytest.mark.requirement("E3")
def test_a_rollback_takes_events_with_it(things):
    with pytest.raises(RuntimeError), transaction.atomic():
        publish(things, "one")
        publish_many(things, [Draft(value="two")])
        raise RuntimeError
    transfer_all()

    assert log_values(things) == []


@rolled_back
@pytest.mark.requirement("E3")
def test_a_savepoint_that_rolls_back_takes_only_its_own_events_with_it(things):
    with transaction.atomic():
        publish(things, "one")
        with pytest.raises(RuntimeError), transaction.atomic():
            publish_many(things, [Draft(value="dropped"), Draft(value="dropped too")])
            raise RuntimeError
        publish_many(things, [Draft(value="two")])
    transfer_all()

    assert log_values(things) == ["one", "two"]
    assert_dense(things)


@committing
def test_a_hand_made_transaction_is_the_callers_too(things):
    connection.set_autocommit(False)
    try:
        publish(things, "dropped")
        publish_many(things, [Draft(value="dropped too")])
        connection.rollback()
        publish_many(things, [Draft(value="one")])
        publish(things, "two")
        connection.commit()
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    transfer_all()

    assert log_values(things) == ["one", "two"]


@rolled_back
def test_publishing_takes_one_statement(things, django_assert_num_queries):
    with transaction.atomic():
        with django_assert_num_queries(1):
            publish(things, "one")
        with django_assert_num_queries(2):  # the topic, and a COPY
            publish_many(things, [Draft(value=n) for n in range(100)])


@committing
def test_outside_a_transaction_it_can_be_forbidden(things):
    message = (
        "Publishing outside a transaction on 'default' is forbidden by DJANGO_EVENTS['REQUIRE_TRANSACTION']. "
        "Wrap it, and what the event is about, in transaction.atomic()."
    )
    with override_settings(DJANGO_EVENTS={"REQUIRE_TRANSACTION": True}):
        for attempt in (lambda: publish(things, 1), lambda: publish_many(things, [Draft(value=1)])):
            with pytest.raises(NotInTransaction) as caught:
                attempt()
            assert str(caught.value) == message
        with pytest.raises(NotInTransaction):
            async_to_sync(apublish)(things, 1)
        with transaction.atomic():
            publish(things, "one")
            publish_many(things, [Draft(value="two")])
        connection.set_autocommit(False)
        try:
            publish(things, "three")
            connection.commit()
        finally:
            connection.rollback()
            connection.set_autocommit(True)

    assert buffered() == ["one", "two", "three"]


@committing
def test_a_transaction_on_another_alias_does_not_count(things, other_alias):
    with (
        override_settings(DJANGO_EVENTS={"REQUIRE_TRANSACTION": True}),
        transaction.atomic(),
        pytest.raises(NotInTransaction, match="outside a transaction on 'other'"),
    ):
        publish(things, 1, using=other_alias)


# Aliases


class WritesTo:
    """A router that sends events, and nothing else, to one alias."""

    def __init__(self, alias):
        self.alias = alias

    def db_for_write(self, model, **hints):
        return self.alias if model is BufferedEvent else None


@committing
def test_an_alias_that_is_named_is_used(things, other_alias):
    with pytest.raises(RuntimeError), transaction.atomic(other_alias):
        publish(things, "dropped", using=other_alias)
        publish_many(things, [Draft(value="dropped too")], using=other_alias)
        things.publish("dropped", using=other_alias)
        things.publish_many([Draft(value="dropped too")], using=other_alias)
        publish(things, "kept on the default alias")
        raise RuntimeError

    assert buffered() == ["kept on the default alias"]


@committing
def test_without_a_name_the_router_chooses_the_alias(things, other_alias):
    with override_settings(DATABASE_ROUTERS=[WritesTo(other_alias)]):
        with pytest.raises(RuntimeError), transaction.atomic(other_alias):
            publish(things, "dropped")
            publish_many(things, [Draft(value="dropped too")])
            publish(things, "kept", using="default")
            raise RuntimeError
        with pytest.raises(RuntimeError), transaction.atomic("default"):
            publish(things, "kept too")
            raise RuntimeError

    assert buffered() == ["kept", "kept too"]


# Many at once


@pytest.mark.slow
@rolled_back
@pytest.mark.requirement("P3")
@given(
    batches=st.lists(st.lists(st.sampled_from([None, "", "a", "b", "c"]), min_size=1, max_size=20), max_size=6),
    batch_size=st.sampled_from([1, 7, 5_000]),
)
@IN_ONE_DATABASE
def test_the_order_inside_a_batch_is_kept_in_the_log_and_for_each_key(lanes, batches, batch_size):
    """However the events are cut into batches, and with single events between them."""
    before = Event.objects.of(lanes).count()
    keys = [key for batch in batches for key in batch]
    values = count()
    for batch in batches:
        drafts = [Draft(value=next(values), key=key) for key in batch]
        if len(drafts) == 1:
            publish(lanes, drafts[0].value, key=drafts[0].key)
        else:
            publish_many(lanes, iter(drafts))
    transfer_all(batch_size=batch_size)

    events = list(Event.objects.since(lanes, before))
    assert [event.value for event in events] == list(range(len(keys)))
    assert [event.key for event in events] == keys
    for key in set(keys) - {None}:
        mine = [event for event in events if event.key == key]
        assert len({event.partition for event in mine}) == 1
        numbers = [event.number for event in mine]
        assert numbers == sorted(set(numbers))
        assert [event.value for event in mine] == [n for n, k in enumerate(keys) if k == key]


@rolled_back
@pytest.mark.requirement("E3", "P3")
def test_thousands_at_once_keep_their_order(things):
    assert publish_many(things, (Draft(value=n, key=str(n % 7)) for n in range(5_000))) == 5_000
    transfer_all()

    assert log_values(things) == list(range(5_000))


@rolled_back
def test_many_of_none_is_nothing(things, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert publish_many(things, []) == 0


@rolled_back
@pytest.mark.requirement("E3")
@pytest.mark.parametrize("bad", [Draft(value=float("nan")), Draft(), Draft(value=1, partition=1), {"value": 1}, None])
def test_one_bad_draft_keeps_all_of_them_out(things, bad):
    with pytest.raises(InvalidEvent, match=r"^drafts\[2\]"):
        publish_many(things, [Draft(value=1), Draft(value=2), bad, Draft(value=3)])

    assert buffered() == []


@rolled_back
def test_a_bad_draft_is_named_with_its_place_and_reason(things):
    with pytest.raises(InvalidEvent) as caught:
        publish_many(things, [Draft(value=1), Draft(value=1, key=7)])
    assert str(caught.value) == ("drafts[1]: key is 7 (int), expected text. Use str(...) if that is what you mean.")
    with pytest.raises(InvalidEvent) as caught:
        publish_many(things, [{"value": 1}])
    assert str(caught.value) == "drafts[0] is {'value': 1}, expected a Draft, like Draft(value={'id': 7})."


@rolled_back
@pytest.mark.requirement("E3")
def test_an_error_of_the_iterable_keeps_all_of_them_out(things):
    def drafts():
        yield Draft(value=1)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        publish_many(things, drafts())

    assert buffered() == []


@pytest.fixture
def refuses_bad(db):
    """The database itself refuses events of a type, as a trigger or a full disk would."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_events_bufferedevent ADD CONSTRAINT no_bad CHECK (type <> 'bad')")


@rolled_back
@pytest.mark.requirement("E3")
def test_what_the_database_refuses_keeps_all_of_them_out(things, refuses_bad):
    """Its error arrives as Django's, so that a caller catches what it always catches."""
    drafts = [Draft(value=n) for n in range(2_000)] + [Draft(value=0, type="bad"), Draft(value=1)]
    publish(things, "before")
    with pytest.raises(IntegrityError, match="no_bad"), transaction.atomic():
        publish_many(things, drafts)
    with pytest.raises(IntegrityError, match="no_bad"), transaction.atomic():
        publish(things, 1, type="bad")
    publish(things, "after")

    assert buffered() == ["before", "after"]


@rolled_back
@pytest.mark.requirement("E3")
def test_a_caller_who_swallows_what_the_database_refuses_can_not_commit_the_rest(things, refuses_bad):
    with pytest.raises(transaction.TransactionManagementError), transaction.atomic():
        publish(things, "before")
        with pytest.raises(IntegrityError):
            publish_many(things, [Draft(value=1), Draft(value=0, type="bad")])
        publish(things, "after")

    assert buffered() == []


# Partitions


@pytest.mark.slow
@rolled_back
@pytest.mark.requirement("E2")
@given(key=st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
@IN_ONE_DATABASE
def test_events_of_one_key_share_a_partition(lanes, key):
    before = Event.objects.of(lanes).count()
    publish(lanes, 1, key=key)
    publish(lanes, "between", key=None)
    publish_many(lanes, [Draft(value=2, key=key), Draft(value="between", key=key + "."), Draft(value=3, key=key)])
    transfer_all()

    mine = Event.objects.since(lanes, before).filter(key=key)
    assert mine.count() == 3
    assert len(set(mine.values_list("partition", flat=True))) == 1
    assert mine[0].partition in range(4)


@rolled_back
@pytest.mark.requirement("E2")
def test_keys_spread_over_all_partitions(lanes):
    publish_many(lanes, [Draft(value=n, key=f"order {n}") for n in range(400)])
    transfer_all()

    counts = [Event.objects.of(lanes).filter(partition=p).count() for p in range(4)]
    assert sum(counts) == 400
    assert all(50 < count < 150 for count in counts)


@rolled_back
@pytest.mark.requirement("E2")
def test_events_without_key_spread_over_all_partitions(lanes):
    publish_many(lanes, [Draft(value=n) for n in range(200)])
    for n in range(200):
        publish(lanes, n)
    transfer_all()

    counts = [Event.objects.of(lanes).filter(partition=p).count() for p in range(4)]
    assert sum(counts) == 400
    assert all(50 < count < 150 for count in counts)


@rolled_back
@pytest.mark.requirement("E2")
def test_events_without_key_spread_also_where_topics_take_turns(make_topic):
    """An order and its payment, again and again: each topic gets every other ticket."""
    one, other = make_topic("one", partitions=4), make_topic("other", partitions=2)
    for n in range(100):
        publish(one, n)
        publish(other, n)
    transfer_all()

    for topic in (one, other):
        counts = [Event.objects.of(topic).filter(partition=p).count() for p in range(topic.partitions)]
        assert sum(counts) == 100
        assert all(count > 100 / topic.partitions / 3 for count in counts), counts


@rolled_back
@pytest.mark.requirement("E2")
@pytest.mark.parametrize("partition", range(4))
def test_an_explicit_partition_wins_over_the_key(lanes, partition):
    publish(lanes, 1, key="same", partition=partition)
    publish_many(lanes, [Draft(value=2, key="same", partition=partition), Draft(value=3, partition=partition)])
    transfer_all()

    assert list(Event.objects.since(lanes).values_list("partition", "number")) == [
        (partition, 1),
        (partition, 2),
        (partition, 3),
    ]


@rolled_back
@pytest.mark.requirement("E2")
@pytest.mark.parametrize("partition", [-99, -1, 4, 5, True, "1"])
def test_a_partition_that_the_topic_has_not_is_refused_before_anything_is_written(lanes, partition):
    with pytest.raises(InvalidEvent, match="partition"):
        publish(lanes, 1, partition=partition)
    with pytest.raises(InvalidEvent, match=r"drafts\[1\]: .*partition"):
        publish_many(lanes, [Draft(value=1), Draft(value=1, partition=partition)])

    assert buffered() == []


@rolled_back
@pytest.mark.requirement("E2")
def test_a_partition_that_plain_sql_made_up_is_taken_modulo(lanes):
    with connection.cursor() as cursor:
        for partition in (4, 7, 2_147_483_647, -5):
            cursor.execute("SELECT django_events_publish('lanes', to_jsonb(%s), partition => %s)", [partition] * 2)
    transfer_all()

    placed = list(Event.objects.since(lanes).values_list("value", "partition"))
    assert placed == [(4, 0), (7, 3), (2_147_483_647, 3), (-5, 1)]


@rolled_back
def test_a_topic_of_one_partition_takes_everything(things):
    publish(things, 1, key="a", partition=0)
    publish_many(things, [Draft(value=n, key=str(n)) for n in range(2, 6)])
    transfer_all()

    assert set(Event.objects.since(things).values_list("partition", flat=True)) == {0}
    assert_dense(things)


# Receipts


@rolled_back
def test_tickets_grow(things):
    tickets = [publish(things, n).ticket for n in range(5)]
    publish_many(things, [Draft(value=5)])
    tickets.append(publish(things, 6).ticket)

    assert tickets == sorted(set(tickets))
    assert tickets[-1] > tickets[-2] + 1
    assert BufferedEvent.objects.get(id=tickets[0]).value == 0


# Topics that are not there


@rolled_back
def test_an_unknown_topic_is_refused_with_the_likely_one(things, django_assert_num_queries):
    with django_assert_num_queries(0):
        for attempt in (lambda: publish("thing", 1), lambda: publish_many("thing", [Draft(value=1)])):
            with pytest.raises(UnknownName, match=r"Did you mean 'things'\?"):
                attempt()


@rolled_back
def test_a_declared_topic_that_was_not_migrated_says_what_to_do(undiscovered):
    for attempt in (lambda: publish(undiscovered, 1), lambda: publish_many(undiscovered, [Draft(value=1)])):
        with pytest.raises(NotReady) as caught, transaction.atomic():
            attempt()
        assert str(caught.value) == (
            "Topic 'undiscovered' is declared, but not in the database 'default' yet. "
            "Run: manage.py migrate --database default. The transaction can only be rolled back."
        )
        assert isinstance(caught.value.__cause__, DatabaseError)
    assert buffered() == []


@rolled_back
def test_a_database_without_the_tables_says_what_to_do(things):
    with connection.cursor() as cursor:  # before the savepoint, with which the setting would end
        cursor.execute("CREATE SCHEMA empty; SET LOCAL search_path TO empty")
    for attempt in (lambda: publish(things, 1), lambda: publish_many(things, [Draft(value=1)])):
        with pytest.raises(NotReady) as caught, transaction.atomic():
            attempt()
        # Before version 18 a server doesn't tell the search_path by itself, nor when asked in an aborted transaction.
        path = ", as far as the search_path of this connection leads (empty). Correct it, or run"
        assert str(caught.value) == (
            "The tables of django_events are not in the database 'default'"
            f"{path if connection.pg_version >= 180000 else '. Run'}: manage.py migrate --database default."
            " The transaction can only be rolled back."
        )


@committing
def test_other_errors_of_the_database_stay_what_they_are(things, connect):
    blocker = connect()
    blocker.execute("LOCK TABLE django_events_bufferedevent IN ACCESS EXCLUSIVE MODE")
    for attempt in (lambda: publish(things, 1), lambda: publish_many(things, [Draft(value=1)])):
        with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '20ms'")
            attempt()


@rolled_back
@pytest.mark.parametrize("name", ["x'; DROP TABLE django_events_topic; --", "%s", "{log}", 'a"b', "a\0b"])
def test_a_topic_that_tries_to_be_sql_is_only_a_name(name):
    """The declaration is wrong and a check says so; a process that publishes to it anyway does no harm."""
    topic = declarations.topic(name)
    try:
        for attempt in (lambda: publish(topic, 1), lambda: publish_many(topic, [Draft(value=1)])):
            with pytest.raises((NotReady, DatabaseError, ValueError)), transaction.atomic():
                attempt()
    finally:
        declarations.registry.discard(topic)
    with connection.cursor() as cursor:
        assert "django_events_topic" in connection.introspection.table_names(cursor)


# Async


@committing
def test_async_code_publishes_in_the_transaction_of_its_caller(things):
    async def place():
        receipt = await apublish(things, "one", key="k", type="t")
        assert await apublish_many(things, [Draft(value="two"), Draft(value="three")]) == 2
        return receipt

    with pytest.raises(RuntimeError), transaction.atomic():
        async_to_sync(place)()
        raise RuntimeError
    assert buffered() == []

    with transaction.atomic():
        receipt = async_to_sync(place)()
    assert receipt.topic == "things"
    assert buffered() == ["one", "two", "three"]


@rolled_back
def test_async_code_gets_the_same_errors(things):
    async def attempts():
        with pytest.raises(InvalidEvent):
            await apublish(things)
        with pytest.raises(UnknownName):
            await apublish("nope", 1)
        with pytest.raises(InvalidEvent):
            await apublish_many(things, [Draft()])
        with pytest.raises(InvalidEvent):
            await things.apublish({1, 2})

    async_to_sync(attempts)()
    assert buffered() == []


@committing
def test_tasks_that_publish_at_once_all_get_in(things):
    async def place():
        return await asyncio.gather(*(apublish(things, n) for n in range(20)))

    receipts = async_to_sync(place)()

    assert len({receipt.ticket for receipt in receipts}) == 20
    assert sorted(buffered()) == list(range(20))


# Concurrency


@committing
@pytest.mark.requirement("E2")
def test_publishers_at_once_lose_nothing_and_keep_their_own_order(lanes):
    def place(publisher):
        try:
            for n in range(25):
                publish(lanes, [publisher, n], key=str(publisher))
            publish_many(lanes, [Draft(value=[publisher, n], key=str(publisher)) for n in range(25, 50)])
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(place, range(4)))
    transfer_all(batch_size=13)

    values = log_values(lanes)
    for publisher in range(4):
        assert [n for who, n in values if who == publisher] == list(range(50))
    assert_dense(lanes)


def test_equality_of_json_is_strict_about_types():
    """What the properties above rest on."""
    assert same(10**23, 1e23) and same(0, -0.0) and same({"a": [1]}, {"a": [1]})
    assert not same(True, 1) and not same(1, True) and not same("1", 1) and not same([1], [1, 2])
    assert not same(True, 1.0) and not same(math.nextafter(1.0, 2), 1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("bad", [0, 50, 150, 4_999])
@pytest.mark.requirement("E3")
def test_one_bad_draft_among_thousands_leaves_nothing_and_the_callers_transaction_goes_on(things, bad):
    """They are encoded while the server takes in those before, so some were on their way already."""
    drafts = [Draft(value={"n": n} if n != bad else {"n": float("nan")}) for n in range(5_000)]
    with pytest.raises(InvalidEvent, match=rf"drafts\[{bad}\]: value can't be written as JSON"):
        publish_many(things, drafts)
    assert buffered() == []

    with transaction.atomic():
        publish(things, "before")
        with pytest.raises(InvalidEvent):
            publish_many(things, drafts)
        publish(things, "after")
    transfer_all()
    assert list(Event.objects.since(things).values_list("id", "value")) == [(1, "before"), (2, "after")]


@rolled_back
@pytest.mark.parametrize("payload", [{}, {"value": "1", "body": b"1"}])
def test_the_function_refuses_an_event_with_neither_or_both_of_value_and_body(things, payload):
    given = "".join(f", {name} => %({name})s" for name in payload)
    with pytest.raises(DatabaseError, match="exactly one of value and body") as caught, transaction.atomic():
        connection.cursor().execute(f"SELECT django_events_publish('things'{given})", payload)
    assert caught.value.__cause__.sqlstate == "DE002"
    assert buffered() == []


@rolled_back
def test_a_row_of_plain_sql_without_a_payload_is_moved_all_the_same(things):
    """The transfer never fails on a row: one bad row would stop the topic."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_bufferedevent (topic_id, partition)"
            " SELECT id, -1 FROM django_events_topic WHERE name = 'things'"
        )
    transfer_all()

    event = Event.objects.at(things, 1)
    assert (event.value, event.body, event.partition) == (None, None, 0)


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("many", [False, True])
def test_a_caught_error_of_the_database_does_not_look_like_a_commit(things, many):
    """PostgreSQL has given the transaction up: the next statement must say so, and so must the message."""
    connection.cursor().execute("UPDATE django_events_topic SET name = 'gone' WHERE name = 'things'")
    with transaction.atomic():
        with pytest.raises(NotReady, match="can only be rolled back"):
            publish_many(things, [Draft(value=1)]) if many else publish(things, 1)
        with pytest.raises(TransactionManagementError):
            Event.objects.count()


@committing
def test_async_code_is_told_of_the_async_twin(things):
    async def view():
        with pytest.raises(SynchronousOnlyOperation, match=r"await its async twin, like apublish\(\)"):
            publish(things, 1)
        with pytest.raises(SynchronousOnlyOperation, match="async twin"):
            publish_many(things, [Draft(value=1)])
        await apublish(things, 2)

    asyncio.run(view())
    transfer_all()
    assert log_values(things) == [2]
