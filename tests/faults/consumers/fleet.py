"""Worker processes of one kind, as a supervisor has them."""

import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.faults.consumers.ledger import Ledger
from tests.support.processes import Processes

READY = "Ctrl-C stops."
Process = subprocess.Popen[str]


class Fleet:
    """Processes that run the same consumers: more or fewer of them, killed and started again."""

    def __init__(self, processes: Processes, ledger: Ledger, *consumers: str, threads: int = 1) -> None:
        self.workers: list[Process] = []
        self.exits: Counter[int] = Counter()
        self.killed_at: dict[int, datetime] = {}
        self._processes = processes
        self._ledger = ledger
        self._consumers = consumers
        self._command = ["run_consumer", *consumers, "--threads", str(threads), "--skip-checks"]

    def scale(self, size: int) -> None:
        """Start what is missing; let the oldest of those that are too many finish, and see that they do."""
        leaving, self.workers = (
            self.workers[: max(len(self.workers) - size, 0)],
            self.workers[-size or len(self.workers) :],
        )
        self._wait_until_ready(leaving)
        for worker in leaving:
            worker.send_signal(signal.SIGTERM)
        for worker in leaving:
            # One that gave a handler up may be on its way out, with the code that says so.
            code = worker.wait(60)
            assert code in (0, 70), self._processes.said(worker)
            if code:
                self.exits[code] += 1
        while len(self.workers) < size:
            self.workers.append(self._processes.start(*self._command))

    def start(self) -> Process:
        """One more, which is at work when this returns."""
        self.scale(len(self.workers) + 1)
        self.wait_until_ready()
        return self.workers[-1]

    def stop(self) -> None:
        self.scale(0)

    def finish(self) -> None:
        """Let them handle all that there is, and stop them."""
        self.wait_until_handled()
        self.stop()

    def wait_until_handled(self) -> None:
        """Wait until nothing is left for their consumers, for as long as they get on with it."""
        before = self._ledger.passed()

        def got_on() -> bool:
            return self._ledger.passed() > before or self._ledger.all_handled(self._consumers)

        while not self._ledger.all_handled(self._consumers):
            before = self._ledger.passed()
            self._processes.wait_until(got_on, what="consumers that are through")

    def kill(self, worker: Process) -> None:
        """End one without warning, and start another in its place."""
        self.killed_at[worker.pid] = self._ledger.clock()
        worker.kill()
        worker.wait()
        self.workers.remove(worker)
        self.scale(len(self.workers) + 1)

    def kill_at_work(self, dice: random.Random) -> None:
        """Kill one at a random moment: when it has called handlers some more times."""
        worker = dice.choice(self.workers)
        self._processes.wait_until(lambda: self._ledger.spells(worker.pid), what="a worker at work")
        enough = self._ledger.spells(worker.pid) + dice.randint(0, 50)
        self._processes.wait_until(lambda: self._ledger.spells(worker.pid) >= enough, what="more work")
        self.kill(worker)

    def supervise(self) -> None:
        """Start others for those that have ended."""
        for worker in self.workers:
            if (code := worker.poll()) is not None:
                self.exits[code] += 1
                self.killed_at[worker.pid] = self._ledger.clock()
        size = len(self.workers)
        self.workers = [worker for worker in self.workers if worker.returncode is None]
        self.scale(size)

    def wait_until_ready(self) -> None:
        self._wait_until_ready(self.workers)

    def _wait_until_ready(self, workers: list[Process]) -> None:
        self._processes.wait_until(
            lambda: all(READY in self._processes.said(worker) for worker in workers), what="workers that are ready"
        )

    def wait_until(self, condition: Callable[[], Any], *, what: str) -> None:
        """Wait for something, and start others for those that end meanwhile."""
        self._processes.wait_until(lambda: self.supervise() or condition(), what=what)
