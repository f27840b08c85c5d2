"""`manage.py export_events orders --to /data/events`: events into files, exactly once."""

import re
import time
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_events.management.databases import named
from django_events.management.spark import ProgressLine, add_spark, dsn_of, explained, local, usage
from django_events.phrases import duration


class Command(BaseCommand):
    help = "Export events to files with Spark. What is there already is not exported again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topics", nargs="+", metavar="TOPIC", help="Which topics.")
        parser.add_argument(
            "--to", required=True, metavar="PATH", help="A folder, or what Spark knows: s3a://, hdfs://."
        )
        parser.add_argument("--format", default="parquet", help="parquet, json or orc; parquet by default.")
        parser.add_argument("--since", help="From an id, or a time like 2026-11-20 or 2026-11-20T18:00:00Z, on.")
        parser.add_argument("--until", help="Up to, not including, an id or a time. By default all that is there now.")
        parser.add_argument("--by", default="day", help="Folders: month, day, hour, type, or none; day by default.")
        parser.add_argument("--target-size", default="128MB", help="How large files should get; 128MB by default.")
        parser.add_argument("--part", type=int, default=5_000_000, help="Events that are begun again when interrupted.")
        parser.add_argument("--resume", action="store_true", help="Only finish what an interrupted run had begun.")
        parser.add_argument(
            "--allow-loss", action="store_true", help="Export what is left where retention has removed events."
        )
        add_spark(parser)

    def handle(self, *args: Any, topics: list[str], to: str, verbosity: int, **options: Any) -> None:
        using = named(options["database"])
        with explained():
            from django_events.spark.exporting import files
            from django_events.spark.exporting.export import BEGINNING, END, Export, export
            from django_events.spark.session import session

            if options["part"] < 1:
                raise usage("--part is at least 1.")
            where = {"master": options["master"], "remote": options["remote"]}
            since = _place("--since", options["since"], topics) or BEGINNING
            until = _place("--until", options["until"], topics) or END
            if _is_behind(since.point, until.point):
                raise usage(f"--since {options['since']} is behind --until {options['until']}, expected one before it.")
            wanted = Export(
                dsn=dsn_of(using),
                topics=tuple(dict.fromkeys(topics)),
                path=local(to, option="--to", **where),
                format=files.parse_format(options["format"]),
                by=files.parse_by(options["by"]),
                since=since,
                until=until,
                target_size=files.parse_size(options["target_size"]),
                events_per_part=options["part"],
                resume=options["resume"],
                allow_loss=options["allow_loss"],
            )
            started = time.monotonic()
            settings = {"spark.sql.adaptive.advisoryPartitionSizeInBytes": str(wanted.target_size * files.COMPRESSED)}
            with (
                session("export_events", settings=settings, **where) as spark,
                ProgressLine(spark, self.stderr, quiet=verbosity < 1) as progress,
            ):
                summary = export(spark, wanted, progress)
        took = timedelta(seconds=round(time.monotonic() - started))
        if verbosity and summary.parts:
            self.stdout.write(
                f"Exported {summary.events:,} events to {wanted.path} in {duration(took)}. "
                f"It holds {summary.total:,} now."
            )
        elif verbosity:
            why = "all of that is there" if summary.meant else "the log has nothing in that range"
            why = "no part of that is unfinished" if wanted.resume else why
            self.stdout.write(f"Nothing to export: {why}. {wanted.path} holds {summary.total:,} events.")


def _is_behind(since: Any, until: Any) -> bool:
    """Whether two ids, or two times, are the wrong way round. Ends that were not given are below 0."""
    if isinstance(since, datetime) and isinstance(until, datetime):
        return since > until
    return isinstance(since, int) and isinstance(until, int) and since > until > 0


def _place(option: str, text: str | None, topics: list[str]) -> Any:
    """An id or a time as the end of what is exported."""
    from django_events.spark.reading.offsets import Boundary

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
