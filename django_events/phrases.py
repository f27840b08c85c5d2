"""Times and numbers, as messages and tables say them."""

from datetime import UTC, datetime, timedelta

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
    first = next(place for place, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)


def count(number: int, noun: str, *, more: bool = False) -> str:
    """`1 event`, `12,000 events`, `at least 10,000 events`."""
    return f"{'at least ' if more else ''}{number:,} {noun}{'' if number == 1 else 's'}"
