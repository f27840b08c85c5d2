"""This process as what writes the files of an export: threads, PyArrow, no Java.

    export(LocalEngine(threads=2), Export(dsn=dsn, topics=("orders",), path="/data/events"))

A thread reads a range of ids by a connection of its own, and writes the files of that range. PostgreSQL, PyArrow and
the disk do the work, outside of Python's lock, so threads are enough.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock

import psycopg

from django_events.exceptions import Invalid
from django_events.exporting.export import Export
from django_events.exporting.parts import Part
from django_events.exporting.paths import split
from django_events.exporting.range_files import RangeFiles
from django_events.exporting.storage import SUCCESS, OfDisk, Storage
from django_events.exporting.writing import OUTPUTS, count
from django_events.reading.dsn import Connection, Dsn
from django_events.reading.ranges import Range
from django_events.reading.topics import TopicLog


class LocalEngine:
    """Threads of this process."""

    def __init__(self, *, threads: int) -> None:
        self.threads = threads
        self._cancelled = Event()
        self._connections = Connections()
        self._written = self._of = 0

    def storage(self, wanted: Export) -> Storage:
        if wanted.format not in OUTPUTS:
            raise Invalid(
                f"Without Spark there is no format {wanted.format!r}. Known are: {', '.join(OUTPUTS)}. Or take "
                "--engine spark."
            )
        if split(wanted.path)[0] not in ("", "file"):
            raise Invalid(
                f"Files can't be written to {wanted.path!r} without Spark: PyArrow has no step there that makes an "
                "object unless it is there, so two runs could double events. Take --engine spark, or a folder on a "
                "disk that this machine sees."
            )
        return OfDisk()

    @contextmanager
    def working(self) -> Iterator[Callable[[], object]]:
        self._cancelled.clear()
        try:
            yield self._cancel
        finally:
            self._cancel()

    def write(self, wanted: Export, topic: TopicLog, part: Part, place: str, bytes_per_row: float) -> int:
        folder = split(place)[2]
        Path(folder).mkdir(parents=True)
        whole = Range(topic.name, topic.id, part.start, part.end)
        rows, _ = self.write_range(RangeFiles.of(wanted, part.topic), whole, folder, bytes_per_row)
        Path(folder + SUCCESS).touch()
        return rows

    def write_range(self, made: RangeFiles, whole: Range, folder: str, bytes_per_row: float) -> tuple[int, list[str]]:
        """Write the events of a range into a folder; returns how many were read, and the files by their names."""
        self._written, self._of = 0, len(whole)
        ranges = made.cut(whole, bytes_per_row=bytes_per_row, at_once=self.threads)
        tasks: list[Future[tuple[int, list[str]]]] = []
        try:
            with ThreadPoolExecutor(self.threads, thread_name_prefix="django_events exports") as pool:
                tasks += [pool.submit(self._write, made, one, folder, task) for task, one in enumerate(ranges)]
                self._wait(tasks)
        except BaseException:
            # A full disk would get no room by the files that are whole, as no commit will name them.
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is None:
                    _remove(folder, task.result()[1])
            raise
        written = [task.result() for task in tasks]
        return sum(rows for rows, _ in written), [file for _, files in written for file in files]

    def _wait(self, tasks: list[Future[tuple[int, list[str]]]]) -> None:
        """Until all are done, or one has failed: then the others end, and its error is raised."""
        try:
            done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
            failed = [error for task in done if (error := task.exception()) is not None]
            if failed:
                raise next((error for error in failed if not isinstance(error, _Cancelled)), failed[0])
        finally:
            if not all(task.done() for task in tasks):
                self._cancel()
                for task in tasks:
                    task.cancel()

    def count(self, format: str, place: str) -> int:
        return count(format, place)

    def share(self) -> float:
        """How much of the part is done."""
        return self._written / self._of if self._of else 0.0

    def _write(self, made: RangeFiles, one: Range, place: str, task: int) -> tuple[int, list[str]]:
        with self._connections.one(made.dsn) as connection:
            return made.write(connection, one, place, task=task, tell=self._tell)

    def _tell(self, rows: int) -> None:
        if self._cancelled.is_set():
            raise _Cancelled
        self._written += rows  # for people only, so it may miss some

    def _cancel(self) -> None:
        self._cancelled.set()
        self._connections.cut()


def _remove(folder: str, files: Iterable[str]) -> None:
    for file in files:
        with suppress(OSError):  # what went wrong first is what is said
            Path(folder, file).unlink(missing_ok=True)


class _Cancelled(Exception):
    """The work of this thread is not wanted any more."""


class Connections:
    """The connections of threads, to be cut from another one: it may wait for a server that says nothing."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()
        self._lock = Lock()

    @contextmanager
    def one(self, dsn: Dsn) -> Iterator[Connection]:
        with dsn.connected() as connection:
            with self._lock:
                self._open.add(connection)
            try:
                yield connection
            finally:
                with self._lock:
                    self._open.discard(connection)

    def cut(self) -> None:
        """End them without a word. Closing one would take it away from under the thread that reads."""
        with self._lock:
            for connection in self._open:
                # One that is closed already has no number.
                with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)
