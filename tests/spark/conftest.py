"""A Spark session for all of these tests that a process runs, and the log that they read."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from django.db import connection, transaction
from psycopg.conninfo import make_conninfo

from django_events import Draft, publish_many
from django_events.exceptions import NotReady
from django_events.log.transfer import Transfer
from django_events.models.buffer import BufferedEvent
from django_events.spark.session import session
from tests.support.fix_topics import TopicFactory
from tests.support.processes import wait_until

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
def dsn(transactional_db: None) -> str:
    """The test's database, as Spark is told it."""
    parameters = connection.get_connection_params()
    for django_only in ("cursor_factory", "context", "client_encoding", "prepare_threshold"):
        parameters.pop(django_only, None)
    return make_conninfo("", **parameters)


@pytest.fixture
def log(make_topic: TopicFactory) -> Callable[..., Any]:
    """Make a topic with events in its log."""

    def fill(*drafts: Draft, topic: Any = None, **options: Any) -> Any:
        topic = topic or make_topic(**options)
        with transaction.atomic():
            publish_many(topic, drafts)
        move()
        return topic

    return fill


def move() -> None:
    """Everything that is published into the log, also what waits for sessions that are about to end."""
    transfer = Transfer("default")

    def is_empty() -> bool:
        while transfer.move() or transfer.left:
            pass
        transfer.setbacks.raise_first()
        return not BufferedEvent.objects.exists()

    wait_until(is_empty, what="the transfer of all events")


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
