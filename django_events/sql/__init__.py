"""The SQL statements: one file each, run by name.

    rows = sql.fetch(using, sql.statement("pending"), limit=5_000)

Parameters are named. Identifiers are composed here and nowhere else, and quoted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from django.db import connections, transaction
from psycopg import sql


@dataclass(frozen=True)
class Statement:
    """A statement of a file in this folder. Only these reach a cursor, so no f-string does."""

    name: str
    text: str

    def on(self, **names: str | int | sql.Literal) -> "Statement":
        """The same statement about other tables: `{log}` in the file becomes a quoted name, a number itself."""
        quoted = {
            word: sql.Identifier(name) if isinstance(name, str) else literal(name) for word, name in names.items()
        }
        # A file is code of ours, read from the package: psycopg wants to be told.
        return Statement(self.name, sql.SQL(self.text).format(**quoted).as_string())


def literal(value: str | int | sql.Literal) -> sql.Literal:
    """A value for a place where SQL takes no parameter, quoted."""
    return value if isinstance(value, sql.Literal) else sql.Literal(value)


@cache
def statement(name: str) -> Statement:
    """The statement in `<name>.sql`, without its header."""
    text = resources.files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return Statement(name, "\n".join(lines).strip())


def union_all(statements: list[Statement]) -> Statement:
    """One statement that answers with the rows of all of them."""
    return Statement(statements[0].name, "\nUNION ALL\n".join(f"({s.text})" for s in statements))


def fetch(using: str, statement: Statement, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run a statement on a database alias and return its rows."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement.text, parameters)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def reading_by_index(using: str) -> Iterator[None]:
    """A transaction in which tables are read by index, whatever the statistics say; see use_indexes.sql."""
    nested = connections[using].in_atomic_block
    with transaction.atomic(using):
        [[seqscan, bitmapscan, jit, *_]] = fetch(
            using, statement("use_indexes"), seqscan="off", bitmapscan="off", jit="off"
        )
        yield
        if nested:  # a transaction of somebody else's goes on: leave it as it was
            fetch(using, statement("use_indexes"), seqscan=seqscan, bitmapscan=bitmapscan, jit=jit)
