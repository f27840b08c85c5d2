"""A JSON Schema as columns: which type of Arrow holds, without loss, what it describes.

    shape_of({"type": "object", "properties": {"total": {"type": "integer"}}}).arrow     # struct<total: int64>

What has no such type, like a union, or a model that has itself in it, is text: the JSON of that part.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

Kind = Literal["struct", "list", "map", "text", "integer", "number", "decimal", "boolean", "moment", "day", "json"]

SCALE = 18  # digits behind the point of a decimal, and 20 before it
DECIMAL = pa.decimal128(38, SCALE)
# Of a field's name: these have a meaning in some format of tables, so such a field is no column.
UNFIT = re.compile(r"[ ,;{}()\n\t=.`\"\\]|^$")


@dataclass(frozen=True)
class Shape:
    """What a value is made into."""

    kind: Kind
    arrow: pa.DataType
    fields: tuple["ShapeField", ...] = ()
    items: "Shape | None" = None

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Its kind, and the kinds of all that is in it."""
        inner = [field.shape for field in self.fields] + ([self.items] if self.items else [])
        return frozenset({self.kind}).union(*(one.kinds for one in inner))


@dataclass(frozen=True)
class ShapeField:
    """A field of a struct. One that is required has to be there, and not null."""

    name: str
    shape: Shape
    required: bool


JSON = Shape("json", pa.string())
TEXT, MOMENT, DAY = Shape("text", pa.string()), Shape("moment", pa.timestamp("us", "UTC")), Shape("day", pa.date32())
DECIMALS = Shape("decimal", DECIMAL)
INTEGER, NUMBER, BOOLEAN = Shape("integer", pa.int64()), Shape("number", pa.float64()), Shape("boolean", pa.bool_())
_NULL = Shape("json", pa.null())

_SCALARS = {"integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN, "null": _NULL}
_TEXTS = {"date-time": MOMENT, "date": DAY, "decimal": DECIMALS}
_OF_VALUES = {bool: BOOLEAN, int: INTEGER, float: NUMBER, str: TEXT, type(None): _NULL}


def shape_of(schema: Mapping[str, Any]) -> Shape:
    """The shape of the values that a JSON Schema describes, as pydantic writes it."""
    found, _ = _Schema(schema).shape(schema)
    return JSON if found is _NULL else found


def struct_of(fields: Iterable[ShapeField]) -> Shape:
    """The shape of an object with these fields."""
    known = tuple(fields)
    return Shape("struct", pa.struct([pa.field(field.name, field.shape.arrow) for field in known]), known)


def shape_of_type(type: pa.DataType) -> Shape:
    """A shape that a column of this type may have been made by, with nothing required; text may be JSON as well."""
    if pa.types.is_struct(type):
        return struct_of(ShapeField(field.name, shape_of_type(field.type), required=False) for field in type)
    if pa.types.is_list(type):
        return Shape("list", type, items=shape_of_type(type.value_type))
    if pa.types.is_map(type):
        return Shape("map", type, items=shape_of_type(type.item_type))
    return next(shape for shape in (TEXT, INTEGER, NUMBER, BOOLEAN, DECIMALS, MOMENT, DAY) if shape.arrow == type)


class _Schema:
    """A schema that is being read, with its definitions."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._within: list[str] = []  # the definitions that lead here

    def shape(self, part: Any) -> tuple[Shape, bool]:
        """The shape of a part, and whether it may be null."""
        if not isinstance(part, Mapping):
            return JSON, True
        if "$ref" in part:
            return self._of_reference(part["$ref"])
        if "allOf" in part:
            inner = part["allOf"]
            if len(inner) != 1 or not isinstance(inner[0], Mapping):
                return JSON, True
            return self.shape({**inner[0], **{name: one for name, one in part.items() if name != "allOf"}})
        for name in ("anyOf", "oneOf"):
            if name in part:
                return self._of_alternatives(part[name])
        kind = part.get("type")
        if isinstance(kind, list):
            return self._of_alternatives([{**part, "type": one} for one in kind])
        if kind is None:
            return self._of_values(part)
        if kind == "string":
            return _TEXTS.get(part.get("format", ""), TEXT), False
        if kind == "array":
            return self._of_array(part), False
        if kind == "object":
            return self._of_object(part), False
        return _SCALARS.get(kind, JSON), kind == "null"

    def _of_reference(self, reference: str) -> tuple[Shape, bool]:
        if reference in self._within or not reference.startswith("#/"):
            return JSON, True
        found: Any = self._root
        for step in reference.removeprefix("#/").split("/"):
            found = found[step.replace("~1", "/").replace("~0", "~")]
        self._within.append(reference)
        try:
            return self.shape(found)
        finally:
            self._within.pop()

    def _of_alternatives(self, parts: Iterable[Any]) -> tuple[Shape, bool]:
        found = [self.shape(part) for part in parts]
        nullable = any(may for _, may in found)
        shapes = list(dict.fromkeys(shape for shape, _ in found if shape is not _NULL))
        kinds = {shape.kind for shape in shapes}
        if len(shapes) == 1:
            return shapes[0], nullable
        if kinds == {"number", "decimal"}:  # how pydantic describes a decimal
            return DECIMALS, nullable
        if kinds and kinds <= {"text", "moment", "day"}:
            return TEXT, nullable
        return JSON, True

    def _of_values(self, part: Mapping[str, Any]) -> tuple[Shape, bool]:
        """An enum of texts, or of numbers; any value, if the schema says none."""
        values = [part["const"]] if "const" in part else part.get("enum", [])
        shapes = {_OF_VALUES.get(type(value), JSON) for value in values}
        nullable = _NULL in shapes
        return (shapes - {_NULL}).pop() if len(shapes - {_NULL}) == 1 else JSON, nullable

    def _of_array(self, part: Mapping[str, Any]) -> Shape:
        if "prefixItems" in part or not isinstance(part.get("items"), Mapping):
            return JSON
        items, _ = self.shape(part["items"])
        items = JSON if items is _NULL else items
        return Shape("list", pa.list_(pa.field("element", items.arrow)), items=items)

    def _of_object(self, part: Mapping[str, Any]) -> Shape:
        others = part.get("additionalProperties")
        if part.get("patternProperties"):
            return JSON
        if not part.get("properties"):
            if not isinstance(others, Mapping):
                return JSON
            items, _ = self.shape(others)
            items = JSON if items is _NULL else items
            return Shape("map", pa.map_(pa.string(), items.arrow), items=items)
        fields = list(self._fields(part))
        return struct_of(fields) if fields else JSON

    def _fields(self, part: Mapping[str, Any]) -> Iterator[ShapeField]:
        """The fields that have a name which every format of tables takes, and that differs in more than its case."""
        seen: set[str] = set()
        for name, described in part["properties"].items():
            if UNFIT.search(name) or name.lower() in seen:
                continue
            seen.add(name.lower())
            shape, nullable = self.shape(described)
            shape = JSON if shape is _NULL else shape
            yield ShapeField(name, shape, name in part.get("required", ()) and not nullable)
