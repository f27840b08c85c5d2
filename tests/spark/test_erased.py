"""Events whose payloads were erased, as Spark reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_events import Draft
from django_events.operations import erase

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
