"""A model as a JSON Schema: what events of its type may have as their value.

Keys are sorted, so that a change of one field is a change of its lines. Fields that `MASKED_FIELDS` hides are marked.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_args

from django_events.declarations import DeclaredSchema
from django_events.masking import is_masked

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPE, VERSION_OF, MASKED = "x-event-type", "x-event-version", "x-masked"


def rendered(schema: DeclaredSchema, model: type[Any]) -> dict[str, Any]:
    """The JSON Schema of what is taken as the value of an event, with its type and version."""
    described = json_schema(model, "validation")
    marked: dict[str, Any] = _marked({"$schema": DIALECT, TYPE: schema.type, VERSION_OF: schema.version, **described})
    return marked


def json_schema(model: type[Any], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """What pydantic says of a model, and of its decimals that their texts are no others."""
    described: dict[str, Any] = model.model_json_schema(mode=mode, by_alias=True, schema_generator=_generator())
    return described


@cache
def _generator() -> type[Any]:
    # Imported where a model is there, so pydantic is too.
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

    class ExactGenerator(GenerateJsonSchema):
        """As pydantic's, but that a text which stands for a decimal says so: "x" is a text, too."""

        def decimal_schema(self, schema: Any) -> JsonSchemaValue:
            described = super().decimal_schema(schema)
            for one in described.get("anyOf", [described]):
                if one.get("type") == "string":
                    one["format"] = "decimal"
            return described

    return ExactGenerator


def as_text(rendered: Mapping[str, Any]) -> str:
    """The same for a file: the same schema is the same text."""
    return json.dumps(rendered, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def problems_of_model(model: type[Any]) -> Iterator[str]:
    """Yield a sentence for each reason why what a model writes can't be read by it."""
    name = model.__name__
    try:
        taken, written = json_schema(model, "validation"), json_schema(model, "serialization")
    except Exception as error:
        said = str(error).split("\n", 1)[0]
        yield f"{name} can't be written as a JSON Schema: {type(error).__name__}: {said}."
        return
    yield from _secrets(taken, name)
    yield from _bytes(model, set())
    read = {**taken.get("$defs", {}), name: taken}
    for of, part in {**written.get("$defs", {}), name: written}.items():
        for field, about in part.get("properties", {}).items():
            if of in read and field not in read[of].get("properties", {}) and not about.get("readOnly"):
                yield (
                    f"{of} writes the field {field!r}, and reads it under another name. Give it one alias, instead of "
                    "a serialization_alias and a validation_alias."
                )


def _bytes(model: Any, seen: set[Any]) -> Iterator[str]:
    """Yield a sentence for each model that writes bytes in another way than it reads them: they come back as others."""
    seen.add(model)
    config: Mapping[str, Any] = getattr(model, "model_config", {})
    writes, reads = (config.get(name, "utf8") for name in ("ser_json_bytes", "val_json_bytes"))
    fields: Mapping[str, Any] = getattr(model, "model_fields", {})
    parts = [part for field in fields.values() for part in _parts(field.annotation)]
    if writes != reads and bytes in parts:
        yield (
            f"{model.__name__} writes bytes as {writes!r} and reads them as {reads!r}. Set ser_json_bytes and "
            "val_json_bytes in its model_config to the same."
        )
    for part in parts:
        if part not in seen and isinstance(getattr(part, "model_fields", None), Mapping):
            yield from _bytes(part, seen)


def _parts(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    if inner := get_args(annotation):
        for one in inner:
            yield from _parts(one)
    elif isinstance(annotation, type):
        yield annotation


def _marked(part: Any) -> Any:
    if isinstance(part, list):
        return [_marked(one) for one in part]
    if not isinstance(part, dict):
        return part
    marked = {name: _marked(one) for name, one in part.items()}
    properties = marked.get("properties")
    if isinstance(properties, dict):
        for name, one in properties.items():
            if is_masked(name) and isinstance(one, dict):
                one[MASKED] = True
    if isinstance(marked.get("required"), list):
        marked["required"] = sorted(marked["required"])
    return marked


def _secrets(part: Any, name: str) -> Iterator[str]:
    """Yield a sentence for each field whose text is replaced by asterisks when it is written."""
    if isinstance(part, list):
        for one in part:
            yield from _secrets(one, name)
    if not isinstance(part, dict):
        return
    if part.get("writeOnly") is True and part.get("format") == "password":
        yield (
            f"{name} is a secret of pydantic's, which is written as asterisks, so no reader would get it. Declare it "
            "as a text, and name it in MASKED_FIELDS."
        )
    for key, one in part.items():
        if key in ("properties", "$defs") and isinstance(one, dict):
            for inner, about in one.items():
                yield from _secrets(about, inner if key == "$defs" else f"{name}.{inner}")
        elif key not in ("default", "examples", "enum", "const"):
            yield from _secrets(one, name)
