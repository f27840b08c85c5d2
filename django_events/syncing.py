"""After `migrate`, and after every flush of a test database, what is declared becomes rows and tables."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core.management.base import CommandError
from django.db import connections, router
from django.db.migrations import Migration

from django_events import models
from django_events.consuming import registration
from django_events.exceptions import EventsError
from django_events.log import topics

TABLES = {model._meta.db_table for model in vars(models).values() if hasattr(model, "_meta")}


def sync_after_migrate(sender: AppConfig, *, using: str, **options: Any) -> None:
    """The receiver of post_migrate. After `migrate django_events zero` there are no tables: nothing to do."""
    if _is_here(using):
        try:
            _tell(sync(using), **options)
        except EventsError as error:
            raise CommandError(str(error)) from error


def sync_topics_before_migrate(
    sender: AppConfig, *, using: str, plan: Sequence[tuple[Migration, bool]], **options: Any
) -> None:
    """The receiver of pre_migrate: a migration may add a trigger that publishes to a topic that is as new.

    It does nothing where tables of ours are to be changed first; then topics come afterwards.
    """
    if not any(migration.app_label == sender.label for migration, _ in plan) and _is_here(using):
        with suppress(EventsError):  # which is told after the migrations
            _tell(topics.sync(using), **options)


def sync(using: str) -> list[str]:
    """Topics first, then the consumers that read them; returns a line for each change."""
    return topics.sync(using) + registration.sync(using)


def _tell(changes: Sequence[str], *, verbosity: int = 1, stdout: Any = None, **options: Any) -> None:
    write = print if stdout is None else stdout.write
    for change in changes:
        if verbosity >= 1:
            write(f"  {change}")


def _is_here(using: str) -> bool:
    if not router.allow_migrate_model(using, models.Topic) or connections[using].vendor != "postgresql":
        return False
    return TABLES.issubset(connections[using].introspection.table_names())
