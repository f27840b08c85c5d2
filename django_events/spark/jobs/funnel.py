"""How many keys got how far in a row of steps, and how long each step took them."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from django_events.exceptions import Invalid
from django_events.spark.jobs.times import seconds


def funnel(events: DataFrame, *, steps: Sequence[str], within: str = "1 day") -> DataFrame:
    """Columns: step (from 1 on), type, keys, share (of the keys of step 1), median (seconds since the step before).

    A key begins with its first event of the first type, and only there. It reaches each other step by its first event
    of that type at or after the step before it, and no later than `within` after it began. Of two middle ones the
    median is the lower. Events without a key are left out.
    """
    if len(steps) < 2 or len(set(steps)) < len(steps):
        raise Invalid(f"Option 'steps' is {', '.join(steps)!r}, expected two or more types, each once.")
    numbered = list(enumerate(steps, start=1))
    latest = f.col("at_1") + seconds("within", within) * 1_000_000
    # In microseconds: a day that is added to a timestamp has the length it has in the session's zone.
    time = f.unix_micros("published_at")
    keys = (
        events.where(f.col("key").isNotNull())
        .groupBy("key")
        .agg(*(f.collect_set(f.when(f.col("type") == step, time)).alias(f"all_{n}") for n, step in numbered))
        .withColumn("at_1", f.array_min("all_1"))
    )
    for n, _ in numbered[1:]:
        keys = keys.withColumn(f"at_{n}", _first(f.col(f"all_{n}"), f.col(f"at_{n - 1}"), latest))
    totals = keys.agg(
        *(f.count(f"at_{n}").alias(f"keys_{n}") for n, _ in numbered),
        *(_median(f.col(f"at_{n}") - f.col(f"at_{n - 1}")).alias(f"median_{n}") for n, _ in numbered[1:]),
    ).withColumn("median_1", f.lit(None).cast("double"))
    return totals.select(f.inline(f.array(*(_row(n, step) for n, step in numbered)))).orderBy("step")


def _first(times: Column, earliest: Column, latest: Column) -> Column:
    return f.array_min(f.filter(times, lambda time: (time >= earliest) & (time <= latest)))


def _median(micros: Column) -> Column:
    return f.percentile_approx(micros / 1e6, 0.5, 10_000)


def _row(n: int, step: str) -> Column:
    keys = f.col(f"keys_{n}")
    return f.struct(
        f.lit(n).alias("step"),
        f.lit(step).alias("type"),
        keys.alias("keys"),
        f.try_divide(keys, f.col("keys_1")).alias("share"),
        f.col(f"median_{n}").alias("median"),
    )
