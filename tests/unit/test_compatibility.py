"""What a change of a schema breaks: a test for each rule, with the models that pydantic makes of it."""

import json
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model

from django_events.contracts.compatibility import breaks
from django_events.contracts.rendering import json_schema

pytestmark = pytest.mark.requirement("X9")


class Line(BaseModel):
    sku: str


class LineWithPrice(BaseModel):
    sku: str
    price: int


class Card(BaseModel):
    kind: Literal["card"]
    number: str


class Cash(BaseModel):
    kind: Literal["cash"]


class Small(Enum):
    A = "a"
    B = "b"


class Large(Enum):
    A = "a"
    B = "b"
    C = "c"


class Node(BaseModel):
    name: str
    next: Optional["Node"] = None


class NodeWithAge(BaseModel):
    name: str
    age: int
    next: Optional["NodeWithAge"] = None


def of(*, config: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The JSON Schema of a model with these fields: a type, or a type and its default."""
    given = {name: one if isinstance(one, tuple) else (one, ...) for name, one in fields.items()}
    model = create_model("Model", __config__=ConfigDict(**config) if config else None, **given)
    return json_schema(model, "validation")


def either(old: Any, new: Any) -> tuple[list[str], list[str]]:
    """What a change of one field's type breaks backward, and forward."""
    return both(of(x=old), of(x=new))


def both(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[str], list[str]]:
    backward, forward = (
        [str(one).removeprefix(f"{direction}: ") for one in breaks(old, new, direction)]
        for direction in ("backward", "forward")
    )
    assert [str(one) for one in breaks(old, new, "full")] == [
        *(f"backward: {one}" for one in backward),
        *(f"forward: {one}" for one in forward),
    ]
    assert not breaks(old, new, "none")
    assert not breaks(old, old, "full") and not breaks(new, new, "full")
    return backward, forward


BEFORE, NEW = "events of before", "events of the new schema"


def test_a_field_is_removed():
    assert both(of(a=int, x=int), of(a=int)) == ([], [f"$.x: is required, and {NEW} may lack it."])
    assert both(of(a=int, x=(int, 1)), of(a=int)) == ([], [])
    assert both(of(a=int, x=int), of(a=int, config={"extra": "forbid"}))[0] == [
        f"$.x: is not taken any more, and {BEFORE} may have it",
        f"$: other fields are refused, and {BEFORE} may have some",
    ]


def test_a_field_is_added_without_a_default():
    needed = f"$.x: is required, and {BEFORE} may lack it. Give it a default."
    assert both(of(a=int), of(a=int, x=int)) == ([needed], [])
    assert both(of(a=int), of(a=int, x=(int, 1))) == ([], [])


def test_a_field_that_may_be_left_out_is_required():
    needed = f"$.x: is required, and {BEFORE} may lack it. Give it a default."
    assert both(of(x=(int, 1)), of(x=int)) == ([needed], [])
    assert both(of(x=int), of(x=(int, 1))) == ([], [f"$.x: is required, and {NEW} may lack it."])


@pytest.mark.parametrize(
    ("narrow", "wide", "kind"),
    [
        (int, float, "number is not taken, only integer"),
        (str, str | None, "null is not taken, only string"),
        (int, int | str, "string is not taken, only integer"),
        (int, Any, "any value is not taken, only integer"),
        (int | str, Any, "any value is not taken, only integer or string"),
    ],
)
def test_a_type_is_widened_or_narrowed(narrow, wide, kind):
    assert either(narrow, wide) == ([], [f"$.x: {kind}"])
    assert either(wide, narrow) == ([f"$.x: {kind}"], [])


def test_a_type_is_another_one():
    assert either(int, str) == (["$.x: integer is not taken, only string"], ["$.x: string is not taken, only integer"])
    assert either(Line, list[Line])[0] == ["$.x: object is not taken, only array"]
    assert either(Decimal, str)[0] == ["$.x: number is not taken, only string"]


def test_values_of_an_enum_come_and_go():
    assert either(Small, Large) == ([], ['$.x: "c" is not taken'])
    assert either(Large, Small) == (['$.x: "c" is not taken'], [])
    assert either(Literal["a"], Literal["a", "b"]) == ([], ['$.x: "b" is not taken'])
    assert either(Literal["a", 1], Literal["a"])[0] == ["$.x: integer is not taken, only string"]
    assert either(str, Small) == ([f'$.x: only "a", "b" are taken, and {BEFORE} may have others'], [])


@pytest.mark.parametrize(
    ("loose", "tight", "said"),
    [
        (Annotated[int, Field(ge=1)], Annotated[int, Field(ge=2)], "minimum is 2, and {} have minimum is 1"),
        (Annotated[int, Field(ge=1)], Annotated[int, Field(gt=1)], "exclusiveMinimum is 1, and {} have minimum is 1"),
        (int, Annotated[int, Field(le=9)], "maximum is 9, and {} have none"),
        (Annotated[int, Field(le=9)], Annotated[int, Field(lt=9)], "exclusiveMaximum is 9, and {} have maximum is 9"),
        (str, Annotated[str, Field(max_length=5)], "maxLength is 5, and {} have none"),
        (
            Annotated[str, Field(min_length=1)],
            Annotated[str, Field(min_length=2)],
            "minLength is 2, and {} have 1",
        ),
        (list[int], Annotated[list[int], Field(min_length=1)], "minItems is 1, and {} have none"),
        (str, Annotated[str, Field(pattern="^a")], 'pattern is "^a", and {} have none'),
        (int, Annotated[int, Field(multiple_of=2)], "multipleOf is 2, and {} have none"),
        (list[int], set[int], "items are unique, and those of {} may not be"),
    ],
)
def test_a_bound_is_tightened_or_loosened(loose, tight, said):
    assert either(loose, tight) == ([f"$.x: {said.format(BEFORE)}"], [])
    assert either(tight, loose) == ([], [f"$.x: {said.format(NEW)}"])


def test_a_field_of_a_nested_model_changes():
    assert either(Line, LineWithPrice)[0] == [f"$.x.price: is required, and {BEFORE} may lack it. Give it a default."]
    assert either(Line | None, LineWithPrice | None)[0] == [
        f"$.x.price: is required, and {BEFORE} may lack it. Give it a default."
    ]


def test_the_items_of_a_list_change():
    assert either(list[int], list[str])[0] == ["$.x[*]: integer is not taken, only string"]
    assert either(list[Line], list[LineWithPrice])[0] == [
        f"$.x[*].price: is required, and {BEFORE} may lack it. Give it a default."
    ]
    assert either(list[Any], list[str])[0] == ["$.x[*]: any value is not taken, only string"]


def test_a_tuple_changes():
    assert either(tuple[int, str], tuple[int, int])[0] == ["$.x[1]: string is not taken, only integer"]
    assert either(tuple[int, str], tuple[int, str, int])[0] == [f"$.x: minItems is 3, and {BEFORE} have 2"]


def test_the_values_of_a_dict_change():
    assert either(dict[str, int], dict[str, str])[0] == ["$.x.*: integer is not taken, only string"]
    assert either(dict[str, Any], dict[str, int])[0] == ["$.x.*: any value is not taken, only integer"]
    assert either(dict[str, int], dict[str, Any])[0] == []
    assert either(dict[str, int], Line)[0] == [
        f"$.x.sku: is required, and {BEFORE} may lack it. Give it a default.",
        "$.x.sku: integer is not taken, only string",
    ]


LowerCase = Annotated[str, Field(pattern="^[a-z]+$")]


def test_the_keys_of_a_dict_change():
    assert either(dict[Small, int], dict[Large, int])[0] == []
    [gone] = either(dict[Large, int], dict[Small, int])[0]
    assert gone == '$.x.*: "c" is not taken'

    [needs] = either(dict[LowerCase, Line], dict[LowerCase, LineWithPrice])[0]
    assert needs.endswith(f".price: is required, and {BEFORE} may lack it. Give it a default.")
    assert either(dict[str, Line], dict[LowerCase, Line])[0]


def test_an_alternative_of_a_union_comes_or_goes():
    told = Annotated[Card | Cash, Field(discriminator="kind")]
    assert either(Card, told) == (
        [],
        ['$.x.kind: "cash" is not taken', f"$.x.number: is required, and {NEW} may lack it."],
    )
    assert either(told, Card)[0][0] == '$.x.kind: "cash" is not taken'
    assert either(told, Card | Cash) == ([], [])


def test_a_model_that_has_itself_in_it():
    old, new = Node.model_json_schema(), NodeWithAge.model_json_schema()
    assert [str(one) for one in breaks(old, new, "backward")] == [
        f"backward: $.age: is required, and {BEFORE} may lack it. Give it a default."
    ]
    assert not breaks(old, old, "full")


def test_what_says_nothing_about_values_breaks_nothing():
    old = of(x=Annotated[int, Field(title="A", description="b", examples=[1])])
    new = of(x=Annotated[int, Field(title="B", deprecated=True, json_schema_extra={"x-masked": True})])
    assert both(old, new) == ([], [])


def test_a_keyword_that_is_not_known_breaks_rather_than_not():
    old, new = {"type": "string"}, {"type": "string", "contentEncoding": "base64"}
    assert both(old, new)[0] == [f'$: contentEncoding is "base64", and {BEFORE} have none']


def test_whether_other_fields_are_taken():
    forbidden = of(x=int, config={"extra": "forbid"})
    assert both(of(x=int), forbidden) == ([f"$: other fields are refused, and {BEFORE} may have some"], [])


def texts() -> st.SearchStrategy[str]:
    return st.sampled_from(["", "a", "b", "c", "ab", "abcdef", "7"])


# Annotations, with values in JSON that fit them.
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-20, 20)),
    (Annotated[int, Field(ge=0)], st.integers(0, 20)),
    (Annotated[int, Field(gt=0, le=9)], st.integers(1, 9)),
    (Annotated[int, Field(multiple_of=2)], st.integers(-9, 9).map(lambda n: n * 2)),
    (float, st.integers(-20, 20) | st.floats(-9, 9)),
    (bool, st.booleans()),
    (str, texts()),
    (Annotated[str, Field(min_length=1, max_length=3)], st.sampled_from(["a", "ab", "7"])),
    (Annotated[str, Field(pattern="^a")], st.sampled_from(["a", "abc"])),
    (Small, st.sampled_from(["a", "b"])),
    (Large, st.sampled_from(["a", "b", "c"])),
    (Literal["a"], st.just("a")),
    (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    (Decimal, st.sampled_from(["1.5", 2, "0"])),
    (UUID, st.uuids().map(str)),
    (datetime, st.just("2026-03-01T12:00:00Z")),
    (date, st.just("2026-03-01")),
    (Any, st.none() | st.integers() | texts()),
    (Line, st.fixed_dictionaries({"sku": texts()})),
    (LineWithPrice, st.fixed_dictionaries({"sku": texts(), "price": st.integers(-9, 9)})),
    (Card, st.fixed_dictionaries({"kind": st.just("card"), "number": texts()})),
    (Node, st.fixed_dictionaries({"name": texts()}, optional={"next": st.just({"name": "n", "next": None})})),
    (NodeWithAge, st.fixed_dictionaries({"name": texts(), "age": st.integers(0, 9)})),
]


def wrapped(kind: tuple[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    """A kind, or lists, dicts, optional ones and unions of it."""
    annotation, values = kind
    ways = [
        kind,
        (annotation | None if annotation is not Any else Any, values | st.none()),
        (list[annotation], st.lists(values, max_size=3)),
        (Annotated[list[annotation], Field(min_length=1)], st.lists(values, min_size=1, max_size=3)),
        (dict[str, annotation], st.dictionaries(texts(), values, max_size=3)),
        (tuple[annotation, int], st.tuples(values, st.integers(-9, 9)).map(list)),
        (Optional[annotation] if annotation is Any else int | annotation, values),  # noqa: UP045
    ]
    return st.sampled_from(ways)


FIELDS = st.sampled_from(KINDS).flatmap(wrapped)
OPTIONAL = st.booleans()


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_what_breaks_nothing_is_read_by_the_other_model(data):
    """Whatever two models are: if nothing is said to break, each event of the one makes the other."""
    fields: dict[str, tuple[Any, st.SearchStrategy[Any], bool]] = {
        name: (*data.draw(FIELDS), data.draw(OPTIONAL)) for name in ("a", "b")
    }
    changed = dict(fields)
    name = data.draw(st.sampled_from(["a", "b", "c"]))
    if name in changed and data.draw(st.booleans()):
        del changed[name]
    else:
        changed[name] = (*data.draw(FIELDS), data.draw(OPTIONAL))
    forbid = data.draw(st.booleans())
    old, new = _model(fields, forbid=forbid), _model(changed, forbid=forbid and data.draw(st.booleans()))
    value = {
        name: data.draw(values) for name, (_, values, optional) in fields.items() if not optional or data.draw(OPTIONAL)
    }
    old.model_validate_json(json.dumps(value))
    found = breaks(json_schema(old, "validation"), json_schema(new, "validation"), "backward")
    event(f"breaks: {bool(found)}")
    if not found:
        new.model_validate_json(json.dumps(value))


def _model(fields: dict[str, tuple[Any, Any, bool]], *, forbid: bool) -> type[BaseModel]:
    given = {name: (one, None if optional else ...) for name, (one, _, optional) in fields.items()}
    return create_model("Model", __config__=ConfigDict(extra="forbid") if forbid else None, **given)
