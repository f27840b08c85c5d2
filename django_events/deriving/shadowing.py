"""A second table of the same name, in a schema of its own: what is folded while it comes first goes into it.

    begin(using, schema)
    make_like(using, served(using, "shop_customertotal"), schema)
    with transaction.atomic(using), leading_to(using, schema):
        ...  # whatever names the table, like its model, means the new one
    change_over(using, served(using, "shop_customertotal"), schema)

Names of indexes and constraints belong to a schema, so those of the new table are from the beginning what Django
expects. Other tables are found as usual. Only the owner of the table can do this.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from django_events import sql
from django_events.exceptions import NotReady, Refused

SQL = sql.beside(__name__)

TABLE = "r"  # an ordinary one


class Served(NamedTuple):
    """A table that is served, and what stands in the way of making another one of it."""

    name: str
    schema: str
    kind: str
    owner: str
    owned: bool
    hides_rows: bool
    children: int
    referenced_by: list[str]
    seen_by: list[str]
    published_by: list[str]
    fingerprint: str


def served(using: str, table: str) -> Served:
    """The table that the name leads to; Refused, or NotReady, if it can't be made anew."""
    rows = sql.fetch(using, SQL.served, table=table)
    if not rows:
        raise NotReady(
            f"There is no table {table!r} where the search_path of the database {using!r} leads. Nothing was changed. "
            f"Run: manage.py migrate --database {using}"
        )
    found = Served(*rows[0])
    for problem in _problems(found):
        raise Refused(f"Table {table} can't be made anew: {problem} Nothing was changed.")
    if not found.owned:
        raise NotReady(
            f"Table {table} belongs to {found.owner}, and only its owner can replace it. Nothing was changed. Run this "
            "as the role that runs migrate."
        )
    return found


def _problems(of: Served) -> Iterator[str]:
    if of.kind != TABLE or of.children:
        yield "it is no ordinary table, or others inherit from it."
    if of.referenced_by:
        yield f"its rows are referenced by {', '.join(of.referenced_by)}. Have them refer to the key by value."
    if of.seen_by:
        yield f"it is read by the view {', '.join(of.seen_by)}. Drop that, and make it again afterwards."
    if of.published_by:
        yield f"it is in the publication {', '.join(of.published_by)}. Take it out, and add it again afterwards."
    if of.hides_rows:
        yield "it has row-level security, which would not be copied."
    if "$$" in of.name:
        yield "its name has a dollar quote in it."


def begin(using: str, schema: str) -> None:
    """A new, empty schema for a new table. In the caller's transaction; NotReady if this role may not make one."""
    [[may_create]] = sql.fetch(using, SQL.may_create)
    if not may_create:
        [[role, database]] = sql.fetch(using, SQL.who)
        grant = f"GRANT CREATE ON DATABASE {sql.quoted_name(database)} TO {sql.quoted_name(role)}"
        raise NotReady(
            f"The new table is made in a schema of its own, and the role {role!r} may not make one. Nothing was "
            f"changed. For the time of the rebuild: {grant}"
        )
    drop(using, schema)
    sql.run(using, SQL.make_schema.on(schema=schema))


def make_like(using: str, of: Served, schema: str) -> None:
    """A new, empty table like the one that is served, with its indexes and constraints, in a schema."""
    sql.run(using, SQL.make.on(shadow=(schema, of.name), served=(of.schema, of.name)))
    sql.run(using, SQL.complete.on(schema=sql.literal(schema), table=sql.literal(of.name)))


def drop(using: str, schema: str) -> None:
    """The schema with the new table, if it is there."""
    sql.run(using, SQL.drop.on(schema=schema))


def is_there(using: str, table: str, schema: str) -> bool:
    """Whether the new table is there."""
    [[there]] = sql.fetch(using, SQL.is_there, table=table, schema=schema)
    return bool(there)


def analyze(using: str, table: str, schema: str) -> None:
    """Let the planner know what is in the new table before it is asked for."""
    sql.run(using, SQL.analyze.on(table=(schema, table)))


@contextmanager
def leading_to(using: str, schema: str) -> Iterator[None]:
    """In the caller's transaction: names of tables mean those of a schema, where it has them.

    What an event breaks is found by its statement rather than by the commit.
    """
    [[before, _]] = sql.fetch(using, SQL.lead_to, schema=schema)
    sql.run(using, SQL.check_at_once)
    yield  # an error undoes the transaction, or its savepoint, and this with it
    sql.fetch(using, SQL.lead_back, path=before)


def change_over(using: str, of: Served, schema: str) -> None:
    """Drop the table, and put the new one in its place, with its rights and triggers. In the caller's transaction."""
    sql.run(using, SQL.change_over.on(schema=sql.literal(schema), table=sql.literal(of.name)))
