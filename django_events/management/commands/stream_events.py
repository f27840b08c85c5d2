"""`manage.py stream_events orders --to /data/live`: follow the log into files or another system."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandParser

from django_events.exceptions import NotReady
from django_events.management.databases import named
from django_events.management.described import COLUMNS, columns_of_all
from django_events.management.spark import add_spark, dsn_of, explained, local, usage
from django_events.phrases import duration
from django_events.workers.stopping import Stop, stop_on_signals

if TYPE_CHECKING:
    from django_events.spark.exporting.stream_export import Following

GRACE = 20.0  # seconds


class Command(BaseCommand):
    help = "Follow the log with Spark into files or another system, until stopped. It goes on where it stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topics", nargs="+", metavar="TOPIC", help="Which topics.")
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--to", metavar="PATH", help="A folder, or what Spark knows: s3a://, hdfs://.")
        where.add_argument("--to-format", metavar="FORMAT", help="A sink of Spark, like kafka, with its --option.")
        parser.add_argument(
            "--option", action="append", default=[], metavar="K=V", help="An option of the sink; as often as needed."
        )
        parser.add_argument("--format", default="parquet", help="Of files: parquet, json or orc; parquet by default.")
        parser.add_argument("--by", default="day", help="Folders: month, day, hour, type, or none; day by default.")
        parser.add_argument("--checkpoint", metavar="PATH", help="Where it keeps how far it is; in --to by default.")
        parser.add_argument("--from", dest="start", default="earliest", help="earliest or latest, the first time.")
        parser.add_argument("--every", type=int, default=60, metavar="SECONDS", help="A batch so often; 60 by default.")
        parser.add_argument("--most", type=int, metavar="EVENTS", help="At most so many events in a batch.")
        parser.add_argument("--most-bytes", metavar="SIZE", help="At most about so much in a batch, like 512MB.")
        parser.add_argument("--once", action="store_true", help="Write what is there now, and exit.")
        parser.add_argument("--consumer", metavar="NAME", help="Be a consumer, whose lag is seen.")
        parser.add_argument(
            "--allow-loss", action="store_true", help="Go on where retention has removed events before they were read."
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
            help="With typed columns, modules that bring older versions to the newest.",
        )
        add_spark(parser)

    def handle(self, *args: Any, topics: list[str], verbosity: int, **options: Any) -> None:
        using = named(options["database"])
        with explained():
            from django_events.exporting import layout
            from django_events.spark.exporting.stream_export import Follow, following
            from django_events.spark.session import session

            to, checkpoint = options["to"], options["checkpoint"]
            if to is not None and options["option"]:
                raise usage("--option is for --to-format.")
            if options["to_format"] and checkpoint is None:
                raise usage("--to-format needs --checkpoint PATH: there it keeps how far it is.")
            if options["start"] not in ("earliest", "latest"):
                raise usage(f"--from is {options['start']!r}, expected earliest or latest.")
            is_typed = options["columns"] != "text" or options["schema"] is not None
            if is_typed and (to is None or options["format"] != "parquet"):
                raise usage("Typed columns are for --to with --format parquet.")
            if options["upcasters"] is not None and not is_typed:
                raise usage("--upcasters goes with --columns typed, or with --schema.")
            where = {"master": options["master"], "remote": options["remote"]}
            wanted = Follow(
                dsn=dsn_of(using),
                topics=tuple(dict.fromkeys(topics)),
                path=local(to, option="--to", **where) if to is not None else None,
                format=layout.parse_format(options["format"]),
                by=layout.parse_by(options["by"]),
                sink=options["to_format"],
                sink_options=dict(map(_option, options["option"])),
                checkpoint=local(checkpoint, option="--checkpoint", **where) if checkpoint is not None else None,
                start=options["start"],
                every=f"{options['every']} seconds",
                once=options["once"],
                most=options["most"],
                most_bytes=layout.parse_size(options["most_bytes"]) if options["most_bytes"] is not None else None,
                consumer=options["consumer"],
                allow_loss=options["allow_loss"],
                columns=columns_of_all(
                    topics, columns=options["columns"], schema=options["schema"], upcasters=options["upcasters"]
                ),
            )
            with (
                session("stream_events", **where) as spark,
                stop_on_signals() as stop,
                following(spark, wanted) as at_work,
            ):
                if verbosity and not options["once"]:
                    self.stderr.write(
                        f"Following {', '.join(topics)} of {using!r} to {wanted.path or wanted.sink}, every "
                        f"{duration(timedelta(seconds=options['every']))}. Ctrl-C stops."
                    )
                events = self._watch(at_work, stop, verbosity=verbosity)
                if not options["once"] and not stop.requested:
                    raise NotReady(
                        "The query has ended and doesn't say why: Spark's own log may. What was finished stays; start "
                        "it again."
                    )
                if options["once"] and not stop.requested:
                    at_work.refuse_behind()
                if (rows := at_work.rows) is not None:
                    events = rows
        if verbosity:
            self.stdout.write(f"Events written: {events:,}.")

    def _watch(self, at_work: "Following", stop: Stop, *, verbosity: int) -> int:
        """Until the query ends by itself, or has ended because of a signal; returns how many events it wrote."""
        query = at_work.query
        told = events = 0
        deadline = None
        while True:
            over = query.awaitTermination(1) if not stop.requested else not query.isActive
            for progress in query.recentProgress:
                if progress.batchId >= told and progress.numInputRows:
                    told = progress.batchId + 1
                    events += (some := at_work.events_of(progress))
                    if verbosity > 1:
                        self.stderr.write(f"Batch {progress.batchId}: {some:,} events.")
            if over:
                break
            if stop.requested and deadline is None:
                deadline = time.monotonic() + GRACE
            # A batch that is running is finished; cut off, it is written again the next time.
            if deadline and (time.monotonic() > deadline or not query.status["isTriggerActive"]):
                query.stop()
            elif deadline:
                time.sleep(0.02)
        query.awaitTermination()  # an error comes out here
        return events


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise usage(f"--option is {text!r}, expected K=V.")
    return name, value
