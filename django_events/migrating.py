"""What migrations do beside Django's own operations: `CreateTopic` is for yours, the rest for those of django_events.

class Migration(migrations.Migration):
    dependencies = [("django_events", "0002_drop_logs")]
    operations = [CreateTopic("pages"), …]
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from django.apps import apps
from django.db import connections, migrations, router, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import Migration
from django.db.migrations.autodetector import MigrationAutodetector, OperationDependency
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.operations.fields import FieldOperation
from django.db.migrations.operations.models import ModelOperation, RenameModel
from django.db.migrations.state import ProjectState
from pgtrigger.migrations import AddTrigger, RemoveTrigger

from django_events import declarations, models, sql
from django_events.exceptions import EventsError, NotReady
from django_events.log import topics

SQL = sql.beside(__name__)

LABEL = "django_events"
PUBLISHES = "django_events_open("  # every trigger of a capture() calls it
_to_tell: dict[str, list[str]] = {}  # an operation prints nothing: what it made is told when all is migrated
TABLES = {model._meta.db_table for model in vars(models).values() if hasattr(model, "_meta")}


class OnPostgreSQL(migrations.Migration):
    """A migration that does nothing in a database of another vendor, which may be beside PostgreSQL."""

    def apply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        if schema_editor.connection.vendor == "postgresql":
            return super().apply(project_state, schema_editor, collect_sql)
        return self.mutate_state(project_state, preserve=False)

    def unapply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        if schema_editor.connection.vendor == "postgresql":
            return super().unapply(project_state, schema_editor, collect_sql)
        return project_state


def made_by_operations(using: str) -> list[str]:
    """A line for each topic that operations made in a database since this was last asked."""
    return _to_tell.pop(using, [])


class _CreateTopics(Operation):
    """Make topics that aren't there yet. The way back leaves them: they may have events by then."""

    category = OperationCategory.PYTHON
    reversible = True
    reduces_to_sql = False

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """The models stay what they are."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        using = schema_editor.connection.alias
        if schema_editor.connection.vendor != "postgresql" or not router.allow_migrate(
            using, LABEL, model_name="topic"
        ):
            return
        if (LABEL, "topic") not in to_state.models:
            raise NotReady(
                f"{self.describe()} of {app_label}: the tables of django_events are not there yet. Add to the "
                f"dependencies of the migration: ({LABEL!r}, {_newest()!r})"
            )
        # With the columns of this moment: later migrations may add some.
        made = topics.create_missing(using, self.wanted(), apps=to_state.apps)
        _to_tell.setdefault(using, []).extend(made)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Nothing: see above."""

    def wanted(self) -> list[declarations.DeclaredTopic]:
        raise NotImplementedError


class CreateTopic(_CreateTopics):
    """Make a topic, if it isn't there, before the triggers that publish to it and the migrations that set them off.

    As an app declares it, or, if none does any more, with these options of `topic()`.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self.options = options

    def wanted(self) -> list[declarations.DeclaredTopic]:
        declared = [topic for topic in declarations.registry if topic.name == self.name]
        return declared[:1] or [declarations.DeclaredTopic(name=self.name, **self.options)]

    def describe(self) -> str:
        return f"Create topic {self.name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"topic_{self.name}".replace("-", "_")


class CreateTopics(_CreateTopics):
    """All that are declared: the last operation of the last migration of django_events.

    So they are there before another app's migration or receiver of post_migrate writes what is captured. What they
    are refused for is told after the migrations.
    """

    def database_forwards(self, *args: Any, **kwargs: Any) -> None:
        with suppress(EventsError):
            super().database_forwards(*args, **kwargs)

    def wanted(self) -> list[declarations.DeclaredTopic]:
        declarations.registry.check()
        return list(declarations.registry)

    def describe(self) -> str:
        return "Create the topics that are declared"


class _AnyChange(OperationDependency):
    """A dependency on all that the same makemigrations does to a model and its fields."""


class CapturesComeLater(MigrationAutodetector):
    """Lets makemigrations write what a trigger of capture() depends on: the tables of django_events, and its own table.

    That of a proxy may be another app's, and have new columns. Otherwise the names of apps decide which comes first in
    a new database.
    """

    generated_operations: dict[str, list[Any]]
    altered_triggers: dict[tuple[str, str], dict[str, list[Any]]]  # pgtrigger's

    def check_dependency(self, operation: Operation, dependency: Any) -> bool:  # its stubs say tuples
        if not isinstance(dependency, _AnyChange):
            return super().check_dependency(operation, dependency)
        if isinstance(operation, FieldOperation):
            return operation.model_name_lower == dependency.model_name_lower
        if isinstance(operation, RenameModel):
            return operation.new_name_lower == dependency.model_name_lower
        return isinstance(operation, ModelOperation) and operation.name_lower == dependency.model_name_lower

    def add_operation(
        self,
        app_label: str,
        operation: Any,
        dependencies: Iterable[Any] | None = None,  # its stubs say tuples
        beginning: bool = False,
    ) -> None:
        if app_label != LABEL and self._makes_captures(app_label, operation):
            table = self.to_state.apps.get_model(app_label, operation.model_name)._meta.concrete_model._meta
            dependencies = [
                *(dependencies or ()),
                OperationDependency(LABEL, "topic", None, OperationDependency.Type.CREATE),
                _AnyChange(table.app_label, table.model_name, None, OperationDependency.Type.CREATE),
            ]
        super().add_operation(app_label, operation, dependencies, beginning)

    def _makes_captures(self, app_label: str, operation: Operation) -> bool:
        """Also if it removes the triggers before: in a migration of its own, it would leave the table without any."""
        added: list[Any] = []
        if isinstance(operation, AddTrigger):
            added = [operation.trigger]
        elif isinstance(operation, RemoveTrigger):
            added = self.altered_triggers.get((app_label, operation.model_name), {}).get("added_triggers", [])
        return any(PUBLISHES in str(trigger.install_sql) for trigger in added)

    def _sort_migrations(self) -> None:
        """Triggers are the last ones of their app, because all that is behind them waits for the table as well."""
        super()._sort_migrations()  # type: ignore[misc]  # its stubs don't have it
        for operations in self.generated_operations.values():
            operations.sort(key=lambda operation: any(isinstance(it, _AnyChange) for it in operation._auto_deps))


def teach_makemigrations() -> None:
    """Add to what detects changes, as pgtrigger does, which may come before us or after us."""
    from django.core.management.commands import makemigrations, migrate

    commands: list[Any] = [makemigrations, migrate]  # Django wants them to have the same
    detector = makemigrations.Command.autodetector
    if not issubclass(detector, CapturesComeLater):
        taught = type("MigrationAutodetector", (CapturesComeLater, detector), {})
        for command in commands:
            command.MigrationAutodetector = command.Command.autodetector = taught


def are_there(using: str) -> bool:
    """Whether a database has our tables."""
    if not router.allow_migrate_model(using, models.Topic) or connections[using].vendor != "postgresql":
        return False
    return TABLES.issubset(connections[using].introspection.table_names())


def were_made_without_migrations(using: str) -> bool:
    """Whether Django made the tables from the models alone, as tests without migrations do: then the log is a table."""
    [[is_plain]] = sql.fetch(using, SQL.log_is_plain)
    return bool(is_plain)


def make_by_migrations(using: str) -> None:
    """Make tables that Django made from the models alone once more, by our migrations, without writing that down.

    What the models can't say is only there: the partitioned log, functions, identities, how tables are vacuumed.
    """
    connection = connections[using]
    for table in sorted(TABLES):
        [[has_rows]] = sql.fetch(using, SQL.has_rows.on(table=table))
        if has_rows:
            raise NotReady(
                f"The tables of django_events in the database {using!r} were made without its migrations, and "
                f"{table} has rows. Nothing was changed. Make the database anew, with the migrations of "
                "django_events."
            )
    with transaction.atomic(using):
        sql.run(using, SQL.drop_tables.on(tables=sorted(TABLES)))
    state = ProjectState()
    for migration in _ours():
        with connection.schema_editor(atomic=migration.atomic) as editor:
            state = migration.apply(state, editor)


def _ours() -> Iterator[Migration]:
    package = import_module(f"{apps.get_app_config(LABEL).name}.migrations")
    # As Django's loader does it: what begins so is a module beside the migrations, and none of them.
    names = (module.name for module in iter_modules(package.__path__) if module.name[0] not in "_~")
    for name in sorted(names):
        yield import_module(f"{package.__name__}.{name}").Migration(name, LABEL)


def _newest() -> str:
    return [migration.name for migration in _ours()][-1]
