"""Where files lie, in one spelling for each place: as Hadoop understands it, without a look at any file system."""

import re
from collections.abc import Iterable
from posixpath import normpath

PATTERN = "[]{}*?\\"  # to Spark's readers a pattern, to its writers part of a name
ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?=/)(?://([^/]*))?(.*)", re.S)


def split(path: str) -> tuple[str, str, str]:
    """What comes before the colon, in small letters, the machine or bucket, and the rest."""
    if found := ADDRESS.fullmatch(path):
        return found[1].lower(), found[2] or "", found[3]
    return "", "", path


def key(path: str) -> str:
    """The same for all spellings of a place: a file system that is not said is mostly that of the machine."""
    return spelled(path).removeprefix("file:")


def spelled(path: str) -> str:
    """`FILE:///data//x/` as `file:/data/x`, and `//data/./x` as `/data/x`."""
    scheme, machine, rest = split(path)
    rest = normpath(re.sub("//+", "/", rest)) if rest else ""
    if not scheme:
        return rest
    return f"{scheme}://{machine}{rest.rstrip('/')}" if machine else f"{scheme}:{rest}"


def read_as_data(names: Iterable[str]) -> list[str]:
    """Of the names in a folder those that readers take for data. An object store names a folder itself as ''."""
    return sorted(name for name in names if name and not name.startswith(("_", ".")) and name != "lost+found")
