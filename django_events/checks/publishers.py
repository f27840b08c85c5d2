"""Models that publish, by `@outbox` or `capture()`, what no topic or no database can take."""

from collections.abc import Iterable, Sequence
from typing import Any

import pgtrigger
from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DEFAULT_DB_ALIAS, connections, router

from django_events import models
from django_events.declarations import inboxes, registry
from django_events.exceptions import did_you_mean
from django_events.models.buffer import writable
from django_events.publishing.capture import Capture
from django_events.publishing.model_signals import publishers

OWN_TOPIC = "A mirror has the events of its source only. Give the others a topic of their own."


@register(Tags.models)
def check_outboxes(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    topics = {topic.name for topic in registry}
    for publisher in publishers():
        outbox = publisher.outbox
        for problem in outbox.problems(publisher.model):
            yield Error(problem, obj=publisher.model, id="django_events.E010")
        if outbox.topic not in topics:
            problem = f"An @outbox publishes to topic {outbox.topic!r}, which no installed app declares."
            yield Error(problem, hint=did_you_mean(outbox.topic, topics), obj=publisher.model, id="django_events.E010")
        if problem := _of_mirror("An @outbox", outbox.topic):
            yield Error(problem, hint=OWN_TOPIC, obj=publisher.model, id="django_events.E010")


@register(Tags.models)
def check_captures(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    topics = {topic.name for topic in registry}
    registered: Any = pgtrigger.registered()
    # A capture has several triggers, and is wrong once.
    captures = {(model, id(one.declared)): one for model, one in registered if isinstance(one, Capture)}
    for (model, _), trigger in captures.items():
        for problem in trigger.declared.problems(model):
            yield Error(problem, obj=model, id="django_events.E011")
        if trigger.declared.topic not in topics:
            problem = f"A capture() publishes to topic {trigger.declared.topic!r}, which no installed app declares."
            yield Error(problem, hint=did_you_mean(trigger.declared.topic, topics), obj=model, id="django_events.E011")
        if problem := _of_mirror("A capture()", trigger.declared.topic):
            yield Error(problem, hint=OWN_TOPIC, obj=model, id="django_events.E011")


@register(Tags.models)
def check_databases_of_models(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    registered: Any = pgtrigger.registered()
    declared: dict[tuple[str, type[Any]], None] = {
        **{("An @outbox", publisher.model): None for publisher in publishers()},
        **{("A capture()", model._meta.concrete_model): None for model, one in registered if isinstance(one, Capture)},
    }
    events = writable()
    for what, model in declared:
        using = router.db_for_write(model) or DEFAULT_DB_ALIAS
        vendor = connections[using].vendor
        if using == events or (vendor == "postgresql" and router.allow_migrate_model(using, models.BufferedEvent)):
            continue
        why = f"is {vendor}" if vendor != "postgresql" else "has no tables of django_events by its router"
        yield Error(
            f"{what} publishes in the database that its rows are written to, {using!r}, which {why}.",
            hint=f"Events are written to {events!r}. Route the model there too, or let a router allow the app "
            f"'django_events' in {using!r}, if it is PostgreSQL.",
            obj=model,
            id="django_events.E013",
        )


def _of_mirror(what: str, topic: str) -> str:
    """What to say of something that publishes to a mirror; nothing if the topic is none."""
    mirror = inboxes.mirrors.get(topic)
    if mirror is None:
        return ""
    return f"{what} publishes to topic {topic!r}, which is a mirror of {mirror.source}: nothing can be saved."
