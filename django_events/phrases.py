"""Times, numbers and errors, as messages and tables say them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def moment(time: datetime) -> str:
    """`2026-11-20 13:05:19Z`: to the second, in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def duration(time: timedelta) -> str:
    """`3 min 12 s`: the two largest units, which is what one wants to know."""
    left = int(time.total_seconds())
    if left <= 0:
        return "0 s"
    parts = []
    for size, unit in UNITS:
        number, left = divmod(left, size)
        parts.append(f"{number} {unit}" if number else "")
    first = next(index for index, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)


def count(number: int, noun: str, *, more: bool = False) -> str:
    """`1 event`, `12,000 events`, `at least 10,000 events`: for commands and logs, which speak English.

    Pages of the admin say it in the reader's language, by `observing.counted`.
    """
    return f"{'at least ' if more else ''}{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """`12.4 MB`, in the units that sizes are given in."""
    for power, unit in ((30, "GB"), (20, "MB"), (10, "KB")):
        if number >= 1 << power:
            return f"{number / (1 << power):,.1f} {unit}"
    return f"{number} B"


# Characters that turn the direction of what follows: `\u202egpj.exe` would be read as `exe.jpg`.
TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def without_turning(text: str) -> str:
    """A text whose characters that turn its direction are written out, as JSON writes them."""
    return TURNING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


DETAILS = ("DETAIL:", "CONTEXT:", "LINE ", "QUERY:")


def without_details(error: BaseException) -> str:
    """What a database says, without what may be of a row: its details, and values that it quotes.

    A DETAIL may be all of the row that was refused. Where the server says itself which part is the message, that is
    taken; what it says of a value that it can't read or use quotes the value.
    """
    diagnosis: Any = getattr(_of_driver(error), "diag", None)
    primary = getattr(diagnosis, "message_primary", None)
    if primary is None:  # of a connection, or said without being asked
        lines = str(error).strip().splitlines()
        details = (at for at, line in enumerate(lines) if line.startswith(DETAILS))
        return "\n".join(lines[: next(details, len(lines))])
    state = diagnosis.sqlstate or ""
    if state.startswith("22") and state != "22023":  # that one is of parameters and settings
        primary = re.sub(r'".*"', '"…"', primary, flags=re.S)
    hint = diagnosis.message_hint
    return f"{primary}\nHINT:  {hint}" if hint else str(primary)


def cut_details(error: BaseException) -> None:
    """Let an error, and the driver's behind it, say no more than that, in tracebacks too. `diag` has it all."""
    driver, said = _of_driver(error), without_details(error)
    if driver is not None:
        driver.args = error.args = (said,)


def _of_driver(error: BaseException) -> BaseException | None:
    """The error that knows what the server said: this one, or the one that Django has copied."""
    copied = error.__cause__ is not None and error.__cause__.args == error.args
    found = error.__cause__ if copied else error
    return found if hasattr(found, "diag") else None
