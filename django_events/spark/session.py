"""A Spark session for this project's commands: local by default, on a cluster or through Spark Connect by one word."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from django_events.exceptions import InvalidOption, NotReady
from django_events.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
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
QUIET = Path(__file__).with_name("quiet.properties")


@contextmanager
def session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator["SparkSession"]:
    """A session that ends with the block. Somebody else's that is open already is used, and left open."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise NotReady("PySpark is not installed. Run: pip install 'django-events-pg[spark]'") from None
    if master and remote:
        raise InvalidOption("Say where Spark is once: --master for a cluster, or --remote for Spark Connect.")
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    wanted = {**SETTINGS, **(settings or {})}
    builder = SparkSession.builder.appName(name)
    if remote:
        builder = builder.remote(remote)
    else:
        java.provide()
        if master is None or master.startswith("local"):
            wanted = {**OF_A_LOCAL_ONE, **wanted}
            java_options = [wanted.get(JAVA_OPTIONS, ""), f"-Dlog4j2.configurationFile={QUIET.as_uri()}"]
            wanted[JAVA_OPTIONS] = " ".join(java_options)
            # Workers start with this interpreter, and find what it finds.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        builder = builder.master(master or LOCAL)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
