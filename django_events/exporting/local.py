"""This process as what writes the files of an export: threads, PyArrow, no Java.

    export(LocalEngine(threads=2), Export(dsn=dsn, topics=("orders",), path="/data/events"))

A thread reads a range of ids by a connection of its own, and writes the files of that range. PostgreSQL, PyArrow and
the disk do the work, outside of Python's lock, so threads are enough.
"""

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock

import pyarrow.parquet as pq

from django_events.exceptions import Invalid
from django_events.exporting.export import Export
from django_events.exporting.layout import COMPRESSED
from django_events.exporting.parts import Part
from django_events.exporting.paths import split
from django_events.exporting.storage import SUCCESS, OfDisk, Storage
from django_events.exporting.writing import OUTPUTS, FolderFiles
from django_events.reading.dsn import Connection, Dsn
from django_events.reading.ranges import Range, cut
from django_events.reading.topics import TopicLog

FETCH_SIZE = 100_000
WORTH_A_TASK = 8 << 20  # bytes of a file


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
        self._written, self._of = 0, len(part)
        Path(split(place)[2]).mkdir(parents=True)
        whole = Range(topic.name, topic.id, part.start, part.end)
        ranges = list(cut(whole, self._tasks(wanted, part, bytes_per_row)))
        with ThreadPoolExecutor(self.threads, thread_name_prefix="django_events exports") as pool:
            tasks = [pool.submit(self._write, wanted, one, place, task) for task, one in enumerate(ranges)]
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
        Path(split(place)[2] + SUCCESS).touch()
        return sum(task.result() for task in tasks)

    def count(self, format: str, place: str) -> int:
        files = (Path(folder, name) for folder, _, names in os.walk(split(place)[2]) for name in names)
        counted = _rows_of_parquet if format == "parquet" else _lines
        return sum(counted(file) for file in files if file.name.startswith("part-"))

    def share(self) -> float:
        """How much of the part is done."""
        return self._written / self._of if self._of else 0.0

    def _tasks(self, wanted: Export, part: Part, bytes_per_row: float) -> int:
        """So many that files get their size, as Spark's tasks do; and no more than threads if types are mixed."""
        size = len(part) * bytes_per_row / COMPRESSED
        for_threads = min(self.threads, int(size // WORTH_A_TASK) + 1)
        return for_threads if "type" in wanted.by else max(int(size // wanted.target_size) + 1, for_threads)

    def _write(self, wanted: Export, one: Range, place: str, task: int) -> int:
        dsn, columns = Dsn(wanted.dsn), wanted.columns_of(one.topic)
        reader = columns.reader(dsn, fetch_size=FETCH_SIZE, fail_on_data_loss=not wanted.allow_loss)
        rows = 0
        # Files may get somewhat larger than the estimate, rather than have a small one for the rest.
        limit = wanted.target_size * 3 // 2 if "type" not in wanted.by else wanted.target_size
        with (
            FolderFiles(
                split(place)[2], by=wanted.by, format=wanted.format, target_size=limit, task=task, columns=columns
            ) as files,
            self._connections.one(dsn) as connection,
        ):
            for batch in reader.read_by(connection, one):
                if self._cancelled.is_set():
                    raise _Cancelled
                files.add(batch)
                rows += batch.num_rows
                self._written += batch.num_rows  # for people only, so it may miss some
        return rows

    def _cancel(self) -> None:
        self._cancelled.set()
        self._connections.cut()


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
                with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)


def _rows_of_parquet(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows)


def _lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)
