"""Whether typed columns say what the log's values say: `data`, `schema_version` and `rescued`, event by event.

    differing, unknown = TypedDifferences(values="typed").of(log, copy)
    differing["data"]       # the ids of events whose columns say something else

No schema is needed, so rows of former schemas are compared, too. Each row says of which version its columns are, and
the log's value is upcast to that, as the export did. Where `rescued` is null, the columns must tell all of the value.
Otherwise `rescued` must be the value, and what the columns tell must be in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from django_events.reading.typed.blocks import PIECE, ValueBlocks
from django_events.reading.typed.columns import DATA, RESCUED, TYPED, VERSION, field_of, upcast, versions_of
from django_events.reading.typed.converting import NoFit, converted, decoded
from django_events.reading.typed.shapes import shape_of_type

if TYPE_CHECKING:
    Ids: TypeAlias = np.typing.NDArray[np.int64]
    Mask: TypeAlias = np.typing.NDArray[np.bool_]

NAMES = (DATA, VERSION, RESCUED)


class TypedDifferences:
    """The comparison of a topic whose values are typed as its export says: all types, or one of them.

    With `fills_lists`, as PyIceberg does, a list of structs that a value lacks is empty in the copy.
    """

    def __init__(self, values: str, *, fills_lists: bool = False) -> None:
        self._only = None if values == TYPED else values
        self._fills_lists = fills_lists

    def of(self, log: pa.Table, copy: pa.Table) -> "tuple[dict[str, Ids], Ids]":
        """By column the ids of events that differ, and those of events that no upcaster brings to the row's version.

        Both sides have the same events in the same order, and none that is blank in the log.
        """
        rows = _Rows(log, copy, self._only, self._fills_lists)
        offsets = log["offset"].to_numpy()
        found = {name: offsets[mask] for name, mask in rows.differing().items() if mask.any()}
        return found, offsets[rows.unknown]


class _Rows:
    """Events as both sides have them."""

    def __init__(self, log: pa.Table, copy: pa.Table, only: str | None, fills_lists: bool) -> None:
        self._only = only
        self._whole, self._parts = _Telling(whole=True, fills=fills_lists), _Telling(whole=False, fills=fills_lists)
        self._types, self._values = _whole(log["type"]), _whole(log["value"])
        self._said = versions_of(_whole(log["metadata"]))
        self._data, self._rescued = _whole(copy[DATA]), _whole(copy[RESCUED])
        self._versions = pc.fill_null(_whole(copy[VERSION]), 0).to_numpy(zero_copy_only=False)
        self._differs = {name: np.zeros(len(self._values), np.bool_) for name in NAMES}
        self.unknown = np.zeros(len(self._values), np.bool_)

    def differing(self) -> "dict[str, Mask]":
        there, is_told = _mask(self._values.is_valid()), _mask(self._data.is_valid())
        is_rescued = _mask(self._rescued.is_valid())
        is_null = _mask(pc.fill_null(pc.equal(self._values, "null"), False))
        is_same = _mask(pc.fill_null(pc.equal(self._rescued, self._values), False))
        self._differs[RESCUED] |= is_rescued & ~is_same
        self._differs[VERSION] |= is_told != (self._versions > 0)
        self._differs[DATA] |= (is_told & ~there) | (there & ~is_told & ~is_rescued)
        needs_own = there & is_told & ~is_rescued & ~is_null  # the column of its type has to say something
        types = pc.fill_null(self._types, "").dictionary_encode()
        of_type = _mask(types.indices)
        for number, kind in enumerate(types.dictionary.to_pylist()):
            mine = of_type == number
            told = self._column_of(kind, mine)
            if told is None:
                self._differs[DATA] |= mine & is_told
                continue
            has_own = _mask(told.is_valid())
            self._differs[DATA] |= mine & needs_own & ~has_own
            mine &= there & has_own
            for version in np.unique(self._said[mine]).tolist():
                for wanted in np.unique(self._versions[mine & (self._said == version)]).tolist():
                    rows = np.flatnonzero(mine & (self._said == version) & (self._versions == wanted))
                    self._compare(kind, version, wanted, rows, told, is_rescued)
        return self._differs

    def _column_of(self, kind: str, mine: "Mask") -> pa.Array | None:
        """The column of a type; what others have in its events differs. None if there is none."""
        if self._only is not None:
            return self._data if kind == self._only else None
        name, told = field_of(kind), None
        for index, field in enumerate(self._data.type):
            column = pc.struct_field(self._data, index)
            if field.name == name:
                told = column
            else:
                self._differs[DATA] |= mine & _mask(column.is_valid())
        return told

    def _compare(self, kind: str, version: int, wanted: int, rows: Any, told: pa.Array, is_rescued: "Mask") -> None:
        """Compare the events of a type, which are of one version, and in the columns of one."""
        if not 1 <= version <= wanted:  # no export has typed them
            self._differs[VERSION][rows] = True
            return
        texts = self._values.take(pa.array(rows))
        if version < wanted:
            texts, rows = self._upcast(texts, rows, kind, version, wanted)
        whole = ~is_rescued[rows]
        told = told.take(pa.array(rows))
        unlike = self._whole.unlike(told.filter(pa.array(whole)), texts.filter(pa.array(whole)))
        self._differs[DATA][rows[whole]] |= unlike
        for index in np.flatnonzero(~whole).tolist():
            is_told = self._parts.tells(told.type, told[index].as_py(), texts[index].as_py())
            self._differs[DATA][rows[index]] |= not is_told

    def _upcast(self, texts: pa.Array, rows: Any, kind: str, version: int, wanted: int) -> tuple[pa.Array, Any]:
        """The values as those of the version that the columns have; without those that can't be upcast here."""
        made: list[str] = []
        there = np.ones(len(rows), np.bool_)
        for index, text in enumerate(texts.to_pylist()):
            try:
                made.append(upcast(text, kind, version, wanted))
            except NoFit:
                there[index] = False
        self.unknown[rows[~there]] = True
        return pa.array(made, pa.string()), rows[there]


@dataclass(frozen=True, kw_only=True)
class _Telling:
    """What columns have to tell of a value: the whole, or parts of it, and null may stand for any other one."""

    whole: bool
    fills: bool

    def unlike(self, told: pa.Array, texts: pa.Array) -> "Mask":
        """Which columns don't tell all of these values, and nothing else."""
        unlike = np.zeros(len(told), np.bool_)
        made, fits = ValueBlocks(shape_of_type(told.type)).read(texts)
        made = _with_lists(made) if self.fills else made
        if fits.all() and told.equals(made):
            return unlike
        for start in range(0, len(told), PIECE):
            end = start + PIECE
            if not (fits[start:end].all() and told[start:end].equals(made[start:end])):
                for index in range(start, min(end, len(told))):
                    unlike[index] = not self.tells(told.type, told[index].as_py(), texts[index].as_py())
        return unlike

    def tells(self, type: pa.DataType, told: Any, text: str) -> bool:
        """Whether a column tells a value."""
        try:
            return self._is(type, told, decoded(text))
        except NoFit:
            return False

    def _is(self, type: pa.DataType, told: Any, value: Any) -> bool:
        if value is None and told == [] and self.fills and _is_filled(type):
            return True
        if told is None or value is None:
            return told is None and (value is None or not self.whole)
        if pa.types.is_struct(type):
            return (
                isinstance(value, dict)
                and not (self.whole and any(name not in told for name in value))
                and all(self._is(field.type, told[field.name], value.get(field.name)) for field in type)
            )
        if pa.types.is_map(type):
            return (
                isinstance(value, dict)
                and value.keys() == dict(told).keys()
                and all(self._is(type.item_type, one, value[name]) for name, one in told)
            )
        if pa.types.is_list(type):
            if told == [] and not self.whole and self.fills and _is_filled(type):  # of what is no such list
                return True
            return (
                isinstance(value, list)
                and len(value) == len(told)
                and all(self._is(type.value_type, *both) for both in zip(told, value, strict=True))
            )
        return any(_of_python(type, one) == told for one in _made(type, value))


def _is_filled(type: pa.DataType) -> bool:
    """Whether it is a list of structs: PyIceberg writes an empty one where there is none."""
    return bool(pa.types.is_list(type) and pa.types.is_struct(type.value_type))


def _with_lists(array: pa.Array) -> pa.Array:
    """An array as PyIceberg writes it."""
    if pa.types.is_struct(array.type):
        fields = [_with_lists(pc.struct_field(array, index)) for index in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(array.type), mask=array.is_null())
    if _is_filled(array.type):
        return pa.ListArray.from_arrays(array.offsets, _with_lists(array.values), array.type)
    return array


def _made(type: pa.DataType, value: Any) -> Iterator[Any]:
    """What an export may have made of a part: a text may be the part's JSON."""
    kind = shape_of_type(type).kind
    for one in ("text", "json") if kind == "text" else (kind,):
        try:
            yield converted(one, value)
        except NoFit:
            continue


def _of_python(type: pa.DataType, made: Any) -> Any:
    return pa.scalar(made, type).as_py() if pa.types.is_timestamp(type) else made


def _mask(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):  # as older versions of PyArrow have it
        return pa.concat_arrays(joined.chunks) if joined.num_chunks else pa.array([], column.type)
    return joined
