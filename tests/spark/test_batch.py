"""Reading the log in batches: what Spark gets is what PostgreSQL has, whatever it is and wherever it is cut."""

import json
import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from django_events import Draft, publish_many
from django_events.models import Event, TopicHead
from django_events.reading import topics
from django_events.reading.columns import COLUMNS
from django_events.reading.dsn import Connection, Dsn
from django_events.reading.ranges import Range, split
from django_events.reading.topics import TopicChoice
from django_events.statements import Statement
from tests.spark.conftest import move
from tests.support.fix_topics import TopicFactory
from tests.support.proxies import Proxy, Wire

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.quick]

HOSTILE = [
    None,
    "",
    " ",
    "it's; DROP TABLE x; --",
    'quotes " and "" and \\ and \\N and \\.',
    "tab\tnewline\nreturn\rseparators\x1e\x1f\x1d",
    "ünï¢ödé 漢字 🎉 \u202e\ufeff\x7f",
    {"nested": {"a": [1, [2, {"b": None}]], "": "", "null": None, "true": True}},
    12345678901234567890123456789012345678901234567890,
    -0.1,
    1e308,
    [],
    {},
    [None, "", 0],
    "x" * 300_000,
    "null",
    "\\x6162",
]


def stored(topic: Any) -> list[dict[str, Any]]:
    """The log of a topic as PostgreSQL says it, JSON as its own text."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t.name, e.partition, e.id, e.number, e.logged_at, e.type, e.key, e.value::text, e.body, "
            "e.metadata::text, e.published_at FROM django_events_event e "
            "JOIN django_events_topic t ON t.id = e.topic_id WHERE t.name = %s ORDER BY e.id",
            [str(topic)],
        )
        names = ("topic", "partition", "offset", "number", "timestamp", "type", "key", "value", "body", "metadata")
        return [dict(zip((*names, "published_at"), row, strict=True)) for row in cursor.fetchall()]


def collected(frame: Any) -> list[dict[str, Any]]:
    """What Spark has, in order, its times as moments."""
    rows = [row.asDict() for row in frame.orderBy("topic", "offset").collect()]
    for row in rows:
        for name in ("timestamp", "published_at"):
            if name in row:
                row[name] = row[name].astimezone(UTC)
        if row.get("body") is not None:
            row["body"] = bytes(row["body"])
    return rows


@pytest.mark.requirement("X1")
@pytest.mark.long
def test_every_payload_arrives_as_it_is_stored(log: Callable[..., Any], read: Callable[..., Any]) -> None:
    drafts = [
        Draft(value=value, type=f"type {place}", key=key, metadata={"n": [value]})
        for place, value in enumerate(HOSTILE)
        for key in (None, "", "O'Brien\t\x1e\x1f\n", "🎉" * 128)
    ]
    drafts += [Draft(body=body) for body in (b"", b"\0", bytes(range(256)), b"\\x61", b"\n" * 100_000)]
    topic = log(*drafts, partitions=3)

    assert collected(read(topic)) == stored(topic)
    assert len(drafts) == len(stored(topic))


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@pytest.mark.slow
@hypothesis_settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(
        st.tuples(
            st.recursive(
                st.none() | st.booleans() | st.integers() | TEXTS,
                lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\x1e\"'\n"), inner),
            )
            | st.binary(),
            st.none() | TEXTS,
        ),
        min_size=1,
    )
)
def test_any_payload_arrives_as_it_is_stored(
    log: Callable[..., Any], read: Callable[..., Any], events: list[tuple[Any, str | None]]
) -> None:
    topic = log(
        *(Draft(body=v, key=k) if isinstance(v, bytes) else Draft(value=v, key=k) for v, k in events),
        topic=log.topic if hasattr(log, "topic") else None,
    )
    log.topic = topic  # type: ignore[attr-defined]

    assert collected(read(topic, fetchSize=7, minPartitions=3)) == stored(topic)


@given(st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 3_000_000)), max_size=8), st.integers(1, 200))
def test_ranges_are_disjoint_complete_even_and_never_empty(places: list[tuple[int, int]], least: int) -> None:
    whole = [Range(f"t{n}", n, start, start + size) for n, (start, size) in enumerate(places)]
    parts = split(whole, least=least)

    for one in whole:
        ends = [(part.start, part.end) for part in parts if part.topic == one.topic]
        assert sum(end - start for start, end in ends) == len(one)
        assert [start for start, _ in ends] == [*([one.start] if ends else []), *(end for _, end in ends[:-1])]
        assert len({end - start for start, end in ends}) <= 2
    assert all(len(part) > 0 for part in parts)
    assert len(parts) >= min(least, sum(map(len, whole)))


def test_columns_are_chosen_and_ordered(log: Callable[..., Any], read: Callable[..., Any]) -> None:
    topic = log(Draft(value=1, key="k"))

    assert read(topic, columns="offset, key,topic").columns == ["offset", "key", "topic"]
    assert [tuple(row) for row in read(topic, columns="offset, key,topic").collect()] == [(1, "k", "things")]
    assert [tuple(row) for row in read(topic, columns="topic").collect()] == [("things",)]


class RecordingProxy(Proxy):
    """Keeps what clients say."""

    said = b""

    def from_client(self, wire: Wire, data: bytes) -> None:
        self.said += data
        super().from_client(wire, data)

    def columns(self) -> list[set[str]]:
        """Of each statement that has read events since the last call, the columns that it asks for."""
        statements = re.findall(r"COPY \(.*?TO STDOUT", self.said.decode(errors="replace"), re.DOTALL)
        self.said = b""
        # A column stands there under the name that Spark has for it, once for each statement of the reader.
        return [{name for name in COLUMNS if re.search(rf'AS "{name}"', one)} for one in statements]


@pytest.mark.requirement("X1")
def test_postgresql_is_asked_for_the_columns_that_are_named_and_for_no_others(
    log: Callable[..., Any], spark: Any, dsn: str
) -> None:
    """By the option. What a query selects Spark doesn't tell a source of Python, so without the option all are sent."""
    topic = log(*(Draft(value={"n": n}, key="k", type="t") for n in range(3)))
    known = conninfo_to_dict(dsn)
    with closing(RecordingProxy(f"postgresql://{known['host']}:{known['port']}")) as proxy:
        address = make_conninfo(dsn, host=proxy.host, port=proxy.port, sslmode="disable")

        def read(**options: str) -> Any:
            options = {"dsn": address, "subscribe": str(topic), **options}
            return spark.read.format("django_events").options(**options).load()

        assert read(columns="offset, type").where("type = 't'").count() == 3
        assert proxy.columns() == [{"offset", "type"}]
        assert read(columns="topic").count() == 3
        assert proxy.columns() == [{"offset"}]
        assert [row.key for row in read(columns="key").collect()] == ["k"] * 3
        assert proxy.columns() == [{"key"}]
        everything = set(COLUMNS) - {"topic"}
        assert read().count() == 3
        assert proxy.columns() == [everything]
        assert [row.type for row in read().select("type").collect()] == ["t"] * 3
        assert proxy.columns() == [everything]


def test_the_guide_reads_json(log: Callable[..., Any], read: Callable[..., Any], spark: Any) -> None:
    """The blocks of its section as they stand, with VARIANT as this Spark has it."""
    section = Path("docs/how-to/use-spark.md").read_text().split("\n## JSON")[1].split("\n## ")[0]
    topic = log(
        Draft(value={"id": 1, "total": "2.50"}, type="order.placed"),
        Draft(value={"id": 2, "total": 3}, type="order.placed"),
        Draft(value={"total": "much"}, type="order.placed"),
        Draft(value=None, type="order.paid"),
        Draft(body=b"\0", type="order.placed"),
    )
    names: dict[str, Any] = {"events": read(topic)}
    for block in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        exec(compile(block, "use-spark.md", "exec"), names)

    placed = [(row.offset, row.id, row.total) for row in names["placed"].orderBy("offset").collect()]
    assert placed == [(1, 1, Decimal("2.50")), (2, 2, 3), (3, None, None), (5, None, None)]
    totals = [(row.offset, row.total) for row in names["totals"].orderBy("offset").collect()]
    assert totals == [(1, Decimal("2.50")), (2, 3), (3, None), (4, None), (5, None)]
    assert names["rows"] == []
    schemas = json.dumps({"order.placed": {"1": {"type": "object", "properties": {"any": {}}}}})
    log(Draft(value={"any": {"deep": [7]}}, type="order.placed"), topic=topic)
    typed = read(topic, schema="order.placed", schemas=schemas).selectExpr(
        "offset", "try_variant_get(try_parse_json(rescued), '$.id', 'long') AS id", "data.any"
    )
    deep = typed.selectExpr("`offset`", "id", "try_variant_get(try_parse_json(any), '$.deep[0]', 'int') AS deep")
    found = [tuple(row) for row in deep.orderBy("offset").collect()]
    assert found == [(1, 1, None), (2, 2, None), (3, None, None), (5, None, None), (6, None, 7)]


@pytest.mark.slow
def test_several_topics_are_read_together(log: Callable[..., Any], read: Callable[..., Any]) -> None:
    for name in ("orders.a", "orders.b", "other"):
        log(*(Draft(value=f"{name} {n}") for n in range(3)), name=name)

    both = read(subscribe="orders.a, orders.b")
    assert sorted({row.topic for row in both.collect()}) == ["orders.a", "orders.b"]
    assert collected(read(subscribePattern=r"orders\..*")) == collected(both)
    assert read(subscribePattern="nothing.*").count() == 0


def test_a_topic_without_events_is_empty(make_topic: Any, read: Callable[..., Any]) -> None:
    assert read(make_topic()).collect() == []


def offsets(frame: Any) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(1, 11)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(1, 11)),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": '{"things": 4}', "endingOffsets": '{"things": 7}'}, [4, 5, 6]),
        ({"startingOffsets": '{"things": -2}', "endingOffsets": '{"things": -1}'}, range(1, 11)),
        ({"startingOffsets": '{"things": 11}'}, []),
        ({"startingTimestamp": "0"}, range(1, 11)),
        ({"endingTimestamp": "1970-01-01T00:00:00Z"}, []),
        ({"startingOffsetsByTimestamp": '{"things": "2999-01-01T00:00:00+05:30"}'}, []),
    ],
)
def test_where_reading_begins_and_ends(
    log: Callable[..., Any], read: Callable[..., Any], options: dict[str, str], expected: Any
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))

    assert offsets(read(topic, **options)) == list(expected)


@pytest.mark.slow
def test_a_time_is_a_place(log: Callable[..., Any], read: Callable[..., Any]) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    log(*(Draft(value=n) for n in range(5)), topic=topic)
    moment = Event.objects.at(topic, 6).logged_at

    assert offsets(read(topic, startingTimestamp=moment.isoformat())) == [6, 7, 8, 9, 10]
    assert offsets(read(topic, endingTimestamp=moment.isoformat())) == [1, 2, 3, 4, 5]
    later = moment + timedelta(milliseconds=1)
    in_kafkas_way = f'{{"things": {int(later.timestamp() * 1000) + 1}}}'
    assert offsets(read(topic, endingOffsetsByTimestamp=in_kafkas_way)) == list(range(1, 11))


def test_what_comes_later_is_not_part_of_a_planned_batch(log: Callable[..., Any], read: Callable[..., Any]) -> None:
    topic = log(Draft(value=1))
    frame = read(topic, endingOffsets='{"things": 2}')
    log(Draft(value=2), topic=topic)

    assert offsets(frame) == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "thing"}, "There is no topic 'thing' in the database. Did you mean 'things'?"),
        ({}, "Option 'subscribe' is missing"),
        ({"subscribe": "things", "subscribePattern": "x"}, "What to read is said more than once"),
        ({"subscribePattern": "("}, "expected a regular expression"),
        ({"subscribe": "things", "subscrib": "x"}, "There is no option 'subscrib'. Did you mean 'subscribe'?"),
        ({"subscribe": "things", "maxOffsetsPerTrigger": "1"}, "is not for a batch read"),
        ({"subscribe": "things", "maxBytesPerTrigger": "1"}, "is not for a batch read"),
        ({"subscribe": "things", "columns": "offset,vlaue"}, "Option 'columns' has 'vlaue'. Did you mean 'value'?"),
        ({"subscribe": "things", "columns": "key,key"}, "expected each name once"),
        ({"subscribe": "things", "fetchSize": "0"}, "expected a whole number from 1 on"),
        ({"subscribe": "things", "minPartitions": "many"}, "expected a whole number from 1 on"),
        ({"subscribe": "things", "failOnDataLoss": "maybe"}, "expected 'true' or 'false'"),
        ({"subscribe": "things", "startingOffsets": "first"}, "expected 'earliest', 'latest' or JSON"),
        ({"subscribe": "things", "startingOffsets": "{nonsense"}, "expected JSON"),
        ({"subscribe": "things", "startingOffsets": "{}"}, "says nothing of topic 'things'"),
        ({"subscribe": "things", "startingOffsets": '{"things": 1, "others": 1}'}, "not among those that are read"),
        ({"subscribe": "things", "startingOffsets": '{"things": {"0": 1}}'}, "Here they are per topic"),
        ({"subscribe": "things", "startingOffsets": '{"things": 0}'}, "expected an offset from 1 on"),
        ({"subscribe": "things", "startingOffsets": '{"things": 9}'}, "whose next event will be 3"),
        ({"subscribe": "things", "startingTimestamp": "2026-11-20T18:00:00"}, "a time with its zone"),
        ({"subscribe": "things", "startingTimestamp": "yesterday"}, "a time with its zone"),
        ({"subscribe": "things", "startingOffsetsByTimestamp": '{"things": true}'}, "a time with its zone"),
        ({"subscribe": "things", "startingOffsetsByTimestamp": '{"things": 1.5}'}, "a time with its zone"),
        ({"subscribe": "things", "startingOffsets": "latest", "startingTimestamp": "0"}, "more than once"),
        (
            {"subscribe": "things", "startingOffsets": '{"things": 2}', "endingOffsets": '{"things": 1}'},
            "the end is before the start",
        ),
        ({"table": "dead_leters"}, "Did you mean 'dead_letters'?"),
        ({"table": "dead_letters", "subscribe": "things"}, "is not for option 'table'"),
        ({"subscribe": "things", "path": "/x"}, "An event log has no path"),
    ],
)
@pytest.mark.few(4)
def test_a_wrong_option_is_refused_by_name(
    log: Callable[..., Any], read: Callable[..., Any], options: dict[str, str], said: str
) -> None:
    log(Draft(value=1), Draft(value=2))

    with pytest.raises(Exception, match="django_events") as raised:
        read(**options).collect()

    assert said in str(raised.value)


def test_the_schema_is_ours(spark: Any, dsn: str, log: Callable[..., Any]) -> None:
    log(Draft(value=1))

    with pytest.raises(Exception, match="the columns of events are fixed"):
        spark.read.format("django_events").schema("a int").option("dsn", dsn).option(
            "subscribe", "things"
        ).load().count()


@pytest.mark.slow
def test_what_retention_removed_is_not_passed_over_in_silence(
    log: Callable[..., Any], read: Callable[..., Any]
) -> None:
    topic = log(*(Draft(value=n) for n in range(250)), segment_size=100)
    drop_first_segment(topic)

    assert offsets(read(topic)) == list(range(101, 251))
    with pytest.raises(Exception, match="whose log begins at 101: what was before it has expired"):
        read(topic, startingOffsets='{"things": 50}').collect()
    assert offsets(read(topic, startingOffsets='{"things": 50}', failOnDataLoss="false")) == list(range(101, 251))


@pytest.mark.parametrize("filtered", [True, False])
def test_what_is_removed_between_planning_and_reading_is_noticed(
    log: Callable[..., Any], dsn: str, filtered: bool
) -> None:
    from django_events.exceptions import EventsMissing
    from django_events.reading.dsn import Dsn
    from django_events.reading.rows import RangeReader
    from django_events.statements import all_of

    topic = log(*(Draft(value=n) for n in range(250)), segment_size=100)
    row_id = topic_id(topic)
    drop_first_segment(topic)
    condition = all_of([]) if filtered else None

    def reader(fail: bool) -> RangeReader:
        return RangeReader(
            dsn=Dsn(dsn), columns=("offset",), fetch_size=1000, fail_on_data_loss=fail, condition=condition
        )

    with pytest.raises(EventsMissing, match="begins at 101"):
        list(reader(True).read(Range("things", row_id, 50, 200)))
    left = [n for batch in reader(False).read(Range("things", row_id, 50, 200)) for n in batch["offset"].to_pylist()]
    assert left == list(range(101, 200))


TYPES = ["a.b", "a.c", "d%_\\", "e'f", "{g,h}", "ü 漢"]


@pytest.mark.slow
@pytest.mark.requirement("X1")
def test_the_server_filters_in_the_words_of_a_consumer(log: Callable[..., Any], read: Callable[..., Any]) -> None:
    """And what it leaves out is what Spark would."""
    from pyspark.sql import functions as f

    keys = [None, "", "x.y", *TYPES]
    drafts = [Draft(value={"n": n}, type=TYPES[n % 6], key=keys[n % 9]) for n in range(60)]
    topic = log(*drafts, Draft(body=b"no value"), Draft(value=None), partitions=4)
    everything = read(topic)
    number = f.get_json_object("value", "$.n").cast("int")
    for options, condition in [
        ({"types": "a.b"}, f.col("type") == "a.b"),
        ({"types": "a.*, d%_\\"}, f.col("type").isin("a.b", "a.c", "d%_\\")),
        ({"types": json.dumps(TYPES[3:])}, f.col("type").isin(*TYPES[3:])),
        ({"keys": json.dumps(["", "x.y"])}, f.col("key").isin("", "x.y")),
        ({"keys": ">"}, f.col("key") != ""),
        ({"where": "$.n >= 57"}, number >= 57),
        (
            {"types": "a.>", "keys": "x.y", "where": "$.n < 40"},
            (f.col("type").startswith("a.")) & (f.col("key") == "x.y") & (number < 40),
        ),
        ({"types": "no.such"}, f.lit(False)),
    ]:
        assert collected(read(topic, **options)) == collected(everything.where(condition)), options
    few = read(topic, types="a.b", columns="offset", minPartitions="7")
    assert (few.count(), few.rdd.getNumPartitions()) == (10, 7)


@pytest.mark.slow
def test_queries_on_one_frame_do_not_see_the_filters_of_others(
    log: Callable[..., Any], read: Callable[..., Any]
) -> None:
    """Spark would confuse them if the source took any; it is asked to hand them down here."""
    topic = log(*(Draft(value=n, type="ab"[n % 2]) for n in range(12)))
    events = read(topic)

    assert offsets(events.where("type = 'a'")) == [1, 3, 5, 7, 9, 11]
    assert offsets(events) == list(range(1, 13))
    assert sorted(row.offset for row in events.where("type = 'a'").union(events.where("type = 'b'")).collect()) == list(
        range(1, 13)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pushdown": "true"}, "Say what to read by options 'types', 'keys' and 'where'"),
        ({"types": " , "}, "expected texts between commas, or a list of texts in JSON"),
        ({"keys": "[1]"}, "expected texts between commas, or a list of texts in JSON"),
        ({"where": "$.a >"}, "which PostgreSQL can't use as a jsonpath predicate: syntax error"),
        ({"where": "$.a"}, "neither true nor false for any value"),
        ({"table": "positions", "where": "$.a > 1"}, "Option 'where' is not for option 'table'"),
        ({"table": "positions", "minPartitions": "2"}, "Option 'minPartitions' is not for option 'table'"),
    ],
)
@pytest.mark.few(4)
def test_a_filter_that_cannot_be_meant_is_refused(
    make_topic: TopicFactory, read: Callable[..., Any], options: dict[str, str], said: str
) -> None:
    topic = make_topic()
    with pytest.raises(Exception, match=re.escape(said)):
        read(None if "table" in options else topic, **options).collect()


@pytest.mark.slow
def test_large_events_do_not_exceed_what_the_server_gathers(log: Callable[..., Any], read: Callable[..., Any]) -> None:
    topic = log(*(Draft(value=n) for n in range(2_000)), *(Draft(body=bytes(1_000_000)) for _ in range(12)))

    lengths = [len(row.body) for row in read(topic, columns="body", startingOffsets='{"things": 2001}').collect()]

    assert lengths == [1_000_000] * 12


@pytest.mark.slow
@pytest.mark.requirement("D6")
def test_the_zones_of_servers_and_sessions_make_no_difference(
    spark: Any, dsn: str, log: Callable[..., Any], read: Callable[..., Any]
) -> None:
    topic = log(Draft(value=1))
    name = connection.settings_dict["NAME"]
    before = collected(read(topic))
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE \"{name}\" SET TimeZone = 'Pacific/Chatham'")
            cursor.execute(f"ALTER DATABASE \"{name}\" SET DateStyle = 'German'")
        spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
        assert collected(read(topic)) == before == stored(topic)
        hour = before[0]["timestamp"].replace(minute=0, second=0, microsecond=0)
        assert offsets(read(topic, startingTimestamp=hour.astimezone(UTC).isoformat())) == [1]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        with connection.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" RESET ALL')


@pytest.mark.slow
def test_a_server_with_another_encoding_is_understood(dsn: str) -> None:
    from psycopg.conninfo import make_conninfo

    from django_events.reading.dsn import Dsn
    from django_events.reading.rows import read_table
    from django_events.statements import _made

    wanted = {"key": COLUMNS["key"], "type": COLUMNS["type"]}
    asked = _made("asked", "SELECT * FROM (VALUES ('\u00e9t\u00e9', 'x'), (NULL, '\u00fc')) AS t (key, type)")
    with Dsn(dsn).connected() as connection:
        connection.execute("DROP DATABASE IF EXISTS spark_latin1")
        provider = b"LOCALE_PROVIDER libc" if connection.info.server_version >= 150_000 else b""
        connection.execute(
            b"CREATE DATABASE spark_latin1 ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' " + provider
        )
        try:
            with Dsn(make_conninfo(dsn, dbname="spark_latin1")).connected() as other:
                rows = [row for batch in read_table(other, asked, wanted) for row in batch.to_pylist()]
        finally:
            connection.execute("DROP DATABASE spark_latin1")
    assert rows == [{"key": "\u00e9t\u00e9", "type": "x"}, {"key": None, "type": "\u00fc"}]


@pytest.mark.slow
def test_the_tables_beside_the_log(log: Callable[..., Any], read: Callable[..., Any]) -> None:
    for name in ("dead_letters", "history", "positions", "samples"):
        frame = read(table=name)
        assert "consumer" in frame.columns
        assert frame.where("consumer = 'stranger'").collect() == []


@pytest.mark.slow
def test_executors_need_no_django() -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['django'] = None\n"
        "import pyspark_django_events, django_events.spark.source\n"
        "assert pyspark_django_events.DefaultSource.name() == 'django_events'\n"
        "assert not [name for name in sys.modules if name.startswith('django.')]\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def topic_id(topic: Any) -> int:
    from django_events.models import Topic

    return Topic.objects.get(name=str(topic)).pk


def test_a_time_is_found_while_the_oldest_events_are_removed(log: Callable[..., Any], dsn: str) -> None:
    topic = log(*(Draft(value=n) for n in range(250)), segment_size=100)
    with Dsn(dsn).connected() as used:
        [found] = topics.find(used, TopicChoice(names=("things",)))
        drop_first_segment(topic)

        assert (found.first, found.end) == (1, 251)
        assert found.first_since(datetime(2020, 1, 1, tzinfo=UTC)) == 101
        assert found.first_since(datetime.now(UTC) + timedelta(days=1)) == 251


def test_a_log_that_is_emptied_while_it_is_looked_for_ends_where_it_did(
    log: Callable[..., Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(250)), segment_size=100)
    really = topics.fetch_whole

    def emptying(used: Connection, asked: Statement, **parameters: Any) -> list[tuple[Any, ...]]:
        rows = really(used, asked, **parameters)
        if asked.name == "topics":
            for _ in range(3):
                drop_first_segment(topic)
            TopicHead.objects.filter(topic__name="things").update(id_floor=250)
        return rows

    monkeypatch.setattr(topics, "fetch_whole", emptying)
    with Dsn(dsn).connected() as used:
        [found] = topics.find(used, TopicChoice(names=("things",)))

    assert (found.first, found.end) == (251, 251)


def drop_first_segment(topic: Any) -> None:
    """What retention does."""
    from django_events.log.segments import segments

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f'DROP TABLE "{segments("default", topic_id(topic))[0].table}"')


def publish(topic: Any, *values: Any) -> None:
    with transaction.atomic():
        publish_many(topic, [Draft(value=value) for value in values])
    move()
