"""Files by which handlers and tests meet: gates, and a journal of what can't be taken back."""

import json
import os
import time
from pathlib import Path
from typing import Any


class Gate:
    """The first process to come waits until it is opened; all others pass."""

    def __init__(self, folder: Path, name: str) -> None:
        self._waiting = folder / f"{name}.waiting"
        self._opened = folder / f"{name}.opened"

    def pass_through(self) -> None:
        try:
            descriptor = os.open(self._waiting, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(descriptor, f"{os.getpid()}\n".encode())
        os.close(descriptor)
        while not self._opened.exists():
            time.sleep(0.01)

    @property
    def pid(self) -> int | None:
        """Who waits here, or waited."""
        written = self._waiting.read_text() if self._waiting.exists() else ""
        return int(written) if written.endswith("\n") else None

    def open(self) -> None:
        self._opened.touch()


class Journal:
    """One line for each delivery, in the order in which all processes made them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "deliveries.journal"

    def write(self, **fields: Any) -> None:
        descriptor = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(descriptor, f"{json.dumps(fields)}\n".encode())
        os.close(descriptor)

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []
