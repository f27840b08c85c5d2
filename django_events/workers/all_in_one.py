"""The transfer, consumers and maintenance in one process, with one LISTEN connection.

with closing(AllInOne("default", [bill, index])) as workers:
    done = workers.run(stop)
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple, Protocol

from django_events import declarations
from django_events.exceptions import HandlerNotFound
from django_events.workers.background import in_background
from django_events.workers.consuming import ConsumerPool
from django_events.workers.listening import Listener
from django_events.workers.loop import Worker, run
from django_events.workers.maintaining import Maintenance
from django_events.workers.stopping import Stop
from django_events.workers.transferring import TransferWorker

OnProgress = Callable[[int], None]


class Sending(Worker, Protocol):
    """The worker that sends webhooks, as far as the process needs to know it."""

    def take_settled(self) -> int: ...

    def hand_back(self) -> None: ...


class TakingIn(Worker, Protocol):
    """The worker of an inbox, as far as the process needs to know it."""

    @property
    def waits(self) -> bool:
        """Whether it takes in no more until the transfer, or a consumer, has caught up."""


class Done(NamedTuple):
    """How many events were moved into the log, and passed by consumers, and how many attempts to send were settled."""

    moved: int
    handled: int
    sent: int = 0


class AllInOne:
    """Transfer, consumers and maintenance of a process. If one of them fails, the others finish their turn and stop.

    `sending` makes the worker that sends webhooks, in a thread of its own, by the listener and whether it works `once`.
    `taking_in` makes those of inboxes, each in a thread of its own, by whether they work `once`.
    """

    def __init__(
        self,
        using: str,
        consumers: Sequence[declarations.DeclaredConsumer],
        *,
        threads: int = 1,
        sending: Callable[[Listener, bool], Sending] | None = None,
        taking_in: Callable[[bool], Sequence[TakingIn]] = lambda once: (),
    ) -> None:
        self.using = using
        self.listener = Listener(using)
        self.transfer = TransferWorker(using, self.listener)
        self.pool = ConsumerPool(using, consumers, threads=threads, listener=self.listener)
        self._consumers = consumers
        self._make_sending = sending
        self._make_taking_in = taking_in
        self._sending: Sending | None = None
        self._moved = self._handled = self._sent = 0

    def run(
        self,
        stop: Stop,
        *,
        once: bool = False,
        on_moved: OnProgress = lambda done: None,
        on_handled: OnProgress = lambda done: None,
        on_sent: OnProgress = lambda done: None,
        on_taken: OnProgress = lambda done: None,
    ) -> Done:
        """Work until told to stop, or with `once` until nothing is due, what handlers publish included."""

        def moved(events: int) -> None:
            self._moved += events
            on_moved(events)

        def settled(events: int) -> None:
            if self._sending is not None:
                count = self._sending.take_settled()
                self._sent += count
                on_sent(count)

        if once:
            self._run_once(stop, moved, on_handled, settled, on_taken)
        else:
            with ExitStack() as beside:
                beside.enter_context(in_background(Maintenance(self.using)))
                beside.enter_context(in_background(self.transfer, on_error=stop.request, on_progress=moved))
                if self._make_sending is not None:
                    self._sending = self._make_sending(self.listener, False)
                    beside.enter_context(in_background(self._sending, on_error=stop.request, on_progress=settled))
                for inbox in self._make_taking_in(False):
                    beside.enter_context(in_background(inbox, on_error=stop.request, on_progress=on_taken))
                self._serve(stop, on_handled)
            settled(0)  # what was answered while it ended
        return Done(self._moved, self._handled, self._sent)

    def hand_back(self) -> None:
        """Give up all leases, for a process that ends at once."""
        self.pool.hand_back()
        if self._sending is not None:
            self._sending.hand_back()

    def close(self) -> None:
        """Release locks and connections, without waiting for threads that are still working."""
        self.transfer.close()
        self.pool.close()
        self.listener.close()

    def _run_once(
        self, stop: Stop, on_moved: OnProgress, on_handled: OnProgress, on_settled: OnProgress, on_taken: OnProgress
    ) -> None:
        inboxes = self._make_taking_in(True)
        first = True
        while not stop.requested:
            taken = 0
            for one in inboxes:
                with closing(one):
                    taken += run(one, stop, once=True, on_progress=on_taken)
            # What the transfer moves, and consumers handle, in this round lets these go on in the next one.
            inboxes = [one for one in inboxes if one.waits]
            if not (run(self.transfer, stop, once=True, on_progress=on_moved) or taken or first) or stop.requested:
                return
            self._serve(stop, on_handled, once=True)
            if self._make_sending is not None:
                with closing(self._make_sending(self.listener, True)) as self._sending:
                    run(self._sending, stop, once=True, on_progress=on_settled)
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
