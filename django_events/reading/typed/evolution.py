"""Whether a table that has one type can take another: fields may be added, and none changes its type.

evolved(struct<total: int64>, struct<total: int64, currency: string>, "data")     # the second one
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from django_events.exceptions import Refused

# Of a format's own names for what holds the same values.
_SAME = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.timestamp("us", "+00:00"): pa.timestamp("us", "UTC"),
}


def plain(type: pa.DataType) -> pa.DataType:
    """The same type as events have it, whatever a format or its reader calls it."""
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in type])
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return pa.list_(pa.field("element", plain(type.value_type)))
    if pa.types.is_map(type):
        return pa.map_(plain(type.key_type), plain(type.item_type))
    return _SAME.get(type, type)


def evolved(there: pa.DataType, wanted: pa.DataType, name: str, place: str) -> pa.DataType:
    """The type that has the fields of both; Refused, with the path, where they differ in more than fields."""
    there, wanted = plain(there), plain(wanted)
    if there == wanted:
        return there
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        known = {field.name: field for field in there}
        fields = [
            pa.field(one.name, evolved(one.type, wanted.field(one.name).type, f"{name}.{one.name}", place))
            if wanted.get_field_index(one.name) >= 0
            else one
            for one in there
        ]
        return pa.struct([*fields, *(one for one in wanted if one.name not in known)])
    if pa.types.is_list(there) and pa.types.is_list(wanted):
        return pa.list_(pa.field("element", evolved(there.value_type, wanted.value_type, f"{name}[*]", place)))
    if pa.types.is_map(there) and pa.types.is_map(wanted):
        return pa.map_(pa.string(), evolved(there.item_type, wanted.item_type, f"{name}.*", place))
    raise Refused(
        f"Column {name!r} of {place} is {there}, and that of events is {wanted}: the type was changed, and no table "
        "has both. Nothing was written. Change it back, give the field another name, or take another place."
    )


def conformed(array: pa.Array, type: pa.DataType) -> pa.Array:
    """An array in a type that has its fields and others, which are null then."""
    if array.type == type:
        return array
    missing = array.is_null() if array.null_count else None
    if pa.types.is_struct(type):
        fields = [
            conformed(array.field(index), one.type)
            if (index := array.type.get_field_index(one.name)) >= 0
            # Never an array of nulls by another type.
            else pa.nulls(len(array), one.type)
            for one in type
        ]
        return pa.StructArray.from_arrays(fields, fields=list(type), mask=missing)
    if pa.types.is_list(type):
        return pa.ListArray.from_arrays(array.offsets, conformed(array.values, type.value_type), type, mask=missing)
    if pa.types.is_map(type):
        items = conformed(array.items, type.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type, mask=missing)
    return array.cast(type)


def as_json(type: pa.DataType) -> Any:
    """A type for people and journals: `{"total": "int64", "lines": [{"sku": "string"}]}`."""
    if pa.types.is_struct(type):
        return {field.name: as_json(field.type) for field in type}
    if pa.types.is_list(type):
        return [as_json(type.value_type)]
    if pa.types.is_map(type):
        return [str(type.key_type), as_json(type.item_type)]
    return str(type)


def of_json(said: Any) -> pa.DataType:
    """The type that `as_json` said; raises KeyError, TypeError or ValueError if it is none."""
    if isinstance(said, dict):
        return pa.struct([pa.field(name, of_json(one)) for name, one in said.items()])
    if isinstance(said, list):
        if len(said) == 1:
            return pa.list_(pa.field("element", of_json(said[0])))
        key, item = said
        return pa.map_(_NAMED[key], of_json(item))
    return _NAMED[said]


_NAMED = {
    str(one): one
    for one in (
        *(pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC")),
        pa.decimal128(38, 18),
    )
}


def leaves(type: pa.DataType, path: str) -> Iterator[str]:
    """The columns of Parquet that a type has, by their paths."""
    if pa.types.is_struct(type):
        for field in type:
            yield from leaves(field.type, f"{path}.{field.name}")
    elif pa.types.is_list(type):
        yield from leaves(type.value_type, f"{path}.list.element")
    elif pa.types.is_map(type):
        yield f"{path}.key_value.key"
        yield from leaves(type.item_type, f"{path}.key_value.value")
    else:
        yield path
