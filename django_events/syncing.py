"""After `migrate`, and after every flush of a test database, what is declared becomes rows and tables."""

from typing import Any

from django.apps import AppConfig
from django.core.management.base import CommandError
from django.db import connections, router

from django_events import models
from django_events.consuming import registration
from django_events.exceptions import EventsError
from django_events.log import topics

TABLES = {model._meta.db_table for model in vars(models).values() if hasattr(model, "_meta")}


def sync_after_migrate(sender: AppConfig, *, using: str, verbosity: int = 1, stdout: Any = None, **kwargs: Any) -> None:
    """The receiver of post_migrate. After `migrate django_events zero` there are no tables: nothing to do."""
    if not router.allow_migrate_model(using, models.Topic) or connections[using].vendor != "postgresql":
        return
    if not TABLES.issubset(connections[using].introspection.table_names()):
        return
    write = print if stdout is None else stdout.write
    try:
        changes = sync(using)
    except EventsError as error:
        raise CommandError(str(error)) from error
    for change in changes:
        if verbosity >= 1:
            write(f"  {change}")


def sync(using: str) -> list[str]:
    """Topics first, then the consumers that read them; returns a line for each change."""
    return topics.sync(using) + registration.sync(using)
