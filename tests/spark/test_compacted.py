"""A compacted log: what Spark reads and exports is what is left of it, and no gap of compaction is taken for a loss."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection

from django_events import Draft
from django_events.models import Event, Topic
from django_events.statements import log_table
from tests.spark.conftest import Stream, move
from tests.spark.test_batch import collected, stored
from tests.spark.test_export import exported, run
from tests.support.fix_topics import compact_topic

pytestmark = [pytest.mark.usefixtures("transactional_db", "spark"), pytest.mark.requirement("S14")]


@pytest.fixture
def prices(log: Callable[..., Any]) -> Any:
    """450 updates to 7 keys, in four closed segments and an open one."""
    return log(*(Draft(value=n, key=str(n % 7)) for n in range(450)), segment_size=100, compact=True)


def compacted() -> int:
    compact_topic("things")
    return int(Topic.objects.select_related("head").get(name="things").head.compacted_until)


def ids(topic: Any) -> list[int]:
    return list(Event.objects.since(topic).values_list("id", flat=True))


def update(topic: Any, first: int, count: int) -> None:
    topic.publish_many([Draft(value=n, key=str(n % 7)) for n in range(first, first + count)])
    move()


def remove(id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {log_table(Topic.objects.get(name='things').pk)} WHERE id = %s", [id])


@pytest.mark.slow
def test_a_batch_has_what_is_left(prices: Any, read: Callable[..., Any]) -> None:
    assert compacted() == 400
    assert collected(read(prices).drop("error"))[0]["offset"] == 394
    assert read(prices).count() == 57
    assert [row.offset for row in read(prices).filter("key = '3'").orderBy("offset").collect()] == [
        id for id, key in Event.objects.since(prices).values_list("id", "key") if key == "3"
    ]
    for start, end in ((1, 451), (1, 394), (100, 395), (395, 402), (401, 451)):
        bounds = {"startingOffsets": f'{{"things": {start}}}', "endingOffsets": f'{{"things": {end}}}'}
        found = sorted(row.offset for row in read(prices, **bounds).select("offset").collect())
        assert found == [id for id in ids(prices) if start <= id < end]
    now = datetime.now(UTC).isoformat()
    assert read(prices, startingTimestamp="2020-01-01T00:00:00Z").count() == 57
    assert read(prices, startingTimestamp=now).count() == 0


def test_what_is_missing_above_is_told(prices: Any, read: Callable[..., Any]) -> None:
    compacted()
    remove(420)
    with pytest.raises(Exception, match="only 49 of these events are there: some were removed by hand"):
        read(prices).count()
    assert read(prices, failOnDataLoss="false").count() == 56


def test_a_stream_goes_on_over_gaps(prices: Any, stream: Stream) -> None:
    before = stream(prices, maxOffsetsPerTrigger=150)
    assert before == list(range(1, 451))
    compacted()
    update(prices, 450, 300)
    assert stream(prices, maxOffsetsPerTrigger=150) == list(range(1, 751))
    compacted()
    update(prices, 750, 10)
    assert stream(prices) == list(range(1, 761))


def test_a_stream_whose_checkpoint_is_in_a_gap_reads_what_is_left(prices: Any, stream: Stream) -> None:
    assert stream(prices) == list(range(1, 451))
    update(prices, 450, 300)
    compacted()
    update(prices, 750, 300)
    left = [id for id in ids(prices) if id > 450]
    assert compacted() == 1000
    seen = stream(prices)
    assert set(ids(prices)) <= set(seen)
    assert set(seen) <= {*range(1, 451), *left}


def test_files_hold_what_was_left_when_they_were_written(prices: Any, spark: Any, tmp_path: Path) -> None:
    assert run(prices, "--to", tmp_path / "first", "--until", 201).startswith("Exported 200 events to ")
    compacted()
    assert run(prices, "--to", tmp_path / "first", "--part", 90).startswith("Exported 57 events to ")
    assert [row["offset"] for row in exported(spark, tmp_path / "first")] == [*range(1, 201), *range(394, 451)]
    assert run(prices, "--to", tmp_path / "first").startswith("Nothing to export")

    assert run(prices, "--to", tmp_path / "second", "--part", 90).startswith("Exported 57 events to ")
    assert exported(spark, tmp_path / "second") == stored(prices)
    update(prices, 450, 100)
    assert run(prices, "--to", tmp_path / "second").startswith("Exported 100 events to ")


def test_exports_beside_compaction_have_each_event_that_stays_and_none_twice(
    prices: Any, spark: Any, tmp_path: Path, in_thread: Callable[..., Any]
) -> None:
    def work() -> None:
        for turn in range(20):
            update(prices, 450 + turn * 100, 100)
            compacted()

    working = in_thread(work)
    while not working.done():
        run(prices, "--to", tmp_path, "--part", 150)
    working.result()
    run(prices, "--to", tmp_path, "--part", 150)
    there = exported(spark, tmp_path)
    offsets = [row["offset"] for row in there]
    assert len(offsets) == len(set(offsets))
    assert set(ids(prices)) <= set(offsets)
    newest = {row["key"]: int(row["value"]) for row in there}
    assert newest == dict(Event.objects.latest(prices).values_list("key", "value"))


def test_an_export_tells_of_a_loss_above(prices: Any, tmp_path: Path) -> None:
    compacted()
    remove(420)
    with pytest.raises(CommandError, match="only 49 of these events are there"):
        run(prices, "--to", tmp_path)


def test_a_follower_writes_what_is_left(prices: Any, spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (prices, "--to", out, "--once")
    compacted()
    assert run(*words, command="stream_events") == "Events written: 57.\n"
    assert exported(spark, out) == stored(prices)
    update(prices, 450, 300)
    compacted()
    update(prices, 750, 300)
    compacted()
    run(*words, command="stream_events")
    assert {row["offset"] for row in exported(spark, out)} >= set(ids(prices))
    assert run(*words, command="stream_events") == "Events written: 0.\n"
