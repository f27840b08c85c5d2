"""Older versions as columns: a value becomes what the site's own readers make of it, or it is rescued as it is."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from django_events import declarations, schema, upcaster
from django_events.contracts.contract import VERSION, Contract
from django_events.contracts.misfits import Misfit
from django_events.contracts.rendering import rendered
from django_events.declarations import schema_of
from django_events.reading.typed.columns import TypedColumns
from django_events.testing import isolate_declarations

pytestmark = pytest.mark.requirement("X9")

KIND = "order.made"
NEWEST = 5


class Part(BaseModel):
    sku: str
    count: int | None = None


# Some shapes that blocks read by columns, and some whose values are made one by one.
SHAPES: dict[str, dict[str, Any]] = {
    "flat": {"total": (Decimal | None, None), "count": (int | None, None), "note": (str | None, None)},
    "nested": {"part": (Part | None, None), "parts": (list[Part] | None, None), "total": (Decimal | None, None)},
    "one by one": {"named": (dict[str, int] | None, None), "any": (Any, None), "count": (int | None, None)},
}


def fails(value: Any) -> Any:
    raise ValueError(value)


def changes_what_it_got(value: Any) -> Any:
    value["count"] = 7
    return value


# What an upcaster may do. Most do it to objects only, so they fail on what an earlier one may have made.
STEPS: dict[str, Callable[[Any], Any]] = {
    "keeps it": lambda value: value,
    "adds": lambda value: {**value, "note": "é 😀", "named": {"a": 1}},
    "renames": lambda value: {**{k: v for k, v in value.items() if k != "count"}, "number": value["count"]},
    "renames back": lambda value: {**{k: v for k, v in value.items() if k != "number"}, "count": value["number"]},
    "removes": lambda value: {k: v for k, v in value.items() if k not in ("note", "any")},
    "puts in": lambda value: {"part": {"sku": "x", "count": value.get("count")}, "parts": [{"sku": "y"}]},
    "changes what it got": changes_what_it_got,
    "makes another type": lambda value: {**value, "total": str(value["total"]), "count": [value.get("count")]},
    "makes a list": lambda value: [value],
    "makes an object of anything": lambda value: {"count": 1},
    "makes a float": lambda value: {**value, "total": 0.1},
    "makes a whole float": lambda value: {**value, "count": 2.0},
    "makes no JSON": lambda value: {**value, "total": {1, 2}},
    "makes no number": lambda value: {**value, "total": float("nan")},
    "makes half of a character": lambda value: {**value, "note": "\ud800"},
    "makes keys that are numbers": lambda value: {**value, "named": {1: 2}},
    "makes nothing": lambda value: None,
    "fails": fails,
}
VALUES = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "total": st.sampled_from([1, 2.5, "3.25", "much", None, 10**30]),
            "count": st.sampled_from([0, -1, 1 << 62, 1 << 70, "4", None]),
            "note": st.sampled_from(["", "x", "\N{SNOWMAN}", 5]),
            "part": st.sampled_from([{"sku": "a"}, {"sku": "a", "count": 3}, {"count": 3}, {}, None]),
            "parts": st.lists(st.sampled_from([{"sku": "a"}, {"sku": "b", "count": 1}, 5]), max_size=3),
            "named": st.dictionaries(st.sampled_from("ab"), st.integers(0, 3), max_size=2),
            "any": st.sampled_from([1, "x", [1, {"a": None}], None]),
            "number": st.sampled_from([1, 2]),
        },
    ),
    st.sampled_from([None, 5, "x", [], [1]]),
)


@settings(max_examples=40, deadline=None)
@given(
    fields=st.sampled_from(sorted(SHAPES)),
    newest=st.integers(1, NEWEST),
    chain=st.dictionaries(st.integers(1, NEWEST - 1), st.sampled_from(sorted(STEPS)), min_size=NEWEST - 3),
    events=st.lists(st.tuples(st.integers(1, NEWEST + 1), VALUES), min_size=1, max_size=6),
)
@example(fields="flat", newest=3, chain={1: "makes nothing", 2: "makes an object of anything"}, events=[(1, {})])
@example(fields="flat", newest=4, chain={1: "adds", 3: "adds"}, events=[(n, {"count": n}) for n in range(1, 6)])
@example(fields="nested", newest=3, chain={1: "puts in", 2: "fails"}, events=[(2, {}), (1, {}), (3, {"total": 1})])
@example(fields="flat", newest=3, chain={1: "renames", 2: "renames back"}, events=[(1, {"count": 1}), (2, {})])
def test_columns_have_what_the_upcasters_of_the_site_make(
    fields: str, newest: int, chain: dict[int, str], events: list[tuple[int, Any]]
) -> None:
    with isolate_declarations():
        contract, typed = _declared(fields, newest, chain)
        texts = [json.dumps(value, ensure_ascii=False) for _, value in events]
        made = read(typed, *((version, text) for (version, _), text in zip(events, texts, strict=True)))
        for (version, value), text, row in zip(events, texts, made, strict=True):
            expected = _by_the_site(contract, version, text)
            if expected is None:
                assert row == {"data": None, VERSION: None, "rescued": text}, (version, value)
                continue
            [alone] = read(typed, (newest, expected))
            assert (row["data"], row[VERSION]) == (alone["data"], alone[VERSION]), (version, value)
            assert row["rescued"] == (None if alone["rescued"] is None else text), (version, value)
            if row["rescued"] is None:
                _is_what_the_model_reads(contract, version, text, row["data"])


def read(typed: TypedColumns, *events: tuple[int, str]) -> list[dict[str, Any]]:
    """The typed columns of events of one batch."""
    metadata = [json.dumps({VERSION: version}) for version, _ in events]
    made = typed.opened().columns(
        pa.array([KIND] * len(events)), pa.array([text for _, text in events]), pa.array(metadata)
    )
    rows: list[dict[str, Any]] = pa.RecordBatch.from_pydict(made).to_pylist()
    return rows


def _declared(fields: str, newest: int, chain: dict[int, str]) -> tuple[Contract, TypedColumns]:
    model = schema(KIND, version=newest)(create_model("Made", **SHAPES[fields]))
    topic = declarations.topic("upcast-orders", schemas=[model], undescribed="pass", schema_check="off")
    for version, step in chain.items():
        upcaster(KIND, version)(STEPS[step])
    declared = schema_of(model)
    assert declared is not None
    schemas = ((KIND, newest, json.dumps(rendered(declared, model))),)
    return Contract(topic), TypedColumns(schemas=schemas, only=KIND)


def _by_the_site(contract: Contract, version: int, text: str) -> str | None:
    """The newest version's value as JSON; None if there is none."""
    if version > contract.newest[KIND]:
        return None
    try:
        value = contract.upcast(KIND, version, json.loads(text))
        return json.dumps(value, allow_nan=False)
    except (Misfit, TypeError, ValueError):
        return None


def _is_what_the_model_reads(contract: Contract, version: int, text: str, data: dict[str, Any]) -> None:
    """Where the model takes a value too, its fields are those of the columns."""
    try:
        model = contract.read(KIND, version, text)
    except Misfit:
        return
    for name, value in model.model_dump().items():
        found: Any = dict(data[name]) if isinstance(value, dict) and name == "named" else data[name]
        if name == "any":
            found = None if found is None else json.loads(found)
        assert found == value, name
