"""From PostgreSQL to Arrow: the server gathers many events into one row, in the shape that Arrow keeps them in.

A column of texts comes as one long text and the lengths of its parts, one of numbers as an array. What is left to do
here doesn't depend on the number of events: the same rows one by one would take Python longer than the server needs.
"""

import logging
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from pyspark.sql.datasource import InputPartition

from django_events.exceptions import DataLost
from django_events.spark.columns import COLUMNS, TOPIC, Column
from django_events.spark.dsn import Connection, Dsn, fetch
from django_events.spark.ranges import Range
from django_events.statements import Statement, all_of, listed, log_table, statement

logger = logging.getLogger("django_events.spark")

# A site's own values would change what is planned. A limit for statements is meant for pages.
SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "statement_timeout": "0",
}
# How many events make a row: so many that a batch has about a megabyte, learnt from those before.
PIECE_BYTES = 1 << 20
FIRST_PIECE, LARGEST_PIECE = 128, 2048
TOO_LARGE = (psycopg.errors.ProgramLimitExceeded, psycopg.errors.OutOfMemory)

HEADER = struct.Struct(">11sii")  # of a binary COPY
ARRAY = struct.Struct(">iiiii")  # dimensions, has nulls, type, length, lower bound
SINCE_1970 = 946_684_800_000_000  # PostgreSQL counts microseconds from 2000 on
INFINITE = np.iinfo(np.int64)


@dataclass(frozen=True, kw_only=True)
class RangeReader:
    """Reads ranges of the log. It travels to the executors."""

    dsn: Dsn
    columns: tuple[str, ...]
    fetch_size: int
    fail_on_data_loss: bool
    condition: Statement | None = None

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a range, in order; DataLost if some of them are not there any more."""
        if isinstance(part, Range):  # Spark makes one of its own where there is nothing to read
            with self.dsn.connected() as connection:
                yield from self._read(connection, part)

    def _read(self, connection: Connection, part: Range) -> Iterator[pa.RecordBatch]:
        start, piece, learnt = part.start, FIRST_PIECE, False
        while start < part.end:
            end = min(start + (self.fetch_size if learnt else FIRST_PIECE), part.end)
            rows = size = 0
            short: list[tuple[int, int, int]] = []
            try:
                for batch in gathered(connection, self._asked(connection, part, start, end, piece), self._wanted):
                    first, start = start, min(start + piece, end)
                    if batch.num_rows < start - first:
                        short.append((first, start, batch.num_rows))
                    if batch.num_rows:
                        rows += batch.num_rows
                        size += batch.nbytes
                        yield self._completed(batch, part.topic)
            except TOO_LARGE:
                if piece == 1:
                    raise
                piece = max(piece // 8, 1)
            if short:  # of those left out, the first tells of all: a log loses nothing but its oldest
                self._check(connection, part, *short[0])
            if rows:
                learnt = True
                piece = min(max(PIECE_BYTES * rows // max(size, 1), 1), LARGEST_PIECE)

    @property
    def _wanted(self) -> dict[str, Column]:
        """What to ask for: something, even if nothing but the topic is wanted."""
        return {name: COLUMNS[name] for name in self.columns if name != TOPIC} or {"offset": COLUMNS["offset"]}

    def _asked(self, connection: Connection, part: Range, start: int, end: int, piece: int) -> Statement:
        return statement("copy_range").on(
            log=log_table(part.topic_id),
            topic_id=part.topic_id,
            start=start,
            end=end,
            piece=piece,
            columns=listed([_named(name, column) for name, column in self._wanted.items()]),
            gathered=_gathering(connection, self._wanted),
            condition=self.condition or all_of([]),
        )

    def _check(self, connection: Connection, part: Range, start: int, end: int, seen: int) -> None:
        """Fewer than there are ids: were they left out, or are they gone?"""
        log = log_table(part.topic_id)
        [[first]] = fetch(connection, statement("first_id").on(log=log, topic_id=part.topic_id))
        if first is not None and first <= start and (self.condition or seen == end - start):
            return
        said = f"Topic {part.topic!r} was to be read from {start} to {end - 1}, but "
        if first is None or first > start:
            said += f"its log begins at {first or 'its end'}: what was before it has expired."
        else:
            said += f"only {seen} of these events are there: somebody has removed some by hand."
        if self.fail_on_data_loss:
            raise DataLost(f"{said} Read what is left with failOnDataLoss=false.")
        logger.warning(said)

    def _completed(self, batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
        arrays = [
            pa.repeat(pa.scalar(topic), batch.num_rows) if name == TOPIC else batch.column(name)
            for name in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))


def read_table(connection: Connection, asked: Statement, columns: Mapping[str, Column]) -> Iterator[pa.RecordBatch]:
    """All that a statement answers with, whose columns are named like these."""
    wanted = statement("copy_answer").on(asked=asked, gathered=_gathering(connection, columns))
    return gathered(connection, wanted, columns)


def gathered(connection: Connection, asked: Statement, columns: Mapping[str, Column]) -> Iterator[pa.RecordBatch]:
    """A batch for each row of a binary COPY of gathered columns."""
    settings = statement("set_locally").text.encode(), {"names": list(SETTINGS), "values": list(SETTINGS.values())}
    text = f"{psycopg.ClientCursor(connection).mogrify(*settings)};\n{asked.text.replace('%%', '%')}"
    line = connection.pgconn
    _refuse_failure(line.exec_(text.encode()), ExecStatus.COPY_OUT)  # one message, so one transaction
    at = HEADER.size
    try:
        while True:
            size, row = line.get_copy_data(0)
            if size < 0:
                break
            fields = _fields(memoryview(row), at)
            at = 0
            if fields:
                yield _batch(fields, columns)
    except BaseException:  # whoever reads has seen enough, for example: the server finds out when the connection closes
        connection.close()
        raise
    results = list(iter(line.get_result, None))
    for result in results:
        _refuse_failure(result, ExecStatus.COMMAND_OK)


def _named(name: str, column: Column) -> Statement:
    part = statement("as_text" if column.arrow == pa.string() else "as_is")
    return part.on(column=column.source, name=name)


def _gathering(connection: Connection, columns: Mapping[str, Column]) -> Statement:
    how = HOW if connection.info.parameter_status("server_encoding") == "UTF8" else HOW_ELSEWHERE
    return listed([how[column.arrow].on(name=name) for name, column in columns.items()])


def _refuse_failure(result: PGresult, expected: ExecStatus) -> None:
    if result.status != expected:
        raise psycopg.errors.error_from_result(result)


def _fields(row: memoryview, at: int) -> list[memoryview | None]:
    """The fields of a row of a binary COPY; none for its trailer."""
    count = int.from_bytes(row[at : at + 2], "big", signed=True)
    at += 2
    fields: list[memoryview | None] = []
    for _ in range(count):
        size = int.from_bytes(row[at : at + 4], "big", signed=True)
        at += 4
        fields.append(None if size < 0 else row[at : at + size])
        at += max(size, 0)
    return fields


def _batch(fields: list[memoryview | None], columns: Mapping[str, Column]) -> pa.RecordBatch:
    given = iter(fields)
    arrays = [
        _texts(next(given), next(given), column.arrow) if column.arrow in LONG else _numbers(next(given), column.arrow)
        for column in columns.values()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _texts(joined: memoryview | None, lengths: memoryview | None, type: pa.DataType) -> pa.Array:
    """Texts or bytes one after the other, and how long each is; -1 stands for none."""
    sizes = _array(lengths, np.int32)
    there = sizes >= 0
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.where(there, sizes, 0), out=ends[1:])
    nulls = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(type, len(sizes), [nulls, pa.py_buffer(ends), pa.py_buffer(joined or b"")])


def _numbers(array: memoryview | None, type: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type):
        since_2000 = _array(array, np.int64)
        finite = (since_2000 != INFINITE.max) & (since_2000 != INFINITE.min)
        return pa.array(since_2000 + SINCE_1970, pa.int64(), mask=~finite).cast(type)
    return pa.array(_array(array, np.dtype(type.to_pandas_dtype())))


def _array(array: memoryview | None, type: "np.typing.DTypeLike") -> "np.typing.NDArray[np.signedinteger]":
    """The values of an array of PostgreSQL, which has none that are null."""
    if array is None:
        return np.empty(0, type)
    value = np.dtype(type).newbyteorder(">")
    *_, count, _ = ARRAY.unpack_from(array)
    parts = np.frombuffer(array, np.dtype([("size", ">i4"), ("value", value)]), count, ARRAY.size)
    return parts["value"].astype(type)


LONG = {pa.string(), pa.binary()}
HOW = {
    pa.string(): statement("gather_texts"),
    pa.binary(): statement("gather_bytes"),
    pa.int32(): statement("gather_numbers"),
    pa.int64(): statement("gather_numbers"),
    pa.timestamp("us", "UTC"): statement("gather_times"),
}
# Of a server that keeps texts in another encoding, the lengths would be of that one.
HOW_ELSEWHERE = {**HOW, pa.string(): statement("gather_foreign_texts")}
