"""Consumers that lost events to retention, or that it waits for: kinds `expired` and `behind retention`."""

from collections.abc import Iterator

from django.utils.translation import gettext

from django_events import models
from django_events.models.functions import ClockTimestamp
from django_events.observing import counted
from django_events.observing.commands import events_command
from django_events.observing.findings import Finding
from django_events.observing.lag import Standing, oldest_waits
from django_events.observing.problems.situation import Declared, Situation
from django_events.observing.problems.telling import (
    LOOKED_INTO,
    TOLD_FOR,
    events_behind,
    of_consumer,
    problem,
    unregister,
)
from django_events.phrases import duration, moment


def expired(seen: Situation) -> Iterator[Finding]:
    """Consumers that retention lately moved past events they had not handled, as keep_unread=False allows."""
    lately = models.Intervention.objects.using(seen.using).filter(action="expire", at__gt=ClockTimestamp() - TOLD_FOR)
    by_consumer: dict[tuple[str, str], list[models.Intervention]] = {}
    for one in lately.order_by("-pk")[:LOOKED_INTO]:
        by_consumer.setdefault((one.consumer, one.topic), []).append(one)
    for (consumer, topic), times in by_consumer.items():
        what = gettext("%(events)s, up to %(event)s, expired before they were handled, at %(moment)s.") % {
            "events": counted.events(sum(one.details["events"] for one in times)),
            "event": f"{topic}/{max(one.details['last'] for one in times)}",
            "moment": moment(times[0].at),
        }
        remedy = gettext("Is it slow? More workers, or keep what is unread: topic(…, keep_unread=True)")
        yield problem("expired", consumer, topic, None, what, remedy)


def behind_retention(seen: Situation) -> Iterator[Finding]:
    """Consumers for which the log is kept longer than its topic asks. The longest lags are looked into first."""
    kept = dict(models.Topic.objects.using(seen.using).exclude(retention=None).values_list("name", "retention"))
    behind = [one for one in seen.standings if one.lag and one.topic in kept]
    behind = sorted(behind, key=lambda one: one.lag, reverse=True)[:LOOKED_INTO]
    waits = oldest_waits(seen.using, [one.consumer_id for one in behind])
    for one in behind:
        age, retention = waits.get(one.consumer_id), kept[one.topic]
        if age is not None and retention is not None and age > retention:
            what = gettext(
                "%(events)s behind, the oldest for %(time)s: %(topic)s keeps events for %(retention)s, these longer."
            ) % {
                "events": events_behind(one),
                "time": duration(age),
                "topic": one.topic,
                "retention": duration(retention),
            }
            yield of_consumer(one, "behind retention", what, _catch_up(seen.using, one, seen.declared))


def _catch_up(using: str, one: Standing, declared: Declared) -> str:
    if (one.consumer, one.topic) not in declared:
        return unregister(using, one)
    if one.paused_at is not None or one.state == "stopped":
        return gettext("Let it go on: %(resume)s, or leave them out: %(rewind)s") % {
            "resume": events_command(using, "resume", one.consumer),
            "rewind": events_command(using, "rewind", one.consumer, "--to end"),
        }
    return gettext("Is it slow? More workers, or leave them out: %(rewind)s") % {
        "rewind": events_command(using, "rewind", one.consumer, "--to end")
    }
