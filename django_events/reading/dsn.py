"""Where the database is: an address that can be shown, because its password is not."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from django_events.database_errors import ErrorKind, kind_of
from django_events.exceptions import Invalid, NotReady, rights_missing, rows_hidden
from django_events.phrases import cut_details
from django_events.statements import Statement, shared

Connection = psycopg.Connection[tuple[Any, ...]]
# Of all that can be said, this is where the database is, and as whom. The rest may be secret.
SHOWN = ("host", "hostaddr", "port", "dbname", "user", "service")
HIDDEN = "***"
T = TypeVar("T")


class Dsn:
    """A connection string of PostgreSQL, or a URL. Whatever prints it prints no password."""

    def __init__(self, text: str, *, option: str = "dsn") -> None:
        try:
            self._parameters: Mapping[str, Any] = conninfo_to_dict(text)
        except psycopg.Error:
            # What PostgreSQL says about it may quote the password.
            raise Invalid(
                f"Option {option!r} is no address of a PostgreSQL database, expected "
                "'postgresql://user:password@host:5432/name' or 'host=… dbname=… user=…'. A character like @, / or : "
                "in a password is written as %40, %2F or %3A in a URL. The text is not shown: it may hold a password."
            ) from None

        if _is_cut_wrongly(self._parameters, url="://" in text):
            raise Invalid(
                f"Option {option!r} has an @ behind the host, or a port that is no number: in a URL, a character like "
                "@, / or : in a password is written as %40, %2F or %3A. The text is not shown: it may hold a password."
            )

    def __str__(self) -> str:
        return make_conninfo("", **{name: self._parameters[name] for name in SHOWN if name in self._parameters})

    def __repr__(self) -> str:
        return f"Dsn({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dsn) and self._parameters == other._parameters

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def role(self) -> str:
        """The role that it names."""
        return str(self._parameters.get("user") or "of this process")

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection in which every statement is a transaction, closed at the end."""
        mine = {"client_encoding": "utf8", "application_name": "django_events spark", "connect_timeout": "10"}
        try:
            connection = psycopg.connect("", autocommit=True, prepare_threshold=None, **{**mine, **self._parameters})
        except psycopg.OperationalError as error:
            raise psycopg.OperationalError(f"The database {self} can't be reached. {self.masked(error)}") from None
        with connection, explained(self):
            yield connection

    def masked(self, error: BaseException) -> str:
        """The message of an error, without passwords and other secrets."""
        said = str(error).strip()
        for name in self._parameters.keys() - set(SHOWN):
            if "password" in name or "secret" in name or "key" in name:
                said = re.sub(rf"(?<!\w){re.escape(str(self._parameters[name]))}(?!\w)", HIDDEN, said)
        return said


def _is_cut_wrongly(parameters: Mapping[str, Any], *, url: bool) -> bool:
    """Whether parts of a password may be where other things belong: it has a character that ends it in a URL."""
    given = {name: str(parameters.get(name, "")) for name in SHOWN}
    port = re.fullmatch(r"[0-9]*(,[0-9]*)*", given["port"])
    return port is None or any("@" in given[name] for name in ("host", "hostaddr", *(("dbname",) if url else ())))


@contextmanager
def explained(dsn: Dsn) -> Iterator[None]:
    """Say what is missing where the server's words don't, and nothing of the rows that it refused."""
    try:
        yield
    except psycopg.Error as error:
        kind = kind_of(error)
        if kind is ErrorKind.TABLE_GONE:
            raise NotReady(
                f"The tables of django_events are not in the database {dsn}, or were removed meanwhile: "
                f"{str(error).splitlines()[0]}. Run: manage.py migrate"
            ) from error
        if kind is ErrorKind.ROWS_HIDDEN:
            raise NotReady(rows_hidden(dsn.role, error)) from error
        if kind is ErrorKind.FORBIDDEN:
            raise NotReady(rights_missing(dsn.role, error, kind="reader|sink")) from error
        if isinstance(error, psycopg.InternalError) and error.sqlstate is None:
            # Psycopg's own: a COMMIT was answered, and then came an error, as a pooler's. What is lost is tried again.
            raise psycopg.OperationalError(f"The connection to {dsn} ended in the middle of an answer.") from error
        cut_details(error)
        raise


class KeptConnection:
    """A connection that is kept for a query, and opened again when it is lost. It doesn't travel to executors."""

    def __init__(self, dsn: Dsn) -> None:
        self.dsn = dsn
        self._stack = ExitStack()
        self._connection: Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"dsn": self.dsn}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["dsn"])  # type: ignore[misc]  # as new

    def run(self, work: Callable[[Connection], T]) -> T:
        """Call a function that may run twice: it runs again if the connection turns out to be lost."""
        if self._connection is not None:
            try:
                return work(self._connection)
            except psycopg.OperationalError:
                if not self._connection.closed:
                    raise
                self.close()
        if self._connection is None:
            self._connection = self._stack.enter_context(self.dsn.connected())
        return work(self._connection)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._stack.close()
        self._connection = None


def copied(connection: Connection, statement: Statement, types: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a binary COPY, one after the other."""
    with connection.cursor().copy(statement.text.replace("%%", "%").encode()) as copying:
        copying.set_types(types)
        yield from copying.rows()


def fetch(connection: Connection, statement: Statement, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows."""
    return connection.execute(statement.text.encode(), parameters).fetchall()


def fetch_whole(connection: Connection, asked: Statement, **parameters: Any) -> list[tuple[Any, ...]]:
    """As `fetch`, and the statement fails where row-level security would hide rows from this role."""
    cursor = psycopg.ClientCursor(connection)
    cursor.execute(f"{shared.see_all.text};\n{cursor.mogrify(asked.text.encode(), parameters)}".encode())
    cursor.nextset()
    return cursor.fetchall()
