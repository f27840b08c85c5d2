"""`manage.py export_events orders --to /data/events`: events into files, exactly once."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_events.management.databases import named
from django_events.management.described import COLUMNS, file_columns
from django_events.management.spark import ProgressLine, add_spark, dsn_of, explained, local, names_of_keys, usage
from django_events.phrases import count, duration, size
from django_events.workers.loop import Exit
from django_events.workers.stopping import interrupted_by_sigterm, stop_on_signals

if TYPE_CHECKING:
    from django_events.exporting.erasing import Applied, Erasing
    from django_events.exporting.export import Engine, Export
    from django_events.exporting.local import LocalEngine
    from django_events.exporting.tables.export import TableExport, TableSummary
    from django_events.spark.exporting.engine import SparkEngine

TABLES = ("delta", "iceberg")
SPARK, LOCAL = "spark", "local"
TARGET_SIZE = "128MB"
NEVER = "never"
THINNED = timedelta(days=7)  # of a follower without --expire: the snapshots that commits take longer by
OF_ADDRESSES = "#%?"
MOST_THREADS = 8  # by default: more of them ask more of the database than a disk can take


class Command(BaseCommand):
    help = "Export events to files. What is there already is not exported again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topics", nargs="+", metavar="TOPIC", help="Which topics.")
        parser.add_argument(
            "--to", required=True, metavar="PATH", help="A folder, or what Spark knows: s3a://, hdfs://."
        )
        parser.add_argument(
            "--format",
            default="parquet",
            help="parquet, json, orc, or a table: delta, iceberg; parquet by default.",
        )
        parser.add_argument(
            "--since", metavar="ID|TIME", help="From an id, or a time like 2026-11-20 or 2026-11-20T18:00:00Z, on."
        )
        parser.add_argument(
            "--until",
            metavar="ID|TIME",
            help="Up to, not including, an id or a time. By default all that is there now.",
        )
        parser.add_argument("--by", default="day", help="Folders: month, day, hour, type, or none; day by default.")
        parser.add_argument(
            "--target-size", help="How large files should get, of a table those that --compact makes; 128MB by default."
        )
        parser.add_argument("--part", type=int, help="Events that are begun again when interrupted.")
        parser.add_argument("--resume", action="store_true", help="Only finish what an interrupted run had begun.")
        parser.add_argument(
            "--allow-loss", action="store_true", help="Export what is left where retention has removed events."
        )
        parser.add_argument(
            "--engine",
            choices=(SPARK, LOCAL),
            help="What writes files: spark, the default, or local, this process without Java. Of tables local is the "
            "default.",
        )
        parser.add_argument(
            "--threads",
            type=int,
            help="Of --engine local; one for each core by default, at most 8. Of a table: that many write its files.",
        )
        parser.add_argument("--follow", action="store_true", help="Of a table: go on until stopped.")
        parser.add_argument(
            "--every", type=float, default=60, metavar="SECONDS", help="With --follow, how long events wait; 60."
        )
        parser.add_argument("--consumer", metavar="NAME", help="Of a table: be a consumer, whose lag is seen.")
        parser.add_argument(
            "--catalog", metavar="NAME", help="Of Iceberg: a catalogue of PyIceberg; --to is a namespace."
        )
        parser.add_argument(
            "--columns", choices=COLUMNS, default="text", help="typed: values as columns, by the schemas of the topics."
        )
        parser.add_argument(
            "--schema", metavar="TYPE@VERSION", help="Values of one type as columns, like order.placed@2."
        )
        parser.add_argument(
            "--upcasters",
            metavar="MODULES",
            help="With --engine spark, modules that bring older versions to the newest.",
        )
        parser.add_argument("--compact", action="store_true", help="Of a table: merge small files.")
        parser.add_argument(
            "--expire",
            metavar="DAYS",
            help="Of a table: remove older versions, and files that none names; never: nothing, not even snapshots.",
        )
        parser.add_argument(
            "--erase", action="store_true", help="Blank what was erased in the log since it was exported, too."
        )
        parser.add_argument(
            "--without",
            action="append",
            type=int,
            metavar="NUMBER",
            help="With --erase: leave that erasure out if its key can't be found; repeatable.",
        )
        parser.add_argument(
            "--upsert", action="store_true", help="Of a table: one row for each key, with its newest event."
        )
        parser.add_argument(
            "--deletes", action="append", metavar="TYPE", help="With --upsert: a type that deletes its key; repeatable."
        )
        add_spark(parser)

    def handle(self, *args: Any, topics: list[str], to: str, verbosity: int, **options: Any) -> None:
        using = named(options["database"])
        if options["without"] and not options["erase"]:
            raise usage("--without is for --erase.")
        if options["format"] in TABLES:
            self._to_tables(using, topics, to, verbosity=verbosity, **options)
            return
        for name in ("follow", "consumer", "catalog", "compact", "expire", "upsert", "deletes"):
            if options[name]:
                raise usage(f"--{name} is for --format {' or '.join(TABLES)}.")
        engine, threads = options["engine"] or SPARK, options["threads"]
        with explained("files" if engine == LOCAL else "spark"):
            from django_events.exporting import layout
            from django_events.exporting.export import BEGINNING, END, EVENTS_PER_PART, Export, export

            if engine == LOCAL and (options["master"] or options["remote"]):
                raise usage("--master and --remote are for --engine spark.")
            if threads is not None and (engine != LOCAL or threads < 1):
                raise usage("--threads is at least 1." if engine == LOCAL else "--threads is for --engine local.")
            is_typed = options["columns"] != "text" or options["schema"] is not None
            if is_typed and options["format"] != "parquet":
                raise usage("Typed columns are for --format parquet, and for tables.")
            if options["upcasters"] is not None and (engine == LOCAL or not is_typed):
                raise usage("--upcasters is for typed columns with --engine spark: this process has those of the site.")
            typed = file_columns(
                dict.fromkeys(topics),
                columns=options["columns"],
                schema=options["schema"],
                upcasters=options["upcasters"],
            )
            where = {"master": options["master"], "remote": options["remote"]}
            since = _boundary("--since", options["since"], topics) or BEGINNING
            until = _boundary("--until", options["until"], topics) or END
            if _is_behind(since.point, until.point):
                raise usage(f"--since {options['since']} is behind --until {options['until']}, expected one before it.")
            wanted = Export(
                dsn=dsn_of(using),
                topics=tuple(dict.fromkeys(topics)),
                path=local(to, option="--to", **where),
                format=layout.parse_format(options["format"]),
                by=layout.parse_by(options["by"]),
                since=since,
                until=until,
                target_size=layout.parse_size(options["target_size"] or TARGET_SIZE),
                events_per_part=_at_least_one(options["part"]) or EVENTS_PER_PART,
                resume=options["resume"],
                allow_loss=options["allow_loss"],
                columns=typed,
                erasing=_erasing(options["without"]) if options["erase"] else None,
            )
            started = time.monotonic()
            with (
                _local(threads) if engine == LOCAL else _spark(wanted, **where) as writing,
                ProgressLine(writing.share, self.stderr, quiet=verbosity < 1) as progress,
            ):
                summary = export(writing, wanted, progress)
        took = _since(started)
        if verbosity and summary.parts:
            self.stdout.write(
                f"Exported {summary.events:,} events to {wanted.path} in {duration(took)}. "
                f"It holds {summary.total:,} now."
            )
        elif verbosity:
            exported = "all of that was exported" if summary.removed else "all of that is there"
            why = exported if summary.meant else "the log has nothing in that range"
            why = "no part of that is unfinished" if wanted.resume else why
            self.stdout.write(f"Nothing to export: {why}. {wanted.path} holds {summary.total:,} events.")
        if verbosity and summary.removed:
            first, *more = summary.removed
            others = f" and {count(len(more), 'other part')}" if more else ""
            self.stdout.write(
                f"Removed since, and not exported again: {first.folder}{others}. To have them again, export to another "
                "folder."
            )
        self._tell_erased(summary.applied, verbosity=verbosity)

    def _to_tables(self, using: str, topics: list[str], to: str, *, verbosity: int, **options: Any) -> None:
        with explained("lake"), stop_on_signals() as stop:
            from django_events.exporting import layout
            from django_events.exporting.export import BEGINNING, END, EVENTS_PER_PART
            from django_events.exporting.tables.export import (
                EVENTS_PER_COMMIT,
                TableExport,
                export_to_tables,
            )

            if options["resume"]:
                raise usage(f"--resume is not for --format {options['format']}: each run goes on where the table ends.")
            is_by_spark, threads = options["engine"] == SPARK, options["threads"]
            where = {"master": options["master"], "remote": options["remote"]}
            if not is_by_spark:
                for name in where:
                    if options[name]:
                        raise usage(f"--{name} is for --engine {SPARK}. Without it this process writes tables.")
            if threads is not None and (is_by_spark or threads < 1):
                raise usage("--threads is for --engine local." if is_by_spark else "--threads is at least 1.")
            has_writer = is_by_spark or threads is not None
            if has_writer and options["upsert"]:
                raise usage(
                    f"--upsert is not for --{f'engine {SPARK}' if is_by_spark else 'threads'}: a commit of states "
                    "compares its keys with those of the whole table, which one thread does. Leave it out."
                )
            is_typed = options["columns"] != "text" or options["schema"] is not None
            if options["upcasters"] is not None and not (is_by_spark and is_typed):
                raise usage(
                    f"--upcasters is for typed columns with --engine {SPARK}: this process has those of the site."
                )
            if options["target_size"] and not options["compact"] and not has_writer:
                raise usage(
                    "--target-size of a table is for --compact, which merges files up to that size. Without it, "
                    f"--engine {SPARK} or --threads a commit adds a file for each day."
                )
            if layout.parse_by(options["by"]) != ("day",):
                raise usage("Tables are partitioned by day: leave --by out.")
            if options["catalog"] and options["format"] != "iceberg":
                raise usage("--catalog is for --format iceberg.")
            if options["follow"] and options["until"] is not None:
                raise usage("--until ends an export, and --follow goes on: say one of them.")
            if options["deletes"] and not options["upsert"]:
                raise usage("--deletes is for --upsert.")
            if options["every"] <= 0:
                raise usage("--every is more than 0 seconds.")
            has_sqlite = options["format"] == "iceberg" and not options["catalog"]
            if has_sqlite and "://" in to and not to.startswith("file:"):
                raise usage(f"--to is {to!r}, and a catalogue in SQLite needs a disk. Say a catalogue by --catalog.")
            path = to if options["catalog"] else local(to, option="--to", **where)
            if has_sqlite and (found := next((character for character in path if character in OF_ADDRESSES), None)):
                raise usage(
                    f"--to is {path!r}, and {found!r} in it has a meaning in the addresses that a catalogue keeps. Say "
                    f"a path without {' '.join(OF_ADDRESSES)}"
                )
            wanted = TableExport(
                dsn=dsn_of(using),
                topics=tuple(dict.fromkeys(topics)),
                path=path,
                format=options["format"],
                catalog=options["catalog"],
                since=_boundary("--since", options["since"], topics) or BEGINNING,
                until=_boundary("--until", options["until"], topics) or END,
                events_per_commit=_at_least_one(options["part"])
                or (EVENTS_PER_PART if has_writer else EVENTS_PER_COMMIT),
                target_size=layout.parse_size(options["target_size"] or TARGET_SIZE),
                follow=options["follow"],
                every=options["every"],
                compact=options["compact"],
                expire=(expire := _age(options["expire"])),
                thin=THINNED if options["follow"] and options["expire"] is None else expire,
                consumer=options["consumer"],
                allow_loss=options["allow_loss"],
                columns=file_columns(
                    dict.fromkeys(topics),
                    columns=options["columns"],
                    schema=options["schema"],
                    upcasters=options["upcasters"],
                ),
                erasing=_erasing(options["without"]) if options["erase"] else None,
                upsert=options["upsert"],
                deletes=tuple(options["deletes"] or ()),
            )

            def tell(topic: str, added: int, waiting: int) -> None:
                if verbosity > 1:
                    self.stderr.write(f"{topic}: {added:,} events added, {waiting:,} wait.")

            if verbosity and wanted.follow:
                self.stderr.write(f"Following {', '.join(topics)} of {using!r} to {wanted.path}. Ctrl-C stops.")
            started = time.monotonic()
            with _spark(wanted, **where) if is_by_spark else nullcontext(_threads(threads)) as writer:
                done = export_to_tables(wanted, stop=stop, tell=tell, warn=self.stderr.write, writer=writer)
        if verbosity:
            self._tell(done, wanted, _since(started))
        self._tell_erased(done.applied, verbosity=verbosity)

    def _tell(self, done: "TableSummary", wanted: "TableExport", took: timedelta) -> None:
        if done.events or done.commits:
            self.stdout.write(
                f"Exported {done.events:,} events to {wanted.path} in {duration(took)}, in commits: {done.commits:,}."
            )
        else:
            self.stdout.write(f"Nothing to export: all of that is in {wanted.path}.")
        if done.left_out:
            self.stdout.write(f"Events without a key, which no row stands for: {done.left_out:,}.")
        if wanted.compact:
            self.stdout.write(" ".join([f"Files that were merged: {done.files_fewer:,}.", *done.unmerged.values()]))
        if wanted.expire is not None or done.expired.versions:
            gone, noun = done.expired, "version" if wanted.format == "delta" else "snapshot"
            self.stdout.write(
                f"Removed: {count(gone.versions, noun)}, {count(gone.files, 'file')}, {size(gone.bytes)}."
            )
            for why in gone.left.values():
                self.stdout.write(why)

    def _tell_erased(self, applied: "Applied", *, verbosity: int) -> None:
        """What was erased, and what can't be reached; an error if erasures wait for the log."""
        if verbosity and applied.erasures:
            erasures = f"{applied.erasures:,} erasure{'s' if applied.erasures != 1 else ''}"
            self.stdout.write(
                " ".join([f"Rows that were blanked, by {erasures}: {applied.rows:,}.", *applied.left.values()])
            )
        if waiting := [f"{number} of {topic}" for topic, some in applied.interrupted.items() for number in some]:
            raise CommandError(
                f"Erasure {', '.join(waiting)} is at work, or was interrupted, so it was not applied. Say that erasure "
                "again, and then this.",
                returncode=Exit.FAILED,
            )


def _erasing(without: list[int] | None) -> "Erasing":
    """How the records of erasures call keys, who runs this, and which are left out if need be."""
    from django_events.exporting.erasing import Erasing
    from django_events.operating.interventions import this_user

    return Erasing(names=names_of_keys, by=this_user(), without=tuple(without or ()))


def _since(started: float) -> timedelta:
    return timedelta(seconds=round(time.monotonic() - started))


def _at_least_one(part: int | None) -> int | None:
    if part is not None and part < 1:
        raise usage("--part is at least 1.")
    return part


def _age(text: str | None) -> timedelta | None:
    """The age from which on a table's versions go; None if none goes."""
    if text is None or text == NEVER:
        return None
    days = float(text) if re.fullmatch(r"\d{1,5}(\.\d{1,9})?", text, re.A) else -1.0
    if days < 0:
        raise usage(f"--expire is {text!r}, expected a number of days like 7 or 0.5, or {NEVER}.")
    return timedelta(days=days)


@contextmanager
def _spark(wanted: "Export | TableExport", **where: Any) -> "Iterator[SparkEngine]":
    from django_events.exporting.layout import COMPRESSED
    from django_events.spark.exporting.engine import SparkEngine
    from django_events.spark.session import session

    settings = {"spark.sql.adaptive.advisoryPartitionSizeInBytes": str(wanted.target_size * COMPRESSED)}
    with session("export_events", settings=settings, **where) as spark:
        yield SparkEngine(spark)


def _threads(count: int | None) -> "LocalEngine | None":
    """Threads that write the files of a table; None where events pass through the libraries of the format."""
    from django_events.exporting.local import LocalEngine

    return None if count is None else LocalEngine(threads=count)


@contextmanager
def _local(threads: int | None) -> "Iterator[Engine]":
    from django_events.exporting.local import LocalEngine

    with interrupted_by_sigterm():
        yield LocalEngine(threads=threads or min(os.cpu_count() or 1, MOST_THREADS))


def _is_behind(since: Any, until: Any) -> bool:
    """Whether two ids, or two times, are the wrong way round. Ends that were not given are below 0."""
    if isinstance(since, datetime) and isinstance(until, datetime):
        return since > until
    return isinstance(since, int) and isinstance(until, int) and since > until > 0


def _boundary(option: str, text: str | None, topics: list[str]) -> Any:
    """An id or a time as the end of what is exported."""
    from django_events.reading.offsets import Boundary

    if text is None:
        return None
    if re.fullmatch("0*[1-9][0-9]*", text):
        if len(topics) > 1:
            raise usage(f"{option} {text} is another event in each of {', '.join(topics)}: export one at a time.")
        return Boundary(option=option, point=int(text))
    try:
        moment = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = datetime.min
    if moment.tzinfo is None:
        raise usage(
            f"{option} is {text!r}, expected an id, a day like 2026-11-20 (of UTC), or a time with its zone like "
            "2026-11-20T18:00:00Z."
        )
    return Boundary(option=option, point=moment)
