"""How long events took from being published to being handled, by consumer."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from django_events.spark.jobs.times import between

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
ACCURACY = 10_000  # the memory of a group is bounded; up to about so many events the percentiles are exact


def latency(history: DataFrame, samples: DataFrame, events: DataFrame) -> DataFrame:
    """Columns: consumer, measured ("events" or "minutes"), count (of these), p50, p90, p99, max: in seconds.

    Of a queue with a history each event is known. It counts once for each consumer, by the first time it was handled:
    retries are in it, a later rewind is not. What is not in the history any more, or not in the log, doesn't count.
    Of other consumers each sampled minute is known: for how long the oldest event had waited by then that the consumer
    had not passed. p90 is the time that no less than 90 % took at most.
    """
    of_events, known = _by_event(history, events), history.select("consumer").distinct()
    of_minutes = _by_minute(samples).join(known, "consumer", "left_anti")
    percentiles = f.percentile_approx("seconds", list(SHARES.values()), ACCURACY)
    return (
        of_events.unionByName(of_minutes)
        .groupBy("consumer", "measured")
        .agg(f.count("*").alias("count"), percentiles.alias("p"), f.max("seconds").alias("max"))
        .select(
            "consumer",
            "measured",
            "count",
            *(f.col("p")[index].alias(name) for index, name in enumerate(SHARES)),
            "max",
        )
        .orderBy("consumer")
    )


def _by_event(history: DataFrame, events: DataFrame) -> DataFrame:
    handled = (
        history.where(f.col("outcome") == "handled")
        .groupBy("consumer", "topic", "offset")
        .agg(f.min("processed_at").alias("handled_at"))
    )
    seconds = between(f.col("published_at"), f.col("handled_at"))
    published = events.select("topic", "offset", "published_at")
    return handled.join(published, ["topic", "offset"]).select(
        "consumer", f.lit("events").alias("measured"), seconds.alias("seconds")
    )


def _by_minute(samples: DataFrame) -> DataFrame:
    """A consumer of several topics is as far behind as on the one where it is worst."""
    return (
        samples.groupBy("consumer", "sampled_at")
        .agg(f.max("behind").alias("seconds"))
        .select("consumer", f.lit("minutes").alias("measured"), "seconds")
    )
