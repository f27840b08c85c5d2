"""`manage.py events SUBCOMMAND`: look at events and consumers, and repair what went wrong."""

import sys
from argparse import SUPPRESS
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_events.exceptions import did_you_mean
from django_events.management.databases import explained, named
from django_events.management.events import ALL, SUBCOMMANDS
from django_events.management.reporting import show
from django_events.workers.loop import Exit


class _Unchecked(BaseCommand):
    # Whoever looks for the cause of something must get to see it, whatever else is wrong with the site.
    requires_system_checks = ()


class Command(_Unchecked):
    help = "Look at events and consumers, and repair what went wrong."

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(title="subcommands", dest="subcommand", metavar="SUBCOMMAND")
        # Django's options may stand behind the subcommand too, and say nothing there if they don't.
        common = _Unchecked().create_parser("manage.py", "events", add_help=False, argument_default=SUPPRESS)
        for subcommand in ALL:
            own = subparsers.add_parser(
                subcommand.name, help=subcommand.help, description=subcommand.help, parents=[common]
            )
            subcommand.arguments(own)
            own.add_argument(
                "--format", choices=["table", "json"], default="table", help="For people, or for programs."
            )
            own.add_argument("--database", help="The database alias; by default where events are written.")

    def run_from_argv(self, argv: list[str]) -> None:
        if unknown := _unknown_subcommand(argv[2:]):
            self.stderr.write(f"There is no subcommand {unknown!r}. {did_you_mean(unknown, SUBCOMMANDS)}")
            sys.exit(Exit.USAGE)
        super().run_from_argv(argv)

    def handle(self, *args: Any, subcommand: str | None, **options: Any) -> None:
        if subcommand is None:
            self.print_help("manage.py", "events")
            return
        using = named(options["database"])
        try:
            with explained(using):
                report = SUBCOMMANDS[subcommand].report(using, **options)
        except KeyboardInterrupt:
            sys.exit(Exit.FAILED)
        show(self, report, as_json=options["format"] == "json")


def _unknown_subcommand(arguments: list[str]) -> str | None:
    """The first word, if it is none of ours: the parser would list them all, but not say which one was meant."""
    parser = _Unchecked().create_parser("manage.py", "events", add_help=False)
    parser.add_argument("subcommand", nargs="?")
    word = parser.parse_known_args(arguments)[0].subcommand
    return None if word is None or word in SUBCOMMANDS else str(word)
