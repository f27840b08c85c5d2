"""What the same failure has in common each time: its class, where it was raised, and what was said without numbers.

fingerprint(error, within="shop")  # "NoSuchOrder in shop.billing:charge: no order #"
"""

import re
from types import TracebackType

LONGEST = 300

DIFFERING = re.compile(
    r"(?<![0-9a-z])(?:"
    r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}"  # a UUID
    r"|0x[0-9a-f]+"  # an address in memory
    r"|(?=[a-f]*[0-9])[0-9a-f]{8,}"  # a hash
    r")(?![0-9a-z])"
    r"|[0-9]+",
    re.IGNORECASE,
)


def fingerprint(error: BaseException, said: str, *, within: str) -> str:
    """The fingerprint of an error that is summed up like this.

    The place is the deepest function of the package `within`, which is the handler's own: behind it come libraries,
    where another version raises elsewhere. Line numbers are left out, because they change with each release.
    """
    name = type(error).__qualname__
    place = _place(error.__traceback__, within)
    if not place:
        return alike(said)
    text = alike(said.removeprefix(name).removeprefix(":"))
    return (f"{name} in {place}: {text}" if text else f"{name} in {place}")[:LONGEST]


def alike(said: str) -> str:
    """The first line that says something, with `#` in place of numbers, hashes, UUIDs and addresses in memory."""
    line = next(iter(said.strip().splitlines()), "").rstrip()
    return DIFFERING.sub("#", line)[:LONGEST]


def _place(frames: TracebackType | None, within: str) -> str:
    place = ""
    while frames is not None:
        module = str(frames.tb_frame.f_globals.get("__name__", ""))
        if module == within or module.startswith(f"{within}."):
            place = f"{module}:{frames.tb_frame.f_code.co_name}"
        frames = frames.tb_next
    return place
