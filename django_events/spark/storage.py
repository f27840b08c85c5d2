"""The few calls on a file system that Spark itself has no words for, wherever an export lies.

    storage = storage_of(spark, "/data/events")
    storage.move("/data/events/_django_events/attempts/1f…", "/data/events/batch=000000000007")

`move` is what exactly once rests on: it gives a folder another name in one step, or changes nothing because that name
is taken. On a disk with POSIX semantics and on HDFS the file system itself sees to that, whoever else tries at the same
moment. An object store has no such step.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EEXIST, ENOTEMPTY
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from django_events.exceptions import InvalidOption
from django_events.spark.paths import split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class Storage(Protocol):
    """What is needed of a file system. Paths are as Spark has them."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing if there is none."""

    def read(self, file: str) -> str:
        """The text of a file."""

    def write(self, file: str, text: str) -> None:
        """Write a file that no reader looks for yet, and the folders above it."""

    def move(self, source: str, target: str) -> bool:
        """Give a folder another name. False, and nothing is changed, if that is taken or the folder is gone."""

    def remove(self, folder: str) -> None:
        """Remove a folder as far as it can be; what another process still writes into it stays."""


def storage_of(spark: "SparkSession", path: str) -> Storage:
    """The file system that Spark has for a path; InvalidOption if there is no way to it."""
    if not hasattr(spark, "_jvm"):
        return OfServer(spark, path)
    hadoop = OfHadoop(spark, path)
    return OfDisk() if hadoop.scheme == "file" else hadoop


class OfDisk:
    """A disk that this process sees."""

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in _here(folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, file: str) -> str:
        return _here(file).read_text()

    def write(self, file: str, text: str) -> None:
        place = _here(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())

    def move(self, source: str, target: str) -> bool:
        place = _here(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The system call refuses a folder that has something in it: nothing is looked up before, nor copied after.
            os.rename(_here(source), place)  # noqa: PTH104
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (EEXIST, ENOTEMPTY):
                return False
            raise
        return True

    def remove(self, folder: str) -> None:
        shutil.rmtree(_here(folder), ignore_errors=True)


class OfHadoop:
    """HDFS, or another file system that the driver's JVM knows."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        jvm: Any = spark._jvm
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._path = jvm.org.apache.hadoop.fs.Path
        self._files = self._path(path).getFileSystem(configuration)
        self.scheme: str = self._files.getUri().getScheme()
        # FileSystem.rename() moves a folder into one that is there already; that of FileContext refuses to.
        context = jvm.org.apache.hadoop.fs.FileContext
        self._context: Callable[[], Any] = lambda: context.getFileContext(self._files.getUri(), configuration)
        kind = getattr(jvm.org.apache.hadoop.fs, "Options$Rename")
        gateway: Any = spark.sparkContext._gateway
        self._never_over: Any = gateway.new_array(kind, 0)

    def names(self, folder: str) -> list[str]:
        if not self._files.exists(self._path(folder)):
            return []
        return sorted(status.getPath().getName() for status in self._files.listStatus(self._path(folder)))

    def read(self, file: str) -> str:
        place = self._path(file)
        source = self._files.open(place)
        try:
            return bytes(source.readNBytes(self._files.getFileStatus(place).getLen())).decode()
        finally:
            source.close()

    def write(self, file: str, text: str) -> None:
        out = self._files.create(self._path(file), True)
        try:
            out.write(bytearray(text.encode()))
        finally:
            out.close()

    def move(self, source: str, target: str) -> bool:
        self._files.mkdirs(self._path(target).getParent())
        try:
            self._context().rename(self._path(source), self._path(target), self._never_over)
        except Exception as error:
            thrown = getattr(error, "java_exception", None)
            if thrown and thrown.getClass().getSimpleName() in ("FileAlreadyExistsException", "FileNotFoundException"):
                return False
            raise
        return True

    def remove(self, folder: str) -> None:
        with suppress(Exception):
            self._files.delete(self._path(folder), True)


class OfServer:
    """A disk that the machines behind a server of Spark Connect share: each call is a task there."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        if split(path)[0] not in ("", "file"):
            raise InvalidOption(
                f"Files can't be written to {path!r} through Spark Connect: it can't give folders their names there. "
                "Expected a folder on a disk that all machines of the server share. For another file system, run the "
                "driver here: --master instead of --remote."
            )
        self._spark = spark

    def names(self, folder: str) -> list[str]:
        return list(self._answer("names", folder))

    def read(self, file: str) -> str:
        return str(self._answer("read", file))

    def write(self, file: str, text: str) -> None:
        self._answer("write", file, text)

    def move(self, source: str, target: str) -> bool:
        return bool(self._answer("move", source, target))

    def remove(self, folder: str) -> None:
        self._answer("remove", folder)

    def _answer(self, call: str, *arguments: str) -> Any:
        def work(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
            import pyarrow as pa

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"answer": [json.dumps(getattr(OfDisk(), call)(*arguments))]})

        [row] = self._spark.range(0, 1, 1, 1).mapInArrow(work, "answer string").collect()
        return json.loads(row.answer)


def _here(path: str) -> Path:
    return Path(split(path)[2])
