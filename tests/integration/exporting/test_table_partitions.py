"""Tables are partitioned by the day of `timestamp` in UTC, and a reader that asks for a day opens no other file."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars
import pytest
from django.db import connection
from psycopg.conninfo import make_conninfo
from pyiceberg.transforms import DayTransform

from django_events import Draft
from django_events.exporting.tables.iceberg_catalogs import NAMESPACE, in_folder
from django_events.management.commands import export_events
from django_events.models import Topic
from django_events.statements import log_table
from tests.spark.test_batch import stored
from tests.support.lake_files import delta_files, iceberg_files
from tests.support.tables import read_back, run

pytestmark = pytest.mark.usefixtures("transactional_db")

Log = Callable[..., Any]
MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
TIMES = [MIDNIGHT - timedelta(hours=1), MIDNIGHT - timedelta(microseconds=1), MIDNIGHT, MIDNIGHT + timedelta(seconds=1)]
DAYS = {date(2026, 3, 1): [1, 2], date(2026, 3, 2): [3, 4]}


@pytest.fixture
def around_midnight(log: Log, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two events before midnight of UTC and two from then on; the database's sessions are twelve hours ahead."""
    topic = log(*(Draft(value=n, type=f"t{n}") for n in range(4)))
    with connection.cursor() as cursor:
        table = log_table(Topic.objects.get(name=str(topic)).pk)
        cursor.execute(f"UPDATE {table} SET logged_at = (%s::timestamptz[])[id]", [TIMES])
    dsn_of = export_events.dsn_of
    ahead = "-c TimeZone=Pacific/Auckland"
    monkeypatch.setattr(export_events, "dsn_of", lambda using: make_conninfo(dsn_of(using), options=ahead))
    return topic


def offsets(file: str) -> list[int]:
    return polars.read_parquet(file, columns=["offset"], hive_partitioning=False)["offset"].to_list()


@pytest.mark.requirement("X15")
def test_of_delta_each_day_is_a_folder_and_a_filter_opens_no_other(around_midnight: Any, tmp_path: Path) -> None:
    run(around_midnight, "--to", tmp_path, format="delta")

    files = delta_files(tmp_path / "things")
    assert {file.day: offsets(file.path) for file in files} == DAYS
    assert [Path(file.path).parent.name for file in files] == [f"day={day}" for day in DAYS]
    assert read_back(tmp_path, "delta") == stored(around_midnight)
    events = polars.scan_delta(str(tmp_path / "things"))
    assert events.select("day").collect()["day"].unique().sort().to_list() == list(DAYS)

    Path(files[0].path).unlink()  # whatever opens it now fails
    assert events.filter(polars.col("day") == date(2026, 3, 2)).collect()["offset"].sort().to_list() == [3, 4]
    # Delta's statistics of a file have milliseconds, so the last microsecond of a day counts as the next one.
    later = polars.col("timestamp") > MIDNIGHT + timedelta(milliseconds=1)
    assert events.filter(later).collect()["offset"].to_list() == [4]
    with pytest.raises(FileNotFoundError):
        events.collect()


@pytest.mark.slow
@pytest.mark.requirement("X15")
def test_of_iceberg_the_day_is_hidden_and_a_filter_opens_no_other(around_midnight: Any, tmp_path: Path) -> None:
    run(around_midnight, "--to", tmp_path, format="iceberg")

    files = iceberg_files(tmp_path, "things")
    assert {file.day: offsets(file.path) for file in files} == DAYS
    assert read_back(tmp_path, "iceberg") == stored(around_midnight)
    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        table = catalog.load_table((NAMESPACE, "things"))
        [field] = table.spec().fields
        assert (field.name, field.transform) == ("day", DayTransform())
        assert table.schema().find_field(field.source_id).name == "timestamp"
        assert "day" not in table.schema().column_names

        Path(files[0].path).unlink()
        scan = table.scan(f"timestamp >= '{MIDNIGHT.isoformat()}'")
        assert [task.file.file_path.removeprefix("file://") for task in scan.plan_files()] == [files[1].path]
        assert sorted(scan.to_arrow()["offset"].to_pylist()) == [3, 4]
        with pytest.raises(FileNotFoundError):
            table.scan().to_arrow()


@pytest.mark.parametrize("format", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_small_files_are_merged_within_a_day(around_midnight: Any, tmp_path: Path, format: str) -> None:
    run(around_midnight, "--to", tmp_path, "--part", 1, format=format)

    run(around_midnight, "--to", tmp_path, "--compact", format=format)

    files = delta_files(tmp_path / "things") if format == "delta" else iceberg_files(tmp_path, "things")
    assert {file.day: sorted(offsets(file.path)) for file in files} == DAYS
