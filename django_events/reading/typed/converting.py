"""One value at a time, in Python: what PyArrow's reader of JSON refuses, or can't make.

    value, fits = Converter(shape).read('{"total": 5, "note": "not described"}')       # {"total": 5}, False

A value fits if what is made of it tells all that it says. Of one that doesn't, the parts that fit are made. In an
object, null is the same as a field that isn't there.
"""

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from django_events.reading.typed.shapes import SCALE, Shape

MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})"
DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MOMENT, _DAY = re.compile(MOMENT), re.compile(DAY)
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
# Microseconds since 1970 of the years that Python has: an offset may lead out of them.
FIRST_MOMENT = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
END_OF_MOMENTS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND + 1
_UNIT = Decimal(1).scaleb(-SCALE)
_EXACT = Context(prec=38, traps=[InvalidOperation, Inexact])
_LONGEST = 16  # characters of a number with a point that has 15 digits at most: a float holds these

Convert = Callable[[Any], Any]


class NoFit(Exception):
    """A value, or a part of one, can't be made into what its column has."""


_UNREADABLE = (NoFit, ValueError, ArithmeticError, RecursionError)


class Converter:
    """Makes values of one shape, one by one."""

    def __init__(self, shape: Shape) -> None:
        self._fits = True
        self._convert = self._of(shape)

    def read(self, text: str) -> tuple[Any, bool]:
        """What `pyarrow.array` takes for a value, None if nothing of it fits, and whether all of it does."""
        self._fits = True
        try:
            value = _DECODER.decode(text)
        except _UNREADABLE:  # more digits, or deeper, than Python reads
            return None, False
        if value is None:
            return None, False  # told from no value at all by what is rescued
        made = self._tried(self._convert, value)
        return made, self._fits

    def _tried(self, convert: Convert, value: Any) -> Any:
        try:
            return convert(value)
        except _UNREADABLE:
            self._fits = False
            return None

    def _of(self, shape: Shape) -> Convert:
        if shape.kind == "struct":
            return self._of_struct(shape)
        if shape.items is not None:
            inner, tried = self._of(shape.items), self._tried

            def to_list(value: Any) -> Any:
                return [None if one is None else tried(inner, one) for one in _only(list, value)]

            def to_map(value: Any) -> Any:
                known = _only(dict, value).items()
                return [(_text(name), None if one is None else tried(inner, one)) for name, one in known]

            return to_list if shape.kind == "list" else to_map
        return _CONVERT[shape.kind]

    def _of_struct(self, shape: Shape) -> Convert:
        fields = [(field.name, self._of(field.shape), field.required) for field in shape.fields]

        def to_struct(value: Any) -> Any:
            others = len(_only(dict, value))
            made: dict[str, Any] = {}
            for name, convert, required in fields:
                one = None
                if name in value:
                    others -= 1
                    one = value[name]
                if one is not None:
                    try:
                        made[name] = convert(one)
                    except _UNREADABLE:
                        self._fits = False
                elif required:
                    self._fits = False
            if others:
                self._fits = False
            return made

        return to_struct


def decoded(text: str) -> Any:
    """A value with all digits of its numbers; NoFit if it has more, or is deeper, than Python reads."""
    try:
        return _DECODER.decode(text)
    except _UNREADABLE:
        raise NoFit("A value has more digits, or is nested deeper, than Python reads.") from None


def converted(kind: str, value: Any) -> Any:
    """What `pyarrow.array` takes for a part of a value that is no struct, list or map; NoFit if it can't be made."""
    try:
        return _CONVERT[kind](value)
    except _UNREADABLE:
        raise NoFit(f"It is no {kind}.") from None


def _number(text: str) -> float | Decimal:
    """A number with a point or an exponent: a float if that is the same number."""
    nearest = float(text)
    if len(text) <= _LONGEST and "e" not in text and "E" not in text:
        return nearest
    exact = Decimal(text)
    return nearest if math.isfinite(nearest) and Decimal(repr(nearest)) == exact else exact


def _no_number(text: str) -> Any:
    raise NoFit(f"{text} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_no_number)


def plainly(text: str) -> Any:
    """A value as `json.loads` gives it to code of the site; NoFit if that would change it."""
    try:
        return _PLAIN.decode(text)
    except (ValueError, ArithmeticError, RecursionError):
        raise NoFit("A value has more digits, or is nested deeper, than Python reads.") from None


def _float_only(text: str) -> float:
    found = _number(text)
    if type(found) is float:
        return found
    raise NoFit("A number has more digits than a float holds.")


_PLAIN = json.JSONDecoder(parse_float=_float_only)


def _only(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise NoFit
    return value


def _text(value: Any) -> str:
    text: str = _only(str, value)
    if not text.isascii():
        text.encode()  # half of a pair of surrogates is no character: a ValueError
    return text


def _integer(value: Any) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise NoFit
    return value


def _float(value: Any) -> float:
    if type(value) is int:
        nearest = float(value)
        if int(nearest) != value:
            raise NoFit
        return nearest
    found: float = _only(float, value)
    return found


def _decimal(value: Any) -> Decimal:
    if type(value) is str:
        if not _DECIMAL.fullmatch(value):
            raise NoFit
        exact = Decimal(value)
    elif type(value) is float:
        exact = Decimal(repr(value))
    elif type(value) in (int, Decimal):
        exact = Decimal(value)
    else:
        raise NoFit
    return exact.quantize(_UNIT, context=_EXACT)


def _moment(value: Any) -> int:
    if not _MOMENT.fullmatch(_only(str, value)):
        raise NoFit
    moment = (datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND
    if not FIRST_MOMENT <= moment < END_OF_MOMENTS:
        raise NoFit
    return moment


def _day(value: Any) -> date:
    if not _DAY.fullmatch(_only(str, value)):
        raise NoFit
    return date.fromisoformat(value)


def _json(value: Any) -> str:
    try:
        return _text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except TypeError:  # a number that no float holds
        return _text(_written(value))


def _written(value: Any) -> str:
    """JSON with all digits of its numbers."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        fields = (f"{json.dumps(name, ensure_ascii=False)}: {_written(one)}" for name, one in value.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value, ensure_ascii=False)


_CONVERT: dict[str, Convert] = {
    "text": _text,
    "integer": _integer,
    "number": _float,
    "decimal": _decimal,
    "boolean": lambda value: _only(bool, value),
    "moment": _moment,
    "day": _day,
    "json": _json,
}
