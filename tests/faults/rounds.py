"""Rounds of trouble for what hands messages on: workers are killed, freeze, wake up and get twins, and servers fail.

rounds_of_trouble(site, 30, random.Random(1), broker=broker, network=network)
"""

import random
import signal
import subprocess
from collections.abc import Callable
from typing import Protocol

from tests.support.processes import freeze

Trouble = Callable[[], "subprocess.Popen[str] | None"]  # a worker, if it has started one for that


class Site(Protocol):
    def worker(self, *, by_proxy: bool) -> "subprocess.Popen[str]": ...

    def send(self, messages: int) -> None: ...

    def wait_until_done(self, *, repaired: bool) -> None: ...

    def check(self) -> None: ...


def rounds_of_trouble(
    site: Site, rounds: int, dice: random.Random, *, between: Callable[[], None] = lambda: None, **others: Trouble
) -> None:
    """Messages all the time, and in each round one trouble, of the workers or one of the others; then check the site.

    `between` comes when messages were sent, and before the trouble.
    """
    workers, frozen = [site.worker(by_proxy=True)], []
    for _ in range(rounds):
        site.send(dice.randint(1, 60))
        between()
        match dice.choice(["kill", "freeze", "two", "none", *others]):
            case "kill":
                worker = workers.pop()
                worker.kill()
                worker.wait()
            case "freeze":
                frozen.append(workers.pop())
                freeze(frozen[-1])
            case "two":
                workers.append(site.worker(by_proxy=False))
            case "none":
                pass
            case other:
                if (started := others[other]()) is not None:
                    workers.append(started)
        while len(workers) > 2:
            workers.pop(0).terminate()
        if not workers:
            workers.append(site.worker(by_proxy=True))
        site.send(dice.randint(1, 60))
        if frozen and dice.random() < 0.5:
            site.wait_until_done(repaired=True)
            woken = frozen.pop()
            woken.send_signal(signal.SIGCONT)
            workers.append(woken)
    for process in frozen:
        process.send_signal(signal.SIGCONT)
    site.wait_until_done(repaired=True)
    site.check()
