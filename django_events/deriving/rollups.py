"""Declared roll-ups become rows and tables, on every `migrate`, before their consumers are registered.

Doing it again changes nothing, and several processes may do it at once. What a table is made by doesn't change under
it: where that is declared otherwise, the table stays as it is, and workers of the new code wait until it is made anew.
"""

from django.db import DatabaseError, transaction

from django_events import declarations, models, sql
from django_events.declarations import DeclaredRollUp
from django_events.deriving.rolling_up import OTHER, measured_paths
from django_events.exceptions import Invalid, Refused
from django_events.log.topics import changing_topics

SQL = sql.beside(__name__)


def declared_rollups() -> list[DeclaredRollUp]:
    """The roll-ups that the apps declare."""
    return [one for one in declarations.consumers if isinstance(one, DeclaredRollUp)]


def sync(using: str) -> list[str]:
    """Make and adapt what the declarations ask for, each in its transaction; returns a line for each change."""
    declarations.consumers.check()
    declared = declared_rollups()
    _refuse_other_kind(using, {one.name for one in declared})
    for one in declared:
        check_paths(using, one)
    changes = drop_stranded(using)
    for one in declared:
        with changing_topics(using):
            changes += _sync(using, one)
    return changes


def check_paths(using: str, declared: DeclaredRollUp) -> None:
    """Have PostgreSQL look for each jsonpath in values of every kind; Invalid if it can't."""
    for path in measured_paths(declared):
        try:
            with transaction.atomic(using):
                sql.fetch(using, SQL.try_path, path=path)
        except DatabaseError as error:
            problem = sql.said(error).splitlines()[0]
            raise Invalid(
                f"Roll-up {declared}, declared at {declared.declared_at}, has {path!r}, which PostgreSQL can't use as "
                f"a jsonpath: {problem}."
            ) from error


def make_table(using: str, declared: DeclaredRollUp, table: str | tuple[str, str]) -> None:
    """Make an empty table for a declaration under a name, with the rights that roles have on roll-ups."""
    bare = table if isinstance(table, str) else table[-1]
    sql.run(
        using,
        SQL.make.on(
            table=table,
            columns=[
                SQL.bucket,
                *(SQL.group.on(name=name) for name, _ in declared.by),
                SQL.counts,
                *(SQL.measure.on(name=name) for _, name, _ in declared.measures),
            ],
        ),
    )
    sql.run(using, SQL.index.on(name=f"{bare}_key", table=table, keys=["bucket", *(name for name, _ in declared.by)]))
    give_rights(using, table)


def give_rights(using: str, table: str | tuple[str, str]) -> None:
    """Let the roles that may read, count in, or clean up roll-ups do the same with a new table of one."""
    for role, may_fold, may_delete in sql.fetch(using, SQL.roles):
        sql.run(using, SQL.let_read.on(table=table, role=role))
        if may_fold:
            sql.run(using, SQL.let_fold.on(table=table, role=role))
        if may_delete:
            sql.run(using, SQL.let_delete.on(table=table, role=role))


def drop_stranded(using: str) -> list[str]:
    """Drop the tables whose roll-up was unregistered, or whose row went with a flush."""
    if not sql.fetch(using, SQL.stranded):
        return []
    with changing_topics(using):
        stranded = [table for (table,) in sql.fetch(using, SQL.stranded)]
        for table in stranded:
            sql.run(using, SQL.drop.on(table=table))
    return [f"Roll-ups: the table {table} is dropped, no roll-up has it." for table in stranded]


def has_table(using: str, row: models.RollUp) -> bool:
    """Whether its table is there, which a restore or a person may have dropped."""
    [[there]] = sql.fetch(using, SQL.is_there, table=row.table)
    return bool(there)


def known_groups(using: str, row: models.RollUp) -> int | None:
    """How many groups are known; None where its table is gone, or has no groups."""
    if not has_table(using, row) or not row.made_by.get("by"):
        return None
    [[groups]] = sql.fetch(using, SQL.known_groups.on(table=row.table))
    return int(groups)


def is_full(using: str, declared: DeclaredRollUp, table: str) -> bool:
    """Whether a table, which is there, has as many groups as it may, and further ones are counted together."""
    if not declared.by:
        return False
    beyond = sql.all_of([SQL.is_beyond.on(column=name, beyond=sql.literal(OTHER)) for name, _ in declared.by])
    [[full]] = sql.fetch(using, SQL.is_full.on(table=table, most_groups=declared.groups, beyond=beyond))
    return bool(full)


def is_empty(using: str, table: str) -> bool:
    """Whether nothing is counted in a table, which is there."""
    [[empty]] = sql.fetch(using, SQL.is_empty.on(table=table))
    return bool(empty)


def _sync(using: str, declared: DeclaredRollUp) -> list[str]:
    row = models.RollUp.objects.using(using).select_for_update().filter(name=declared.name).first()
    if row is None:
        return [_make(using, declared)]
    changes = _adapt(using, row, declared)
    if row.made_by == declared.made_by:
        return [f"Roll-up {declared}: {', '.join(changes)}."] if changes else []
    if has_table(using, row) and is_empty(using, row.table):
        sql.run(using, SQL.drop.on(table=row.table))
        row.made_by = declared.made_by
        row.save(using=using, update_fields=["made_by"])
        make_table(using, declared, row.table)
        sql.fetch(using, SQL.tell_workers, name=declared.name)
        changes.append("its table was empty, and is made anew as it is declared now")
    else:
        changes.append(
            f"declared with {declared.differs_from(row.made_by)} as its table was made. Workers of this code leave "
            f"it alone until it is made anew: manage.py events rebuild {declared}"
        )
    return [f"Roll-up {declared}: {', '.join(changes)}."]


def _make(using: str, declared: DeclaredRollUp) -> str:
    row = models.RollUp(
        name=declared.name,
        made_by=declared.made_by,
        most_groups=declared.groups,
        retention=declared.retention,
    )
    row.save(using=using, force_insert=True)
    make_table(using, declared, row.table)
    return f"Roll-up {declared}: made, its table is {row.table}."


def _adapt(using: str, row: models.RollUp, declared: DeclaredRollUp) -> list[str]:
    """What may change beside the table: the limit of groups, and the retention."""
    changes = []
    for column, value in (("most_groups", declared.groups), ("retention", declared.retention)):
        if (before := getattr(row, column)) != value:
            changes.append(f"{column} {before} → {value}")
            setattr(row, column, value)
    if changes:
        row.full_since = None  # the next further group says so again
        row.save(using=using, update_fields=["most_groups", "retention", "full_since"])
    return changes


def _refuse_other_kind(using: str, names: set[str]) -> None:
    """Refused where a consumer becomes a roll-up, or the other way: what it passed was not folded, or still counts."""
    rolled_up = set(models.RollUp.objects.using(using).values_list("name", flat=True))
    registered = set(models.Consumer.objects.using(using).values_list("name", flat=True))
    for declared in declarations.consumers:
        is_rollup = declared.name in names
        if declared.name in registered and is_rollup != (declared.name in rolled_up):
            now, before = ("a roll-up", "a consumer") if is_rollup else ("a consumer", "a roll-up")
            raise Refused(
                f"{declared.name!r} is declared as {now}, at {declared.declared_at}, and was registered as {before}. "
                f"Nothing was changed. Give it another name; or, if {before} of this name is gone for good, take the "
                f"declaration out, and run: manage.py events unregister {declared.name} --execute"
            )
