"""The shop's revenue by the hour: its orders exported to Parquet, by columns, and added up by Spark."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

from django_events.exporting.export import Export, Summary, export
from django_events.management.described import file_columns
from django_events.management.spark import dsn_of
from django_events.spark.exporting.engine import SparkEngine
from django_events.spark.session import session

HOURS = """
    SELECT
        date_format(timestamp, 'yyyy-MM-dd HH:00') AS hour,
        count(*) AS orders,
        sum(cast(data.order_placed.total AS decimal(12, 2))) AS revenue
    FROM events
    WHERE type = 'order.placed'
    GROUP BY hour
    ORDER BY hour
"""
UPCASTERS = "testproject.shop.upcasters"
# For seconds of work Java's quick compiler is enough.
BRIEF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

Hour = tuple[str, int, Decimal]


@contextmanager
def revenue_by_hour(keep: str | None = None) -> Iterator[tuple[Summary, Path, list[Hour]]]:
    """Export the orders into a folder, which is kept if it is named, and read the hours back from its files."""
    with tempfile.TemporaryDirectory(prefix="shop-") as scratch, session("shop", settings=BRIEF) as spark:
        path = Path(keep or scratch).resolve()
        columns = file_columns(["orders"], columns="typed", schema=None, upcasters=UPCASTERS)
        wanted = Export(dsn=dsn_of("default"), topics=("orders",), path=str(path), columns=columns)
        summary = export(SparkEngine(spark), wanted)
        spark.read.parquet(str(path)).createOrReplaceTempView("events")
        hours = [(row.hour, row.orders, row.revenue) for row in spark.sql(HOURS).collect()]
        yield summary, path, hours
