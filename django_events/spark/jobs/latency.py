"""How long events took from being published to being handled, by consumer."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from django_events.spark.jobs.times import between

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
ACCURACY = 10_000  # the memory of a group is bounded; up to about so many events the percentiles are exact


def latency(history: DataFrame, events: DataFrame) -> DataFrame:
    """Columns: consumer, handled (how many events), p50, p90, p99, max: in seconds.

    p90 is the time that no less than 90 % of the events took at most. An event counts once for each consumer, by the
    first time it was handled: retries are in it, a later rewind is not. What is not in the history any more, or not in
    the log, doesn't count.
    """
    handled = (
        history.where(f.col("outcome") == "handled")
        .groupBy("consumer", "topic", "offset")
        .agg(f.min("processed_at").alias("handled_at"))
    )
    seconds = between(f.col("published_at"), f.col("handled_at"))
    percentiles = f.percentile_approx("seconds", list(SHARES.values()), ACCURACY)
    return (
        handled.join(events.select("topic", "offset", "published_at"), ["topic", "offset"])
        .select("consumer", seconds.alias("seconds"))
        .groupBy("consumer")
        .agg(f.count("*").alias("handled"), percentiles.alias("p"), f.max("seconds").alias("max"))
        .select("consumer", "handled", *(f.col("p")[place].alias(name) for place, name in enumerate(SHARES)), "max")
        .orderBy("consumer")
    )
