"""`export_events --upsert`: one row for each key, with its newest event, whatever else writes."""

import json
import random
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_events import Draft, publish_many
from django_events.exporting.tables.delta_states import DeltaStates
from django_events.exporting.tables.iceberg_catalogs import NAMESPACE, in_folder
from django_events.exporting.tables.iceberg_states import IcebergStates
from django_events.exporting.tables.table import Conflict, Mark
from django_events.exporting.writing import SCHEMA
from django_events.operations import erase
from tests.integration.exporting.test_table_exports import set_back
from tests.spark.test_batch import HOSTILE, stored
from tests.spark.test_export import incarnation
from tests.support.fix_topics import compact_topic
from tests.support.logs import move
from tests.support.publishing_app.models import Account
from tests.support.tables import files_of, read_back, run

pytestmark = pytest.mark.usefixtures("transactional_db")

Log = Callable[..., Any]
BOTH = pytest.mark.parametrize("format", ["delta", "iceberg"])
ICEBERG = pytest.param("iceberg", marks=pytest.mark.slow)
FORMATS = pytest.mark.parametrize("format", ["delta", ICEBERG])


def publish(topic: Any, *drafts: Draft) -> None:
    with transaction.atomic():
        publish_many(topic, drafts)
    move()


def states(topic: Any, *deletes: str) -> list[dict[str, Any]]:
    """The newest event of each key, by the log and without a table."""
    newest = {row["key"]: row for row in stored(topic) if row["key"] is not None}
    return [
        row
        for row in sorted(newest.values(), key=lambda row: row["offset"])
        if row["type"] not in deletes and not (row["body"] is None and row["value"] in (None, "null"))
    ]


@FORMATS
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_table_has_the_newest_event_of_each_key(log: Log, tmp_path: Path, format: str, seed: int) -> None:
    rng = random.Random(seed)

    def some(count: int) -> list[Draft]:
        return [drawn(rng) for _ in range(count)]

    topic = log(*some(60), partitions=3)
    words = (topic, "--to", tmp_path, "--upsert", "--deletes", "gone", "--part", 25)
    run(*words, format=format)
    assert read_back(tmp_path, format) == states(topic, "gone")
    for count in (1, 30, 7):
        publish(topic, *some(count))
        run(*words, format=format)
        assert read_back(tmp_path, format) == states(topic, "gone")
    assert run(*words, format=format).startswith("Nothing to export")


def drawn(rng: random.Random) -> Draft:
    key = rng.choice(["a", "b", "it's", '"', "d" * 300, "é\u2028", None, "", *map(str, range(10))])
    kind = rng.choice(["set", "set", "set", "gone"])
    if rng.random() < 0.1:
        return Draft(body=b"\0\xff", key=key, type=kind)
    return Draft(value=rng.choice([*HOSTILE[:5], None, 1]), key=key, type=kind)


@FORMATS
def test_what_deletes_no_row_moves_the_mark(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(Draft(value=None, key="never"), Draft(value=1))
    said = run(topic, "--to", tmp_path, "--upsert", format=format)

    assert "Events without a key, which no row stands for: 1." in said
    assert read_back(tmp_path, format) == []
    assert run(topic, "--to", tmp_path, "--upsert", "--compact", format=format).startswith("Nothing to export")
    publish(topic, Draft(value=2, key="k"), Draft(value=None, key="never"))
    run(topic, "--to", tmp_path, "--upsert", format=format)
    publish(topic, Draft(value=None, key="other"))
    assert run(topic, "--to", tmp_path, "--upsert", format=format).startswith("Exported 1 events")
    assert run(topic, "--to", tmp_path, "--upsert", format=format).startswith("Nothing to export")
    assert read_back(tmp_path, format) == states(topic)


@FORMATS
@pytest.mark.requirement("X15")
def test_states_of_captured_changes_are_the_rows_of_the_table(tmp_path: Path, format: str) -> None:
    """Whatever has changed it: the ORM, a bulk, or SQL of another client."""
    words = ("accounts", "--to", tmp_path, "--upsert", "--deletes", "account.deleted")
    with transaction.atomic():
        made = Account.objects.bulk_create(Account(balance=n, iban="DE02", note=f"{n}'s") for n in range(3))
    exported(*words, format=format)
    assert said_by(tmp_path, format) == rows_of_accounts()

    ada, bob, eve = (one.pk for one in made)
    made[0].balance, made[0].note = Decimal("7.25"), None
    made[0].save()
    made[1].delete()
    exported(*words, format=format)
    assert said_by(tmp_path, format) == rows_of_accounts() and len(rows_of_accounts()) == 2

    with connection.cursor() as cursor:
        cursor.execute("UPDATE publishing_app_account SET balance = balance + 1, pin = '1234'")
        cursor.execute("DELETE FROM publishing_app_account WHERE id = %s", [eve])
        cursor.execute("INSERT INTO publishing_app_account (id, balance) VALUES (%s, 5)", [bob])  # it comes back
        cursor.execute("UPDATE publishing_app_account SET id = -id WHERE id = %s", [ada])  # another row
    exported(*words, format=format)
    assert said_by(tmp_path, format) == rows_of_accounts()
    assert set(said_by(tmp_path, format)) == {str(-ada), str(bob)}

    Account.objects.all().delete()
    exported(*words, format=format)
    assert said_by(tmp_path, format) == rows_of_accounts() == {}


@FORMATS
def test_without_a_type_that_deletes_a_captured_row_stays_as_it_was(tmp_path: Path, format: str) -> None:
    account = Account.objects.create(balance=3)
    key = str(account.pk)
    account.delete()

    exported("accounts", "--to", tmp_path, "--upsert", format=format)

    [row] = read_back(tmp_path, format, "accounts")
    assert (row["type"], row["key"], json.loads(row["value"])["balance"]) == ("account.deleted", key, "3.00")


def exported(*words: Any, format: str) -> str:
    move()
    return run(*words, format=format)


def said_by(folder: Path, format: str) -> dict[str, Any]:
    """What the table says of each account, but for what was changed by the event."""
    rows = {row["key"]: json.loads(row["value"]) for row in read_back(folder, format, "accounts")}
    for row in rows.values():
        row.pop("changed", None)
    return rows


def rows_of_accounts() -> dict[str, Any]:
    """The rows of the captured table, as its events say them: `pin` not at all, and `iban` masked."""
    return {
        str(one.pk): {
            "id": one.pk,
            "owner_id": one.owner_id,
            "balance": str(one.balance),
            "iban": one.iban and "***",
            "note": one.note,
            "seen": one.seen,
        }
        for one in Account.objects.all()
    }


@FORMATS
@pytest.mark.requirement("X15")
def test_what_is_erased_is_no_state(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=f"Sesame{n % 5}", key=f"k{n % 5}") for n in range(20)))
    words = (topic, "--to", tmp_path, "--upsert")
    run(*words, format=format)
    erase(topic, key="k0", reason="asked for")
    erase(topic, key="k1", reason="asked for", forget_key=True)
    erase(topic, ids=[18], reason="asked for")
    publish(topic, Draft(value="again", key="k0"))

    assert "Rows that were blanked, by 3 erasures: 2." in run(*words, "--erase", format=format)

    assert [(row["key"], row["value"]) for row in read_back(tmp_path, format)] == [
        ("k3", '"Sesame3"'),
        ("k4", '"Sesame4"'),
        ("k0", '"again"'),
    ]
    assert "blanked" not in run(*words, "--erase", format=format)


@FORMATS
def test_a_compacted_topic_has_the_same_states(log: Log, tmp_path: Path, format: str) -> None:
    drafts = (Draft(value=n if n % 3 else None, key=str(n % 7)) for n in range(450))
    topic = log(*drafts, segment_size=100, compact=True)
    run(topic, "--to", tmp_path / "before", "--upsert", format=format)
    compact_topic(topic)
    run(topic, "--to", tmp_path / "after", "--upsert", format=format)

    assert read_back(tmp_path / "before", format) == read_back(tmp_path / "after", format) == states(topic)


@BOTH
@pytest.mark.requirement("X15")
def test_of_two_that_upsert_at_the_same_point_one_fails(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(Draft(value=1, key="a"))
    run(topic, "--to", tmp_path, "--upsert", format=format)
    publish(topic, Draft(value=2, key="a"), Draft(value=2, key="b"))
    run(topic, "--to", tmp_path / "rows", format=format)
    events = rows_of(tmp_path / "rows", format, topic)
    first, second = (table_of(tmp_path, format, topic) for _ in range(2))
    with closing(first), closing(second):
        mark = first.mark()
        assert mark == second.mark() == Mark(incarnation(topic), 2)
        first.append(events, Mark(mark.incarnation, 4))
        for late in (events, []):
            with pytest.raises(Conflict):
                second.append(late, Mark(mark.incarnation, 4))
    assert read_back(tmp_path, format) == states(topic)


@FORMATS
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("last", ["a tombstone", "no key", "erased"])
def test_states_whose_newest_event_has_no_row_are_whole(log: Log, tmp_path: Path, format: str, last: str) -> None:
    topic = log(Draft(value=1, key="a"), Draft(value=1, key="b"))
    words = (topic, "--to", tmp_path, "--upsert")
    run(*words, format=format)
    if last == "erased":
        erase(topic, ids=[2], reason="asked for")
        run(*words, "--erase", format=format)
    else:
        publish(topic, Draft(value=None, key="b") if last == "a tombstone" else Draft(value=1))
        run(*words, format=format)
    remove_history(tmp_path, format, topic)
    publish(topic, Draft(value=2, key="a"))

    assert run(*words, format=format).startswith("Exported 1 events")

    assert read_back(tmp_path, format) == states(topic)
    remove_history(tmp_path, format, topic)
    for left in ("", "a"):
        delete(tmp_path, format, topic, keys_but=left)
        remove_history(tmp_path, format, topic)
        with pytest.raises(CommandError, match=r"its newest row isn't the one that it had then\. .* with --allow-loss"):
            run(*words, format=format)
        run(*words, "--allow-loss", format=format)
        assert run(*words, format=format).startswith("Nothing to export")
        publish(topic, Draft(value=left, key="a"), Draft(value=left, key="c"))
        run(*words, format=format)


@FORMATS
def test_states_that_were_set_back_over_a_deletion_are_refused(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(Draft(value=1, key="a"), Draft(value=1, key="b"))
    words = (topic, "--to", tmp_path, "--upsert")
    run(*words, format=format)
    before = 1 if format == "delta" else len(snapshots(tmp_path, topic))
    publish(topic, Draft(value=None, key="b"))
    run(*words, format=format)
    set_back(tmp_path, format, topic, to=before)
    remove_history(tmp_path, format, topic)

    with pytest.raises(CommandError, match="was set back to an earlier version, or its newest rows"):
        run(*words, format=format)


def delete(folder: Path, format: str, topic: Any, *, keys_but: str) -> None:
    """Delete rows by another tool."""
    if format == "delta":
        DeltaTable(f"{folder}/{topic}").delete(f"key <> '{keys_but}'")
        return
    with closing(in_folder(str(folder)).catalog) as catalog:
        catalog.load_table((NAMESPACE, str(topic))).delete(f"key <> '{keys_but}'")


def remove_history(folder: Path, format: str, topic: Any) -> None:
    """Merge files and remove older versions, as another tool does."""
    if format == "delta":
        table = DeltaTable(f"{folder}/{topic}")
        rows = table.to_pyarrow_table()
        write_deltalake(table, rows, mode="overwrite")
        table.create_checkpoint()
        for version in range(table.version()):
            (folder / f"{topic}/_delta_log/{version:020d}.json").unlink(missing_ok=True)
        return
    with closing(in_folder(str(folder)).catalog) as catalog:
        known = catalog.load_table((NAMESPACE, str(topic)))
        if (rows := known.scan().to_arrow()).num_rows:
            known.overwrite(rows)
        keep = known.refresh().current_snapshot().snapshot_id
        others = [one.snapshot_id for one in known.metadata.snapshots if one.snapshot_id != keep]
        known.maintenance.expire_snapshots().by_ids(others).commit()


def snapshots(folder: Path, topic: Any) -> list[Any]:
    with closing(in_folder(str(folder)).catalog) as catalog:
        return list(catalog.load_table((NAMESPACE, str(topic))).metadata.snapshots)


def table_of(folder: Path, format: str, topic: Any) -> Any:
    if format == "delta":
        return DeltaStates(f"{folder}/{topic}", str(topic), incarnation(topic))
    return IcebergStates(in_folder(str(folder)), str(topic), incarnation(topic))


def rows_of(folder: Path, format: str, topic: Any) -> list[Any]:
    """The events behind the first one, by a table that has all of them."""
    found = pa.concat_tables(pq.read_table(file, partitioning=None) for file in files_of(folder, format))
    return found.select(SCHEMA.names).cast(SCHEMA).sort_by("offset").slice(1).combine_chunks().to_batches()


@FORMATS
def test_a_table_of_events_and_one_of_states_are_two(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(Draft(value=1, key="a"))
    run(topic, "--to", tmp_path / "states", "--upsert", format=format)
    run(topic, "--to", tmp_path / "events", format=format)
    publish(topic, Draft(value=2, key="a"))

    with pytest.raises(CommandError, match="has a row for each key, by --upsert"):
        run(topic, "--to", tmp_path / "states", format=format)
    with pytest.raises(CommandError, match=r"has a row for each event\. Leave --upsert out"):
        run(topic, "--to", tmp_path / "events", "--upsert", format=format)


@FORMATS
def test_small_files_are_merged(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n, key=str(n)) for n in range(50)))
    words = (topic, "--to", tmp_path, "--upsert")
    run(*words, "--part", 10, format=format)
    assert len(files_of(tmp_path, format)) == 5

    assert "Files that were merged: 4." in run(*words, "--compact", format=format)

    assert len(files_of(tmp_path, format)) == 1
    publish(topic, Draft(value="new", key="7"), Draft(value=None, key="8"))
    run(*words, format=format)
    assert read_back(tmp_path, format) == states(topic)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "parquet", "--upsert"], "--upsert is for --format delta or iceberg"),
        (["--format", "delta", "--deletes", "x"], "--deletes is for --upsert"),
    ],
)
def test_what_cannot_be_upserted_is_said(log: Log, tmp_path: Path, words: list[str], said: str) -> None:
    topic = log(Draft(value=1, key="a"))
    with pytest.raises(CommandError, match=said) as raised:
        call_command("export_events", str(topic), "--to", str(tmp_path / "out"), *words)
    assert raised.value.returncode == 2
