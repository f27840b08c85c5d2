"""The pages of the admin cost the same however much there is: few rows of long tables are read, by index."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_events import models
from django_events.admin import lists, scheduled
from django_events.admin.topics import log as log_pages
from django_events.log.segments import extend
from tests.plans.test_plans import nodes

pytestmark = [pytest.mark.django_db, pytest.mark.requirement("N11"), pytest.mark.requirement("X5"), pytest.mark.few(1)]

EVENTS, SEGMENT = 40_000, 4_000
DELIVERIES, LETTERS, LATER = 30_000, 5_000, 30_000
# What a page may read of the long tables, all its statements together: the deliveries and dead letters of a consumer
# are counted to a thousand by three of them, and those that wait for a time are looked through to the same bound.
ROWS = 6_500
LONG = ("django_events_event", "django_events_delivery", "django_events_bufferedevent")
LONG += ("django_events_scheduledevent", "django_events_pastdelivery")
# What a page may ask, a few more than the most that was seen. Only what reads our tables counts: savepoints and
# settings come with the test's transaction, and whether Django asks for content types depends on what ran before.
QUERIES = 45
Read = Callable[..., int]


@pytest.fixture(params=["fresh statistics", "no statistics"])
def site(request: pytest.FixtureRequest, make_topic: Any) -> dict[str, int]:
    """A long log with a key that one segment is full of, a partition that went quiet, and much of everything else."""
    for name, timeline, partitions in (("big", True, 4), ("flat", False, 1)):
        make_topic(name, partitions=partitions, timeline=timeline, segment_size=SEGMENT)
    found = {topic.name: topic for topic in models.Topic.objects.select_related("head")}
    with connection.cursor() as cursor:
        for topic in (found["big"], found["flat"]):
            extend("default", topic, after=0, events=EVENTS)
            cursor.execute(
                "INSERT INTO django_events_event"
                " (topic_id, id, partition, number, type, key, value, metadata, published_at, logged_at)"
                " SELECT %s, n, CASE WHEN n = 9 THEN 3 ELSE n %% %s END, n, 'often',"
                " CASE WHEN n = 7 THEN 'rare' WHEN n BETWEEN 12001 AND 16000 THEN 'dense'"
                " WHEN n %% 3 = 0 THEN 'hot' ELSE 'k' || n %% 1000 END, '{}', '{}', moment, moment"
                " FROM (SELECT n, now() + n * interval '1 ms' AS moment FROM generate_series(1, %s) AS n) AS event",
                [topic.pk, min(topic.partitions, 3), EVENTS],
            )
        topic = found["big"]
        queue = models.Consumer.objects.create(name="queue", topic=topic, mode="queue", partitioned=False, live=True)
        queue.positions.create(partition=models.Position.ALL)
        stream = models.Consumer.objects.create(name="stream", topic=topic)
        for lane in range(4):
            stream.positions.create(partition=lane, position=100, number=30)
        ids = {"big": topic.pk, "flat": found["flat"].pk, "queue": queue.pk, "stream": stream.pk}
        for statement in (
            "INSERT INTO django_events_delivery (consumer_id, event_id, received_at, visible_at, token, attempts)"
            " SELECT %(queue)s, n, now(), CASE WHEN n %% 3 = 0 THEN now() + n * interval '1 s' END,"
            " CASE WHEN n %% 300 = 1 THEN 7 END, CASE WHEN n %% 6 = 0 THEN 2 ELSE 0 END"
            f" FROM generate_series(1, {DELIVERIES}) AS n",
            "INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)"
            " SELECT 7, %(queue)s, now() + interval '1 hour', 'a worker', jsonb_agg(event_id)"
            " FROM django_events_delivery WHERE token = 7",
            "INSERT INTO django_events_pastdelivery"
            f" SELECT %(queue)s, n, now(), now(), now(), now(), 1, 1, 'handled', '' FROM generate_series(1, {LATER}) n",
            "INSERT INTO django_events_deadletter (consumer_id, event_id, partition, number, type, key, metadata,"
            " published_at, logged_at, attempts, error, traceback)"
            " SELECT %(queue)s, n, 0, n, 'often', 'k' || n, '{}', now(), now(), 5, 'ValueError: ' || n,"
            f" repeat('x', 2000) FROM generate_series(1, {LETTERS}) AS n",
            "INSERT INTO django_events_bufferedevent (topic_id, value)"
            f" SELECT %(big)s, '{{}}' FROM generate_series(1, {LATER})",
            "INSERT INTO django_events_scheduledevent (topic_id, value, publish_at)"
            f" SELECT %(big)s, '{{}}', now() + n * interval '1 s' FROM generate_series(1, {LATER}) AS n",
        ):
            cursor.execute(statement, ids)
        if request.param == "fresh statistics":
            cursor.execute("ANALYZE django_events_event")
            for model in (models.Delivery, models.BufferedEvent, models.ScheduledEvent, models.PastDelivery):
                cursor.execute(f"ANALYZE {model._meta.db_table}")
            cursor.execute("ANALYZE django_events_deadletter")
    return ids


@pytest.fixture
def olga(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_user("olga", is_staff=True, is_superuser=True))
    return client


@pytest.fixture
def rows_read(olga: Client, site: dict[str, int]) -> Read:
    """How many rows of long tables a page reads, by running its statements once more and asking what they did."""

    def ask(page: str, **data: Any) -> int:
        address = f"/admin/django_events/{page.format(**site)}"
        with CaptureQueriesContext(connection) as captured:
            answer = olga.post(address, data) if data else olga.get(address)
        assert answer.status_code in (200, 302), answer.content
        statements = [query["sql"] for query in captured.captured_queries]
        assert sum(_reads(statement) for statement in statements) <= QUERIES
        return sum(_rows(plan) for plan in _plans(statements))

    return ask


def _reads(statement: str) -> bool:
    return (
        bool(re.match(r"[\s(]*(SELECT|WITH)\b", statement))
        and "django_events" in statement
        and "set_config" not in statement
    )


def _plans(statements: Any) -> Iterator[list[dict[str, Any]]]:
    """The statements in order, those that set how the planner works included: it is to work in the same way."""
    with connection.cursor() as cursor:
        for statement in statements:
            if "set_config" in statement:
                cursor.execute(statement)
            elif _reads(statement):
                cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}")
                [[plan]] = cursor.fetchall()
                yield nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])


def _rows(plan: list[dict[str, Any]]) -> int:
    rows = 0
    for node in plan:
        if str(node.get("Relation Name", "")).startswith(LONG):
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            rows += int((node["Actual Rows"] + removed) * node["Actual Loops"])
    return rows


BARS = 51 * 17  # above a log: the ids of so many moments, each found by halving
LOG_QUERIES = [
    "", "?after=0", "?before=20000", "?after=20000", "?id=20000", "?time=2026-01-01T10:00:00",
    *[f"?{asked}{place}" for asked in ("key=hot", "key=rare", "key=none", "key=dense", "key=k17", "partition=1",
      "partition=3", "partition=99") for place in ("", "&before=20000", "&after=0", "&after=20000")],
]  # fmt: skip


@pytest.mark.slow
def test_pages_of_a_log_read_what_they_show(rows_read: Read) -> None:
    for query in LOG_QUERIES:
        assert rows_read("topic/{big}/log/" + query) < 500 + BARS, query


def test_a_filter_without_an_index_reads_a_bounded_range(rows_read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pages, "SEARCHED", 1_000)
    for query in ("type=none", "type=often&key=rare", "type=none&key=hot&partition=1", "key=hot&partition=3"):
        for place in ("", "&before=20000", "&after=0"):
            assert rows_read(f"topic/{{big}}/log/?{query}{place}") < 1_200 + BARS, query
            assert rows_read(f"topic/{{flat}}/log/?{query}{place}") < 1_200 + BARS, query
    assert rows_read("topic/{flat}/log/?key=none") < 1_200 + BARS
    assert rows_read("topic/{flat}/log/7/") < 2_400


@pytest.mark.slow
def test_an_event_and_what_became_of_it_is_read_by_keys(rows_read: Read) -> None:
    for event_id in (7, 12_500, 20_000, EVENTS):
        assert rows_read(f"topic/{{big}}/log/{event_id}/") < 100
        assert rows_read(f"topic/{{big}}/log/{event_id}/again/") < 100


@pytest.mark.slow
def test_lists_and_pages_count_up_to_bounds(rows_read: Read) -> None:
    assert rows_read("overview/") < ROWS + 2 * 10_000  # and the buffer, counted up to its bound
    assert rows_read("topic/") < ROWS + 2 * 10_000
    assert rows_read("topic/{big}/change/") < ROWS + 2 * 10_000
    for page in ("consumer/", "consumer/{queue}/change/", "consumer/{stream}/change/"):
        assert rows_read(page) < ROWS, page


@pytest.mark.slow
def test_deliveries_are_read_a_page_at_a_time(rows_read: Read) -> None:
    for query in ("", "?after=15000", "?after=29990", "?state=waiting", "?state=leased", "?state=leased&after=9000"):
        assert rows_read("consumer/{queue}/deliveries/" + query) < 300, query


@pytest.mark.slow
def test_a_rewind_of_a_stream_is_previewed_by_index(rows_read: Read) -> None:
    for to in ("to=beginning", "to=end", "to=id&id=20000", "to=time&time=2026-01-01T10:00:00"):
        assert rows_read(f"consumer/{{stream}}/act/rewind/?{to}") < 500, to


@pytest.mark.slow
def test_scheduled_events_are_counted_up_to_a_bound(rows_read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "COUNTED", 1_000)
    ticket = models.ScheduledEvent.objects.values_list("pk", flat=True)[0]
    monkeypatch.setattr(scheduled, "SEARCHED", 1_000)
    topic = models.ScheduledEvent.objects.values_list("topic_id", flat=True)[0]
    looked_through = ("?q=abc", 4_100), (f"?topic={topic}", 4_100), ("?topic=999999", 4_100)
    sorted_instead = LATER  # of so few that is as cheap as the index, without statistics
    for query, most in (("", 1_300), ("?p=5", sorted_instead + 2_100), (f"?q={ticket}", 10), *looked_through):
        assert rows_read("scheduledevent/" + query) < most, query
    assert rows_read(f"scheduledevent/{ticket}/change/") < 10


@pytest.mark.slow
def test_dead_letters_leave_the_other_tables_alone(rows_read: Read) -> None:
    letter = models.DeadLetter.objects.values_list("pk", flat=True)[0]
    pages = ("", "?p=9", "?consumer={queue}", "?waiting=yes", "?group=none", "?q=k17", "errors/", f"{letter}/change/")
    for page in pages:
        assert rows_read("deadletter/" + page) == 0, page
    for action in ("redrive", "discard"):
        assert rows_read("deadletter/", action=action, select_across="1", _selected_action=str(letter)) == 0


@pytest.mark.slow
def test_more_topics_and_consumers_ask_no_more(olga: Client, make_topic: Any) -> None:
    """Of fifty topics at a time, because a statement locks every segment that it reads."""
    pages = ("overview/", "topic/", "consumer/", "deadletter/", "deadletter/errors/")

    def asked() -> list[int]:
        counts = []
        for page in pages:
            with CaptureQueriesContext(connection) as captured:
                assert olga.get(f"/admin/django_events/{page}").status_code == 200
            counts.append(len(captured))
        return counts

    def grow(name: str, consumers: int) -> None:
        topic = models.Topic.objects.get(name=str(make_topic(name)))
        for i in range(consumers):
            row = models.Consumer.objects.create(name=f"{name}-{i}", topic=topic, partitioned=False)
            row.positions.create(partition=models.Position.ALL)
            row.dead_letters.create(
                event_id=1, partition=0, number=1, metadata={}, attempts=1, error="no",
                published_at=topic.created_at, logged_at=topic.created_at,
            )  # fmt: skip

    grow("one", 1)
    few = asked()
    for i in range(8):
        grow(f"more-{i}", 10)
    assert asked() == few
