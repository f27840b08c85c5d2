"""What the events of one topic are: which types in which versions, as which models.

contract = registry.get("orders").contract
order = contract.read("order.placed", 1, '{"customer": "Ada"}')
"""

import json
from collections.abc import Callable
from typing import Any

from django_events.contracts.misfits import Misfit, of_error, said
from django_events.declarations import DeclaredSchema, DeclaredTopic, schema_of, upcasters
from django_events.exceptions import did_you_mean
from django_events.masking import hides

VERSION = "schema_version"  # in the metadata
FIRST = 1  # the version of events that say none


class Contract:
    """The schemas of a topic, as readers and publishers look them up."""

    def __init__(self, topic: DeclaredTopic) -> None:
        self.topic = topic
        self.by_model: dict[type[Any], DeclaredSchema] = {}
        self.models: dict[tuple[str, int], type[Any]] = {}
        self.newest: dict[str, int] = {}
        for model in topic.schemas:
            schema = schema_of(model)
            if schema is None or any(schema.problems(model)):  # a system check names it
                continue
            self.by_model[model] = schema
            self.models[schema.type, schema.version] = model
            self.newest[schema.type] = max(schema.version, self.newest.get(schema.type, 0))

    def __iter__(self) -> Any:
        """Each schema with its model, by type and version."""
        return iter(sorted(((schema, model) for model, schema in self.by_model.items()), key=_by_name))

    def check(self, type: str, version: int, text: str) -> None:
        """Raise Misfit unless a value, as JSON, fits the model of this version, or else can be read by the newest."""
        if (model := self.models.get((type, version))) is not None:
            _validated(model, text)
        if model is None or version < self.newest[type]:  # as readers will read it
            self.read(type, version, text)

    def read(self, type: str, version: int, text: str) -> Any:
        """The model of the newest version that a value makes; Misfit says why it makes none."""
        newest = self.newest[type]
        if version > newest and self.topic.compatibility not in ("forward", "full"):
            raise Misfit(
                f"its version {version} is newer than {newest}, which is the newest one here. Deploy the newer code, "
                "or declare compatibility='forward', where older code may read newer events"
            )
        if version < newest:
            try:
                value = json.loads(text)
            except RecursionError:
                raise Misfit("it is nested too deep: maximum recursion depth exceeded") from None
            value = self.upcast(type, version, value)
            try:
                text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                kind = error.__class__.__name__
                raise Misfit(f"what the upcasters of {type!r} made of version {version} is no JSON ({kind})") from None
        return _validated(self.models[type, newest], text)

    def upcast(self, type: str, version: int, value: Any) -> Any:
        """A value of an older version as one of the newest."""
        for at in range(version, self.newest[type]):
            step = upcasters.step(type, at)
            if step is None:
                raise Misfit(
                    f"there is no upcaster of {type!r} from version {at}: declare @upcaster({type!r}, {at}) in an "
                    "app's events.py"
                )
            try:
                value = step.function(value)
            except Exception as error:
                raise Misfit(f"the upcaster of {step.name} failed: {said(error)}") from (None if hides() else error)
            if value is None:
                raise Misfit(f"the upcaster of {step.name} returned None, expected the value of version {at + 1}")
        return value

    def undescribed(self, type: str) -> str:
        """A sentence for an event of a type that no schema has."""
        named = f"of type {type!r}" if type else "without a type"
        return (
            f"Topic {self.topic.name!r} describes no events {named}. {did_you_mean(type, self.newest)} Add a model to "
            "its schemas, or declare undescribed='pass'."
        )


def _by_name(one: tuple[DeclaredSchema, type[Any]]) -> tuple[str, int]:
    return one[0].type, one[0].version


def _validated(model: type[Any], text: str) -> Any:
    validate: Callable[[str], Any] = model.model_validate_json
    try:
        return validate(text)
    except ValueError as error:
        raise of_error(error) from None  # its own text has the value in it
    except Exception as error:  # of a validator of the site's own
        raise Misfit(said(error)) from None
