"""Reading the log: an address, what came after, a key's timeline, the newest."""

from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.db.models import Count, Max, Subquery
from django.test import override_settings
from django.utils import timezone

from django_events import Draft, declarations, publish, publish_many
from django_events.exceptions import Invalid, UnknownName
from django_events.models import Event, ScheduledEvent, Topic
from django_events.statements import log_table
from tests.support.fix_topics import drop_topics, transfer_all

pytestmark = pytest.mark.django_db


@pytest.fixture
def orders(make_topic):
    """A topic with ten events of three keys, and another one with events of the same keys."""
    orders, noise = make_topic("test-orders", partitions=3, timeline=True), make_topic("noise", segment_size=100)
    publish_many(noise, [Draft(value="noise", key=str(n % 3)) for n in range(120)])
    publish_many(orders, [Draft(value=n, key=str(n % 3), type="placed" if n % 2 else "paid") for n in range(1, 11)])
    transfer_all()
    return orders


def values(events):
    return [event.value for event in events]


# At


def test_an_event_has_an_address(orders):
    event = Event.objects.at(orders, 7)

    assert (event.id, event.value, event.key, event.type) == (7, 7, "1", "placed")
    assert event.topic.name == "test-orders"
    assert event.partition in range(3)
    assert str(event) == "test-orders/7"


def test_printing_an_event_asks_nothing(orders, django_assert_num_queries):
    event = Event.objects.at(orders, 7)
    known = Event.objects.of(orders).select_related("topic").get(id=7)
    with django_assert_num_queries(0):
        assert str(event) == f"event 7 of topic {event.topic_id}"
        assert str(known) == "test-orders/7"


def test_an_address_may_be_said_with_the_name_of_the_topic_or_its_row(orders):
    row = Topic.objects.get(name="test-orders")

    assert Event.objects.at("test-orders", 7) == Event.objects.at(row, 7) == Event.objects.at(orders, 7)


@pytest.mark.parametrize("id", [0, -1, 11, 2**62, 2**63, 10**30])
def test_an_address_without_event_says_which_one(orders, id):
    with pytest.raises(Event.DoesNotExist) as caught:
        Event.objects.at(orders, id)

    assert str(caught.value) == f"There is no event test-orders/{id} in the log."


def test_an_event_that_is_only_published_has_no_address_yet(orders):
    publish(orders, 11)
    with pytest.raises(Event.DoesNotExist):
        Event.objects.at(orders, 11)
    transfer_all()

    assert Event.objects.at(orders, 11).value == 11


@pytest.mark.requirement("D1")
def test_an_event_is_found_by_its_composite_key(orders):
    event = Event.objects.at(orders, 7)
    pk = (Topic.objects.get(name="test-orders").pk, 7)

    assert event.pk == pk
    assert Event.objects.get(pk=pk) == event
    assert Event.objects.filter(pk__in=[pk, (pk[0], 8), (0, 7)]).count() == 2
    assert Event.objects.get(topic__name="test-orders", id=7) == event
    with pytest.raises(Event.DoesNotExist):
        Event.objects.get(pk=(pk[0], 0))
    event.refresh_from_db()
    assert event.value == 7


# Since


@pytest.mark.parametrize("id", [0, 1, 5, 9, 10, 11, -5])
def test_what_came_after_an_id_is_everything_above_it_in_order(orders, id):
    assert values(Event.objects.since(orders, id)) == [n for n in range(1, 11) if n > id]


def test_without_an_id_everything_came_after(orders):
    assert values(Event.objects.since(orders)) == list(range(1, 11))


def test_a_log_is_read_in_slices_from_position_to_position(orders):
    seen, position = [], 0
    while events := list(Event.objects.since(orders, position)[:3]):
        assert len(events) <= 3
        seen += values(events)
        position = events[-1].id

    assert seen == list(range(1, 11))


def test_a_slice_reads_no_more_than_it_shows(orders, django_assert_num_queries):
    with django_assert_num_queries(1) as queries:
        assert values(Event.objects.since(orders, 2)[1:3]) == [4, 5]
    assert "LIMIT 2 OFFSET 1" in queries[-1]["sql"]


# Peek


def test_the_newest_are_shown_newest_first(orders):
    assert values(Event.objects.peek(orders)) == list(range(10, 0, -1))
    assert values(Event.objects.peek(orders, limit=3)) == [10, 9, 8]
    assert values(Event.objects.peek(orders, limit=100)) == list(range(10, 0, -1))
    assert values(Event.objects.peek(orders, limit=0)) == []


def test_looking_changes_nothing(orders):
    assert values(Event.objects.peek(orders, limit=2)) == values(Event.objects.peek(orders, limit=2))


def test_an_empty_log_has_nothing_to_show(things):
    assert values(Event.objects.peek(things)) == values(Event.objects.since(things)) == []


# Timeline


# Between times


@pytest.fixture
def hourly(make_topic):
    """Events 1 to 300, one an hour, the first at midnight; three at a time where it is noon."""
    topic = make_topic("hourly", segment_size=100)
    publish_many(topic, [Draft(value=n) for n in range(1, 301)])
    transfer_all()
    with connection.cursor() as cursor:
        log = log_table(Topic.objects.get(name="hourly").pk)
        cursor.execute(f"UPDATE {log} SET logged_at = %s + (id - 1) * interval '1 hour'", [MIDNIGHT])
        cursor.execute(f"UPDATE {log} SET logged_at = %s WHERE id IN (12, 13, 14)", [MIDNIGHT + 12 * HOUR])
    return topic


MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
MOMENT = timedelta(microseconds=1)


@pytest.mark.requirement("H4")
@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        (None, None, 1, 300),
        (0 * HOUR, None, 1, 300),
        (-HOUR, HOUR, 1, 1),
        (HOUR, 3 * HOUR, 2, 3),
        (HOUR + MOMENT, 3 * HOUR + MOMENT, 3, 4),
        (12 * HOUR, 12 * HOUR + MOMENT, 12, 14),
        (12 * HOUR + MOMENT, None, 15, 300),
        (None, 12 * HOUR, 1, 11),
        (None, 99 * HOUR, 1, 99),
        (98 * HOUR, 202 * HOUR, 99, 202),
        (299 * HOUR, None, 300, 300),
        (299 * HOUR + MOMENT, None, 301, 300),
        (None, 0 * HOUR, 1, 0),
        (5 * HOUR, 4 * HOUR, 1, 0),
    ],
)
def test_what_was_logged_between_two_times(hourly, start, end, first, last):
    times = (None if one is None else MIDNIGHT + one for one in (start, end))
    assert values(Event.objects.between(hourly, *times)) == list(range(first, last + 1))


def test_what_comes_later_belongs_to_a_time_that_is_open(hourly):
    began = timezone.now()
    today, before, later = (
        Event.objects.between(hourly, began),
        Event.objects.between(hourly, MIDNIGHT + 299 * HOUR, began),
        Event.objects.between(hourly, MIDNIGHT + 299 * HOUR, began + 10_000 * HOUR),
    )
    publish(hourly, "new")
    transfer_all()

    assert (values(today), values(before), values(later)) == (["new"], [300], [300, "new"])


@pytest.mark.requirement("H6")
def test_only_the_segments_of_that_time_are_read(hourly):
    log = log_table(Topic.objects.get(name="hourly").pk)
    plan = Event.objects.between(hourly, MIDNIGHT + 120 * HOUR, MIDNIGHT + 130 * HOUR).explain()

    assert f"{log}_101" in plan
    assert f"{log}_1_" not in plan and f"{log}_201" not in plan


def test_a_time_is_found_in_a_log_that_begins_later(hourly):
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {log_table(Topic.objects.get(name='hourly').pk)}_1")
    assert values(Event.objects.between(hourly, MIDNIGHT, MIDNIGHT + 102 * HOUR)) == [101, 102]


def test_a_time_without_a_zone_is_refused(hourly, things):
    for topic in (hourly, things):
        with pytest.raises(Invalid, match="has no time zone"):
            Event.objects.between(topic, MIDNIGHT.replace(tzinfo=None))
    assert values(Event.objects.between(things, MIDNIGHT)) == []
    with pytest.raises(UnknownName):
        Event.objects.between("unknown", MIDNIGHT)


def test_the_timeline_of_a_key_is_its_events_in_order(orders):
    assert values(Event.objects.timeline(orders, "1")) == [1, 4, 7, 10]
    assert values(Event.objects.timeline(orders, "0")) == [3, 6, 9]
    assert values(Event.objects.timeline(orders, "no such key")) == []


def test_a_timeline_is_there_without_its_index_too(things):
    publish(things, 1, key="a")
    publish(things, 2, key="")
    publish(things, 3)
    transfer_all()

    assert values(Event.objects.timeline(things, "a")) == [1]
    assert values(Event.objects.timeline(things, "")) == [2]


WITHIN = ["tenant-7/", "tenant-7/a", "tenant-7/%", "tenant-7/_/ü", "tenant-7/\\"]
BESIDE = ["tenant-7", "tenant-70", "tenant_7/a", "TENANT-7/a", "tenant-7\\/a", "a tenant-7/a", "日本", "%", "_"]


@pytest.mark.requirement("H1")
@pytest.mark.parametrize("timeline", [True, False])
def test_the_timeline_of_a_prefix_has_no_event_of_another_tenant(make_topic, timeline: bool):
    topic = make_topic("tenants", timeline=timeline)
    publish_many(topic, [Draft(value=key, key=key) for _ in range(2) for key in [*BESIDE, *WITHIN]])
    publish(topic, "no key")
    transfer_all()

    assert values(Event.objects.timeline(topic, key_prefix="tenant-7/")) == WITHIN * 2
    for prefix in ["%", "_", "tenant-7\\", "日", "tenant-7/_"]:
        found = values(Event.objects.timeline(topic, key_prefix=prefix))
        assert found == [key for key in [*BESIDE, *WITHIN] if key.startswith(prefix)] * 2


def test_a_timeline_is_that_of_a_key_or_of_a_prefix(orders):
    for named in ({}, {"key": "1", "key_prefix": "1"}, {"key_prefix": ""}):
        with pytest.raises(Invalid, match="key_prefix"):
            Event.objects.timeline(orders, **named)


@pytest.mark.parametrize("key", ["O'Brien", "' OR true --", "%s", "%(topic)s", "\\", 'a"b', "日本"])
def test_a_key_is_never_sql(orders, key):
    publish(orders, "mine", key=key)
    transfer_all()

    assert values(Event.objects.timeline(orders, key)) == ["mine"]


# Asked further


def test_the_events_of_a_topic_can_be_asked_anything(orders):
    events = Event.objects.of(orders)

    assert events.count() == 10
    assert events.filter(type="paid").count() == 5
    assert values(events.filter(value__gt=5).exclude(key="1").order_by("-id")) == [9, 8, 6]
    assert events.aggregate(Max("id"))["id__max"] == 10
    assert dict(events.values_list("key").annotate(Count("id")).order_by("key")) == {"0": 3, "1": 4, "2": 3}
    assert events.filter(id=3).exists()
    assert not events.none().exists()


def test_topics_can_be_asked_together(orders):
    both = Event.objects.of(orders) | Event.objects.of("noise")
    assert both.count() == 130
    assert Event.objects.since(orders, 8).union(Event.objects.since("noise", 118)).count() == 4
    assert Event.objects.filter(topic__in=Topic.objects.filter(name="noise")).count() == 120


def test_a_topic_can_be_asked_inside_another_question(orders):
    keys = Event.objects.of(orders).filter(value__gt=8).values("key")

    assert values(Event.objects.of(orders).filter(key__in=keys).order_by("id")) == [1, 3, 4, 6, 7, 9, 10]


def test_the_question_names_the_topic_by_its_id_so_that_only_its_segments_are_read(orders):
    plan = Event.objects.since(orders, 5).explain()

    assert f"django_events_event_{Topic.objects.get(name='test-orders').pk}" in plan
    assert f"django_events_event_{Topic.objects.get(name='noise').pk}_" not in plan


# Lazy


def test_building_a_question_asks_nothing(orders, django_assert_num_queries):
    with django_assert_num_queries(0):
        Event.objects.of(orders)
        Event.objects.since(orders, 3).filter(type="paid").order_by("-id")[:5]
        Event.objects.peek(orders)
        Event.objects.timeline(orders, "1").using("default")
        Event.objects.of("no such topic")


def test_a_question_can_be_built_without_a_database(django_db_blocker):
    with django_db_blocker.block():
        question = Event.objects.since("orders", 3).filter(type="paid")[:5]
    assert question.query


def test_a_question_asks_anew_each_time(orders):
    newest = Event.objects.since(orders, 10)
    assert values(newest.all()) == []
    publish(orders, 11)
    transfer_all()

    assert values(newest.all()) == [11]


# Topics that are not there


@pytest.mark.parametrize(
    "ask",
    [
        lambda topic: Event.objects.at(topic, 1),
        lambda topic: list(Event.objects.since(topic)),
        lambda topic: list(Event.objects.peek(topic)),
        lambda topic: list(Event.objects.timeline(topic, "1")),
        lambda topic: Event.objects.of(topic).count(),
        lambda topic: Event.objects.between(topic),
        lambda topic: list(Event.objects.latest(topic)),
        lambda topic: Event.objects.latest(topic, key="1"),
        lambda topic: list(Event.objects.across(topic, ["default"])),
        lambda topic: list(ScheduledEvent.objects.of(topic)),
    ],
    ids=["at", "since", "peek", "timeline", "of", "between", "latest", "latest of a key", "across", "scheduled"],
)
@pytest.mark.parametrize("topic", ["nothing", "' OR true --", declarations.DeclaredTopic(name="nothing")], ids=str)
def test_a_topic_that_is_not_in_the_database_is_unknown(orders, topic, ask):
    with pytest.raises(UnknownName) as caught:
        ask(topic)

    assert str(caught.value) == (
        f'There is no topic "{topic}" in this database. '
        "Declare it in an app's events.py and run: manage.py migrate --database default"
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda events: events.first(),
        lambda events: events.exists(),
        lambda events: events.aggregate(Max("id")),
        lambda events: events.order_by("id")[:5].count(),
        lambda events: events.explain(),
        lambda events: list(events.iterator(chunk_size=2)),
        lambda events: list(events.values_list("id")),
        lambda events: list(events.union(Event.objects.of("test-orders"))),
        lambda events: list(Event.objects.of("test-orders").filter(id__in=events.values("id"))),
        lambda events: events.update(type="other"),
        lambda events: events.delete(),
    ],
)
def test_whatever_is_asked_of_a_topic_that_is_not_there_says_so(orders, ask):
    with pytest.raises(UnknownName), transaction.atomic():
        ask(Event.objects.of("nothing"))
    assert Event.objects.of(orders).count() == 10


def test_an_unknown_topic_leaves_a_transaction_that_can_only_be_rolled_back(orders):
    with transaction.atomic():
        with pytest.raises(UnknownName):
            Event.objects.of("nothing").exists()
        assert transaction.get_rollback()
    assert Event.objects.of(orders).exists()


def test_queries_of_others_may_contain_one_of_the_log(orders):
    found = Topic.objects.filter(id__in=Event.objects.since(orders, 8).values("topic_id"))
    assert [topic.name for topic in found] == ["test-orders"]
    counted = Topic.objects.annotate(
        paid=Subquery(Event.objects.of(orders).filter(type="paid").values("type").annotate(n=Count("id")).values("n"))
    )
    assert counted.get(name="noise").paid == 5
    both = Event.objects.since(orders, 9).union(Event.objects.since("noise", 119))
    assert sorted(map(str, values(both))) == ["10", "noise"]


@pytest.mark.slow
def test_a_plan_that_is_kept_finds_a_topic_that_was_made_anew(transactional_db, make_topic):
    """Plans keep the topic's id: they are made anew because its tables went."""
    make_topic("kept", partitions=1)
    before = Topic.objects.get(name="kept").pk
    question = "EXECUTE looked_up"
    with connection.cursor() as cursor:
        cursor.execute(
            "PREPARE looked_up AS SELECT count(*) FROM django_events_event"
            " WHERE topic_id = django_events_topic_id('kept')"
        )
        for _ in range(8):
            cursor.execute(question)
            assert cursor.fetchone() == (0,)
        drop_topics(["kept"])
        make_topic("kept", partitions=1)
        publish("kept", "new")
        transfer_all()
        assert Topic.objects.get(name="kept").pk != before
        cursor.execute(question)
        assert cursor.fetchone() == (1,)
        cursor.execute("DEALLOCATE looked_up")


def test_a_topic_that_no_app_declares_any_more_can_be_read(orders):
    declarations.registry.discard(orders)

    assert Event.objects.at(orders, 1).value == 1
    assert Event.objects.at("test-orders", 1).value == 1


# Async


def test_async_code_reads_the_same(orders):
    async def read():
        assert [event.value async for event in Event.objects.since(orders, 8)] == [9, 10]
        assert [event.value async for event in Event.objects.peek(orders, limit=2)] == [10, 9]
        assert [v async for v in Event.objects.since(orders, 8).values_list("value", flat=True)] == [9, 10]
        assert [event.value async for event in Event.objects.since(orders, 8).aiterator(chunk_size=1)] == [9, 10]
        assert (await Event.objects.of(orders).aget(id=3)).value == 3
        assert await Event.objects.of(orders).acount() == 10
        assert (await Event.objects.peek(orders).afirst()).value == 10
        with pytest.raises(UnknownName):
            await Event.objects.of("nothing").acount()

    async_to_sync(read)()


def test_a_long_log_is_read_in_chunks(orders):
    assert [event.value for event in Event.objects.since(orders).iterator(chunk_size=2)] == list(range(1, 11))


# Another alias


class ReadsFrom:
    def db_for_read(self, model, **hints):
        return "replica" if model is Event else None


@pytest.fixture
def replica(transactional_db, orders):
    """An alias of the same database on which topics have other ids: its own table of them comes first."""
    connections["replica"] = connections["default"].copy("replica")
    with connections["replica"].cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE django_events_topic AS SELECT a.id, b.name"
            " FROM public.django_events_topic AS a JOIN public.django_events_topic AS b"
            " ON (a.name, b.name) IN (('test-orders', 'noise'), ('noise', 'test-orders'))"
        )
    yield "replica"
    connections["replica"].close()
    del connections["replica"]


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_a_topic_is_looked_up_where_its_events_are_read(replica, orders):
    """Its id may be another one on another database; here, each has the other's."""
    assert values(Event.objects.using(replica).since(orders, 119)) == ["noise"]
    assert values(Event.objects.since("noise", 119).using(replica)) == []
    assert Event.objects.using(replica).at("noise", 7).value == 7
    with override_settings(DATABASE_ROUTERS=[ReadsFrom()]):
        assert Event.objects.at(orders, 7).value == "noise"
        assert Event.objects.using("default").at(orders, 7).value == 7
        with pytest.raises(UnknownName, match=r'There is no topic "things" in this database.*--database replica'):
            Event.objects.at("things", 1)


@pytest.mark.parametrize("given", ["things/7", "x", None, datetime(2026, 1, 1, tzinfo=UTC), 1.5])
def test_what_is_no_id_is_said(things, given):
    for read in (Event.objects.since, Event.objects.at):
        with pytest.raises(Invalid, match="expected the id of an event, like 1042 of orders/1042"):
            read(things, given)
