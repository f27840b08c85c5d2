"""When each key was active: its events without a pause between them are a session."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from django_events.spark.jobs.times import between, span


def sessions(events: DataFrame, *, gap: str = "30 minutes") -> DataFrame:
    """Columns: key, start (its first event), end (its last), events, duration (from start to end, in seconds).

    A pause of more than `gap` ends a session. The key alone tells who it was, whatever the topic; events without a key
    are left out.
    """
    start, end = f.min("published_at"), f.max("published_at")
    return (
        events.where(f.col("key").isNotNull())
        .groupBy("key", f.session_window("published_at", span("gap", gap)))
        .agg(
            start.alias("start"),
            end.alias("end"),
            f.count("*").alias("events"),
            between(start, end).alias("duration"),
        )
        .drop("session_window")
        .orderBy("start", "key")
    )
