"""Spark's session of the commands: what is said when it can't be had, is interrupted or dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from django_events.exceptions import Invalid, NotReady
from django_events.spark.errors import ENDED, told
from django_events.spark.session import session
from tests.support.processes import wait_until

ENDLESS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
from django.conf import settings
settings.configure()
from django.core.management.base import CommandError
from django_events.management.spark import explained
from django_events.spark.session import session
try:
    with explained(), session("endless", master="local[1]") as spark:
        print("ready", flush=True)
        spark.range(10**15).selectExpr("max(id * 7 % 3)").collect()
except CommandError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "An error occurred while calling o81.text.\n: org.apache.spark.SparkException: Aborted.\n\tat a.b(C:1)\n"
            "Caused by: java.io.IOException: it broke\n\tat d.e(F:2)\n"
            "Caused by: java.net.ConnectException: refused\n\t... 3",
            "refused (ConnectException)",
        ),
        ("An error occurred while calling o1.x.\n: java.lang.StackOverflowError\n\tat a.b(C:1)", "StackOverflowError"),
        (
            ": java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "Spark knows no file system of that kind. Give it the package for it, for example in spark-defaults.conf.",
        ),
        ("An error occurred while trying to connect to the Java server (127.0.0.1:1)", ENDED),
        ("An error occurred while calling o35.sc\n", ENDED),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: django_events. Make sure the provider is there.",
            "Spark's Python doesn't find this package. Expected in PYSPARK_PYTHON a Python that has it on all of "
            f"Spark's machines; here that is {sys.executable}",
        ),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka. Make sure the provider is there.",
            "Spark doesn't know that format. Give it the package for it, for example in spark-defaults.conf.",
        ),
        ("[A.B] Something is wrong. SQLSTATE: 42000", "Something is wrong."),
    ],
)
def test_the_cause_of_an_error_is_told(text: str, said: str) -> None:
    assert told(RuntimeError(text)) == said


def test_a_java_that_has_ended_is_told() -> None:
    assert told(ConnectionRefusedError(111, "Connection refused")) == ENDED


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open one would be used, whatever is said."""
    sessions = pytest.importorskip("pyspark.sql").SparkSession
    monkeypatch.setattr(sessions, "getActiveSession", classmethod(lambda cls: None))


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ({"master": "nonsense"}, Invalid, "--master is 'nonsense', expected one like spark://host:7077"),
        ({"master": "local[x]"}, Invalid, "--master is"),
        ({"remote": "nonsense"}, Invalid, "--remote is 'nonsense', expected one like sc://host:15002"),
        ({"remote": "sc://127.0.0.1:1"}, NotReady, "There is no Spark Connect at sc://127.0.0.1:1: "),
        ({"master": "yarn", "remote": "sc://h"}, Invalid, "Say where Spark is once"),
    ],
)
def test_a_place_that_cannot_be_meant_is_refused_at_once(
    where: dict[str, str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said), session("tests", **where):
        pass


def test_a_spark_home_without_spark_is_told(tmp_path: Path) -> None:
    with started({"SPARK_HOME": str(tmp_path)}) as process:
        assert "Spark can't be started: " in process.communicate(timeout=120)[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("end", "said"), [("interrupt", "Interrupted. What was finished stays"), ("kill its Java", ENDED)]
)
def test_what_ends_in_the_midst_is_told_in_a_sentence(
    spark: object, scratch: dict[str, str], end: str, said: str
) -> None:
    with started(scratch) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if end == "interrupt":
            process.send_signal(signal.SIGINT)
        else:
            os.kill(wait_until(lambda: java_of(process.pid)), signal.SIGKILL)
        out, errors = process.communicate(timeout=120)

    assert out.startswith(said)
    assert "while sending command" not in errors
    assert process.returncode == 0


@contextmanager
def started(environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A process with an endless job; its Java ends with it."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def java_of(parent: int) -> int | None:
    """The Java that a process has started."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = status.read_text().split("(", 1)[1].rsplit(")", 1)
        except (OSError, IndexError):  # it has ended meanwhile
            continue
        if name == "java" and int(rest.split()[1]) == parent:
            return int(status.parent.name)
    return None
