"""The page on learning from events: its code, run on made orders, finds who cancels, and notices when they change."""

import math
import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from django_events import Draft, declarations, publish_many
from django_events.models import Event
from django_events.testing import isolate_declarations
from tests.spark.conftest import move

pytestmark = pytest.mark.usefixtures("transactional_db")

PAGE = Path(__file__).parents[2] / "docs/how-to/learn-from-events.md"
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
Timed = tuple[datetime, Draft]


def made(numbers: range, chance: random.Random, *, ended: bool, dearer: float = 1.0) -> tuple[list[Timed], list[Timed]]:
    """Orders, one every hour, and their payments. The dear and those whose payment failed are cancelled more often."""
    orders, payments = [], []
    for number in numbers:
        key, placed_at = str(number), BEGIN + timedelta(hours=number)
        total, country = chance.lognormvariate(3.5, 0.8) * dearer, chance.choice(["DE", "FR", "IT"])
        value = {
            "total": f"{total:.2f}",
            "items": chance.randint(1, 5),
            "country": chance.choice([country, f" {country.lower()}"]),
        }
        if chance.random() < 0.05:
            value["total"] = chance.choice([None, "a lot", {}])
        orders += [(placed_at, Draft(value=value, key=key, type="order.placed"))] * chance.choice([1, 1, 1, 2])
        failures, minute = chance.choice([0, 0, 0, 1, 2]), 0
        for attempt in range(failures):
            minute += chance.randint(1, 15)
            tried = Draft(value={"attempt": f"{key}-{attempt}"}, key=key, type="payment.failed")
            payments += [(placed_at + timedelta(minutes=minute), tried)] * chance.choice([1, 2])
        paid = chance.random() < 0.7 - 0.25 * failures
        if paid:
            at = placed_at + timedelta(minutes=minute + 5)
            payments.append((at, Draft(value={"attempt": f"{key}-paid"}, key=key, type="payment.received")))
        if ended:
            odds = -1.2 + 1.3 * failures + total / 60 + (country == "FR") - 2 * paid
            cancelled = chance.random() < 1 / (1 + math.exp(-odds))
            type = "order.cancelled" if cancelled else "order.shipped"
            at = placed_at + timedelta(hours=chance.uniform(2, 48))
            orders.append((at, Draft(value={}, key=key, type=type)))
            # Known too late to be a feature, and it would give the end away.
            payments.append(
                (at, Draft(value={"attempt": type}, key=key, type="payment.failed" if cancelled else "other"))
            )
    orders.append((BEGIN, Draft(value="without a key", type="order.placed")))
    return orders, payments


def happen(topic: declarations.DeclaredTopic, events: list[Timed]) -> None:
    """Have these events in the log, published at their times."""
    events = sorted(events, key=lambda event: event[0])
    with transaction.atomic(), connection.cursor() as cursor:
        publish_many(topic, [draft for _, draft in events])
        cursor.execute(
            "UPDATE django_events_bufferedevent b SET published_at = made.at"
            " FROM unnest(%s::timestamptz[]) WITH ORDINALITY AS made(at, n),"
            " (SELECT id, row_number() OVER (ORDER BY id) AS n FROM django_events_bufferedevent) AS numbered"
            " WHERE made.n = numbered.n AND b.id = numbered.id",
            [[at for at, _ in events]],
        )
        assert cursor.rowcount == len(events)
    move()


@pytest.fixture
def page(spark: Any, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run the blocks of the page, in order; answers with the names they leave."""
    monkeypatch.setenv("DATABASE_URL", dsn)

    def run() -> dict[str, Any]:
        names: dict[str, Any] = {}
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            exec(compile(block, PAGE.name, "exec"), names)
        return names

    with isolate_declarations():
        yield run
    spark.catalog.clearCache()


@pytest.mark.requirement("D7")
def test_the_page_learns_from_events(make_topic: Any, page: Callable[[], dict[str, Any]]) -> None:
    orders, payments, risks, alerts = (make_topic(f"shop.{n}") for n in ("orders", "payments", "risks", "alerts"))
    chance = random.Random(11)
    for numbers, ended in [(range(900), True), (range(900, 1_150), False)]:
        for topic, events in zip((orders, payments), made(numbers, chance, ended=ended), strict=True):
            happen(topic, events)

    learnt = page()
    move()

    assert learnt["past"].agg({"ended_at": "max"}).first()[0] < learnt["future"].agg({"placed_at": "min"}).first()[0]
    assert learnt["future"].count() == pytest.approx(270, abs=5)
    assert learnt["auc"] > 0.75
    scores = {event.key: event.value["risk"] for event in Event.objects.since(risks)}
    assert scores.keys() == {str(number) for number in range(900, 1_150)}
    assert all(0 <= risk <= 1 for risk in scores.values())
    assert max(learnt["drifted"].values()) < learnt["DRIFTED"], learnt["drifted"]
    assert not Event.objects.since(alerts).exists()

    for topic, events in zip((orders, payments), made(range(1_150, 1_400), chance, ended=False, dearer=3), strict=True):
        happen(topic, events)
    events = (learnt["read"](str(topic)) for topic in (orders, payments))
    newer = learnt["known_orders"](*events).where("label IS NULL AND cast(key AS int) >= 1150")
    drifted = learnt["monitor"](learnt["reference"], learnt["score"](learnt["model"], newer, run=2), run=2)
    move()

    assert {column for column, index in drifted.items() if index > learnt["DRIFTED"]} == {"total", "risk"}
    told = {event.key: event.value["index"] for event in Event.objects.since(alerts) if event.type == "model.drifted"}
    assert told == {column: pytest.approx(drifted[column]) for column in ("total", "risk")}
