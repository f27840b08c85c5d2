"""What a subcommand is, and how its arguments are written."""

import json
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser

from django_events import declarations
from django_events.management.reporting import Report
from django_events.workers.loop import Exit

DRY_RUN = "Nothing was changed. To do it, say the same with --execute."


def no_arguments(parser: CommandParser) -> None:
    """It takes nothing but what all subcommands take."""


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """One word behind `manage.py events`: its arguments, and the function that answers with a report.

    The function gets the database alias and the options by name.
    """

    name: str
    help: str
    report: Callable[..., Report]
    arguments: Callable[[CommandParser], None] = no_arguments


def add_name(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="The consumer.")


def add_topic(parser: CommandParser) -> None:
    parser.add_argument("--topic", help="Only this one of the consumer's topics.")


def add_by(parser: CommandParser) -> None:
    parser.add_argument("--by", help="Who does it, for the record; by default the user of this process.")


def add_execute(parser: CommandParser) -> None:
    parser.add_argument("--execute", action="store_true", help="Do it, instead of telling what would be done.")


def add_watch(parser: CommandParser) -> None:
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds,
        const=2.0,
        metavar="SECONDS",
        help="Look again and again, every 2 seconds if none are given, until Ctrl-C.",
    )


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.1 <= number <= 86_400:
        raise ArgumentTypeError(
            f"{text!r} is no pause, expected seconds from 0.1 to 86400. Names of consumers go first."
        )
    return number


class Address(NamedTuple):
    """`orders/1042`, or where the topic goes without saying `1042`."""

    topic: str | None
    id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.id}" if self.topic else str(self.id)


def address(text: str) -> Address:
    topic, _, number = text.rpartition("/")
    return Address(topic or None, whole_number(number))


def whole_number(text: str) -> int:
    """A number as people write it, and as the tables print it."""
    digits = text.replace(",", "").replace("_", "")
    if not digits.isascii() or not digits.isdigit():
        raise ArgumentTypeError(f"{text!r} is no id, expected a whole number, like 1042.")
    return int(digits)


def at_least_one(text: str) -> int:
    number = whole_number(text)
    if number < 1:
        raise ArgumentTypeError(f"{text} is too few, expected at least 1.")
    return number


def place(text: str) -> declarations.Start:
    """`beginning`, `end`, the id of the next event to handle, or a time with its zone."""
    if text == "beginning":
        return "beginning"
    if text == "end":
        return "end"
    if text.isascii() and text.isdigit():
        return int(text)
    return _zoned(text, f"{text!r} is no place in a log, expected 'beginning', 'end', an id, or a time")


def zoned_time(text: str) -> datetime:
    return _zoned(text, f"{text!r} is no time, expected one")


def _zoned(text: str, otherwise: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{otherwise} like 2026-11-20T13:05:00Z.") from None
    if moment.tzinfo is None:
        said = moment.isoformat()
        raise ArgumentTypeError(f"{text!r} has no time zone, expected {said}Z for UTC, or {said}+01:00.")
    return moment


def json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(
            f"{text!r} is not JSON: {error}. A text needs quotes of its own: '\"like this\"'."
        ) from None


def wrong_usage(message: str) -> CommandError:
    return CommandError(message, returncode=Exit.USAGE)


def refused(message: str) -> CommandError:
    return CommandError(message, returncode=Exit.FAILED)
