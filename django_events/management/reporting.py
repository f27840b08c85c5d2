"""What a command prints: tables for people, JSON for programs."""

import base64
import json
import os
import select
import shutil
import stat
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate, takewhile
from typing import Any

from django.core.management.base import BaseCommand

from django_events.phrases import duration, moment

WIDTH = 120  # of paragraphs
LONGEST_CELL = 200  # where no terminal says how wide a table may be
GAP = 2
NARROWEST = 8
EVERY = 5.0  # seconds between two lines of progress


@dataclass(frozen=True)
class Report:
    """The answer of a command, as data with stable keys and as text, and notes, which go to standard error.

    A command that answers a question says by its exit code what the answer is.
    """

    data: Any
    text: str
    notes: Sequence[str] = field(default=())
    code: int = 0

    def as_json(self, *, indent: int | None = 2) -> str:
        return json.dumps(self.data, default=_plain, ensure_ascii=False, indent=indent)


def show(command: BaseCommand, report: Report, *, as_json: bool, indent: int | None = 2) -> bool:
    """Print a report; returns whether it is still read: a pager may have been closed."""
    try:
        command.stdout.write(report.as_json(indent=indent) if as_json else report.text)
        for note in report.notes:
            command.stderr.write(note, style_func=str)  # a note is no error, so it isn't red
        command.stdout.flush()
    except BrokenPipeError:  # the interpreter flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def output_pipe() -> list[int]:
    """The descriptor of standard output, if it is a pipe: of a terminal it would tell what is typed."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return []
    return [descriptor] if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else []


def is_output_closed() -> bool:
    """Whether what reads our output has gone, as `head` has after some lines."""
    pipe, poll = output_pipe(), select.poll()
    for descriptor in pipe:
        poll.register(descriptor, 0)  # an error is told always
    closed = bool(pipe and poll.poll(0))
    if closed:  # the interpreter flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe[0])
    return closed


def _plain(value: Any) -> Any:
    """Times in UTC as ISO 8601, durations in seconds, bytes in base 64."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(bytes(value)).decode()
    raise TypeError(f"{value!r} can't be written as JSON.")


def terminal_width() -> int | None:
    """How wide the terminal is that shows what is printed; None where there is none."""
    return shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() else None


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, width: int | None = None) -> str:
    """Rows below their headings, numbers to the right. What doesn't fit is cut, from the widest texts.

    A table is as wide as the terminal. In a file or a pipe each cell may have 200 characters, so that no name is cut.
    """
    width = width or terminal_width()
    rows = list(rows)
    cells = [[cell(value) for value in row] for row in rows]
    by_column = list(zip(*rows, strict=True)) or [()] * len(columns)
    numeric = [any(isinstance(v, int | float) and not isinstance(v, bool) for v in column) for column in by_column]
    texts = [any(isinstance(value, str) for value in column) for column in by_column]
    widths = [max(map(_width, column)) for column in zip(columns, *cells, strict=True)]
    most = LONGEST_CELL if width is None else width
    widths = [min(wide, most) if text else wide for wide, text in zip(widths, texts, strict=True)]
    if width is not None:
        _fit(widths, [len(column) for column in columns], texts, width)
        _fit(widths, [NARROWEST] * len(columns), texts, width)
    lines = [[_cut(text, size) for text, size in zip(line, widths, strict=True)] for line in [columns, *cells]]
    return "\n".join(_line(line, widths, numeric) for line in lines)


def cell(value: Any) -> str:
    """A value in a line of text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}" if value == 0 or abs(value) >= 0.001 else f"{value:.3g}"
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, timedelta):
        return duration(value)
    if isinstance(value, bytes | memoryview):
        return f"{len(bytes(value)):,} bytes"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def now_and_then(line: Callable[[str, int], str]) -> Callable[[str, int], None]:
    """A function that writes how far something is to standard error, every five seconds however often it is told."""
    said_at = time.monotonic()

    def say(topic: str, done: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= EVERY:
            said_at = time.monotonic()
            sys.stderr.write(f"{line(topic, done)}\n")

    return say


def printable(text: str) -> str:
    """A text in one line, without control characters that a terminal obeys."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in " ".join(text.split()))


def printable_lines(text: str) -> str:
    """A text in its lines, without control characters that a terminal obeys."""
    lines = (line.expandtabs() for line in text.splitlines())
    return "\n".join("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line) for line in lines)


def fields(pairs: Iterable[tuple[str, Any]]) -> str:
    """A single row, with a line for each of its fields."""
    lines = [(name, cell(value)) for name, value in pairs]
    widest = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{widest}}  {value}".rstrip() for name, value in lines)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = (
        " " * (width - _width(text)) + text if right else text + " " * (width - _width(text))
        for text, width, right in zip(cells, widths, numeric, strict=True)
    )
    return (" " * GAP).join(padded).rstrip()


def _fit(widths: list[int], narrowest: Sequence[int], texts: Sequence[bool], width: int) -> None:
    """Narrow the columns of texts, as far as they may be: a number that is cut would be another one."""
    while sum(widths) + GAP * (len(widths) - 1) > width:
        wide = [i for i, text in enumerate(texts) if text and widths[i] > narrowest[i]]
        if not wide:
            return
        widths[max(wide, key=widths.__getitem__)] -= 1


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


def _cut(text: str, width: int) -> str:
    """A text as wide as that. It may be a megabyte, so each of its characters is looked at once."""
    if _width(text) <= width:
        return text
    fitting = takewhile(lambda so_far: so_far[1] < width, zip(text, accumulate(map(_width, text)), strict=True))
    return f"{''.join(char for char, _ in fitting)}…"
