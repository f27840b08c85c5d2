"""`events verify --against`: what was exported and the log agree, or the first differences by their addresses."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.expressions import RawSQL
from pyiceberg.catalog.sql import SqlCatalog

from django_events import Draft
from django_events.exporting import comparing, event_files
from django_events.exporting.tables import iceberg_catalogs
from django_events.exporting.tables.iceberg_catalogs import NAMESPACE, in_folder
from django_events.exporting.writing import line_of
from django_events.models import Intervention, Topic
from django_events.operations import erase
from tests.spark.test_batch import HOSTILE, drop_first_segment, publish
from tests.support.fix_topics import compact_topic
from tests.support.local_exports import run as run_files
from tests.support.tables import run as run_tables

pytestmark = pytest.mark.usefixtures("transactional_db")

Log = Callable[..., Any]
FILES = ("parquet", "json")
SLOW = [pytest.param(format, marks=pytest.mark.slow) for format in ("delta", "iceberg")]
FORMATS = pytest.mark.parametrize("format", ["parquet", "json", *SLOW])
ALL = pytest.mark.parametrize("format", ["parquet", "json", "delta", "iceberg"])  # of the guarantees


def export(topic: Any, to: Path, *words: Any, format: str) -> str:
    if format in FILES:
        return run_files(topic, "--to", to, "--format", format, *words)
    return run_tables(topic, "--to", to, *words, format=format)


def verify(to: Path, *words: Any) -> tuple[dict[str, Any], int]:
    out, code = StringIO(), 0
    try:
        call_command("events", "verify", "--against", str(to), *map(str, words), "--format", "json", stdout=out)
    except SystemExit as ended:
        code = int(ended.code or 0)
    return json.loads(out.getvalue()), code


@ALL
@pytest.mark.requirement("X15")
def test_a_copy_that_has_what_the_log_has_is_proved(log: Log, tmp_path: Path, format: str) -> None:
    drafts = [Draft(value=value, type=f"t{n % 5}", key=str(n)) for n, value in enumerate(HOSTILE * 3)]
    topic = log(*drafts, Draft(body=b"\0\xff"), partitions=3)
    export(topic, tmp_path, "--part", 20, format=format)
    publish(topic, 1, 2)

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["findings"], said["notes"]) == (True, 0, [], [])
    [one] = said["topics"]
    assert (one["topic"], one["first_id"], one["last_id"]) == (str(topic), 1, len(drafts) + 1)
    assert (one["events"], one["not_compared"]) == (len(drafts) + 1, 2)


def change(to: Path, topic: Any, format: str, how: str) -> None:
    """Do to row 7 what no export does, by another tool."""
    if format == "delta":
        table = DeltaTable(f"{to}/{topic}")
        if how == "missing":
            table.delete("offset = 7")
        elif how == "twice":
            rows = table.to_pyarrow_table(filters=[("offset", "=", 7)])
            write_deltalake(table, rows, mode="append")
        elif how == "strange":
            table.update({"offset": "77"}, predicate="offset = 7")
        else:
            table.update({how: "'\"another\"'"}, predicate="offset = 7")
    elif format == "iceberg":
        with closing(in_folder(str(to)).catalog) as catalog:
            table = catalog.load_table((NAMESPACE, str(topic)))
            table.overwrite(changed(table.scan().to_arrow(), how))
    elif format == "json":
        [(file, rows)] = [(file, rows) for file, rows in lines_below(to) if any(row["offset"] == 7 for row in rows)]
        [row] = [row for row in rows if row["offset"] == 7]
        if how in ("missing", "twice"):
            rows = [one for one in rows if one is not row] if how == "missing" else [*rows, row]
        else:
            row.update({"offset": 77} if how == "strange" else {how: '"another"'})
        file.write_bytes(b"".join(map(line_of, rows)))
    else:
        [file] = [
            file for file in to.rglob("*.parquet") if 7 in pq.read_table(file, partitioning=None)["offset"].to_pylist()
        ]
        pq.write_table(changed(pq.read_table(file, partitioning=None), how), file)


def lines_below(to: Path) -> list[tuple[Path, list[Any]]]:
    return [(file, list(map(json.loads, file.read_bytes().splitlines()))) for file in to.rglob("part-*.json")]


def changed(rows: pa.Table, how: str) -> pa.Table:
    with duckdb.connect() as other:
        other.execute("SET TimeZone = 'UTC'")
        other.register("rows", rows)
        asked = {
            "missing": 'SELECT * FROM rows WHERE "offset" <> 7',
            "twice": 'SELECT * FROM rows UNION ALL SELECT * FROM rows WHERE "offset" = 7',
            "strange": 'SELECT * REPLACE (CASE WHEN "offset" = 7 THEN 77 ELSE "offset" END AS "offset") FROM rows',
        }.get(how, f'SELECT * REPLACE (CASE WHEN "offset" = 7 THEN \'"another"\' ELSE {how} END AS {how}) FROM rows')
        return other.sql(asked).to_arrow_table().cast(rows.schema)


@FORMATS
@pytest.mark.parametrize("how", ["missing", "twice", "strange", "value", "key", "type"])
def test_each_difference_is_told_by_its_address(log: Log, tmp_path: Path, format: str, how: str) -> None:
    topic = log(*(Draft(value=n, key=str(n)) for n in range(20)))
    export(topic, tmp_path, format=format)
    change(tmp_path, topic, format, how)

    said, code = verify(tmp_path, "--topic", topic)

    assert (said["proved"], code) == (False, 1)
    found = {(one["kind"], one["id"]) for one in said["findings"]}
    if how in ("missing", "twice"):
        assert found == {(how, 7)}
    elif how == "strange":
        assert found == {("missing", 7), ("strange", None)}
    else:
        assert found == {("differs", 7)}
        assert said["findings"][0]["what"] == f"Its {how} is not that of the log."
    assert said["topics"][0]["events"] == (19 if how in ("missing", "strange") else 20)


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_many_differences_are_counted_and_the_first_are_named(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(100)))
    export(topic, tmp_path, format=format)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE \"django_events_event_{topic_id(topic)}\" SET type = 'x' WHERE id > 50")

    said, code = verify(tmp_path)

    assert code == 1
    assert [one["id"] for one in said["findings"]] == list(range(51, 71))
    assert said["more"] == {"differs": 30}
    said, code = verify(tmp_path, "--last", 10)
    assert (said["topics"][0]["first_id"], [one["id"] for one in said["findings"]]) == (91, list(range(91, 101)))


def topic_id(topic: Any) -> int:
    return Topic.objects.get(name=str(topic)).pk


@FORMATS
def test_what_the_log_has_dropped_is_no_difference(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(150)), segment_size=100)
    export(topic, tmp_path, format=format)
    drop_first_segment(topic)

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["findings"]) == (True, 0, [])
    assert (said["topics"][0]["expired"], said["topics"][0]["events"]) == (100, 50)


@FORMATS
def test_what_is_erased_in_the_log_alone_is_said(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n, key=str(n % 3)) for n in range(9)))
    export(topic, tmp_path, format=format)
    erase(topic, key="1", reason="asked for")

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["findings"]) == (True, 0, [])
    assert f"3 events of {topic} that are erased in the log have their payloads in" in said["notes"][0]
    assert f"the first is {topic}/2. Run export_events with --erase." in said["notes"][0]


@pytest.mark.requirement("X15")
def test_what_came_back_after_it_was_erased_is_told_though_another_erasure_is_still_to_come(
    log: Log, tmp_path: Path
) -> None:
    topic = log(*(Draft(value=n, key=str(n % 3)) for n in range(9)))
    export(topic, tmp_path, format="parquet")
    [file] = tmp_path.rglob("part-*.parquet")
    before = file.read_bytes()
    erase(topic, key="1", reason="asked for")
    export(topic, tmp_path, "--erase", format="parquet")
    file.write_bytes(before)  # a backup of the files
    erase(topic, key="2", reason="asked for", forget_key=True)
    erase(topic, ids=[1, 2], reason="asked for")

    said, code = verify(tmp_path)

    assert (said["proved"], code) == (False, 1)
    # The last erasure names 2, too: `--erase` will blank it.
    assert [(one["kind"], one["id"]) for one in said["findings"]] == [("not erased", 5), ("not erased", 8)]
    [note] = said["notes"]
    assert note.startswith(f"5 events of {topic} that are erased in the log have their payloads in")
    assert f"the first is {topic}/1. Run export_events with --erase." in note


@pytest.mark.parametrize("why", ["its key can't be found", "it is at work"])
def test_what_an_erasure_will_reach_that_is_not_known_yet_is_no_difference(
    log: Log, tmp_path: Path, settings: Any, why: str
) -> None:
    topic = log(*(Draft(value=n, key=str(n % 3)) for n in range(9)))
    export(topic, tmp_path, format="parquet")
    erase(topic, key="1", reason="asked for")
    if why == "it is at work":
        Intervention.objects.update(details=RawSQL("details - 'until'", ()))
    else:
        settings.SECRET_KEY = "another"

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["findings"]) == (True, 0, [])
    assert f"3 events of {topic} that are erased in the log have their payloads in" in said["notes"][0]


def test_ids_between_what_two_runs_have_exported_are_said(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(40)))
    for since, until in ((1, 10), (21, 30), (36, 38)):
        run_files(topic, "--to", tmp_path, "--since", since, "--until", until)

    said, code = verify(tmp_path)

    assert (said["proved"], code) == (True, 0)
    assert said["notes"] == [
        f"{tmp_path}/topic={topic} has nothing of {topic} from 10 to 20, and 1 more gap: no run has exported that."
    ]


@pytest.mark.parametrize("format", ["delta", "iceberg"])
@pytest.mark.parametrize("since", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.requirement("X15")
def test_a_table_that_lost_its_first_rows_or_all_is_not_proved(
    log: Log, tmp_path: Path, format: str, since: int
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    export(topic, tmp_path, "--since", since, "--part", 4, format=format)
    publish(topic, 1, 2)
    assert verify(tmp_path)[0]["proved"]

    for last in (7, 10):
        delete_to(last, tmp_path, topic, format)
        said, code = verify(tmp_path)

        assert (said["proved"], code) == (False, 1)
        assert [one["kind"] for one in said["findings"]] == ["missing"] * (last - since + 1)
        assert [one["id"] for one in said["findings"]] == list(range(since, last + 1))
        [one] = said["topics"]
        assert (one["first_id"], one["last_id"], one["events"], one["not_compared"]) == (since, 10, 10 - last, 2)


def delete_to(last: int, to: Path, topic: Any, format: str) -> None:
    """Delete the first rows by another tool."""
    if format == "delta":
        DeltaTable(f"{to}/{topic}").delete(f'"offset" <= {last}')
        return
    with closing(in_folder(str(to)).catalog) as catalog:
        catalog.load_table((NAMESPACE, str(topic))).delete(f"offset <= {last}")


@pytest.mark.parametrize("format", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_what_is_not_exported_is_what_the_log_has(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    export(topic, tmp_path, "--until", 1, format=format)

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["topics"][0]["not_compared"]) == (True, 0, 10)


def test_a_place_without_an_export_is_refused(log: Log, tmp_path: Path) -> None:
    topic = log(Draft(value=1))
    with pytest.raises(CommandError, match="has no export") as raised:
        verify(tmp_path, "--topic", topic)
    assert raised.value.returncode == 1


@FORMATS
def test_what_compaction_removed_is_no_difference(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n, key=str(n % 7)) for n in range(450)), segment_size=100, compact=True)
    export(topic, tmp_path, format=format)
    compact_topic(topic)

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["findings"]) == (True, 0, [])
    assert said["topics"][0]["compacted"] == 400 - (said["topics"][0]["events"] - 50) > 300


@FORMATS
def test_ranges_are_compared_one_after_the_other(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n, key=str(n)) for n in range(50)))
    export(topic, tmp_path, "--part", 20, format=format)
    monkeypatch.setattr(comparing, "MOST", 7)
    assert verify(tmp_path)[0]["topics"][0]["events"] == 50
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE \"django_events_event_{topic_id(topic)}\" SET key = 'x' WHERE id IN (7, 8, 50)")

    said, code = verify(tmp_path)

    assert (code, [one["id"] for one in said["findings"]], said["topics"][0]["events"]) == (1, [7, 8, 50], 50)


def test_the_files_of_a_part_may_be_removed(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(40)))
    export(topic, tmp_path, "--part", 20, format="parquet")
    shutil.rmtree(next(tmp_path.glob("topic=*/ids=000000000001-*")))

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["topics"][0]["events"]) == (True, 0, 20)
    assert said["notes"] == [f"The files of {topic}, 1 to 20, were removed: not compared."]


@pytest.mark.parametrize(
    "line",
    [
        *(
            "null",
            "{",
            "[1]",
            '{"offset": "1"}',
            '{"key": "a"}',
            '{"offset": 1, "body": "."}',
            '{"offset": 1, "key": 1}',
        ),
        f'{{"offset": 1, "partition": {1 << 70}}}',
    ],
)
def test_a_line_that_is_no_event_is_named(log: Log, tmp_path: Path, line: str) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    export(topic, tmp_path, format="json")
    [(file, _)] = lines_below(tmp_path)
    file.write_text(f"{file.read_text()}{line}\n")

    with pytest.raises(CommandError, match=r"part-\S+ has a line that is no event\. Find out what wrote it there"):
        verify(tmp_path)


def test_of_json_only_lines_are_read_that_may_have_the_ids(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(50)))
    export(topic, tmp_path, format="json")
    [(file, rows)] = lines_below(tmp_path)
    monkeypatch.setattr(event_files, "LINES", 10)
    file.write_bytes(b"".join(map(line_of, [*rows[25:], {**rows[3], "value": None}, *rows[:3], *rows[4:25]])))

    said, code = verify(tmp_path)

    assert ([(one["kind"], one["id"]) for one in said["findings"]], code) == ([("differs", 4)], 1)
    parsed, opened = [], event_files.JsonEvents(file)
    monkeypatch.setattr(event_files.JsonEvents, "_parsed", lambda self, line: parsed.append(1) or json.loads(line))
    assert sorted(opened.read(["offset"], 45, 51)["offset"].to_pylist()) == list(range(45, 51))
    assert len(parsed) == 20  # of 50 lines


@pytest.mark.slow
def test_a_catalogue_of_ones_own_is_named(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"uri": f"sqlite:///{tmp_path}/own.db", "warehouse": f"file://{tmp_path}"}
    monkeypatch.setattr(iceberg_catalogs, "load_catalog", lambda name, **options: SqlCatalog(name, **where, **options))
    topic = log(*(Draft(value=n, key=str(n % 3)) for n in range(9)))
    words = ("--catalog", "prod")
    run_tables(topic, "--to", "analytics", *words, format="iceberg")
    erase(topic, key="1", reason="asked for")

    assert "by 1 erasure: 3." in run_tables(topic, "--to", "analytics", *words, "--erase", format="iceberg")

    said, code = verify(Path("analytics"), *words)
    assert (said["proved"], code, said["topics"][0]["events"], said["notes"]) == (True, 0, 9, [])
    with pytest.raises(CommandError, match="--catalog is for --against"):
        call_command("events", "verify", *words)
