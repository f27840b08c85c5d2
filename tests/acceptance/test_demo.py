"""The demo proves what it says, on a server of one's own and on the private one."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testproject.private_postgres.binaries import available_binaries, major_version
from testproject.private_postgres.server import Server
from tests.processes import Processes, wait_until

DEMO = ("demo", "--customers", "3", "--orders", "30")


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
    assert [(name, lag) for name, _, _, _, lag in consumers] == [("billing", "0"), ("search", "0"), ("receipts", "0")]
    assert all(int(handled.replace(",", "")) > 0 for _, handled, *_ in consumers)
    assert "Each order was billed once" in output
    failed, dead = (int(number.replace(",", "")) for number in consumers[-1][2:4])
    assert failed == 3 * dead > 0
    assert "Each order has one receipt." in output
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:00 +[\d,]+ +[\d,]+\.\d\d$", output, re.MULTILINE)
    assert "PostgreSQL comes to the same sum from the log." in output


@pytest.mark.parametrize("binaries", available_binaries(), ids=lambda folder: f"PostgreSQL {major_version(folder)}")
@pytest.mark.requirement("X3")
def test_the_demo_on_the_server_that_database_url_names(binaries: Path, tmp_path: Path):
    with Server(binaries=binaries) as server:
        first = Processes(server.url, tmp_path).run(*DEMO)
        second = Processes(server.url, tmp_path).run(*DEMO)

    for result in (first, second):
        assert result.returncode == 0, result.stderr
        check_table(result.stdout)


def test_the_demo_on_the_private_server_leaves_nothing(scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(scratch))
    result = Processes("", tmp_path).run(*DEMO)

    assert result.returncode == 0, result.stderr
    check_table(result.stdout)
    wait_until(lambda: not list(scratch.iterdir()), seconds=20, what="an empty scratch folder")
