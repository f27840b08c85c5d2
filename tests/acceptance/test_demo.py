"""The demo proves what it says, on a server of one's own and on the private one, and serves the admin afterwards."""

import http.client
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import psycopg
import pytest

from testproject.private_postgres.binaries import available_binaries, major_version
from testproject.private_postgres.server import Server
from tests.support.brokers import REDIS
from tests.support.processes import Processes, wait_until

DEMO = ("demo", "--customers", "3", "--orders", "30")
SERVE = ("demo", "--customers", "2", "--orders", "20", "--serve", "--port")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files that a server's own user may pass through, unlike tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="demo-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def check_table(output: str) -> None:
    rows = re.findall(r"^(\w+) +([\d,]+) +([\d,]+) +([\d,]+) +([\d,]+) to ([\d,]+) +([\d,]+)$", output, re.MULTILINE)
    assert [name for name, *_ in rows] == ["orders", "payments", "stock"]
    for _, *numbers in rows:
        published, _, in_log, first, last, missing = (int(number.replace(",", "")) for number in numbers)
        assert published == in_log == last - first + 1 > 0
        assert missing == 0
    assert "Nothing is missing" in output
    consumers = re.findall(r"^(\w+) +([\d,]+) +[\d,]+ +([\d,]+) +([\d,]+) +([\d,]+)$", output, re.MULTILINE)
    names = ["billing", "search", "receipts", "status", "earnings"]
    assert [(name, lag) for name, _, _, _, lag in consumers] == [(name, "0") for name in names]
    assert all(int(handled.replace(",", "")) > 0 for _, handled, *_ in consumers)
    assert "Each order was billed once" in output
    failed, dead = (int(number.replace(",", "")) for number in consumers[2][2:4])
    assert failed == 3 * dead > 0
    assert "Each order has one receipt." in output
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:00 +[\d,]+ +[\d,]+\.\d\d$", output, re.MULTILINE)
    assert "PostgreSQL comes to the same sum from the log. The roll-up has the same hours" in output
    assert "The projection has the status of each order" in output
    versions = re.search(r"^Of the ([\d,]+) events order.placed, ([\d,]+) are of version 2", output, re.MULTILINE)
    assert versions
    placed, with_lines = (int(number.replace(",", "")) for number in versions.groups())
    assert 0 < with_lines < placed
    assert "A table of Delta, which followed the log\nmeanwhile, has the lines of all of them" in output


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("binaries", available_binaries(), ids=lambda folder: f"PostgreSQL {major_version(folder)}")
@pytest.mark.requirement("X3")
def test_the_demo_on_the_server_that_database_url_names(binaries: Path, tmp_path: Path):
    with Server(binaries=binaries) as server:
        first = Processes(server.url, tmp_path).run(*DEMO, timeout=400)
        second = Processes(server.url, tmp_path).run(*DEMO, timeout=400)

    for result in (first, second):
        assert result.returncode == 0, result.stderr
        check_table(result.stdout)


@pytest.mark.timeout(600)
def test_the_demo_on_the_private_server_leaves_nothing(scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(scratch))
    relays = ("--relay", "redis") if REDIS else ()
    result = Processes("", tmp_path).run(*DEMO, *relays, timeout=400)

    assert result.returncode == 0, result.stderr
    check_table(result.stdout)
    assert ("each event once, and in the order of the log" in result.stdout) is bool(relays)
    wait_until(lambda: not list(scratch.iterdir()), what="an empty scratch folder")


def closing_of(processes: Processes, process: subprocess.Popen[str]) -> str:
    """What it said since the shop was open. Before, Spark's own processes may say how they ended."""
    _, opened, closing = processes.said(process).partition("The shop is open")
    assert opened
    return closing


def last_words(processes: Processes, process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait for the last lines of a demo that serves; returns its port and the password."""
    lines = re.compile(
        r"^http://127\.0\.0\.1:(\d+)/admin/\nuser: demo\npassword: (\S+)\nIts customers order at \S+, .*\n"
        r"What happens to orders shows at \S+, .*\n\Z",
        re.MULTILINE,
    )
    processes.wait_until(
        lambda: lines.search(processes.said(process)) or process.poll() is not None, what="the address of the admin"
    )
    found = lines.search(processes.said(process))
    assert found, processes.said(process)
    return int(found[1]), found[2]


def fetch(browser: OpenerDirector, address: str, **form: str) -> str:
    data = urlencode(form).encode() if form else None
    with browser.open(address, data, timeout=30) as response:
        return str(response.read().decode())


def log_in(port: int, password: str) -> tuple[OpenerDirector, str]:
    """A browser that filled in the form, and the page it got."""
    browser, login = build_opener(HTTPCookieProcessor(CookieJar())), f"http://127.0.0.1:{port}/admin/login/"
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', fetch(browser, login))
    assert token
    form = {"username": "demo", "password": password, "csrfmiddlewaretoken": token[1], "next": "/admin/"}
    return browser, fetch(browser, login, **form)


def order(browser: OpenerDirector, port: int, customer: str) -> str:
    """The page that a customer gets behind an order."""
    counter = f"http://127.0.0.1:{port}/"
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', fetch(browser, counter))
    assert token
    return fetch(browser, counter, sku="tea", customer=customer, csrfmiddlewaretoken=token[1])


def count(url: str, table: str) -> int:
    with psycopg.connect(url) as connection:
        [[rows]] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    return int(rows)


@pytest.mark.long
def test_the_demo_stays_open_and_closes_when_told(processes: Processes):
    """Told by SIGTERM, while a browser keeps its connection; where the port is taken the next one is used."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = taken.getsockname()[1]
        process = processes.start(*SERVE, str(wanted))
        port, password = last_words(processes, process)
    assert wanted < port < wanted + 100
    browser, page = log_in(port, password)
    assert "Site administration" in page
    assert "Site administration" in fetch(browser, f"http://127.0.0.1:{port}/admin/")
    assert "--primary" in fetch(browser, f"http://127.0.0.1:{port}/static/admin/css/base.css")
    assert "Please enter the correct" in log_in(port, "demo")[1]
    for number in range(5):
        page = order(browser, port, f"visitor {number}")
        # The redirect's page has it, or says that it will: a busy machine may need longer than the page waits.
        assert f"<td>visitor {number}</td>" in page or "will show in a moment" in page
    assert count(processes.url, "django_events_deadletter") >= 3
    orders = count(processes.url, "shop_order")
    processes.wait_until(lambda: count(processes.url, "shop_order") > orders + 1, what="further orders")

    with (
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as kept,
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as streamed,
    ):
        kept.request("GET", "/admin/login/")
        kept.getresponse().read()
        streamed.request("GET", "/live/orders/?lastEventId=orders/0")
        stream = streamed.getresponse()
        while not stream.readline().startswith(b"id: "):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, processes.said(process)

    assert "Traceback" not in closing_of(processes, process)
    assert count(processes.url, "auth_user") == 0
    assert count(processes.url, "django_events_bufferedevent") == 0
    with pytest.raises(URLError):
        fetch(browser, f"http://127.0.0.1:{port}/admin/")


@pytest.mark.long
def test_ctrl_c_closes_the_demo_and_its_private_server(scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where SIGINT was ignored before, as a shell does for what it starts in the background."""
    monkeypatch.setenv("TMPDIR", str(scratch))
    processes = Processes("", tmp_path)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = processes.start(*SERVE, "0")
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        port, password = last_words(processes, process)
        assert "Site administration" in log_in(port, password)[1]

        process.send_signal(signal.SIGINT)

        assert process.wait(60) == 0, processes.said(process)
        assert "Traceback" not in closing_of(processes, process)
        wait_until(lambda: not list(scratch.iterdir()), what="an empty scratch folder")
    finally:
        processes.end()
