"""Reading the log as a stream: each offset once, across restarts, late commits and lost data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, transaction
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from django_events import Draft
from django_events.exceptions import EventsError, EventsMissing, Refused
from django_events.models import Consumer, Intervention, Position, Topic
from django_events.observing.lag import lag
from django_events.operations import rewind
from django_events.reading.dsn import Dsn
from django_events.reading.following import Follower
from django_events.reading.ranges import Range
from django_events.spark.options import for_stream
from django_events.spark.reading import limits, streaming
from django_events.spark.reading.limits import shared
from django_events.spark.reading.streaming import Offsets, StreamReader
from tests.spark.conftest import Stream, move
from tests.spark.test_batch import drop_first_segment, publish, topic_id
from tests.support.fix_database import Connect

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def followers() -> Iterator[None]:
    """Forget the consumers that queries register."""
    yield
    Consumer.objects.filter(mode="spark").delete()


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of readers in this process, which are not waited for. Other threads go on to sleep."""
    pauses: list[float] = []
    monkeypatch.setattr(streaming, "time", SimpleNamespace(sleep=pauses.append))
    return pauses


@pytest.mark.slow
@pytest.mark.requirement("X1")
def test_a_stream_goes_on_where_it_stopped(log: Callable[..., Any], stream: Stream) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))

    assert stream(topic) == list(range(1, 11))
    assert stream(topic) == list(range(1, 11))
    publish(topic, *range(5))
    assert stream(topic) == list(range(1, 16))


def test_a_batch_has_at_most_so_many_events(log: Callable[..., Any], stream: Stream) -> None:
    topic = log(*(Draft(value=n) for n in range(25)))

    assert stream(topic, maxOffsetsPerTrigger=10) == list(range(1, 26))
    sizes = [progress["numInputRows"] for progress in stream.query.recentProgress]  # type: ignore[attr-defined]
    assert [size for size in sizes if size] == [10, 10, 5]


def test_a_batch_has_about_so_many_bytes(log: Callable[..., Any], stream: Stream) -> None:
    """Ten small events, ten of 10 kB and ten small ones, of which most of a batch's limit takes two large ones."""
    sizes = [10] * 10 + [10_000] * 10 + [10] * 10
    topic = log(*(Draft(value="x" * size) for size in sizes))

    assert stream(topic, maxBytesPerTrigger="25000", columns="topic,offset,value") == list(range(1, 31))
    batches = [progress["numInputRows"] for progress in stream.query.recentProgress]  # type: ignore[attr-defined]
    assert sum(batches) == 30
    assert len([size for size in batches if size]) > 4
    assert max(batches) <= 11  # no more than a limit's worth, by the mean of what was waiting
    publish(topic, *range(100))
    assert len(stream(topic, maxBytesPerTrigger="1GB")) == 130
    [last] = [size for progress in stream.query.recentProgress if (size := progress["numInputRows"])]  # type: ignore[attr-defined]
    assert last == 100


@pytest.mark.parametrize(
    ("options", "limit", "expected"),
    [
        ({"maxBytesPerTrigger": "1"}, ReadMaxBytes(1), 1),
        ({"maxBytesPerTrigger": "20KB"}, ReadMaxBytes(20 << 10), 20),
        ({"maxBytesPerTrigger": "1000000"}, ReadMaxBytes(1_000_000), 60),
        ({"maxBytesPerTrigger": "1KB", "columns": "offset"}, ReadMaxBytes(1 << 10), 60),
        ({"maxBytesPerTrigger": "20KB", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5), 5),
        ({"maxBytesPerTrigger": "2KB", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5), 2),
        ({"maxBytesPerTrigger": "20KB", "types": "other"}, ReadMaxBytes(20 << 10), 20),
    ],
)
@pytest.mark.slow
def test_a_limit_of_bytes_counts_the_columns_that_are_asked_for(
    log: Callable[..., Any], dsn: str, options: dict[str, str], limit: ReadLimit, expected: int
) -> None:
    topic = log(*(Draft(value="x" * 1_000) for _ in range(60)))
    options = {"columns": "value", **options}

    with reading(dsn, topic, **options) as reader:
        assert reader.getDefaultReadLimit() == limit
        start = reader.initialOffset()
        end = reader.latestOffset(start, limit)
        assert end["things"]["offset"] == 1 + expected
        assert reader.latestOffset(start, ReadAllAvailable())["things"]["offset"] == 61


def test_a_limit_of_bytes_sees_large_events_behind_small_ones(
    log: Callable[..., Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And reads few of them to know how large they are."""
    monkeypatch.setattr(limits, "SAMPLE", 7)
    monkeypatch.setattr(limits, "LARGE_SAMPLE", 5_000)
    small = log(*(Draft(value=1) for _ in range(50)), name="small")
    log(*(Draft(value=1) for _ in range(40)), *(Draft(value="x" * 1_000) for _ in range(40)), name="mixed")
    seen: list[int] = []
    read_by = limits.RangeReader.read_by
    monkeypatch.setattr(
        limits.RangeReader, "read_by", lambda self, one, part: seen.append(len(part)) or read_by(self, one, part)
    )

    with reading(dsn, "small,mixed", columns="value", maxBytesPerTrigger="20000") as reader:
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())

    sizes = {name: known["offset"] - 1 for name, known in end.items()}
    assert 0 < sizes["mixed"] < 60, sizes  # 60 would be 20 large ones; all 80, by the first ones
    assert sizes["mixed"] * 50 == pytest.approx(sizes[small.name] * 80, rel=0.1)  # in proportion
    assert max(seen) == 4


def test_a_stream_leaves_out_what_a_filter_does(log: Callable[..., Any], stream: Stream) -> None:
    topic = log(*(Draft(value=n, type=f"t.{n % 3}") for n in range(9)))

    assert stream(topic, types="t.0, t.1", where="$ > 2") == [4, 5, 7, 8]
    publish(topic, 1)
    assert stream(topic, types="t.0, t.1", where="$ > 2") == [4, 5, 7, 8]
    with pytest.raises(
        Exception, match="Option 'where' is '\\$ >', which PostgreSQL can't use as a jsonpath predicate"
    ):
        stream(topic, checkpoint="another", where="$ >")


def test_a_stream_begins_with_what_comes(log: Callable[..., Any], stream: Stream) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))

    assert stream(topic, startingOffsets="latest") == []
    publish(topic, 1, 2)
    assert stream(topic, startingOffsets="latest") == [6, 7]


@pytest.mark.requirement("X1")
@pytest.mark.requirement("E4")
def test_what_commits_late_is_not_passed_over(log: Callable[..., Any], stream: Stream, connect: Connect) -> None:
    topic = log(Draft(value=0))
    late = [connect() for _ in range(5)]
    for n, session in enumerate(late):
        session.publish(topic, f"late {n}")
    published = 1
    for session in reversed(late):
        publish(topic, "between")
        assert stream(topic, maxOffsetsPerTrigger=2) == list(range(1, published + 2))
        session.commit()
        move()
        published += 2
    assert stream(topic) == list(range(1, 12))


def test_a_topic_that_is_new_to_a_pattern_is_read_from_its_beginning(
    log: Callable[..., Any], spark: Any, dsn: str, tmp_path: Path
) -> None:
    log(*(Draft(value=n) for n in range(3)), name="orders.a")

    def run() -> list[tuple[str, int]]:
        frame = spark.readStream.format("django_events").options(
            dsn=dsn, subscribePattern=r"orders\..*", startingOffsets="latest", columns="topic,offset"
        )
        frame.load().writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "c")).start(
            str(tmp_path / "out"), format="parquet"
        ).awaitTermination()
        return sorted((row.topic, row.offset) for row in spark.read.parquet(str(tmp_path / "out")).collect())

    assert run() == []
    log(*(Draft(value=n) for n in range(2)), name="orders.b")
    assert run() == [("orders.b", 1), ("orders.b", 2)]


def test_a_topic_that_is_new_to_a_query_loses_nothing_in_silence(log: Callable[..., Any], dsn: str) -> None:
    log(Draft(value=0), name="orders.a")
    with reading(dsn, subscribePattern=r"orders\..*") as reader:
        start = reader.initialOffset()
        topic = log(*(Draft(value=n) for n in range(250)), name="orders.b", segment_size=100)
        end = reader.latestOffset(start, ReadAllAvailable())
        drop_first_segment(topic)

        with pytest.raises(EventsMissing, match=r"Topic 'orders.b' begins at 101: the events from 1 on have expired"):
            reader.partitions(start, end)


def test_a_first_batch_that_is_done_again_begins_where_it_did(log: Callable[..., Any], dsn: str) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    with reading(dsn, topic, startingOffsets="latest") as reader:
        start = reader.initialOffset()
        publish(topic, 1, 2)
        end = reader.latestOffset(start, ReadAllAvailable())
    publish(topic, 3)
    with reading(dsn, topic, startingOffsets="latest") as again:
        assert ranges(again, again.initialOffset(), end) == [("things", 6, 8)]
        after = again.latestOffset(end, ReadAllAvailable())
        assert ranges(again, end, after) == [("things", 8, 9)]
        assert set(after["things"]) == {"offset", "incarnation"}


def test_where_a_query_began_is_carried_until_it_reads(log: Callable[..., Any], dsn: str) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    with reading(dsn, topic) as reader:
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert end["things"].get("first") == 1
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert ranges(reader, end, end) == []
        publish(topic, 1)
        assert ranges(reader, end, reader.latestOffset(end, ReadAllAvailable())) == [("things", 6, 7)]


def test_a_topic_that_was_left_out_for_a_while_goes_on_where_it_stopped(
    log: Callable[..., Any], stream: Stream, spark: Any, tmp_path: Path
) -> None:
    a, b = (log(*(Draft(value=n) for n in range(3)), name=name) for name in "ab")

    def read(topics: str, **options: Any) -> list[tuple[str, int]]:
        stream(topics, **options)
        return sorted((row.topic, row.offset) for row in spark.read.parquet(str(tmp_path / "out")).collect())

    assert read("a,b") == [(name, n) for name in "ab" for n in (1, 2, 3)]
    publish(a, 4)
    publish(b, 4)
    with pytest.raises(Exception, match="Topic 'b', which this query was reading, is gone, or not subscribed to"):
        read("a")
    assert ("b", 4) not in read("a", failOnDataLoss="false")
    publish(a, 5)
    assert ("a", 5) in read("a")  # it is known by now that the other one was left out
    assert read("a,b") == [("a", n) for n in range(1, 6)] + [("b", n) for n in range(1, 5)]


def test_a_query_that_left_a_topic_out_waits_between_its_looks(
    log: Callable[..., Any], dsn: str, paused: list[float]
) -> None:
    for name in "ab":
        log(Draft(value=1), name=name)
    with reading(dsn, "a,b") as reader:
        both = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with reading(dsn, "a", failOnDataLoss="false") as reader:
        left = reader.latestOffset(both, ReadAllAvailable())
        assert paused == []
        assert reader.latestOffset(left, ReadAllAvailable()) == left
        assert len(paused) == 1


def test_a_topic_that_was_left_out_and_lost_events_stops_the_query(log: Callable[..., Any], dsn: str) -> None:
    a = log(Draft(value=1), name="a")
    b = log(*(Draft(value=n) for n in range(50)), name="b", segment_size=100)
    with reading(dsn, "a,b") as reader:
        both = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with reading(dsn, "a", failOnDataLoss="false") as reader:
        left = reader.latestOffset(both, ReadAllAvailable())
    publish(b, *range(200))
    drop_first_segment(b)
    publish(a, 2)

    with (
        reading(dsn, "a,b") as reader,
        pytest.raises(EventsMissing, match="Topic 'b' begins at 101: the events from 51"),
    ):
        reader.latestOffset(left, ReadAllAvailable())


def test_what_was_removed_before_it_was_read_stops_the_query(log: Callable[..., Any], stream: Stream) -> None:
    topic = log(*(Draft(value=n) for n in range(50)), segment_size=100)
    stream(topic)
    publish(topic, *range(200))
    drop_first_segment(topic)

    with pytest.raises(Exception, match="Topic 'things' begins at 101: the events from 51 on have expired"):
        stream(topic)
    assert stream(topic, failOnDataLoss="false") == [*range(1, 51), *range(101, 251)]


def test_a_topic_made_anew_stops_the_query(log: Callable[..., Any], stream: Stream, make_topic: Any) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    stream(topic)
    make_anew(topic, make_topic)
    publish(topic, *range(7))

    with pytest.raises(Exception, match="Topic 'things' was made anew"):
        stream(topic)
    assert stream(topic, failOnDataLoss="false") == sorted([*range(1, 6), *range(1, 8)])


def test_a_database_older_than_the_checkpoint_stops_the_query(log: Callable[..., Any], stream: Stream) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    stream(topic)
    cut_back(topic, 3)

    with pytest.raises(Exception, match="the database is older than the checkpoint"):
        stream(topic)


def test_a_name_that_is_no_topic_is_refused_at_once(log: Callable[..., Any], stream: Stream) -> None:
    log(Draft(value=1))

    with pytest.raises(Exception, match="There is no topic 'thing' in the database"):
        stream("thing", failOnDataLoss="false")


def test_a_topic_that_is_gone_stops_the_query(log: Callable[..., Any], stream: Stream, spark: Any) -> None:
    from tests.support.fix_topics import drop_topics

    topic = log(Draft(value=1))
    stream(topic)
    drop_topics([topic.name])

    with pytest.raises(Exception, match="There is no topic 'things' in the database"):
        stream(topic)


def test_a_query_can_be_a_consumer(log: Callable[..., Any], stream: Stream, followers: None) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))

    stream(topic, consumer="warehouse", maxOffsetsPerTrigger=4)
    consumer = Consumer.objects.get(name="warehouse")
    assert consumer.mode == "spark"
    position = Position.objects.get(consumer=consumer)
    assert (position.partition, position.position, position.handled) == (-1, 10, 10)
    publish(topic, 1, 2, 3)
    assert lag("warehouse") == 3
    stream(topic, consumer="warehouse")
    assert lag("warehouse") == 0


def test_a_query_that_begins_again_says_so(log: Callable[..., Any], stream: Stream, followers: None) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    stream(topic, consumer="warehouse")

    stream(topic, consumer="warehouse", checkpoint="another", startingOffsets='{"things": 4}')

    noted = Intervention.objects.get(consumer="warehouse")
    assert (noted.action, noted.by, noted.details["before"], noted.details["after"]) == ("rewind", "spark", 10, 3)
    assert Position.objects.get(consumer__name="warehouse").position == 10


def test_a_query_whose_log_was_cut_back_says_so(
    log: Callable[..., Any], dsn: str, followers: None, caplog: pytest.LogCaptureFixture
) -> None:
    topic = log(*(Draft(value=n) for n in range(9)))
    with reading(dsn, topic, consumer="warehouse", failOnDataLoss="false") as reader:
        read = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        reader.latestOffset(read, ReadAllAvailable())
        assert Position.objects.get(consumer__name="warehouse").position == 9
        cut_back(topic, 3)
        reader.latestOffset(read, ReadAllAvailable())
        reader.commit(read)

    assert Position.objects.get(consumer__name="warehouse").position == 3
    assert Intervention.objects.get(consumer="warehouse").details["after"] == 3
    assert "the database is older than the checkpoint" in caplog.text


def test_a_consumer_of_django_is_no_query(log: Callable[..., Any], stream: Stream, make_consumer: Any) -> None:
    topic = log(Draft(value=1))
    make_consumer(topic, name="taken", handler=print)

    with pytest.raises(Exception, match=r"is a stream consumer of Django\. Take another name"):
        stream(topic, consumer="taken")


def test_a_consumer_of_django_on_another_topic_is_no_query_either(
    log: Callable[..., Any], stream: Stream, make_topic: Any, make_consumer: Any
) -> None:
    topic = log(Draft(value=1))
    make_consumer(make_topic("others"), name="taken", handler=print)

    with pytest.raises(Exception, match=r"is a stream consumer of Django\. Take another name"):
        stream(topic, consumer="taken")
    assert Consumer.objects.filter(name="taken").count() == 1


def test_a_name_that_a_query_has_is_none_for_a_consumer_of_django(
    log: Callable[..., Any], dsn: str, make_topic: Any, make_consumer: Any, followers: None
) -> None:
    topic = log(Draft(value=1))
    with Dsn(dsn).connected() as used:
        Follower("taken").tell(used, {topic_id(topic): 1})

    with pytest.raises(Refused, match="a streaming query of Spark has the name, on topic 'things'"):
        make_consumer(make_topic("others"), name="taken", handler=print)
    assert Consumer.objects.filter(name="taken").count() == 1


def test_a_query_is_not_steered_from_here(log: Callable[..., Any], stream: Stream, followers: None) -> None:
    topic = log(Draft(value=1))
    stream(topic, consumer="warehouse")

    with pytest.raises(EventsError, match="its checkpoint decides"):
        rewind("warehouse", to="beginning")


def test_an_idle_query_waits_between_its_looks(log: Callable[..., Any], dsn: str, paused: list[float]) -> None:
    topic = log(Draft(value=1))
    reader = StreamReader(for_stream({"dsn": dsn, "subscribe": topic.name}))
    start = reader.initialOffset()
    try:
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
        assert paused == [streaming.PAUSE]
        publish(topic, 2)
        assert reader.latestOffset(start, reader.getDefaultReadLimit())[topic.name]["offset"] == 3
        assert paused == [streaming.PAUSE]
    finally:
        reader.stop()


def test_a_lost_connection_is_opened_again(log: Callable[..., Any], dsn: str) -> None:

    topic = log(Draft(value=1))
    reader = StreamReader(for_stream({"dsn": dsn, "subscribe": topic.name, "startingOffsets": "earliest"}))
    try:
        start = reader.initialOffset()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'django_events spark' AND datname = current_database()"
            )
        assert reader.reportLatestOffset()[topic.name]["offset"] == 2
        assert start[topic.name]["offset"] == 1
    finally:
        reader.stop()


@pytest.mark.parametrize(
    ("backlogs", "most", "expected"),
    [
        ({"a": 10, "b": 10}, 100, {"a": 10, "b": 10}),
        ({"a": 10, "b": 10}, 10, {"a": 5, "b": 5}),
        ({"a": 999, "b": 1}, 10, {"a": 9, "b": 1}),
        ({"a": 1, "b": 1, "c": 1}, 1, {"a": 1, "b": 0, "c": 0}),
        ({"a": 0, "b": 5}, 3, {"a": 0, "b": 3}),
    ],
)
def test_a_limit_is_shared(backlogs: dict[str, int], most: int, expected: dict[str, int]) -> None:
    ends = shared(dict.fromkeys(backlogs, 100), {name: 100 + count for name, count in backlogs.items()}, most)

    assert {name: end - 100 for name, end in ends.items()} == expected


@contextmanager
def reading(dsn: str, topic: Any = None, **options: str) -> Iterator[StreamReader]:
    """A reader as Spark's driver has it, without Spark."""
    if topic is not None:
        options["subscribe"] = str(topic)
    reader = StreamReader(for_stream({"dsn": dsn, "startingOffsets": "earliest", **options}))
    try:
        yield reader
    finally:
        reader.stop()


def ranges(reader: StreamReader, start: Offsets, end: Offsets) -> list[tuple[str, int, int]]:
    found = [partition.value for partition in reader.partitions(start, end)]
    return [(part.topic, part.start, part.end) for part in found if isinstance(part, Range)]


def cut_back(topic: Any, last: int) -> None:
    """As a database is that was restored from a backup."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_events_event DISABLE TRIGGER ALL")
        cursor.execute("DELETE FROM django_events_event WHERE topic_id = %s AND id > %s", [topic_id(topic), last])
        cursor.execute("ALTER TABLE django_events_event ENABLE TRIGGER ALL")


def make_anew(topic: Any, make_topic: Any) -> None:
    from tests.support.fix_topics import drop_topics

    drop_topics([topic.name])
    with transaction.atomic():
        assert not Topic.objects.filter(name=topic.name).exists()
    make_topic(topic.name)
