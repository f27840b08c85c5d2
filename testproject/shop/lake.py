"""The shop's orders as a table of Delta, for analysts: what events say as columns, whatever version they are of.

with kept_as_a_table(path):
    ...                     # a follower brings along what is ordered meanwhile
orders_in(path)
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from django_events.exporting.tables.export import TableExport, export_to_tables
from django_events.management.described import file_columns
from django_events.management.spark import dsn_of
from django_events.workers.stopping import Stop

EVERY = 1.0  # seconds that events wait for a commit


class OrdersInTable(NamedTuple):
    """What the table says: its rows, how many of them no column tells whole, what was sold, and for how much."""

    rows: int
    rescued: int
    sold: Counter[str]
    revenue: Decimal


@contextmanager
def kept_as_a_table(path: str) -> Iterator[None]:
    """A follower keeps the table until the block ends: then all events are there."""
    with closing(Stop()) as stop, ThreadPoolExecutor(1) as executor:
        following = executor.submit(export_to_tables, _export(path, follow=True), stop=stop)
        try:
            yield
        finally:
            stop.request()
        following.result()
    with closing(Stop()) as stop:
        export_to_tables(_export(path), stop=stop)


def orders_in(path: str) -> OrdersInTable:
    """What an analyst finds there."""
    from deltalake import DeltaTable

    rows = DeltaTable(f"{path}/orders").to_pyarrow_table(columns=["data", "rescued"])
    placed = pc.struct_field(rows["data"], "order_placed").combine_chunks()
    lines = pc.list_flatten(placed.field("lines"))
    by_sku = pa.table({"sku": lines.field("sku"), "quantity": lines.field("quantity")}).group_by("sku")
    sold = by_sku.aggregate([("quantity", "sum")])
    return OrdersInTable(
        rows.num_rows,
        rows.num_rows - rows["rescued"].null_count,
        Counter(dict(zip(sold["sku"].to_pylist(), sold["quantity_sum"].to_pylist(), strict=True))),
        pc.sum(placed.field("total")).as_py(),
    )


def _export(path: str, *, follow: bool = False) -> TableExport:
    columns = file_columns(["orders"], columns="typed", schema=None)
    return TableExport(
        dsn=dsn_of("default"),
        topics=("orders",),
        path=path,
        format="delta",
        columns=columns,
        follow=follow,
        every=EVERY,
    )
