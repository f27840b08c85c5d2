"""How ranges of the log become files: what a thread of this process does, and a task of Spark.

    made = RangeFiles.of(export, topic)
    with made.dsn.connected() as connection:
        rows, files = made.write(connection, Range("orders", 7, 1, 250_001), "/data/…/attempts/1f…", task=0)

It knows nothing of attempts and journals: the place is a folder that is there, and that no other writer has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from django_events.exporting.file_columns import FileColumns
from django_events.exporting.layout import COMPRESSED, topic_folder
from django_events.exporting.storage import make_below
from django_events.exporting.writing import FolderFiles
from django_events.reading.dsn import Connection, Dsn
from django_events.reading.ranges import Range, cut

if TYPE_CHECKING:
    from django_events.exporting.export import Export

FETCH_SIZE = 100_000
WORTH_A_TASK = 8 << 20  # bytes of a file


@dataclass(frozen=True, kw_only=True)
class RangeFiles:
    """The way in which ranges are written. Spark sends it to its tasks."""

    dsn: Dsn
    by: tuple[str, ...]
    format: str
    target_size: int
    columns: FileColumns
    allow_loss: bool
    by_topic: bool = False  # a folder for each topic, above all others

    @classmethod
    def of(cls, wanted: "Export", topic: str) -> Self:
        """The way of an export."""
        return cls(
            dsn=Dsn(wanted.dsn),
            by=wanted.by,
            format=wanted.format,
            target_size=wanted.target_size,
            columns=wanted.columns_of(topic),
            allow_loss=wanted.allow_loss,
        )

    def cut(self, whole: Range, *, bytes_per_row: float, at_once: int) -> list[Range]:
        """A range for each task: so many that files get their size, and all that work at once have something to do.

        Where types are mixed in every range, more tasks than that would only make more files of each type.
        """
        size = len(whole) * bytes_per_row / COMPRESSED
        busy = min(at_once, int(size // WORTH_A_TASK) + 1)
        return list(cut(whole, busy if "type" in self.by else max(int(size // self.target_size) + 1, busy)))

    def write(
        self,
        connection: Connection,
        one: Range,
        place: str,
        *,
        task: int,
        tell: Callable[[int], object] = lambda rows: None,
    ) -> tuple[int, list[str]]:
        """Write the events of a range into a folder; returns how many, and the files by their names below it.

        `tell` hears of each batch before it is added, and ends what is written by raising. Then no file is left.
        """
        reader = self.columns.reader(self.dsn, fetch_size=FETCH_SIZE, fail_on_data_loss=not self.allow_loss)
        # Files may get somewhat larger than the estimate, rather than have a small one for the rest.
        limit = self.target_size if "type" in self.by else self.target_size * 3 // 2
        above = f"{topic_folder(one.topic)}/" if self.by_topic else ""
        if above:
            place = str(make_below(Path(place), above.rstrip("/")))
        rows = 0
        with FolderFiles(
            place, by=self.by, format=self.format, target_size=limit, task=task, columns=self.columns
        ) as files:
            for batch in reader.read_by(connection, one):
                tell(batch.num_rows)
                files.add(batch)
                rows += batch.num_rows
        return rows, [above + file for file in files.files]
