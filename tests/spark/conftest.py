"""A Spark session for all of these tests that a process runs."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from django_events import Draft
from django_events.exceptions import NotReady
from django_events.spark.session import session
from tests.support.logs import dsn, log, move

if TYPE_CHECKING:
    from tests.spark.rivals import Standing

__all__ = ["dsn", "log", "move"]  # for the tests here

Stream = Callable[..., list[int]]

PASSWORD = "s3cret-of-the-tests"
# Of a Java that works for seconds: what it would gain by compiling better is less than what that costs.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    settings = {
        "spark.driver.extraJavaOptions": f"-Duser.timezone=America/Chicago {SHORT_LIVED}",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
    }
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:
            # The zones of workers, of the JVM and of sessions are all others than UTC: nothing may depend on them.
            patched.setenv("TZ", "Asia/Kolkata")
            try:
                started = stack.enter_context(session("tests", master="local[2]", settings=settings))
            except NotReady as error:
                if os.environ.get("CI") or "Java" not in str(error):
                    raise
                pytest.skip(str(error))
        yield started


@pytest.fixture
def scratch() -> Iterator[dict[str, str]]:
    """Variables for a process whose Java is killed: what it can't delete any more goes with the test.

    Not in tmp_path: the path of a socket must be short.
    """
    with TemporaryDirectory(prefix="spark-", ignore_cleanup_errors=True) as folder:
        yield killed_in(folder)


def killed_in(folder: str) -> dict[str, str]:
    """Variables for a process whose Java is killed."""
    return {"JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={folder} {SHORT_LIVED}"}


@pytest.fixture
def read(spark: Any, dsn: str) -> Callable[..., Any]:
    """Read the log: the options besides the address."""

    def load(topic: Any = None, **options: Any) -> Any:
        if topic is not None:
            options["subscribe"] = str(topic)
        return spark.read.format("django_events").option("dsn", dsn).options(**options).load()

    return load


@pytest.fixture
def stream(spark: Any, dsn: str, tmp_path: Path) -> Stream:
    """Read what is there as a stream, into files, going on where the checkpoint says; returns all offsets in order."""

    def run(topic: Any, *, checkpoint: str = "checkpoint", **options: Any) -> list[int]:
        options = {"startingOffsets": "earliest", "subscribe": str(topic), **options}
        frame = spark.readStream.format("django_events").option("dsn", dsn).options(**options).load()
        query = (
            frame.select("topic", "offset", "value")
            .writeStream.option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"), format="parquet")
        )
        run.query = query  # type: ignore[attr-defined]
        query.awaitTermination()
        return sorted(row.offset for row in spark.read.parquet(str(tmp_path / "out")).collect())

    return run


@pytest.fixture
def things(log: Callable[..., Any]) -> Any:
    """A topic with as many events as the rivals write."""
    from tests.spark.rivals import EVENTS  # which imports tests, and these what is here

    return log(*(Draft(value=n, type=f"t{n % 16}") for n in range(EVENTS)))


@pytest.fixture(scope="module")
def first(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Standing"]:
    """A process that runs commands, on this machine."""
    from tests.spark.rivals import standing

    with (
        TemporaryDirectory(prefix="spark-", ignore_cleanup_errors=True) as folder,
        standing(tmp_path_factory.mktemp("first") / "said", killed_in(folder)) as one,
    ):
        yield one
