"""What each consumer of a topic has done with one event so far."""

from django.db import DatabaseError
from django.utils.translation import gettext_lazy

from django_events import models, sql
from django_events.outcomes import Fate
from django_events.statements import log_table

SQL = sql.beside(__name__)

# What people read for a state.
STATES = {
    "handled": gettext_lazy("handled"),
    "passed": gettext_lazy("passed: it is older than the consumer"),
    "filtered out": gettext_lazy("filtered out"),
    "left out": gettext_lazy("left out by a rewind"),
    "rewound": gettext_lazy("passed by a rewind: handled before it, or left out"),
    "pending": gettext_lazy("pending"),
    "delayed": gettext_lazy("delayed"),
    "leased": gettext_lazy("in hand"),
    "retrying": gettext_lazy("retrying"),
    "stopped": gettext_lazy("stopped"),
    "dead": gettext_lazy("dead letter"),
    "redriven": gettext_lazy("waits to be handled again"),
    "ignored": gettext_lazy("ignored"),
    "unknown": gettext_lazy("unknown: a filter fails on it"),
}


def fates(using: str, topic: models.Topic, event_id: int) -> list[Fate]:
    """All consumers of the topic, by name. In one statement, that reads by the keys of the event."""
    try:
        with sql.by_index(using):
            return _asked(using, topic, event_id, sql.shared.meets)
    except DatabaseError as error:
        if not sql.kind_of(error).of_data:
            raise
        # The predicate of some consumer fails on this event, and that consumer is quarantined for it.
        return _asked(using, topic, event_id, sql.shared.meets_unknown)


def _asked(using: str, topic: models.Topic, event_id: int, meets: sql.Statement) -> list[Fate]:
    statement = SQL.fates.on(log=log_table(topic.pk), meets=meets)
    return [Fate._make(row) for row in sql.fetch(using, statement, topic_id=topic.pk, event_id=event_id)]
