"""A streaming query as a consumer: its lag is shown like any other's, and retention waits for it."""

from collections.abc import Mapping

from django_events.exceptions import Invalid
from django_events.reading.dsn import Connection, fetch
from django_events.statements import beside, shared

SQL = beside(__name__)


class Follower:
    """Writes the positions of a streaming query to the database, for lag and retention.

    The query itself reads by its checkpoint and never by these positions.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._told: dict[int, int] = {}

    def tell(self, connection: Connection, offsets: Mapping[int, int]) -> None:
        """Store that all events before these offsets, by topic id, are done. Repeating that costs nothing."""
        for topic_id, offset in sorted(offsets.items()):
            told = self._told.get(topic_id)
            if told == offset:
                continue
            goes_on = told is not None and told < offset  # else the topic is new to the query, or its log was cut
            if not (goes_on and self._moved(connection, topic_id, offset)):  # or the consumer was unregistered
                self._register(connection, topic_id, offset)
            self._told[topic_id] = offset

    def _moved(self, connection: Connection, topic_id: int, offset: int) -> bool:
        asked = SQL.follow_on
        return bool(fetch(connection, asked, name=self.name, topic_id=topic_id, position=offset - 1))

    def _register(self, connection: Connection, topic_id: int, offset: int) -> None:
        name, position = self.name, offset - 1
        with connection.transaction():
            fetch(connection, shared.lock_head, topic_id=topic_id)
            [[mode]] = fetch(connection, SQL.follow, name=name, topic_id=topic_id, position=position)
            if mode != "spark":
                raise Invalid(
                    f"Option 'consumer' is {self.name!r}, which is a {mode} consumer of Django. Take another name."
                )
            fetch(connection, SQL.step_back, name=name, topic_id=topic_id, position=position)
        self._moved(connection, topic_id, offset)
