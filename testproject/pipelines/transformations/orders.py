"""Tables that Spark keeps in step with the log: every event, its columns, and each order as it is now."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
LOG = {
    "dsn": "service=shop",  # an entry in the file of services, so that no password stands here
    "subscribe": "orders",
    "startingOffsets": "earliest",
}
TYPED = {
    "columns": "typed",
    "schemas": str(Path(__file__).resolve().parents[2] / "event_schemas"),
    "upcasters": "testproject.shop.upcasters",
}
DELETES = ["order.deleted"]  # the types of events by which an order goes, as by a tombstone


@dp.table
def orders_bronze() -> DataFrame:
    """Every event, as the log has it."""
    return spark.readStream.format("django_events").options(**LOG).load()


@dp.table
def orders_silver() -> DataFrame:
    """Every event with columns of their types, and what doesn't fit as text."""
    events = spark.readStream.format("django_events").options(**LOG, **TYPED).load()
    is_tombstone = f.col("rescued").eqNullSafe("null")
    is_empty = f.col("data").isNull() & f.col("rescued").isNull() & f.col("body").isNull()
    is_erased = is_empty & f.get_json_object("metadata", "$.erased").isNotNull()
    is_gone = is_tombstone | is_erased | f.col("type").isin(DELETES)
    columns = ["offset", "key", "type", "timestamp", "data", "schema_version", "rescued"]
    return events.select(*columns, is_gone.alias("is_gone"))


@dp.materialized_view
def orders_now() -> DataFrame:
    """Each order that is there: the type of its newest event, and what the newest one says that placed it."""
    offset, placed = f.col("offset"), f.col("data.order_placed")
    newest = (
        spark.read.table("orders_silver")
        .groupBy("key")
        .agg(
            f.max_by("type", offset).alias("state"),
            f.max_by(placed, f.when(placed.isNotNull(), offset)).alias("placed"),
            f.max(f.when(placed.isNotNull(), offset)).alias("placed_at"),
            f.coalesce(f.max(f.when(f.col("is_gone"), offset)), f.lit(0)).alias("gone_at"),
            f.max(offset).alias("offset"),
        )
    )
    order = f.when(f.col("placed_at") > f.col("gone_at"), f.col("placed"))  # and not the one that is gone
    columns = [order[name].alias(name) for name in ("customer", "total", "lines")]
    return newest.where("key IS NOT NULL AND `offset` > gone_at").select("key", "state", *columns, "offset")
