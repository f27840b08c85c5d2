"""A physical copy of a server that takes its place, and a log that is replicated to another server by its rows."""

import shutil
from contextlib import closing

import psycopg
import pytest

from testproject.private_postgres.account import server_account
from testproject.private_postgres.server import Server
from tests.support.fix_restores import MakeServer, newest, program
from tests.support.fix_servers import database_of
from tests.support.processes import Processes, check_log, wait_until
from tests.support.proxies import CuttingProxy

TOPICS = ["orders", "payments", "stock"]


def make_standby(make_server: MakeServer, first: Server, url: str = "") -> Server:
    """A server in whose folder is a copy of the first one's data, following it at an address, by default its own."""
    standby = make_server()
    standby.stop()
    copy = standby.folder / "copy"
    program(
        newest(), "pg_basebackup", f"--dbname={url or first.url}", f"--pgdata={copy}", "--write-recovery-conf",
        "--checkpoint=fast", "--no-sync",
    )  # fmt: skip
    shutil.rmtree(standby.data)
    copy.rename(standby.data)
    server_account().give(standby.data)
    standby.password = first.password
    standby.start()
    return standby


@pytest.mark.slow
@pytest.mark.requirement("P13")
def test_a_standby_that_takes_the_place_of_the_server_loses_and_doubles_nothing(make_server: MakeServer, tmp_path):
    """It is synchronous, and gets the address of the first one; processes find it by themselves."""
    first = make_server()
    url = database_of(first)
    processes = Processes(url, tmp_path)
    try:
        assert processes.run("migrate", "-v0").returncode == 0
        standby = make_standby(make_server, first)
        with psycopg.connect(first.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            wait_until(
                lambda: connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone(),
                what="a synchronous standby",
            )
        publishers = [processes.start_publisher(f"p{i}", "read committed", "0.02") for i in range(2)]
        workers = [processes.start("run_transfer"), processes.start("run_consumer", "search")]
        committed = lambda: sum(len(p.values("committed")) for p in publishers)  # noqa: E731
        processes.wait_until(lambda: committed() > 100, what="publishers at work")
        with psycopg.connect(url, autocommit=True) as connection:
            processes.wait_until(
                lambda: (
                    connection.execute("SELECT max(position) > 0 FROM django_events_position").fetchone() == (True,)
                ),
                what="workers at work",
            )

        first.stop("immediate")
        before = committed()
        with psycopg.connect(standby.url, autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)
        standby.stop()
        standby._port = first.port
        standby.start()
        processes.wait_until(lambda: committed() > before + 50, what="publishers that go on")
        for publisher in publishers:
            publisher.stop()
        with psycopg.connect(url, autocommit=True) as connection:
            processes.wait_until(
                lambda: connection.execute("SELECT count(*) FROM django_events_bufferedevent").fetchone() == (0,),
                what="a transfer that came back by itself",
            )
        for worker in workers:
            assert worker.poll() is None, processes.said(worker)
            worker.terminate()
            assert worker.wait(60) == 0
        assert check_log(url, TOPICS, publishers) >= committed()
        assert processes.run("events", "verify").returncode == 0
    finally:
        processes.end()


@pytest.mark.requirement("P13")
def test_a_batch_waits_for_a_synchronous_standby_so_what_was_read_outlives_a_failover(
    make_server: MakeServer, tmp_path
):
    """The standby is cut off, and gets no more; then the first server is gone."""
    first = make_server()
    url = database_of(first)
    processes = Processes(url, tmp_path)
    with closing(CuttingProxy(first.url)) as wire:
        try:
            assert processes.run("migrate", "-v0").returncode == 0
            standby = make_standby(make_server, first, wire.url)
            with psycopg.connect(first.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
                wait_until(
                    lambda: connection.execute(
                        "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
                    ).fetchone(),
                    what="a synchronous standby",
                )
            transfer = processes.start("run_transfer")
            publish_some(url, 10)
            wait_until(lambda: read(url) == [*range(1, 11)], what="what is read before")

            wire.hold()
            with psycopg.connect(url, autocommit=True) as impatient:
                impatient.execute("SET synchronous_commit = local")
                impatient.execute("SELECT django_events_publish('stock', '\"on one disk\"')")
                waiting = (
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'"
                )
                wait_until(lambda: impatient.execute(waiting).fetchone(), what="a batch that waits for the standby")
            assert read(url) == [*range(1, 11)], "what waits is read by no consumer"

            first.stop("immediate")
            with psycopg.connect(standby.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
                assert connection.execute("SELECT pg_promote()").fetchone() == (True,)
            standby.stop()
            standby._port = first.port
            standby.start()
            publish_some(url, 5)
            processes.wait_until(lambda: len(read(url)) == 15, what="a transfer that came back by itself")
            assert read(url) == [*range(1, 16)]
            assert transfer.poll() is None, processes.said(transfer)
            transfer.terminate()
            assert transfer.wait(60) == 0
            assert processes.run("events", "verify").returncode == 0
        finally:
            processes.end()


def publish_some(url: str, number: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "SELECT django_events_publish('stock', to_jsonb(n)) FROM generate_series(1, %s) AS n", [number]
        )


def read(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return ids(connection)


def test_the_log_is_replicated_by_its_root_to_one_plain_table(make_server: MakeServer, tmp_path):
    """What docs/how-to/back-up.md says of logical replication: segments come and go, and the subscriber needs none."""
    publisher, subscriber = make_server(wal_level="logical"), make_server()
    url, copy = database_of(publisher), database_of(subscriber, "copy")
    processes = Processes(url, tmp_path)
    assert processes.run("migrate", "-v0").returncode == 0
    with psycopg.connect(url, autocommit=True) as source, psycopg.connect(copy, autocommit=True) as target:
        publish = "SELECT django_events_publish('stock', to_jsonb(n)) FROM generate_series(1, 30) AS n"
        source.execute(publish)
        assert processes.run("run_transfer", "--once").returncode == 0
        source.execute(
            "CREATE PUBLICATION events FOR TABLE django_events_event, django_events_topic"
            " WITH (publish = 'insert', publish_via_partition_root = true)"
        )
        for table in ("django_events_event", "django_events_topic"):
            columns = source.execute(
                "SELECT string_agg(format('%%I %%s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum)"
                " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                [table],
            ).fetchone()[0]
            target.execute(f"CREATE TABLE {table} ({columns})")
        target.execute("ALTER TABLE django_events_event ADD PRIMARY KEY (topic_id, id)")
        target.execute(f"CREATE SUBSCRIPTION events CONNECTION '{dsn(url)}' PUBLICATION events")
        try:
            wait_until(lambda: ids(target) == ids(source) != [], what="the first copy")
            # a segment that is new, and one that goes: neither is known to the subscriber
            source.execute(
                "UPDATE django_events_topic SET segment_size = 40, retention_events = 10 WHERE name = 'stock'"
            )
            source.execute(publish)
            assert processes.run("run_transfer", "--once").returncode == 0
            assert processes.run("events", "maintain", "segments", "retention").returncode == 0
            source.execute(publish)
            assert processes.run("run_transfer", "--once").returncode == 0
            wait_until(lambda: len(ids(target)) == 90, what="what came later")
            assert ids(target) == [*range(1, 91)]
            assert processes.run("events", "maintain", "segments", "retention").returncode == 0
            assert ids(target) == [*range(1, 91)], "what retention drops at the source stays here"
        finally:
            target.execute("DROP SUBSCRIPTION events")


def ids(connection: psycopg.Connection) -> list[int]:
    return [id for (id,) in connection.execute("SELECT id FROM django_events_event ORDER BY id").fetchall()]


def dsn(url: str) -> str:
    return psycopg.conninfo.make_conninfo(url)
