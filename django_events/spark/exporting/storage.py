"""The calls of `Storage` on what Spark reaches, wherever an export lies: HDFS, object stores, a server's disk.

    storage = storage_of(spark, "/data/events")

HDFS gives a folder its name in one step, as a disk does, even if others try at the same moment. An object store has no
such step for folders, and some have one for a single object.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from posixpath import dirname
from typing import TYPE_CHECKING, Any

from django_events.exceptions import Invalid, Refused
from django_events.exporting.paths import split
from django_events.exporting.storage import OF_TASKS, SUCCESS, OfDisk, Storage
from django_events.spark.errors import told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# Their connectors rename a folder by looking first, and then copying file by file.
OBJECT_STORES = ("s3", "s3a", "s3n", "gs", "oss", "cosn", "obs", "bos", "tos", "wasb", "wasbs", "swift")
CONDITIONAL = "fs.option.create.conditional.overwrite"  # Hadoop's name for a PUT with If-None-Match
OF_FOLDERS = "fs.capability.paths.acls"  # of Azure's store: it has folders, and renames them in one step
ABORTABLE = "fs.capability.outputstream.abortable"  # of streams that make no object unless they are closed
COPIES = 8  # at a time


def storage_of(spark: "SparkSession", path: str) -> Storage:
    """The file system that Spark has for a path; Invalid if there is no way to it."""
    if not hasattr(spark, "_jvm"):
        return OfServer(spark, path)
    hadoop = OfHadoop(spark, path)
    if hadoop.scheme == "file":
        return OfDisk()
    return OfObjects(spark, path) if hadoop.scheme in OBJECT_STORES else hadoop


class OfHadoop:
    """HDFS, or another file system that the driver's JVM knows, which gives a folder its name in one step."""

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
        if self.scheme in ("abfs", "abfss") and not self._can(path, OF_FOLDERS):
            raise _without_a_step(path, "Expected an account with a hierarchical namespace")

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

    def add(self, file: str, text: str, draft: str) -> bool:
        name = file.rpartition("/")[2]
        _write(self._files.create(self._path(f"{draft}/{name}"), True), text)
        if self._move(draft, dirname(file)):
            return True
        self.remove(draft)
        return False

    def keep(self, folder: str) -> None:
        """Nothing can be done from here: whether closing a file waits for the disks is a setting of HDFS."""

    def show(self, source: str, target: str) -> bool:
        return self._move(source, target)

    def drop(self, folder: str, aside: str) -> None:
        self._move(folder, aside)
        self.remove(aside)

    def remove(self, folder: str) -> None:
        with suppress(Exception):
            self._files.delete(self._path(folder), True)

    def _move(self, source: str, target: str) -> bool:
        self._files.mkdirs(self._path(target).getParent())
        try:
            self._context().rename(self._path(source), self._path(target), self._never_over)
        except Exception as error:
            thrown = getattr(error, "java_exception", None)
            if thrown and thrown.getClass().getSimpleName() in ("FileAlreadyExistsException", "FileNotFoundException"):
                return False
            raise
        return True

    def _can(self, path: str, what: str) -> bool:
        return bool(self._files.hasPathCapability(self._path(path), what))


class OfObjects(OfHadoop):
    """A store that has objects and no folders. The step that decides is to make an object unless it is there."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        super().__init__(spark, path)
        if not self._makes_once(path):
            raise _without_a_step(
                path,
                "Expected s3a:// of Hadoop 3.4.2 or newer, with fs.s3a.create.conditional.enabled as it is by default",
            )

    def add(self, file: str, text: str, draft: str) -> bool:
        try:
            _write(self._made_once(self._path(file)), text)
        except Exception:  # each connector has another one for a name that is taken
            if not self._files.exists(self._path(file)):
                raise
            return False
        return True

    def show(self, source: str, target: str) -> bool:
        """Object by object: what counts is decided already, so each run may do it, or what another one left of it."""
        beginning = len(self._files.makeQualified(self._path(source)).toString())
        found = ((one.toString()[beginning:], one) for one in self._objects(source))
        # What a late task writes doesn't count, and may be gone before it is copied.
        objects = {name: one for name, one in found if not name.removeprefix("/").startswith(OF_TASKS)}
        done = objects.pop(SUCCESS, None)
        with ThreadPoolExecutor(COPIES) as pool:
            list(pool.map(lambda name: self._move_object(objects[name], f"{target}{name}"), objects))
        if done is not None:
            self._move_object(done, f"{target}{SUCCESS}")
        self.remove(source)
        return done is not None or bool(objects)

    def drop(self, folder: str, aside: str) -> None:
        self.remove(folder)

    def _objects(self, folder: str) -> Iterator[Any]:
        if not self.names(folder):
            return
        found = self._files.listFiles(self._path(folder), True)
        while found.hasNext():
            yield found.next().getPath()

    def _makes_once(self, path: str) -> bool:
        return self.scheme == "gs" or self._can(path, CONDITIONAL)

    def _made_once(self, place: Any) -> Any:
        making = self._files.createFile(place).recursive()
        if self.scheme == "gs":  # its connector asks for generation 0, which is the same
            return making.overwrite(False).build()
        return making.must(CONDITIONAL, True).build()

    def _move_object(self, source: Any, target: str) -> None:
        """An object is there as a whole or not at all: one that is there already is this one."""
        place = self._path(target)
        cause = None
        try:
            if not self._files.exists(place):
                self._files.mkdirs(place.getParent())
                self._files.rename(source, place)
        except Exception as error:  # another process may do the same
            cause = error
        if not self._files.exists(place):
            why = told(cause).rstrip(".") if cause else "the store refused, and gave no reason"
            raise Refused(f"{source.toString()} could not be copied to {target}: {why}. Run it again.") from cause


class OfServer:
    """A disk that the machines behind a server of Spark Connect share: each call is a task there."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        if split(path)[0] not in ("", "file"):
            raise Invalid(
                f"Files can't be written to {path!r} through Spark Connect: it can't give folders their names there. "
                "Expected a folder on a disk that all machines of the server share. For another file system, run the "
                "driver here: --master instead of --remote."
            )
        self._spark = spark

    def names(self, folder: str) -> list[str]:
        return list(self._answer("names", folder))

    def read(self, file: str) -> str:
        return str(self._answer("read", file))

    def add(self, file: str, text: str, draft: str) -> bool:
        return bool(self._answer("add", file, text, draft))

    def keep(self, folder: str) -> None:
        self._answer("keep", folder)

    def show(self, source: str, target: str) -> bool:
        return bool(self._answer("show", source, target))

    def drop(self, folder: str, aside: str) -> None:
        self._answer("drop", folder, aside)

    def remove(self, folder: str) -> None:
        self._answer("remove", folder)

    def make(self, folder: str) -> None:
        self._answer("make", folder)

    def gather(self, files: Sequence[str], source: str, target: str) -> None:
        self._answer("gather", files, source, target)

    def _answer(self, call: str, *arguments: Any) -> Any:
        def work(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
            import pyarrow as pa

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"answer": [json.dumps(getattr(OfDisk(), call)(*arguments))]})

        [row] = self._spark.range(0, 1, 1, 1).mapInArrow(work, "answer string").collect()
        return json.loads(row.answer)


def _write(out: Any, text: str) -> None:
    """Write to a stream of Hadoop's and close it; onto the disks, if it can wait for them.

    A stream that failed is not closed: closing it would make an object of the part that was written, and its name could
    never be given to the whole record.
    """
    try:
        out.write(bytearray(text.encode()))
        if out.hasCapability("hsync"):
            out.hsync()
    except BaseException:
        with suppress(Exception):  # the first error is the one that says why
            if out.hasCapability(ABORTABLE):
                out.abort()
        raise
    out.close()


def _without_a_step(path: str, expected: str) -> Invalid:
    return Invalid(
        f"Nothing at {path!r} can be done once and for all: it has no step that gives a name, or refuses because the "
        f"name is taken. Two runs could double events there. {expected}, or another place."
    )
