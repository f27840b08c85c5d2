"""Publishers keep to the schemas of a topic: what an event is named by them, and whether its value fits.

    value, type, version, check = described(topic, OrderPlaced(…), body, "", None)
    if check is None or check('{"customer": "Ada"}'):
        metadata = stamped("{}", version)

What is checked is the text that is going to be stored, so it is what every reader gets.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from django_events.contracts.contract import VERSION, Contract
from django_events.contracts.misfits import Misfit, of_unwritable
from django_events.declarations import DeclaredSchema, DeclaredTopic, schema_of
from django_events.drafts import UNSET, Unset
from django_events.exceptions import InvalidEvent

logger = logging.getLogger("django_events.contracts")


class Described(NamedTuple):
    """What is published of an event: its version, unless its metadata say one, and what its value must fit as JSON."""

    value: Any
    type: str
    version: int | None
    check: Callable[[str], bool] | None  # returns whether it fits, where what doesn't is published all the same


def described(topic: DeclaredTopic, value: Any, body: bytes | Unset, type: str, metadata: Any) -> Described:
    """Name an event of a topic that has schemas; InvalidEvent if it can't be one of its events."""
    contract: Contract = topic.contract
    schema = contract.by_model.get(value.__class__)
    if schema is not None:
        return _of_model(contract, schema, value, type, metadata)
    refuse_strange_model(topic, value)
    newest = contract.newest.get(type) if isinstance(type, str) else None
    if newest is None:
        if topic.undescribed == "refuse" and topic.schema_check != "off":
            _complain(topic, type, contract.undescribed(type))
        return Described(value, type, None, None)
    if value is None and topic.compact:  # a tombstone
        return Described(value, type, None, None)
    if value is UNSET:
        if body is not UNSET and topic.schema_check != "off":
            _complain(topic, type, f"Events of type {type!r} are described as JSON, so they have a value and no body.")
        return Described(value, type, None, None)
    given = _given(metadata, type)
    if given is None:
        return Described(value, type, newest, _check(contract, type, newest))
    return Described(value, type, None, _check(contract, type, given))


def stamped(metadata: str, version: int) -> str:
    """Metadata, as JSON, with a version. Of two that they have then, PostgreSQL keeps the last one."""
    said = f'"{VERSION}":{version}}}'
    return f"{{{said}" if metadata == "{}" else f"{metadata[:-1]},{said}"


def refuse_strange_model(topic: DeclaredTopic, value: Any) -> None:
    """InvalidEvent for an instance of a model that the topic doesn't list, or that says no type."""
    model = value.__class__
    if (schema := schema_of(model)) is not None:
        raise InvalidEvent(f"Topic {topic.name!r} has no schema {schema}. Add the model to its schemas.")
    if callable(getattr(model, "model_dump_json", None)):
        inherited = next((found for base in model.__mro__ if (found := schema_of(base)) is not None), None)
        why = "" if inherited is None else f": that of {inherited} is of the class that it inherits"
        raise InvalidEvent(
            f"The value for topic {topic.name!r} is a {model.__qualname__}, a model that has no @schema of its own"
            f"{why}. Decorate it, and add it to the schemas of the topic, or publish value.model_dump(mode='json') "
            "with a type."
        )


def _of_model(contract: Contract, schema: DeclaredSchema, value: Any, type: str, metadata: Any) -> Described:
    topic = contract.topic
    if type not in ("", schema.type):
        raise InvalidEvent(f"type is {type!r:.60}, and the value is of {schema}. Leave type out: the model says it.")
    given = _given(metadata, schema.type)
    if given is not None and given != schema.version:
        raise InvalidEvent(f"metadata have {VERSION}={given}, and the value is of {schema}. Leave it out.")
    try:
        plain = value.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error")
    except ValueError as error:
        why = of_unwritable(error, value.__class__)
        said = f"The value of {schema} for topic {topic.name!r} can't be written as JSON: {why}."
        raise InvalidEvent(said) from None  # its own text has the value in it
    return Described(plain, schema.type, schema.version, _check(contract, schema.type, schema.version))


def _check(contract: Contract, type: str, version: int) -> Callable[[str], bool] | None:
    return None if contract.topic.schema_check == "off" else partial(_fits, contract, type, version)


def _fits(contract: Contract, type: str, version: int, text: str) -> bool:
    try:
        contract.check(type, version, text)
    except Misfit as misfit:
        topic = contract.topic
        said = f"The value doesn't fit {type!r} version {version} of topic {topic.name!r}: {misfit}."
        _complain(topic, type, said, misfit.__cause__)
        return False
    return True


def _complain(topic: DeclaredTopic, type: str, said: str, cause: BaseException | None = None) -> None:
    if topic.schema_check == "strict":
        raise InvalidEvent(said) from cause
    logger.warning("Published although: %s", said, extra={"topic": topic.name, "event_type": type})


def _given(metadata: Any, type: str) -> int | None:
    """The version that the publisher says itself."""
    if not isinstance(metadata, Mapping) or (given := metadata.get(VERSION)) is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidEvent(
            f"metadata have {VERSION}={given!r:.60} for an event of type {type!r}, expected a version: 1, 2, 3 …"
        )
    return given
