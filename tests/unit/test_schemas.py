"""Schemas of events, before a database has a part in it: declared, checked at publish, upcast and read."""

import logging
import traceback
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, field_validator

from django_events import UNSET, checks, declarations, schema, topic, upcaster
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
    assert list(checks.check_schemas()) == []  # wrong ones are told once, by the topic
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
    [first, _] = checks.check_schemas()
    assert first.id == "django_events.E017" and __file__ in first.hint


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
    assert {one.id for one in checks.check_upcasters()} == {"django_events.E018"}


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
