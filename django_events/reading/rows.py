"""From PostgreSQL to Arrow: the server gathers many events into one row, in the shape that Arrow keeps them in.

A column of texts comes as one long text and the lengths of its parts, a column of numbers as their bytes, which cost
the server less than an array does. So Python does the same few steps for a piece of 2,000 events as for one event; row
by row it would need more time than the server.
"""

import json
import logging
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from django_events.database_errors import ErrorKind, kind_of
from django_events.exceptions import EventsMissing
from django_events.reading.columns import COLUMNS, TOPIC, Column
from django_events.reading.dsn import Connection, Dsn, fetch_whole
from django_events.reading.ranges import ChosenIds, Range
from django_events.statements import SMALL, Statement, all_of, as_text, beside, literal, log_table, shared

logger = logging.getLogger("django_events.spark")
SQL = beside(__name__)

# With a site's own values PostgreSQL might choose another plan, or a limit for web pages would end a long read.
SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "statement_timeout": "0",
    "row_security": "off",  # where it would hide rows from this role, PostgreSQL refuses to read
}
# How many events the server puts into one row: so many that it has about a megabyte, by the size of those before.
PIECE_BYTES = 1 << 20
FIRST_PIECE, LARGEST_PIECE = 128, 2048

NOT_MADE_INTO_TEXT = "It has numbers of more than 4,300 digits, or 900 decimals, or is nested more than 5,000 deep."
NAMED = 5  # addresses of events in one warning
LEFT_OUT = -2  # stands for the length of JSON that is there and was not made into text

HEADER = struct.Struct(">11sii")  # of a binary COPY
SINCE_1970 = 946_684_800_000_000  # PostgreSQL counts microseconds from 2000 on
MICROSECONDS = np.iinfo(np.int64)  # the first and the last stand for infinity


@dataclass(frozen=True, kw_only=True)
class RangeReader:
    """Reads ranges of the log. Spark sends it to the executors."""

    dsn: Dsn
    columns: tuple[str, ...]
    fetch_size: int
    fail_on_data_loss: bool
    condition: Statement | None = None

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        """The events of a range, in order; EventsMissing if some are gone and `fail_on_data_loss` is set."""
        with self.dsn.connected() as connection:
            yield from self.read_by(connection, part)

    def read_by(self, connection: Connection, part: Range | ChosenIds) -> Iterator[pa.RecordBatch]:
        """The same by a connection of the caller's. Of chosen ids `offset` has to be one of the columns."""
        start, last = (part.start, part.end) if isinstance(part, Range) else (0, len(part.ids))  # ids, or their indexes
        piece, learnt = FIRST_PIECE, False
        refused = ""  # why the server can't send the next event, even alone
        while start < last:
            end = min(start + (1 if refused else self.fetch_size if learnt else FIRST_PIECE), last)
            rows = size = 0
            short: list[tuple[int, int, int]] = []
            error: psycopg.Error | None = None
            try:
                asked = self._asked(connection, part, start, end, piece, refused)
                for given in gathered(connection, asked, self._wanted):
                    first, start = start, min(start + piece, end)
                    count = given.batch.num_rows
                    if count < start - first and isinstance(part, Range):
                        short.append((first, start, count))
                    if count:
                        rows += count
                        size += given.batch.nbytes
                        yield self._completed(given, part, first, refused)
            except psycopg.Error as failed:
                if not _is_too_large(failed) or refused:
                    raise
                error = failed
            for one in short:  # up to the first that is told of: retention removes the oldest events only
                if isinstance(part, Range) and not self._is_right(connection, part, *one):
                    break
            if error is not None and not rows:
                if piece == 1:
                    refused = _refused(error)
                piece, learnt = max(piece // 8, 1), False
            elif refused:  # the piece stays small, because the next events may be as large
                refused = ""
            elif rows:
                learnt = error is None
                piece = min(max(PIECE_BYTES * rows // max(size, 1), 1), LARGEST_PIECE)

    @property
    def _wanted(self) -> dict[str, Column]:
        """The columns to ask the server for: at least one, even where Spark wants the topic alone."""
        return {name: COLUMNS[name] for name in self.columns if name != TOPIC} or {"offset": COLUMNS["offset"]}

    def _asked(
        self, connection: Connection, part: Range | ChosenIds, start: int, end: int, piece: int, refused: str
    ) -> Statement:
        """The statement for a range of events, without their payload if the server refused to send it."""
        named = _named_without_payload if refused else _named
        columns = [named(name, column) for name, column in self._wanted.items()]
        gathering = _gathering(connection, self._wanted)
        log, condition = log_table(part.topic_id), self.condition or all_of([])
        if isinstance(part, Range):
            return SQL.copy_range.on(
                log=log,
                topic_id=part.topic_id,
                start=start,
                end=end,
                piece=piece,
                columns=columns,
                gathered=gathering,
                condition=condition,
            )
        ids = list(part.ids[start:end])
        return SQL.copy_chosen.on(
            log=log,
            topic_id=part.topic_id,
            ids=literal(ids),
            count=len(ids),
            first=ids[0],
            last=ids[-1],
            piece=piece,
            columns=columns,
            gathered=gathering,
            condition=condition,
        )

    def _is_right(self, connection: Connection, part: Range, start: int, end: int, seen: int) -> bool:
        """Whether the filter or compaction left out what a piece lacks; if not, EventsMissing, or a warning."""
        log = log_table(part.topic_id)
        [[_, first, _, floor, compacted]] = fetch_whole(connection, shared.bounds.on(log=log, topic_id=part.topic_id))
        if floor < start <= compacted:  # up to there events may be gone, and behind it none is
            first, start = floor + 1, min(compacted + 1, end)
            counted = shared.count_behind.on(log=log, topic_id=part.topic_id, after=start - 1, upper=end - 1)
            [[seen]] = fetch_whole(connection, counted)
        if first is not None and first <= start and (self.condition or seen == end - start):
            return True
        said = f"Topic {part.topic!r} was to be read from {start} to {end - 1}, but "
        if first is None or first > start:
            said += f"its log begins at {first or 'its end'}: what was before it has expired."
        else:
            said += f"only {seen} of these events are there: some were removed by hand."
        if self.fail_on_data_loss:
            raise EventsMissing(f"{said} Read what is left with failOnDataLoss=false.")
        logger.warning(said)
        return False

    def _completed(self, given: "Gathered", part: Range | ChosenIds, first: int, refused: str) -> pa.RecordBatch:
        """A batch with the column `topic`, and with the reason in the metadata of events without their JSON."""
        batch = given.batch
        arrays = {name: batch.column(name) for name in batch.schema.names}
        arrays[TOPIC] = pa.repeat(pa.scalar(part.topic), batch.num_rows)
        left_out = list(range(batch.num_rows)) if refused else given.left_out
        if left_out:
            why = refused or NOT_MADE_INTO_TEXT
            ids = [arrays["offset"][index].as_py() if "offset" in arrays else first + index for index in left_out]
            named = ", ".join(f"{part.topic}/{event_id}" for event_id in ids[:NAMED])
            more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
            logger.warning("Read without what can't be made into text: event %s. %s", named + more, why)
            if "metadata" in arrays:
                arrays["metadata"] = _saying(arrays["metadata"], left_out, why)
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.columns], names=list(self.columns))


class Gathered(NamedTuple):
    """A batch, and the indexes in it of the events whose JSON was not made into text."""

    batch: pa.RecordBatch
    left_out: list[int]


def _is_too_large(error: psycopg.Error) -> bool:
    """Whether a row was more than PostgreSQL can send. For bytes it says so by an internal error."""
    return kind_of(error) in (ErrorKind.TOO_LARGE, ErrorKind.INTERNAL, ErrorKind.OUT_OF_MEMORY)


def _refused(error: psycopg.Error) -> str:
    """Why the server can't send an event alone; out of memory is raised, because another try may succeed."""
    if kind_of(error) is ErrorKind.OUT_OF_MEMORY:
        raise error
    return f"PostgreSQL can't send it: {str(error).strip().splitlines()[0].rstrip('.')}."


def _saying(metadata: pa.Array, left_out: list[int], why: str) -> pa.Array:
    """Metadata that say `unreadable`, and why, for the events at these indexes."""
    said = json.dumps({"unreadable": why}, ensure_ascii=False)
    texts = metadata.to_pylist()
    for index in left_out:
        text = texts[index]
        known = text if text is not None and text.startswith("{") and text != "{}" else ""
        texts[index] = f"{known[:-1]}, {said[1:]}" if known else said
    return pa.array(texts, pa.string())


def read_table(connection: Connection, asked: Statement, columns: Mapping[str, Column]) -> Iterator[pa.RecordBatch]:
    """All rows that a statement answers with; it names its columns as `columns` does."""
    wanted = SQL.copy_answer.on(asked=asked, gathered=_gathering(connection, columns))
    return (given.batch for given in gathered(connection, wanted, columns))


def gathered(connection: Connection, asked: Statement, columns: Mapping[str, Column]) -> Iterator[Gathered]:
    """A batch for each row of a binary COPY of gathered columns."""
    settings = shared.set_locally.text.encode(), {"names": list(SETTINGS), "values": list(SETTINGS.values())}
    text = f"{psycopg.ClientCursor(connection).mogrify(*settings)};\n{asked.text.replace('%%', '%')}"
    line = connection.pgconn
    _refuse_failure(line, line.exec_(text.encode()), ExecStatus.COPY_OUT)  # one message, so one transaction
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
    except BaseException:  # for example, the caller stopped reading: without this the server would go on sending
        connection.close()
        raise
    results = list(iter(line.get_result, None))
    for result in results:
        _refuse_failure(line, result, ExecStatus.COMMAND_OK)


def _named(name: str, column: Column) -> Statement:
    if column.json:
        return _named_json(name, column, as_text("e", column.source, small=SMALL))
    part = SQL.as_text if column.arrow == pa.string() else SQL.as_is
    return part.on(column=column.source, name=name)


def _named_without_payload(name: str, column: Column) -> Statement:
    if column.json:
        return _named_json(name, column, SQL.as_text_if_small.on(json=("e", column.source), small=SMALL))
    return SQL.without_bytes.on(name=name) if column.arrow == pa.binary() else _named(name, column)


def _named_json(name: str, column: Column, text: Statement) -> Statement:
    return SQL.as_text_if_there.on(text=text, column=column.source, name=name, there=_there(name))


def _gathering(connection: Connection, columns: Mapping[str, Column]) -> list[Statement]:
    is_utf8 = connection.info.parameter_status("server_encoding") == "UTF8"
    how, how_json = HOW if is_utf8 else HOW_ELSEWHERE, (SQL.gather_json if is_utf8 else SQL.gather_foreign_json)
    return [
        how_json.on(name=name, there=_there(name)) if column.json else how[column.arrow].on(name=name)
        for name, column in columns.items()
    ]


def _there(name: str) -> str:
    return f"{name}_is_there"


def _refuse_failure(line: PGconn, result: PGresult, expected: ExecStatus) -> None:
    if result.status != expected:
        if line.status != ConnStatus.OK:  # libpq says no code for it, so the general error would come of it
            raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
        raise psycopg.errors.error_from_result(result)


def _fields(row: memoryview, at: int) -> list[memoryview | None]:
    """The fields of a row of a binary COPY, null as None; an empty list for its trailer."""
    count = int.from_bytes(row[at : at + 2], "big", signed=True)
    at += 2
    fields: list[memoryview | None] = []
    for _ in range(count):
        size = int.from_bytes(row[at : at + 4], "big", signed=True)
        at += 4
        fields.append(None if size < 0 else row[at : at + size])
        at += max(size, 0)
    return fields


def _batch(fields: list[memoryview | None], columns: Mapping[str, Column]) -> Gathered:
    given, arrays = iter(fields), []
    left_out: set[int] = set()
    for column in columns.values():
        if column.arrow in LONG:
            joined, sizes = next(given), _values(next(given), np.int32)
            arrays.append(_texts(joined, sizes, column.arrow))
            if column.json:
                left_out.update(np.flatnonzero(sizes == LEFT_OUT).tolist())
        else:
            arrays.append(_numbers(next(given), column.arrow))
    return Gathered(pa.RecordBatch.from_arrays(arrays, names=list(columns)), sorted(left_out))


def _texts(joined: memoryview | None, sizes: "np.typing.NDArray[np.signedinteger]", type: pa.DataType) -> pa.Array:
    """An array of the texts, or bytes, that `joined` holds one after the other; a size below 0 stands for null."""
    there = sizes >= 0
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.where(there, sizes, 0), out=ends[1:])
    return pa.Array.from_buffers(type, len(sizes), [_bits(there), pa.py_buffer(ends), pa.py_buffer(joined or b"")])


def _numbers(given: memoryview | None, type: pa.DataType) -> pa.Array:
    if not pa.types.is_timestamp(type):
        values, there = _values(given, type.to_pandas_dtype()), None
    else:
        values = _values(given, np.int64)
        there = _bits((values != MICROSECONDS.max) & (values != MICROSECONDS.min))
        values += SINCE_1970
    return pa.Array.from_buffers(type, len(values), [there, pa.py_buffer(values)])


def _bits(there: "np.typing.NDArray[np.bool_]") -> pa.Buffer | None:
    """Which values are there, as Arrow says it: not at all if all of them are."""
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


def _values(given: memoryview | None, type: "np.typing.DTypeLike") -> "np.typing.NDArray[Any]":
    """The numbers of some bytes in PostgreSQL's order."""
    return np.frombuffer(given or b"", np.dtype(type).newbyteorder(">")).astype(type)


LONG = {pa.string(), pa.binary()}
HOW = {
    pa.string(): SQL.gather_texts,
    pa.binary(): SQL.gather_texts,
    pa.int32(): SQL.gather_integers,
    pa.int64(): SQL.gather_long_integers,
    pa.float64(): SQL.gather_doubles,
    pa.timestamp("us", "UTC"): SQL.gather_times,
}
# On a server with another encoding, lengths would be counted in it, and not in the UTF-8 that Arrow keeps.
HOW_ELSEWHERE = {**HOW, pa.string(): SQL.gather_foreign_texts}
