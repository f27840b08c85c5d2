"""What commands with subcommands share: Django's options behind the subcommand, and a wrong one that is said."""

import sys
from argparse import SUPPRESS
from collections.abc import Collection
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_events.exceptions import did_you_mean
from django_events.workers.loop import Exit


class SubcommandParser(CommandParser):
    """Says itself which arguments it doesn't know: the parser in front of it would show how to call that."""

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        found, unknown = super().parse_known_args(*args, **options)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def common(base: BaseCommand, command: str) -> CommandParser:
    """A parent for subparsers: Django's options may stand behind the subcommand too, and say nothing if they don't."""
    return base.create_parser("manage.py", command, add_help=False, argument_default=SUPPRESS)


def refuse_unknown(base: BaseCommand, argv: list[str], known: Collection[str], what: str) -> None:
    """Exit if the first word is none of ours: the parser would list them all, but not say which one was meant."""
    parser = base.create_parser("manage.py", argv[1], add_help=False)
    parser.add_argument("word", nargs="?")
    word = parser.parse_known_args(argv[2:])[0].word
    if word is not None and word not in known:
        base.stderr.write(f"There is no {what} {word!r}. {did_you_mean(word, known)}")
        sys.exit(Exit.USAGE)
