"""The statements of the SQL files, each file beside the module that asks for them.

    SQL = beside(__name__)
    SQL.claim.on(log="django_events_event_7").text

Parameters are named. Names, values and parts are composed here and nowhere else, and quoted. A module that runs a
statement brings the connection. Django is not needed for it.
"""

import re
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from functools import lru_cache
from importlib import resources
from string import Formatter
from typing import NamedTuple

from psycopg import sql

from django_events.event_columns import expanded

LOG = "django_events_event"
TOO_DEEP = "strict $.**{5001}"  # a jsonpath: lists and objects in each other
SMALL = 4_000  # bytes of JSON, whose text is not worth a closer look for programs that read many

_LOADER = object()
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")

Name = str | tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """A statement of an SQL file, or a part of one. Only these reach a cursor.

    Nothing outside this module makes one, so no text that was put together at run time is ever run.
    """

    name: str
    text: str
    made_by: InitVar[object] = None

    def __post_init__(self, made_by: object) -> None:
        if made_by is not _LOADER:
            raise TypeError("Statements come from SQL files. Write it into one, and compose it with .on(…).")

    def on(self, **given: "Name | int | sql.Literal | Statement | Sequence[Name | int | Statement]") -> "Statement":
        """The same statement with all its `{…}` replaced: a name is quoted, `("e", "id")` is a qualified one, a number
        is itself, a part is what it says, and of a list each is, with commas between them.
        """
        composed = {name: _composed(one) for name, one in given.items()}
        return _made(self.name, "".join(text if name is None else composed[name] for text, name in _pieces(self.text)))

    def written(self, **parts: str) -> str:
        """The same as text for a person, a migration or Django's compiler, with these parts as they are.

        That is no statement: nothing here runs it. Percent signs are single ones.
        """
        pieces = _pieces(self.text)
        return "".join(text.replace("%%", "%") if name is None else parts[name] for text, name in pieces)


def declared(text: str) -> Statement:
    """A part of a statement that the site's own code declares: what is in its triggers, and was in its migrations.

    It is for what `capture()` makes of a model, a condition that the site wrote included, and for nothing else.
    """
    return _made("declared", text.replace("%", "%%"))


def _made(name: str, text: str) -> Statement:
    return Statement(name, text, made_by=_LOADER)


@lru_cache(maxsize=1024)
def _pieces(text: str) -> tuple[tuple[str, str | None], ...]:
    """Texts, and names of what belongs between them: `("SELECT … FROM ", None), ("", "log")`."""
    found: list[tuple[str, str | None]] = []
    for before, name, _, _ in Formatter().parse(text):
        found += [(before, None)] if name is None else [(before, None), ("", name)]
    return tuple(found)


def literal(value: str | int | float | list[str] | list[int]) -> sql.Literal:
    """A value for a place where SQL takes no parameter, quoted."""
    return sql.Literal(value)


def quoted(value: str | list[str]) -> str:
    """A value in the SQL that a person is told to run."""
    return sql.Literal(value).as_string()


def quoted_name(*names: str) -> str:
    """A name, or a qualified one, in SQL that a person, a migration or Django's compiler gets."""
    return sql.Identifier(*names).as_string()


def _composed(given: "Name | int | sql.Literal | Statement | Sequence[Name | int | Statement]") -> str:
    match given:
        case Statement():
            return given.text
        case str():
            return sql.Identifier(given).as_string()
        case int():
            return f" {given:d}" if given < 0 else f"{given:d}"
        case tuple():
            return sql.Identifier(*given).as_string()
        case sql.Literal():
            # The statement is going to be given parameters, if only none: a percent sign would begin one.
            return given.as_string().replace("%", "%%")
    return ", ".join(map(_composed, given))


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
        found[name] = _made(name, expanded("\n".join(lines).strip()))
    return found


def beside(module: str) -> Statements:
    """The statements of the file beside a module: for `consuming/leases.py` they are in `consuming/leases.sql`."""
    return Statements(module.partition(".")[2].replace(".", "/") + ".sql")


shared = Statements("sql/shared.sql")  # what several modules ask for


def union_all(statements: list[Statement]) -> Statement:
    """One statement that answers with the rows of all of them."""
    return _made(statements[0].name, "\nUNION ALL\n".join(f"({s.text})" for s in statements))


def all_of(conditions: list[Statement]) -> Statement:
    """One condition that holds when all of them do."""
    return _made("all", " AND ".join(f"({s.text})" for s in conditions) or "true")


class Prepared(NamedTuple):
    """A statement under a name that a session of the server knows it by, and the order of its parameters."""

    prepare: Statement
    execute: Statement
    parameters: tuple[str, ...]


def prepared(statement: Statement, name: str) -> Prepared:
    """A statement for PREPARE and EXECUTE. The first takes no parameters: `%%` is one percent sign in it."""
    names = tuple(dict.fromkeys(filter(None, _PARAMETER.findall(statement.text))))
    text = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}" if found[1] else "%", statement.text)
    given = f" ({', '.join(f'%({one})s' for one in names)})" if names else ""
    return Prepared(
        _made(statement.name, f"PREPARE {quoted_name(name)} AS {text}"),
        _made(statement.name, f"EXECUTE {quoted_name(name)}{given}"),
        names,
    )


def as_text(*column: str, small: int) -> Statement:
    """A JSON column as text, or null where that could take gigabytes; what is small is not looked at closely."""
    return shared.as_text_if_readable.on(json=column, small=small, too_deep=literal(TOO_DEEP))


def log_table(topic_id: int) -> str:
    """The name of a topic's own log, for statements that must not open every topic's tables."""
    return f"{LOG}_{topic_id:d}"
