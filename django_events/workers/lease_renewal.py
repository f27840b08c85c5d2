"""A thread that renews the leases of its process, and ends handlers that take too long.

A handler can't block it, because it has a connection and a thread of its own. Leases that it can't renew any more run
out, and other workers take them over.
"""

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import DatabaseError, InterfaceError, connections

from django_events import sql
from django_events.consuming.leases import Lease, give_up
from django_events.workers.loop import Exit

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

TICK = 0.1
IDLE_TICKS = 20
OTHERS_FINISH = 5.0  # seconds that other handlers of the process have to finish
HANDED_BACK = 2.0  # seconds that a process which ends at once waits for the database


_running: set["LeaseRenewal"] = set()  # of this process: one for each database that it works on
_watching = threading.Lock()


class LeaseRenewal:
    """Renews the leases that the threads of this process have on one database."""

    def __init__(
        self,
        using: str,
        *,
        stop: Callable[[], None],
        end: Callable[[int], None] = os._exit,
        others_finish: float = OTHERS_FINISH,
    ) -> None:
        self.using = using
        self._stop_others = stop
        self._end = end
        self._others_finish = others_finish
        self._leases: dict[int, Lease] = {}
        self._renewed_at: dict[int, float] = {}
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._renewing = threading.Lock()

    @contextmanager
    def renewing(self, lease: Lease) -> Iterator[None]:
        """Renew a lease for as long as the block takes."""
        self._renewed_at[lease.token] = time.monotonic()
        self._leases[lease.token] = lease
        self._start()
        if not self._wake.is_set():
            self._wake.set()
        try:
            yield
        finally:
            del self._leases[lease.token]
            del self._renewed_at[lease.token]

    def close(self) -> None:
        """End the thread and its connection."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def hand_back(self) -> None:
        """Give up the leases of a process that ends now and doesn't wait for its handlers: others take over at once.

        What such a handler still does can't be settled. If the database doesn't answer soon, the leases run out.
        """
        leases = self.leases
        for lease in leases:
            lease.lost = True  # so that they are not renewed any more

        def target() -> None:
            try:
                with self._renewing:
                    give_up(self.using, [lease.token for lease in leases])
            except (DatabaseError, InterfaceError) as error:
                logger.warning("The leases on %r can't be given up. %s", self.using, sql.said(error))
            finally:
                connections.close_all()

        if leases:
            handing_back = threading.Thread(target=target, name="django_events hand back", daemon=True)
            handing_back.start()
            handing_back.join(HANDED_BACK)

    def _start(self) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="django_events lease renewal", daemon=True)
                    self._thread.start()

    @property
    def leases(self) -> list[Lease]:
        """The leases that the threads of this process have."""
        return list(self._leases.values())

    def _run(self) -> None:
        with _watching:
            _running.add(self)
        try:
            self._repeat()
        finally:
            with _watching:
                _running.discard(self)
            _watch_for_a_stuck_interpreter()
            connections[self.using].close()

    def _repeat(self) -> None:
        idle = 0
        while not self._closed:
            idle = 0 if self._leases else idle + 1
            if idle > IDLE_TICKS:  # the next lease wakes it
                connections[self.using].close()
                _watch_for_a_stuck_interpreter()
                self._wake.clear()
                if not self._leases and not self._closed:
                    self._wake.wait()
                idle = 0
            try:
                self._tick()
            except Exception:  # without it, no lease of this process would be renewed any more
                logger.exception("The leases on %r can't be renewed now.", self.using)
                connections[self.using].close()
            time.sleep(TICK)

    def _tick(self) -> None:
        now = time.monotonic()
        to_renew = []
        _watch_for_a_stuck_interpreter()
        for token, lease in tuple(self._leases.items()):
            renewed_at = self._renewed_at.get(token)
            if renewed_at is None or lease.lost:
                continue
            seconds = lease.subscription.consumer.lease.total_seconds()
            if not self._takes_too_long(lease, now):
                if now - renewed_at > seconds / 3:
                    to_renew.append(lease)
            elif now - renewed_at > seconds:
                self._abandon(lease)
                return
        if to_renew:
            with self._renewing:
                self._renew([lease for lease in to_renew if not lease.lost], now)

    def _takes_too_long(self, lease: Lease, now: float) -> bool:
        """Whether a handler takes longer than it may: its lease is not renewed then."""
        event, since, timeout = lease.handling, lease.handling_since, lease.subscription.consumer.timeout
        if event is None or timeout is None:
            return False
        if event is lease.timed_out:
            return True
        if now - since <= timeout.total_seconds() or lease.handling is not event:
            return False
        lease.timed_out = event  # this one, and not the next that the handler may have begun with by now
        logger.error(
            "Consumer %s, %s: the handler of event %s, attempt %d takes longer than %s. "
            "If it doesn't come back before its lease is over, this process ends.",
            lease.subscription,
            lease.what,
            event.address,
            event.attempt,
            timeout,
            extra=lease.fields_of(event),
        )
        return True

    def stuck_after(self) -> float | None:
        """So many seconds without a tick, and no handler will come back any more; None if none of them is limited."""
        if self._end is not os._exit:
            return None
        limits = [
            lease.subscription.consumer.timeout + lease.subscription.consumer.lease
            for lease in self.leases
            if lease.subscription.consumer.timeout is not None
        ]
        return max(limits).total_seconds() + self._others_finish if limits else None

    def _renew(self, leases: list[Lease], now: float) -> None:
        try:
            kept = {
                token
                for (token,) in sql.fetch(
                    self.using,
                    SQL.renew,
                    position_ids=[lease.at_position for lease in leases],
                    tokens=[lease.token for lease in leases],
                    leases=[lease.subscription.consumer.lease for lease in leases],
                )
            }
        except (DatabaseError, InterfaceError) as error:
            logger.warning("The leases on %r can't be renewed now. %s", self.using, sql.said(error))
            connections[self.using].close()
            return
        for lease in leases:
            if lease.token in kept:
                if lease.token in self._renewed_at:
                    self._renewed_at[lease.token] = now
            elif lease.token in self._leases and not lease.released:
                lease.lost = True
        self._end_overdue()

    def _end_overdue(self) -> None:
        """End frozen workers whose locks others wait for: if all workers wait, none is free to take over."""
        try:
            for pid, ended in sql.fetch(self.using, SQL.end_overdue):
                done = "is ended" if ended else "is gone"
                logger.warning("A frozen worker's connection, pid %d, for which others waited, %s.", pid, done)
        except (DatabaseError, InterfaceError) as error:
            logger.error("A frozen worker's connection can't be ended. %s", sql.said(error))
            connections[self.using].close()

    def _abandon(self, lease: Lease) -> None:
        """A handler doesn't come back: let the other threads finish, then end the process."""
        logger.critical(
            "Consumer %s, %s: the handler doesn't come back, so this process ends with exit code %d. "
            "Other workers take its events over.",
            lease.subscription,
            lease.what,
            Exit.ABANDONED,
            extra=lease.fields,
        )
        with _watching:
            elsewhere = [one for one in _running if one is not self]
        self._stop_others()
        for one in elsewhere:
            one._stop_others()
        deadline = time.monotonic() + self._others_finish
        while time.monotonic() < deadline:
            others = [o for o in self.leases if o is not lease]
            if not others and not any(one.leases for one in elsewhere):
                break
            if others:
                self._renew(others, time.monotonic())
            time.sleep(TICK)
        for one in elsewhere:  # each waits for its database for a moment only
            one.hand_back()
        try:
            give_up(self.using, list(self._leases))
        except (DatabaseError, InterfaceError) as error:
            logger.warning("The leases on %r can't be given up. %s", self.using, sql.said(error))
        logging.shutdown()
        self._closed = True
        self._end(Exit.ABANDONED)


_watched = False


def _watch_for_a_stuck_interpreter() -> None:
    """A handler that never releases the GIL, like a catastrophic regular expression, stops the renewing threads too.

    Python's own watchdog, which needs no Python thread, then ends the process and prints where it was. A process has
    one of them for all its databases, so it waits for as long as any of their handlers may take.
    """
    global _watched
    with _watching:
        limits = [limit for one in _running if (limit := one.stuck_after()) is not None]
        if limits:
            faulthandler.dump_traceback_later(max(limits), exit=True)
        elif _watched:
            faulthandler.cancel_dump_traceback_later()
        _watched = bool(limits)
