"""Migrations that would break the code of the last release are refused, and told how to do it."""

import pytest
from django.contrib.postgres.operations import AddConstraintNotValid, AddIndexConcurrently, RemoveIndexConcurrently
from django.db import models
from django.db.migrations import Migration, operations
from django.db.migrations.loader import MigrationLoader
from django.db.models.functions import Now

from tests.upgrades.released import versions
from tests.upgrades.rules import APP, problems

EXEMPT = ["0001_initial", "0002_drop_logs"]  # the first release has them: no code is older


@pytest.fixture(scope="module")
def loader():
    return MigrationLoader(None)


@pytest.fixture
def state(loader):
    return loader.project_state((APP, EXEMPT[-1]))


@pytest.mark.requirement("P12")
def test_no_migration_breaks_the_code_of_the_last_release(loader):
    names = sorted(name for app, name in loader.disk_migrations if app == APP)
    assert names[:2] == EXEMPT
    found = []
    for name in names[2:]:
        migration = loader.get_migration(APP, name)
        before = loader.project_state(list(migration.dependencies), at_end=True)
        found += problems(migration, before, released=versions())
    assert found == []


def planted(*made, atomic=True, **reasons):
    migration = Migration("0009_planted", APP)
    migration.operations = list(made)
    migration.atomic = atomic
    migration.reasons = {key.replace("_", " ", 1).replace("__", "."): value for key, value in reasons.items()}
    return migration


def told(state, *made, atomic=True, released=(), **reasons):
    return problems(planted(*made, atomic=atomic, **reasons), state, released=released)


REFUSED = {
    "a column goes": (operations.RemoveField("consumer", "delay"), "two releases: in this one stop using it"),
    "a table goes": (operations.DeleteModel("Sample"), "in this one stop using it, drop it in the next one"),
    "a column is renamed": (operations.RenameField("consumer", "delay", "pause"), "write both, then drop the old"),
    "a table is renamed": (operations.RenameModel("Sample", "Reading"), "Keep its name with Meta.db_table"),
    "another table": (operations.AlterModelTable("sample", "samples"), "Keep it."),
    "NOT NULL without a default": (
        operations.AddField("delivery", "note", models.TextField(default="")),
        "Give it a db_default, or null=True.",
    ),
    "a default that is computed": (
        operations.AddField("delivery", "noted_at", models.DateTimeField(db_default=Now())),
        "Use a constant, or null=True.",
    ),
    "a unique column": (
        operations.AddField("delivery", "note", models.TextField(null=True, unique=True)),
        "the index with AddIndexConcurrently",
    ),
    "NULL forbidden": (
        operations.AlterField("bufferedevent", "partition", models.IntegerField()),
        "forbid NULL in the next one",
    ),
    "shorter": (
        operations.AlterField("bufferedevent", "type", models.CharField(max_length=100, db_default="")),
        "Another type writes the whole table anew",
    ),
    "another type": (
        operations.AlterField("position", "attempts", models.BigIntegerField(default=0)),
        "Another type writes the whole table anew",
    ),
    "a default goes": (
        operations.AlterField("bufferedevent", "type", models.CharField(max_length=200)),
        "always fill it in this one, drop it in the next one",
    ),
    "indexed afterwards": (
        operations.AlterField("deadletter", "error", models.TextField(db_index=True)),
        "Use AddIndexConcurrently.",
    ),
    "an index under a lock": (
        operations.AddIndex("deadletter", models.Index(fields=["key"], name="by_key")),
        "Use AddIndexConcurrently in a migration with atomic = False",
    ),
    "an index inside a transaction": (
        AddIndexConcurrently("deadletter", models.Index(fields=["key"], name="by_key")),
        "the migration needs atomic = False",
    ),
    "a rule for all rows": (
        operations.AddConstraint(
            "deadletter", models.CheckConstraint(condition=models.Q(event_id__gt=0), name="positive")
        ),
        "in the next one use AddConstraintNotValid",
    ),
    "a constraint goes": (
        operations.RemoveConstraint("deadletter", "django_events_deadletter_event"),
        "Old code may need it for ON CONFLICT.",
    ),
    "an index goes": (operations.RemoveIndex("deadletter", "django_events_deadletter_key"), "RemoveIndexConcurrently"),
    "SQL without a reason": (operations.RunSQL("SELECT 1", "SELECT 1"), "reasons = {'RunSQL': '…'}"),
    "Python without a reason": (
        operations.RunPython(operations.RunPython.noop, operations.RunPython.noop),
        "reasons = {'RunPython': '…'}",
    ),
    "no way back": (operations.RunSQL("SELECT 1"), "uninstalling goes that way"),
    "gone from the state, and NOT NULL": (
        operations.SeparateDatabaseAndState(state_operations=[operations.RemoveField("position", "handled")]),
        "Let it be null or have a db_default first.",
    ),
    "hidden in another one": (
        operations.SeparateDatabaseAndState(database_operations=[operations.RemoveField("consumer", "delay")]),
        "two releases",
    ),
}


@pytest.mark.parametrize(("operation", "how"), REFUSED.values(), ids=REFUSED)
def test_what_breaks_old_code_is_refused_with_the_way_to_do_it(state, operation, how):
    found = told(state, operation)
    assert found
    assert any(how in message for message in found), found
    assert all(message.startswith("0009_planted: ") for message in found)


ALLOWED = {
    "a table": operations.CreateModel("Fresh", [("id", models.AutoField(primary_key=True))]),
    "a column that may be null": operations.AddField("delivery", "note", models.TextField(null=True)),
    "a column with a default of the database": operations.AddField("delivery", "note", models.TextField(db_default="")),
    "longer": operations.AlterField("bufferedevent", "type", models.CharField(max_length=300, db_default="")),
    "any length": operations.AlterField("bufferedevent", "type", models.TextField(db_default="")),
    "NULL allowed": operations.AlterField("position", "handled", models.BigIntegerField(default=0, null=True)),
    "a rule for new rows": AddConstraintNotValid(
        "deadletter", models.CheckConstraint(condition=models.Q(event_id__gt=0), name="positive")
    ),
    "other words": operations.AlterModelOptions("sample", {"verbose_name": "reading"}),
}


@pytest.mark.parametrize("operation", ALLOWED.values(), ids=ALLOWED)
def test_what_leaves_old_code_alone_is_allowed(state, operation):
    assert told(state, operation) == []


def test_indexes_are_made_and_dropped_beside_the_writers(state):
    made = AddIndexConcurrently("deadletter", models.Index(fields=["key"], name="by_key"))
    assert told(state, made, RemoveIndexConcurrently("deadletter", "by_key"), atomic=False) == []


def test_a_table_of_the_same_migration_may_get_anything(state):
    fresh = operations.CreateModel("Fresh", [("id", models.AutoField(primary_key=True)), ("key", models.TextField())])
    index = operations.AddIndex("fresh", models.Index(fields=["key"], name="by_key"))
    assert told(state, fresh, index) == []


def test_a_reason_in_words_is_enough_where_a_machine_can_not_tell(state):
    operation = operations.RunSQL("SELECT 1", "SELECT 1")
    assert told(state, operation, RunSQL="Changes nothing.") == []


def test_a_removal_needs_a_release_that_no_longer_used_it(state):
    gone = operations.RemoveField("consumer", "delay")
    reason = {"RemoveField_consumer__delay": "unused since 1.1: the trigger reads visible_at"}

    [not_out] = told(state, gone, released=["1.0"], **reason)
    assert "1.1 is not out" in not_out
    [no_version] = told(state, gone, released=["1.0"], RemoveField_consumer__delay="no release needs it")
    assert "has to begin with 'unused since VERSION'" in no_version
    assert told(state, gone, released=["1.0", "1.1"], **reason) == []


def test_a_reason_for_nothing_is_refused(state):
    assert told(state, RemoveField_consumer__delay="unused since 1.0") == [
        "0009_planted: a reason for 'RemoveField consumer.delay', which needs none."
    ]
