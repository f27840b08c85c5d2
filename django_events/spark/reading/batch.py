"""A batch query: reads the log from one boundary to another, once."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from django_events.exceptions import Invalid
from django_events.reading import topics
from django_events.reading.ranges import Range, split
from django_events.spark.options import ReadOptions


def read(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task reads; where there is nothing to read, Spark gives it a partition of its own."""
    return options.reader().read(partition.value) if isinstance(partition.value, Range) else iter(())


class BatchReader(DataSourceReader):
    """The driver turns the two boundaries into ranges of ids that don't overlap; the executors read these."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        try:
            return [InputPartition(part) for part in split(self._whole(), least=self.options.min_partitions)]
        except NotImplementedError as error:
            # Spark takes a NotImplementedError for a source without partitions, and would read nothing and say nothing.
            raise RuntimeError(f"What to read can't be planned: {error}") from error

    def _whole(self) -> list[Range]:
        options, fail = self.options, self.options.fail_on_data_loss
        with options.dsn.connected() as connection:
            options.filter.refuse_unusable(connection)
            found = topics.find(connection, options.subscription)
            for boundary in (options.start, options.end):
                boundary.refuse_others(found)
            whole = []
            for topic in found:
                start = options.start.of(topic, fail_on_data_loss=fail)
                end = options.end.of(topic, fail_on_data_loss=fail)
                if start > end and options.start.is_said_of(topic) and options.end.is_said_of(topic):
                    raise Invalid(
                        f"Topic {topic.name!r} is to be read from {start} to before {end}: the end is before the start."
                    )
                whole.append(Range(topic.name, topic.id, start, max(start, end)))
        return whole

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self.options, partition)
