"""Who keeps a topic from being moved: by a lock on its head, or on its log.

A row that is locked doesn't say by whom; the transaction that did it is in its `xmax`, and in the table of locks.
"""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from django_events import sql
from django_events.phrases import moment

SQL = sql.beside(__name__)


class LockHolder(NamedTuple):
    """A session or a prepared transaction that has locked a table, or a topic's head; or that there is no head.

    Of the sessions of others a role may see less. `does` is what a session began last, in a word or two: not more,
    because the rest may be of an event.
    """

    topic_id: int
    kind: str
    table: str
    mode: str
    pid: int | None
    name: str
    role: str
    application: str
    address: str
    state: str
    since: datetime | None
    does: str

    @property
    def called(self) -> str:
        """`session 4711 of shop (worker, 10.0.0.7)`."""
        if self.kind == "prepared":
            return f"prepared transaction {self.name!r} of {self.role}"
        known = ", ".join(filter(None, [self.application, self.address]))
        return f"session {self.pid} of {self.role or 'another role'}" + (f" ({known})" if known else "")

    @property
    def doing(self) -> str:
        """`idle in transaction after UPDATE`, as far as it can be seen."""
        return f"{self.state} after {self.does}" if self.does and self.state.startswith("idle") else self.does

    @property
    def ending(self) -> str:
        """What ends it, in SQL."""
        if self.kind == "prepared":
            name = sql.quoted(self.name)
            return f"COMMIT PREPARED {name}, or ROLLBACK PREPARED {name}"
        return f"SELECT pg_terminate_backend({self.pid})"

    def __str__(self) -> str:
        since = f" since {moment(self.since)}" if self.since else ""
        doing = f", {self.doing}" if self.doing else ""
        return f"{self.called} holds {self.mode} on {self.table}{since}{doing}"


def holders(using: str, topic_ids: Collection[int]) -> list[LockHolder]:
    """Those in the way of these topics, the longest first."""
    return [LockHolder(*row) for row in sql.fetch(using, SQL.holders, topic_ids=list(topic_ids))]
