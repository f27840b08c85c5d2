"""How many events each consumer has before it, over all partitions."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def lag(positions: DataFrame) -> DataFrame:
    """Columns: consumer, topic, mode, lag, handled, dead_lettered (how many it ever gave up on). Largest lag first."""
    return (
        positions.groupBy("consumer", "topic", "mode")
        .agg(*(f.sum(name).alias(name) for name in ("lag", "handled", "dead_lettered")))
        .orderBy(f.desc("lag"), "consumer", "topic")
    )
