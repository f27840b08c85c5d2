"""Projections whose model can't be kept or rebuilt, or is in another database than events."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DEFAULT_DB_ALIAS, router

from django_events import models
from django_events.declarations import DeclaredProjection, consumers
from django_events.models.buffer import writable


@register(Tags.models)
def check_projections(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    kept: dict[str, DeclaredProjection[Any]] = {}
    for projection in consumers:
        if not isinstance(projection, DeclaredProjection):
            continue
        hint = f"It is declared at {projection.declared_at}."
        problems = list(projection.problems_of_model())
        for problem in problems:
            yield Error(problem, hint=hint, id="django_events.E015")
        if problems:
            continue
        model: Any = projection.model
        table = model._meta.db_table
        if (other := kept.setdefault(table, projection)) is not projection and other.name != projection.name:
            yield Error(
                f"Projections {other.name!r} and {projection.name!r} are into the same table, {table}: a rebuild of "
                "one would lose what the other one put there.",
                hint=hint,
                id="django_events.E015",
            )
        if referring := _referring(model):
            yield checks.Warning(
                f"Projection {projection.name!r} can't be rebuilt, because rows of {model._meta.label} are referred to "
                f"by {', '.join(referring)}.",
                hint=f"Refer to the key by value, or with db_constraint=False. {hint}",
                id="django_events.W009",
            )
        for using in writable(), router.db_for_write(model) or DEFAULT_DB_ALIAS:
            if not router.allow_migrate_model(using, model) or not router.allow_migrate_model(using, models.Consumer):
                yield Error(
                    f"Projection {projection.name!r} is into {model._meta.label}, and the rows of that are not in the "
                    f"database {using!r} beside events: an event and what it changes are one transaction.",
                    hint=f"Route the model and the app 'django_events' to one database. {hint}",
                    id="django_events.E016",
                )
                break


def _referring(model: Any) -> list[str]:
    """The foreign keys of other tables, or of its own, that the database keeps to the rows of a model."""
    relations = [one.field for one in model._meta.related_objects if not one.many_to_many]
    kept = [str(field) for field in relations if getattr(field, "db_constraint", False)]
    through = [field.remote_field.through._meta.label for field in model._meta.many_to_many]
    return sorted({*kept, *through})
