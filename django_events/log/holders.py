"""Who keeps a topic from being moved: by a lock on its head, or on its log.

A row that is locked doesn't say by whom; the transaction that did it is in its `xmax`, and in the table of locks.
"""

from collections.abc import Collection
from typing import NamedTuple

from django_events import sql
from django_events.sql.blocking import Session

SQL = sql.beside(__name__)


class LockHolder(NamedTuple):
    """A session or a prepared transaction that has locked a table, or a topic's head; or that there is no head.

    The kind is `session`, `prepared` or `headless`.
    """

    topic_id: int
    kind: str
    table: str
    mode: str
    session: Session

    def __str__(self) -> str:
        return f"{self.session.called} holds {self.mode} on {self.table}{self.session.busy}"


def holders(using: str, topic_ids: Collection[int]) -> list[LockHolder]:
    """Those in the way of these topics, the longest first."""
    rows = sql.fetch(using, SQL.holders.on(told=sql.shared.session_as_told), topic_ids=list(topic_ids))
    return [
        LockHolder(topic_id, kind, table, mode, Session(*session)) for topic_id, kind, table, mode, *session in rows
    ]
