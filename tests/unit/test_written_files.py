"""What files of events have, by their footers or lines."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from django_events.exporting.layout import TARGET
from django_events.exporting.writing import SCHEMA, FolderFiles, Written, written


def events(start: int, end: int) -> pa.RecordBatch:
    plain: dict[str, Any] = {"timestamp": datetime(2026, 11, 20, tzinfo=UTC), "type": "a", "value": "1"}
    rows = [{**plain, "type": f"t{n % 3}", "offset": n} for n in range(start, end)]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_files_tell_how_many_events_they_have_and_which_ids(tmp_path: Path, format: str) -> None:
    for task, (start, end) in enumerate([(400, 500), (11, 400)]):
        with FolderFiles(str(tmp_path), by=("type",), format=format, target_size=TARGET, task=task) as files:
            files.add(events(start, end))

    assert len(list(tmp_path.rglob("part-*"))) == 6
    assert written(format, str(tmp_path)) == Written(489, 11, 499)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_where_no_event_was_written_nothing_is_told(tmp_path: Path, format: str) -> None:
    with FolderFiles(str(tmp_path), by=(), format=format, target_size=TARGET, task=0) as files:
        files.add(events(1, 1))

    assert written(format, str(tmp_path)) is None
    assert written(format, str(tmp_path / "none")) is None
