"""Topics, consumers, clocks and schemas that can't work as they are declared."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register

from django_events.contracts.chains import problems_of_chains, problems_of_clocks, problems_of_schemas
from django_events.declarations import clocks, consumers, registry
from django_events.exceptions import HandlerNotFound, did_you_mean

TOLD = 5  # topics that a message names


@register(Tags.compatibility)
def check_topics(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [
        Error(problem, hint=f"It is declared at {topic.declared_at}.", id="django_events.E003")
        for topic, problem in registry.problems()
    ]


@register(Tags.compatibility)
def check_consumers(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    topics = {topic.name for topic in registry}
    for consumer, problem in consumers.problems():
        yield Error(problem, hint=f"It is declared at {consumer.declared_at}.", id="django_events.E007")
    for consumer in consumers:
        for name in (*consumer.topics, *filter(None, [consumer.outcomes])):
            if name not in topics:
                yield Error(
                    f"Consumer {consumer.name!r} is of topic {name!r}, which no installed app declares.",
                    hint=f"{did_you_mean(name, topics)} It is declared at {consumer.declared_at}.",
                    id="django_events.E008",
                )
        if consumer.is_for_claims or consumer.derived:  # whether a projection can work is asked below
            continue
        hint = "It will not be served; the other consumers will."
        try:
            handler = consumer.load()
        except HandlerNotFound as error:  # a warning: it stops this consumer, and must not stop the others
            yield checks.Warning(str(error), hint=hint, id="django_events.W002")
            continue
        if isinstance(consumer.handler, str) and (problem := consumer.wrong_handler(handler)):
            problem = f"Consumer {consumer.name!r} has the handler {consumer.handler!r}, {problem}."
            hint = f"Each of its events would fail. It is declared at {consumer.declared_at}."
            yield checks.Warning(problem, hint=hint, id="django_events.W002")


@register(Tags.compatibility)
def check_clocks(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [
        Error(problem, hint=f"It is declared at {clock.declared_at}.", id="django_events.E014")
        for clock, problem in clocks.problems()
    ]


@register(Tags.compatibility)
def check_schemas(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [
        Error(problem, hint=f"It is declared at {declared_at}.", id="django_events.E017")
        for declared_at, problem in (*problems_of_schemas(), *problems_of_clocks())
    ]


@register(Tags.compatibility)
def check_upcasters(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [
        Error(problem, hint=f"It is declared at {declared_at}.", id="django_events.E018")
        for declared_at, problem in problems_of_chains()
    ]


@register(Tags.security, deploy=True)
def check_retention(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    kept = [t.name for t in registry if not any((t.retention, t.retention_events, t.retention_bytes))]
    if kept:
        told = ", ".join(kept[:TOLD]) + (f" and {len(kept) - TOLD} more" if len(kept) > TOLD else "")
        yield checks.Warning(
            f"No retention is declared for {told}: their logs grow until the disk is full.",
            hint="Declare retention=, or add django_events.W006 to SILENCED_SYSTEM_CHECKS if they are kept on purpose.",
            id="django_events.W006",
        )
