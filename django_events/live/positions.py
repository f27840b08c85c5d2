"""Positions in several topics as one text: `orders/1042,payments/7`, each the last event that was seen.

read("orders/1042,payments/7")  # {"orders": 1042, "payments": 7}
"""

from collections.abc import Mapping

from django_events.exceptions import Invalid

LARGEST = 2**63 - 1  # what an id may be
LONGEST = 20_000  # characters of a text that came from a browser


def read(text: str) -> dict[str, int]:
    """The id by the name of the topic; Invalid for a text that is no such thing."""
    found: dict[str, int] = {}
    for one in text[: LONGEST + 1].split(","):
        name, slash, digits = one.strip().rpartition("/")
        is_id = digits.isascii() and digits.isdigit() and len(digits) < LARGEST.bit_length()
        if not (slash and name and is_id) or len(text) > LONGEST or int(digits) > LARGEST or name in found:
            raise Invalid(
                f"{text[:200]!r} is no position, expected the last event of each topic, like 'orders/1042' or "
                "'orders/1042,payments/7'."
            )
        found[name] = int(digits)
    return found


def written(positions: Mapping[str, int]) -> str:
    return ",".join(f"{name}/{seen}" for name, seen in positions.items())
