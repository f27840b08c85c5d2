"""One process works on two databases of two servers, of which a test stops one: the other one never waits for it."""

import json
import signal
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.acceptance.conftest import Office, wait_until_told
from tests.support.fix_servers import database_of
from tests.support.processes import Processes, wait_until

pytestmark = [pytest.mark.requirement("E11"), pytest.mark.quick]
BOTH = ("--database", "default", "--database", "west")


@pytest.fixture(scope="module")
def west_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(options={"fsync": "off"}) as server:
        template = Processes(
            database_of(server, "migrated"), tmp_path_factory.mktemp("west"), settings="tests.support.several_settings"
        )
        ended = template.run("migrate", "-v0")
        assert ended.returncode == 0, ended.stderr
        yield server


@pytest.fixture
def settings_module() -> str:
    return "tests.support.several_settings"


class West(Office):
    """The second office, whose server can be stopped. It connects anew for each question."""

    def __init__(self, server: Server, url: str, processes: Processes) -> None:
        self.server, self.url, self.processes = server, url, processes

    def ask(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as session:
            return session.execute(query, parameters).fetchall()


@pytest.fixture
def west(west_server: Server, processes: Processes) -> Iterator[West]:
    """The second database, fresh; its server runs again when the test ends."""
    with psycopg.connect(west_server.url, autocommit=True) as session:
        session.execute("DROP DATABASE IF EXISTS west WITH (FORCE)")
    url = database_of(west_server, "west", "migrated")
    processes.variables["WEST_URL"] = url
    yield West(west_server, url, processes)
    if not west_server.running:
        west_server.start()


def wait_for(office: Office, number: int) -> None:
    office.processes.wait_until(lambda: len(office.effects("answering")) >= number, what=f"{number} letters")


@pytest.mark.slow
def test_events_of_both_are_moved_and_handled_where_they_are(processes: Processes, office: Office, west: West):
    worker = processes.start("run_events", *BOTH)
    office.post({"silent": False}, {})
    west.post({"silent": False})
    wait_for(office, 2)
    wait_for(west, 1)
    processes.wait_until(lambda: office.effects("reading") and west.effects("reading"), what="both answers")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    said = processes.said(worker)
    assert "Moving the events of 'default', 'west' into the log, and handing them to billing, " in said
    assert "Events moved into the log: 3 of 'default', 2 of 'west'." in said
    assert "Events handled: 3 of 'default', 2 of 'west'." in said
    assert west.leases() == office.leases() == 0


@pytest.mark.slow
@pytest.mark.parametrize("commands", [[("run_transfer",), ("run_consumer", "answering")], [("run_events",)]])
@pytest.mark.few(1)
def test_once_does_what_can_be_done_and_says_what_could_not(
    processes: Processes, office: Office, west: West, commands: list[tuple[str, ...]]
):
    office.post({})
    west.server.stop("immediate")
    ended = [processes.run(*command, "--once", "--all-databases") for command in commands]

    assert [one.returncode for one in ended] == [75] * len(commands)
    for one in ended:
        assert "The database 'west' can't be reached." in one.stderr and "Traceback" not in one.stderr
    assert "1 of 'default', 0 of 'west'" in ended[-1].stdout
    assert len(office.effects("answering")) == 1

    west.server.start()
    west.post({})
    ended = [processes.run(*command, "--once", "--all-databases") for command in commands]
    assert [one.returncode for one in ended] == [0] * len(commands)
    assert len(west.effects("answering")) == 1


@pytest.mark.long
def test_one_that_is_away_at_the_start_is_served_when_it_comes_and_again_after_a_crash(
    processes: Processes, office: Office, west: West
):
    west.server.stop("immediate")
    worker = processes.start("run_events", *BOTH)
    office.post({})
    wait_for(office, 1)
    processes.wait_until(
        lambda: "'west' can't be served, next try in" in processes.said(worker), what="what is said of west"
    )
    west.server.start()
    west.post({})
    wait_for(west, 1)
    west.server.stop("immediate")
    office.post({})
    wait_for(office, 2)
    west.server.start()
    west.post({})
    wait_for(west, 2)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    said = processes.said(worker)
    assert "The database 'west' works again" in said and "Traceback" not in said
    assert "'default' failed" not in said and "'default' can't" not in said


@pytest.mark.long
def test_a_transfer_and_a_consumer_go_on_beside_a_database_that_refuses(
    processes: Processes, office: Office, west: West
):
    started = [processes.start(*command, *BOTH) for command in (("run_transfer",), ("run_consumer", "answering"))]
    west.post({})
    wait_for(west, 1)
    with psycopg.connect(west.server.url, autocommit=True) as session:
        session.execute("ALTER DATABASE west ALLOW_CONNECTIONS false")
        session.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'west'")
        office.post({})
        wait_for(office, 1)
        for one in started:
            wait_until(
                lambda one=one: "is not currently accepting connections" in processes.said(one), what="a refusal"
            )
        office.post({})
        wait_for(office, 2)
        session.execute("ALTER DATABASE west ALLOW_CONNECTIONS true")
    west.post({})
    wait_for(west, 2)
    for one in started:
        one.send_signal(signal.SIGINT)

    assert [one.wait(60) for one in started] == [0, 0]


@pytest.mark.slow
def test_a_database_without_our_tables_is_said_and_the_other_one_is_served(
    processes: Processes, office: Office, west: West
):
    processes.variables["WEST_URL"] = urlunsplit(urlsplit(west.url)._replace(path="/postgres"))
    worker = processes.start("run_events", *BOTH)
    office.post({})
    wait_for(office, 1)
    processes.wait_until(lambda: "migrate --database west" in processes.said(worker), what="the way out")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0


@pytest.mark.slow
def test_where_none_can_be_reached_at_the_start_a_supervisor_sees_it(processes: Processes, west: West):
    west.server.stop("immediate")
    processes.url = urlunsplit(urlsplit(processes.url)._replace(path="/nothing_here"))
    ended = processes.run("run_events", *BOTH, timeout=30)

    assert ended.returncode == 75
    for alias in ("default", "west"):
        assert f"The database '{alias}' can't be reached." in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.long
def test_the_second_signal_gives_the_leases_of_both_back(processes: Processes, office: Office, west: West):
    """The letters are in hand for an hour otherwise, as the lease of these consumers says."""
    with office.gate(1) as here, psycopg.connect(west.url, autocommit=True) as there:
        there.execute("SELECT pg_advisory_lock(1)")
        worker = processes.start("run_events", *BOTH)
        office.post({"gate": 1})
        west.post({"gate": 1})
        here.wait_for_a_waiting_session()
        processes.wait_until(lambda: west.leases() and office.leases(), what="leases on both")
        worker.send_signal(signal.SIGINT)
        wait_until_told(worker)
        worker.send_signal(signal.SIGINT)

        assert worker.wait(60) == 1
    assert (office.leases(), west.leases()) == (0, 0)


@pytest.mark.long
def test_reports_have_a_section_for_each_database(processes: Processes, office: Office, west: West):
    office.post({})
    west.post({}, {})
    status = processes.run("events", "status", *BOTH)
    assert status.returncode == 0
    here, there = status.stdout.split("DATABASE west")
    assert here.startswith("DATABASE default") and "letters" in here and "letters" in there

    west.server.stop("immediate")
    for subcommand in ("topics", "consumers", "health"):
        ended = processes.run("events", subcommand, *BOTH, "--format", "json")
        first, second = json.loads(ended.stdout)["databases"]
        assert ended.returncode == 75
        assert (first["database"], first["code"], first["error"]) == ("default", 0, None)
        assert first["report"] is not None
        assert (second["database"], second["code"], second["report"]) == ("west", 75, None)
        assert second["error"].startswith("The database 'west' can't be reached.")
    told = processes.run("events", "status", "--all-databases").stdout
    assert "DATABASE west\n\nThe database 'west' can't be reached." in told and "letters" in told


@pytest.mark.long
def test_what_changes_something_is_about_one_database(processes: Processes, west: West):
    ended = processes.run("events", "pause", "answering", *BOTH)
    assert ended.returncode == 2
    assert "events pause is about one database at a time, got 2." in ended.stderr
    ended = processes.run("events", "status", "--database", "west", "--all-databases")
    assert (ended.returncode, ended.stderr) == (2, "CommandError: Name databases, or say --all-databases, not both.\n")


@pytest.mark.long
def test_a_watched_status_goes_on_while_one_of_them_is_away(processes: Processes, west: West):
    watching = processes.start("events", "status", *BOTH, "--watch", "0.1", "--format", "json")
    processes.wait_until(lambda: '"report"' in processes.said(watching), what="the first report")
    west.server.stop("immediate")
    processes.wait_until(lambda: "can't be reached" in processes.said(watching), what="what is said of west")
    west.server.start()
    away = processes.said(watching).count("\n")
    processes.wait_until(lambda: processes.said(watching).count("\n") > away + 2, what="more reports")
    watching.send_signal(signal.SIGINT)

    assert watching.wait(60) == 0
    first, *_, last = (json.loads(line)["databases"] for line in processes.said(watching).splitlines())
    assert [one["code"] for one in first] == [one["code"] for one in last] == [0, 0]


@pytest.mark.slow
def test_a_frozen_server_keeps_neither_the_other_database_nor_the_end_waiting(
    processes: Processes, office: Office, west: West
):
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        server = urlsplit(west.url)
        processes.variables["WEST_URL"] = urlunsplit(
            server._replace(netloc=f"{server.username}:{server.password}@127.0.0.1:{port}")
        )
        processes.variables["VANISHED_AFTER"] = "2"  # to connect, too
        worker = processes.start("run_events", *BOTH)
        office.post({})
        wait_for(office, 1)
        worker.send_signal(signal.SIGTERM)

        assert worker.wait(30) == 0
    assert len(office.effects("answering")) == 1
