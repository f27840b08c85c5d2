"""Mirrors, and inboxes of another site's log, whose workers are killed and freeze, and whose source fails.

Two sites with a server each. All events of the one are those of the other: once, in their order, and with kept ids as
they are.
"""

import json
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.faults.rounds import rounds_of_trouble
from tests.support.fix_servers import database_of
from tests.support.processes import Processes, freeze
from tests.support.proxies import CuttingProxy, SilentProxy

pytestmark = pytest.mark.requirement("X22", "S8")

READY = "Ctrl-C stops."
READS = "bytes_before"  # of the question for a batch
SETTINGS = "tests.support.mirror_settings"
LOG = (
    "SELECT e.id, e.partition, e.number, e.key, e.value::text, e.published_at, e.logged_at"
    " FROM django_events_event AS e JOIN django_events_topic AS t ON t.id = e.topic_id"
    " WHERE t.name = 'letters' ORDER BY e.id"
)
KINDS = ["kept", "new"]
SENDS = {"kept": "PGCOPY", "new": '"inbox"'}  # of the rows that a worker sends to the database here


class Sites:
    """A shop, which publishes, and a site that has its events; in between a network that may fail."""

    def __init__(self, here: Processes, shop: Processes, server: Server, ids: str) -> None:
        self.here, self.shop, self.server, self.ids = here, shop, server, ids
        address = urlsplit(shop.url)
        self.proxy = SilentProxy(f"tcp://{address.hostname}:{address.port}")
        self.database = CuttingProxy(here.url)
        self.options = {"dbname": address.path[1:], "host": "127.0.0.1", "timeout": 3, **self._login()}
        here.variables["MIRROR_IDS"] = ids
        ended = here.run("migrate", "-v0")
        assert ended.returncode == 0, ended.stderr
        self.connection = psycopg.connect(here.url, autocommit=True)
        self.sent = 0
        self.move()
        if ids == "new":
            here.start("run_transfer")

    def _login(self) -> dict[str, str]:
        """A login of the shop's that may do what a mirror needs."""
        granted = self.shop.run("events", "grants", "--role", "mirror", "--to", "mirror_role")
        assert granted.returncode == 0, granted.stderr
        with psycopg.connect(self.shop.url, autocommit=True) as session, psycopg.ClientCursor(session) as cursor:
            cursor.execute("DROP ROLE IF EXISTS mirror_login")
            cursor.execute(granted.stdout)
            cursor.execute("CREATE ROLE mirror_login LOGIN PASSWORD 'of-the-mirror' IN ROLE mirror_role")
        return {"user": "mirror_login", "password": "of-the-mirror"}

    def move(self) -> None:
        """Start the shop's transfer, which is at work when this returns: one that finds no server at first ends."""
        process = self.shop.start("run_transfer")
        self.shop.wait_until(lambda: READY in self.shop.said(process), what="a transfer that is ready")

    def worker(
        self, *, by_proxy: bool = False, to_database_by_proxy: bool = False, database: str = ""
    ) -> "subprocess.Popen[str]":
        """Start one, which is at work when this returns."""
        port = self.proxy.port if by_proxy else urlsplit(self.shop.url).port
        self.here.variables["MIRROR_BROKERS"] = json.dumps({"shop": {**self.options, "port": port}})
        self.here.variables["DATABASE_URL"] = database or (self.database.url if to_database_by_proxy else self.here.url)
        process = self.here.start("run_inbox", "received", "--skip-checks")
        self.here.wait_until(lambda: READY in self.here.said(process), what="a worker that is ready")
        return process

    def send(self, messages: int) -> None:
        numbers = range(self.sent + 1, self.sent + messages + 1)
        with psycopg.connect(self.shop.url) as session:
            for number in numbers:
                session.execute(
                    "SELECT django_events_publish('letters', to_jsonb(%s::int), key => %s)", [number, f"k{number % 7}"]
                )
        self.sent += messages

    def inbox_row(self) -> list[Any]:
        return self.connection.execute("SELECT to_jsonb(i) FROM django_events_inbox AS i").fetchall()

    def taken(self) -> int:
        [[answer]] = self.connection.execute(
            "SELECT coalesce(max(taken), 0) FROM django_events_inbox WHERE name = 'received'"
        ).fetchall()
        return int(answer)

    def wait_until_done(self, *, repaired: bool = False) -> None:
        def is_done() -> bool:
            if repaired:
                self.proxy.come_back()
            return self.taken() == self.sent

        try:
            self.here.wait_until(is_done, what="all events taken in")
        except AssertionError as error:
            error.add_note(f"the shop: {self.shop.log_of('run_transfer')[-2_000:]}")
            error.add_note(f"sent {self.sent}, logged {len(self.logged())}, {self.inbox_row()}")
            raise

    def logged(self) -> list[tuple[Any, ...]]:
        return self.connection.execute(LOG).fetchall()

    def check(self) -> None:
        self.here.wait_until(lambda: len(self.logged()) >= self.sent, what="all events in the log")
        with psycopg.connect(self.shop.url) as session:
            there = session.execute(LOG).fetchall()
        if self.ids == "kept":
            assert self.logged() == there
        assert [row[:2] + row[3:5] for row in self.logged()] == [row[:2] + row[3:5] for row in there]
        assert [int(row[4]) for row in there] == list(range(1, self.sent + 1))
        assert self.taken() == self.sent
        proved = self.here.run("events", "verify")
        assert proved.returncode == 0, proved.stdout + proved.stderr

    def close(self) -> None:
        self.here.end()
        self.shop.end()
        self.proxy.close()
        self.database.close()
        self.connection.close()


@pytest.fixture(scope="module")
def shop_server() -> Iterator[Server]:
    with Server(options={"fsync": "off"}) as server:
        yield server


@pytest.fixture(scope="module")
def shop_template(shop_server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = Processes(database_of(shop_server, "migrated"), tmp_path_factory.mktemp("shop"), settings=SETTINGS)
    ended = made.run("migrate", "-v0")
    assert ended.returncode == 0, ended.stderr
    return "migrated"


@pytest.fixture
def settings_module() -> str:
    return SETTINGS


@pytest.fixture
def sites(
    processes: Processes, shop_server: Server, shop_template: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Sites]:
    (tmp_path / "shop").mkdir()
    with psycopg.connect(shop_server.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
    shop = Processes(database_of(shop_server, "shop", shop_template), tmp_path / "shop", settings=SETTINGS)
    with closing(Sites(processes, shop, shop_server, request.param)) as sites:
        yield sites


@pytest.mark.parametrize("sites", KINDS, indirect=True)
def test_who_froze_with_a_question_on_its_way_takes_in_nothing_twice(sites: Sites):
    """It has asked for a batch, and gets it when another worker has taken it in, and what came later."""
    frozen = sites.worker(by_proxy=True)
    sites.send(1)
    sites.wait_until_done()
    sites.proxy.vanish_at(READS, arrives=True)
    sites.send(30)
    sites.here.wait_until(sites.proxy.vanished.is_set, what="a question on its way")
    freeze(frozen)
    twin = sites.worker()
    sites.wait_until_done()
    sites.proxy.come_back()
    frozen.send_signal(signal.SIGCONT)
    sites.send(10)
    sites.wait_until_done()
    twin.terminate()
    twin.wait()
    sites.send(10)
    sites.wait_until_done()

    sites.check()


@pytest.mark.parametrize("sites", KINDS, indirect=True)
def test_who_froze_while_it_sent_rows_keeps_no_other_waiting(sites: Sites):
    """PostgreSQL waits for the rest of a COPY for ever, and the transaction keeps its locks."""
    with closing(SilentProxy(sites.here.url)) as silent:
        frozen = sites.worker(database=silent.url)
        sites.send(30)
        sites.wait_until_done()
        silent.vanish_at(SENDS[sites.ids])
        sites.send(30)
        sites.here.wait_until(silent.vanished.is_set, what="rows on their way")
        freeze(frozen)
        sites.worker()
        sites.wait_until_done()
        silent.come_back()
        frozen.send_signal(signal.SIGCONT)
        sites.send(30)
        sites.wait_until_done()

        sites.check()


@pytest.mark.parametrize("sites", KINDS, indirect=True)
@pytest.mark.parametrize("lost", ["answer", "commit", "strand"])
def test_a_commit_whose_answer_is_lost_is_one_commit(sites: Sites, lost: str):
    sites.worker(to_database_by_proxy=True)
    sites.send(30)
    sites.wait_until_done()
    if lost == "answer":
        sites.database.lose_next_answer()
    elif lost == "commit":
        sites.database.lose_next_commit()
    else:  # the server keeps the transaction open, and its locks, until it finds out
        sites.database.strand_next_commit()
    sites.send(30)
    sites.here.wait_until(sites.database.lost.is_set, what="a COMMIT that is lost")
    sites.wait_until_done()
    sites.send(5)
    sites.wait_until_done()

    sites.check()


@pytest.mark.parametrize("sites", KINDS, indirect=True)
def test_a_source_that_is_killed_and_a_network_that_is_silent_are_waited_for(sites: Sites):
    sites.worker(by_proxy=True)
    sites.send(20)
    sites.wait_until_done()
    sites.server.stop("immediate")
    sites.here.wait_until(lambda: "takes nothing in since" in sites.here.log_of("run_inbox"), what="an outage")
    sites.server.start()
    sites.send(20)
    sites.wait_until_done()
    sites.proxy.vanish_at(READS)
    sites.send(20)
    sites.here.wait_until(sites.proxy.vanished.is_set, what="silence")
    sites.here.wait_until(lambda: "did not answer within 3 s" in sites.here.log_of("run_inbox"), what="a limit")
    sites.proxy.come_back()
    sites.wait_until_done()
    assert "of-the-mirror" not in sites.here.log_of("run_inbox")

    sites.check()


@pytest.mark.parametrize("sites", KINDS, indirect=True)
def test_a_pooler_may_be_in_between(sites: Sites, pooler: str):
    twins = [sites.worker(database=pooler), sites.worker(database=pooler)]
    for _ in range(5):
        sites.send(30)
        sites.wait_until_done()
    assert all(twin.poll() is None for twin in twins)

    sites.check()


@pytest.mark.parametrize("sites", ["kept"], indirect=True)
def test_a_source_that_is_restored_from_a_backup_is_said(sites: Sites):
    worker = sites.worker()
    sites.send(30)
    sites.wait_until_done()
    sites.shop.end()
    _copy_database(sites.server, "shop", "backup")
    sites.move()
    sites.send(30)
    sites.wait_until_done()
    sites.shop.end()
    _copy_database(sites.server, "backup", "shop")
    assert worker.poll() is None
    sites.here.wait_until(lambda: "ends at 30" in sites.here.log_of("run_inbox"), what="a shorter log")
    sites.move()
    before = sites.logged()
    sites.send(60)
    sites.here.wait_until(lambda: "is another one than the one" in sites.here.log_of("run_inbox"), what="another event")
    assert sites.logged() == before


def _copy_database(server: Server, name: str, to: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as session:
        session.execute(f"DROP DATABASE IF EXISTS {to} WITH (FORCE)")
        session.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    for _ in range(50):
        try:
            database_of(server, to, name)
        except psycopg.errors.ObjectInUse:
            with psycopg.connect(server.url, autocommit=True) as session:
                session.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        else:
            return
    raise AssertionError(f"{name} is in use")


@pytest.mark.parametrize("sites", KINDS, indirect=True)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.timeout(1_800)  # each round starts processes, which takes its time on a busy machine
def test_thirty_rounds_of_trouble(sites: Sites, seed: int):
    dice = random.Random(seed)

    def source() -> None:
        sites.server.stop("immediate")
        sites.server.start()

    def network() -> None:
        sites.proxy.vanish_at(READS, arrives=dice.random() < 0.5)
        sites.send(1)
        if dice.random() < 0.5:
            sites.proxy.come_back()

    def commit() -> "subprocess.Popen[str]":
        worker = sites.worker(to_database_by_proxy=True)
        dice.choice([sites.database.lose_next_answer, sites.database.lose_next_commit])()
        return worker

    rounds_of_trouble(sites, 30, dice, source=source, network=network, commit=commit)
