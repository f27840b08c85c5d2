"""Consumers that stand still until a person lets them go on: kinds `stopped` and `paused`."""

from collections.abc import Iterator

from django.utils.translation import gettext

from django_events import models
from django_events.observing import counted
from django_events.observing.commands import events_command
from django_events.observing.findings import Finding
from django_events.observing.lag import Standing
from django_events.observing.problems.situation import Situation
from django_events.observing.problems.telling import events_behind, of_consumer, of_partition
from django_events.phrases import moment


def stopped(seen: Situation) -> Iterator[Finding]:
    for one in seen.standings:
        if one.state == "stopped":
            remedy = gettext("Repair the cause, then: %(command)s") % {
                "command": events_command(seen.using, "resume", one.consumer)
            }
            yield of_partition(one, "stopped", f"{_where_it_stopped(one)} {one.error}", remedy)


def _where_it_stopped(one: Standing) -> str:
    facts = {
        "event": f"{one.topic}/{one.attempted}",
        "position": f"{one.topic}/{one.position}",
        "attempts": counted.attempts(one.attempts),
    }
    if one.attempted and one.attempts:
        return gettext("stopped at %(event)s after %(attempts)s.") % facts
    if one.attempted:
        return gettext("stopped at %(event)s.") % facts
    if one.attempts:
        return gettext("stopped behind %(position)s after %(attempts)s.") % facts
    return gettext("stopped behind %(position)s.") % facts


def paused(seen: Situation) -> Iterator[Finding]:
    disabled = models.WebhookEndpoint.objects.using(seen.using).exclude(disabled_because="")
    told = set(disabled.values_list("consumer_id", flat=True))  # as disabled
    for one in seen.standings:
        if one.paused_at is not None and one.consumer_id not in told:
            what = gettext("paused since %(moment)s, %(events)s behind.") % {
                "moment": moment(one.paused_at),
                "events": events_behind(one),
            }
            yield of_consumer(one, "paused", what, events_command(seen.using, "resume", one.consumer))
