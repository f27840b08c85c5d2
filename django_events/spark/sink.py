"""Publishing what Spark computed: tasks stage their rows, and the driver's commit publishes all of them at once.

A task that is tried again has staged twice, and one of its attempts is published. A batch that is tried again is found
under the name of its sink, and changes nothing: a batch is a number of a streaming query, and Spark keeps the id of the
query in its checkpoint.
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegerType, LongType, ShortType, StringType, StructType

from django_events.database_errors import kind_of
from django_events.event_columns import BUFFERED
from django_events.exceptions import Invalid, InvalidEvent, Refused
from django_events.reading import topics
from django_events.reading.dsn import Connection, fetch
from django_events.spark.options import SinkOptions
from django_events.statements import beside, shared

SQL = beside(__name__)

TEXT, WHOLE = (StringType,), (ShortType, IntegerType, LongType)
ACCEPTED = {
    "topic": TEXT,
    "partition": WHOLE,
    "type": TEXT,
    "key": TEXT,
    "value": TEXT,
    "body": (BinaryType,),
    "metadata": TEXT,
}
OBJECT = r"^\s*\{"
LONGEST = {"type": 200, "key": 512}
HIGHEST_PARTITION = 2**31 - 1
TRIES = 3
VANISHED_AFTER = "10s"  # the server ends the transaction of a driver that says nothing any more: another one waits
UNREADABLE = "DE003"  # what the functions that publish say to JSON that no reader makes into text
# Spark's names for them among the local properties of a task.
QUERY, BATCH, GROUP = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one attempt of a task has staged, for which streaming query and which run of it, if it is of one."""

    attempt: str
    events: int
    topics: frozenset[str]
    query: str
    run: str


Messages = Sequence[WriterCommitMessage | None]


class Sink:
    """Both writers: what they stage is the same, and so is how it is published."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise Invalid("An event log is only ever added to. Expected mode('append').")
        _refuse_columns(schema, topic_given=options.topic is not None)
        self.options = options

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Write the rows of one task where no reader sees them yet, in their order."""
        attempt, events, used = str(uuid.uuid4()), 0, set()
        with self.options.dsn.connected() as connection:
            ids = {name: topic_id for name, topic_id, *_ in fetch(connection, shared.topics)}
            try:
                with connection.cursor() as cursor, cursor.copy(SQL.stage.text.encode()) as copying:
                    for batch in batches:
                        for topic, *row in self._rows(batch):
                            if topic not in ids:
                                topics.refuse_unknown([topic], ids)
                            used.add(topic)
                            events += 1
                            copying.write_row((attempt, ids[topic], *row))
            except psycopg.DataError as error:
                raise Refused(
                    f"PostgreSQL refused a row: {str(error).strip()} The column 'value' holds JSON as text, like "
                    "to_json(struct(…)) makes it, and so does 'metadata'. Nothing was published."
                ) from None
        return Staged(attempt, events, frozenset(used), _said(QUERY), _run())

    def publish(self, messages: Messages, sink: str | None, batch: int) -> None:
        """Publish what was staged, once: in one transaction with the note that this batch is published."""
        staged = _of_events(messages)
        if not staged:
            return
        for tried in range(TRIES):
            try:
                with self.options.dsn.connected() as connection, connection.transaction():
                    self._publish(connection, staged, sink, batch, again=tried > 0)
                return
            except psycopg.Error as error:
                # It may have been committed, and the answer lost. The next try waits until that is decided.
                if not kind_of(error).passes or tried == TRIES - 1:
                    raise

    def forget(self, messages: Messages) -> None:
        """Delete what was staged, because another task failed."""
        with self.options.dsn.connected() as connection:
            _unstage(connection, _of_events(messages))

    def _publish(
        self, connection: Connection, staged: list[Staged], sink: str | None, batch: int, *, again: bool
    ) -> None:
        limits = ["idle_in_transaction_session_timeout", "tcp_user_timeout"]
        fetch(connection, shared.set_locally, names=limits, values=[VANISHED_AFTER] * len(limits))
        attempts = [message.attempt for message in staged]
        events = sum(message.events for message in staged)
        fetch(connection, SQL.lock_attempts, attempts=attempts)
        if sink is not None and self._is_published(connection, sink, batch, staged[0], events, again=again):
            _unstage(connection, staged)
            return
        for topic in sorted({topic for message in staged for topic in message.topics}):
            fetch(connection, shared.open, topic=topic, wake=None)
        try:
            [[published]] = fetch(connection, SQL.publish_staged, attempts=attempts)
        except psycopg.DatabaseError as error:
            if error.sqlstate != UNREADABLE:
                raise
            raise Refused(
                f"A row was refused. {error.diag.message_primary} Publish it in the column 'body', or write such "
                "numbers as text and make it flatter. Nothing was published."
            ) from None
        if published != events and not (again and published == 0):
            raise Refused(
                f"{published} of {events} events that tasks staged are still there, so nothing was published. "
                "What is not published within a week is deleted."
            )

    def _is_published(
        self, connection: Connection, sink: str, batch: int, of_task: Staged, events: int, *, again: bool
    ) -> bool:
        """Whether this batch was published before; it is noted if it wasn't."""
        query, run = of_task.query, of_task.run
        [[last, had, of, by]] = fetch(connection, SQL.lock_sink, sink=sink, query=query)
        if of != query:
            raise Refused(
                f"Sink {sink!r} belongs to {_called(of)}, not to {_called(query)}. A query with a new checkpoint "
                "is another query. Batches of both have the same numbers, so each needs a name of its own: give it "
                "another one by option 'sink'. Nothing was published."
            )
        if batch > last:
            fetch(connection, SQL.note_batch, sink=sink, batch=batch, events=events, run=run)
            return False
        if batch < last:
            way_out = (
                "Its checkpoint was set back: begin with a new one, and give it another name by option 'sink'."
                if query
                else "Expected a number that grows with each batch, by option 'batchId'."
            )
            raise Refused(
                f"Sink {sink!r} has published batch {last}, and this is batch {batch}, so it can't be told what of it "
                f"is published already. {way_out} Nothing was published."
            )
        if run and run == by and not again:  # a batch comes again in another run only
            raise Refused(
                f"Sink {sink!r} has published batch {batch} already in this run of its query, so this is another write "
                "in the same batch. To publish more than once in a batch, take a name for each by option 'sink'. "
                "Nothing of it was published."
            )
        if events != had and not query:  # what a query computes may count otherwise when it is computed again
            raise Refused(
                f"Sink {sink!r} has published batch {batch} with {had} events, and now it has {events}: it is another "
                "one. Give it a higher number by option 'batchId'. Nothing was published."
            )
        return True

    def _rows(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        given = {name: batch.column(name) for name in batch.schema.names}
        _refuse_rows(given, batch.num_rows)
        count = batch.num_rows
        topic = [self.options.topic] * count if self.options.topic is not None else given["topic"].to_pylist()
        columns = [_values(given, name, count) for name in BUFFERED[1:]]
        return zip(topic, *columns, strict=True)


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: once per job, or, with the options sink and batchId, once per batch."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        self.sink = Sink(options, schema, overwrite=overwrite)
        if options.sink is not None and options.batch_id is None:
            raise Invalid(
                "Option 'sink' needs option 'batchId' in a batch write: a number that grows with each, like a date."
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        _refuse_other_number(self.sink.options.batch_id)
        return self.sink.stage(iterator)

    def commit(self, messages: Messages) -> None:
        options = self.sink.options
        self.sink.publish(messages, options.sink, options.batch_id or 0)

    def abort(self, messages: Messages) -> None:
        self.sink.forget(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: once per micro-batch."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.sink is None:
            raise Invalid(
                "Option 'sink' is missing, expected a name for this query. Its batches are remembered under it, so "
                "that one that is tried again is published once."
            )
        if options.batch_id is not None:
            raise Invalid("Option 'batchId' is not for a stream: Spark numbers its batches.")
        self.name = options.sink
        self.sink = Sink(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self.sink.stage(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        if not all(message.query for message in _of_events(messages)):
            raise Refused(
                f"Spark doesn't say which query publishes to sink {self.name!r}: its tasks have no property {QUERY!r}, "
                "so a batch that comes again would not be known. Publish in foreachBatch, with the options 'sink' and "
                "'batchId'. Nothing was published."
            )
        self.sink.publish(messages, self.name, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        self.sink.forget(messages)


def refuse_without_rights(options: SinkOptions) -> None:
    """NotReady on the driver, where an error is a sentence: from a task it comes in pages of Java's."""
    with options.dsn.connected() as connection:
        fetch(connection, shared.topics)
        with connection.cursor() as cursor, cursor.copy(SQL.stage.text.encode()):
            pass  # no rows
        for one in (SQL.publish_staged, SQL.unstage):
            fetch(connection, one, attempts=[])


def _said(name: str) -> str:
    """What Spark says to this task, or nothing."""
    context = TaskContext.get()
    return (context and context.getLocalProperty(name)) or ""


def _run() -> str:
    """The id of this run of a streaming query, which Spark has for its group of jobs unless the site took another."""
    group = _said(GROUP)
    return group if _said(QUERY) and re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", group) else ""


def _refuse_other_number(batch: int | None) -> None:
    """In `foreachBatch`, a number of the caller's own would have new events taken for a batch that comes again."""
    if batch is not None and _said(QUERY) and str(batch) != _said(BATCH):
        raise Invalid(
            f"Option 'batchId' is {batch} in batch {_said(BATCH)} of a streaming query. Expected the number that "
            "foreachBatch gives; to publish more than once in a batch, take a name for each by option 'sink'. Nothing "
            "was published."
        )


def _called(query: str) -> str:
    return f"query {query}" if query else "writes outside of a streaming query"


def _of_events(messages: Messages) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged) and message.events]


def _unstage(connection: Connection, staged: list[Staged]) -> None:
    fetch(connection, SQL.unstage, attempts=[message.attempt for message in staged])


def _refuse_columns(schema: StructType, *, topic_given: bool) -> None:
    for field in schema.fields:
        if field.name not in ACCEPTED:
            raise Invalid(
                f"Column {field.name!r} can't be published. Select what an event is made of: {', '.join(ACCEPTED)}."
            )
        if not isinstance(field.dataType, ACCEPTED[field.name]):
            raise Invalid(
                f"Column {field.name!r} is {field.dataType.simpleString()}, expected "
                f"{' or '.join(kind.typeName() for kind in ACCEPTED[field.name])}. Cast it; JSON of a struct is made "
                "by to_json()."
            )
    names = schema.fieldNames()
    if not topic_given and "topic" not in names:
        raise Invalid("Option 'topic' is missing, and there is no column 'topic' either: say where to publish.")
    if "value" not in names and "body" not in names:
        raise Invalid("There is no column 'value' (JSON as text) and no column 'body' (bytes): nothing to say.")


def _refuse_rows(given: dict[str, pa.Array], count: int) -> None:
    for name, array in given.items():
        _refuse_no_text(name, array)

    def is_null(name: str) -> pa.Array:
        return given[name].is_null() if name in given else pa.repeat(pa.scalar(value=True), count)

    if pc.any(pc.equal(is_null("value"), is_null("body"))).as_py():
        raise InvalidEvent(
            "A row has both a value and a body, or neither. An event has exactly one of them; the JSON of nothing is "
            "the text 'null'. Nothing was published."
        )
    if "topic" in given and given["topic"].null_count:
        raise InvalidEvent("A row has no topic. Nothing was published.")
    if "partition" in given:
        _refuse_no_partition(given["partition"])
    if "metadata" in given and not pc.all(pc.match_substring_regex(given["metadata"], OBJECT), min_count=0).as_py():
        raise InvalidEvent("A row has metadata that is no JSON object. Nothing was published.")


def _refuse_no_text(name: str, array: pa.Array) -> None:
    """InvalidEvent for bytes that are no UTF-8, and for more characters than a column has room for."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise InvalidEvent(
            f"A row has a {name} that is no UTF-8. Bytes are published in the column 'body', or decoded before, by "
            "decode(). Nothing was published."
        ) from None
    if name in LONGEST and (count := pc.max(pc.utf8_length(array)).as_py() or 0) > LONGEST[name]:
        raise InvalidEvent(
            f"A row has a {name} of {count} characters, at most {LONGEST[name]} are possible. Nothing was published."
        )


def _refuse_no_partition(array: pa.Array) -> None:
    for end in pc.min_max(array).as_py().values():
        if end is not None and not 0 <= end <= HIGHEST_PARTITION:
            raise InvalidEvent(
                f"A row has partition {end}, expected one from 0 to {HIGHEST_PARTITION}. Nothing was published."
            )


# What an event has where a row says nothing.
OTHERWISE = {"type": "", "metadata": "{}"}


def _values(given: dict[str, pa.Array], name: str, count: int) -> list[Any]:
    if name not in given:
        return [OTHERWISE.get(name)] * count
    values: list[Any] = given[name].to_pylist()
    return [OTHERWISE[name] if v is None else v for v in values] if name in OTHERWISE else values
