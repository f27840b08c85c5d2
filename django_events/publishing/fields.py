"""How the fields of a model are written in an event: the same by `@outbox` in Python and by `capture()` in SQL.

By the names of their attributes, like `customer_id`. Numbers of fixed precision are texts, so that nothing is lost;
times are ISO 8601 in UTC; durations are seconds; bytes are base64. All else is what JSON has for it.
"""

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_PREC, ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from django.db import connections, models
from django.db.models import Field, Model
from django.utils.timezone import get_default_timezone, is_naive

if TYPE_CHECKING:
    Concrete: TypeAlias = Field[Any, Any]
else:  # at run time it takes no parameters
    Concrete = Field
CHANGED = "changed"  # what of a value says which fields changed, from what to what

_AS_POSTGRES_DOES = Context(prec=MAX_PREC, rounding=ROUND_HALF_UP)

# Types that go into JSON unchanged.
_PLAIN = (str, bool, int, Mapping)

# How a column becomes what the function below makes of the same value; {} is the column.
_IN_SQL = {
    "BinaryField": "replace(encode({}, 'base64'), E'\\n', '')",
    "DateTimeField": """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    "DecimalField": "{}::text",
    "DurationField": "extract(epoch FROM {})::float8",
    "GenericIPAddressField": "host({})",
    "TimeField": "to_char({}, 'HH24:MI:SS.US')",
}
# These types have no equality operator in PostgreSQL.
_WITHOUT_EQUALITY = ("json", "xml", "point", "polygon", "path", "line")
_TEXTS = ("varchar", "char", "text", "citext")
_AS_THEY_ARE = ("bool", "int", "serial", "varchar", "char", "text", "uuid", "date", "jsonb", "hstore", "double", "real")


def concrete_fields(model: type[Model]) -> dict[str, Concrete]:
    """The fields that have a column in the model's table or those of its parents, by attribute name."""
    return {field.attname: field for field in model._meta.concrete_fields if field.column is not None}


def pk_fields(model: type[Model]) -> list[Concrete]:
    """The fields of the primary key: several where it is composite."""
    return list(model._meta.pk_fields)


def key_fields(model: type[Model], name: str) -> list[Concrete]:
    """The fields that make the key of an event: those of the primary key, or the one of a name; none if it has none."""
    if name == "pk":
        return pk_fields(model)
    field = named(model, name)
    return [] if field is None else [field]


def named(model: type[Model], name: str) -> Concrete | None:
    """The field of a name, which may be that of the field or of its attribute; None if it has no column."""
    fields = concrete_fields(model)
    if name == "pk" and len(pk_fields(model)) == 1:
        return pk_fields(model)[0]
    if name in fields:
        return fields[name]
    return next((field for field in fields.values() if field.name == name), None)


def chosen(model: type[Model], names: Iterable[str] | None, left_out: Iterable[str] = ()) -> list[Concrete]:
    """The fields of these names, or all, but for those to leave out. Wrong names are a check's business."""
    every = list(concrete_fields(model).values())
    found = every if names is None else [field for name in names if (field := named(model, name)) is not None]
    gone = {named(model, name) for name in left_out}
    return [field for field in found if field not in gone]


def problem_of_names(what: str, shown: Iterable[Concrete]) -> str | None:
    """A sentence if one of the fields has the name of what says which fields changed."""
    if CHANGED not in {field.attname for field in shown}:
        return None
    return f"{what} shows a field {CHANGED!r}, and events say under this name what changed. Exclude the field."


def problems_of_keys(what: str, keys: Iterable[Concrete], hidden: Iterable[Concrete]) -> Iterator[str]:
    """Yield a sentence for each field that is hidden in the value and shown as the key."""
    secret = {field.attname for field in hidden}
    for key in keys:
        if key.attname in secret:
            yield f"{what} hides {key.attname!r}, which is its key, and keys are shown. Say another key."


def written(field: Concrete, value: Any) -> Any:
    """The JSON value that an event has for a value of a field."""
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    if isinstance(field, models.JSONField):  # what becomes of it in the database: keys are texts, tuples are lists
        return None if value is None else json.loads(json.dumps(value, cls=field.encoder))
    value = None if value is None else field.get_prep_value(field.to_python(value))
    if isinstance(field, models.DecimalField) and isinstance(value, Decimal) and field.decimal_places is not None:
        value = _rounded(value, field.decimal_places)
    return _in_json(value)


def _rounded(value: Decimal, places: int) -> Decimal:
    if not value.is_finite():
        return value
    rounded = value.quantize(Decimal(1).scaleb(-places), context=_AS_POSTGRES_DOES)
    return rounded or abs(rounded)  # which knows no negative zero


def _in_json(value: Any) -> Any:
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, datetime):
        moment = _as_postgresql_takes(value) if is_naive(value) else value
        return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, list | tuple):
        return [_in_json(item) for item in value]
    return str(value)


def _as_postgresql_takes(value: datetime) -> datetime:
    """The moment of a time without a zone, where USE_TZ is off.

    Of an hour that the clocks go through twice, PostgreSQL takes the second, and it reads one that they leave out by
    the offset from before. That is the smaller offset of the two that are possible, either time.
    """
    zoned = value.replace(tzinfo=get_default_timezone())
    return min((zoned.replace(fold=fold) for fold in (0, 1)), key=lambda one: one.utcoffset() or timedelta(0))


def in_sql(using: str, field: Concrete, column: str) -> str:
    """An SQL expression for the JSON value of a column."""
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    template = _IN_SQL.get(field.get_internal_type())
    if template is not None:
        return template.format(column)
    db_type = _db_type(using, field)
    as_it_is = db_type.startswith(_AS_THEY_ARE) or db_type.endswith(("int", "serial", "[]"))
    return column if as_it_is else f"{column}::text"


def may_expand(using: str, field: Concrete) -> bool:
    """Whether a column may hold numbers of any length, or lists in each other of any depth."""
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    return field.get_internal_type() not in _IN_SQL and _db_type(using, field).startswith(("jsonb", "numeric"))


def differ_in_sql(using: str, field: Concrete, old: str, new: str) -> str:
    """A condition that holds if a column changed, to or from NULL too."""
    db_type = _db_type(using, field)
    if db_type.startswith(_WITHOUT_EQUALITY) and not db_type.startswith("jsonb"):
        old, new = f"{old}::text", f"{new}::text"
    if db_type.startswith(_TEXTS):  # some collations don't tell capitals from small letters
        old, new = f'{old}::text COLLATE "C"', f'{new}::text COLLATE "C"'
    return f"{old} IS DISTINCT FROM {new}"


def _db_type(using: str, field: Concrete) -> str:
    """The type of its column on an alias, in small letters. Asking for it opens no connection."""
    return str(field.db_type(connections[using]) or "").lower()
