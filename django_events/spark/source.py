"""What Spark finds under format("django_events")."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from django_events.exceptions import Invalid
from django_events.spark import options
from django_events.spark.reading.batch import BatchReader
from django_events.spark.reading.schema import struct
from django_events.spark.reading.streaming import StreamReader
from django_events.spark.reading.tables import TableReader
from django_events.spark.sink import BatchWriter, StreamWriter, refuse_without_rights


class EventsSource(DataSource):
    """The log of django_events: read it in batches or as a stream, publish to it."""

    @classmethod
    def name(cls) -> str:
        return "django_events"

    def schema(self) -> StructType:
        return struct(options.columns_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        read = options.for_batch(self.options)
        self._refuse_other(schema)
        if read.table is not None:
            return TableReader(read.dsn, read.table)
        return BatchReader(read)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's names
        self._refuse_other(schema)
        return StreamReader(options.for_stream(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        wanted = options.for_sink(self.options)
        writer = BatchWriter(wanted, schema, overwrite=overwrite)
        refuse_without_rights(wanted)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        wanted = options.for_sink(self.options)
        writer = StreamWriter(wanted, schema, overwrite=overwrite)
        refuse_without_rights(wanted)
        return writer

    def _refuse_other(self, schema: StructType) -> None:
        if schema != self.schema():
            raise Invalid(
                f"A schema of {schema.fieldNames()} was given, but the columns of events are fixed: "
                f"{self.schema().simpleString()}. Leave schema() out and choose some with option 'columns'."
            )
