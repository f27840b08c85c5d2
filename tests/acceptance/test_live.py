"""`manage.py events tail`, and streams of a server that is told to stop, as real processes."""

import json
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection

import psycopg
import pytest

from tests.e2e.chromium import chromium, program
from tests.support.processes import MANAGE, Processes, wait_until

ENDED = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'"
)


def publish(processes: Processes, *numbers: int) -> None:
    with psycopg.connect(processes.url) as connection:
        for number in numbers:
            connection.execute("SELECT django_events_publish('orders', %s::jsonb, 'visit', null)", [f"{number}"])
    assert processes.run("run_transfer", "--once").returncode == 0


def ids(processes: Processes, tailing: "subprocess.Popen[str]") -> list[int]:
    return [json.loads(line)["id"] for line in processes.said(tailing).splitlines() if line.startswith("{")]


@pytest.mark.quick
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
    """uvicorn on one port, which may be told to stop, killed and started again."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        processes.settings = "tests.support.live_settings"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        site = ["tests.support.live_asgi:application", "--port", str(self.port), "--lifespan", "off"]
        self.process = self.processes.start_module("uvicorn", *site)
        self.processes.wait_until(
            lambda: "running on" in self.processes.said(self.process).lower(), what="a server that listens"
        )

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.mark.quick
@pytest.mark.requirement("P10")
def test_a_server_that_is_told_to_stop_waits_for_no_stream(processes: Processes) -> None:
    publish(processes, 1)
    server = Server(processes)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/live/?lastEventId=orders/0")
    response = connection.getresponse()
    while not (line := response.readline()).startswith(b"id: orders/1"):
        assert line
    server.process.send_signal(signal.SIGTERM)
    response.read()

    assert server.process.wait(60) in (0, -signal.SIGTERM)
    connection.close()


@pytest.mark.requirement("P10")
def test_a_browser_gets_every_event_once_and_in_order_however_often_the_server_is_killed(
    processes: Processes,
) -> None:
    path = program()
    server, count = Server(processes), 0
    with chromium(path) as browser:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/")
        for turn in range(6):
            with psycopg.connect(processes.url) as late:
                late.execute("SELECT django_events_publish('orders', '0'::jsonb, 'visit', null)")
                publish(processes, *range(50))
                server.end(signal.SIGKILL if turn % 2 else signal.SIGTERM)
            publish(processes, *range(10))
            count += 61
            server.start()
            wait_until(lambda: page.evaluate("window.seen.length") >= count, what="the events of a turn")
        seen = page.evaluate("window.seen")
    assert seen == list(range(1, count + 1))
