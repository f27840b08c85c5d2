"""The statements in `sql/`, one file each, asked for by name; whoever runs them brings a connection.

Parameters are named. Identifiers are composed here and nowhere else, and quoted. Django is not needed for it.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from psycopg import sql

LOG = "django_events_event"
TOO_DEEP = "strict $.**{5001}"  # a jsonpath: lists and objects in each other
SMALL = 4_000  # bytes of JSON, whose text is not worth a closer look for programs that read many


@dataclass(frozen=True)
class Statement:
    """A statement of a file in `sql/`. Only these reach a cursor, so no f-string does."""

    name: str
    text: str

    def on(self, **names: "str | int | sql.Literal | Statement") -> "Statement":
        """The same statement about other tables: `{log}` in the file becomes a quoted name, a number
        itself, and a part of a statement what it says."""
        # A file is code of ours, read from the package: psycopg wants to be told.
        return Statement(
            self.name, sql.SQL(self.text).format(**{k: _composed(v) for k, v in names.items()}).as_string()
        )


def literal(value: str | int | float | list[str] | list[int]) -> sql.Literal:
    """A value for a place where SQL takes no parameter, quoted."""
    return sql.Literal(value)


def _composed(name: "str | int | sql.Literal | Statement") -> sql.Composable:
    if isinstance(name, Statement):
        return sql.SQL(name.text)
    if isinstance(name, str):
        return sql.Identifier(name)
    quoted = name if isinstance(name, sql.Literal) else literal(name)
    # The statement is going to be given parameters, if only none: a percent sign would begin one.
    return sql.SQL(quoted.as_string().replace("%", "%%"))


@cache
def statement(name: str) -> Statement:
    """The statement in `<name>.sql`, without its header."""
    # Not a resource of the package `sql`, which is for Django: it would be imported.
    text = resources.files("django_events").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return Statement(name, "\n".join(lines).strip())


def union_all(statements: list[Statement]) -> Statement:
    """One statement that answers with the rows of all of them."""
    return Statement(statements[0].name, "\nUNION ALL\n".join(f"({s.text})" for s in statements))


def all_of(conditions: list[Statement]) -> Statement:
    """One condition that holds when all of them do."""
    return Statement("all", " AND ".join(f"({s.text})" for s in conditions) or "true")


def listed(expressions: list[Statement]) -> Statement:
    """Expressions one after the other, as a SELECT takes them."""
    return Statement("list", ", ".join(one.text for one in expressions))


def as_text(column: str, *, small: int) -> Statement:
    """A JSON column as text, or null where that could take gigabytes; what is small is not looked at closely."""
    return statement("as_text_if_readable").on(
        json=Statement("column", column), small=small, too_deep=literal(TOO_DEEP)
    )


def log_table(topic_id: int) -> str:
    """The name of a topic's own log, for statements that must not open every topic's tables."""
    return f"{LOG}_{topic_id:d}"
