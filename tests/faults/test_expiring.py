"""Exporters that expire and compact, killed, frozen or without their lock: none commits what names files that went."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from django.db import connection

from django_events import Draft
from django_events.management.spark import LOCKED
from tests.integration.exporting.test_expiring import keys, make_older, rows_on_disk, table_folder
from tests.spark.rivals import end_locks
from tests.spark.test_batch import publish, stored
from tests.spark.test_export import url
from tests.support.disturbing import HOW, disturb, rounds, started, tried, wake
from tests.support.holding_store import holding
from tests.support.processes import wait_until
from tests.support.tables import files_of, read_back, run

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.timeout(600)]

EVENTS, PER_COMMIT = 2_000, 100
TIDY = ("--compact", "--expire", 0)


def has_changed(out: Path, there: list[str], process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is not None or rows_on_disk(out) != there


TIDYING = """
from django.core.management import execute_from_command_line
from django_events.exporting.tables import export

export.TIDY_EVERY = 0.0
execute_from_command_line(sys.argv)
"""


@pytest.mark.requirement("X15")
@rounds(30, "delta", "iceberg")
def test_a_table_stays_whole(log: Callable[..., Any], tmp_path: Path, format: str, round: int) -> None:
    """Of a follower that merges files and removes what is old all the time."""
    topic = log(*(Draft(value={"n": n}, type=f"t{n % 5}") for n in range(EVENTS)))
    rng, how, out = random.Random(round), HOW[round % len(HOW)], tmp_path / "out"
    words = (topic, "--to", out, "--part", PER_COMMIT)
    run(*words, format=format)
    with in_python(TIDYING, *words, *TIDY, "--follow", "--every", 0.05, "--format", format) as first:
        for _ in range(rng.randrange(1, 5)):
            there = rows_on_disk(out)
            publish(topic, *range(rng.randrange(1, 30)))
            wait_until(partial(has_changed, out, there, first))
        disturb(first, how, after=rng.randrange(400))
        said = tried(lambda: run(*words, *TIDY, format=format))
        if how == "frozen":
            publish(topic, *range(10))
            again = tried(lambda: run(*words, *TIDY, format=format))
            assert {said, again} <= {"", LOCKED}
        wake(first, how)
        assert said in ("", LOCKED) or "has taken" in said
        told = first.communicate()[0].decode()
    assert first.returncode == (-signal.SIGKILL if how == "killed" else 1), told
    assert "Traceback" not in told

    run(*words, *TIDY, format=format)
    run(*words, *TIDY, format=format)  # one that was frozen may have written files after the former run looked

    assert read_back(out, format) == stored(topic)
    assert rows_on_disk(out) == files_of(out, format)


FROZEN = """
import os, signal
from django.core.management import execute_from_command_line
from pyiceberg.catalog.sql import SqlCatalog

commit = SqlCatalog.commit_table

def frozen(self, table, requirements, updates):
    if any(update.action == "add-snapshot" for update in updates):
        os.kill(os.getpid(), signal.SIGSTOP)
    return commit(self, table, requirements, updates)

SqlCatalog.commit_table = frozen
execute_from_command_line(sys.argv)
"""


@pytest.mark.quick
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("work", ["append", pytest.param("compact", marks=pytest.mark.slow)])
def test_of_iceberg_a_commit_that_comes_too_late_names_nothing(
    log: Callable[..., Any], tmp_path: Path, work: str
) -> None:
    """Frozen when its files are written, and before its commit is; another run has removed them meanwhile."""
    topic, out = log(*(Draft(value=n) for n in range(20))), tmp_path / "out"
    words = (topic, "--to", out, "--part", 10)
    run(*words, format="iceberg")
    named = set(rows_on_disk(out))
    if work == "append":
        publish(topic, *range(10))
    with in_python(FROZEN, *words, *(["--compact"] if work == "compact" else []), "--format", "iceberg") as first:
        wait_until(lambda: is_stopped(first.pid))
        written = set(rows_on_disk(out)) - named
        assert written
        end_locks()
        make_older(table_folder(out, "iceberg"), days=1, only="*.parquet")
        run(topic, "--to", out, "--until", 20, "--expire", 0, format="iceberg")
        assert not written & set(rows_on_disk(out))
        os.kill(first.pid, signal.SIGCONT)
        if work == "append":  # it tries again, with new files
            wait_until(lambda: first.poll() is not None or is_stopped(first.pid))
            first.send_signal(signal.SIGCONT)
        said = first.communicate(timeout=120)[0].decode()
    assert first.returncode == 1 and "and with it the lock on" in said

    run(*words, format="iceberg")

    assert read_back(out, "iceberg") == stored(topic)


@pytest.mark.slow
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("work", ["append", "compact"])
def test_of_delta_a_commit_that_comes_too_late_names_nothing(
    log: Callable[..., Any], bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, is_gone: bool
) -> None:
    """Held up when its files are written, before the file of its version is; that may have come and gone meanwhile."""
    topic, store = log(*(Draft(value=n) for n in range(20))), os.environ["AWS_ENDPOINT_URL"]
    words = (topic, "--to", bucket, "--part", 10, "--consumer", "lake")
    run(*words, format="delta")
    named, version = rows_in_store(), DeltaTable(f"{bucket}/{topic}").version()
    if work == "append":
        publish(topic, *range(10))
    commit = f"_delta_log/{version + 1:020d}.json"
    more = ["--compact"] if work == "compact" else []
    with holding(store, method="PUT", path=commit) as held:
        monkeypatch.setenv("AWS_ENDPOINT_URL", held.address)
        with started(*words, *more, "--verbosity", 2, "--format", "delta", said=tmp_path / "said") as first:
            monkeypatch.setenv("AWS_ENDPOINT_URL", store)
            assert held.reached.wait(90)
            if not is_gone:  # frozen, it would not wait for the answer, and ask again
                os.killpg(first.pid, signal.SIGSTOP)
            written = rows_in_store() - named
            assert written
            end_locks()
            wait_until(lambda: not written & rows_in_store_after_expiry(topic, bucket))
            if is_gone:
                wait_until(lambda: not exists_after_expiry(topic, bucket, commit))
            os.killpg(first.pid, signal.SIGCONT)
            held.go_on.set()
            assert first.wait(120) == 1
        said = (tmp_path / "said").read_text()
    assert "and with it the lock on" in said and "Traceback" not in said
    assert "events added" not in said  # of which a consumer's position would tell
    assert position() == 20

    run(*words, format="delta")

    table = DeltaTable(f"{bucket}/{topic}")
    assert sorted(table.to_pyarrow_table()["offset"].to_pylist()) == list(range(1, 31 if work == "append" else 21))


def rows_in_store() -> set[str]:
    return {key for key in keys("events/things/") if key.endswith(".parquet") and "_delta_log" not in key}


def rows_in_store_after_expiry(topic: Any, place: str) -> set[str]:
    """Its clock has whole seconds, so it may have to be looked at once more."""
    run(topic, "--to", place, "--until", 20, "--expire", 0, format="delta")
    return rows_in_store()


def exists_after_expiry(topic: Any, place: str, commit: str) -> bool:
    DeltaTable(f"{place}/{topic}").alter.set_table_properties({"x": "1"}, raise_if_not_exists=False)
    run(topic, "--to", place, "--until", 20, "--expire", 0, format="delta")
    return any(key.endswith(commit) for key in keys("events/things/_delta_log/"))


def position() -> int:
    from django_events.models import Position

    return sum(Position.objects.filter(consumer__name="lake").values_list("position", flat=True))


@contextmanager
def in_python(code: str, *words: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """`export_events` as a process that is changed by some code."""
    known = {"DATABASE_URL": url(connection.get_connection_params()), "PYTHONPATH": "."}
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys{code}", "export_events", *map(str, words)],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings", **known},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
