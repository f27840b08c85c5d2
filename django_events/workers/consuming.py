"""Consumers as workers: threads that share the due partitions, each with a connection of its own.

pool = ConsumerPool("default", [bill, index], threads=4, listener=listener)
handled = pool.run(stop)
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from django_events import declarations, sql, telemetry
from django_events.conf import settings
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import log_failure
from django_events.consuming.leases import Lease, give_up
from django_events.consuming.queues.deliveries import ALWAYS, Window
from django_events.consuming.serving import Server, server_of
from django_events.consuming.setbacks import ConsumerSetbacks, sets_aside
from django_events.consuming.subscriptions import Subscription, refuse_outdated, subscriptions
from django_events.exceptions import EventsMissing, HandlerNotFound, LeaseLost
from django_events.log import channel
from django_events.log.setbacks import Failing
from django_events.sql.prepared import SharedSession
from django_events.workers.due_partitions import Due, DuePartitions
from django_events.workers.lease_renewal import LeaseRenewal
from django_events.workers.listening import LISTENING_POLL, Listener
from django_events.workers.loop import close_others, connect_for_work, run
from django_events.workers.stopping import Stop
from django_events.workers.wakeup_flag import WakeupFlag

logger = logging.getLogger("django_events.consumer")


class ConsumerWorker:
    """One thread of a pool: it takes a partition that is due, serves it for a turn, and takes the next.

    A partition of a stream is served by one worker at a time, a queue by any number of them.
    """

    left = False

    def __init__(self, pool: "ConsumerPool", name: str) -> None:
        self.using = pool.using
        self._pool = pool
        self._holder = f"{socket.gethostname()}:{os.getpid()}/{name}"
        self._unsettled: list[Lease] = []
        self._servers: dict[int, Server] = {}
        self._session = SharedSession(self.using)
        self._write_counts_at: float | None = None

    def connect(self) -> None:
        connect_for_work(self.using)
        self._session.renew()
        self._give_up()

    def work(self, stop: Stop) -> int:
        """Serve what is due until events were handled or nothing is; returns how many events were passed."""
        pool = self._pool
        while not stop.requested:
            if not pool.due_partitions.look(period=pool.poll):
                self._write_counts_at = self._write_late_counts()
                return 0
            if (due := pool.due_partitions.take()) is None:  # another thread was faster
                continue
            if pool.due_partitions.more:
                pool.wakeup.set()
            server = self._server(due)
            try:
                lease = self._claim(due, server)
            except (DatabaseError, EventsMissing) as error:
                if not self._set_aside(due, server, error):
                    raise
                continue
            if lease is None:
                continue
            pool.due_partitions.claimed(due.position_id)
            handler, on_failure = pool.handlers[due.subscription.consumer.name], log_failure(lease)
            passed, until, ended = 0, None, False
            try:
                with pool.renewal.renewing(lease):
                    passed = server.serve(lease, handler, on_failure=on_failure, stopping=lambda: stop.requested)
                until, ended = lease.reached, lease.ended and pool.is_told
                pool.proven.add(due.position_id)
                # A worker that was told to stop may have read nothing, which proves nothing.
                if (passed or not stop.requested) and pool.setbacks.concerns(due.subscription):
                    pool.setbacks.over(due.subscription, [due.position_id])
            except LeaseLost as error:
                logger.warning("%s", error, extra=due.subscription.fields)
                telemetry.LEASES_LOST.tell(1, self.using, due.subscription.consumer.name, due.subscription.topic)
                give_up(self.using, [lease.token])  # other workers need not wait for what is still leased under it
            except BaseException as error:
                if not lease.released:
                    self._unsettled.append(lease)
                pool.proven.discard(due.position_id)
                self._give_up_if_reachable()
                if not isinstance(error, DatabaseError | EventsMissing) or not self._set_aside(due, server, error):
                    raise
            finally:
                pool.due_partitions.served(due.position_id, until=until, ended=ended)
                close_others(self.using)  # handlers may have used them
            if passed:
                return passed
        return 0

    def _claim(self, due: Due, server: Server) -> Lease | None:
        """Lease something of what is due; None if that isn't possible now.

        The commit of a claim waits for the disk until this process has served the position well since it connected. A
        handler that crashes the server must not undo the claim, or its attempts would never be counted.
        """
        pool, async_commit = self._pool, due.position_id in self._pool.proven
        lease = server.claim(due.min_position, ours=pool.renewal.leases, async_commit=async_commit)
        if server.more:
            pool.due_partitions.look_at([due.subscription.topic_id])
            pool.wakeup.set()
        if lease is None:
            if server.unclaimable is not None:
                pool.due_partitions.unclaimable(due.position_id, *server.unclaimable)
            if server.ask_again:
                pool.due_partitions.look_at([due.subscription.topic_id])
            else:  # another worker was faster, or has the position locked
                pool.due_partitions.refused(due.position_id)
        return lease

    def _set_aside(self, due: Due, server: Server, error: Failing) -> bool:
        """Leave a consumer alone for a while if the error is about its log or its filter; others go on."""
        if not sets_aside(self.using, error):
            return False
        server.start_over()
        self._pool.due_partitions.set_aside(due, error)
        return True

    def _server(self, due: Due) -> Server:
        server = self._servers.get(due.position_id)
        if server is None or server.subscription is not due.subscription:
            if server is not None:
                server.close()
            server = self._servers[due.position_id] = server_of(
                due.subscription,
                due.position_id,
                due.partition,
                holder=self._holder,
                session=self._session,
                received=self._pool.received,
            )
        return server

    def wait(self, stop: Stop) -> None:
        pool = self._pool
        seconds = pool.due_partitions.seconds_to_next(period=pool.poll)
        if self._write_counts_at is not None:
            seconds = min(seconds, max(self._write_counts_at - time.monotonic(), 0))
        pool.wakeup.wait(stop, seconds)

    def reset(self) -> None:
        self._pool.proven.clear()
        self._pool.due_partitions.look_everywhere()

    def close(self) -> None:
        self._give_up_if_reachable()
        self._write_counts()
        self._tell_others()

    def _give_up_if_reachable(self) -> None:
        """Give up what is unsettled, if the database can be reached, so that other workers take over at once."""
        connection = connections[self.using]
        if not self._unsettled or connection.in_atomic_block:
            return
        if not connection.is_usable():
            connection.close()
        try:
            self._give_up()
        except (DatabaseError, InterfaceError) as error:
            logger.debug("Leases can't be given up, and run out by themselves. %s", error)

    def _write_late_counts(self) -> float | None:
        """Without work nothing is claimed, and claims write the counts of queues; returns when to look again."""
        waits = [seconds for server in self._servers.values() if (seconds := server.write_counts()) is not None]
        return time.monotonic() + min(waits) if waits else None

    def _write_counts(self) -> None:
        connection = connections[self.using]
        if connection.connection is None or connection.in_atomic_block:
            return
        try:
            for server in self._servers.values():
                server.close()
        except (DatabaseError, InterfaceError) as error:
            logger.debug("The last counts can't be written into the rows of consumers. %s", error)

    def _tell_others(self) -> None:
        """Notify other workers, so that they look at once for what this one leaves."""
        connection = connections[self.using]
        if connection.connection is None or connection.in_atomic_block:
            return
        try:
            sql.fetch(self.using, sql.shared.notify, channel=channel.LOG, payload=self._pool.topic_ids)
        except (DatabaseError, InterfaceError) as error:
            logger.debug("Other workers can't be notified. %s", error)

    def _give_up(self) -> None:
        given_up = give_up(self.using, [lease.token for lease in self._unsettled])
        for lease in self._unsettled:
            if lease.token not in given_up:  # a takeover ended the connection, and no error said so
                logger.warning(
                    "Consumer %s lost its lease of %s: it was taken over or rewound, or its last settlement "
                    "was committed when the connection was lost.",
                    lease.subscription,
                    lease.what,
                    extra=lease.fields,
                )
        self._unsettled = []


class ConsumerPool:
    """Some consumers, served by threads that share the due partitions, the renewal of leases and a wake-up flag."""

    def __init__(
        self,
        using: str,
        consumers: Sequence[declarations.DeclaredConsumer],
        *,
        threads: int = 1,
        listener: Listener,
        received: Window = ALWAYS,
    ) -> None:
        self.using = using
        self.threads = threads
        self.received = received
        self.handlers: dict[str, BoundHandler] = {}
        self.broken: list[HandlerNotFound] = []
        self.wakeup = WakeupFlag()
        self.setbacks = ConsumerSetbacks(using)
        self.proven: set[int] = set()  # positions, see ConsumerWorker._claim
        self._consumers = consumers
        self._listener = listener
        self._errors: list[BaseException] = []
        self.renewal = LeaseRenewal(using, stop=lambda: None)

    @property
    def is_told(self) -> bool:
        """Whether notifications tell of new events."""
        return self._listener.listening

    @property
    def poll(self) -> float:
        """How long to wait at most without looking everywhere, in seconds."""
        interval = settings.POLL_INTERVAL.total_seconds()
        return max(interval, LISTENING_POLL) if self.is_told else interval

    def run(self, stop: Stop, *, once: bool = False, on_progress: Callable[[int], None] = lambda done: None) -> int:
        """Serve them until told to stop, or with `once` until nothing is due; returns how many events were passed."""
        if not self.handlers and not self.broken:
            self._load()
        if self.broken and not self.handlers:
            raise self.broken[0]
        served = self._subscriptions()
        if once:
            refuse_outdated(served)
        self.due_partitions = DuePartitions(self.using, served, setbacks=self.setbacks)
        topic_ids = ",".join(str(topic_id) for topic_id in sorted({s.topic_id for s in served}))
        self.topic_ids = topic_ids if len(topic_ids) <= channel.LONGEST_PAYLOAD else ""
        self.renewal = LeaseRenewal(self.using, stop=stop.request)
        if not once:  # otherwise no worker ever waits
            self._listener.on(channel.LOG, self._notified)
            self._listener.start()
        totals: list[int] = []
        finished = Stop()
        running = self.threads
        counting = threading.Lock()

        def target(name: str) -> None:
            nonlocal running
            worker = ConsumerWorker(self, name)
            try:
                totals.append(run(worker, stop, once=once, on_progress=on_progress))
            except BaseException as error:
                self._errors.append(error)
                stop.request()
            finally:
                worker.close()
                connections.close_all()
                with counting:
                    running -= 1
                    if not running:
                        with suppress(OSError):  # closed, because after an interrupt the main thread doesn't wait
                            finished.request()

        for number in range(self.threads):
            threading.Thread(target=target, args=[f"{number + 1}"], name=f"consumer {number + 1}", daemon=True).start()
        try:
            stop.wait_until_requested(finished)
        except KeyboardInterrupt:
            self.hand_back()
            raise
        finally:
            self.renewal.close()
            finished.close()
        if self._errors:
            raise self._errors[0]
        return sum(totals)

    def hand_back(self) -> None:
        """Give up all leases, for a process that ends at once: see `LeaseRenewal.hand_back`."""
        self.renewal.hand_back()

    def close(self) -> None:
        for handler in self.handlers.values():
            handler.close()
        self.wakeup.close()

    def _load(self) -> None:
        """Import the handlers. A handler that can't be imported stops its own consumer only."""
        for consumer in self._consumers:
            try:
                self.handlers[consumer.name] = BoundHandler(consumer)
            except HandlerNotFound as error:
                self.broken.append(error)
                about = {"database": self.using, "consumer": consumer.name}
                logger.error("Consumer %r is not served. %s", consumer.name, error, exc_info=error, extra=about)

    def _loaded(self) -> list[declarations.DeclaredConsumer]:
        return [consumer for consumer in self._consumers if consumer.name in self.handlers]

    def _subscriptions(self) -> list[Subscription]:
        try:
            return subscriptions(self.using, self._loaded())
        finally:
            if not connections[self.using].in_atomic_block:
                connections[self.using].close()  # this thread only waits from now on, and needs none

    def _notified(self, payload: str) -> None:
        """Events arrived, or something else happened, in some partitions or topics or everywhere."""
        news = channel.read(payload)
        self.due_partitions.arrived(news.partitions)
        self.due_partitions.freed(news.topic_ids)
        if news.everywhere:
            self.due_partitions.look_everywhere()
        self.wakeup.set()
