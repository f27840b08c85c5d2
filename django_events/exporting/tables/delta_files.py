"""Files of rows in the words of Delta's log: their statistics tell a reader which of them to open."""

import json
import time
from collections.abc import Collection
from datetime import datetime
from typing import Any

from deltalake.transaction import AddAction

from django_events.exporting.tables.rows_files import RowsFile, bounds


def added(file: RowsFile, *, partition: str, compared: Collection[str]) -> AddAction:
    """The action that adds a file of one partition, with the bounds of these columns."""
    known = {name: one for name, one in bounds(file).items() if name in compared}
    statistics = {
        "numRecords": file.rows,
        "minValues": {name: _said(one.least) for name, one in known.items() if one.least is not None},
        "maxValues": {name: _said(one.greatest) for name, one in known.items() if one.greatest is not None},
        "nullCount": {name: one.nulls for name, one in known.items()},
    }
    return AddAction(
        path=file.name,
        size=file.size,
        partition_values={partition: file.day},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps(statistics, ensure_ascii=False),
    )


def _said(value: Any) -> Any:
    """A value as JSON has it. Times keep their microseconds: a reader may take a bound at its word."""
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value
