"""Webhook endpoints cost the same however many attempts are on record: each page and statement reads few of them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_events import models
from django_events.management.events.webhooks import webhooks
from django_events.outward.endpoints import endpoints
from django_events.outward.settling import SQL
from tests.plans.test_admin_plans import _plans

pytestmark = [pytest.mark.django_db, pytest.mark.requirement("P10"), pytest.mark.few(1)]

ENDPOINTS, ATTEMPTS = 300, 100_000
ATTEMPT, ENDPOINT = models.WebhookAttempt._meta.db_table, models.WebhookEndpoint._meta.db_table
NOTHING: dict[str, Any] = {"event": None, "last": 20, "keep": None, "by": None}
Read = Callable[[Callable[[], Any]], dict[str, int]]


@pytest.fixture(params=["fresh statistics", "no statistics"])
def busy(request: pytest.FixtureRequest, make_topic: Any) -> models.WebhookEndpoint:
    """Nearly all attempts are at one endpoint, and the only ones at another are the oldest."""
    make_topic("things")
    topic = models.Topic.objects.get(name="things")
    with connection.cursor() as cursor:
        for number in range(ENDPOINTS):
            consumer = models.Consumer.objects.create(
                name=f"partner{number:04}", topic=topic, mode="queue", partitioned=False, subscribed=True, live=True
            )
            models.WebhookEndpoint.objects.create(consumer=consumer, url=f"https://partner.example/{number}")
        first, *_, last = models.WebhookEndpoint.objects.order_by("id")
        cursor.execute(
            f"INSERT INTO {ATTEMPT} (endpoint_id, event_id, attempt, seconds, status, excerpt, error)"
            " SELECT CASE WHEN n <= 10 THEN %s ELSE %s END, n, 1, 0.1, 200, '', ''"
            f" FROM generate_series(1, {ATTEMPTS}) AS n ORDER BY n",
            [first.pk, last.pk],
        )
        if request.param == "fresh statistics":
            cursor.execute(f"ANALYZE {ATTEMPT}")
            cursor.execute(f"ANALYZE {ENDPOINT}")
    return last


@pytest.fixture
def read() -> Iterator[Read]:
    """How many rows of each table are read by what a function asks, which is run once more to know that."""

    def ask(function: Callable[[], Any]) -> dict[str, int]:
        with CaptureQueriesContext(connection) as captured:
            function()
        rows = dict.fromkeys((ATTEMPT, ENDPOINT), 0)
        for plan in _plans(query["sql"] for query in captured.captured_queries):
            for node in plan:
                if (table := str(node.get("Relation Name", ""))) in rows:
                    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                    rows[table] += int((node["Actual Rows"] + removed) * node["Actual Loops"])
        return rows

    yield ask


@pytest.mark.slow
def test_pages_of_endpoints_read_the_attempts_that_they_show(busy: models.WebhookEndpoint, read: Read) -> None:
    client = Client()
    client.force_login(User.objects.create_user("olga", is_staff=True, is_superuser=True))

    def page(address: str) -> None:
        assert client.get(f"/admin/django_events/webhookendpoint/{address}").status_code == 200

    assert read(lambda: page(""))[ATTEMPT] <= 2 * ENDPOINTS
    assert read(lambda: page(f"{busy.pk}/change/"))[ATTEMPT] <= 110
    quiet = models.WebhookEndpoint.objects.order_by("id")[0]
    assert read(lambda: page(f"{quiet.pk}/change/"))[ATTEMPT] <= 110


@pytest.mark.slow
def test_the_subcommand_reads_one_attempt_of_each(busy: models.WebhookEndpoint, read: Read) -> None:
    listed = read(lambda: webhooks("default", action="list", name=None, **NOTHING))
    assert listed[ATTEMPT] <= 2 * ENDPOINTS
    name = busy.consumer.name
    assert read(lambda: webhooks("default", action="attempts", name=name, **NOTHING))[ATTEMPT] <= 20
    of_one = {**NOTHING, "event": 77_777}
    assert read(lambda: webhooks("default", action="attempts", name=name, **of_one))[ATTEMPT] <= 1


@pytest.mark.slow
def test_the_sender_reads_no_attempts(busy: models.WebhookEndpoint, read: Read) -> None:
    found = read(lambda: endpoints("default"))
    assert found[ATTEMPT] == 0 and found[ENDPOINT] <= ENDPOINTS
    for statement in (SQL.fails, SQL.works):
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {statement.text}", {"endpoint_id": busy.pk})
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert ATTEMPT not in plan
        assert f"Seq Scan on {ENDPOINT}" not in plan, plan
