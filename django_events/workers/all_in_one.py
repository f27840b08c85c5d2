"""The transfer, consumers and maintenance in one process, with one LISTEN connection.

with closing(AllInOne("default", [bill, index])) as workers:
    done = workers.run(stop)
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from django_events import declarations
from django_events.exceptions import HandlerNotFound
from django_events.workers.background import in_background
from django_events.workers.consuming import ConsumerPool
from django_events.workers.listening import Listener
from django_events.workers.loop import run
from django_events.workers.maintaining import Maintenance
from django_events.workers.stopping import Stop
from django_events.workers.transferring import TransferWorker

OnProgress = Callable[[int], None]


class Done(NamedTuple):
    """How many events were moved into the log, and passed by consumers."""

    moved: int
    handled: int


class AllInOne:
    """Transfer, consumers and maintenance of a process. If one of them fails, the others finish their turn and stop."""

    def __init__(self, using: str, consumers: Sequence[declarations.DeclaredConsumer], *, threads: int = 1) -> None:
        self.using = using
        self.listener = Listener(using)
        self.transfer = TransferWorker(using, self.listener)
        self.pool = ConsumerPool(using, consumers, threads=threads, listener=self.listener)
        self._consumers = consumers
        self._moved = self._handled = 0

    def run(
        self,
        stop: Stop,
        *,
        once: bool = False,
        on_moved: OnProgress = lambda done: None,
        on_handled: OnProgress = lambda done: None,
    ) -> Done:
        """Work until told to stop, or with `once` until nothing is due, what handlers publish included."""

        def moved(events: int) -> None:
            self._moved += events
            on_moved(events)

        if once:
            self._run_once(stop, moved, on_handled)
        else:
            transfer = in_background(self.transfer, on_error=stop.request, on_progress=moved)
            with in_background(Maintenance(self.using)), transfer:
                self._serve(stop, on_handled)
        return Done(self._moved, self._handled)

    def hand_back(self) -> None:
        """Give up all leases, for a process that ends at once."""
        self.pool.hand_back()

    def close(self) -> None:
        """Release locks and connections, without waiting for threads that are still working."""
        self.transfer.close()
        self.pool.close()
        self.listener.close()

    def _run_once(self, stop: Stop, on_moved: OnProgress, on_handled: OnProgress) -> None:
        first = True
        while (run(self.transfer, stop, once=True, on_progress=on_moved) or first) and not stop.requested:
            self._serve(stop, on_handled, once=True)
            first = False

    def _serve(self, stop: Stop, on_handled: OnProgress, *, once: bool = False) -> None:
        try:
            if self._consumers:
                self._handled += self.pool.run(stop, once=once, on_progress=on_handled)
                return
        except HandlerNotFound:  # of every consumer: it is logged, and the transfer goes on
            pass
        if not once:
            stop.wait(None)
