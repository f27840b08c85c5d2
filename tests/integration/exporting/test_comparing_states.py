"""`events verify --against` a table of states: each key's row is its newest event, or the difference has a name."""

import random
import warnings
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_events import Draft, publish_many
from django_events.exporting import comparing_states
from django_events.exporting.comparing_states import StatesComparison
from django_events.exporting.tables.iceberg_catalogs import NAMESPACE, in_folder
from django_events.operations import erase
from tests.integration.exporting.test_comparing import topic_id, verify
from tests.integration.exporting.test_upserts import drawn, states
from tests.spark.test_batch import drop_first_segment, stored
from tests.support.fix_topics import compact_topic
from tests.support.logs import move
from tests.support.tables import read_back, run

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X15")]

FILLERS = [Draft(value=0)] * 90  # events without a key
Log = Callable[..., Any]
Row = dict[str, Any]
BOTH = pytest.mark.parametrize("format", ["delta", "iceberg"])
FORMATS = pytest.mark.parametrize("format", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])


def publish(topic: Any, *drafts: Draft) -> None:
    with transaction.atomic():
        publish_many(topic, drafts)
    move()


def upsert(topic: Any, to: Path, *words: Any, format: str) -> str:
    return run(topic, "--to", to, "--upsert", *words, format=format)


def rewrite(to: Path, topic: Any, format: str, change: Callable[[list[Row]], list[Row]]) -> None:
    """Do to the rows what no export does, by another tool."""
    if format == "delta":
        table = DeltaTable(f"{to}/{topic}")
        there = table.to_pyarrow_table()
        write_deltalake(table, pa.Table.from_pylist(change(there.to_pylist()), there.schema), mode="overwrite")
        return
    with closing(in_folder(str(to)).catalog) as catalog:
        known = catalog.load_table((NAMESPACE, str(topic)))
        there = known.scan().to_arrow()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there was no row
            known.overwrite(pa.Table.from_pylist(change(there.to_pylist()), there.schema))


def rows_of(to: Path, topic: Any, format: str) -> dict[int, Row]:
    """The events of a table that has all of them, as rows."""
    if format == "delta":
        found = DeltaTable(f"{to}/{topic}").to_pyarrow_table().drop_columns("day")
    else:
        with closing(in_folder(str(to)).catalog) as catalog:
            found = catalog.load_table((NAMESPACE, str(topic))).scan().to_arrow()
    return {row["offset"]: row for row in found.to_pylist()}


def kinds(said: dict[str, Any]) -> list[tuple[str, int | None]]:
    return sorted(((one["kind"], one["id"]) for one in said["findings"]), key=str)


@BOTH
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_table_that_has_the_newest_of_each_key_is_proved(log: Log, tmp_path: Path, format: str, seed: int) -> None:
    rng = random.Random(seed)
    topic = log(*(drawn(rng) for _ in range(60)), partitions=3)
    for count in (40, 1, 30):
        upsert(topic, tmp_path, "--deletes", "gone", "--part", 25, format=format)
        publish(topic, *(drawn(rng) for _ in range(count)))

        said, code = verify(tmp_path)

        assert (said["proved"], code, said["findings"], said["notes"]) == (True, 0, [], [])
        [one] = said["topics"]
        assert (one["topic"], one["kind"], one["first_id"]) == (str(topic), "states", 1)
        assert (one["events"], one["not_compared"]) == (len(read_back(tmp_path, format)), count)
    upsert(topic, tmp_path, "--deletes", "gone", format=format)
    assert verify(tmp_path)[0]["events"] == len(states(topic, "gone"))


@BOTH
def test_each_difference_is_told_by_its_address(log: Log, tmp_path: Path, format: str) -> None:
    """Of `a` the newest is 4, of `b` 5, of `c` the tombstone 6, of `d` 7 that deletes, and of `e` 8."""
    values = [1, 2, 3, 4, 5, None, 7, 8]
    topic = log(
        *(Draft(value=v, key=k, type="gone" if k == "d" else "set") for v, k in zip(values, "abcabcde", strict=True))
    )
    copy, all_of_them = tmp_path / "copy", tmp_path / "events"
    upsert(topic, copy, "--deletes", "gone", format=format)
    run(topic, "--to", all_of_them, format=format)
    of = rows_of(all_of_them, topic, format)
    publish(topic, Draft(value=9, key="f"))
    whole = [of[4], of[5], of[8]]

    for rows, told in (
        (whole, []),
        ([of[4], of[8]], [("missing", 5)]),
        ([], [("missing", 4), ("missing", 5), ("missing", 8)]),
        ([of[1], of[5], of[8]], [("not newest", 1)]),
        ([*whole, of[1]], [("not newest", 1), ("twice", 1)]),
        ([*whole, of[5]], [("twice", 5)]),
        ([*whole, of[3]], [("not deleted", 3)]),
        ([*whole, of[6]], [("not deleted", 6)]),
        ([*whole, of[7]], [("not deleted", 7)]),
        ([*whole, {**of[8], "offset": 9, "key": "f"}], [("strange", 9)]),  # the table was not given it
        ([*whole, {**of[8], "offset": 0, "key": "f"}], [("strange", 0)]),
        ([*whole, {**of[8], "key": None}], [("strange", None)]),
        ([*whole, {**of[8], "offset": None, "key": "x"}], [("strange", None)]),
        ([of[4], of[5], {**of[8], "value": "0"}], [("differs", 8)]),
        ([of[4], of[5], {**of[8], "key": "x"}], [("differs", 8), ("missing", 8)]),
        ([of[4], of[5], {**of[8], "offset": 7}], [("not newest", 7)]),
    ):
        rewrite(copy, topic, format, lambda there, rows=rows: rows)
        said, code = verify(copy)
        assert kinds(said) == told, rows
        assert (said["proved"], code) == ((False, 1) if told else (True, 0))


@FORMATS
def test_rows_whose_events_expired_are_counted(log: Log, tmp_path: Path, format: str) -> None:
    """Of ten keys, five have no other event than the one that is gone."""
    topic = log(*FILLERS, *(Draft(value=n, key=f"k{n}") for n in range(10)), segment_size=100)
    upsert(topic, tmp_path / "before", format=format)
    run(topic, "--to", tmp_path / "events", format=format)
    publish(topic, *(Draft(value=n, key=f"k{n}") for n in range(5)))
    upsert(topic, tmp_path / "before", format=format)
    of = rows_of(tmp_path / "events", topic, format)
    drop_first_segment(topic)

    said, code = verify(tmp_path / "before")

    assert (said["proved"], code, said["findings"]) == (True, 0, [])
    assert (said["topics"][0]["expired"], said["topics"][0]["events"]) == (5, 5)
    for rows, told in (
        ([of[91]], [("not newest", 91), ("twice", 91)]),  # the log has a newer event of that key
        ([of[100]], [("twice", 100)]),  # and of this one none
        ([{**of[100], "offset": 99}], [("twice", 99)]),
    ):
        rewrite(tmp_path / "before", topic, format, lambda there, rows=rows: [*there, *rows])
        found, code = verify(tmp_path / "before")
        assert (kinds(found), code) == (told, 1)
        rewrite(tmp_path / "before", topic, format, lambda there, rows=rows: there[: -len(rows)])
    assert verify(tmp_path / "before")[0]["proved"]
    rewrite(tmp_path / "before", topic, format, lambda there: [row for row in there if row["key"] != "k1"])
    assert kinds(verify(tmp_path / "before")[0]) == [("missing", 102)]


@FORMATS
@pytest.mark.parametrize("partitions", [1, 3])
def test_what_compaction_removed_is_no_difference(log: Log, tmp_path: Path, format: str, partitions: int) -> None:
    """Of each partition compaction keeps the last event of its segments, though a newer one of its key came."""
    of_key = [Draft(value=n if n % 3 else None, key=str(n % 7)) for n in range(250)]
    topic = log(*of_key, segment_size=100, compact=True, partitions=partitions)
    upsert(topic, tmp_path, "--deletes", "gone", format=format)
    there = len(read_back(tmp_path, format))
    again = [Draft(value=n, key=str(n % 6), type=("gone", "set")[n % 2]) for n in range(250)]
    publish(topic, *again, *(Draft(value=1, key="7") for _ in range(10)))
    compact_topic(topic)

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["findings"]) == (True, 0, [])
    [one] = said["topics"]
    assert one["events"] + one["compacted"] == there and one["compacted"]
    upsert(topic, tmp_path, "--deletes", "gone", format=format)
    said, code = verify(tmp_path)
    assert (said["proved"], code, said["findings"], said["topics"][0]["compacted"]) == (True, 0, [], 0)
    assert said["topics"][0]["events"] == len(read_back(tmp_path, format))


@FORMATS
def test_a_key_whose_newest_event_compaction_removed_is_not_missing(log: Log, tmp_path: Path, format: str) -> None:
    """Compaction leaves a segment as it is of which most events stay, and so event 7, though 150 came after it.

    Both are of key `k`, and the table was given both. Event 150, by which the key is gone, goes when `k` comes back.
    """

    def some(n: int) -> Draft:
        return Draft(value=n, key=f"h{n % 10}")

    first = [Draft(value=n, key="k" if n == 7 else f"only{n}") for n in range(1, 101)]
    second = [Draft(value=n, key=f"only{n}") if n in (110, 120) else some(n) for n in range(101, 201)]
    second[150 - 101] = Draft(value=1, key="k", type="gone")
    topic = log(*first, *second, segment_size=100, compact=True)
    upsert(topic, tmp_path, "--deletes", "gone", format=format)
    assert "k" not in {row["key"] for row in read_back(tmp_path, format)}
    publish(topic, *map(some, range(201, 300)), Draft(value=2, key="k"), *map(some, range(301, 311)))
    compact_topic(topic)
    left = {row["offset"] for row in stored(topic)}
    assert 7 in left and 150 not in left

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["findings"]) == (True, 0, [])
    assert (said["topics"][0]["events"], said["topics"][0]["compacted"]) == (101, 10)


@FORMATS
@pytest.mark.parametrize("forget", [False, True])
def test_what_is_erased_is_said_until_the_table_follows(log: Log, tmp_path: Path, format: str, forget: bool) -> None:
    topic = log(*(Draft(value=n, key=f"k{n % 3}") for n in range(9)))
    upsert(topic, tmp_path, format=format)
    erase(topic, key="k1", reason="asked for", forget_key=forget)
    erase(topic, ids=[1, 9], reason="asked for")

    said, code = verify(tmp_path)

    assert (said["proved"], code, said["findings"]) == (True, 0, [])
    [note] = said["notes"]
    assert note.startswith(f"2 events of {topic} that are erased in the log have their payloads in")
    assert f"the first is {topic}/8. Run export_events with --erase." in note
    before: list[Row] = []
    rewrite(tmp_path, topic, format, lambda there: before.extend(there) or there)
    upsert(topic, tmp_path, "--erase", format=format)
    said, code = verify(tmp_path)
    assert (said["proved"], code, said["findings"], said["notes"]) == (True, 0, [], [])
    assert said["topics"][0]["events"] == 1
    rewrite(tmp_path, topic, format, lambda there: before)
    said, code = verify(tmp_path)
    assert (kinds(said), code) == ([("not erased", 8), ("not erased", 9)], 1)


@FORMATS
def test_what_is_erased_or_expires_meanwhile_is_no_difference(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*FILLERS, *(Draft(value=n, key=f"k{n}") for n in range(30)), segment_size=100)
    upsert(topic, tmp_path, format=format)
    rewrite(tmp_path, topic, format, lambda there: [row for row in there if row["key"] != "k25"])
    read = comparing_states.NewestEvents.read

    def and_then(self: Any, *arguments: Any) -> None:
        read(self, *arguments)
        drop_first_segment(topic)
        erase(topic, key="k20", reason="asked for", forget_key=True)
        erase(topic, ids=[116, 117], reason="asked for")

    monkeypatch.setattr(comparing_states.NewestEvents, "read", and_then)
    said, code = verify(tmp_path)

    assert (said["proved"], code, said["findings"]) == (True, 0, [])
    assert (said["topics"][0]["events"], said["topics"][0]["expired"]) == (19, 10)
    assert said["notes"][0].startswith(f"2 events of {topic} that are erased in the log have their payloads in")


@FORMATS
def test_rows_and_keys_are_taken_some_at_a_time(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n, key=str(n)) for n in range(60)))
    upsert(topic, tmp_path, "--part", 20, format=format)
    for name in ("LEAST", "MOST", "NAMES_AT_ONCE"):
        monkeypatch.setattr(comparing_states, name, 7)
    pieces, compared = [], StatesComparison._compare_rows
    monkeypatch.setattr(
        StatesComparison, "_compare_rows", lambda self, rows: pieces.append(rows.num_rows) or compared(self, rows)
    )
    assert verify(tmp_path)[0]["topics"][0]["events"] == 60
    assert max(pieces) <= 7 and sum(pieces) == 60
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE \"django_events_event_{topic_id(topic)}\" SET value = '0' WHERE id IN (7, 8, 50)")
    rewrite(tmp_path, topic, format, lambda there: [row for row in there if row["offset"] > 30] * 2)

    said, code = verify(tmp_path)

    assert code == 1
    assert [(kind, event_id) for kind, event_id in kinds(said) if kind == "differs"] == [("differs", 50)] * 2
    assert {event_id for kind, event_id in kinds(said) if kind == "missing"} == set(range(1, 21))
    assert {event_id for kind, event_id in kinds(said) if kind == "twice"} <= set(range(31, 61))
    assert said["more"] == {"missing": 10, "twice": 10}


def test_where_a_table_begins_and_how_much_of_it_is_wanted(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n, key=str(n % 10)) for n in range(40)))
    upsert(topic, tmp_path, "--since", 36, format="delta")

    said, code = verify(tmp_path)

    assert (code, said["topics"][0]["first_id"], said["topics"][0]["events"]) == (0, 36, 5)
    assert "begins at 36, and the log of" in said["notes"][0]
    publish(topic, Draft(value=1, key="5"))
    upsert(topic, tmp_path, format="delta")
    rewrite(tmp_path, topic, "delta", lambda there: [{**row, "value": "0"} for row in there])
    assert kinds(verify(tmp_path)[0]) == [("differs", n) for n in (37, 38, 39, 40, 41)]
    said, code = verify(tmp_path, "--last", 2)
    assert (kinds(said), said["topics"][0]["first_id"]) == ([("differs", 40), ("differs", 41)], 40)


@FORMATS
def test_types_that_delete_stay_what_they_were(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(Draft(value=1, key="a"), Draft(value=2, key="a", type="gone"))
    upsert(topic, tmp_path, "--deletes", "gone", "--deletes", "left", "--deletes", "gone", format=format)
    publish(topic, Draft(value=3, key="b"))

    with pytest.raises(CommandError, match=r"go by events of type 'gone', 'left'\. In this run .* by those of no type"):
        upsert(topic, tmp_path, format=format)
    upsert(topic, tmp_path, "--deletes", "left", "--deletes", "gone", format=format)

    assert [row["key"] for row in read_back(tmp_path, format)] == ["b"]
    assert verify(tmp_path)[0]["proved"]


def test_what_is_proved_is_said_of_both_kinds(log: Log, tmp_path: Path) -> None:
    first, second = log(Draft(value=1, key="a"), name="one"), log(Draft(value=1, key="a"), name="two")
    upsert(first, tmp_path, format="delta")
    out = StringIO()
    call_command("events", "verify", "--against", str(tmp_path), stdout=out)
    assert f"Proved: {tmp_path} and the log have the same newest event of each key. 1 event compared" in out.getvalue()
    run(second, "--to", tmp_path, format="delta")

    out = StringIO()
    call_command("events", "verify", "--against", str(tmp_path), stdout=out)

    assert "the same events, each once, and the same newest event of each key. 2 events compared" in out.getvalue()
    assert [line.split()[:2] for line in out.getvalue().splitlines()[:3]] == [
        ["topic", "table"],
        ["one", "states"],
        ["two", "events"],
    ]


def test_a_table_without_keys_can_not_be_compared(log: Log, tmp_path: Path) -> None:
    topic = log(Draft(value=1, key="a"))
    upsert(topic, tmp_path, format="delta")
    table = DeltaTable(f"{tmp_path}/{topic}")
    rows = table.to_pyarrow_table().drop_columns("key")
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")

    with pytest.raises(CommandError, match="has no column 'key', so it can't be told which key a row is of"):
        verify(tmp_path)
