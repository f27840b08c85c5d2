"""Webhook endpoints: kinds `webhook disabled` and `webhook fails`, and `unserved` of those that no process serves."""

from collections.abc import Iterator
from datetime import timedelta

from django.utils.translation import gettext

from django_events import models
from django_events.models.functions import ClockTimestamp
from django_events.observing.commands import events_command
from django_events.observing.findings import Finding
from django_events.observing.lag import oldest_waits
from django_events.observing.problems.serving import UNSERVED, registered_for
from django_events.observing.problems.situation import Situation
from django_events.observing.problems.telling import events_behind, is_running, of_consumer
from django_events.phrases import duration, moment

FAILS = timedelta(minutes=10)  # nothing can be delivered


def endpoints(seen: Situation) -> Iterator[Finding]:
    found = models.WebhookEndpoint.objects.using(seen.using).annotate(now=ClockTimestamp())
    rows = {row.consumer_id: row for row in found}
    of_endpoints = [one for one in seen.standings if one.consumer_id in rows]
    waits = oldest_waits(seen.using, [one.consumer_id for one in of_endpoints], due=True) if of_endpoints else {}
    registered = registered_for(seen.using, waits)
    for one in of_endpoints:
        row, age = rows[one.consumer_id], waits.get(one.consumer_id)
        if one.paused_at is not None:
            if row.disabled_because:
                what = gettext("disabled since %(moment)s, %(events)s behind: %(reason)s.") % {
                    "moment": moment(one.paused_at),
                    "events": events_behind(one),
                    "reason": row.disabled_because.rstrip("."),
                }
                yield of_consumer(one, "webhook disabled", what, events_command(seen.using, "resume", one.consumer))
        elif row.failing_since is not None and row.now - row.failing_since > FAILS:
            what = gettext("nothing could be delivered since %(moment)s, %(events)s behind.") % {
                "moment": moment(row.failing_since),
                "events": events_behind(one),
            }
            remedy = gettext("To try again now: %(command)s") % {
                "command": events_command(seen.using, "retry-now", one.consumer)
            }
            yield of_consumer(one, "webhook fails", what, remedy)
        elif (
            row.failing_since is None
            and age is not None
            and min(age, registered[one.consumer_id]) > UNSERVED
            and (one.unserved_for is None or one.unserved_for > UNSERVED)
        ):
            what = gettext("%(events)s behind, the oldest for %(time)s: no process sends them.") % {
                "events": events_behind(one),
                "time": duration(age),
            }
            yield of_consumer(one, "unserved", what, is_running(seen.using, "run_webhooks"))
