"""The schemas that values are typed by, as JSON: from the files of a site, or as one text that travels in an option.

known = SchemaSet.in_folder(Path("event_schemas"), ["orders"])
typed = known.chosen("order.placed@2")        # one type, or TYPED for all of them in their newest versions
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from django_events.exceptions import Invalid, did_you_mean
from django_events.reading.typed.columns import TYPED, TypedColumns

_FILE = re.compile(r"(.+)\.v([1-9][0-9]{0,8})\.json")
_CHOICE = re.compile(r"(?P<type>.+?)(?:@(?P<version>[1-9][0-9]{0,8}))?", re.DOTALL)
FOLDER = "event_schemas"  # as `events schemas write` calls it
WRITE = "`manage.py events schemas write` writes them"


@dataclass(frozen=True)
class SchemaSet:
    """JSON Schemas by the type and the version of events."""

    by_type: Mapping[str, Mapping[int, Mapping[str, Any]]]

    @classmethod
    def in_folder(cls, folder: Path, is_wanted: Callable[[str], bool]) -> Self:
        """Of the topics that are wanted, as `events schemas write` has written them."""
        found: dict[str, dict[int, Any]] = {}
        try:
            for path in sorted(folder.glob("*/*.json")):
                named = _FILE.fullmatch(path.name)
                if named and is_wanted(path.parent.name):
                    versions = found.setdefault(unquote(named[1]), {})
                    versions[int(named[2])] = _object(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise Invalid(f"The schema {path} can't be read: {error}. Take it from the repository again.") from None
        if not found:
            raise Invalid(
                f"{folder} has no schemas of these topics, expected files like orders/order.placed.v1.json: {WRITE}. "
                "They are read where Spark's driver runs."
            )
        return cls(found)

    @classmethod
    def of_text(cls, text: str) -> Self:
        """What `as_text` wrote; Invalid if it is something else."""
        try:
            read = _object(json.loads(text))
            found = {
                str(kind): {int(version): _object(one) for version, one in versions.items()}
                for kind, versions in read.items()
            }
        except (ValueError, AttributeError) as error:
            raise Invalid(
                f'The schemas are {text!r:.60}, expected JSON like {{"order.placed": {{"1": {{…}}}}}}, with a JSON '
                f"Schema for each type and version: {error}."
            ) from None
        return cls(found)

    def as_text(self) -> str:
        return json.dumps(self.by_type)

    def chosen(self, choice: str, *, upcasters: tuple[str, ...] | None = None) -> TypedColumns:
        """The columns of all types in their newest versions, or of one: `order.placed@2`, or `order.placed`."""
        if choice == TYPED:
            newest = {kind: max(versions) for kind, versions in self.by_type.items()}
            if not newest:
                raise Invalid(f"No schema says what values are. Declare some by topic(schemas=[…]); {WRITE}.")
            schemas = tuple(
                (kind, version, json.dumps(self.by_type[kind][version])) for kind, version in sorted(newest.items())
            )
            return TypedColumns(schemas=schemas, upcasters=upcasters)
        wanted = _CHOICE.fullmatch(choice)
        kind = wanted["type"] if wanted else choice
        if kind not in self.by_type:
            raise Invalid(f"No schema describes events of type {kind!r}. {did_you_mean(kind, self.by_type)}")
        versions = self.by_type[kind]
        version = int(wanted["version"]) if wanted and wanted["version"] else max(versions)
        if version not in versions:
            known = ", ".join(map(str, sorted(versions)))
            raise Invalid(f"There is no schema of {kind!r} version {version}. Known are: {known}.")
        return TypedColumns(schemas=((kind, version, json.dumps(versions[version])),), only=kind, upcasters=upcasters)


def _object(read: Any) -> Any:
    if not isinstance(read, dict):
        raise ValueError("it is no JSON object")
    return read
