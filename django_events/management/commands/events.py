"""`manage.py events SUBCOMMAND`: look at events and consumers, and repair what went wrong."""

import sys
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, DjangoHelpFormatter

from django_events.management.databases import add_databases, all_named, explained
from django_events.management.events import ALL, SUBCOMMANDS
from django_events.management.events.subcommand import with_joined_times, wrong_usage
from django_events.management.following import follow_log
from django_events.management.reporting import show
from django_events.management.several import report_of_each
from django_events.management.subcommands import SubcommandParser, common, refuse_unknown
from django_events.management.watching import watch
from django_events.workers.loop import Exit


class _Unchecked(BaseCommand):
    # An operator who looks for the cause must get to see it, whatever else is wrong with the site.
    requires_system_checks = ()


class Command(_Unchecked):
    help = "Look at events and consumers, and repair what went wrong."

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(
            title="subcommands", dest="subcommand", metavar="SUBCOMMAND", parser_class=SubcommandParser
        )
        parent: Any = common(_Unchecked(), "events")
        for subcommand in ALL:
            own = subparsers.add_parser(
                subcommand.name,
                help=subcommand.help,
                description=subcommand.help,
                parents=[parent],
                formatter_class=DjangoHelpFormatter,  # the own options first
            )
            subcommand.arguments(own)
            own.add_argument(
                "--format", choices=["table", "json"], default="table", help="For people, or for programs."
            )
            add_databases(own, several=f" {subcommand.name} takes several." if subcommand.several else "")

    def run_from_argv(self, argv: list[str]) -> None:
        refuse_unknown(_Unchecked(), argv, SUBCOMMANDS, "subcommand")
        super().run_from_argv(with_joined_times(argv))

    def handle(self, *args: Any, subcommand: str | None, **options: Any) -> None:
        if subcommand is None:
            self.print_help("manage.py", "events")
            return
        chosen = SUBCOMMANDS[subcommand]
        all_databases = bool(options.get("all_databases"))
        aliases = all_named(options["database"], all_databases=all_databases)
        if len(aliases) > 1 and not chosen.several:
            raise wrong_usage(f"events {subcommand} is about one database at a time, got {len(aliases)}.")
        using, as_json = aliases[0], options["format"] == "json"
        if chosen.goes_on is not None:
            chosen.goes_on(self, using, as_json=as_json, **options)
            return
        of_one = partial(chosen.ask, **options)
        sections = all_databases or len(aliases) > 1  # all, however many these are
        ask = partial(report_of_each, aliases, of_one) if sections else partial(of_one, using)
        try:
            if options.get("follow"):
                follow_log(self, using, as_json=as_json, **options)
                return
            if options.get("watch") is not None:
                watch(self, using, ask, every=options["watch"], as_json=as_json)
                return
            with explained(using):
                report = ask()
        except KeyboardInterrupt:
            sys.exit(Exit.FAILED)
        show(self, report, as_json=as_json)
        if report.code:
            sys.exit(report.code)
