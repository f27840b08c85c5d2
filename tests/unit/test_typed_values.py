"""Values as columns: whatever a value is, what was made of it and what was rescued together tell it."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from django_events import schema, upcaster
from django_events.contracts.contract import FIRST, VERSION
from django_events.contracts.files import FOLDER as FILES
from django_events.contracts.rendering import rendered
from django_events.declarations import schema_of
from django_events.exceptions import Invalid, Refused
from django_events.reading.typed import blocks, descriptions
from django_events.reading.typed import columns as typed_columns
from django_events.reading.typed.blocks import ValueBlocks
from django_events.reading.typed.columns import TypedColumns
from django_events.reading.typed.descriptions import SchemaSet
from django_events.reading.typed.evolution import as_json, conformed, evolved, of_json
from django_events.reading.typed.shapes import Shape, shape_of
from django_events.testing import isolate_declarations

pytestmark = pytest.mark.requirement("X9")

LARGE = 9_007_199_254_740_993  # 2^53 + 1, which no float holds
FIELDS: dict[str, Any] = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "ratio": {"type": "number"},
    "sum": {"anyOf": [{"type": "number"}, {"type": "string", "format": "decimal"}]},
    "flag": {"type": "boolean"},
    "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
    "on": {"type": "string", "format": "date"},
    "many": {"type": "array", "items": {"type": "integer"}},
    "times": {"type": "array", "items": {"type": "string", "format": "date-time"}},
    "inner": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}, "required": ["b"]},
    "rows": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
SLOW: dict[str, Any] = {
    "any": {},
    "named": {"type": "object", "additionalProperties": {"type": "integer"}},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
}
BOTH = pytest.mark.parametrize(
    "properties",
    [pytest.param(FIELDS, id="columns"), pytest.param({**FIELDS, **SLOW}, id="with JSON", marks=pytest.mark.slow)],
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8),
    st.sampled_from(
        [
            *("NaN", "1.50", "-0", "1e3", "2026-11-20", "2026-02-30", "2026-11-20T18:00:00Z", "null", "a\nb", "}"),
            *("2026-11-20T18:00:00", "2026-11-20T18:00:00.123456789Z", "0001-01-01T00:00:00+23:59"),
            "2026-11-20T18:00:00+01:00",
        ]
    ),
)
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([LARGE, 2**63 - 1, 2**63, -(2**63), 10**40, 0, -1]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**25), max_value=10**25),
)
MONEY = st.decimals(-(10**19), 10**19, places=2)
ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.one_of(st.sampled_from([*FIELDS, *SLOW]), TEXTS), ANY, max_size=5)


def fitting(part: Any) -> Any:
    """Values that a part of a schema describes."""
    if part is FIELDS["sum"]:
        return st.one_of(MONEY, st.builds(str, MONEY))
    if "anyOf" in part:
        return st.one_of(*map(fitting, part["anyOf"]))
    if part.get("format") == "date-time":
        moments = st.datetimes(timezones=st.just(UTC))
        return st.builds(lambda moment: moment.isoformat().replace("+00:00", "Z"), moments)
    if part.get("format") == "date":
        return st.builds(date.isoformat, st.dates())
    match part.get("type"):
        case "string":
            return TEXTS
        case "integer":
            return st.integers(-(2**63), 2**63 - 1)
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(fitting(part["items"]), max_size=3)
        case "object" if "properties" in part:
            required = {
                name: fitting(one) for name, one in part["properties"].items() if name in part.get("required", ())
            }
            others = {name: fitting(one) for name, one in part["properties"].items() if name not in required}
            return st.fixed_dictionaries(required, optional=others)
        case "object":
            return st.dictionaries(TEXTS, fitting(part["additionalProperties"]), max_size=3)
    return ANY


def text_of(value: Any) -> str:
    """JSON with all digits of its numbers."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {text_of(one)}" for name, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def exact(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def tells(shape: Shape, made: Any, value: Any) -> bool:
    """Whether what was made of a value says the same as the value."""
    if made is None or value is None:
        return made is None and value is None
    if shape.kind == "struct":
        left = {name: one for name, one in value.items() if one is not None}
        fields = {field.name: field.shape for field in shape.fields}
        there = {name for name, one in made.items() if one is not None}
        return there == left.keys() and all(tells(fields[name], made[name], one) for name, one in left.items())
    if shape.items is not None and shape.kind == "list":
        return len(made) == len(value) and all(map(lambda a, b: tells(shape.items, a, b), made, value))
    if shape.items is not None:
        return dict(made).keys() == value.keys() and all(tells(shape.items, one, value[name]) for name, one in made)
    if shape.kind == "json":
        return bool(exact(made) == value)
    if shape.kind in ("moment", "day"):
        parsed = datetime.fromisoformat(value) if shape.kind == "moment" else date.fromisoformat(value)
        return bool(made == parsed)
    if shape.kind == "number":
        return not isinstance(value, str | bool) and Decimal(repr(made)) == value
    if shape.kind == "decimal":
        return made == (Decimal(value) if isinstance(value, str) else value)
    return (type(made) is type(value) and made == value) or (shape.kind == "integer" and made == value)


def described(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@BOTH
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_any_value_is_told_whole_or_rescued(properties: dict[str, Any], data: st.DataObject) -> None:
    whole = described(**properties)
    values = data.draw(st.lists(st.one_of(fitting(whole), OBJECTS, ANY), max_size=25))
    texts = [text_of(value) for value in values]
    shape = shape_of(whole)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "PIECE", 4)
        made, fits = ValueBlocks(shape).read(pa.array(texts, pa.string()))

    assert made.type == shape.arrow
    made.validate(full=True)
    for one, fit, text in zip(made.to_pylist(), fits.tolist(), texts, strict=True):
        assert not fit or tells(shape, one, exact(text)), text
    by_one, fits_by_one = ValueBlocks(shape)._one_by_one(pa.array(texts, pa.string()))
    assert by_one.equals(made)
    assert fits.tolist() == fits_by_one.tolist()


@BOTH
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_what_a_schema_describes_fits(properties: dict[str, Any], data: st.DataObject) -> None:
    whole = described(**properties)
    values = data.draw(st.lists(fitting(whole), min_size=1, max_size=10))

    _, fits = ValueBlocks(shape_of(whole)).read(pa.array(list(map(text_of, values)), pa.string()))

    assert fits.all(), [value for value, fit in zip(values, fits, strict=True) if not fit]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("whole", "9223372036854775808"),
        ("whole", "1.5"),
        ("whole", '"5"'),
        ("ratio", "9007199254740993"),
        ("ratio", "0.1234567890123456789"),
        ("ratio", f"1{'0' * 400}"),
        ("ratio", '"NaN"'),
        ("sum", '"NaN"'),
        ("sum", '"0.1234567890123456789"'),
        ("sum", '"123456789012345678901.5"'),
        ("at", '"2026-11-20T18:00:00"'),
        ("at", '"2026-11-20T18:00:00.1234567Z"'),
        ("at", '"2026-11-20T25:00:00Z"'),
        ("on", '"2026-02-30"'),
        ("flag", '"true"'),
        ("text", "5"),
        ("many", "[1, 2.5]"),
        ("inner", '{"a": 1}'),
        ("other", "5"),
    ],
)
def test_what_no_column_holds_is_rescued_alone(field: str, value: str) -> None:
    good, bad = '{"whole": 1, "text": "x"}', f'{{"text": "kept", "{field}": {value}}}'
    texts = [good] * 500 + [bad] + [good] * 499

    made, fits = ValueBlocks(shape_of(described(**FIELDS))).read(pa.array(texts))

    assert np.flatnonzero(~fits).tolist() == [500]
    assert made[499].as_py()["whole"] == made[501].as_py()["whole"] == 1
    assert made[500].as_py()["text"] == (None if field == "text" else "kept")


@pytest.mark.parametrize("text", ["null", "[]", "5", '"x"', "", "{", "nonsense", "{}x", '{"whole": NaN}', " {}"])
def test_what_is_no_object_is_rescued_alone(text: str) -> None:
    made, fits = ValueBlocks(shape_of(described(**FIELDS))).read(pa.array(['{"whole": 1}', text, '{"whole": 2}']))

    assert fits.tolist() == [True, text == " {}", True]
    assert [one["whole"] for one in made.to_pylist() if one] == [1, *([None] if text == " {}" else []), 2]


class Kind(Enum):
    RETAIL = "retail"
    BULK = "bulk"


class Sku(BaseModel):
    sku: str
    price: Decimal


class Node(BaseModel):
    name: str
    below: list["Node"] = []


@schema("order.placed", version=2)
class TypedOrder(BaseModel):
    id: UUID
    kind: Kind
    total: Decimal
    placed_at: datetime
    due: date
    weight: float
    count: int
    note: str | None = None
    status: Literal["new", "old"] = "new"
    lines: list[Sku] = []
    tags: set[str] = set()
    amounts: dict[str, Decimal] = {}
    tree: Node | None = None
    either: int | str = 5
    pair: tuple[int, str] = (1, "x")


def of_model(model: type[BaseModel]) -> dict[str, Any]:
    declared = schema_of(model)
    assert declared is not None
    return rendered(declared, model)


def test_each_type_of_a_model_has_a_column() -> None:
    said = as_json(shape_of(of_model(TypedOrder)).arrow)

    money = "decimal128(38, 18)"
    assert said == {
        "id": "string",
        "kind": "string",
        "total": money,
        "placed_at": "timestamp[us, tz=UTC]",
        "due": "date32[day]",
        "weight": "double",
        "count": "int64",
        "note": "string",
        "status": "string",
        "lines": [{"sku": "string", "price": money}],
        "tags": ["string"],
        "amounts": ["string", money],
        "tree": {"name": "string", "below": ["string"]},
        "either": "string",
        "pair": "string",
    }
    assert of_json(said) == shape_of(of_model(TypedOrder)).arrow


def test_what_a_model_publishes_fits() -> None:
    order = TypedOrder(
        id=UUID(int=5),
        kind=Kind.BULK,
        total=Decimal("25.00"),
        placed_at=datetime(2026, 11, 20, 18, 0, 0, 123456, UTC),
        due=date(2026, 12, 1),
        weight=0.1,
        count=LARGE,
        lines=[Sku(sku="A", price=Decimal("0.10"))],
        amounts={"EUR": Decimal("1.5")},
        tree=Node(name="root", below=[Node(name="leaf")]),
    )

    made, fits = ValueBlocks(shape_of(of_model(TypedOrder))).read(pa.array([order.model_dump_json()]))

    assert fits.tolist() == [True]
    [one] = made.to_pylist()
    assert (one["total"], one["count"], one["weight"]) == (Decimal("25.00"), LARGE, 0.1)
    assert (one["placed_at"], one["due"]) == (order.placed_at, order.due)
    assert (one["id"], one["kind"]) == (str(order.id), "bulk")
    assert one["amounts"] == [("EUR", Decimal("1.5"))]
    assert json.loads(one["tree"]["below"][0]) == {"name": "leaf", "below": []}


@pytest.mark.parametrize("name", ["", "unit price", "a.b", "x;y", "Total"])
def test_a_name_that_no_table_takes_is_no_column(name: str) -> None:
    shape = shape_of(described(total={"type": "integer"}, **{name: {"type": "integer"}}))

    assert as_json(shape.arrow) == {"total": "int64"}
    _, fits = ValueBlocks(shape).read(pa.array([json.dumps({"total": 1, name: 2}), '{"total": 1}']))
    assert fits.tolist() == [False, True]


V1 = described(total={"type": "integer"})
V2 = {**described(total={"type": "integer"}, currency={"type": "string"}), "required": ["total", "currency"]}
PAID = described(card={"type": "string"})
KNOWN = SchemaSet({"order.placed": {1: V1, 2: V2}, "order.paid": {1: PAID}})


def read(typed: TypedColumns, *events: tuple[str, str | None, str]) -> list[dict[str, Any]]:
    types, values, metadata = (pa.array(column, pa.string()) for column in zip(*events, strict=True))
    made = pickle.loads(pickle.dumps(typed)).opened().columns(types, values, metadata)
    assert {name: array.type for name, array in made.items()} == typed.types
    return pa.table(made).to_pylist()


def test_each_type_has_a_field_and_what_has_none_is_rescued() -> None:
    rows = read(
        KNOWN.chosen("typed"),
        ("order.paid", '{"card": "x"}', "{}"),
        ("order.placed", '{"total": 5, "currency": "EUR"}', '{"schema_version": 2}'),
        ("order.gone", '{"a": 1}', "{}"),
        ("order.placed", None, '{"erased": "2026"}'),
        ("order.paid", "null", "{}"),
        ("order.paid", '{"card": 5}', '{"n": {"schema_version": 9}, "x": "schema_version"}'),
        ("order.placed", '{"total": 5}', '{"a": 1, "schema_version": 2}'),
        ("order.placed", '{"total": 5, "currency": "EUR"}', '{"schema_version": 3}'),
        ("order.placed", '{"total": 5, "currency": "EUR"}', '{"schema_version": "2"}'),
    )

    nothing = {"order_paid": None, "order_placed": None}
    assert [row["data"] for row in rows] == [
        {**nothing, "order_paid": {"card": "x"}},
        {**nothing, "order_placed": {"total": 5, "currency": "EUR"}},
        None,
        None,
        None,
        {**nothing, "order_paid": {"card": None}},
        {**nothing, "order_placed": {"total": 5, "currency": None}},
        None,
        None,
    ]
    assert [row["schema_version"] for row in rows] == [1, 2, None, None, None, 1, 2, None, None]
    assert [row["rescued"] for row in rows] == [
        None,
        None,
        '{"a": 1}',
        None,
        "null",
        '{"card": 5}',
        '{"total": 5}',
        '{"total": 5, "currency": "EUR"}',
        '{"total": 5, "currency": "EUR"}',
    ]


def test_older_versions_are_upcast_or_rescued(caplog: pytest.LogCaptureFixture) -> None:
    old = ("order.placed", '{"total": 5}', "{}")
    typed = KNOWN.chosen("order.placed@2")

    with isolate_declarations():
        assert read(typed, old) == [{"data": None, "schema_version": None, "rescued": '{"total": 5}'}]

        @upcaster("order.placed", 1)
        def with_currency(value: dict[str, Any]) -> dict[str, Any]:
            return {**value, "currency": {"total": "EUR"}[next(iter(value))]}

        bad = ("order.placed", '{"x": 1}', "{}")
        new = ("order.placed", '{"total": 6, "currency": "CHF"}', '{"schema_version": 2}')
        newer = ("order.placed", "5", '{"schema_version": 3}')
        assert read(typed, old, new, bad, old, bad, newer)[:4] == [
            {"data": {"total": 5, "currency": "EUR"}, "schema_version": 2, "rescued": None},
            {"data": {"total": 6, "currency": "CHF"}, "schema_version": 2, "rescued": None},
            {"data": None, "schema_version": None, "rescued": '{"x": 1}'},
            {"data": {"total": 5, "currency": "EUR"}, "schema_version": 2, "rescued": None},
        ]
    with isolate_declarations():
        upcaster("order.placed", 1)(lambda value: {**value, "currency": "EUR"})
        [row] = read(KNOWN.chosen("order.placed@2", upcasters=()), old)  # as in Spark, where none are named
        assert (row["data"], row["rescued"]) == (None, old[1])
    said = "Rescued as they are: events of type 'order.placed', version"
    assert [record.getMessage() for record in caplog.records] == [
        f"{said} 1. There is no upcaster from version 1.",
        f"{said} 1. The upcaster from version 1 failed: KeyError.",
        f"{said} 3. It is newer than the schema.",
        f"{said} 1. No upcasters are named.",
    ]
    [row] = read(KNOWN.chosen("order.placed@1"), old)
    assert row == {"data": {"total": 5}, "schema_version": 1, "rescued": None}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (f'{{"total": {"[" * 3000}{"]" * 3000}}}', {"total": 1}),
        (f'{{"total": {"9" * 5000}}}', {"total": 1}),
        ('{"total": 1, "ratio": 0.1234567890123456789}', {"total": 1, "currency": "EUR"}),
        ("5", {"total": object()}),
        ("5", {"total": float("nan")}),
        ("5", {"total": 1, "currency": "\ud800"}),
        ("5", None),
    ],
)
def test_what_upcasters_can_not_make_is_rescued(text: str, made: Any) -> None:
    with isolate_declarations():
        upcaster("order.placed", 1)(lambda value: made)
        [row] = read(KNOWN.chosen("order.placed@2"), ("order.placed", text, "{}"))
    assert row["rescued"] == text
    assert row["data"] in (None, {"total": 1, "currency": None})


def test_upcasters_get_values_as_they_are() -> None:
    got = []
    with isolate_declarations():
        upcaster("order.placed", 1)(lambda value: got.append(value) or {"total": 1, "currency": "EUR"})
        [row] = read(KNOWN.chosen("order.placed@2"), ("order.placed", '{"total": 1.50, "n": [9007199254740993]}', "{}"))
    assert (got, row["rescued"]) == ([{"total": 1.5, "n": [9007199254740993]}], None)


def test_the_schemas_travel_as_text_and_lie_in_files(tmp_path: Any) -> None:
    assert SchemaSet.of_text(KNOWN.as_text()).chosen("typed") == KNOWN.chosen("typed")
    for kind, versions in KNOWN.by_type.items():
        for version, one in versions.items():
            path = tmp_path / "orders" / f"{kind}.v{version}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(one))
    assert SchemaSet.in_folder(tmp_path, {"orders"}.__contains__) == KNOWN
    with pytest.raises(Invalid, match="has no schemas of these topics, expected files like"):
        SchemaSet.in_folder(tmp_path, {"others"}.__contains__)
    (tmp_path / "orders" / "order.gone.v1.json").write_text("[]")
    with pytest.raises(Invalid, match=r"The schema .*order\.gone\.v1\.json can't be read: it is no JSON object"):
        SchemaSet.in_folder(tmp_path, {"orders"}.__contains__)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("order.palced", "No schema describes events of type 'order.palced'. Did you mean 'order.placed'?"),
        ("order.placed@3", "There is no schema of 'order.placed' version 3. Known are: 1, 2."),
    ],
)
def test_a_choice_that_is_not_described_is_said(choice: str, said: str) -> None:
    with pytest.raises(Invalid) as raised:
        KNOWN.chosen(choice)
    assert said in str(raised.value)


def test_types_of_one_column_are_refused() -> None:
    with pytest.raises(Invalid, match=r"Types 'a\.b' and 'a_B' would have the same column 'a_B'"):
        _ = SchemaSet({"a.b": {1: V1}, "a_B": {1: V1}}).chosen("typed").shape


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 5}', '{"a": {"x": {}}}', '{"a": {"1": []}}'])
def test_schemas_that_are_none_are_said(text: str) -> None:
    with pytest.raises(Invalid, match="The schemas are"):
        SchemaSet.of_text(text)


def test_fields_are_added_and_no_type_changes() -> None:
    before, after = shape_of(V1).arrow, shape_of(described(currency={"type": "string"})).arrow

    both = evolved(before, after, "data", "x")

    assert as_json(both) == {"total": "int64", "currency": "string"}
    array = conformed(pa.array([{"total": 5}, None], before), both)
    assert array.to_pylist() == [{"total": 5, "currency": None}, None]
    with pytest.raises(Refused, match=r"Column 'data\.total' of x is int64, and that of events is string"):
        evolved(before, shape_of(described(total={"type": "string"})).arrow, "data", "x")


def test_lists_and_maps_get_fields_too() -> None:
    def wrapped(**properties: Any) -> pa.DataType:
        inner = described(**properties)
        return shape_of(
            described(rows={"type": "array", "items": inner}, named={"type": "object", "additionalProperties": inner})
        ).arrow

    before = wrapped(a={"type": "integer"})
    both = evolved(before, wrapped(b={"type": "string"}), "data", "x")
    array = conformed(pa.array([{"rows": [{"a": 1}, None], "named": {"k": {"a": 2}}}, {"rows": None}], before), both)

    array.validate(full=True)
    assert array.to_pylist() == [
        {"rows": [{"a": 1, "b": None}, None], "named": [("k", {"a": 2, "b": None})]},
        {"rows": None, "named": None},
    ]


def test_it_says_versions_as_contracts_do() -> None:
    assert (typed_columns.VERSION, typed_columns.FIRST) == (VERSION, FIRST)
    assert descriptions.FOLDER == FILES


def test_times_that_no_value_has_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of(
        {"type": "object", "properties": {"n": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}}
    )
    monkeypatch.setattr(ValueBlocks, "_one_by_one", None)
    found, fits = ValueBlocks(shape).read(pa.array(['{"n": 1}', '{"n": 2, "at": null}']))
    assert (found.to_pylist(), fits.all()) == ([{"n": 1, "at": None}, {"n": 2, "at": None}], True)
