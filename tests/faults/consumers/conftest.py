"""Processes with the consumers of `tests.support.fault_app`."""

from collections.abc import Iterator

import pytest

from tests.faults.consumers.ledger import Ledger
from tests.support.processes import Processes


@pytest.fixture
def settings_module() -> str:
    return "tests.support.fault_settings"


@pytest.fixture
def ledger(processes: Processes) -> Iterator[Ledger]:
    processes.variables["FAULT_FOLDER"] = str(processes.folder)
    ledger = Ledger(processes.url, processes.folder)
    yield ledger
    ledger.close()


@pytest.fixture
def transfer(processes: Processes, ledger: Ledger) -> Iterator[None]:
    """What is published comes into the log."""
    process = processes.start("run_transfer")
    yield
    process.terminate()
    assert process.wait(60) == 0, processes.said(process)
