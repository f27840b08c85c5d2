"""How the values of declared topics become columns: their models as the JSON Schemas that exports are typed by."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django_events.contracts.rendering import rendered
from django_events.declarations import registry
from django_events.exceptions import Invalid

if TYPE_CHECKING:
    from django_events.exporting.file_columns import FileColumns
    from django_events.reading.typed.descriptions import SchemaSet

COLUMNS = ("text", "typed")


def file_columns(topics: Iterable[str], *, columns: str, schema: str | None) -> "dict[str, FileColumns]":
    """The columns of each topic: none for those whose values stay text. Invalid if no schema describes them."""
    from django_events.exporting.file_columns import FileColumns
    from django_events.reading.typed.columns import TYPED

    if schema is None and columns == "text":
        return {}
    return {topic: FileColumns.of(_schemas(topic).chosen(schema or TYPED)) for topic in topics}


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
