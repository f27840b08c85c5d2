"""Away from this process: a standalone master with two workers, a server of Spark Connect, executors with a bundle."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyspark
import pytest
from django.db import connection

from django_events import Draft
from django_events.spark import java
from testproject.private_postgres.server import choose_free_port
from tests.integration.exporting.test_expiring import rows_on_disk
from tests.spark.conftest import SHORT_LIVED, killed_in
from tests.spark.rivals import (
    EVENTS,
    FREEZES,
    OF_A_TABLE,
    PATIENCE,
    ROUNDS,
    SLOWLY,
    Rival,
    Standing,
    children,
    command,
    export_that_wakes_up_too_late,
    follower_that_wakes_up_too_late,
    ids,
    left_over,
    rival,
    standing,
    two_followers_after_a_kill,
)
from tests.spark.test_batch import publish, stored
from tests.spark.test_export import exported, run, url
from tests.support.processes import wait_until
from tests.support.tables import files_of, read_back
from tests.support.tables import run as run_table

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("transactional_db", "spark"),
    # Deadlines only end a test that hangs: five commands that each start Spark take minutes on a busy machine.
    pytest.mark.timeout(1_200),
]

HOME = Path(pyspark.__file__).parent
MANY_TASKS = ("--target-size", "4KB")  # of a table


def wait_for_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
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


@pytest.fixture(scope="module")
def machine() -> dict[str, str]:
    """Variables for all processes of Spark's."""
    java.provide()
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path.cwd()),
        "JAVA_TOOL_OPTIONS": SHORT_LIVED,
    }


@pytest.fixture
def environment(machine: dict[str, str]) -> dict[str, str]:
    return {**machine, "DATABASE_URL": url(connection.get_connection_params())}


@dataclass(frozen=True)
class Machine:
    """A worker with its executors and their Pythons: all that stops when a machine does."""

    worker: int

    def pids(self) -> list[int]:
        """The parents first: a frozen one starts nothing."""
        found = [self.worker]
        for pid in found:
            found += children(pid)
        return found

    def executor_writing_into(self, folder: Path) -> int | None:
        return next((pid for pid in self.pids() if writes_into(pid, folder)), None)

    def freeze(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in reversed(self.pids()):
            os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True)
class Cluster:
    """A standalone master with two workers."""

    master: str
    machines: list[Machine]

    @contextmanager
    def frozen_while_it_writes_into(self, folder: Path, follower: Rival) -> Iterator[int]:
        """A machine is frozen for the block, with a file half written; gives the executor that was at it."""

        def found() -> tuple[Machine, int] | None:
            assert follower.process.poll() is None, follower.said
            for one in self.machines:
                if one.executor_writing_into(folder):
                    one.freeze()
                    if executor := one.executor_writing_into(folder):
                        return one, executor
                    one.thaw()
            return None

        machine, executor = wait_until(found, seconds=PATIENCE, what=f"a machine that writes into {folder}")
        try:
            yield executor
        finally:
            machine.thaw()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, machine: dict[str, str]) -> Iterator[Cluster]:
    port, spark_class, folder = choose_free_port(), str(HOME / "bin/spark-class"), tmp_path_factory.mktemp("cluster")
    address = f"spark://127.0.0.1:{port}"
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        words = [spark_class, "org.apache.spark.deploy.master.Master", *where, "--port", str(port)]
        process = stack.enter_context(running(words, folder / "master.log", machine))
        wait_for_port(port, process, folder / "master.log")
        machines = []
        for n in range(2):
            words = [spark_class, "org.apache.spark.deploy.worker.Worker", *where, "--cores", "2", "--memory", "2g"]
            words += ["--work-dir", str(folder / f"work{n}"), address]
            process = stack.enter_context(running(words, folder / f"worker{n}.log", machine))
            machines.append(Machine(process.pid))
        yield Cluster(address, machines)


@pytest.fixture
def outside(environment: dict[str, str], scratch: dict[str, str]) -> dict[str, str]:
    """Variables for a command that is killed."""
    return {**environment, **scratch}


@pytest.fixture(scope="module")
def first(
    cluster: Cluster, machine: dict[str, str], django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standing]:
    """A process that runs commands on the cluster."""
    with (
        TemporaryDirectory(prefix="spark-", ignore_cleanup_errors=True) as folder,
        standing(tmp_path_factory.mktemp("first") / "said", {**machine, **killed_in(folder)}, cluster.master) as one,
    ):
        yield one


@pytest.fixture
def server(tmp_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a server of Spark Connect."""
    port, said = choose_free_port(), tmp_path / "server.log"
    settings = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2}
    words = [str(HOME / "bin/spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    words += ["--master", "local[2]", *(f"--conf={key}={value}" for key, value in settings.items()), "spark-internal"]
    with running(words, said, environment) as process:
        wait_for_port(port, process, said)
        yield f"sc://127.0.0.1:{port}"


def workers(machine: Machine) -> list[int]:
    """The processes in which a machine's tasks run Python."""
    return [pid for daemon in machine.pids() if "pyspark" in command(daemon) for pid in children(daemon)]


def writes_into(pid: int, folder: Path) -> bool:
    """Whether a process has a file open below a folder."""
    with suppress(OSError):
        for opened in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if opened.readlink().is_relative_to(folder) and opened.readlink().suffix in (".parquet", ".orc"):
                    return True
    return False


def manage(environment: dict[str, str], *words: Any) -> str:
    done = subprocess.run(
        [sys.executable, "testproject/manage.py", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.requirement("X1")
def test_a_cluster_exports_and_follows(
    spark: Any, log: Callable[..., Any], tmp_path: Path, cluster: Cluster, environment: dict[str, str]
) -> None:
    topic = log(*(Draft(value=n, type=f"t{n % 3}") for n in range(3_000)), partitions=2)
    parts = ("--part", 1_000, "--by", "day,type", "--master", cluster.master)

    assert manage(environment, "export_events", topic, "--to", tmp_path / "out", *parts).startswith("Exported 3,000")
    assert exported(spark, tmp_path / "out") == stored(topic)
    live = ("stream_events", topic, "--to", tmp_path / "live", "--once", "--master", cluster.master)
    assert manage(environment, *live) == "Events written: 3,000.\n"
    publish(topic, *range(10))
    assert manage(environment, *live) == "Events written: 10.\n"
    assert exported(spark, tmp_path / "live") == stored(topic)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(("round", "frozen"), [(n, FREEZES[n % 3]) for n in range(max(ROUNDS, 3))])
def test_an_export_on_a_cluster_that_lost_its_lock_and_wakes_up_changes_nothing(
    first: Standing, things: Any, tmp_path: Path, frozen: str, round: int
) -> None:
    export_that_wakes_up_too_late(first, things, tmp_path, frozen=frozen)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(("round", "frozen"), [(n, FREEZES[n % 3]) for n in range(ROUNDS)])
def test_a_follower_on_a_cluster_that_lost_its_lock_and_wakes_up_changes_nothing(
    first: Standing, things: Any, tmp_path: Path, frozen: str, round: int
) -> None:
    follower_that_wakes_up_too_late(first, things, tmp_path, frozen=frozen)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_of_two_followers_on_a_cluster_after_a_kill_one_works(
    first: Standing, things: Any, tmp_path: Path, cluster: Cluster, outside: dict[str, str], round: int
) -> None:
    two_followers_after_a_kill(first, things, tmp_path, outside, master=cluster.master)


# A machine that doesn't answer for so long is given up, and its tasks are begun elsewhere.
IMPATIENT = {
    "spark.executor.heartbeatInterval": "500ms",
    "spark.network.timeout": "3s",
    "spark.network.timeoutInterval": "500ms",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "500ms",
}


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_a_machine_that_is_frozen_while_it_writes_and_wakes_up_adds_nothing(
    things: Any, tmp_path: Path, cluster: Cluster, outside: dict[str, str], round: int
) -> None:
    """The driver gives it up, another machine does its tasks, and then it goes on with them."""
    out = tmp_path / "out"
    words = ("stream_events", things, "--to", out, "--by", "type", "--format", "orc")  # by Spark's own writer
    where = {"said": tmp_path / "said", "environment": outside, "master": cluster.master}
    with rival(*words, "--every", 1, **where, **IMPATIENT) as follower:
        with cluster.frozen_while_it_writes_into(out, follower) as executor:
            follower.wait_until_written(out, "batch=000000000000/**/*.orc")
            assert ids(out, "orc") == list(range(1, EVENTS + 1))
        publish(things, *range(10))
        follower.wait_until_written(out, "batch=000000000001/**/*.orc")
        wait_until(lambda: not command(executor), what="the end of what was frozen")
        follower.process.send_signal(signal.SIGTERM)
        assert follower.end() == 0, follower.said

    assert ids(out, "orc") == list(range(1, EVENTS + 11))
    assert run(*words[1:], "--once", command="stream_events") == "Events written: 0.\n"
    assert left_over(out) == []


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_a_machine_that_is_frozen_while_its_tasks_write_an_export_adds_nothing(
    things: Any, tmp_path: Path, cluster: Cluster, outside: dict[str, str], round: int
) -> None:
    """Its tasks are done by the other machine, and what counts is that; then it goes on with them."""
    out = tmp_path / "out"
    words = ("export_events", things, "--to", out, *SLOWLY)
    where = {"said": tmp_path / "said", "environment": outside, "master": cluster.master}
    with rival(*words, **where, **IMPATIENT) as export:
        export.wait_until_half_done(out)
        machine = wait_until(
            lambda: next((one for one in cluster.machines if workers(one)), None), what="a machine with tasks"
        )
        frozen = workers(machine)
        machine.freeze()
        try:
            assert export.end() == 0, export.said
            assert ids(out) == list(range(1, EVENTS + 1))
        finally:
            machine.thaw()
        wait_until(lambda: not any(map(command, frozen)), what="the end of what was frozen")

    assert run(*words[1:]).startswith("Nothing to export")
    assert ids(out) == list(range(1, EVENTS + 1))
    assert left_over(out) == []


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


@pytest.mark.requirement("X15")
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_tables_are_written_on_a_cluster_and_by_spark_connect(
    log: Callable[..., Any], tmp_path: Path, cluster: Cluster, server: str, environment: dict[str, str], format: str
) -> None:
    topic = log(*(Draft(value=n, type=f"t{n % 3}") for n in range(3_000)), partitions=2)
    words = ("export_events", topic, "--to", tmp_path / "out", "--format", format, "--engine", "spark")
    client = {**environment, "JAVA_HOME": str(tmp_path / "none")}

    assert manage(environment, *words, *MANY_TASKS, "--master", cluster.master).startswith("Exported 3,000")
    publish(topic, *range(100))
    assert manage(client, *words, "--remote", server).startswith("Exported 100 events")
    assert manage(client, *words, "--remote", server).startswith("Nothing to export")

    assert read_back(tmp_path / "out", format) == stored(topic)


@pytest.mark.requirement("X15")
@pytest.mark.parametrize(("round", "format"), [(n, ("delta", "iceberg")[n % 2]) for n in range(max(ROUNDS, 2))])
def test_a_machine_that_is_frozen_while_its_tasks_write_a_table_adds_nothing(
    things: Any, tmp_path: Path, cluster: Cluster, outside: dict[str, str], format: str, round: int
) -> None:
    """The other machine does its tasks, and the commit names those files; then it goes on with its own."""
    out = tmp_path / "out"
    words = ("export_events", things, "--to", out, "--format", format, "--engine", "spark", *MANY_TASKS)
    where = {"said": tmp_path / "said", "environment": outside, "master": cluster.master}
    with rival(*words, **where, **IMPATIENT) as export:
        export.wait_until_half_done(out, OF_A_TABLE)
        machine = wait_until(
            lambda: next((one for one in cluster.machines if workers(one)), None), what="a machine with tasks"
        )
        frozen = workers(machine)
        machine.freeze()
        try:
            assert export.end() == 0, export.said
            assert read_back(out, format) == stored(things)
        finally:
            machine.thaw()
        wait_until(lambda: not any(map(command, frozen)), what="the end of what was frozen")

    assert read_back(out, format) == stored(things)
    run_table(things, "--to", out, "--expire", 0, format=format)
    assert rows_on_disk(out) == files_of(out, format)
    assert read_back(out, format) == stored(things)


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
