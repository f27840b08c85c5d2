"""How events lie in files, whatever writes them: formats, folders by day or type, and sizes."""

import re
from collections.abc import Sequence
from hashlib import sha256

from django_events.exceptions import Invalid, did_you_mean

FORMATS = ("parquet", "json", "orc")
TARGET = 128 << 20
LONGEST = 60  # characters of four bytes, or of one that Spark writes as three: with event_type= below 255 bytes
BEGINNING = 50  # characters of a longer one, before `~` and the digest
FOR_NULL = "__HIVE_DEFAULT_PARTITION__"  # what Spark calls the folder of '' too
ESCAPED = "\"#%'*/:=?\\{[]^\x7f"  # and what is below a space
COMPRESSED = 5  # about how much smaller a file is than what is read

# What the folders are called, by the name of what decides them.
BY = {"month": "month", "day": "day", "hour": "hour", "type": "event_type"}


def parse_by(text: str) -> tuple[str, ...]:
    """`day,type` as names; Invalid for one that is none."""
    names = tuple(part.strip() for part in text.split(",") if part.strip() and part.strip() != "none")
    for name in names:
        if name not in BY:
            raise Invalid(f"Events can't be put into folders by {name!r}. {did_you_mean(name, BY)}")
    if len(set(names)) < len(names):
        raise Invalid(f"Each of {text!r} can be said once.")
    return names


def parse_format(name: str) -> str:
    """Invalid if events can't be written in this format."""
    if name not in FORMATS:
        raise Invalid(f"There is no format {name!r}. Known are: {', '.join(FORMATS)}.")
    return name


def parse_size(text: str) -> int:
    """`128MB` in bytes."""
    units = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
    number, unit = text[:-2].strip(), text[-2:].upper()
    if unit not in units or not re.fullmatch("[0-9]+", number) or not int(number):
        raise Invalid(f"{text!r} is no size, expected one like 128MB.")
    return int(number) * units[unit]


def folders(by: tuple[str, ...]) -> list[str]:
    """What the levels of folders are called."""
    return [BY[name] for name in by]


def described(format: str, by: Sequence[str]) -> str:
    """A description of the format and the layout of a folder."""
    return f"in format {format}, by {', '.join(by) or 'nothing'}"


def escaped(value: str) -> str:
    """A value as a part of a folder's name, as Hive and Spark spell it: readers turn it back."""
    if not value:
        return FOR_NULL
    return "".join(f"%{ord(one):02X}" if one in ESCAPED or one < " " else one for one in value)


def type_folder(type: str) -> str:
    """The type, or what names a folder that any file system takes: a beginning and a digest."""
    if len(type) <= LONGEST and type != FOR_NULL:
        return type
    return f"{type[:BEGINNING]}~{sha256(type.encode()).hexdigest()[:8]}"


def topic_folder(name: str) -> str:
    """The folder of a topic, where several have one place."""
    return f"topic={escaped(name)}"
