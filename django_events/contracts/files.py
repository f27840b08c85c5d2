"""The schemas as files in the site's repository: one for each topic, type and version.

    event_schemas/orders/order.placed.v2.json

The files are what was agreed on: `changes` says how the declared models differ from them, and what that breaks. Files
of versions that are not declared any more stay, as long as the log may have events of them.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from django_events.contracts.compatibility import breaks
from django_events.contracts.contract import Contract
from django_events.contracts.rendering import as_text, rendered
from django_events.declarations import DeclaredTopic, registry, upcasters
from django_events.exceptions import Refused

FOLDER = "event_schemas"
_FILE = re.compile(r"(.+)\.v([1-9][0-9]{0,8})\.json")


class SchemaChange(NamedTuple):
    """How a declared schema and its file differ: a `kind`, and in which `field` if it is about one."""

    topic: str
    type: str
    version: int
    kind: str
    field: str
    what: str

    @property
    def is_breaking(self) -> bool:
        """Whether `write` refuses it: readers of what is there would fail."""
        return self.kind == "incompatible"

    def __str__(self) -> str:
        of = f"{self.topic}: {self.type!r} version {self.version}" if self.type else self.topic
        return f"{of}: {self.what}"


def path_of(folder: Path, topic: str, kind: str, version: int) -> Path:
    """The file of a schema. Characters of a type that a file's name can't have are quoted."""
    return folder / topic / f"{quote(kind, safe='')}.v{version}.json"


def changes(folder: Path, topics: Iterable[DeclaredTopic]) -> list[SchemaChange]:
    """All differences between these topics' schemas and their files."""
    return [change for topic in topics for change in _of_topic(folder, topic.contract)]


def left_over(folder: Path) -> list[SchemaChange]:
    """The folders of topics that no app declares."""
    known = {topic.name for topic in registry}
    found = sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []
    return [
        SchemaChange(name, "", 0, "gone", "", f"no app declares this topic. If it is removed, delete {folder / name}.")
        for name in found
        if name not in known and any(_FILE.fullmatch(file.name) for file in (folder / name).iterdir())
    ]


def write(folder: Path, topics: Iterable[DeclaredTopic], *, force: bool = False) -> list[Path]:
    """Write the files of these topics' schemas, and return those that changed.

    Refused, with all that would break, if a file would change incompatibly; then nothing is written, unless by `force`.
    """
    topics = list(topics)
    broken = [change for change in changes(folder, topics) if change.is_breaking]
    if broken and not force:
        listed = "\n".join(f"  {change}" for change in broken)
        raise Refused(
            f"Nothing was written, because events that are there, or their readers, would not fit any more:\n{listed}\n"
            "Declare a new version with an upcaster instead, or say --force if no such events were published."
        )
    written: list[Path] = []
    for topic in topics:
        for schema, model in topic.contract:
            path, text = path_of(folder, topic.name, schema.type, schema.version), as_text(rendered(schema, model))
            if not path.is_file() or _read(path) != json.loads(text):
                _replace(path, text)
                written.append(path)
    return written


def _of_topic(folder: Path, contract: Contract) -> Iterator[SchemaChange]:
    topic = contract.topic
    files = dict(_files(folder / topic.name))
    for schema, model in contract:
        now, path = rendered(schema, model), path_of(folder, topic.name, schema.type, schema.version)
        of = (topic.name, schema.type, schema.version)
        before = files.pop((schema.type, schema.version), None)
        if before is not None:
            was = _read(before)
            if was == now:
                continue
            broken = breaks(was, now, topic.compatibility)
            yield from (SchemaChange(*of, "incompatible", one.path, str(one)) for one in broken)
            if not broken:
                yield SchemaChange(*of, "changed", "", f"it changed, and breaks nothing. Write it to {path}.")
            continue
        yield SchemaChange(*of, "not written", "", f"it has no file {path} yet.")
        former = path_of(folder, topic.name, schema.type, schema.version - 1)
        if topic.compatibility in ("forward", "full") and former.is_file():
            broken = breaks(_read(former), now, "forward")
            yield from (SchemaChange(*of, "incompatible", one.path, str(one)) for one in broken)
    for kind, version in sorted(files):
        yield from _of_former(contract, kind, version, files[kind, version])


def _of_former(contract: Contract, kind: str, version: int, path: Path) -> Iterator[SchemaChange]:
    """What is wrong about a version that has a file and isn't declared."""
    of, newest = (contract.topic.name, kind, version), contract.newest.get(kind, 0)
    if version >= newest:
        yield SchemaChange(*of, "gone", "", f"it is not declared any more. If no event of it is left, delete {path}.")
        return
    for step in range(version, newest):
        if upcasters.step(kind, step) is None:
            yield SchemaChange(
                *of,
                "no upcaster",
                "",
                f"no upcaster leads from version {step} to {step + 1}, so its events can't be read. Declare "
                f"@upcaster({kind!r}, {step}); if no event of it is left, delete {path}.",
            )


def _files(folder: Path) -> Iterator[tuple[tuple[str, int], Path]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if found := _FILE.fullmatch(path.name):
            yield (unquote(found[1]), int(found[2])), path


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"The schema {path} can't be read: {error}. Take it from the repository again.") from error


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8", newline="\n")
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise Refused(f"The schema {path} can't be written: {error.strerror}.") from error
