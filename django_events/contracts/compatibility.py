"""What a change of a JSON Schema breaks, field by field.

    for broken in breaks(old, new, "backward"):
        print(broken)        # backward: $.currency: is required, and events of before may lack it …

Backward: the newer schema takes every event that the older one allows. Forward: the other way round. The comparison
knows what pydantic writes; a keyword that it doesn't know, and that differs, counts as broken rather than as fine.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Json = Mapping[str, Any]
Direction = Literal["backward", "forward"]

_SAY_NOTHING = {
    *("$defs", "$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"),
    *("readOnly", "writeOnly", "discriminator"),
}
# What is looked at below, by name.
_KNOWN = {
    *("type", "properties", "required", "additionalProperties", "items", "prefixItems", "enum", "const", "anyOf"),
    *("oneOf", "allOf", "$ref", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength"),
    *("maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems"),
}
_NAMED = "x-django-events-definition"  # which one an alternative comes from
_LOWER, _UPPER = ("minLength", "minItems", "minProperties"), ("maxLength", "maxItems", "maxProperties")


class Break(NamedTuple):
    """One thing that a reader of one schema can't bear of an event of the other."""

    direction: Direction
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.direction}: {self.path}: {self.what}"


def breaks(old: Json, new: Json, compatibility: str) -> list[Break]:
    """What a change from an old schema to a new one breaks: "backward", "forward", "full", or "none"."""
    found: list[Break] = []
    if compatibility in ("backward", "full"):
        comparison = _Comparison("backward", reader=new, writer=old)
        found += comparison.broken(new, old, "$")
    if compatibility in ("forward", "full"):
        comparison = _Comparison("forward", reader=old, writer=new)
        found += comparison.broken(old, new, "$")
    return list(dict.fromkeys(found))


class _Comparison:
    """Whether a reader takes all that a writer may write, with the definitions of both."""

    def __init__(self, direction: Direction, *, reader: Json, writer: Json) -> None:
        self.direction, self.reader, self.writer = direction, reader, writer
        self._comparing: list[tuple[Any, Any]] = []  # pairs of definitions

    @property
    def _which(self) -> str:
        return "events of before" if self.direction == "backward" else "events of the new schema"

    @property
    def _who(self) -> str:
        return "the new schema" if self.direction == "backward" else "the schema of before"

    def broken(self, reader: Any, writer: Any, path: str) -> list[Break]:
        """What the reader's part of a schema refuses of what the writer's part allows."""
        takes, gives = _alternatives(reader, self.reader), _alternatives(writer, self.writer)
        return [one for given in gives for one in self._refused(takes, given, path)]

    def _refused(self, takes: Sequence[Json], given: Json, path: str) -> list[Break]:
        """What none of the reader's alternatives takes of one of the writer's."""
        tried = [self._compared_once(one, given, path) for one in takes]
        if not tried:
            return [self._break(path, "no value is taken any more")]
        if not all(tried):
            return []
        alike = [found for one, found in zip(takes, tried, strict=True) if _kind(one) == _kind(given)]
        if not alike and len(takes) > 1:
            expected = " or ".join(dict.fromkeys(map(_kind, takes)))
            return [self._break(path, f"{_any(given)} is not taken, only {expected}")]
        return min(alike or tried, key=len)

    def _compared_once(self, takes: Json, given: Json, path: str) -> list[Break]:
        """The differences of two alternatives; none while the same two are compared: a model may have itself in it."""
        pair = (takes.get(_NAMED), given.get(_NAMED))
        if pair in self._comparing:
            return []
        if None not in pair:
            self._comparing.append(pair)
        try:
            return list(self._differences(takes, given, path))
        finally:
            if None not in pair:
                self._comparing.pop()

    def _differences(self, takes: Json, given: Json, path: str) -> Iterator[Break]:
        yield from self._of_kind(takes, given, path)
        if _kind(takes) not in ("any", _kind(given)) and (_kind(takes), _kind(given)) != ("number", "integer"):
            return
        yield from self._of_values(takes, given, path)
        yield from self._of_bounds(takes, given, path)
        yield from self._of_object(takes, given, path)
        yield from self._of_list(takes, given, path)
        yield from self._of_others(takes, given, path)

    def _of_kind(self, takes: Json, given: Json, path: str) -> Iterator[Break]:
        expected, found = _kind(takes), _kind(given)
        if expected not in ("any", found) and (expected, found) != ("number", "integer"):
            yield self._break(path, f"{_any(given)} is not taken, only {expected}")

    def _of_values(self, takes: Json, given: Json, path: str) -> Iterator[Break]:
        expected, found = _values(takes), _values(given)
        if expected is None:
            return
        if found is None:
            yield self._break(path, f"only {_shown(expected)} are taken, and {self._which} may have others")
        elif gone := [value for value in found if value not in expected]:
            yield self._break(path, f"{_shown(gone)} {'is' if len(gone) == 1 else 'are'} not taken")

    def _of_bounds(self, takes: Json, given: Json, path: str) -> Iterator[Break]:
        if _values(given) is not None and _values(takes) is not None:
            return  # they were compared one by one
        for name in (*_LOWER, *_UPPER):
            bound, other = takes.get(name), given.get(name)
            if bound is None or (name in _LOWER and bound <= 0):
                continue
            if other is None or (other < bound if name in _LOWER else other > bound):
                yield self._break(path, f"{name} is {bound}, and {self._which} have {_or_none(other)}")
        for inclusive, exclusive, sign in (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)):
            bound, other = (_bound(one, inclusive, exclusive, sign) for one in (takes, given))
            if bound is not None and (other is None or other < bound):
                names = (inclusive, exclusive)
                yield self._break(path, f"{_named(takes, names)}, and {self._which} have {_named(given, names)}")
        if takes.get("uniqueItems") and not given.get("uniqueItems"):
            yield self._break(path, f"items are unique, and those of {self._which} may not be")

    def _of_object(self, takes: Json, given: Json, path: str) -> Iterator[Break]:
        if _kind(takes) != "object":
            return
        expected, found = takes.get("properties", {}), given.get("properties", {})
        others, further = takes.get("additionalProperties", True), given.get("additionalProperties", True)
        # Of a model that says nothing, other fields are not meant: nothing reads them. A dict is all others.
        has_others = further is not False and ("additionalProperties" in given or "properties" not in given)
        for name, written in found.items():
            if name in expected:
                yield from self.broken(expected[name], written, f"{path}.{name}")
            elif others is False:
                yield self._break(f"{path}.{name}", f"is not taken any more, and {self._which} may have it")
            elif others is not True:
                yield from self.broken(others, written, f"{path}.{name}")
        for name in takes.get("required", ()):
            if name not in given.get("required", ()):
                why = f"is required, and {self._which} may lack it"
                advice = " Give it a default." if self.direction == "backward" else ""
                yield self._break(f"{path}.{name}", f"{why}.{advice}")
        if others is False and (has_others or (found and further is not False)):
            yield self._break(path, f"other fields are refused, and {self._which} may have some")
        elif isinstance(others, Mapping) and has_others:
            yield from self.broken(others, further, f"{path}.*")
        for name in sorted(expected.keys() - found.keys()):
            if has_others:
                yield from self.broken(expected[name], further, f"{path}.{name}")

    def _of_list(self, takes: Json, given: Json, path: str) -> Iterator[Break]:
        if _kind(takes) != "array":
            return
        expected, found = takes.get("prefixItems", ()), given.get("prefixItems", ())
        rest, further = takes.get("items", True), given.get("items", True)
        closed = given.get("maxItems", len(found) + 1) <= len(found)  # there is no rest
        for index in range(len(found) if closed else max(len(expected), len(found))):
            takes_here = expected[index] if index < len(expected) else rest
            given_here = found[index] if index < len(found) else further
            yield from self.broken(takes_here, given_here, f"{path}[{index}]")
        if not closed:
            yield from self.broken(rest, further, f"{path}[*]")

    def _of_others(self, takes: Json, given: Json, path: str) -> Iterator[Break]:
        """Keywords that are compared as they are: a pattern, a format, whatever comes."""
        if _values(given) is not None and _values(takes) is not None:
            return
        for name in sorted(takes.keys() - _KNOWN - _SAY_NOTHING):
            if not name.startswith("x-") and takes[name] != given.get(name):
                expected, found = _shown([takes[name]]), _shown([given[name]]) if name in given else "none"
                yield self._break(path, f"{name} is {expected}, and {self._which} have {found}")

    def _break(self, path: str, what: str) -> Break:
        return Break(self.direction, path, what)


def _alternatives(part: Any, root: Json) -> list[Json]:
    """A part of a schema as a list of what a value may be, each without a reference and of one type."""
    if part is False:
        return []
    if part is True:
        return [{}]
    if "$ref" in part:
        beside = {name: value for name, value in part.items() if name != "$ref"}
        return _alternatives({**_followed(part["$ref"], root), **beside, _NAMED: part["$ref"]}, root)
    merged = dict(part)
    for one in merged.pop("allOf", ()):
        inner = {**_followed(one["$ref"], root), _NAMED: one["$ref"]} if "$ref" in one else one
        merged = {**inner, **merged}
    for name in ("anyOf", "oneOf"):
        if name in merged:
            rest = {n: v for n, v in merged.items() if n != name and n not in _SAY_NOTHING}
            return [{**one, **rest} for inner in merged[name] for one in _alternatives(inner, root)]
    if isinstance(merged.get("type"), list):
        return [{**merged, "type": one} for one in merged["type"]]
    if "type" not in merged and len(values := _values(merged) or []) > 1:
        return [{**{n: v for n, v in merged.items() if n != "enum"}, "const": value} for value in values]
    return [merged]


def _followed(reference: str, root: Json) -> Json:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found[step.replace("~1", "/").replace("~0", "~")]
    return found  # type: ignore[no-any-return]


def _kind(part: Json) -> str:
    kind = part.get("type")
    if isinstance(kind, str):
        return kind
    values = _values(part)
    if values is None:
        return "any"
    kinds = dict.fromkeys(map(_kind_of_value, values))
    return next(iter(kinds)) if len(kinds) == 1 else "any"


def _any(part: Json) -> str:
    kind = _kind(part)
    return "any value" if kind == "any" else kind


def _kind_of_value(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}.get(type(value), "object")


def _values(part: Json) -> list[Any] | None:
    """The only values that are possible; None if any is."""
    if "const" in part:
        return [part["const"]]
    found: list[Any] | None = part.get("enum")
    return found


def _bound(part: Json, inclusive: str, exclusive: str, sign: int) -> tuple[float, int] | None:
    """How far a number may go: a greater one is narrower. The second part is 1 where the bound itself is left out."""
    bounds = [(sign * part[name], at) for name, at in ((inclusive, 0), (exclusive, 1)) if part.get(name) is not None]
    return max(bounds, default=None)


def _named(part: Json, names: Sequence[str]) -> str:
    return " and ".join(f"{name} is {part[name]}" for name in names if part.get(name) is not None) or "none"


def _or_none(bound: Any) -> str:
    return "none" if bound is None else str(bound)


def _shown(values: Sequence[Any]) -> str:
    return ", ".join(json.dumps(value, ensure_ascii=False)[:60] for value in values)
