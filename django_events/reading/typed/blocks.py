"""Many values at once: a column of JSON texts becomes an array, and which of them it tells whole.

    array, fits = ValueBlocks(shape).read(texts)

PyArrow's reader is faster than Python, and refuses a block for one bad value in it. So what it refuses is tried again
in pieces, and the values of a piece that is refused are made one by one. What it would take and change goes there at
once.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from django_events.reading.typed.converting import DAY, END_OF_MOMENTS, FIRST_MOMENT, MOMENT, Converter
from django_events.reading.typed.shapes import Shape

PIECE = 256  # values that are tried at once where more of them were refused: a call costs as much as 30 by themselves
# A number with so many digits, or with an exponent, may be another one as a float. In a text this finds too much only.
LONG_NUMBER = r"[:,\[\s]-?(?:[0-9][0-9.]{15}|[0-9.]+[eE]|NaN|Infinity)"
_SLOW = {"map", "json"}  # what PyArrow's reader doesn't make
_OPTIONS = pj.ReadOptions(use_threads=False, block_size=(1 << 31) - 1)


class ValueBlocks:
    """Makes arrays of one shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape, self._one = shape, Converter(shape)
        self._at_once: pj.ParseOptions | None = None
        if shape.kind == "struct" and not shape.kinds & _SLOW:
            fields = [pa.field(field.name, _as_read(field.shape)) for field in shape.fields]
            self._at_once = pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="error")

    def read(self, texts: pa.Array) -> "tuple[pa.Array, np.typing.NDArray[np.bool_]]":
        """An array of the texts' values, and for each whether it tells all of it. No text is null."""
        if self._at_once is None or not len(texts):
            return self._one_by_one(texts)
        lines = _joined(texts)
        apart = self._apart(texts, lines)
        if apart is None:
            return self._at_best(texts, lines)
        alone = apart.to_numpy(zero_copy_only=False)
        order = np.concatenate([np.flatnonzero(~alone), np.flatnonzero(alone)])
        arrays, fits = zip(
            self._at_best(texts.filter(pc.invert(apart))), self._one_by_one(texts.filter(apart)), strict=True
        )
        back = np.argsort(order)
        return pa.concat_arrays(arrays).take(pa.array(back)), np.concatenate(fits)[back]

    def _apart(self, texts: pa.Array, joined: pa.Buffer) -> pa.Array | None:
        """Which of them are never given to PyArrow's reader; None if all are.

        It takes a line for a value, a line `null` ends the process, and it rounds numbers.
        """
        lines, found = joined.to_pybytes(), None
        if not lines.startswith(b"{") or not lines.count(b"\n") == lines.count(b"\n{") == len(texts) - 1:
            found = pc.or_(pc.invert(pc.starts_with(texts, "{")), pc.match_substring(texts, "\n"))
        if "number" in self._shape.kinds:
            long = pc.match_substring_regex(texts, LONG_NUMBER)
            found = long if found is None else pc.or_(found, long)
        return found if found is not None and pc.any(found).as_py() else None

    def _at_best(
        self, texts: pa.Array, lines: pa.Buffer | None = None
    ) -> "tuple[pa.Array, np.typing.NDArray[np.bool_]]":
        """At once, or in pieces, or one by one."""
        if not len(texts):
            return self._one_by_one(texts)
        if (whole := self._block(texts, lines or _joined(texts))) is not None:
            return whole, np.ones(len(texts), np.bool_)
        pieces = [texts[start : start + PIECE] for start in range(0, len(texts), PIECE)]
        if len(pieces) == 1:
            return self._one_by_one(texts)
        arrays, fits = zip(*map(self._at_best, pieces), strict=True)
        return pa.concat_arrays(arrays), np.concatenate(fits)

    def _block(self, texts: pa.Array, lines: pa.Buffer) -> pa.Array | None:
        """All of them by PyArrow's reader; None if one of them doesn't fit."""
        try:
            return self._read(len(texts), lines)
        except pa.ArrowException:
            return None

    def _read(self, count: int, lines: pa.Buffer) -> pa.Array:
        table = pj.read_json(pa.BufferReader(lines), _OPTIONS, self._at_once)
        if table.num_rows != count:
            raise pa.ArrowInvalid(f"{table.num_rows} values of {count} lines")
        columns = [table.column(field.name).combine_chunks() for field in self._shape.fields]
        return _struct(columns, self._shape, None)

    def _one_by_one(self, texts: pa.Array) -> "tuple[pa.Array, np.typing.NDArray[np.bool_]]":
        made = [self._one.read(text) for text in texts.to_pylist()]
        fits = np.fromiter((fit for _, fit in made), np.bool_, len(made))
        return pa.array([value for value, _ in made], self._shape.arrow), fits


def _joined(texts: pa.Array) -> pa.Buffer:
    """A line for each text."""
    [joined] = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n")
    buffer: pa.Buffer = joined.as_buffer()
    return buffer


def _as_read(shape: Shape) -> pa.DataType:
    """What PyArrow's reader is asked for: times as text, so that none is rounded or taken without its zone."""
    if shape.kind == "struct":
        return pa.struct([pa.field(field.name, _as_read(field.shape)) for field in shape.fields])
    if shape.kind == "list" and shape.items is not None:
        return pa.list_(pa.field("element", _as_read(shape.items)))
    return pa.string() if shape.kind in _TIMES else shape.arrow


def _made(read: pa.Array, shape: Shape) -> pa.Array:
    """What was read, as the shape has it; ArrowInvalid where it doesn't fit."""
    if shape.kind == "struct":
        return _struct([read.field(index) for index in range(read.type.num_fields)], shape, read.is_null())
    if shape.kind == "list" and shape.items is not None:
        missing = read.is_null() if read.null_count else None
        return pa.ListArray.from_arrays(read.offsets, _made(read.values, shape.items), shape.arrow, mask=missing)
    if (pattern := _TIMES.get(shape.kind)) is not None:
        if not pc.all(pc.match_substring_regex(read, pattern), min_count=0).as_py():
            raise pa.ArrowInvalid(f"no {shape.kind}")
        made = read.cast(shape.arrow)
        if shape.kind == "moment":
            is_known = pc.and_(pc.less(made, _END), pc.greater_equal(made, _BEGIN))
            if not pc.all(is_known, min_count=0).as_py():  # of nulls alone, all is true
                raise pa.ArrowInvalid("a year that Python doesn't have")
        return made
    if shape.kind == "decimal":
        read.validate(full=True)  # the reader takes one digit too many
    return read


_BEGIN, _END = (pa.scalar(moment, pa.timestamp("us", "UTC")) for moment in (FIRST_MOMENT, END_OF_MOMENTS))
_TIMES = {"moment": f"^{MOMENT}$", "day": f"^{DAY}$"}


def _struct(columns: list[pa.Array], shape: Shape, missing: pa.Array | None) -> pa.Array:
    for column, field in zip(columns, shape.fields, strict=True):
        if field.required and column.null_count:
            lacking = column.is_null() if missing is None else pc.and_not(column.is_null(), missing)
            if pc.any(lacking).as_py():
                raise pa.ArrowInvalid(f"{field.name} is required")
    made = [_made(column, field.shape) for column, field in zip(columns, shape.fields, strict=True)]
    return pa.StructArray.from_arrays(made, fields=list(shape.arrow), mask=missing)
