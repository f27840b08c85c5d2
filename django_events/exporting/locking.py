"""The lock on a folder that a command writes to: in the database, and watched while files are written.

It keeps others away who would only be in the way. What counts doesn't hang on it: see `journal`.
"""

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg.pq import ConnStatus

from django_events.exceptions import InUse, Refused
from django_events.exporting.paths import key
from django_events.reading.dsn import Connection, Dsn, fetch
from django_events.statements import beside

SQL = beside(__name__)

UNSEEN = "What was being written doesn't count, and readers don't see it."
COMMITTED = "What was committed stays, and the next run goes on behind it."
EVERY, PATIENCE = 1.0, 30.0  # seconds: between two looks, and for the server to answer one


class FolderLock:
    """A lock that goes with its connection, whatever happens."""

    def __init__(self, dsn: Dsn, connection: Connection, path: str, *, of_what_is_written: str) -> None:
        self._dsn, self._connection, self._path = dsn, connection, path
        self._of_what_is_written = of_what_is_written
        self._lost = False
        self._asking = threading.Lock()  # one question at a time: `watched` has a thread of its own

    def check(self) -> None:
        """Refused if the lock is lost, or OperationalError if the database can't be reached any more."""
        self._lost = self._lost or not self._answers()
        if not self._lost:
            return
        said = (
            f"The connection to the database was lost, and with it the lock on {self._path}. "
            f"{self._of_what_is_written} Run it again."
        )
        try:
            with self._dsn.connected():
                pass
        except psycopg.OperationalError as error:
            raise psycopg.OperationalError(f"{said} {error}") from None
        raise Refused(said)

    @contextmanager
    def watched(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Cancel what the block waits for as soon as the lock is lost: Refused, whatever comes of it."""
        over = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(over, cancel), name="django_events watches a lock", daemon=True
        )
        watch.start()

        def stop() -> None:
            over.set()
            watch.join()

        try:
            with self.needed(first=stop):
                yield
        finally:
            stop()
        self.check()

    @contextmanager
    def needed(self, *, first: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Of an error in the block, tell that the lock is lost, if it is: the error is of that, and says less."""
        try:
            yield
        except Exception as error:
            first()
            try:
                self.check()
            except (Refused, psycopg.OperationalError) as lost:
                raise lost from error
            raise

    def _watch(self, over: threading.Event, cancel: Callable[[], object]) -> None:
        while not over.wait(EVERY):
            if not self._lost:
                self._lost = not self._answers()
            if self._lost:
                with suppress(Exception):  # again a little later: what was only about to begin has not noticed
                    cancel()

    def _answers(self) -> bool:
        """Whether the session is there. A server that is cut off says nothing, for hours."""
        with self._asking:
            return self._is_there()

    def _is_there(self) -> bool:
        server = self._connection.pgconn
        deadline = time.monotonic() + PATIENCE
        try:
            server.send_query(b"")
            while True:
                while server.is_busy():
                    left = max(deadline - time.monotonic(), 0)  # frozen for long, it may find an answer
                    if not select.select([server.socket], [], [], left)[0]:
                        self._connection.close()
                        return False
                    server.consume_input()
                if server.get_result() is None:
                    return server.status == ConnStatus.OK
        except (psycopg.Error, OSError, ValueError):
            return False


@contextmanager
def alone(dsn: Dsn, path: str, *, of_what_is_written: str = UNSEEN) -> Iterator[FolderLock]:
    """The lock on a folder; InUse if another command has it. One that loses it is told what becomes of its work."""
    # Its end changes nothing: a rollback that is not heard is no error of what was written and decided.
    with dsn.connected() as connection, connection.transaction(force_rollback=True):
        lock = FolderLock(dsn, connection, path, of_what_is_written=of_what_is_written)
        with lock.needed():
            fetch(connection, SQL.let_idle)
            [[mine]] = fetch(connection, SQL.lock_export, path=key(path))
        if not mine:
            raise InUse(f"Another export_events or stream_events writes to {path}. Wait for it, or stop it first.")
        yield lock


@contextmanager
def resting(dsn: Dsn) -> Iterator[Connection]:
    """A connection on which nothing may be asked for long, while files are written."""
    with dsn.connected() as connection:
        fetch(connection, SQL.let_rest)
        yield connection
