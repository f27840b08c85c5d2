"""What a subcommand is, and how its arguments are written."""

import json
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser

from django_events import declarations
from django_events.management.reporting import Report
from django_events.observing.lock_limit import within_lock_limit
from django_events.workers.loop import Exit

AGO = re.compile(r"-?([0-9]{1,6})([smhd])")
TAKE_TIMES = {"--to", "--from", "--since", "--until"}
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
DRY_RUN = "Nothing was changed. To do it, say the same with --execute."


def no_arguments(parser: CommandParser) -> None:
    """It takes nothing but what all subcommands take."""


def no_report(using: str, **options: Any) -> Report:
    """It prints by itself."""
    return Report(None, "")


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """One word behind `manage.py events`: its arguments, and the function that answers with a report.

    The function gets the database alias and the options by name. Where it may be asked of several databases at a time
    (`several`), each gets a section of its own. One that only `looks` waits for no lock for long. One that prints line
    by line until Ctrl-C has `goes_on` instead, which gets the command, too.
    """

    name: str
    help: str
    report: Callable[..., Report] = no_report
    goes_on: Callable[..., None] | None = None
    arguments: Callable[[CommandParser], None] = no_arguments
    several: bool = False
    looks: bool = False

    def ask(self, using: str, **options: Any) -> Report:
        """Its report. Where it only looks and a log is locked, InUse says by which session."""
        with within_lock_limit(using) if self.looks else nullcontext():
            return self.report(using, **options)


def add_name(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="The consumer.")


def add_topic(parser: CommandParser) -> None:
    parser.add_argument("--topic", help="Only this one of the consumer's topics.")


def add_filter(parser: CommandParser) -> None:
    """What a filter of a queue may ask for."""
    parser.add_argument("--type", action="append", dest="types", help="A type, or pattern; may be repeated.")
    parser.add_argument("--key", action="append", dest="keys", help="A key, or pattern; may be repeated.")
    parser.add_argument("--where", help="A jsonpath predicate on the value.")
    parser.add_argument("--metadata", help="A jsonpath predicate on the metadata.")
    parser.add_argument(
        "--var",
        action="append",
        dest="variables",
        type=variable,
        metavar="NAME=VALUE",
        help="What the predicates name as $NAME: JSON, or a text; may be repeated.",
    )


def add_last(parser: CommandParser) -> None:
    parser.add_argument(
        "--last", type=at_least_one, default=10_000, help="How many of the newest events it is tried on; 10,000."
    )


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


def seconds_of_work(text: str) -> timedelta:
    """How long an event takes."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.00001 <= number <= 86_400:
        raise ArgumentTypeError(f"{text!r} is no time for an event, expected seconds from 0.00001 to 86400, like 0.04.")
    return timedelta(seconds=number)


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


def add_reason(parser: CommandParser) -> None:
    parser.add_argument("--reason", type=text, default="", help="Why, for the record.")


def start(text: str) -> declarations.Start:
    """`beginning`, `end`, the id of the next event to handle, a time with its zone, or one so long ago: `-2h`."""
    if text == "beginning":
        return "beginning"
    if text == "end":
        return "end"
    if text.isascii() and text.isdigit():
        return int(text)
    expected = "'beginning', 'end', an id, 2h for two hours ago, or a time"
    return _ago(text) or _zoned(text, f"{text!r} is no start in a log, expected {expected}")


def with_joined_times(argv: list[str]) -> list[str]:
    """`--to -2h` as `--to=-2h`: argparse would take the second word for an option."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] in TAKE_TIMES and word.startswith("-") and AGO.fullmatch(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def length(text: str) -> timedelta:
    """`30s`, `10m`, `2h` or `1d`."""
    found = AGO.fullmatch(text)
    if found is None or text.startswith("-"):
        raise ArgumentTypeError(f"{text!r} is no length of time, expected one like 30s, 10m, 2h or 1d.")
    return timedelta(seconds=int(found[1]) * SECONDS[found[2]])


def zoned_time(text: str) -> datetime:
    return _zoned(text, f"{text!r} is no time, expected one")


def past_time(text: str) -> datetime:
    """A time with its zone, or one so long ago, like `2h`, by the clock of this machine."""
    return _ago(text) or _zoned(text, f"{text!r} is no time, expected 2h, for two hours ago, or one")


def _ago(text: str) -> datetime | None:
    ago = AGO.fullmatch(text)
    return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * SECONDS[ago[2]]) if ago else None


def _zoned(text: str, otherwise: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{otherwise} like 2026-11-20T13:05:00Z.") from None
    if moment.tzinfo is None:
        said = moment.isoformat()
        raise ArgumentTypeError(f"{text!r} has no time zone, expected {said}Z for UTC, or {said}+01:00.")
    return moment


def text(said: str) -> str:
    """A text that PostgreSQL can look for."""
    try:
        said.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError(f"{said!r} is no text in UTF-8.") from None
    return said


def variable(said: str) -> tuple[str, Any]:
    """`tenant=acme`, or `least=100`: a value that is no JSON is a text."""
    name, sign, value = text(said).partition("=")
    if not name or not sign:
        raise ArgumentTypeError(f"{said!r} is no variable, expected one like tenant=acme, or least=100.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


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
