"""Several databases served by one process: each by threads of its own, so that one that fails is in no other's way.

several = Several(["default", "west"], serve)
several.run(stop)
several.errors      # by alias

`serve(one)` works on the database `one.using` until `one.stop` is requested, and calls `one.reached()` when it works.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from django_events import sql, telemetry
from django_events.exceptions import EventsError, HandlerNotFound
from django_events.sql.search_path import tables_missing
from django_events.workers.loop import Unreachable, pause_after
from django_events.workers.stopping import Stop

logger = logging.getLogger("django_events.worker")

HANDS_BACK = 5.0  # seconds to wait for the databases: leases run out by themselves


class OneDatabase:
    """The work on one of the databases: its alias, the request to stop it, and what gives its leases back."""

    def __init__(self, using: str, stop: Stop) -> None:
        self.using = using
        self.stop = stop
        self.hand_back: Callable[[], None] = lambda: None
        self.failures = 0
        self.was_reached = False
        self.unreachable: Exception | None = None

    def reached(self) -> None:
        """The database answers, and its work is done."""
        if self.failures:
            about = {"database": self.using}
            logger.info("The database %r works again, after %d tries.", self.using, self.failures, extra=about)
        self.failures, self.was_reached, self.unreachable = 0, True, None


class Several:
    """The work on some databases. One that fails is tried again with a backoff, while the others are served.

    A single database is served in the caller's thread, and its error is raised: then there is no other to go on with.
    """

    def __init__(self, aliases: Iterable[str], serve: Callable[[OneDatabase], None], *, once: bool = False) -> None:
        self.errors: dict[str, BaseException] = {}
        self._serve = serve
        self._once = once
        self._aliases = list(aliases)
        self._ones: list[OneDatabase] = []
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, stop: Stop) -> None:
        """Serve them until told to stop, or with `once` until nothing is due; `errors` tells what went wrong.

        If none of them can be reached at the start, it ends at once, so that a supervisor sees it.
        """
        if len(self._aliases) == 1:
            self._ones = [OneDatabase(self._aliases[0], stop)]
            self._serve(self._ones[0])
            return
        self._ones = [OneDatabase(using, Stop()) for using in self._aliases]
        finished = Stop()
        running = len(self._ones)

        def target(one: OneDatabase) -> None:
            nonlocal running
            try:
                self._keep_serving(one)
            except BaseException as error:  # of the program, or a handler that is not there: not of the database
                self.errors[one.using] = error
                self._stop_all()
            finally:
                connections.close_all()
                with self._lock:
                    running -= 1
                    if not running:
                        with suppress(OSError):  # closed, because after an interrupt the caller doesn't wait
                            finished.request()

        for one in self._ones:
            threading.Thread(target=target, args=[one], name=f"django_events of {one.using}", daemon=True).start()
        try:
            while not (stop.requested or finished.requested):
                stop.wait(None, finished.fileno())
            if stop.requested:
                self._stop_all()
            stop.wait_until_requested(finished)
        except KeyboardInterrupt:
            self.hand_back()
            raise
        finally:
            finished.close()
        for one in self._ones:
            one.stop.close()

    def hand_back(self) -> None:
        """Give up all leases, for a process that ends at once. A database that is away keeps no other from it."""
        threads = [threading.Thread(target=one.hand_back, daemon=True) for one in self._ones]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANDS_BACK)

    def _keep_serving(self, one: OneDatabase) -> None:
        while not one.stop.requested:
            try:
                self._serve(one)
                return
            except HandlerNotFound:
                raise
            except (Unreachable, DatabaseError, InterfaceError, EventsError) as error:
                connections.close_all()
                if self._once:
                    self.errors[one.using] = error
                    return
                if self._is_stopping():  # what was to be tried again isn't a failure of a process that was told to stop
                    about = {"database": one.using}
                    logger.debug(
                        "The database %r can't be served. %s", one.using, said_of(one.using, error), extra=about
                    )
                    return
                self._try_again_later(one, error)

    def _try_again_later(self, one: OneDatabase, error: Exception) -> None:
        """Wait for longer each time. The request to stop is a new one: the threads of a pool stop each other by it."""
        with self._lock:
            one.stop.close()
            one.stop = Stop()
            if self._stopping:
                one.stop.request()
            one.failures += 1
            one.unreachable = error if _is_unreachable(error) else None
            one.was_reached |= one.unreachable is None  # it answered, whatever it said
            away = {other.using: other.unreachable for other in self._ones if not other.was_reached}
        if len(away) == len(self._ones) and all(away.values()):
            self.errors.update({using: found for using, found in away.items() if found is not None})
            self._stop_all()
            return
        pause = pause_after(one.failures)
        telemetry.DATABASE_FAILURES.tell(1, one.using)
        logger.warning(
            "The database %r can't be served, next try in %.1f s; others are served meanwhile. %s",
            one.using,
            pause,
            said_of(one.using, error),
            extra={"database": one.using},
        )
        one.stop.wait(pause)

    def _is_stopping(self) -> bool:
        with self._lock:
            return self._stopping

    def _stop_all(self) -> None:
        with self._lock:
            self._stopping = True
            for one in self._ones:
                one.stop.request()


def _is_unreachable(error: Exception) -> bool:
    return isinstance(error, Unreachable) or (
        isinstance(error, DatabaseError | InterfaceError) and sql.kind_of(error) is sql.ErrorKind.LOST
    )


def said_of(using: str, error: Exception) -> str:
    """What to tell of an error of a database that is tried again."""
    if isinstance(error, DatabaseError | InterfaceError) and sql.kind_of(error) is sql.ErrorKind.TABLE_GONE:
        return tables_missing(using)
    return sql.said(error)
