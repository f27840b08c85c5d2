"""The journal of an export: what can't have been written by one is refused, never guessed at."""

from typing import Any

import pytest

from django_events.exceptions import ExportRefused
from django_events.spark import journal
from django_events.spark.journal import Journal, Part

PLANNED = {
    "state": "planned",
    "topic": "things",
    "incarnation": "i",
    "start": 1,
    "end": 51,
    "format": "parquet",
    "by": ["day"],
}
DONE = {**PLANNED, "state": "done", "rows": 50}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A journal with these records, without Spark."""

    def reading(*records: dict[str, Any], folders: bool = True) -> Journal:
        monkeypatch.setattr(journal.Records, "read", lambda self: list(records))
        monkeypatch.setattr(journal, "exists", lambda spark, path: folders and path == "/data/topic=*")
        return Journal(None, "/data")  # type: ignore[arg-type]

    return reading


def test_records_come_in_any_order(read: Any) -> None:
    part = Part(topic="things", incarnation="i", start=1, end=51, format="parquet", by=("day",))

    found = read(DONE, PLANNED)

    assert found.planned == [part]
    assert found.done == {part: 50}
    assert found.unfinished == []


@pytest.mark.parametrize(
    "record",
    [
        {},
        {**PLANNED, "state": "gone"},
        {**PLANNED, "state": None},
        {**PLANNED, "start": "1"},
        {**PLANNED, "start": True},
        {**PLANNED, "start": 51},
        {**PLANNED, "start": 0},
        {**PLANNED, "by": "day"},
        {**PLANNED, "topic": None},
        {name: value for name, value in PLANNED.items() if name != "incarnation"},
        {**DONE, "rows": None},
        {**DONE, "rows": 51},
        {name: value for name, value in DONE.items() if name != "rows"},
        {**DONE, "end": 41, "rows": 40},
    ],
)
def test_a_record_that_no_export_writes_is_damage(read: Any, record: dict[str, Any]) -> None:
    with pytest.raises(ExportRefused, match="/data/_django_events/journal is damaged, or something else wrote it"):
        read(PLANNED, DONE, record)


def test_events_without_a_journal_are_not_written_again(read: Any) -> None:
    with pytest.raises(ExportRefused, match="no journal that says what is in them"):
        read()
    assert read(folders=False).planned == []
