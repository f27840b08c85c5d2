"""The statements in SQL files, each beside the module that asks for them; whoever runs them brings a connection.

    SQL = beside(__name__)
    SQL.claim.on(log="django_events_event_7").text

Parameters are named. Identifiers are composed here and nowhere else, and quoted. Django is not needed for it.
"""

from dataclasses import dataclass
from importlib import resources

from psycopg import sql

LOG = "django_events_event"
TOO_DEEP = "strict $.**{5001}"  # a jsonpath: lists and objects in each other
SMALL = 4_000  # bytes of JSON, whose text is not worth a closer look for programs that read many


@dataclass(frozen=True)
class Statement:
    """A statement of an SQL file. Only these reach a cursor, so no f-string does."""

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


class Statements:
    """The statements of one file, by name: `-- name: claim` begins one, and lines of comments are left out.

    The file is read when the first of them is asked for.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Statement:
        if name.startswith("__") or "_path" not in self.__dict__:
            raise AttributeError(name)
        known = vars(self)
        known.update(_read(self._path))
        if name not in known:
            raise AttributeError(f"{self._path} has no statement {name!r}.")
        return known[name]  # type: ignore[no-any-return]


def _read(path: str) -> dict[str, Statement]:
    text = resources.files("django_events").joinpath(*path.split("/")).read_text(encoding="utf-8")
    found = {}
    for block in text.split("-- name: ")[1:]:
        name, _, rest = block.partition("\n")
        lines = (line for line in rest.splitlines() if not line.lstrip().startswith("--"))
        found[name] = Statement(name, "\n".join(lines).strip())
    return found


def beside(module: str) -> Statements:
    """The statements of the file beside a module: for `consuming/leases.py` they are in `consuming/leases.sql`."""
    return Statements(module.partition(".")[2].replace(".", "/") + ".sql")


shared = Statements("sql/shared.sql")  # what several modules ask for


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
    return shared.as_text_if_readable.on(json=Statement("column", column), small=small, too_deep=literal(TOO_DEEP))


def log_table(topic_id: int) -> str:
    """The name of a topic's own log, for statements that must not open every topic's tables."""
    return f"{LOG}_{topic_id:d}"
