"""Draining: the transfer and the consumers in turns, here and now, until nothing is due.

    Drain("default", [bill, index], raise_errors=True, limit=1_000).run()

It works in the caller's thread, on its connection and in its transaction if there is one: for tests.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

from django.db import DatabaseError, InterfaceError, connections, transaction

from django_events import declarations, models, sql
from django_events.consuming.failures import Failure
from django_events.consuming.handlers import BoundHandler, Enough, HandlerFailed, broken
from django_events.consuming.handling import OnFailure, log_failure
from django_events.consuming.leases import Lease
from django_events.consuming.serving import Server, server_of
from django_events.consuming.subscriptions import Subscription, refuse_outdated, subscriptions
from django_events.exceptions import LeaseLost, NotReady
from django_events.log.transfer import Transfer
from django_events.received import ReceivedEvent
from django_events.retries import Ignore, RetryLater
from django_events.syncing import sync
from django_events.workers.due_partitions import Due, DuePartitions

SQL = sql.beside(__name__)

HOLDER = "drain"
WAIT, MOST_WAITS = 0.05, 100  # seconds between two tries while another session has a lock, and how many
SHALLOW = 5  # rounds of handlers publishing for each other that don't count as a loop yet, whatever their size


class HandlerRaised(Exception):
    """Carries a handler's error past `handling`, which would decide about retries and settle it."""

    def __init__(self, error: BaseException, events: Sequence[ReceivedEvent]) -> None:
        super().__init__(error)
        first, last = events[0], events[-1]
        which = f"event {first.address}" if first is last else f"one of the events {first.address} to {last.address}"
        error.add_note(f"Consumer {first.consumer!r}, {which}, attempt {first.attempt}. Nothing of it is settled.")
        self.error = error


class Drain:
    """One run over all events that are published, and those that their handlers publish."""

    def __init__(
        self,
        using: str,
        consumers: Sequence[declarations.DeclaredConsumer],
        *,
        raise_errors: bool,
        limit: int,
        ahead: timedelta = timedelta(0),
    ) -> None:
        self.using = using
        self.raise_errors = raise_errors
        self.limit = limit
        self.ahead = ahead
        self._consumers = consumers
        self._handlers: dict[str, _Handler] = {}
        self._servers: dict[int, Server] = {}
        self._fruitless = Counter[tuple[int, str]]()  # turns that passed no event, by position and event
        self._waits = 0

    def run(self) -> int:
        """Returns how many events were passed. HandlerRaised carries the first error of a handler."""
        with _commits_left_as_they_were(self.using), ExitStack() as self._open:
            self._due_partitions = DuePartitions(self.using, _registered(self.using, self._consumers), patient=False)
            self._transfer = Transfer(self.using, ahead=self.ahead)
            self._move()
            passed, followed, rounds = self._serve(), Counter[str](), 0
            while self._move():
                followed, rounds = followed + self._serve(), rounds + 1
                if rounds > SHALLOW and followed.total() > self.limit:
                    raise _never_drained(passed, followed, rounds)
        self._due_partitions.setbacks.raise_first()
        return passed.total() + followed.total()

    def _move(self) -> int:
        """Move all that is in the buffer; returns how many events that were."""
        total = 0
        self._transfer.ticks.begin_round()
        while (moved := self._transfer.move()) or self._transfer.left:
            total += moved
            self._wait(moved, "moving events, because it holds a lock on their topic")
        self._transfer.setbacks.raise_first()
        return total

    def _serve(self) -> Counter[str]:
        """Serve the consumers until nothing is due; returns how many events each of them passed."""
        passed, fruitless = Counter[str](), set[int]()
        while self._due_partitions.look(period=0):
            served = False
            while due := self._due_partitions.take():
                if due.position_id in fruitless:
                    continue
                server = self._server(due)
                with _undone_if_broken(self.using):
                    lease = server.claim(due.min_position)
                    if lease is not None:
                        done = self._turn(server, due.position_id, lease)
                        passed[str(due.subscription)] += done
                        fruitless = set() if done else fruitless
                if lease is None and server.may_be_blocked and not server.ask_again:
                    fruitless.add(due.position_id)
                    continue
                served = True
                if lease is not None or not server.ask_again:
                    self._wait(lease, f"serving consumer {due.subscription}, because it holds a lock on its position")
            if not served:
                break
        return passed

    def _server(self, due: Due) -> Server:
        server = self._servers.get(due.position_id)
        if server is None or server.subscription is not due.subscription:
            server = self._servers[due.position_id] = server_of(
                due.subscription, due.position_id, due.partition, holder=HOLDER, patient=False
            )
        return server

    def _turn(self, server: Server, position_id: int, lease: Lease) -> int:
        consumer = lease.subscription.consumer
        try:
            if consumer.name not in self._handlers:
                handler = _Handler(consumer, raise_errors=self.raise_errors)
                self._open.callback(handler.close)
                self._handlers[consumer.name] = handler
            passed = server.serve(lease, self._handlers[consumer.name], on_failure=self._on_failure(lease))
        except BaseException as error:
            if isinstance(error, DatabaseError):  # most likely of a filter: a handler's error comes in a HandlerRaised
                error.add_note(f"It was raised when the events of consumer {lease.subscription} were read or settled.")
            _let_go(lease)
            raise
        self._fruitless[position_id, lease.where] += not passed
        if self._fruitless[position_id, lease.where] > self.limit:
            raise AssertionError(
                f"Consumer {lease.subscription} is due again and again and passes no event: it was served "
                f"{self.limit:,} times {lease.where}. Let it attempt an event less often."
            )
        return passed

    def _on_failure(self, lease: Lease) -> OnFailure:
        log = log_failure(lease)

        def on_failure(failure: Failure) -> None:
            # An error of the handler was raised before this: here it is an error at COMMIT, or the end of a worker.
            if self.raise_errors and not _is_decision(failure.error):
                raise HandlerRaised(failure.error, [failure.event])
            log(failure)

        return on_failure

    def _wait(self, done: object, what: str) -> None:
        """Give another session time to finish what keeps this one from going on, but not for ever."""
        self._waits = 0 if done else self._waits + 1
        if self._waits > MOST_WAITS:
            raise AssertionError(
                f"Another session keeps drain() from {what}. Commit its transaction before draining, and don't run "
                "workers beside the test."
            )
        if not done:
            time.sleep(WAIT)


class _Handler(BoundHandler):
    """A handler that is called for one event at a time, and whose errors come out if they are to be raised."""

    def __init__(self, consumer: declarations.DeclaredConsumer, *, raise_errors: bool) -> None:
        super().__init__(consumer)
        self._raise_errors = raise_errors

    def call(
        self,
        lease: Lease,
        events: Sequence[ReceivedEvent],
        *,
        enough: Enough = lambda: False,
        redriven: bool = False,
    ) -> int:
        # A worker settles as many events together as there is time for, and handles those before a failing one
        # again. A test counts calls, so here each event is settled by itself, however long it takes.
        try:
            if self.consumer.transactional:
                return super().call(lease, events, enough=lambda: True, redriven=redriven)
            # In autocommit, what such a handler wrote before its error stays: here too, if that is possible.
            with _undone_if_broken(lease.using):
                return super().call(lease, events, enough=lambda: True, redriven=redriven)
        except HandlerFailed as failed:
            if not self._raise_errors or _is_decision(failed.error):
                raise
            raise HandlerRaised(failed.error, events[failed.given.start : failed.given.stop]) from None


def _is_decision(error: BaseException) -> bool:
    """Whether a handler raised it on purpose, to say what is to be done with the event."""
    return isinstance(error, Ignore | RetryLater)


def _never_drained(passed: Counter[str], followed: Counter[str], rounds: int) -> AssertionError:
    loop = ", ".join(f"{count:,} by consumer {consumer}" for consumer, count in followed.most_common(3))
    return AssertionError(
        f"Handlers go on publishing events for each other. After the first {passed.total():,} events, "
        f"{followed.total():,} more were handled, in {rounds:,} rounds, with no end in sight: {loop}. Let them stop at "
        "some time, or drain some consumers only. If there is an end, allow for it with a higher limit."
    )


def _registered(using: str, consumers: Sequence[declarations.DeclaredConsumer]) -> list[Subscription]:
    """Their subscriptions. What was declared since the last `migrate`, as by a test, is made first."""
    declared = {topic.name for topic in declarations.registry}
    if declared.issubset(models.Topic.objects.using(using).values_list("name", flat=True)):
        with suppress(NotReady):
            found = subscriptions(using, consumers)
            refuse_outdated(found)
            return found
    sync(using)
    return subscriptions(using, consumers)


@contextmanager
def _undone_if_broken(using: str) -> Iterator[None]:
    """Let a transaction of the caller's survive an error that would break it: undo the block, but only then.

    The savepoint is made by hand, because in an atomic() a handler could open no durable block.
    """
    if not connections[using].in_atomic_block:
        yield
        return
    savepoint = str(connections[using].savepoint())
    try:
        yield
    except BaseException:
        if _is_open(using) and broken(using):
            transaction.set_rollback(False, using)
            transaction.savepoint_rollback(savepoint, using)
        elif _is_open(using):
            transaction.savepoint_commit(savepoint, using)
        raise
    transaction.savepoint_commit(savepoint, using)


def _is_open(using: str) -> bool:
    raw = connections[using].connection
    return raw is not None and not raw.closed


def _let_go(lease: Lease) -> None:
    """Release a lease after an error, if the database can be reached."""
    connection = connections[lease.using]
    if connection.in_atomic_block and (broken(lease.using) or not connection.is_usable()):
        return  # the claim is rolled back with the transaction
    if not connection.is_usable():
        connection.close()
    if not lease.released:
        with suppress(LeaseLost, DatabaseError, InterfaceError):
            lease.release()


@contextmanager
def _commits_left_as_they_were(using: str) -> Iterator[None]:
    """Restore synchronous_commit, which moving and counting change for the rest of a caller's transaction."""
    if not connections[using].in_atomic_block:
        yield
        return
    [[before]] = sql.fetch(using, SQL.commits, value=None)
    try:
        yield
    finally:
        if not broken(using) and connections[using].is_usable():
            sql.fetch(using, SQL.commits, value=before)
