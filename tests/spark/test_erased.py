"""Events whose payloads were erased, as Spark reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError

from django_events import Draft
from django_events.operations import erase
from tests.spark.test_batch import stored
from tests.spark.test_export import run

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.requirement("X1")
def test_an_erased_event_has_its_offset_and_no_payload(
    log: Callable[..., Any], read: Callable[..., Any], spark: Any, dsn: str, tmp_path: Path
) -> None:
    topic = log(
        Draft(value={"name": "0b5c-secret"}, key="ada", type="t", metadata={"who": "0b5c-secret"}),
        Draft(value=None, key="grace"),
        Draft(body=b"0b5c-secret", key="ada"),
        Draft(value={"n": 4}, key="grace"),
    )
    erase(topic, key="ada", reason="a test")

    def checked(rows: list[Any]) -> None:
        rows = sorted(rows, key=lambda row: row.offset)
        assert [(row.offset, row.key, row.value, row.body) for row in rows] == [
            (1, "ada", None, None),
            (2, "grace", "null", None),
            (3, "ada", None, None),
            (4, "grace", '{"n": 4}', None),
        ]
        assert [list(json.loads(row.metadata)) for row in rows] == [["erased"], [], ["erased"], []]
        assert rows[0].type == "t"

    checked(read(topic).collect())
    assert [row.offset for row in read(topic, where="$.n == 4").collect()] == [4]

    options = {"dsn": dsn, "subscribe": str(topic), "startingOffsets": "earliest"}
    stream = spark.readStream.format("django_events").options(**options).load().writeStream
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start(str(tmp_path / "out"), format="parquet").awaitTermination()
    checked(spark.read.parquet(str(tmp_path / "out")).collect())

    with pytest.raises(Exception, match="both a value and a body, or neither"):
        columns = read(topic).select("value", "body", "key")
        columns.write.format("django_events").options(dsn=dsn, topic=str(topic)).mode("append").save()


@pytest.mark.requirement("X15")
@pytest.mark.parametrize("format", ["parquet", "json"])
def test_what_spark_has_written_to_a_disk_is_erased_there(
    log: Callable[..., Any], spark: Any, tmp_path: Path, format: str
) -> None:
    topic = log(*(Draft(value={"of": f"0b5c-secret{n % 3}"}, key=f"k{n % 3}") for n in range(30)))
    words = (topic, "--to", tmp_path, "--format", format, "--part", 20)
    run(*words)
    erase(topic, key="k0", reason="a test", forget_key=True)

    assert "by 1 erasure: 10." in run(*words, "--erase")

    found = spark.read.format(format).load(str(tmp_path)).orderBy("offset").collect()
    known = stored(topic)
    assert [(row.offset, row.key, row.value) for row in found] == [
        (row["offset"], row["key"], row["value"]) for row in known
    ]
    assert {row.value is None for row in found if row.offset % 3 == 1} == {True}
    assert [row.metadata[:9] for row in found] == [row["metadata"][:9] for row in known]


def test_what_can_not_be_erased_in_is_named(log: Callable[..., Any], spark: Any, tmp_path: Path) -> None:
    topic = log(Draft(value=1, key="ada"))
    run(topic, "--to", tmp_path, "--format", "orc")
    erase(topic, key="ada", reason="a test")

    with pytest.raises(CommandError, match="it takes Parquet and JSON on a disk that this process sees") as raised:
        run(topic, "--to", tmp_path, "--format", "orc", "--erase")
    assert raised.value.returncode == 2
