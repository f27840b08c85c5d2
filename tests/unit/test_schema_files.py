"""Schemas as files: written, compared, and rendered for others. No database."""

import json
import os
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from pydantic import BaseModel, Field

from django_events import consumer, declarations, schema, topic, upcaster
from django_events.contracts import cloudevents
from django_events.contracts.asyncapi import document
from django_events.contracts.files import changes, left_over, path_of, write
from django_events.exceptions import Refused
from django_events.outward.bodies import written as message_of
from django_events.received import ReceivedEvent
from django_events.testing import isolate_declarations
from testproject.shop.contracts import OrderPaid, OrderPlaced, OrderPlacedBefore

pytestmark = pytest.mark.requirement("X9")


@pytest.fixture(autouse=True)
def isolated():
    with isolate_declarations():
        for registry in (
            declarations.registry,
            declarations.consumers,
            declarations.clocks,
            declarations.upcasters,
        ):
            for one in list(registry):
                registry.discard(one)
        yield


class Line(BaseModel):
    sku: str


class Placed(BaseModel):
    """An order was placed."""

    customer: str
    card: str = Field(examples=["4111"])
    lines: list[Line] = []


class Wider(Placed):
    note: str | None = None


class Narrower(Placed):
    currency: str


def placed(model: type[BaseModel], version: int = 1, **options: Any) -> declarations.DeclaredTopic:
    described = schema("order.placed", version=version)(type("Placed", (model,), {"__doc__": model.__doc__}))
    for one in list(declarations.registry):
        declarations.registry.discard(one)
    return topic("orders", schemas=[described], **options)


def kinds(folder: Any, *topics: declarations.DeclaredTopic) -> list[str]:
    return [f"{one.kind} {one.version} {one.field}".strip() for one in changes(folder, topics)]


def run(*arguments: str) -> tuple[int, str]:
    """What `manage.py events schemas` prints, and its exit code."""
    from io import StringIO

    out = StringIO()
    try:
        call_command("events", "schemas", *arguments, stdout=out)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_a_file_for_each_version_that_reads_the_same_each_time(tmp_path):
    orders = placed(Placed)
    [path] = write(tmp_path, [orders])

    assert path == tmp_path / "orders" / "order.placed.v1.json"
    text = path.read_text(encoding="utf-8")
    assert text.startswith('{\n  "$defs": {\n    "Line": {') and text.endswith("}\n")
    said = json.loads(text)
    assert (said["x-event-type"], said["x-event-version"], said["required"]) == (
        "order.placed",
        1,
        ["card", "customer"],
    )
    assert write(tmp_path, [orders]) == []
    assert changes(tmp_path, [orders]) == []
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_masked_fields_are_marked(tmp_path):
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["CARD"]}):
        [path] = write(tmp_path, [placed(Placed)])
    properties = json.loads(path.read_text(encoding="utf-8"))["properties"]
    assert properties["card"]["x-masked"] is True and "x-masked" not in properties["customer"]


def test_names_of_types_are_quoted_in_names_of_files(tmp_path):
    odd = schema("../a b/ü")(type("Odd", (Placed,), {}))
    [path] = write(tmp_path, [topic("orders", schemas=[odd])])
    assert path == path_of(tmp_path, "orders", "../a b/ü", 1) and path.parent == tmp_path / "orders"
    assert changes(tmp_path, declarations.registry) == []


def test_changes_are_named_by_what_they_need(tmp_path):
    assert kinds(tmp_path, placed(Placed)) == ["not written 1"]
    write(tmp_path, [placed(Placed)])
    assert kinds(tmp_path, placed(Wider)) == ["changed 1"]
    assert kinds(tmp_path, placed(Narrower)) == ["incompatible 1 $.currency"]
    assert kinds(tmp_path, placed(Narrower, compatibility="forward")) == ["changed 1"]
    assert kinds(tmp_path, placed(Narrower, compatibility="none")) == ["changed 1"]


def test_an_incompatible_change_is_not_written_but_by_force(tmp_path):
    [path] = write(tmp_path, [placed(Placed)])
    before = path.read_text(encoding="utf-8")
    with pytest.raises(
        Refused, match=r"(?s)backward: \$\.currency: is required.*Declare a new version with an upcaster"
    ):
        write(tmp_path, [placed(Narrower)])
    assert path.read_text(encoding="utf-8") == before
    assert write(tmp_path, [placed(Narrower)], force=True) == [path]
    assert changes(tmp_path, declarations.registry) == []


def test_a_new_version_needs_an_upcaster_and_leaves_the_old_file(tmp_path):
    write(tmp_path, [placed(Placed)])
    orders = placed(Narrower, version=2)
    assert kinds(tmp_path, orders) == ["not written 2", "no upcaster 1"]
    upcaster("order.placed", 1)(lambda value: {**value, "currency": "EUR"})
    assert kinds(tmp_path, orders) == ["not written 2"]
    write(tmp_path, [orders])
    assert sorted(one.name for one in (tmp_path / "orders").iterdir()) == [
        "order.placed.v1.json",
        "order.placed.v2.json",
    ]
    assert changes(tmp_path, [orders]) == []


def test_forward_a_new_version_is_read_by_the_code_of_the_old_one(tmp_path):
    class Shorter(BaseModel):
        customer: str

    write(tmp_path, [placed(Placed)])
    upcaster("order.placed", 1)(lambda value: value)
    assert kinds(tmp_path, placed(Shorter, version=2, compatibility="full")) == [
        "not written 2",
        "incompatible 2 $.card",
    ]
    assert kinds(tmp_path, placed(Shorter, version=2)) == ["not written 2"]


def test_what_is_not_declared_any_more_is_named(tmp_path):
    write(tmp_path, [placed(Placed, version=2)])
    assert kinds(tmp_path, placed(Placed)) == ["not written 1", "gone 2"]
    declarations.registry.discard(next(iter(declarations.registry)))
    [one] = left_over(tmp_path)
    assert "no app declares this topic" in str(one)
    assert left_over(tmp_path / "nothing") == []


def test_a_file_that_is_none_is_named(tmp_path):
    orders = placed(Placed)
    [path] = write(tmp_path, [orders])
    path.write_text("<<<<<<< HEAD", encoding="utf-8")
    with pytest.raises(Refused, match=r"order\.placed\.v1\.json can't be read: .*Take it from the repository again"):
        changes(tmp_path, [orders])


def test_a_folder_that_is_none_is_named(tmp_path):
    (tmp_path / "orders").write_text("", encoding="utf-8")
    with pytest.raises(Refused, match="can't be written: "):
        write(tmp_path, [placed(Placed)])


def test_the_command_in_a_pipeline(tmp_path):
    placed(Placed)
    folder = ("--folder", str(tmp_path))
    code, said = run("check", *folder)
    assert code == 1 and "orders: 'order.placed' version 1: it has no file" in said
    assert run("write", *folder) == (0, f"Written: {tmp_path}/orders/order.placed.v1.json\n")
    assert run("write", *folder) == (0, f"Nothing to write: {tmp_path} has all schemas as they are.\n")
    assert run("check", *folder) == (0, f"1 schema as in {tmp_path}.\n")
    placed(Narrower)
    code, said = run("check", "--format", "json", *folder)
    found = json.loads(said)
    assert (code, found["fits"]) == (1, False)
    [change] = found["changes"]
    assert (change["kind"], change["field"]) == ("incompatible", "$.currency")
    code, said = run("check", *folder)
    assert "needs a new version and an upcaster" in said
    with pytest.raises(CommandError, match="Nothing was written") as raised:
        run("write", *folder)
    assert raised.value.returncode == 1
    assert run("write", "--force", *folder)[0] == 0
    assert run("show")[1].split()[:3] == ["topic", "type", "version"]
    [row] = json.loads(run("show", "orders", "--format", "json")[1])
    assert (row["type"], row["version"], row["compatibility"]) == ("order.placed", 1, "backward")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "plain"], 1, "Topic 'plain' describes no events: declare topic"),
        (["check", "--from", "7"], 2, "they go with check --against-log"),
        (["check", "--against-log", "--from", "7"], 2, "--from is about the ids of one topic: name it"),
        (["write", "--against-log"], 2, "--against-log goes with check"),
        (["show", "oders"], 2, "Did you mean 'orders'"),
    ],
)
def test_what_the_command_refuses(arguments, code, said):
    placed(Placed)
    topic("plain")
    with pytest.raises(CommandError, match=said) as raised:
        run(*arguments)
    assert raised.value.returncode == code


def test_without_schemas_there_is_nothing_to_show():
    assert run("show") == (0, "No topic describes its events. Declare schemas: topic(…, schemas=[…]).\n")


def test_the_command_refuses_what_can_not_be_described():
    topic("orders", schemas=[schema("a", version=2)(type("A", (Placed,), {})), schema("a")(type("B", (Placed,), {}))])
    with pytest.raises(CommandError, match=r"No upcaster of 'a' leads from version 1 to 2.*manage.py check"):
        run("check")


def test_the_catalog_is_an_asyncapi_document():
    placed(Placed)

    @consumer("orders", name="billing")
    def bill(event: ReceivedEvent) -> None:
        """Write an invoice.

        And more."""

    found = document(declarations.registry, title="Shop", version="2026-11")
    assert (found["asyncapi"], found["info"]) == ("3.0.0", {"title": "Shop", "version": "2026-11"})
    name = "order.placed.v1"
    assert found["channels"]["orders"]["messages"] == {name: {"$ref": f"#/components/messages/{name}"}}
    assert found["operations"] == {
        "consume.orders.billing": {
            "action": "receive",
            "channel": {"$ref": "#/channels/orders"},
            "title": "billing",
            "summary": "Write an invoice.",
        },
        "publish.orders": {"action": "send", "channel": {"$ref": "#/channels/orders"}},
    }
    message = found["components"]["messages"][name]
    assert (message["name"], message["summary"]) == ("order.placed", "An order was placed.")
    assert message["payload"]["schema"] == {"$ref": f"#/components/schemas/{name}"}
    lines = found["components"]["schemas"][name]["properties"]["lines"]
    assert lines["items"] == {"$ref": f"#/components/schemas/{name}.Line"}
    assert f"{name}.Line" in found["components"]["schemas"]
    references_resolve(found, found)
    assert json.loads(run("catalog", "--title", "Shop", "--release", "2026-11")[1]) == found


def asyncapi_schema() -> Any:
    """AsyncAPI's own, which isn't copied to here: `npm install -g --prefix .venv @asyncapi/specs` puts it there."""
    for folder in (f"{sys.prefix}/lib/node_modules", *os.environ.get("NODE_PATH", "").split(os.pathsep)):
        path = Path(folder, "@asyncapi/specs/schemas/3.0.0.json")
        if folder and path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    return pytest.skip("AsyncAPI's schema is not installed: npm install -g --prefix .venv @asyncapi/specs")


class Tree(BaseModel):
    """A model with itself in it, and with what else has definitions and alternatives."""

    at: datetime
    total: Decimal | None = None
    sort: Literal["a", "b"] = "a"
    children: "list[Tree]" = []
    by_name: dict[str, Line | int] = {}
    pair: tuple[int, str] | None = None


@pytest.mark.parametrize("of", ["the shop", "each kind of field", "odd names", "nothing"])
def test_the_catalog_fits_the_schema_of_asyncapi(of):
    validator = pytest.importorskip("jsonschema").Draft7Validator(asyncapi_schema())
    if of == "the shop":
        topics = [topic("orders", schemas=[OrderPlaced, OrderPlacedBefore, OrderPaid], undescribed="pass")]
        consumer("orders", name="billing")(print)
    elif of == "each kind of field":
        topics = [topic("trees", schemas=[schema("tree")(Tree)]), topic("orders", schemas=[schema("wide")(Wider)])]
        consumer("trees", "orders", name="both")(print)
    else:
        named = schema("ä / #~1 {x}")(type("Odd", (Placed,), {}))
        topics = [topic("odd.name-1_x", schemas=[named])] if of == "odd names" else []
    found = json.loads(json.dumps(document(topics, title="Shop", version="1")))
    assert [(one.json_path, one.message) for one in validator.iter_errors(found)] == []
    references_resolve(found, found)


def references_resolve(part: Any, root: Any) -> None:
    for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        references_resolve(one, root)
    if isinstance(part, dict) and isinstance(part.get("$ref"), str):
        found = root
        for step in part["$ref"].removeprefix("#/").split("/"):
            found = found[step]


def received(value: str | None, *, body: bytes | None = None, metadata: str = "{}") -> ReceivedEvent:
    when = datetime(2026, 3, 1, 12, tzinfo=UTC).isoformat()
    return ReceivedEvent(
        "orders", (7, 0, 7, "order.placed", "k ü", value, body, metadata, when, when), database="default"
    )


@pytest.mark.requirement("P10")
def test_a_cloudevent_has_the_version_of_the_schema():
    event = received('{"card": "4111", "total": 1}', metadata='{"schema_version": 2}')
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]}):
        assert cloudevents.structured(event) == {
            "specversion": "1.0",
            "id": "orders/7",
            "source": "/orders",
            "type": "order.placed",
            "time": "2026-03-01T12:00:00Z",
            "subject": "k ü",
            "schemaversion": "2",
            "data": {"card": "•••", "total": 1},
        }
    headers, body = cloudevents.binary(event)
    assert (headers["ce-schemaversion"], headers["ce-subject"]) == ("2", "k%20%C3%BC")
    assert json.loads(body) == {"card": "4111", "total": 1}
    assert json.loads(message_of(event, "json").body)["schema_version"] == 2
    assert json.loads(message_of(event, "cloudevent").body) == cloudevents.structured(event)
    assert message_of(event, "cloudevent_binary").headers == headers


@pytest.mark.requirement("P10")
@pytest.mark.parametrize("metadata", ["{}", '{"schema_version": "2"}', '{"schema_version": true}'])
def test_a_cloudevent_without_a_version_has_none(metadata):
    assert "schemaversion" not in cloudevents.attributes(received("{}", metadata=metadata))
    assert "schema_version" not in json.loads(message_of(received("{}", metadata=metadata), "json").body)
