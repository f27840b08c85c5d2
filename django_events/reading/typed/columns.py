"""The columns of a batch whose values are typed: `data`, the version that it has, and what didn't fit as text.

    typed = TypedColumns(schemas=(("order.placed", 2, '{"type": "object", …}'),), only="order.placed")
    batch = typed.opened().completed(batch, ("offset", "data", "rescued"))

`rescued` is null where `data` tells all of a value. Otherwise it is the whole value, so no field of it is lost.
"""

import json
import logging
import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from django_events.declarations import upcasters
from django_events.exceptions import Invalid
from django_events.reading.columns import COLUMNS
from django_events.reading.typed.blocks import ValueBlocks
from django_events.reading.typed.converting import NoFit, plainly
from django_events.reading.typed.shapes import Shape, ShapeField, shape_of, struct_of

logger = logging.getLogger("django_events.spark")

TYPED = "typed"
DATA, VERSION, RESCUED = "data", "schema_version", "rescued"
NAMES = (DATA, VERSION, RESCUED)
NEEDED = ("type", "value", "metadata")  # of an event, for these
FIRST = 1  # the version of events that say none
UNNAMED = "[^A-Za-z0-9_]"  # what the name of a field can't have
_PLAIN = re.compile(r'\{"schema_version": ?([1-9][0-9]{0,8})\}')


@dataclass(frozen=True, kw_only=True)
class TypedColumns:
    """Which types and versions are columns, with their JSON Schemas. Spark sends it to the executors.

    With `only`, `data` is a value of this type. Without, it has a field for each type.
    """

    schemas: tuple[tuple[str, int, str], ...]
    only: str | None = None
    # Modules that declare them, imported where values are read; None are those that this process has already. Without
    # modules there are none: Spark's workers are used again, and may have those of another query.
    upcasters: tuple[str, ...] | None = None

    @property
    def shape(self) -> Shape:
        """The shape of `data`."""
        shapes = {kind: shape_of(json.loads(text)) for kind, _, text in self.schemas}
        if self.only is not None:
            return shapes[self.only]
        return struct_of(ShapeField(name, shapes[kind], required=False) for kind, name in self.fields.items())

    @property
    def fields(self) -> dict[str, str]:
        """The name of each type's field in `data`: `order_placed` for `order.placed`."""
        names: dict[str, str] = {}
        for kind, _, _ in self.schemas:
            name = field_of(kind)
            if other := next((one for one, known in names.items() if known.lower() == name.lower()), None):
                raise Invalid(
                    f"Types {other!r} and {kind!r} would have the same column {name!r}. Read one of them at a time, by "
                    f"its schema: {kind!r}."
                )
            names[kind] = name
        return names

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The columns by name."""
        return {DATA: self.shape.arrow, VERSION: pa.int32(), RESCUED: pa.string()}

    def options(self) -> dict[str, str]:
        """How Spark is told to read these."""
        known = {kind: {version: json.loads(text)} for kind, version, text in self.schemas}
        chosen = {"columns": TYPED}
        if self.only is not None:
            [(kind, version, _)] = self.schemas
            chosen = {"schema": f"{kind}@{version}"}
        options = {**chosen, "schemas": json.dumps(known)}
        return {**options, "upcasters": ",".join(self.upcasters)} if self.upcasters else options

    @property
    def said(self) -> str:
        """What a folder or a table says of its columns: it has one such layout for ever."""
        return TYPED if self.only is None else self.only

    def names(self) -> tuple[str, ...]:
        """All columns of an event, with these in place of `value`."""
        return tuple(one for name in COLUMNS for one in (NAMES if name == "value" else (name,)))

    def opened(self) -> "TypedReader":
        for module in self.upcasters or ():
            try:
                import_module(module)
            except Exception as error:
                raise Invalid(
                    f"The upcasters of {module!r} can't be imported here: {type(error).__name__}: {error}. Expected a "
                    "module that Spark's executors can import, so one without Django; or leave it out, and older "
                    "versions are rescued."
                ) from error
        return TypedReader(self)


class TypedReader:
    """Makes the columns of batches."""

    def __init__(self, columns: TypedColumns) -> None:
        self._columns, self._types = columns, columns.types
        self._shapes = {kind: shape_of(json.loads(text)) for kind, _, text in columns.schemas}
        self._told: set[tuple[str, int, str]] = set()
        self._blocks = {kind: ValueBlocks(shape) for kind, shape in self._shapes.items()}

    def completed(self, batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
        """A batch with these columns, of one that has NEEDED and all others that are asked for."""
        made = self.columns(batch["type"], batch["value"], batch["metadata"])
        return pa.RecordBatch.from_arrays([made[one] if one in made else batch[one] for one in names], list(names))

    def columns(self, types: pa.Array, values: pa.Array, metadata: pa.Array) -> dict[str, pa.Array]:
        """`data`, `schema_version` and `rescued` of events."""
        count = len(values)
        fits, versions = np.zeros(count, np.bool_), np.zeros(count, np.int32)
        data: dict[str, pa.Array] = {}
        said, there = versions_of(metadata), _mask(values.is_valid())
        for kind, wanted, _ in self._columns.schemas:
            mine = there & _mask(pc.equal(types, kind).fill_null(False))
            found = []
            for version in np.unique(said[mine]).tolist():
                if not 1 <= version <= wanted:
                    self._tell(kind, version, "It is newer than the schema." if version else "That is no version.")
                    continue
                rows = np.flatnonzero(mine & (said == version))
                texts = values if len(rows) == count else values.take(pa.array(rows))
                if version < wanted:
                    texts, rows = self._upcast(texts, rows, kind, version, wanted)
                array, fit = self._blocks[kind].read(texts)
                fits[rows] = fit
                versions[rows[_mask(array.is_valid())]] = wanted
                found.append((array, rows))
            data[kind] = _spread(found, count, self._shapes[kind].arrow)
        rescued = pc.if_else(pa.array(fits), pa.scalar(None, pa.string()), values)
        return {DATA: self._together(data), VERSION: pa.array(versions, mask=versions == 0), RESCUED: rescued}

    def _upcast(self, texts: pa.Array, rows: Any, kind: str, version: int, wanted: int) -> tuple[pa.Array, Any]:
        """The values of an older version as those of the wanted one, and their rows; without those that can't be."""
        made: list[str] = []
        there = np.ones(len(rows), np.bool_)
        for index, text in enumerate(texts.to_pylist()):
            try:
                if self._columns.upcasters == ():
                    raise NoFit("No upcasters are named.")
                made.append(upcast(text, kind, version, wanted))
            except NoFit as error:
                there[index] = False
                self._tell(kind, version, str(error))
        return pa.array(made, pa.string()), rows[there]

    def _tell(self, kind: str, version: int, why: str) -> None:
        """Say it once: what the reader reads is up to 250,000 events."""
        if (kind, version, why) not in self._told:
            self._told.add((kind, version, why))
            logger.warning(
                "Rescued as they are: events of type %r, version %s. %s", kind, version, why, extra={"event_type": kind}
            )

    def _together(self, data: dict[str, pa.Array]) -> pa.Array:
        if self._columns.only is not None:
            return data[self._columns.only]
        arrays = [data[kind] for kind in self._columns.fields]
        nothing = np.logical_and.reduce([_mask(one.is_null()) for one in arrays])
        return pa.StructArray.from_arrays(arrays, fields=list(self._types[DATA]), mask=pa.array(nothing))


def field_of(kind: str) -> str:
    """The name that a type has as a field of `data`."""
    return re.sub(UNNAMED, "_", kind)


def _mask(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)


def _spread(found: list[tuple[pa.Array, Any]], count: int, type: pa.DataType) -> pa.Array:
    """Arrays whose items belong to these rows of `count`, as one array with nulls in the other rows."""
    if not found:
        return pa.nulls(count, type)
    if len(found) == 1 and len(found[0][0]) == count:
        return found[0][0]
    joined, rows = pa.concat_arrays([array for array, _ in found]), np.concatenate([rows for _, rows in found])
    indices = np.full(count, -1, np.int64)
    indices[rows] = np.arange(len(rows))
    return joined.take(pa.array(indices, mask=indices < 0))


def upcast(text: str, kind: str, version: int, wanted: int) -> str:
    """A value of an older version as one of the wanted one; NoFit says why it can't be."""
    value = plainly(text)
    for at in range(version, wanted):
        step = upcasters.step(kind, at)
        if step is None:
            raise NoFit(f"There is no upcaster from version {at}.")
        try:
            value = step.function(value)
        except Exception as error:  # of the site's own code; its text may quote the value
            raise NoFit(f"The upcaster from version {at} failed: {type(error).__name__}.") from None
        if value is None:  # most of all a forgotten return, which a later step may make something of
            raise NoFit(f"The upcaster from version {at} returned None.")
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise NoFit("What the upcasters made is no JSON.") from None


def versions_of(metadata: pa.Array) -> Any:
    """The version that each event says, by its metadata; 0 where it says none that is a version."""
    encoded = metadata.fill_null("{}").dictionary_encode()
    known = np.fromiter(map(_version, encoded.dictionary.to_pylist()), np.int64, len(encoded.dictionary))
    return known[_mask(encoded.indices)]


def _version(text: str) -> int:
    if VERSION not in text:
        return FIRST
    if plain := _PLAIN.fullmatch(text):
        return int(plain[1])
    try:
        given = json.loads(text).get(VERSION, FIRST)
    except (ValueError, AttributeError, RecursionError):
        return 0
    return given if type(given) is int and 0 < given < 1 << 31 else FIRST if given is None else 0
