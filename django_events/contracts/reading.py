"""The model that the value of an event makes: `event.data`.

A version that is older than the newest one is brought there by upcasters first, each time it is read.
"""

import json
from collections.abc import Mapping
from typing import Any

from django_events.contracts.contract import FIRST, VERSION, Contract
from django_events.contracts.misfits import Misfit
from django_events.declarations import DeclaredTopic, registry, schema_of
from django_events.event_columns import EVENT
from django_events.exceptions import Invalid, UnfitEvent
from django_events.received import ReceivedEvent

_VALUE = EVENT.index("value")


def data_of(event: ReceivedEvent) -> Any:
    """What `event.data` is; UnfitEvent says why an event makes no model."""
    declared = registry.get(event.topic)
    if not declared.schemas:
        raise Invalid(
            f"Event {event.address} has no data, because topic {event.topic!r} describes none: declare "
            f"topic({event.topic!r}, schemas=[…]), or read its value."
        )
    try:
        return read(declared, event)
    except Misfit as misfit:
        raise UnfitEvent(f"Event {event.address} of type {event.type!r} doesn't fit: {misfit}.") from misfit.__cause__


def of_another_model(event: ReceivedEvent, data: Any, model: type[Any]) -> UnfitEvent:
    """Why the data of an event is no instance of a model that was asked for."""
    what, asked = f"Event {event.address} of type {event.type!r}", _named(model)
    if data is None:
        why = "was erased" if event.erased else "is a tombstone"
        return UnfitEvent(f"{what} {why}, so it has no data as {asked}. Look whether event.data is None first.")
    return UnfitEvent(
        f"{what} has data of {_named(type(data))}, and {asked} was asked for. Name the types that the consumer gets, "
        "types=[…], or match event.data, which may be of any model."
    )


def _named(model: type[Any]) -> str:
    schema = schema_of(model)
    return model.__qualname__ if schema is None else f"{model.__qualname__} ({schema})"


def read(topic: DeclaredTopic, event: ReceivedEvent) -> Any:
    """The model of the newest version that an event makes; None for one without a payload. Misfit says why it can't.

    The value itself, where the topic lets types pass that it doesn't describe.
    """
    contract: Contract = topic.contract
    body, text = event.body, event.columns[_VALUE]
    text = text if text is None or isinstance(text, str) else json.dumps(text)
    if text is None and body is None:  # erased
        return None
    if event.type not in contract.newest:
        if topic.undescribed == "pass":
            return event.value
        raise Misfit(contract.undescribed(event.type))
    if text is None:
        raise Misfit("it has a body, and its type is described as JSON")
    if text == "null" and topic.compact:  # a tombstone
        return None
    return contract.read(event.type, _version_of(event.metadata), text)


def is_newer(topic: DeclaredTopic, event: ReceivedEvent) -> bool:
    """Whether an event that can be read has a version that is newer than the newest one here."""
    newest = topic.contract.newest.get(event.type)
    return newest is not None and not event.erased and _version_of(event.metadata) > newest


def _version_of(metadata: Any) -> int:
    """The version that an event says, or the first one where it says none."""
    given = metadata.get(VERSION) if isinstance(metadata, Mapping) else None
    if given is None:  # SQL may write a null
        return FIRST
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise Misfit(f"its metadata have a {VERSION} that is no whole number from 1 on")
    return given
