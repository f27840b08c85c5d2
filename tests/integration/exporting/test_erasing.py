"""`export_events --erase`: what is erased in the log is blank in what was exported, and nothing brings it back."""

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import override_settings
from psycopg.conninfo import make_conninfo

from django_events import Draft, publish_many
from django_events.exceptions import Invalid
from django_events.exporting import erasing_files
from django_events.exporting.batches import Batches
from django_events.exporting.erasing_files import refuse_other_files
from django_events.exporting.erasures import KeyNames, begin_record, found
from django_events.exporting.local import LocalEngine
from django_events.exporting.parts import Parts
from django_events.exporting.storage import OfDisk
from django_events.exporting.tables import erasing
from django_events.exporting.tables.delta import DeltaEvents
from django_events.exporting.tables.iceberg import IcebergEvents
from django_events.exporting.tables.iceberg_catalogs import NAMESPACE, in_folder
from django_events.management.commands import export_events
from django_events.models import Intervention, Topic
from django_events.operating.erasing import api, pseudonyms
from django_events.operations import erase
from django_events.reading import topics
from django_events.reading.dsn import Dsn, fetch
from django_events.statements import log_table
from tests.integration.exporting.test_comparing import FILES, export, verify
from tests.integration.exporting.test_table_exports import expire_former, set_back, table_of
from tests.spark.rivals import end_locks
from tests.spark.test_batch import drop_first_segment, stored
from tests.support import local_exports, tables
from tests.support.disturbing import started, tried
from tests.support.logs import move
from tests.support.processes import wait_until
from tests.support.tables import files_of

pytestmark = pytest.mark.usefixtures("transactional_db")

Log = Callable[..., Any]
ALL = pytest.mark.parametrize("format", ["parquet", "json", "delta", "iceberg"])
OF_FILES = pytest.mark.parametrize("format", FILES)
TABLES = pytest.mark.parametrize("format", ["delta", "iceberg"])
ICEBERG = pytest.param("iceberg", marks=pytest.mark.slow)
SOME = pytest.mark.parametrize("format", ["delta", ICEBERG, pytest.param("parquet", marks=pytest.mark.slow)])
SECRET = "Sesame"


def drafts(count: int = 30) -> list[Draft]:
    return [Draft(value={"of": f"{SECRET}{n % 5}"}, key=f"k{n % 5}", metadata={"m": SECRET}) for n in range(count)]


def read_back(folder: Path, format: str) -> list[dict[str, Any]]:
    rows = local_exports.read_back(folder, format) if format in FILES else tables.read_back(folder, format)
    return without_times_of_erasures(rows)


def logged(topic: Any) -> list[dict[str, Any]]:
    return without_times_of_erasures(stored(topic))


def without_times_of_erasures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "metadata": "erased"} if row["metadata"].startswith('{"erased"') else row for row in rows]


def payloads(folder: Path, format: str) -> str:
    return json.dumps([[row["offset"], row["value"], row["metadata"]] for row in read_back(folder, format)])


@ALL
@pytest.mark.requirement("X15")
def test_what_is_erased_in_the_log_is_blank_in_the_copy(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts(), Draft(body=SECRET.encode(), key="k0"), Draft(value=None, key="k9"))
    export(topic, tmp_path, "--part", 10, format=format)
    erase(topic, key="k0", reason="asked for")
    erase(topic, key="k1", reason="asked for", forget_key=True)
    erase(topic, ids=[3, 4, 5, 18], reason="asked for")
    with transaction.atomic():
        publish_many(topic, [Draft(value="stays", key="k0")])
    move()

    said = export(topic, tmp_path, "--erase", format=format)

    assert "Rows that were blanked, by 3 erasures: 17." in said
    assert read_back(tmp_path, format) == logged(topic)
    assert f"{SECRET}0" not in payloads(tmp_path, format)
    assert "stays" in payloads(tmp_path, format)
    if format != "json":  # it isn't compared
        proved, code = verify(tmp_path)
        assert (proved["proved"], code, proved["notes"]) == (True, 0, [])
    record = Intervention.objects.get(action="erase_exported")
    assert (record.topic, record.details["rows"], record.details["finished"]) == (str(topic), 17, True)
    assert record.details["until"] == Intervention.objects.filter(action="erase").latest("pk").pk
    again = export(topic, tmp_path, "--erase", format=format)
    assert again.startswith("Nothing to export") and "blanked" not in again
    assert Intervention.objects.filter(action="erase_exported").count() == 1


@SOME
@pytest.mark.requirement("X15")
def test_what_the_log_has_dropped_is_erased_in_the_copy_too(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts(150), segment_size=100)
    export(topic, tmp_path, format=format)
    drop_first_segment(topic)
    erase(topic, key="k0", reason="asked for", forget_key=True)

    assert "by 1 erasure: 30." in export(topic, tmp_path, "--erase", format=format)

    assert f"{SECRET}0" not in payloads(tmp_path, format)
    assert "k0" not in {row["key"] for row in read_back(tmp_path, format)}
    assert verify(tmp_path)[0]["proved"]


@TABLES
@pytest.mark.requirement("X15")
def test_an_export_that_has_read_before_an_erasure_does_not_bring_it_back(
    log: Log, tmp_path: Path, dsn: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(10))
    export(topic, tmp_path, format=format)
    with transaction.atomic():
        publish_many(topic, drafts(10))
    move()
    kind = DeltaEvents if format == "delta" else IcebergEvents
    append, times = kind.append, list[int]()

    def late(self: Any, events: Any, mark: Any) -> None:
        read = list(events)
        times.append(1)
        if len(times) == 1:
            erase(topic, key="k0", reason="asked for")
            erase_without_lock(tmp_path, dsn, format, topic)
        append(self, iter(read), mark)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "append", late)
        export(topic, tmp_path, format=format)

    assert len(times) == 2
    assert read_back(tmp_path, format) == logged(topic)
    assert f"{SECRET}0" not in payloads(tmp_path, format)
    assert verify(tmp_path)[0]["proved"]


def erase_without_lock(folder: Path, dsn: str, format: str, topic: Any) -> None:
    """Another process that has taken the lock over."""
    table = table_of(folder, format, topic)
    with closing(table), Dsn(dsn).connected() as connected:
        [one] = topics.find(connected, topics.TopicChoice(names=(str(topic),)))
        table.mark()
        erasures = found(connected, one, after=table.erased(), names=names(topic))
        erasing.erase_in_table(table, str(topic), format, erasures)


def names(topic: Any) -> KeyNames:
    return KeyNames(pseudonyms.secret_names(), lambda key: pseudonyms.digests(str(topic), key))


@TABLES
@pytest.mark.requirement("X15")
def test_an_eraser_that_comes_second_begins_again_with_what_was_added(
    log: Log, tmp_path: Path, dsn: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(10))
    export(topic, tmp_path, format=format)
    erase(topic, key="k0", reason="asked for")
    kind = DeltaEvents if format == "delta" else IcebergEvents
    blank, times = kind.blank, list[int]()

    def beside_an_export(self: Any, *arguments: Any) -> int:
        times.append(1)
        if len(times) == 1:
            with transaction.atomic():
                publish_many(topic, drafts(10))
            move()
            end_locks()
            export(topic, tmp_path, format=format)
        return blank(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "blank", beside_an_export)
        with pytest.raises(CommandError, match="and with it the lock"):
            export(topic, tmp_path, "--erase", format=format)
    export(topic, tmp_path, "--erase", format=format)

    assert read_back(tmp_path, format) == logged(topic)
    assert verify(tmp_path)[0]["proved"]


@pytest.mark.requirement("X15")
@OF_FILES
@pytest.mark.parametrize("first", ["an export", "an eraser"])
def test_a_process_that_was_held_up_puts_nothing_back_into_files(
    log: Log, tmp_path: Path, first: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(10))
    export(topic, tmp_path, format=format)
    erase(topic, key="k1", reason="asked for")
    with transaction.atomic():
        publish_many(topic, drafts(10))
    move()
    times = list[int]()

    def meanwhile() -> None:
        times.append(1)
        if len(times) == 1:
            erase(topic, key="k0", reason="asked for")
            end_locks()
            export(topic, tmp_path, "--erase", format=format)

    write, replace = LocalEngine.write, os.replace

    def written_late(self: Any, *arguments: Any) -> int:
        rows = write(self, *arguments)
        meanwhile()
        return rows

    def replaced_late(source: Any, target: Any) -> None:
        meanwhile()
        replace(source, target)

    with monkeypatch.context() as patched:
        if first == "an export":
            patched.setattr(LocalEngine, "write", written_late)
        else:
            patched.setattr(erasing_files.os, "replace", replaced_late)
        with pytest.raises(CommandError, match=r"lock|taken"):
            export(topic, tmp_path, "--erase", format=format)

    assert read_back(tmp_path, format) == logged(topic)
    assert f"{SECRET}0" not in payloads(tmp_path, format)
    export(topic, tmp_path, "--erase", format=format)
    assert read_back(tmp_path, format) == logged(topic)
    assert local_exports.left_over(tmp_path) == []


@pytest.mark.requirement("X15")
@OF_FILES
def test_an_eraser_that_was_held_up_before_it_has_a_folder_puts_nothing_back(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run can't clear what isn't there, and is in the middle of its work when the first one reads on."""
    topic = log(*drafts(10))
    export(topic, tmp_path, format=format)
    erase(topic, key="k1", reason="asked for")
    first, begun, over = threading.current_thread(), threading.Event(), threading.Event()
    attempt, of_file, replace = Parts.attempt, erasing_files._erase, os.replace
    second = list[Any]()

    def is_first() -> bool:
        return threading.current_thread() is first

    def made_late(self: Parts) -> str:
        if is_first():
            erase(topic, key="k0", reason="asked for")
            end_locks()
            second.append(threads.submit(in_thread))
            assert begun.wait(60)
        return attempt(self)

    def read_beside(*arguments: Any) -> int:
        if not is_first():
            begun.set()
            over.wait(60)
        return of_file(*arguments)

    def replaced_late(source: Any, target: Any) -> None:
        if is_first():
            over.set()
            second[0].result(60)
        replace(source, target)

    def in_thread() -> str:
        try:
            return export(topic, tmp_path, "--erase", format=format)
        finally:
            connections.close_all()

    with ThreadPoolExecutor() as threads, monkeypatch.context() as patched:
        patched.setattr(Parts, "attempt", made_late)
        patched.setattr(erasing_files.os, "replace", replaced_late)
        patched.setattr(erasing_files, "_erase", read_beside)
        try:
            said = tried(lambda: export(topic, tmp_path, "--erase", format=format))
        finally:
            over.set()

    assert "has taken" in said or "with it the lock" in said
    assert "blanked" in second[0].result()
    assert f"{SECRET}0" not in payloads(tmp_path, format)
    export(topic, tmp_path, "--erase", format=format)
    assert read_back(tmp_path, format) == logged(topic)


@SOME
def test_an_interrupted_run_is_finished_by_the_next_one(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, "--part", 10, format=format)
    erase(topic, key="k0", reason="asked for")
    with monkeypatch.context() as patched:
        if format in FILES:
            patched.setattr("django_events.exporting.parts.Parts.finish_erasing", interrupted)
        else:
            kind = DeltaEvents if format == "delta" else IcebergEvents
            patched.setattr(kind, "say_erased", interrupted)
        with pytest.raises((CommandError, KeyboardInterrupt)):
            export(topic, tmp_path, "--erase", format=format)
    assert Intervention.objects.filter(action="erase_exported", details__finished=False).count() == 1

    assert "by 1 erasure: 0." in export(topic, tmp_path, "--erase", format=format)

    assert read_back(tmp_path, format) == logged(topic)
    assert Intervention.objects.filter(action="erase_exported", details__finished=True).count() == 1


def interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("format", ["delta"])
def test_an_erasure_that_was_interrupted_is_named_until_it_is_said_again(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format=format)
    erase(topic, key="k0", reason="asked for")
    record = Intervention.objects.get(action="erase")
    Intervention.objects.filter(pk=record.pk).update(details={k: v for k, v in record.details.items() if k != "until"})
    erase(topic, key="k1", reason="asked for")

    for _ in range(2):
        with pytest.raises(CommandError, match=f"Erasure {record.pk} of {topic} is at work, or was interrupted"):
            export(topic, tmp_path, "--erase", format=format)
    assert Intervention.objects.filter(action="erase_exported").count() == 1  # it isn't done again without need
    with pytest.raises(CommandError, match=f"Erasure {record.pk} of {topic} is at work, or was interrupted") as raised:
        export(topic, tmp_path, "--erase", format=format)
    assert raised.value.returncode == 1
    assert f"{SECRET}1" not in payloads(tmp_path, format)
    erase(topic, key="k0", reason="asked for")
    export(topic, tmp_path, "--erase", format=format)

    assert read_back(tmp_path, format) == logged(topic)
    assert "blanked" not in export(topic, tmp_path, "--erase", format=format)


@pytest.mark.parametrize("format", ["delta", "parquet"])
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("other", ["another key", "the same key"])
def test_an_erasure_that_ends_when_the_copy_has_gone_past_it_is_applied(
    log: Log, tmp_path: Path, format: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(10))
    export(topic, tmp_path, format=format)
    if other == "another key":
        erase(topic, key="k0", reason="asked for")
    more(topic, drafts(10))
    export(topic, tmp_path, format=format)
    search, refused = api._erase, list[str]()

    def slow(erasure: Any) -> None:
        monkeypatch.undo()
        erase(topic, key="k1" if other == "another key" else "k0", reason="asked for")
        more(topic, drafts(10))
        refused.append(tried(lambda: export(topic, tmp_path, "--erase", format=format)))
        search(erasure)

    monkeypatch.setattr(api, "_erase", slow)
    erase(topic, key="k0", reason="asked for")

    assert [bool(said) for said in refused] == [other == "another key"]
    export(topic, tmp_path, "--erase", format=format)
    assert f"{SECRET}0" not in payloads(tmp_path, format)
    assert read_back(tmp_path, format) == logged(topic)
    assert verify(tmp_path)[0]["proved"]
    assert not [record.pk for record in Intervention.objects.filter(action="erase") if is_open(record)]
    assert "blanked" not in export(topic, tmp_path, "--erase", format=format)


def is_open(record: Intervention) -> bool:
    return not record.details.keys() & {"until", "closed_by"}


def more(topic: Any, some: list[Draft]) -> None:
    with transaction.atomic():
        publish_many(topic, some)
    move()


def test_an_erasure_that_forgets_a_key_is_not_done_by_one_that_keeps_it(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="delta")
    erase(topic, key="k0", reason="asked for", forget_key=True)
    record = Intervention.objects.get(action="erase")
    Intervention.objects.filter(pk=record.pk).update(details={k: v for k, v in record.details.items() if k != "until"})
    erase(topic, key="k0", reason="asked for")
    assert f"Erasure {record.pk} of" in tried(lambda: export(topic, tmp_path, "--erase", format="delta"))
    erase(topic, key="k0", reason="asked for", forget_key=True)
    export(topic, tmp_path, "--erase", format="delta")
    assert read_back(tmp_path, "delta") == logged(topic)


def test_a_key_whose_secret_is_gone_is_refused(log: Log, tmp_path: Path, settings: Any) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="delta")
    erase(topic, key="k0", reason="asked for")
    former = settings.SECRET_KEY
    said = "with a SECRET_KEY which is not in the settings any more"
    with (
        override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[]),
        pytest.raises(CommandError, match=said),
    ):
        export(topic, tmp_path, "--erase", format="delta")
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[former]):
        export(topic, tmp_path, "--erase", format="delta")
    assert read_back(tmp_path, "delta") == logged(topic)


@pytest.mark.parametrize(
    ("format", "words"),
    [
        ("delta", []),
        ("parquet", []),
        ("iceberg", []),
        pytest.param("delta", ["--upsert"], marks=pytest.mark.slow),
        pytest.param("iceberg", ["--upsert"], marks=pytest.mark.slow),
    ],
)
@pytest.mark.requirement("X15")
def test_a_new_place_needs_no_erasure_from_before_it(log: Log, tmp_path: Path, format: str, words: list[str]) -> None:
    """Its events are read when they are blank, so neither the secret of then is needed, nor a look at all keys."""
    topic = log(*drafts(10))
    erase(topic, key="k0", reason="asked for")
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[]):
        assert "blanked" not in export(topic, tmp_path, "--erase", *words, format=format)
        erase(topic, key="k1", reason="asked for")
        more(topic, drafts(5))
        assert "by 1 erasure: " in export(topic, tmp_path, "--erase", *words, format=format)
        erase(topic, key="k2", reason="asked for")
        assert "by 1 erasure: " in export(topic, tmp_path, "--erase", *words, format=format)
    if not words:
        assert read_back(tmp_path, format) == logged(topic)
        assert verify(tmp_path)[0]["proved"]


@pytest.mark.requirement("X15")
def test_a_new_place_is_told_of_an_erasure_that_was_at_work_when_it_was_read(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(10))
    erase(topic, key="k1", reason="asked for")
    search = api._erase

    def slow(erasure: Any) -> None:
        monkeypatch.undo()
        erase(topic, key="k2", reason="asked for")
        export(topic, tmp_path, format="delta")
        search(erasure)

    monkeypatch.setattr(api, "_erase", slow)
    erase(topic, key="k0", reason="asked for")

    assert f"{SECRET}0" in payloads(tmp_path, "delta")
    export(topic, tmp_path, "--erase", format="delta")
    assert read_back(tmp_path, "delta") == logged(topic)


def test_a_role_that_only_reads_the_log_makes_a_new_place(
    log: Log, tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(10))
    erase(topic, key="k0", reason="asked for")
    role, number = f"reads_only_{os.getpid()}", Topic.objects.get(name=str(topic)).pk
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'Sesame'")
        cursor.execute(f"GRANT SELECT ON django_events_topic, django_events_topichead, {log_table(number)} TO {role}")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(export_events, "dsn_of", lambda using: make_conninfo(dsn, user=role, password="Sesame"))
            export(topic, tmp_path, format="delta")
        assert "by 1 erasure: 0." in export(topic, tmp_path, "--erase", format="delta")
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP OWNED BY {role}")
            cursor.execute(f"DROP ROLE {role}")
    assert read_back(tmp_path, "delta") == logged(topic)


def test_an_erasure_whose_secret_is_lost_is_left_out_by_its_number(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="delta")
    erase(topic, key="k0", reason="asked for")
    first = Intervention.objects.get(action="erase").pk
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[]):
        erase(topic, key="k0", reason="asked for")
        assert f"say --without {first}." in tried(lambda: export(topic, tmp_path, "--erase", format="delta"))
        assert f"say --without {first}." in tried(
            lambda: export(topic, tmp_path, "--erase", "--without", first + 1, format="delta")
        )
        assert "by 1 erasure: 6." in export(topic, tmp_path, "--erase", "--without", first, format="delta")
        assert read_back(tmp_path, "delta") == logged(topic)
        assert "blanked" not in export(topic, tmp_path, "--erase", format="delta")
    assert Intervention.objects.get(action="erase_exported").details["without"] == [first]
    assert "--without is for --erase" in tried(lambda: export(topic, tmp_path, "--without", first, format="delta"))


def test_an_erasure_that_can_be_applied_is_applied_even_if_it_is_to_be_left_out(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="delta")
    erase(topic, key="k0", reason="asked for")
    number = Intervention.objects.get(action="erase").pk
    export(topic, tmp_path, "--erase", "--without", number, format="delta")
    assert f"{SECRET}0" not in payloads(tmp_path, "delta")


def test_an_erasure_that_is_said_again_under_the_newest_secret_needs_the_former_one_no_more(
    log: Log, tmp_path: Path, settings: Any
) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="delta")
    erase(topic, key="k0", reason="asked for")
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[settings.SECRET_KEY]):
        erase(topic, key="k0", reason="asked for")
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[]):
        export(topic, tmp_path, "--erase", format="delta")
    assert read_back(tmp_path, "delta") == logged(topic)


@SOME
@pytest.mark.requirement("X15")
def test_a_database_that_is_older_than_an_erasure_is_refused(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format=format)
    erase(topic, key="k0", reason="asked for")
    export(topic, tmp_path, "--erase", format=format)
    Intervention.objects.filter(action="erase").delete()  # as a replica that is behind doesn't know of it
    with transaction.atomic():
        publish_many(topic, drafts(3))
    move()

    with pytest.raises(CommandError, match="is applied there, and not in this database") as raised:
        export(topic, tmp_path, format=format)
    assert raised.value.returncode == 1
    erase(topic, key="k1", reason="asked for")
    with pytest.raises(CommandError, match="is applied there, and not in this database"):
        export(topic, tmp_path, "--erase", "--until", 31, format=format)
    assert len(read_back(tmp_path, format)) == 30


@ALL
@pytest.mark.requirement("X15")
def test_a_database_that_was_restored_and_gives_numbers_again_is_refused(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format=format)
    erase(topic, key="k0", reason="asked for")
    export(topic, tmp_path, "--erase", format=format)
    number = Intervention.objects.get(action="erase").pk
    Intervention.objects.all().delete()
    with connection.cursor() as cursor:
        sequence = "pg_get_serial_sequence('django_events_intervention', 'id')"
        cursor.execute(f"SELECT setval({sequence}, %s, false)", [number])
    erase(topic, key="k1", reason="asked for")
    assert Intervention.objects.get(action="erase").pk == number

    assert f"erasure {number} is applied there" in tried(lambda: export(topic, tmp_path, "--erase", format=format))
    Intervention.objects.filter(pk=number).update(topic="another")
    more(topic, drafts(1))
    assert f"erasure {number} is applied there" in tried(lambda: export(topic, tmp_path, format=format))


@pytest.mark.parametrize("format", ["delta", ICEBERG])
@pytest.mark.requirement("X15")
def test_a_table_that_was_set_back_to_before_an_erasure_is_refused(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format=format)
    erase(topic, key="k0", reason="asked for")
    export(topic, tmp_path, "--erase", format=format)
    set_back(tmp_path, format, topic, to=1)

    with pytest.raises(CommandError, match="was set back to an earlier"):
        export(topic, tmp_path, "--erase", format=format)


@pytest.mark.parametrize("words", [[], ["--upsert"]])
def test_a_key_that_was_forgotten_is_nowhere_in_a_delta_table_after_vacuum(
    log: Log, tmp_path: Path, words: list[str]
) -> None:
    topic = log(*(Draft(value={"n": n}, key=f"ada{n}@example.org") for n in range(4)))
    export(topic, tmp_path, "--part", 2, *words, format="delta")
    for n in (0, 3):
        erase(topic, key=f"ada{n}@example.org", reason="asked for", forget_key=True)
    assert "dataSkippingStatsColumns" in export(topic, tmp_path, "--erase", *words, format="delta")

    DeltaTable(f"{tmp_path}/{topic}").vacuum(0, dry_run=False, enforce_retention_duration=False)

    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files for n in (0, 3) if f"ada{n}@example".encode() in file.read_bytes()]


@pytest.mark.slow
@TABLES
def test_other_tools_may_remove_what_older_versions_have(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, "--part", 10, format=format)
    erase(topic, key="k0", reason="asked for")
    said = export(topic, tmp_path, "--erase", format=format)

    assert "before" in said and ("VACUUM" in said or "expire_snapshots" in said)
    if format == "delta":
        DeltaTable(f"{tmp_path}/{topic}").vacuum(0, dry_run=False, enforce_retention_duration=False)
    else:
        with closing(in_folder(str(tmp_path)).catalog) as catalog:
            known = catalog.load_table((NAMESPACE, str(topic)))
            expire_former(known)
            for file in {str(path) for path in tmp_path.rglob("*.parquet")} - set(files_of(tmp_path, format)):
                Path(file).unlink()
    assert read_back(tmp_path, format) == logged(topic)
    for file in tmp_path.rglob("*.parquet"):
        assert f"{SECRET}0" not in json.dumps(pq.read_table(file, partitioning=None, columns=["value"]).to_pylist())
    export(topic, tmp_path, "--erase", format=format)


def test_lines_that_are_not_erased_stay_byte_by_byte(log: Log, tmp_path: Path) -> None:
    """Another writer, like Spark, spells the same in another way."""
    topic = log(*drafts(2_500), Draft(body=b"\0\xff", key="k0"))
    export(topic, tmp_path, format="json")
    [file] = tmp_path.glob("topic=*/**/part-*.json")
    spelled = [json.dumps(json.loads(line), indent=None) for line in file.read_text().splitlines()]
    file.write_text("".join(f"{line}\n" for line in spelled))
    checksum = file.parent / f".{file.name}.crc"
    checksum.touch()
    erase(topic, key="k0", reason="asked for")

    assert "by 1 erasure: 501." in export(topic, tmp_path, "--erase", format="json")

    assert read_back(tmp_path, "json") == logged(topic)
    lines = file.read_text().splitlines()
    assert [line for n, line in enumerate(lines) if n % 5] == [line for n, line in enumerate(spelled) if n % 5]
    assert not checksum.exists()  # it would say that the file is damaged
    assert local_exports.left_over(tmp_path) == []


@OF_FILES
def test_files_that_something_else_has_put_there_are_named(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts(10))
    export(topic, tmp_path, format=format)
    [file] = tmp_path.glob(f"topic=*/**/part-*.{format}")
    before = file.read_bytes()
    erase(topic, key="k0", reason="asked for")
    packed = file.with_name("part-1.json.gz")
    packed.touch()
    assert "is no file that can be erased in" in tried(lambda: export(topic, tmp_path, "--erase", format=format))
    packed.unlink()
    if format == "json":
        file.write_bytes(before + b"{\n")
        assert "has a line that is no event" in tried(lambda: export(topic, tmp_path, "--erase", format=format))
        file.write_bytes(before)
    export(topic, tmp_path, "--erase", format=format)
    assert read_back(tmp_path, format) == logged(topic)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "orc", "--engine", "local"], "Without Spark there is no format 'orc'"),
        (
            ["--to", "s3a://bucket/events", "--engine", "local"],
            "can't be written to 's3a://bucket/events' without Spark",
        ),
    ],
)
def test_files_that_cannot_be_erased_in_are_refused(log: Log, tmp_path: Path, words: list[str], said: str) -> None:
    topic = log(*drafts(3))
    with pytest.raises(CommandError, match=said) as raised:
        call_command("export_events", str(topic), "--to", str(tmp_path / "out"), "--erase", *words)
    assert raised.value.returncode == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "format"), [("a store", "parquet"), ("a store", "json"), ("a disk", "orc"), ("a store", "orc")]
)
def test_of_files_only_parquet_and_json_on_a_disk_are_erased_in(kind: str, format: str) -> None:
    """What an engine says that it writes to decides; Spark's says a store for HDFS, s3a:// and Spark Connect."""
    storage: Any = OfDisk() if kind == "a disk" else object()
    with pytest.raises(Invalid, match=f"--erase can't erase in files of format '{format}' at '/data': it takes") as no:
        refuse_other_files(storage, format, "/data")
    assert "Remove the folder, and export it anew" in str(no.value)
    for one in ("parquet", "json"):
        refuse_other_files(OfDisk(), one, "/data")


@pytest.mark.slow
@pytest.mark.requirement("X15")
def test_a_store_is_refused_before_anything_is_written(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that writes to a store, which is a folder here."""
    topic = log(*drafts(3))
    export(topic, tmp_path / "out", format="parquet")
    before = sorted(tmp_path.rglob("*"))
    erase(topic, key="k0", reason="asked for")

    class Store:
        """What OfDisk does, without being one."""

        def __getattr__(self, name: str) -> Any:
            return getattr(OfDisk(), name)

    monkeypatch.setattr(LocalEngine, "storage", lambda self, wanted: Store())
    with pytest.raises(CommandError, match=r"--erase can't erase in files of format 'parquet' at .* Remove the") as no:
        export(topic, tmp_path / "out", "--erase", format="parquet")

    assert no.value.returncode == 2
    assert sorted(tmp_path.rglob("*")) == before
    assert not Intervention.objects.filter(action="erase_exported").exists()


@pytest.mark.parametrize("format", FILES)
def test_a_folder_of_a_stream_is_refused(log: Log, tmp_path: Path, format: str) -> None:
    """`stream_events` has another journal, which says nothing of erasures."""
    topic = log(*drafts(3))
    Batches(OfDisk(), str(tmp_path)).begin(format, ("day",))
    (tmp_path / "batch=000000000000/topic=things").mkdir(parents=True)
    (tmp_path / f"batch=000000000000/topic=things/part-0.{format}").write_text(SECRET)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    erase(topic, key="k0", reason="asked for")

    with pytest.raises(CommandError, match=r"holds what stream_events writes\. Take another folder for") as raised:
        export(topic, tmp_path, "--erase", format=format)

    assert raised.value.returncode == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not Intervention.objects.filter(action="erase_exported").exists()


def test_a_database_that_only_reads_is_refused(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log(*drafts(3))
    export(topic, tmp_path, format="delta")
    erase(topic, key="k0", reason="asked for")
    dsn_of = export_events.dsn_of
    only_reads = " options='-c default_transaction_read_only=on'"
    monkeypatch.setattr(export_events, "dsn_of", lambda using: dsn_of(using) + only_reads)

    with pytest.raises(CommandError, match="--erase notes in the database what it does, and that was refused") as no:
        export(topic, tmp_path, "--erase", format="delta")
    assert no.value.returncode == 1
    assert f"{SECRET}0" in payloads(tmp_path, "delta")


@SOME
def test_columns_that_others_have_added_go_too(log: Log, tmp_path: Path, format: str) -> None:
    """They were made of the payload."""
    topic = log(*drafts(6))
    export(topic, tmp_path, format=format)
    made = pa.array([{"of": SECRET}] * 6)
    if format == "delta":
        table = DeltaTable(f"{tmp_path}/{topic}")
        write_deltalake(
            table, table.to_pyarrow_table().append_column("made", made), mode="overwrite", schema_mode="merge"
        )
    elif format == "iceberg":
        with closing(in_folder(str(tmp_path)).catalog) as catalog:
            known = catalog.load_table((NAMESPACE, str(topic)))
            rows = known.scan().to_arrow()
            with known.update_schema() as update:
                update.union_by_name(pa.schema([("made", made.type)]))
            known.overwrite(rows.append_column("made", made))
    else:
        [file] = tmp_path.glob("topic=*/**/*.parquet")
        pq.write_table(pq.read_table(file, partitioning=None).append_column("made", made), file)
    erase(topic, key="k0", reason="asked for")

    export(topic, tmp_path, "--erase", format=format)

    found = [pq.read_table(file, partitioning=None).to_pylist() for file in newest(tmp_path, format)]
    rows = sorted((row["offset"], row["made"] and row["made"]["of"]) for some in found for row in some)
    assert rows == [(n, None if n in (1, 6) else SECRET) for n in range(1, 7)]
    assert read_back(tmp_path, format) == logged(topic)


def newest(folder: Path, format: str) -> list[str]:
    if format != "parquet":
        return files_of(folder, format)
    return [str(file) for file in folder.glob("topic=*/**/*.parquet")]


@pytest.mark.slow
@TABLES
@pytest.mark.requirement("X15")
def test_a_follower_erases_too(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts(10))
    out = tmp_path / "out"
    words = (topic, "--to", out, "--format", format, "--erase", "--follow", "--every", "0.2")
    with started(*words, said=tmp_path / "said") as follower:
        wait_until(lambda: rows(out, format) == 10)
        erase(topic, key="k0", reason="asked for")
        with transaction.atomic():
            publish_many(topic, drafts(10))
        move()
        erase(topic, key="k1", reason="asked for", forget_key=True)
        done = Intervention.objects.filter(action="erase_exported", details__finished=True)
        last = Intervention.objects.filter(action="erase").latest("pk").pk
        wait_until(lambda: rows(out, format) == 20 and done.filter(details__until=last).exists())
        follower.send_signal(signal.SIGTERM)
        assert follower.wait(60) == 0, (tmp_path / "said").read_text()

    assert read_back(out, format) == logged(topic)
    assert verify(out)[0]["proved"]


def rows(folder: Path, format: str) -> int:
    try:
        return len(read_back(folder, format))
    except Exception:  # it is being made
        return 0


@pytest.mark.requirement("X15")
def test_an_erasure_that_begins_late_with_a_lower_number_is_not_missed(log: Log, dsn: str) -> None:
    topic = log(*drafts(10))
    with Dsn(dsn).connected() as beginning, Dsn(dsn).connected() as reading, ThreadPoolExecutor() as threads:
        [one] = topics.find(reading, topics.TopicChoice(names=(str(topic),)))
        with beginning.transaction():
            fetch(beginning, api.SQL.begin_erasure)
            lower = begin_record(
                beginning, one, "ada", {"incarnation": one.incarnation, "ranges": [[3, 3]], "until": 0}
            )
            erase(topic, key="k0", reason="asked for")  # has a higher number, and is there first
            looking = threads.submit(found, reading, one, after=0, names=names(topic))
            wait_until(lambda: is_waiting(reading.info.backend_pid), what="the reader to wait for the lower number")
            beginning.execute("UPDATE django_events_intervention SET action = 'erase' WHERE id = %s", [lower])
        erasures = looking.result(60)
    assert erasures.number == 2
    assert erasures.until == Intervention.objects.filter(action="erase").latest("pk").pk > lower


def is_waiting(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", [pid])
        return bool(cursor.fetchone()[0])
