"""Tables of Delta and Iceberg: writing them beside files and COPY, changing them, and what a day of commits leaves."""

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from django.db import transaction

from django_events import Draft, publish_many
from django_events.exporting.comparing import compare
from django_events.exporting.comparison import Comparison
from django_events.exporting.erasing import Erasing
from django_events.exporting.export import Export, export
from django_events.exporting.local import LocalEngine
from django_events.exporting.tables.export import TableExport, TableSummary, export_to_tables
from django_events.log.transfer import Transfer
from django_events.management.spark import names_of_keys
from django_events.operations import erase
from django_events.reading.offsets import Boundary
from tests.benchmarks.database import truncate, url
from tests.benchmarks.files import SELECT
from tests.benchmarks.harness import Effort, Row, figure, interleave, timed
from tests.benchmarks.pipeline import TOPIC, filled
from tests.benchmarks.samples import TYPE, value
from tests.benchmarks.transfer import BUFFER, LOG, declared

FORMATS = ("delta", "iceberg")
EVENTS = 500_000
KEYS, CHANGED = 100_000, 10_000
PER_SECOND, EVERY = 1_000, 60  # of a follower, and how long its events wait
COMMITS_A_DAY, COMMITS_AN_HOUR = 86_400 // EVERY, 3_600 // EVERY
FEW = 60  # events of a commit, where what is measured is the number of commits
MANY = 10_000


class NoStop:
    """It is never stopped."""

    requested = False

    def wait(self, seconds: float | None) -> None:
        raise AssertionError("nothing follows")


def to_table(
    folder: str | Path, format: str, tell: Any = None, *, threads: int | None = None, **options: Any
) -> TableSummary:
    wanted = TableExport(dsn=url(), topics=(TOPIC.name,), path=str(folder), format=format, **options)
    writer = LocalEngine(threads=threads) if threads else None
    return export_to_tables(wanted, stop=NoStop(), writer=writer, **({"tell": tell} if tell else {}))


def move(drafts: Iterable[Draft]) -> None:
    """Publish events, and move them into the log."""
    some, transfer = list(drafts), Transfer("default")
    for first in range(0, len(some), MANY):
        with transaction.atomic():
            publish_many(TOPIC, some[first : first + MANY])
        while transfer.move():
            pass


@contextmanager
def places() -> Iterator[Callable[[], str]]:
    """Folders that are new each time."""
    with tempfile.TemporaryDirectory() as folder:
        yield lambda: tempfile.mkdtemp(dir=folder)


@figure("N34", "the log into tables of Delta and Iceberg, against Parquet without Java and a COPY to a file")
def written(effort: Effort) -> Iterator[Row]:
    """Each into a new place, with all that it does for exactly once. COPY writes what it gets, and no columns."""
    events = effort.events(EVENTS)
    with declared(TOPIC), places() as place:
        filled(TOPIC, events)

        def to_files(threads: int) -> None:
            export(LocalEngine(threads=threads), Export(dsn=url(), topics=(TOPIC.name,), path=place()))

        def copied() -> None:
            wanted = f"COPY ({SELECT}) TO STDOUT (FORMAT binary)"
            with (
                Path(place(), "copied").open("wb") as out,
                psycopg.connect(url()) as connection,
                connection.cursor() as cursor,
                cursor.copy(wanted) as copy,
            ):
                for data in copy:
                    out.write(data)

        blocks = {
            "Delta": lambda: events / timed(to_table, place(), "delta"),
            "Iceberg": lambda: events / timed(to_table, place(), "iceberg"),
            "Delta, two threads": lambda: events / timed(lambda: to_table(place(), "delta", threads=2)),
            "Iceberg, two threads": lambda: events / timed(lambda: to_table(place(), "iceberg", threads=2)),
            "Parquet, one thread": lambda: events / timed(to_files, 1),
            "Parquet, two threads": lambda: events / timed(to_files, 2),
            "COPY to a file": lambda: events / timed(copied),
        }
        for block in blocks.values():
            block()
        samples = interleave(blocks, rounds=effort.rounds(5))
    for table in ("Delta", "Iceberg"):
        for other in ("Parquet, one thread", "Parquet, two threads", "COPY to a file"):
            yield samples.row(f"a table of {table}", table, other, unit="events/s")
        yield samples.row(f"a table of {table} by two threads", f"{table}, two threads", table, unit="events/s")


@figure("N35", "10,000 keys of 100,000 upserted into a table, against appending the same events to a table of events")
def upserted(effort: Effort) -> Iterator[Row]:
    """The keys lie anywhere in the table, so that nearly all of it is written anew."""
    rng = random.Random(7)

    def drafts(keys: Iterable[int]) -> list[Draft]:
        return [Draft(value=value(n), type=TYPE, key=str(n)) for n in keys]

    with declared(TOPIC), places() as place:
        truncate(BUFFER, LOG)
        first = drafts(range(KEYS))
        move(first)
        tables = {(format, upsert): place() for format in FORMATS for upsert in (True, False)}
        for (format, upsert), folder in tables.items():
            to_table(folder, format, upsert=upsert)
        taken: dict[tuple[str, bool], list[float]] = {which: [] for which in tables}
        for _ in range(effort.rounds(5)):
            move(drafts(rng.sample(range(KEYS), CHANGED)))
            for (format, upsert), folder in tables.items():
                taken[format, upsert].append(timed(lambda f, t, u: to_table(f, t, upsert=u), folder, format, upsert))
        for format in FORMATS:
            yield _beside(f"10,000 changed keys, {format}", taken[format, True], "appended", taken[format, False])


@figure("N36", "an erasure of a key, and the comparison with the log, against exporting all of it anew")
def erased_and_compared(effort: Effort) -> Iterator[Row]:
    """A key has one of 10,000 of the events. Each round erases another one."""
    events = effort.events(EVENTS)
    erasing = Erasing(names=names_of_keys, by="")
    with declared(TOPIC), places() as place:
        filled(TOPIC, events)
        tables: dict[str, str] = {format: place() for format in FORMATS}
        files = place()
        anew: dict[str, list[float]] = {format: [] for format in (*FORMATS, "parquet")}
        blanked: dict[str, list[float]] = {format: [] for format in anew}
        compared: dict[str, list[float]] = {format: [] for format in anew}

        def to_files(folder: str, with_erasing: Erasing | None = None) -> None:
            wanted = Export(dsn=url(), topics=(TOPIC.name,), path=folder, erasing=with_erasing)
            export(LocalEngine(threads=2), wanted)

        for format, folder in tables.items():
            to_table(folder, format)
        to_files(files)
        for turn in range(effort.rounds(5)):
            erase(TOPIC, key=str(turn), reason="a benchmark")
            for format, folder in {**tables, "parquet": files}.items():
                if format == "parquet":
                    anew[format].append(timed(to_files, place()))
                    blanked[format].append(timed(to_files, folder, erasing))
                else:
                    anew[format].append(timed(to_table, place(), format))
                    blanked[format].append(timed(lambda f, t: to_table(f, t, erasing=erasing), folder, format))
                wanted = Comparison(dsn=url(), topics=(TOPIC.name,), path=folder, names=names_of_keys)
                compared[format].append(timed(_proved, wanted))
        for format, reference in anew.items():
            yield _beside(f"a key of {events:,} events erased, {format}", blanked[format], "all exported", reference)
            yield _beside(f"{events:,} events compared, {format}", compared[format], "all exported", reference)


def _proved(wanted: Comparison) -> None:
    found = compare(wanted)
    if found.offenders:
        raise RuntimeError(f"What was exported differs from the log: {list(found.offenders)[:3]}")


def _beside(what: str, taken: list[float], other: str, reference: list[float]) -> Row:
    ratios = [a / b for a, b in zip(taken, reference, strict=True)]
    return Row(
        what=what, unit="s", measured=median(taken), against=other, reference=median(reference), ratio=median(ratios)
    )


@figure("N37", "Delta after a day at 1,000 events a second with a commit a minute, with and without --compact")
def delta_after_a_day(effort: Effort) -> Iterator[Row]:
    yield from after(effort.events(COMMITS_A_DAY), "delta")


@figure("N37", "Iceberg after a quarter of such a day, with and without --compact")
def iceberg_after_six_hours(effort: Effort) -> Iterator[Row]:
    """Each commit reads and writes what the table says of all snapshots, so a whole day would take long."""
    yield from after(effort.events(COMMITS_A_DAY) // 4, "iceberg")


def after(commits: int, format: str) -> Iterator[Row]:
    """Commits of a few events, as it is their number that counts; and how large the file of a real one is."""
    with declared(TOPIC), places() as place:
        filled(TOPIC, PER_SECOND * EVERY)
        to_table(folder := place(), format)
        size = sum(file.stat().st_size for file in _data(folder))
        yield Row(what=f"the file of a commit of 60,000 events, {format}", unit="bytes", measured=size)
    with declared(TOPIC), places() as place:
        filled(TOPIC, commits * FEW)
        moments = [time.perf_counter()]
        folder = place()
        to_table(folder, format, tell=lambda *_: moments.append(time.perf_counter()), events_per_commit=FEW)
        took = [end - begin for begin, end in pairwise(moments)]
        tenth = max(len(took) // 10, 1)
        yield Row(what=f"commits, {format}", unit="commits", measured=len(took))
        yield _beside(f"a commit of the last tenth, {format}", took[-tenth:], "of the first", took[:tenth])
        yield from _left(folder, format, "")
        seconds = timed(lambda: to_table(folder, format, compact=True))
        yield Row(what=f"--compact of all of them at once, {format}", unit="s", measured=seconds)
        folder = place()
        for hour in range(1, commits // COMMITS_AN_HOUR + 1):
            until = Boundary(point=hour * COMMITS_AN_HOUR * FEW + 1)
            to_table(folder, format, events_per_commit=FEW, until=until, compact=True)
        yield from _left(folder, format, ", --compact each hour")


def _left(folder: str, format: str, how: str) -> Iterator[Row]:
    """What a reader opens, and what lies there besides."""
    from tests.support.lake_files import delta_files, iceberg_files

    read = delta_files(Path(folder, TOPIC.name)) if format == "delta" else iceberg_files(Path(folder), TOPIC.name)
    data = _data(folder)
    others = [path for path in Path(folder).rglob("*") if path.is_file() and path not in data]
    yield Row(what=f"files that a reader opens, {format}{how}", unit="files", measured=len(read))
    yield Row(what=f"files of events that lie there, {format}{how}", unit="files", measured=len(data))
    yield Row(what=f"files of metadata, {format}{how}", unit="files", measured=len(others))
    size = sum(path.stat().st_size for path in others)
    yield Row(what=f"size of the metadata, {format}{how}", unit="MB", measured=size / 1e6)


def _data(folder: str) -> set[Path]:
    return {path for path in Path(folder).rglob("*.parquet") if "_delta_log" not in path.parts}
