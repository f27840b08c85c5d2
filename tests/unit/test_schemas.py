"""Schemas of events, before a database has a part in it: declared, checked at publish, upcast and read."""

import copy
import json
import logging
import re
import traceback
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from django_events import UNSET, declarations, schema, topic, upcaster
from django_events.checks.declarations import check_schemas, check_upcasters
from django_events.contracts.chains import problems_of_chains, problems_of_clocks, problems_of_schemas
from django_events.exceptions import Invalid, InvalidEvent, UnfitEvent
from django_events.publishing.encoding import BufferRow, encode
from django_events.received import ReceivedEvent
from django_events.testing import isolate_declarations

pytestmark = pytest.mark.requirement("X9")

SECRET = "-".join(["4111", "1111"])  # nowhere in a line that a traceback shows
WHEN = "2026-03-01T12:00:00.250000+00:00"


@pytest.fixture(autouse=True)
def isolated():
    with isolate_declarations():
        for registry in (declarations.registry, declarations.clocks, declarations.upcasters):
            for one in list(registry):
                registry.discard(one)
        yield


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    sku: str
    quantity: int = Field(gt=0)


class Placed(BaseModel):
    customer: str
    total: Decimal
    lines: list[Line] = []


def versions(newest: int, kind: str = "placed") -> type[BaseModel]:
    """A model of a version of which any value fits."""

    @schema(kind, version=newest)
    class Model(RootModel[Any]):
        """Anything."""

    return Model


def encoded(described: declarations.DeclaredTopic, value: Any = UNSET, **fields: Any) -> BufferRow:
    given = {"body": UNSET, "type": "", "key": None, "metadata": None, "partition": None, **fields}
    row = encode(described, value, *given.values())
    assert isinstance(row, BufferRow)
    return row


def received(row: BufferRow, of: str = "orders") -> ReceivedEvent:
    columns = (7, 0, 7, row.type, row.key, row.value, row.body, row.metadata, WHEN, WHEN)
    return ReceivedEvent(of, columns, consumer="c", database="default")


def event(value: str, metadata: str = "{}", *, type: str = "placed", of: str = "orders") -> ReceivedEvent:
    return received(BufferRow(value, type, None, None, metadata, None), of)


def placed(**options: Any) -> declarations.DeclaredTopic:
    return topic("orders", schemas=[schema("placed")(type("Placed", (Placed,), {}))], **options)


def test_a_model_knows_its_type_and_version():
    model = schema("placed", version=3)(type("Model", (Placed,), {}))
    row = encoded(topic("orders", schemas=[model]), model(customer="Ada", total=Decimal("1.10")), key="7")

    assert (row.type, row.key) == ("placed", "7")
    assert row.value == '{"customer":"Ada","lines":[],"total":"1.10"}'
    assert row.metadata == '{"schema_version":3}'


def test_a_value_of_a_described_type_gets_the_newest_version():
    orders = topic("orders", schemas=[versions(1), versions(2)])

    assert encoded(orders, {"a": 1}, type="placed", metadata={"by": "x"}).metadata == '{"by":"x","schema_version":2}'
    with pytest.raises(
        InvalidEvent, match="no upcaster of 'placed' from version 1"
    ):  # it is checked as it will be read
        encoded(orders, {"a": 1}, type="placed", metadata={"schema_version": 1})
    upcaster("placed", 1)(lambda value: value)
    assert encoded(orders, {"a": 1}, type="placed", metadata={"schema_version": 1}).metadata == '{"schema_version":1}'


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"total": "1"}, r"\$\.customer: Field required"),
        ({"customer": "a", "total": "x"}, r"\$\.total: Input should be a valid decimal"),
        (
            {"customer": "a", "total": "1", "lines": [{"sku": "b", "quantity": 0}]},
            r"\$\.lines\[0\]\.quantity: .*than 0",
        ),
        ([], r"\$: Input should be an object"),
        (None, r"\$: Input should be an object"),
    ],
)
def test_what_does_not_fit_is_refused_by_field(value, said):
    with pytest.raises(InvalidEvent, match=rf"doesn't fit 'placed' version 1 of topic 'orders': {said}"):
        encoded(placed(), value, type="placed")


def test_an_instance_that_was_changed_is_checked_again():
    orders = placed()
    value = orders.schemas[0](customer="Ada", total=1, lines=[Line(sku="a", quantity=1)])
    value.lines[0].quantity = -1

    with pytest.raises(InvalidEvent, match="quantity"):
        encoded(orders, value)
    value.lines = SECRET
    with pytest.raises(InvalidEvent, match=r"can't be written as JSON: ") as raised:
        encoded(orders, value)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_errors_have_no_values_in_them():
    with pytest.raises(InvalidEvent) as raised:
        encoded(placed(), {"customer": "a", "total": SECRET}, type="placed")
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_readers_errors_have_no_values_in_them():
    placed()
    with pytest.raises(UnfitEvent) as raised:
        _ = event(f'{{"customer": "a", "total": "{SECRET}"}}').data
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_masked_fields_are_not_described_by_messages():
    class Paid(BaseModel):
        card: str
        total: int

        @field_validator("card", "total")
        @classmethod
        def known(cls, value: Any) -> Any:
            raise ValueError(f"{value} is unknown")

    orders = topic("orders", schemas=[schema("paid")(Paid)])
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["Card"]}), pytest.raises(InvalidEvent) as raised:
        encoded(orders, {"card": "4111", "total": 99}, type="paid")
    assert "$.card: ••• (value_error)" in str(raised.value)
    assert "4111" not in str(raised.value) and "99" not in str(raised.value)

    with pytest.raises(InvalidEvent, match="99 is unknown"):
        encoded(orders, {"card": "4111", "total": 99}, type="paid")


def test_an_error_of_the_sites_own_kind_is_no_message_where_fields_are_masked():
    class Paid(BaseModel):
        card: str
        total: int

        @model_validator(mode="after")
        def known(self) -> "Paid":
            raise PydanticCustomError("unknown_card", "{card} is unknown", {"card": self.card})

    orders = topic("orders", schemas=[schema("paid")(Paid)])
    for masked, said in ((["card"], r"\$: ••• \(unknown_card\)\.$"), ([], r"\$: 4111 is unknown\.$")):
        with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": masked}), pytest.raises(InvalidEvent, match=said):
            encoded(orders, {"card": "4111", "total": 99}, type="paid")
    with (
        override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]}),
        pytest.raises(InvalidEvent, match="valid integer"),
    ):
        encoded(orders, {"card": "4111", "total": "x"}, type="paid")


def test_warn_publishes_and_says_so(caplog):
    orders = placed(schema_check="warn")
    with caplog.at_level(logging.WARNING, "django_events.contracts"):
        row = encoded(orders, {"total": "1"}, type="placed")
        encoded(orders, {}, type="other")
    assert row.metadata == "{}"
    assert encoded(orders, {"customer": "a", "total": "1"}, type="placed").metadata == '{"schema_version":1}'
    assert [(one.topic, one.event_type) for one in caplog.records] == [("orders", "placed"), ("orders", "other")]
    assert (
        "$.customer: Field required" in caplog.messages[0]
        and "describes no events of type 'other'" in caplog.messages[1]
    )


def test_off_names_events_and_checks_nothing():
    orders = placed(schema_check="off")
    assert encoded(orders, {}, type="placed").metadata == '{"schema_version":1}'
    assert encoded(orders, {}, type="other").metadata == "{}"
    assert encoded(orders, orders.schemas[0](customer="a", total=1)).type == "placed"


def test_a_type_without_a_description():
    with pytest.raises(InvalidEvent, match=r"no events of type 'plaecd'. Did you mean 'placed'\?"):
        encoded(placed(), {}, type="plaecd")
    with pytest.raises(InvalidEvent, match="no events without a type"):
        encoded(placed(), {})
    assert encoded(placed(undescribed="pass"), {"a": 1}, type="other") == BufferRow(
        '{"a":1}', "other", None, None, "{}", None
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": "paid"}, "type is 'paid', and the value is of 'placed' version 1. Leave type out"),
        ({"metadata": {"schema_version": 2}}, "metadata have schema_version=2, and the value is of 'placed' version 1"),
    ],
)
def test_what_contradicts_the_model_is_refused(fields, said):
    orders = placed()
    with pytest.raises(InvalidEvent, match=said):
        encoded(orders, orders.schemas[0](customer="a", total=1), **fields)


@pytest.mark.parametrize("version", [0, "1", True, 1.5])
def test_a_version_is_a_whole_number(version):
    with pytest.raises(InvalidEvent, match="expected a version: 1, 2, 3"):
        encoded(placed(), {}, type="placed", metadata={"schema_version": version})


def test_what_else_is_refused():
    with pytest.raises(InvalidEvent, match="described as JSON, so they have a value and no body"):
        encoded(placed(), body=b"x", type="placed")
    with pytest.raises(InvalidEvent, match="metadata is of type list, expected a mapping"):
        encoded(placed(), {"customer": "a", "total": "1"}, type="placed", metadata=["x"])
    with pytest.raises(InvalidEvent, match="type is 7"):
        encoded(placed(undescribed="pass"), {}, type=7)
    stranger = versions(1, "strange")
    for described in (placed(), topic("plain")):
        with pytest.raises(InvalidEvent, match=r"has no schema 'strange' version 1\. Add the model to its schemas"):
            encoded(described, stranger({}))


def test_a_tombstone_needs_no_schema():
    orders = placed(compact=True)
    assert encoded(orders, None, type="placed", key="7").value == "null"
    assert event("null").data is None


class Everything(BaseModel):
    price: Decimal
    at: datetime
    day: date
    took: timedelta
    number: UUID
    color: Color
    kind: Literal["a", "b"]
    note: str | None
    whole: int
    real: float = Field(allow_inf_nan=False)
    blob: bytes
    line: Line
    lines: list[Line]
    pair: tuple[int, str]
    names: dict[str, Decimal | None]
    either: Line | int


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
LINES = st.builds(Line, sku=TEXTS, quantity=st.integers(1, 10**20))
EVERYTHING = st.fixed_dictionaries(
    {
        "price": DECIMALS,
        "at": st.datetimes(datetime(1900, 1, 1), datetime(9000, 1, 1), timezones=ZONES),
        "day": st.dates(),
        "took": st.timedeltas(timedelta(-(10**6)), timedelta(10**6)),
        "number": st.uuids(),
        "color": st.sampled_from(Color),
        "kind": st.sampled_from(["a", "b"]),
        "note": st.none() | TEXTS,
        "whole": st.integers(-(10**30), 10**30),
        "real": st.floats(allow_nan=False, allow_infinity=False),
        "blob": TEXTS.map(str.encode),
        "line": LINES,
        "lines": st.lists(LINES, max_size=3),
        "pair": st.tuples(st.integers(), TEXTS),
        "names": st.dictionaries(TEXTS, st.none() | DECIMALS, max_size=3),
        "either": LINES | st.integers(),
    }
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first text takes its time
@given(EVERYTHING)
def test_nothing_is_lost_on_the_way(fields):
    with isolate_declarations():
        model = schema("everything")(type("Model", (Everything,), {}))
        value = model(**fields)
        row = encoded(topic("orders", schemas=[model]), value)
        assert received(row).data == value


def test_a_model_with_aliases_and_strict_types_comes_back():
    @schema("placed")
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True)
        order_id: UUID = Field(alias="orderId")
        at: datetime

    value = Strict(order_id=UUID(int=7), at=datetime(2026, 1, 1, tzinfo=UTC))
    row = encoded(topic("orders", schemas=[Strict]), value)
    assert '"orderId":' in row.value
    assert received(row).data == value


def test_data_is_made_once_and_anew_after_forget():
    placed()
    one = event('{"customer": "Ada", "total": 1}')
    assert one.data is one.data
    before = one.data
    one.forget()
    assert one.data == before and one.data is not before


def test_data_as_is_the_model_that_was_asked_for():
    orders = placed()
    one = event('{"customer": "Ada", "total": 1}')
    assert one.data_as(orders.schemas[0]) is one.data
    assert one.data_as(Placed) is one.data  # a class that it inherits


def test_data_as_another_model_says_which_it_is():
    orders = placed(undescribed="pass", compact=True)
    asked = orders.schemas[0]
    other = schema("placed", version=2)(type("Newer", (Placed,), {}))
    one = event('{"customer": "Ada", "total": 1}')
    for read, said in (
        (lambda: one.data_as(other), r"orders/7 of type 'placed' has data of Placed \('placed' version 1\), and Newer"),
        (
            lambda: event("{}", type="x").data_as(asked),
            r"of type 'x' has data of dict, and Placed \('placed' version 1",
        ),
        (lambda: event("null").data_as(asked), r"is a tombstone, so it has no data as Placed"),
        (lambda: received(BufferRow(None, "placed", None, None, "{}", None)).data_as(asked), r"was erased, so it has"),
        (lambda: event('{"total": 1}').data_as(asked), r"doesn't fit: \$\.customer: Field required"),
    ):
        with pytest.raises(UnfitEvent, match=said):
            read()


@settings(deadline=None)
@given(newest=st.integers(1, 8), at=st.integers(1, 8))
def test_a_chain_of_upcasters_runs_each_step_once_and_in_order(newest, at):
    with isolate_declarations():
        for step in range(newest - 1, 0, -1):
            upcaster("placed", step)(lambda value, step=step: [*value, step])
        topic("orders", schemas=[versions(newest)])
        one = event("[]", f'{{"schema_version": {at}}}')
        if at > newest:
            with pytest.raises(UnfitEvent, match=f"its version {at} is newer than {newest}"):
                _ = one.data
        else:
            assert one.data.root == list(range(at, newest))
        assert not list(problems_of_chains())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
# What a step makes of a value, whatever shape that has; some change what they are given.
STEPS: dict[str, Callable[[Any], Any]] = {
    "wrapped": lambda value: {"was": value},
    "listed": lambda value: [value, value],
    "as text": lambda value: json.dumps(value),
    "told": lambda value: {"is": type(value).__name__, "of": [value]},
    "grown": lambda value: (value.append(len(value)), value)[1] if isinstance(value, list) else [value],
    "keyed": lambda value: (value.update(n=len(value)), value)[1] if isinstance(value, dict) else {"n": value},
}


def no_number(value: Any) -> Any:
    return {"total": float("nan")}


def no_json(value: Any) -> Any:
    return {"total": Decimal(1)}


def circle(value: Any) -> Any:
    found: list[Any] = []
    found.append(found)
    return found


def too_deep(value: Any) -> Any:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


def missing(value: Any) -> Any:
    return {}["total"]


NO_JSON = r"what the upcasters of 'placed' made of version {at} is no JSON"
BROKEN: dict[Callable[[Any], Any], str] = {
    no_number: rf"{NO_JSON} \(ValueError\)",
    no_json: rf"{NO_JSON} \(TypeError\)",
    circle: rf"{NO_JSON} \(ValueError\)",
    too_deep: rf"{NO_JSON} \(RecursionError\)",
    missing: r"the upcaster of placed from version {step} failed: KeyError: 'total'",
    lambda value: (
        None
    ): r"the upcaster of placed from version {step} returned None, expected the value of version {next}",
}


@settings(deadline=None)
@given(value=JSON, steps=st.lists(st.sampled_from(list(STEPS)), max_size=8), data=st.data())
def test_a_chain_makes_of_any_value_what_its_steps_make_of_it(value, steps, data):
    at = data.draw(st.integers(1, len(steps) + 1))
    expected = copy.deepcopy(value)
    for step in steps[at - 1 :]:
        expected = STEPS[step](expected)
    with isolate_declarations():
        for version, step in enumerate(steps, 1):
            upcaster("placed", version)(STEPS[step])
        topic("orders", schemas=[versions(len(steps) + 1)])
        one = event(json.dumps(value), f'{{"schema_version": {at}}}')
        assert one.data.root == expected and one.data is one.data
        one.forget()
        assert one.data.root == expected  # the same once more, though steps changed what they were given
        assert one.value == value
        assert not list(problems_of_chains())


@settings(deadline=None)
@given(newest=st.integers(1, 8), known=st.sets(st.integers(1, 8)), steps=st.sets(st.integers(1, 7)))
def test_a_gap_is_named_at_start_up_and_where_an_event_is_read(newest, known, steps):
    known, steps = {newest, *(one for one in known if one <= newest)}, {one for one in steps if one < newest}
    gaps = [one for one in range(min(known | steps), newest) if one not in steps]
    with isolate_declarations():
        for step in steps:
            upcaster("placed", step)(lambda value: value)
        topic("orders", schemas=[versions(one) for one in known])
        said = [problem for _, problem in problems_of_chains()]
        assert [re.findall(r"from version (\d) to (\d)", one) for one in said] == [
            [(str(gap), str(gap + 1))] for gap in gaps
        ]
        for at in range(1, newest + 1):
            one = event('{"a": [1]}', f'{{"schema_version": {at}}}')
            missing = next((step for step in range(at, newest) if step not in steps), None)
            if missing is None:
                assert one.data.root == {"a": [1]}
            else:
                with pytest.raises(UnfitEvent, match=rf"there is no upcaster of 'placed' from version {missing}:"):
                    _ = one.data
                assert at < min(known | steps) or missing in gaps


@settings(deadline=None)
@given(newest=st.integers(2, 8), broken=st.sampled_from(list(BROKEN)), data=st.data())
def test_a_failing_step_is_a_value_that_does_not_fit(newest, broken, data):
    step, at = data.draw(st.integers(1, newest - 1)), data.draw(st.integers(1, newest))
    with isolate_declarations():
        for one in range(1, newest):
            upcaster("placed", one)(broken if one == step else lambda value: value)
        topic("orders", schemas=[versions(newest)])
        read = event('{"total": 1}', f'{{"schema_version": {at}}}')
        if at > step:
            assert read.data.root == {"total": 1}
            return
        said = BROKEN[broken].format(at=at, step=step, next=step + 1)
        for _ in range(2):  # what failed isn't kept
            with pytest.raises(UnfitEvent, match=rf"^Event orders/7 of type 'placed' doesn't fit: {said}\.$"):
                _ = read.data


def test_what_a_chain_makes_must_fit_and_the_field_is_named():
    topic("orders", schemas=[schema("placed", version=3)(type("Model", (Placed,), {}))])
    upcaster("placed", 1)(lambda value: {**value, "lines": [{"sku": "a", "quantity": -value["n"]}]})
    upcaster("placed", 2)(lambda value: {**value, "total": "much"})
    with pytest.raises(UnfitEvent) as raised:
        _ = event('{"customer": "Ada", "n": 7}').data
    assert str(raised.value) == (
        "Event orders/7 of type 'placed' doesn't fit: $.total: Input should be a valid decimal; $.lines[0].quantity: "
        "Input should be greater than 0."
    )


@pytest.mark.parametrize("depth", [1_500, 100_000])
@pytest.mark.parametrize("version", [1, 2])
def test_a_value_that_is_nested_too_deep_does_not_fit(depth, version):
    topic("orders", schemas=[versions(2)])
    upcaster("placed", 1)(lambda value: value)
    with pytest.raises(UnfitEvent, match=r"^Event orders/7 of type 'placed' doesn't fit: .*recursion"):
        _ = event("[" * depth + "]" * depth, f'{{"schema_version": {version}}}').data


@pytest.mark.parametrize("compatibility", ["backward", "none", "forward", "full"])
def test_a_version_that_is_newer_than_all_known_is_read_where_that_was_promised(compatibility):
    topic("orders", schemas=[schema("placed")(type("Model", (Placed,), {}))], compatibility=compatibility)
    newer = event('{"customer": "Ada", "total": 1, "currency": "EUR"}', '{"schema_version": 7}')
    other = event('{"customer": "Ada", "currency": "EUR"}', '{"schema_version": 7}')
    if compatibility in ("forward", "full"):
        assert newer.data.total == 1
        with pytest.raises(UnfitEvent, match=r"doesn't fit: \$\.total: Field required"):
            _ = other.data
        return
    for one in (newer, other):
        with pytest.raises(UnfitEvent, match="its version 7 is newer than 1, which is the newest one here"):
            _ = one.data


def test_an_event_without_a_version_is_of_the_first():
    topic("orders", schemas=[versions(2)])
    upcaster("placed", 1)(lambda value: {**value, "currency": "EUR"})
    one = event('{"total": 1}')
    assert one.data.root == {"total": 1, "currency": "EUR"}
    assert one.value == {"total": 1}


def test_an_older_version_is_checked_by_its_model_or_by_what_it_becomes():
    orders = topic("orders", schemas=[schema("placed", version=2)(type("Model", (Placed,), {}))])
    upcaster("placed", 1)(lambda value: {"customer": value["name"], "total": value["total"]})
    encoded(orders, {"name": "Ada", "total": 1}, type="placed", metadata={"schema_version": 1})
    with pytest.raises(InvalidEvent, match="the upcaster of placed from version 1 failed: KeyError: 'name'"):
        encoded(orders, {"customer": "Ada", "total": 1}, type="placed", metadata={"schema_version": 1})


def test_older_code_reads_newer_events_where_that_is_declared():
    topic("orders", schemas=[versions(1)], compatibility="forward")
    assert event("[1]", '{"schema_version": 2}').data.root == [1]


def test_what_a_reader_is_told():
    topic("orders", schemas=[versions(3)])
    upcaster("placed", 2)(lambda value: None)
    for metadata, said in (
        (
            "{}",
            r"Event orders/7 of type 'placed' doesn't fit: there is no upcaster of 'placed' from version 1: declare",
        ),
        ('{"schema_version": 2}', r"placed from version 2 returned None, expected the value of version 3"),
        ('{"schema_version": "2"}', r"its metadata have a schema_version that is no whole number"),
    ):
        with pytest.raises(UnfitEvent, match=said):
            _ = event("{}", metadata).data
    with pytest.raises(UnfitEvent, match="describes no events of type 'other'"):
        _ = event("{}", type="other").data
    with pytest.raises(UnfitEvent, match="it has a body"):
        _ = received(BufferRow(None, "placed", None, b"x", "{}", None)).data
    topic("plain")
    with pytest.raises(Invalid, match="topic 'plain' describes none"):
        _ = event("{}", of="plain").data


def test_an_erased_event_has_no_data_and_a_type_that_may_pass_has_its_value():
    placed(undescribed="pass")
    assert received(BufferRow(None, "placed", None, None, '{"erased": 1}', None)).data is None
    assert event('{"a": 1}', type="other").data == {"a": 1}


def test_wrong_declarations_are_named():
    class Bare:
        pass

    class Undecorated(Placed):
        pass

    base = schema("placed")(type("Base", (Placed,), {}))
    wrong = topic(
        "orders",
        schemas=[Undecorated, schema("x")(Bare), schema("", version=0)(type("Odd", (Placed,), {})), base, base],
        schema_check="maybe",
        undescribed="no",
        compatibility="some",
    )
    said = "\n".join(wrong.problems())
    for part in (
        "Undecorated'> in schemas, which says no type",
        "Bare is no model of pydantic 2",
        "has the type ''",
        "has version=0, expected a whole number from 1 on",
        "has two schemas of 'placed' version 1",
        "schema_check='maybe', expected 'strict' or 'warn' or 'off'",
        "undescribed='no', expected 'refuse' or 'pass'",
        "compatibility='some', expected",
    ):
        assert part in said
    assert list(check_schemas()) == []  # wrong ones are told once, by the topic
    with pytest.raises(TypeError, match="is for classes"):
        schema("x")(7)
    with pytest.raises(TypeError, match="is for functions"):
        upcaster("x", 1)(7)


def test_a_class_that_inherits_a_model_is_another_one():
    base = schema("placed")(type("Base", (Placed,), {}))
    assert declarations.schema_of(type("Child", (base,), {})) is None
    assert declarations.schema_of(7) is None


def test_models_that_lose_something_are_named():
    class Secretive(BaseModel):
        inner: SecretStr
        other: str = Field(serialization_alias="a", validation_alias="b")

    topic("orders", schemas=[schema("placed")(Secretive)])
    said = [problem for _, problem in problems_of_schemas()]
    assert said == [
        "Secretive.inner is a secret of pydantic's, which is written as asterisks, so no reader would get it. Declare "
        "it as a text, and name it in MASKED_FIELDS.",
        "Secretive writes the field 'a', and reads it under another name. Give it one alias, instead of a "
        "serialization_alias and a validation_alias.",
    ]
    [first, _] = check_schemas()
    assert first.id == "django_events.E017" and __file__ in first.hint


def test_bytes_that_would_come_back_as_others_are_named():
    class Inner(BaseModel):
        model_config = ConfigDict(ser_json_bytes="base64")
        blob: bytes | None = None

    class Outer(BaseModel):
        model_config = ConfigDict(val_json_bytes="hex")  # it has none itself
        inner: dict[str, list[Inner]] = {}
        again: "Outer | None" = None

    class Both(BaseModel):
        model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
        blob: bytes

    topic("orders", schemas=[schema("outer")(Outer), schema("both")(Both)])
    assert [problem for _, problem in problems_of_schemas()] == [
        "Inner writes bytes as 'base64' and reads them as 'utf8'. Set ser_json_bytes and val_json_bytes in its "
        "model_config to the same."
    ]
    value = Both(blob=b"\xff\x00")
    assert received(encoded(declarations.registry.get("orders"), value)).data == value


def test_bytes_that_are_no_text_are_refused_with_the_way_out():
    class Blob(BaseModel):
        blob: bytes

    orders = topic("orders", schemas=[schema("blob")(Blob)])
    with pytest.raises(InvalidEvent, match=r"can't be written as JSON: it has bytes that are no UTF-8\. Set ser_json_"):
        encoded(orders, Blob(blob=b"\xff"))


def test_a_model_without_a_schema_of_its_own_is_refused():
    class Stranger(BaseModel):
        customer: str

    orders = placed()
    child = type("Child", (orders.schemas[0],), {})(customer="Ada", total=1)
    for described in (orders, topic("passing", schemas=orders.schemas, undescribed="pass"), topic("plain")):
        of = rf"The value for topic '{described.name}' is a"
        with pytest.raises(
            InvalidEvent, match=rf"{of} \S+Stranger, a model that has no @schema of its own\. Decorate it"
        ):
            encoded(described, Stranger(customer="Ada"), type="placed")
        with pytest.raises(InvalidEvent, match=rf"{of} Child, .* own: that of 'placed' version 1 is of the class that"):
            encoded(described, child)


def test_a_type_and_version_is_one_model_everywhere():
    shared = versions(1)
    topic("orders", schemas=[shared])
    topic("bills", schemas=[shared])
    assert not list(problems_of_schemas())
    topic("others", schemas=[versions(1)])
    [(_, problem)] = problems_of_schemas()
    assert "'placed' version 1 is described by two models" in problem


def test_a_model_that_is_no_json_schema_is_named():
    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        what: Bare

    topic("orders", schemas=[schema("placed")(Odd)])
    [(_, problem)] = problems_of_schemas()
    assert problem.startswith("Odd can't be written as a JSON Schema: PydanticInvalidForJsonSchema: ")


class Bare:
    pass


def test_chains_are_whole():
    topic("orders", schemas=[versions(1), versions(4)])
    for kind, step in (("placed", 2), ("placed", 4), ("plaecd", 1), ("placed", 0), ("placed", "1")):
        upcaster(kind, step)(lambda value: value)
    said = "\n".join(problem for _, problem in problems_of_chains())
    for part in (
        "An upcaster of 'placed' is from version 0",
        "An upcaster of 'placed' is from version '1'",
        "An upcaster is of type 'plaecd', which no topic describes. Did you mean 'placed'?",
        "The upcaster of placed from version 4 leads to version 5, which no topic describes: the newest one is 4",
        "No upcaster of 'placed' leads from version 1 to 2",
        "No upcaster of 'placed' leads from version 3 to 4",
    ):
        assert part in said
    assert {one.id for one in check_upcasters()} == {"django_events.E018"}


def test_two_upcasters_for_one_step_are_named():
    topic("orders", schemas=[versions(2)])
    upcaster("placed", 1)(lambda value: value)
    upcaster("placed", 1)(lambda value: value)
    [(_, problem)] = problems_of_chains()
    assert problem.startswith("Upcaster 'placed from version 1' is declared twice: ")


def test_old_versions_may_be_forgotten_from_the_first_on():
    topic("orders", schemas=[versions(4)])
    upcaster("placed", 3)(lambda value: value)
    assert not list(problems_of_chains())


def test_the_ticks_of_clocks_fit():
    orders = placed()
    orders.every("0 3 * * *", type="placed", value={"total": 1})
    orders.every("0 3 * * *", type="other")
    orders.every("0 3 * * *", type="placed", name="right", value={"customer": "a", "total": 1})
    said = [problem for _, problem in problems_of_clocks()]
    assert len(said) == 2
    assert "Clock 'orders.placed' has a value that doesn't fit 'placed' version 1" in said[0]
    assert "Clock 'orders.other': Topic 'orders' describes no events of type 'other'" in said[1]
