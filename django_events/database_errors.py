"""What an error of the database means, judged in one place: errors of Django and of psycopg alike.

    kind = kind_of(error)
    if kind is ErrorKind.LOCKED: ...
    if kind.passes: ...

Django is not needed for it: Spark's executors judge by it, too.
"""

from enum import Enum
from typing import Any

_CHECK_VIOLATION = "23514"


class ErrorKind(Enum):
    """What went wrong. Each error has one kind."""

    LOST = "the connection is gone, or never was"
    LOCKED = "a lock was not granted in time"
    CONFLICT = "a deadlock or a serialization failure"
    CANCELED = "a statement took too long, or was canceled"
    OUT_OF_MEMORY = "the server has no memory for it, or no room in its table of locks"
    DISK_FULL = "a tablespace is full"
    READ_ONLY = "the server is a standby, or read-only by default"
    NO_SEGMENT = "no partition of a table takes the row"
    TABLE_GONE = "a table doesn't exist"
    TABLE_EXISTS = "a table of that name exists"
    FUNCTION_GONE = "a function or a schema doesn't exist"
    ROWS_HIDDEN = "row-level security would hide rows from this role"
    FORBIDDEN = "the role lacks a right"
    DUPLICATE = "a row with this key exists"
    DATA = "a value can't be used: a filter fails on an event, for example"
    TOO_LARGE = "a value or a statement is larger than PostgreSQL can take"
    INTERNAL = "an internal error: also PostgreSQL's answer to bytes of more than it can write as text"
    OTHER = "anything else"

    @property
    def passes(self) -> bool:
        """Whether the same may work after a while."""
        return self in _PASSING

    @property
    def passes_here(self) -> bool:
        """Whether it may work after a while on the same connection."""
        return self.passes and self is not ErrorKind.LOST

    @property
    def of_data(self) -> bool:
        """Whether a statement failed because of a value that it met, and would again."""
        return self in (ErrorKind.DATA, ErrorKind.TOO_LARGE)

    @property
    def of_server(self) -> bool:
        """Whether it is about the connection or the server: another topic or consumer would meet it, too."""
        return self in _OF_SERVER

    @property
    def of_log(self) -> bool:
        """Whether it is about one log: it was changed, its disk is full, or a rule or filter refuses an event."""
        return self not in _OF_SERVER and self not in _OF_BATCH

    @property
    def stays(self) -> bool:
        """Whether it is about one log, or one filter, and stays until that is repaired."""
        return self.of_log and not self.passes


_PASSING = frozenset(
    {
        ErrorKind.LOST,
        ErrorKind.LOCKED,
        ErrorKind.CONFLICT,
        ErrorKind.CANCELED,
        ErrorKind.OUT_OF_MEMORY,
        ErrorKind.DISK_FULL,
    }
)
_OF_SERVER = frozenset({ErrorKind.LOST, ErrorKind.CONFLICT, ErrorKind.CANCELED, ErrorKind.READ_ONLY})
_OF_BATCH = frozenset({ErrorKind.LOCKED, ErrorKind.OUT_OF_MEMORY, ErrorKind.NO_SEGMENT})

_BY_STATE = {
    "53300": ErrorKind.LOST,  # too many connections
    "57P01": ErrorKind.LOST,  # the server ends the connection
    "57P02": ErrorKind.LOST,  # it crashed
    "57P03": ErrorKind.LOST,  # it is starting or stopping
    "57P05": ErrorKind.LOST,  # it ended an idle session
    "25P03": ErrorKind.LOST,  # it ended a session that was idle in a transaction
    "25P04": ErrorKind.LOST,  # it ended a transaction that took too long
    "55P03": ErrorKind.LOCKED,
    "40001": ErrorKind.CONFLICT,
    "40P01": ErrorKind.CONFLICT,
    "57014": ErrorKind.CANCELED,
    "53200": ErrorKind.OUT_OF_MEMORY,
    "53100": ErrorKind.DISK_FULL,
    "25006": ErrorKind.READ_ONLY,
    "23505": ErrorKind.DUPLICATE,
    "42P07": ErrorKind.TABLE_EXISTS,
    "42P01": ErrorKind.TABLE_GONE,
    "42883": ErrorKind.FUNCTION_GONE,
    "3F000": ErrorKind.FUNCTION_GONE,
    "42501": ErrorKind.FORBIDDEN,
    "XX000": ErrorKind.INTERNAL,
}
_BY_CLASS = {"08": ErrorKind.LOST, "22": ErrorKind.DATA, "0A": ErrorKind.DATA, "54": ErrorKind.TOO_LARGE}

# An error without an SQLSTATE comes from the client's side, where classes tell. PEP 249 names them alike for Django and
# for psycopg. An InternalError is psycopg's own: a COMMIT was answered, and then came the end of the connection.
_BY_NAME = {
    "OperationalError": ErrorKind.LOST,
    "InterfaceError": ErrorKind.LOST,
    "InternalError": ErrorKind.LOST,
}


def kind_of(error: BaseException) -> ErrorKind:
    """The kind of an error of the database; of any other error it is OTHER."""
    sqlstate, diagnosis = state(error), _diagnosis(error)
    if sqlstate is None:
        names = (one.__name__ for one in type(error).__mro__)
        return next((_BY_NAME[name] for name in names if name in _BY_NAME), ErrorKind.OTHER)
    kind = kind_of_state(sqlstate)
    # A missing right has the same SQLSTATE, and the message may be in any language: the function that raised is not.
    if kind is ErrorKind.FORBIDDEN and getattr(diagnosis, "source_function", None) == "check_enable_rls":
        return ErrorKind.ROWS_HIDDEN
    # A CHECK that refuses a row has the same SQLSTATE, and a name.
    if sqlstate == _CHECK_VIOLATION and diagnosis.constraint_name is None and diagnosis.table_name is not None:
        return ErrorKind.NO_SEGMENT
    return kind


def kind_of_state(sqlstate: str) -> ErrorKind:
    """What an SQLSTATE says by itself, as a row of a topic or a consumer keeps it."""
    return _BY_STATE.get(sqlstate) or _BY_CLASS.get(sqlstate[:2], ErrorKind.OTHER)


def state(error: BaseException) -> str | None:
    """The SQLSTATE of an error of the database."""
    found: str | None = getattr(_of_psycopg(error), "sqlstate", None)
    return found


def _diagnosis(error: BaseException) -> Any:
    return getattr(_of_psycopg(error), "diag", None)


def _of_psycopg(error: BaseException) -> BaseException | None:
    """The error that knows what the server said: this one, or the one that Django's was made of."""
    return error if hasattr(error, "sqlstate") else error.__cause__
