"""What consumers gave up on, with like errors together."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

UUID = r"(?i)\b[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b"
NUMBER = r"0x[0-9a-fA-F]+|[0-9]+([.,:][0-9]+)*"


def dead_letters(dead_letters: DataFrame) -> DataFrame:
    """Columns: consumer, topic, type, error, letters (how many), first, last, example. The most frequent first.

    `error` is the first line that says something, with <uuid> and <n> in place of uuids and numbers. `first` and `last`
    are times at which the consumer gave up, and `example` is the address of the last one, like orders/1042.
    """
    address = f.concat_ws("/", "topic", "offset")
    return (
        dead_letters.groupBy("consumer", "topic", "type", alike(f.col("error")).alias("error"))
        .agg(
            f.count("*").alias("letters"),
            f.min("dead_at").alias("first"),
            f.max("dead_at").alias("last"),
            f.max_by(address, f.struct("dead_at", "offset")).alias("example"),
        )
        .orderBy(f.desc("letters"), "consumer", "topic", "type", "error")
    )


def alike(error: Column) -> Column:
    """The first line of an error, without what differs from one event to the next."""
    line = f.rtrim(f.regexp_extract(f.coalesce(error, f.lit("")), r"^\s*(.*)", 1))
    return f.regexp_replace(f.regexp_replace(line, UUID, "<uuid>"), NUMBER, "<n>")
