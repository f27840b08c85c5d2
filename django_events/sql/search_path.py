"""Where a connection looks for tables, for messages about those that it doesn't find."""

from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from django_events import sql

SQL = sql.beside(__name__)

USUAL = '"$user", public'


def tables_missing(using: str) -> str:
    """Say that a database wasn't migrated, or that the search_path leads elsewhere, and the way out."""
    what = f"The tables of django_events are not in the database {using!r}"
    run = f"manage.py migrate --database {using}"
    path = _search_path(using)
    if path is None or path == USUAL:
        return f"{what}. Run: {run}"
    return f"{what}, as far as the search_path of this connection leads ({path or 'empty'}). Correct it, or run: {run}"


def search_path(using: str) -> str:
    """In which schemas this thread's connection looks for tables."""
    [[path]] = sql.fetch(using, SQL.search_path)
    return str(path)


def _search_path(using: str) -> str | None:
    """What the search_path is, where that can be found out.

    From version 18 the server tells of each change, and psycopg keeps that. An older one has to be asked, and gives no
    answer in a transaction that it has aborted.
    """
    with suppress(DatabaseError, InterfaceError):
        connection = connections[using].connection
        if connection is None:  # a new one may have another search_path than the one that failed
            return None
        if (told := connection.info.parameter_status("search_path")) is not None:
            return str(told)
        return search_path(using)
    return None
