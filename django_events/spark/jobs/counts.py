"""How many events there were, by time, topic and type."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from django_events.spark.jobs.times import span


def counts(events: DataFrame, *, every: str = "1 hour") -> DataFrame:
    """Columns: start (of the bucket), topic, type, events. A bucket without events has no row."""
    bucket = f.window("published_at", span("every", every))
    return (
        events.groupBy(bucket.start.alias("start"), "topic", "type")
        .agg(f.count("*").alias("events"))
        .orderBy("start", "topic", "type")
    )
