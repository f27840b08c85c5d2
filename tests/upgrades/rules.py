"""What a migration may do while the code of the last release is running.

`migrate` comes first, then the new code, process by process. So for a while old code works on the new schema, and
what it reads, writes and locks has to be there: expand in one release, contract in a later one. A migration may say
why a refused operation is safe after all, in words, beside the operation's name:

    class Migration(migrations.Migration):
        reasons = {"RemoveField delivery.note": "unused since 1.1: its writes stopped there"}

Removals must name the release since which nothing uses them, and that release must be out.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

from django.contrib.postgres.operations import (
    AddConstraintNotValid,
    AddIndexConcurrently,
    RemoveIndexConcurrently,
    ValidateConstraint,
)
from django.db import connection, models
from django.db.migrations import Migration, operations
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from pgtrigger.migrations import AddTrigger, RemoveTrigger

APP = "django_events"
UNUSED_SINCE = re.compile(r"^unused since (\d+(?:\.\d+)*)")

HARMLESS = (
    AddConstraintNotValid,
    AddIndexConcurrently,
    RemoveIndexConcurrently,
    ValidateConstraint,
    operations.AlterModelManagers,
    operations.AlterModelOptions,
    operations.CreateModel,
)
REMOVALS = (operations.RemoveField, operations.DeleteModel, operations.RemoveConstraint, RemoveTrigger)
IN_TWO = "Do it in two releases:"
HOW: dict[type[Operation], str] = {
    operations.RemoveField: f"Old code still names the column. {IN_TWO} in this one stop using it, remove it from the "
    "state only (SeparateDatabaseAndState) and let it be null or have a db_default; drop the column in the next one.",
    operations.DeleteModel: "Old code still uses the table. "
    f"{IN_TWO} in this one stop using it, drop it in the next one.",
    operations.RenameField: "Old code uses the old name. "
    f"{IN_TWO} add the new column and write both, then drop the old.",
    operations.RenameModel: f"Old code uses the old table. Keep its name with Meta.db_table, or {IN_TWO.lower()} "
    "make the new table and write both, then drop the old one.",
    operations.AlterModelTable: "Old code uses the old name of the table. Keep it.",
    operations.AlterUniqueTogether: "Use a UniqueConstraint, on a unique index that was made concurrently.",
    operations.AddIndex: "It keeps writers of the table waiting. Use AddIndexConcurrently in a migration with "
    "atomic = False; on the partitioned log, make it for each segment and attach it.",
    operations.RemoveIndex: "It waits for every reader, and everybody then waits behind it. "
    "Use RemoveIndexConcurrently in a migration with atomic = False.",
    operations.RenameIndex: "Old code may name it in ON CONFLICT, and down again it must have its name. Keep the name.",
    operations.AddConstraint: f"Old code may write what it forbids, and it looks at all rows under a lock. {IN_TWO} "
    "write what fits in this one; in the next one use AddConstraintNotValid, then ValidateConstraint, or for a unique "
    "one an index that was made concurrently.",
    operations.RemoveConstraint: "Old code may need it for ON CONFLICT. "
    f"{IN_TWO} stop naming it, remove it in the next.",
    operations.RunSQL: "What it does to old code can't be told from it. Say so.",
    operations.RunPython: "What it does to old code can't be told from it, nor how long it holds its locks. Say so.",
    AddTrigger: "Old code sets it off as well, and making it locks the table for a moment. Say why that is well.",
    RemoveTrigger: f"Old code relies on it. {IN_TWO} stop needing it, remove it in the next one.",
}


def problems(migration: Migration, before: ProjectState, *, released: Collection[str]) -> list[str]:
    """What is wrong with a migration, each with how to do it; `before` is the state of all apps that it starts from.

    `released` are the versions that are out.
    """
    found: list[str] = []
    state, made = before.clone(), set[str]()
    reasons: dict[str, str] = getattr(migration, "reasons", {})
    used: set[str] = set()
    for operation in migration.operations:
        for part, in_database in _parts(operation):
            told = name(part)
            why = _why_not(part, state, made, in_database=in_database, atomic=migration.atomic)
            if why is not None:
                used.add(told)
                refusal = _refusal(part, reasons.get(told), why, released)
                if refusal is not None:
                    found.append(f"{migration.name}: {told}. {refusal}")
            if in_database and isinstance(part, operations.CreateModel):
                made.add(part.name_lower)
        if not operation.reversible:
            found.append(f"{migration.name}: {name(operation)}. It has no way back, and uninstalling goes that way.")
        operation.state_forwards(APP, state)
    found += [f"{migration.name}: a reason for {told!r}, which needs none." for told in reasons.keys() - used]
    return found


def name(operation: Operation) -> str:
    """By which an operation is called in messages and reasons: 'RemoveField delivery.note'."""
    of: Any = operation
    field = getattr(of, "name", getattr(of, "old_name", None))
    about = [part for part in (getattr(of, "model_name", None), field) if part]
    for named in ("index", "constraint", "trigger"):
        if (one := getattr(of, named, None)) is not None:
            about.append(one.name)
    return " ".join([type(operation).__name__, ".".join(about)]).strip()


def _parts(operation: Operation) -> Iterator[tuple[Operation, bool]]:
    """An operation, or what it consists of; and whether it is done to the database, rather than to the state alone."""
    if isinstance(operation, operations.SeparateDatabaseAndState):
        yield from ((part, True) for part in operation.database_operations)
        yield from ((part, False) for part in operation.state_operations)
    else:
        yield operation, True


def _refusal(operation: Operation, reason: str | None, why: str, released: Collection[str]) -> str | None:
    if reason is None:
        return f"{why} If it is safe, the migration says why: reasons = {{{name(operation)!r}: '…'}}"
    if not isinstance(operation, REMOVALS):
        return None
    since = UNUSED_SINCE.match(reason)
    if since is None:
        return f"{why} Its reason has to begin with 'unused since VERSION', not {reason!r}."
    if since[1] not in released:
        return f"{since[1]} is not out: the code that runs now is older, and uses it. {why}"
    return None


def _why_not(
    operation: Operation, state: ProjectState, made: Collection[str], *, in_database: bool, atomic: bool
) -> str | None:
    """What old code would have against it; None if nothing."""
    model = getattr(operation, "model_name_lower", None) or str(getattr(operation, "model_name", "")).lower()
    if not in_database:
        return _leaves_column(operation, state, model)
    if isinstance(operation, (AddIndexConcurrently, RemoveIndexConcurrently)) and atomic:
        return "It can't be done in a transaction: the migration needs atomic = False."
    if model in made or isinstance(operation, HARMLESS):
        return None
    if isinstance(operation, operations.AddField):
        return _breaks_inserts(operation.field)
    if isinstance(operation, operations.AlterField):
        after = state.clone()
        operation.state_forwards(APP, after)
        return _narrows(*(one.apps.get_model(APP, model)._meta.get_field(operation.name) for one in (state, after)))
    for kind, how in HOW.items():
        if isinstance(operation, kind):
            return how
    return "tests/upgrades/rules.py does not know it. Teach it, or say why it is safe."


def _leaves_column(operation: Operation, state: ProjectState, model: str) -> str | None:
    """In the state only: the column stays, and the new code's INSERT no longer fills it."""
    if not isinstance(operation, operations.RemoveField):
        return None
    field: Any = state.models[APP, model].fields[operation.name]
    if field.null or _has_default(field):
        return None
    return "The column stays, and new code won't fill it. Let it be null or have a db_default first."


def _breaks_inserts(field: "models.Field[Any, Any]") -> str | None:
    if field.many_to_many:
        return None
    if _has_default(field):
        if isinstance(field.db_default, (models.Value, str, int, float, bool)):
            return None
        return "A default that is computed writes the whole table anew, under a lock. Use a constant, or null=True."
    if not field.null:
        return (
            "Old code's INSERT doesn't fill it, and a default of Python's isn't in the database. "
            "Give it a db_default, or null=True."
        )
    if field.unique or field.db_index:
        return "Its index keeps writers waiting. Add it without one, and the index with AddIndexConcurrently."
    return None


def _narrows(old: Any, new: Any) -> str | None:
    if old.column != new.column:
        return HOW[operations.RenameField]
    if old.null and not new.null:
        return f"Old code may write NULL. {IN_TWO} always fill it in this one, forbid NULL in the next one."
    if _has_default(old) and not _has_default(new):
        return f"Old code's INSERT needs its db_default. {IN_TWO} always fill it in this one, drop it in the next one."
    if (new.unique or new.db_index) and not (old.unique or old.db_index):
        return "Its index keeps writers waiting, and old code may write what it forbids. Use AddIndexConcurrently."
    if old.db_type(connection) != new.db_type(connection) and not _widens(old, new):
        return (
            "Another type writes the whole table anew, under a lock, and old code may not understand it. "
            f"{IN_TWO} add another column and write both, then drop the old one."
        )
    return None


def _widens(old: Any, new: Any) -> bool:
    """More room in a text changes nothing in the table."""
    if not isinstance(old, models.CharField):
        return False
    if isinstance(new, models.CharField):
        return new.max_length is None or (old.max_length is not None and new.max_length >= old.max_length)
    return isinstance(new, models.TextField)


def _has_default(field: "models.Field[Any, Any]") -> bool:
    return field.db_default is not models.NOT_PROVIDED
