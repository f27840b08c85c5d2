"""Aggregates of a number in the value, in windows of time."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from django_events.exceptions import Invalid, did_you_mean
from django_events.spark.jobs.numbers import number_at
from django_events.spark.jobs.times import seconds, span

GROUPS = ("topic", "type", "key")


def windows(
    events: DataFrame, *, field: str, every: str = "1 hour", slide: str | None = None, by: Sequence[str] = ("type",)
) -> DataFrame:
    """Columns: start, end, those of `by`, events, numbers, sum, average, smallest, largest.

    `events` counts all in the window, `numbers` those that have a number at the field; the others are of these. With
    `slide`, windows overlap and an event is in several.
    """
    _refuse(by, every, slide)
    window = f.window("published_at", span("every", every), span("slide", slide) if slide else None)
    number = number_at("field", field, f.col("value"))
    return (
        events.select("*", number.alias("_number"))
        .groupBy(window.alias("_window"), *by)
        .agg(
            f.count("*").alias("events"),
            f.count("_number").alias("numbers"),
            f.sum("_number").alias("sum"),
            f.avg("_number").alias("average"),
            f.min("_number").alias("smallest"),
            f.max("_number").alias("largest"),
        )
        .select(f.col("_window.start"), f.col("_window.end"), *by, *AGGREGATES)
        .orderBy("start", *by)
    )


AGGREGATES = ("events", "numbers", "sum", "average", "smallest", "largest")


def _refuse(by: Sequence[str], every: str, slide: str | None) -> None:
    for name in by:
        if name not in GROUPS:
            raise Invalid(f"Option 'by' has {name!r}. {did_you_mean(name, GROUPS)}")
    if len(set(by)) < len(by):
        raise Invalid(f"Option 'by' is {', '.join(by)!r}, expected each name once.")
    if slide and seconds("slide", slide) > seconds("every", every):
        raise Invalid(f"Option 'slide' is {slide!r}, expected no more than {every!r}: events would be left out.")
