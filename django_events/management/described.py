"""How the values of declared topics become columns: their models as the JSON Schemas that exports are typed by."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from django_events.contracts.rendering import rendered
from django_events.declarations import registry
from django_events.exceptions import Invalid

if TYPE_CHECKING:
    from django_events.exporting.file_columns import FileColumns
    from django_events.reading.typed.descriptions import SchemaSet

COLUMNS = ("text", "typed")


def file_columns(
    topics: Iterable[str], *, columns: str, schema: str | None, upcasters: str | None = None
) -> "dict[str, FileColumns]":
    """The columns of each topic: none for those whose values stay text. Invalid if no schema describes them."""
    from django_events.exporting.file_columns import FileColumns
    from django_events.reading.typed.columns import TYPED

    if schema is None and columns == "text":
        return {}
    modules = listed(upcasters) or None
    return {topic: FileColumns.of(_schemas(topic).chosen(schema or TYPED, upcasters=modules)) for topic in topics}


def columns_of_all(
    topics: Iterable[str], *, columns: str, schema: str | None = None, upcasters: str | None = None
) -> "FileColumns":
    """The same for files that the events of all these topics are in."""
    from django_events.exporting.file_columns import PLAIN, FileColumns
    from django_events.reading.typed.columns import TYPED
    from django_events.reading.typed.descriptions import SchemaSet

    if schema is None and columns == "text":
        return PLAIN
    known: dict[str, dict[int, Mapping[str, Any]]] = {}
    for topic in topics:
        for kind, versions in _schemas(topic).by_type.items():
            known.setdefault(kind, {}).update(versions)
    return FileColumns.of(SchemaSet(known).chosen(schema or TYPED, upcasters=listed(upcasters) or None))


def listed(modules: str | None) -> tuple[str, ...]:
    """`shop.upcasters, …` as names."""
    return tuple(part.strip() for part in (modules or "").split(",") if part.strip())


def _schemas(name: str) -> "SchemaSet":
    from django_events.reading.typed.descriptions import SchemaSet

    declared = registry.get(name)
    found: dict[str, dict[int, dict[str, object]]] = {}
    for schema, model in declared.contract:
        found.setdefault(schema.type, {})[schema.version] = rendered(schema, model)
    if not found:
        raise Invalid(
            f"Topic {name!r} describes no events, so no column has a type: declare topic({name!r}, schemas=[…])."
        )
    return SchemaSet(found)
