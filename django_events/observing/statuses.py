"""What each consumer of a topic has done with one event so far."""

from datetime import datetime
from typing import NamedTuple

from django.db import DatabaseError

from django_events import models, sql
from django_events.statements import log_table

SQL = sql.beside(__name__)


class Status(NamedTuple):
    """One consumer and one event. The state is one of those in docs/how-to/use-the-admin.md."""

    consumer_id: int
    consumer: str
    mode: str
    state: str
    attempts: int
    since: datetime | None
    until: datetime | None
    error: str
    dead_letter_id: int | None


def statuses(using: str, topic: models.Topic, event_id: int) -> list[Status]:
    """All consumers of the topic, by name. In one statement, that reads by the keys of the event."""
    try:
        with sql.by_index(using):
            return _asked(using, topic, event_id, SQL.meets)
    except DatabaseError as error:
        if not sql.kind_of(error).of_data:
            raise
        # The predicate of some consumer fails on this event, and that consumer is quarantined for it.
        return _asked(using, topic, event_id, SQL.meets_unknown)


def _asked(using: str, topic: models.Topic, event_id: int, meets: sql.Statement) -> list[Status]:
    statement = SQL.statuses.on(log=log_table(topic.pk), meets=meets)
    return [Status._make(row) for row in sql.fetch(using, statement, topic_id=topic.pk, event_id=event_id)]
