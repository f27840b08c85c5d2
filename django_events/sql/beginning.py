"""BEGIN and the first statement of a transaction, in one message where that is possible.

with transaction.atomic(using):
    [locked, *_] = begin_with(using, SQL.take_lock, token=7)
"""

from typing import Any, cast

import psycopg
from django.db import connections
from psycopg import IsolationLevel
from psycopg.pq import ExecStatus, TransactionStatus

from django_events import sql
from django_events.sql.direct import error_of
from django_events.statements import Statement, beside

SQL = beside(__name__)


def begin_with(using: str, statement: Statement, **parameters: object) -> bool:
    """Run a statement whose answer begins with a truth value, and return that.

    In an atomic block that has sent nothing yet, psycopg would send BEGIN by itself and wait for the answer. It does so
    where the site has asked for another kind of transactions.
    """
    raw = cast("psycopg.Connection[Any]", connections[using].connection)
    if not _begins_plainly(raw):
        [[answer, *_]] = sql.fetch(using, statement, **parameters)
        return bool(answer)
    with connections[using].wrap_database_errors, raw.lock:
        asked = psycopg.ClientCursor(raw).mogrify(SQL.begin.on(first=statement).text, parameters)
        result = raw.pgconn.exec_(asked.encode())
        if result.status != ExecStatus.TUPLES_OK:
            raise error_of(raw, result)
    return result.get_value(0, 0) == b"t"


def _begins_plainly(raw: "psycopg.Connection[Any] | None") -> bool:
    """Whether the next statement begins a transaction, of the kind in which workers handle events."""
    return (
        raw is not None
        and not raw.autocommit
        and raw.info.transaction_status == TransactionStatus.IDLE
        and raw.isolation_level is IsolationLevel.READ_COMMITTED
        and raw.read_only is None
        and raw.deferrable is None
    )
