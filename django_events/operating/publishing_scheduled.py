"""An operator has scheduled events published now, instead of when their time has come.

publish_scheduled(ScheduledEvent.objects.filter(topic__name="reminders", key="7"), reason="the sale begins today")
"""

from collections.abc import Iterable
from itertools import groupby

from django_events import sql
from django_events.log import channel
from django_events.models import ScheduledEvent
from django_events.operating.cancelling import NAMED, locked
from django_events.operating.interventions import record_of_topic

SQL = sql.beside(__name__)


def publish_scheduled(
    scheduled: Iterable[ScheduledEvent], *, reason: str = "", by: str | None = None, dry_run: bool = False
) -> int:
    """Let the time of these scheduled events be now; the transfer then publishes them. Returns how many.

    In one transaction, all or none, in the order in which they would have been published. Those that were published or
    cancelled meanwhile are left out. InUse names the session that keeps one locked. Repeating it before they are
    published changes nothing but their order among others that are due.
    """
    with locked(scheduled) as (using, found):
        if not dry_run and found:
            for topic, of_topic in groupby(found, key=lambda row: row.topic):
                tickets = [row.pk for row in of_topic]
                record_of_topic(
                    using, topic, "publish", by=by, reason=reason, count=len(tickets), tickets=tickets[:NAMED]
                )
            sql.fetch(using, SQL.due_now, tickets=[row.pk for row in found])
            sql.fetch(using, sql.shared.notify, channel=channel.WAKE_UP, payload="")
    return len(found)
