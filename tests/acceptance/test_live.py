"""`manage.py events tail`, and streams of a server that is told to stop, as real processes."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import psycopg
import pytest

from testproject.private_postgres.server import choose_free_port
from tests.e2e.chromium import chromium
from tests.e2e.chromium import program as browser_of_tests
from tests.support.processes import MANAGE, ROOT, Processes, listens, wait_until

ENDED = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'"
)


def publish(processes: Processes, *numbers: int) -> None:
    with psycopg.connect(processes.url) as connection:
        for number in numbers:
            connection.execute("SELECT django_events_publish('orders', %s::jsonb, 'visit', null)", [f"{number}"])
    assert processes.run("run_transfer", "--once").returncode == 0


def put_into_buffer(processes: Processes, count: int) -> None:
    """Publish in ten transactions, beside a transfer that runs."""
    statement = (
        "SELECT count(django_events_publish('orders', to_jsonb(n), 'visit', null)) FROM generate_series(1, %s) AS n"
    )
    with psycopg.connect(processes.url, autocommit=True) as connection:
        for part in range(10):
            connection.execute(statement, [(count + part) // 10])


def ids(processes: Processes, tailing: "subprocess.Popen[str]") -> list[int]:
    return [json.loads(line)["id"] for line in processes.said(tailing).splitlines() if line.startswith("{")]


@pytest.mark.slow
@pytest.mark.requirement("P7")
def test_sessions_that_end_lose_nothing_and_a_frozen_twin_goes_on_where_it_was(processes: Processes) -> None:
    publish(processes, 1)
    command = ("events", "tail", "orders", "--since", "beginning", "--json")
    one, twin = processes.start(*command), processes.start(*command)
    for tailing in (one, twin):
        processes.wait_until(lambda tailing=tailing: ids(processes, tailing) == [1], what="the first event")  # type: ignore[misc]
    twin.send_signal(signal.SIGSTOP)
    for n in (2, 3):
        with psycopg.connect(processes.url, autocommit=True) as admin:
            admin.execute(ENDED)
        publish(processes, n)
        processes.wait_until(lambda n=n: len(ids(processes, one)) == n, what="the next event")  # type: ignore[misc]
    twin.send_signal(signal.SIGCONT)
    processes.wait_until(lambda: len(ids(processes, twin)) == 3, what="what the twin has slept through")
    for tailing in (one, twin):
        tailing.send_signal(signal.SIGINT)
        assert tailing.wait(60) == 0
        assert ids(processes, tailing) == [1, 2, 3]
        assert "Traceback" not in processes.said(tailing)


@pytest.mark.quick
@pytest.mark.requirement("P8")
def test_it_ends_when_its_pipe_is_closed_although_nothing_comes(processes: Processes) -> None:
    publish(processes, 1)
    command = [sys.executable, str(MANAGE), "events", "tail", "orders", "--since", "0"]
    tailing = subprocess.Popen(
        command, env=processes.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert tailing.stdout is not None and tailing.stderr is not None
    assert tailing.stdout.readline().startswith("orders/1  ")
    tailing.stdout.close()

    assert tailing.wait(60) == 0
    assert tailing.stderr.read() == ""
    tailing.stderr.close()


class Server:
    """A server on one port, which may be told to stop, killed and started again."""

    def __init__(self, processes: Processes, program: str = "uvicorn") -> None:
        self.processes = processes
        self.program = program
        if program != "runserver":
            processes.settings = "tests.support.live_settings"
        self.port = choose_free_port()
        self.start()

    def start(self) -> None:
        site, port = "tests.support.live_asgi:application", str(self.port)
        options = {
            "uvicorn": [site, "--port", port, "--lifespan", "off"],
            "daphne": ["--port", port, site],
            "gunicorn": [
                "--bind",
                f"127.0.0.1:{port}",
                "--threads",
                "8",
                "--graceful-timeout",
                "3600",
                "tests.support.live_wsgi:application",
            ],
        }
        if self.program == "runserver":
            self.process = self.processes.start("runserver", "--noreload", port)
        else:
            self.process = self.processes.start_module(self.program, *options[self.program])
        self.processes.wait_until(self._listens, what="a server that listens")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def _listens(self) -> bool:
        return listens(self.port)


@contextmanager
def direct(folder: Path, server: Server) -> Iterator[int]:
    yield server.port


@contextmanager
def nginx(folder: Path, server: Server) -> Iterator[int]:
    """nginx with the lines that the how-to gives, before a server; it answers with 502 while there is none."""
    if (program := which("nginx")) is None:
        pytest.skip("needs nginx: apt-get install nginx-light")
    block = re.search(r"```nginx\n(.*?)```", (ROOT / "docs/how-to/server-sent-events.md").read_text(), re.DOTALL)
    assert block is not None
    port = choose_free_port()
    kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\nevents {{}}\n"
        f"http {{ access_log off; {temporary}\n"
        f"upstream app {{ server 127.0.0.1:{server.port} max_fails=0; }}\n"
        f"server {{ listen 127.0.0.1:{port};\n"
        f"location / {{ proxy_pass http://app; proxy_set_header Host $host; }}\n{block[1]} }} }}\n"
    )
    process = subprocess.Popen([program, "-e", f"{folder}/nginx.log", "-c", str(configuration)])
    try:
        wait_until(lambda: listens(port), what="nginx")
        yield port
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.requirement("P10")
@pytest.mark.parametrize(
    ("program", "number"),
    [
        pytest.param("uvicorn", signal.SIGTERM, marks=pytest.mark.slow),
        ("uvicorn", signal.SIGINT),
        ("daphne", signal.SIGTERM),
        ("gunicorn", signal.SIGTERM),
    ],
)
def test_a_server_that_is_told_to_stop_waits_for_no_stream(processes: Processes, program: str, number: int) -> None:
    if find_spec(program) is None:
        pytest.skip(f"needs the package {program}")
    publish(processes, 1)
    server = Server(processes, program)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/live/?lastEventId=orders/0")
    response = connection.getresponse()
    while not (line := response.readline()).startswith(b"id: orders/1"):
        assert line
    server.process.send_signal(number)
    response.read()

    assert server.process.wait(60) in (0, -number)
    connection.close()


@pytest.mark.requirement("P7")
@pytest.mark.requirement("P10")
@pytest.mark.parametrize(
    ("program", "turns", "behind"),
    [("uvicorn", 20, direct), ("uvicorn", 4, nginx), ("daphne", 4, direct), ("gunicorn", 4, direct)],
    ids=["uvicorn", "uvicorn-behind-nginx", "daphne", "gunicorn"],
)
def test_a_browser_gets_every_event_once_and_in_order_however_often_the_server_is_killed(
    processes: Processes,
    tmp_path: Path,
    program: str,
    turns: int,
    behind: Callable[[Path, Server], AbstractContextManager[int]],
) -> None:
    if find_spec(program) is None:
        pytest.skip(f"needs the package {program}")
    path = browser_of_tests()
    server, count = Server(processes, program), 0
    processes.start("run_transfer")
    with behind(tmp_path, server) as port, chromium(path) as browser:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        for turn in range(turns):
            with psycopg.connect(processes.url) as late:
                late.execute("SELECT django_events_publish('orders', '0'::jsonb, 'visit', null)")
                put_into_buffer(processes, 400)
                server.end(signal.SIGKILL if turn % 2 else signal.SIGTERM)
            put_into_buffer(processes, 99)
            count += 500
            server.start()
            processes.wait_until(
                lambda count=count: page.evaluate("window.seen.length") >= count,  # type: ignore[misc]
                what="the events of a turn",
            )
        seen = page.evaluate("window.seen")
    assert seen == list(range(1, count + 1))


@pytest.mark.requirement("P10")
def test_the_page_of_the_shop_shows_each_order_once_although_its_server_is_restarted(processes: Processes) -> None:
    path, placed = browser_of_tests(), 0
    statement = "SELECT django_events_publish('orders', jsonb_build_object('order', %s::int), 'order.placed', null)"

    def place() -> None:
        nonlocal placed
        placed += 1
        with psycopg.connect(processes.url) as connection:
            connection.execute(statement, [placed])

    processes.start("run_transfer")
    server = Server(processes, "runserver")
    with chromium(path) as browser:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/live/")
        rows = page.locator("#events tr")
        for turn in range(3):
            place()
            processes.wait_until(lambda: rows.count() == placed, what="an order that is placed while it looks")
            server.end(signal.SIGKILL if turn % 2 else signal.SIGTERM)
            place()
            server.start()
            processes.wait_until(lambda: rows.count() == placed, what="an order that was placed meanwhile")
        assert rows.all_inner_texts() == [f"orders/{n}\torder.placed\t{n}\t" for n in range(placed, 0, -1)]
