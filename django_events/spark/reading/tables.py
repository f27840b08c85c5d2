"""Tables beside the log, for jobs: dead letters, positions of consumers, their samples, and the history of queues."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from django_events.reading.columns import Column
from django_events.reading.dsn import Dsn
from django_events.reading.rows import NOT_MADE_INTO_TEXT, read_table
from django_events.statements import SMALL, Statement, as_text, beside, literal

SQL = beside(__name__)

INT, LONG, TEXT = Column(pa.int32(), ""), Column(pa.int64(), ""), Column(pa.string(), "")
TIME, BYTES, FLOAT = Column(pa.timestamp("us", "UTC"), ""), Column(pa.binary(), ""), Column(pa.float64(), "")


@dataclass(frozen=True)
class Table:
    """A statement of `tables.sql`, and the columns that it answers with."""

    asked: Statement
    columns: dict[str, Column]


TABLES = {
    "dead_letters": Table(
        SQL.spark_dead_letters.on(
            value=as_text("d", "value", small=SMALL),
            metadata=as_text("d", "metadata", small=SMALL),
            unreadable=literal(json.dumps({"unreadable": NOT_MADE_INTO_TEXT})),
        ),
        {
            "consumer": TEXT,
            "topic": TEXT,
            "offset": LONG,
            "partition": INT,
            "type": TEXT,
            "key": TEXT,
            "value": TEXT,
            "body": BYTES,
            "metadata": TEXT,
            "published_at": TIME,
            "timestamp": TIME,
            "attempts": INT,
            "error": TEXT,
            "dead_at": TIME,
            "redrive_at": TIME,
        },
    ),
    "history": Table(
        SQL.spark_history,
        {
            "consumer": TEXT,
            "topic": TEXT,
            "offset": LONG,
            "received_at": TIME,
            "first_at": TIME,
            "last_at": TIME,
            "processed_at": TIME,
            "attempts": INT,
            "delivered": INT,
            "outcome": TEXT,
            "worker": TEXT,
        },
    ),
    "positions": Table(
        SQL.spark_positions,
        {
            "consumer": TEXT,
            "topic": TEXT,
            "mode": TEXT,
            "partition": INT,
            "position": LONG,
            "lag": LONG,
            "handled": LONG,
            "failed": LONG,
            "ignored": LONG,
            "dead_lettered": LONG,
            "served_at": TIME,
        },
    ),
    "samples": Table(
        SQL.spark_samples,
        {"consumer": TEXT, "topic": TEXT, "mode": TEXT, "sampled_at": TIME, "lag": LONG, "behind": FLOAT},
    ),
}


class TableReader(DataSourceReader):
    """Reads one of `TABLES` as a whole, in one task."""

    def __init__(self, dsn: Dsn, table: str) -> None:
        self.dsn, self.table = dsn, table

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.table)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        table = TABLES[self.table]
        with self.dsn.connected() as connection:
            yield from read_table(connection, table.asked, table.columns)
