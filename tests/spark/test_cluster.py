"""Away from this process: a standalone master with two workers, a server of Spark Connect, executors with a bundle."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from django.db import connection

from django_events import Draft
from django_events.spark import java
from tests.spark.test_batch import publish, stored
from tests.spark.test_export import exported, url

pytestmark = [
    pytest.mark.usefixtures("transactional_db", "spark"),
    pytest.mark.timeout(600),
]

HOME = Path(pyspark.__file__).parent


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@contextmanager
def running(words: list[str], log: Path, environment: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as out:
        process = subprocess.Popen(words, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, 15)
        process.wait(60)


@pytest.fixture
def environment() -> dict[str, str]:
    java.provide()
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path.cwd()),
        "DATABASE_URL": url(connection.get_connection_params()),
    }


@pytest.fixture
def master(tmp_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a standalone master with two workers."""
    port, spark_class = free_port(), str(HOME / "bin/spark-class")
    address = f"spark://127.0.0.1:{port}"
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        words = [spark_class, "org.apache.spark.deploy.master.Master", *where, "--port", str(port)]
        process = stack.enter_context(running(words, tmp_path / "master.log", environment))
        wait_for_port(port, process, tmp_path / "master.log")
        for n in range(2):
            words = [spark_class, "org.apache.spark.deploy.worker.Worker", *where, "--cores", "1", "--memory", "1g"]
            words += ["--work-dir", str(tmp_path / f"work{n}"), address]
            stack.enter_context(running(words, tmp_path / f"worker{n}.log", environment))
        yield address


@pytest.fixture
def server(tmp_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a server of Spark Connect."""
    port, said = free_port(), tmp_path / "server.log"
    settings = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2}
    words = [str(HOME / "bin/spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    words += ["--master", "local[2]", *(f"--conf={key}={value}" for key, value in settings.items()), "spark-internal"]
    with running(words, said, environment) as process:
        wait_for_port(port, process, said)
        yield f"sc://127.0.0.1:{port}"


def manage(environment: dict[str, str], *words: Any) -> str:
    done = subprocess.run(
        [sys.executable, "testproject/manage.py", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.requirement("X1")
def test_a_cluster_exports_and_follows(
    spark: Any, log: Callable[..., Any], tmp_path: Path, master: str, environment: dict[str, str]
) -> None:
    topic = log(*(Draft(value=n, type=f"t{n % 3}") for n in range(3_000)), partitions=2)
    parts = ("--part", 1_000, "--by", "day,type", "--master", master)

    assert manage(environment, "export_events", topic, "--to", tmp_path / "out", *parts).startswith("Exported 3,000")
    assert exported(spark, tmp_path / "out") == stored(topic)
    live = ("stream_events", topic, "--to", tmp_path / "live", "--once", "--master", master)
    assert manage(environment, *live) == "Events written: 3,000.\n"
    publish(topic, *range(10))
    assert manage(environment, *live) == "Events written: 10.\n"
    assert exported(spark, tmp_path / "live") == stored(topic)


@pytest.mark.requirement("X1")
def test_a_server_of_spark_connect_exports_follows_and_counts(
    spark: Any, log: Callable[..., Any], tmp_path: Path, server: str, environment: dict[str, str]
) -> None:
    topic = log(*(Draft(value=n, type=f"t{n % 3}") for n in range(3_000)), partitions=2)
    client = {**environment, "JAVA_HOME": str(tmp_path / "none")}
    export = ("export_events", topic, "--to", tmp_path / "out", "--part", 2_000, "--by", "day,type", "--remote", server)

    assert manage(client, *export).startswith("Exported 3,000")
    assert manage(client, *export).startswith("Nothing to export")
    assert exported(spark, tmp_path / "out") == stored(topic)
    live = ("stream_events", topic, "--to", tmp_path / "live", "--once", "--remote", server)
    assert manage(client, *live) == "Events written: 3,000.\n"
    publish(topic, *range(10))
    assert manage(client, *live) == "Events written: 10.\n"
    assert exported(spark, tmp_path / "live") == stored(topic)
    counted = manage(client, "analyze_events", "counts", topic, "--remote", server, "--format", "json")
    assert sum(row["events"] for row in json.loads(counted)) == 3_010


def test_executors_run_on_a_bundle(
    log: Callable[..., Any], tmp_path: Path, environment: dict[str, str], dsn: str
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    archive = tmp_path / "bundle.zip"
    made = subprocess.run(
        [sys.executable, "-m", "django_events.spark", str(archive)], capture_output=True, text=True, check=True
    )
    assert "for spark-submit --py-files" in made.stdout
    job = tmp_path / "job.py"
    job.write_text(
        "import os, sys\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "import django_events, django_events.spark.source as source\n"
        "assert 'bundle.zip' in django_events.__file__, django_events.__file__\n"
        "spark.dataSource.register(source.EventsSource)\n"
        "events = spark.read.format('django_events').option('dsn', os.environ['DSN'])\n"
        f"print('COUNT', events.option('subscribe', '{topic.name}').load().count())\n"
    )
    alone = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    submit = [str(HOME / "bin/spark-submit"), "--master", "local[2]", "--py-files", str(archive), str(job)]
    done = subprocess.run(
        submit, env={**alone, "DSN": dsn}, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert "COUNT 10" in done.stdout, done.stderr
