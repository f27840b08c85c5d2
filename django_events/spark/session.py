"""A Spark session for this project's commands: local by default, on a cluster or through Spark Connect by one word."""

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

from django_events.exceptions import Invalid, NotReady
from django_events.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
MASTER = re.compile(r"local(\[[\d*, ]+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
SETTINGS = {
    # Whatever the zones of the machines are: an hour is an hour of UTC, also for other readers of the files.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.partitionOverwriteMode": "static",
}
OF_A_LOCAL_ONE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CONNECT_PORT = 15002
REACH, GRACE = 10.0, 30.0  # seconds
QUIET = Path(__file__).with_name("quiet.properties")


@contextmanager
def session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator["SparkSession"]:
    """A session that ends with the block. One that is open already is used, and left open."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise NotReady("PySpark is not installed. Run: pip install 'django-events-pg[spark]'") from None
    if master and remote:
        raise Invalid("Say where Spark is once: --master for a cluster, or --remote for Spark Connect.")
    if master and not MASTER.fullmatch(master):
        raise Invalid(f"--master is {master!r}, expected one like spark://host:7077, yarn, k8s://… or local[4].")
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    wanted = {**SETTINGS, **(settings or {})}
    builder = SparkSession.builder.appName(name)
    if remote:
        _refuse_unreachable(remote)
        builder = builder.remote(remote)
    else:
        java.provide()
        if master is None or master.startswith("local"):
            wanted = {**OF_A_LOCAL_ONE, **wanted}
            # Files of ORC have the times of the JVM's zone.
            ours = f"-Duser.timezone=UTC -Dlog4j2.configurationFile={QUIET.as_uri()}"
            wanted[JAVA_OPTIONS] = f"{ours} {wanted.get(JAVA_OPTIONS, '')}".strip()
            # Workers start with this interpreter, and find what it finds.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        builder = builder.master(master or LOCAL)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    with _quiet_calls():
        with _interrupts_as_before():
            try:
                spark = builder.getOrCreate()
            except FileNotFoundError as error:
                raise NotReady(f"Spark can't be started: {error}. Where SPARK_HOME is set, unset it.") from None
        try:
            yield spark
        finally:
            _stop(spark)


@contextmanager
def tagged(spark: "SparkSession") -> Iterator[Callable[[], object]]:
    """Gives what cancels the jobs of the block, from another thread."""
    tag = f"django_events-{uuid4()}"
    add: Callable[[str], object] = spark.addTag
    cancel: Callable[[str], object] = spark.interruptTag
    remove: Callable[[str], object] = spark.removeTag
    if hasattr(spark, "_jvm"):
        # Not the session's tags: Spark can't serialize a session that ever had one, and its ML has to.
        context = spark.sparkContext
        add, cancel, remove = context.addJobTag, context.cancelJobsWithTag, context.removeJobTag
    add(tag)
    try:
        yield lambda: cancel(tag)
    finally:
        with suppress(Exception):  # the JVM may be gone
            remove(tag)


@contextmanager
def _quiet_calls() -> Iterator[None]:
    """Py4J logs a stack for each call that is interrupted or not answered; its caller is told anyway."""

    def is_of_others(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    loggers = logging.getLogger(), logging.getLogger("py4j.clientserver"), logging.getLogger("py4j.java_gateway")
    for logger in loggers:
        logger.addFilter(is_of_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_of_others)


@contextmanager
def _interrupts_as_before() -> Iterator[None]:
    """PySpark sets a handler that calls the JVM in the midst of another call to it."""
    mine = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    yield
    if mine and before is not None:
        signal.signal(signal.SIGINT, before)


def _stop(spark: "SparkSession") -> None:
    """In a thread of its own, which has a line of its own to the JVM: this one's may have been cut in the midst."""

    def stop() -> None:
        with suppress(Exception):  # the JVM may be gone, and the caller has been told
            spark.stop()

    stopping = threading.Thread(target=stop, name="django_events stops Spark", daemon=True)
    stopping.start()
    stopping.join(GRACE)


def _refuse_unreachable(remote: str) -> None:
    """Spark Connect would try for many minutes, and say nothing."""
    found = urlsplit(remote)
    try:
        if found.scheme != "sc" or not found.hostname:
            raise ValueError("it has no host")
        with socket.create_connection((found.hostname, found.port or CONNECT_PORT), timeout=REACH):
            pass
    except ValueError as error:
        raise Invalid(f"--remote is {remote!r}, expected one like sc://host:15002: {error}.") from None
    except OSError as error:
        raise NotReady(f"There is no Spark Connect at {remote}: {error}.") from None
