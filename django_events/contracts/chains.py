"""What is wrong with schemas and upcasters, as all topics have them together: found when Django starts.

An upcaster takes a value one version further, so a chain can't lead in a circle; it can have a gap, or lead nowhere.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from django_events.contracts.contract import FIRST
from django_events.contracts.misfits import Misfit
from django_events.contracts.rendering import problems_of_model
from django_events.declarations import DeclaredSchema, clocks, registry, upcasters
from django_events.exceptions import did_you_mean


def problems_of_schemas() -> Iterator[tuple[str, str]]:
    """Yield a sentence for each model that can't describe events, and where it is declared."""
    described: dict[DeclaredSchema, type[Any]] = {}
    for topic in registry:
        for schema, model in topic.contract:
            if not callable(getattr(model, "model_json_schema", None)):
                continue  # the declaration of the topic is wrong, which is another check's business
            other = described.setdefault(schema, model)
            if other is model:
                yield from ((schema.declared_at, problem) for problem in problems_of_model(model))
            else:
                yield (
                    schema.declared_at,
                    f"{schema} is described by two models, {_named(other)} and {_named(model)}, and upcasters are of a "
                    "type, whatever topic it is in. Share one model, or give one of them a type of its own.",
                )


def problems_of_chains() -> Iterator[tuple[str, str]]:
    """Yield a sentence for each upcaster that can't be used, and for each version that none leads on from."""
    yield from ((upcaster.declared_at, problem) for upcaster, problem in upcasters.problems())
    places: dict[str, str] = {}
    known: defaultdict[str, set[int]] = defaultdict(set)
    for topic in registry:
        for schema, _ in topic.contract:
            known[schema.type].add(schema.version)
            places[schema.type] = schema.declared_at
    usable = [upcaster for upcaster in upcasters if not any(upcaster.problems())]
    for upcaster in usable:
        if upcaster.type not in known:
            yield (
                upcaster.declared_at,
                f"An upcaster is of type {upcaster.type!r}, which no topic describes. "
                f"{did_you_mean(upcaster.type, known)}",
            )
        elif upcaster.version >= max(known[upcaster.type]):
            newest = max(known[upcaster.type])
            yield (
                upcaster.declared_at,
                f"The upcaster of {upcaster.name} leads to version {upcaster.version + 1}, which no topic describes: "
                f"the newest one is {newest}. Declare a model with version={upcaster.version + 1}, or remove it.",
            )
    for kind, versions in known.items():
        steps = {one.version for one in usable if one.type == kind and one.version < max(versions)}
        for version in range(min(versions | steps), max(versions)):
            if version not in steps:
                yield (
                    places[kind],
                    f"No upcaster of {kind!r} leads from version {version} to {version + 1}, so no event of "
                    f"version {version} could be read. Declare @upcaster({kind!r}, {version}).",
                )


def problems_of_clocks() -> Iterator[tuple[str, str]]:
    """Yield a sentence for each clock whose ticks don't fit: the transfer publishes them, and checks nothing."""
    topics = {topic.name: topic for topic in registry}
    for clock in clocks:
        topic = topics.get(clock.topic)
        if topic is None or not topic.schemas or topic.schema_check == "off":
            continue
        if clock.type not in topic.contract.newest:
            if topic.undescribed == "refuse":
                yield clock.declared_at, f"Clock {clock.name!r}: {topic.contract.undescribed(clock.type)}"
            continue
        try:
            topic.contract.check(clock.type, FIRST, json.dumps(clock.value))
        except Misfit as misfit:
            yield (
                clock.declared_at,
                f"Clock {clock.name!r} has a value that doesn't fit {clock.type!r} version {FIRST}, which events "
                f"without a version are: {misfit}.",
            )
        except (TypeError, ValueError):
            continue  # no JSON, which another check says


def _named(model: type[Any]) -> str:
    return f"{model.__module__}.{model.__qualname__}"
