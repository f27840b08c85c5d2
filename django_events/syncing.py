"""After `migrate`, and after every flush of a test database, what is declared becomes rows and tables."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.apps import AppConfig, apps
from django.core.management.base import CommandError
from django.db.migrations import Migration

from django_events import migrating
from django_events.consuming import registration
from django_events.deriving import rebuilding, rollups
from django_events.exceptions import EventsError
from django_events.log import topics
from django_events.operating import inboxes
from django_events.publishing import clocks


def sync_before_others(sender: AppConfig, *, using: str, **options: Any) -> None:
    """The first receiver of the first post_migrate: others, of any app, may write what is captured.

    What is refused is told when it is our turn.
    """
    if sender is _first_sender() and _is_here(using):
        with suppress(EventsError):
            _tell(topics.sync(using), **options)


def sync_after_migrate(sender: AppConfig, *, using: str, **options: Any) -> None:
    """The receiver of post_migrate. After `migrate django_events zero` there are no tables: nothing to do."""
    if _is_here(using):
        with _told():
            _tell([*migrating.made_by_operations(using), *sync(using)], **options)


def sync_topics_before_migrate(
    sender: AppConfig, *, using: str, plan: Sequence[tuple[Migration, bool]], **options: Any
) -> None:
    """The receiver of pre_migrate: a migration may add a trigger that publishes to a topic that is as new.

    It does nothing where tables of ours are to be changed first; then topics come with the last of these migrations.
    """
    _refuse_to_take_others_along(plan)
    migrating.made_by_operations(using)  # of a migrate that failed in this process, and was undone
    if not any(migration.app_label == sender.label for migration, _ in plan) and _is_here(using):
        with suppress(EventsError):  # which is told after the migrations
            _tell(topics.sync(using), **options)


def sync(using: str) -> list[str]:
    """Topics first, then the tables of roll-ups, consumers, clocks and inboxes; returns a line for each change."""
    return [
        *topics.sync(using),
        *rollups.sync(using),
        *registration.sync(using),
        *rebuilding.drop_stranded(using),
        *clocks.sync(using),
        *inboxes.sync(using),
    ]


def _refuse_to_take_others_along(plan: Sequence[tuple[Migration, bool]]) -> None:
    """Uninstalling us must not drop the tables of an app whose migration depends on ours, for the sake of a trigger."""
    down = [migration for migration, backwards in plan if backwards]
    others = [f"{one.app_label}.{one.name}" for one in down if one.app_label != migrating.LABEL]
    if len(others) not in (0, len(down)):
        raise CommandError(
            f"Going back with django_events would unapply migrations of other apps, and drop what they made: "
            f"{', '.join(sorted(others))}. Nothing was changed. Remove ('django_events', …) from the dependencies of "
            "these migrations, and CreateTopic from their operations, then run it again."
        )


def _first_sender() -> AppConfig | None:
    """The app for which Django sends post_migrate first."""
    return next((config for config in apps.get_app_configs() if config.models_module is not None), None)


def _is_here(using: str) -> bool:
    """Whether a database has our tables; those that Django made from the models alone are made right first."""
    if not migrating.are_there(using):
        return False
    if migrating.were_made_without_migrations(using):
        with _told():
            migrating.make_by_migrations(using)
    return True


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except EventsError as error:
        raise CommandError(str(error)) from error


def _tell(changes: Sequence[str], *, verbosity: int = 1, stdout: Any = None, **options: Any) -> None:
    write = print if stdout is None else stdout.write
    for change in changes:
        if verbosity >= 1:
            write(f"  {change}")
