"""The topics, their events and who publishes and consumes them as one AsyncAPI 3.0 document: a catalog for people.

Tools for AsyncAPI make pages, mocks and clients of it. Payloads are the same JSON Schemas as in the files.
"""

import inspect
import re
from collections.abc import Iterable
from typing import Any

from django_events.contracts.contract import VERSION
from django_events.contracts.rendering import DIALECT, TYPE, VERSION_OF, rendered
from django_events.declarations import DeclaredSchema, DeclaredTopic, consumers

FORMAT = "application/schema+json;version=draft-2020-12"
_DEFINITIONS = "#/$defs/"


def document(topics: Iterable[DeclaredTopic], *, title: str, version: str) -> dict[str, Any]:
    """The AsyncAPI document of these topics."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for topic in sorted(topics, key=lambda one: one.name):
        described = list(topic.contract)
        for schema, model in described:
            name = _key(schema)
            messages[name] = _message(schema, model, name)
            schemas |= _schemas(schema, model, name)
        names = [_key(schema) for schema, _ in described]
        channels[topic.name] = {
            "address": topic.name,
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        }
        channel = {"$ref": f"#/channels/{topic.name}"}
        operations[f"publish.{topic.name}"] = {"action": "send", "channel": channel}
        for consumer in consumers:
            if topic.name in consumer.topics:
                operations[f"consume.{topic.name}.{consumer.name}"] = {
                    "action": "receive",
                    "channel": channel,
                    "title": consumer.name,
                    **_summary(consumer),
                }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": dict(sorted(operations.items())),
        "components": {"messages": dict(sorted(messages.items())), "schemas": dict(sorted(schemas.items()))},
    }


def _message(schema: DeclaredSchema, model: type[Any], name: str) -> dict[str, Any]:
    return {
        "name": schema.type,
        "title": f"{schema.type}, version {schema.version}",
        **_summary(model),
        "contentType": "application/json",
        "headers": {
            "type": "object",
            "properties": {VERSION: {"const": schema.version}},
            "description": "The metadata of the event.",
        },
        "payload": {"schemaFormat": FORMAT, "schema": {"$ref": f"#/components/schemas/{name}"}},
    }


def _schemas(schema: DeclaredSchema, model: type[Any], name: str) -> dict[str, Any]:
    """The schema and its definitions, each under a name that no other schema's definitions have."""
    whole = {key: value for key, value in rendered(schema, model).items() if key not in (TYPE, VERSION_OF)}
    definitions = whole.pop("$defs", {})
    moved = {_part(name, key): _moved(value, name) for key, value in definitions.items()}
    return {name: {"$schema": DIALECT, **_moved(whole, name)}, **moved}


def _moved(part: Any, name: str) -> Any:
    """A part of a schema whose references lead to where its definitions are moved."""
    if isinstance(part, list):
        return [_moved(one, name) for one in part]
    if isinstance(part, dict):
        return {key: _reference(one, name) if key == "$ref" else _moved(one, name) for key, one in part.items()}
    return part


def _reference(to: Any, name: str) -> Any:
    if isinstance(to, str) and to.startswith(_DEFINITIONS):
        return f"#/components/schemas/{_part(name, to.removeprefix(_DEFINITIONS))}"
    return to


def _part(name: str, definition: str) -> str:
    return f"{name}.{_plain(definition)}"


def _key(schema: DeclaredSchema) -> str:
    return f"{_plain(schema.type)}.v{schema.version}"


def _plain(name: str) -> str:
    """A name as keys of components may be; another name is another key."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda found: f"_x{ord(found[0]):x}_", name)


def _summary(one: Any) -> dict[str, str]:
    """The first line of what its author wrote about it."""
    written = inspect.cleandoc(vars(one).get("__doc__") or "").split("\n", 1)[0]
    return {"summary": written} if written else {}
