"""`manage.py analyze_events counts orders`: compute something from the log, with Spark."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_events.management.analyzing import SHOWN, Analysis
from django_events.management.databases import named
from django_events.management.described import COLUMNS, columns_of_all
from django_events.management.events.subcommand import at_least_one
from django_events.management.reporting import show
from django_events.management.spark import add_spark, explained, usage
from django_events.management.subcommands import common, refuse_unknown
from django_events.spark.jobs.registry import ALL, JOBS, Job
from django_events.workers.loop import Exit


class Command(BaseCommand):
    help = "Compute something from the events of the log, with Spark."

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(title="jobs", dest="job", metavar="JOB")
        parent = common(BaseCommand(), "analyze_events")
        for job in ALL:
            own = subparsers.add_parser(job.name, help=job.help, description=job.help, parents=[parent])
            _add_arguments(own, job)

    def run_from_argv(self, argv: list[str]) -> None:
        refuse_unknown(BaseCommand(), argv, JOBS, "job")
        super().run_from_argv(argv)

    def handle(self, *args: Any, job: str | None, **options: Any) -> None:
        if job is None:
            self.print_help("manage.py", "analyze_events")
            return
        using = named(options["database"])
        shown = _format(options["format"], options["target"])
        with explained():
            analysis = Analysis(
                job=JOBS[job],
                using=using,
                options={option.name: options[option.name] for option in JOBS[job].options},
                topics=options["topics"],
                source=options.get("source"),
                typing=_typing(options) if JOBS[job].reads_values else {},
                target=options["target"],
                format=shown,
                limit=options["limit"],
            )
            try:
                report = analysis.run(master=options["master"], remote=options["remote"])
            except KeyboardInterrupt:  # an answer has no finished part that stays
                sys.exit(Exit.FAILED)
        show(self, report, as_json=report.data is not None and analysis.format == "json")


def _add_arguments(parser: CommandParser, job: Job) -> None:
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="Which topics; by default all.")
    for option in job.options:
        said = option.default if isinstance(option.default, str) else ",".join(option.default or ())
        parser.add_argument(
            f"--{option.name}",
            type=option.type,
            default=option.default,
            required=option.required,
            help=f"{option.help} By default {said}." if said else option.help,
        )
    if "events" in job.reads:
        parser.add_argument(
            "--from", dest="source", metavar="PATH", help="Read events from these files, as exported, not the log."
        )
    if job.reads_values:
        parser.add_argument(
            "--columns",
            choices=COLUMNS,
            default="text",
            help="typed: values in the newest version of their type, by the schemas of the topics.",
        )
        parser.add_argument("--schema", metavar="TYPE@VERSION", help="Events of one type, with values in that version.")
        parser.add_argument(
            "--upcasters", metavar="MODULES", help="With typed columns, modules that bring older versions to it."
        )
    parser.add_argument("--to", dest="target", metavar="PATH", help="Write files into this folder, which must be new.")
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv", "parquet"],
        help="For people, or for programs. By default a table, and Parquet with --to.",
    )
    parser.add_argument(
        "--limit", type=at_least_one, metavar="N", help=f"How many rows. By default {SHOWN} in a table, and else all."
    )
    add_spark(parser)


def _typing(options: dict[str, Any]) -> dict[str, str]:
    """What the source is told so that values are of one version each."""
    columns, schema, upcasters = (options[name] for name in ("columns", "schema", "upcasters"))
    if columns == "text" and schema is None:
        if upcasters is not None:
            raise usage("--upcasters goes with --columns typed, or with --schema.")
        return {}
    if options["source"] is not None:
        raise usage("--columns and --schema are for the log: with --from, files have the columns that they have.")
    if not options["topics"]:
        raise usage("--columns typed and --schema go by what topics declare: say which topics.")
    typed = columns_of_all(options["topics"], columns=columns, schema=schema, upcasters=upcasters).typed
    return {} if typed is None else typed.options()


def _format(format: str | None, target: str | None) -> str:
    if target is None and format == "parquet":
        raise CommandError("Parquet is not for a terminal: say where to write it, by --to.", returncode=Exit.USAGE)
    if target is not None and format == "table":
        raise CommandError("A table is for people. Expected --format parquet, json or csv.", returncode=Exit.USAGE)
    return format or ("table" if target is None else "parquet")
