"""The columns of an event outside of PostgreSQL: named as in Spark's Kafka source where they mean the same."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """A column: its type, its name in the table of events, and whether it is JSON there.

    `topic` has no column in the table: the reader adds it.
    """

    arrow: pa.DataType
    source: str
    json: bool = False


TEXT, TIME = pa.string(), pa.timestamp("us", "UTC")
TOPIC = "topic"
COLUMNS = {
    TOPIC: Column(TEXT, ""),
    "partition": Column(pa.int32(), "partition"),
    "offset": Column(pa.int64(), "id"),
    "number": Column(pa.int64(), "number"),
    "timestamp": Column(TIME, "logged_at"),
    "type": Column(TEXT, "type"),
    "key": Column(TEXT, "key"),
    "value": Column(TEXT, "value", json=True),
    "body": Column(pa.binary(), "body"),
    "metadata": Column(TEXT, "metadata", json=True),
    "published_at": Column(TIME, "published_at"),
}
