"""How each problem is told: its kind, its severity, and the sentences that several problems share.

    yield of_consumer(standing, "undeclared", what, unregister(using, standing))

`what` and `remedy` are in the reader's language, commands in them are not. A `kind` is a name.
"""

from datetime import timedelta

from django.utils.translation import gettext

from django_events import models
from django_events.observing import counted
from django_events.observing.commands import events_command, manage_command
from django_events.observing.findings import Finding, Severity, Subject
from django_events.observing.lag import Standing

# In the kinds that are errors events don't move, or can be lost.
KINDS: dict[str, Severity] = {
    "transfer": "error",
    "clock": "error",
    "stopped": "error",
    "set aside": "error",
    "prepared": "error",
    "unserved": "error",
    "hung": "error",
    "retrying": "warning",
    "dead letters": "warning",
    "groups": "warning",
    "left out": "warning",
    "snapshot": "error",
    "bloat": "error",
    "not registered": "error",
    "declared otherwise": "warning",
    "webhook disabled": "error",
    "webhook fails": "warning",
    "inbox": "error",
    "inbox waits": "warning",
    "unreadable": "warning",
    "messages gone": "warning",
    "undeclared": "warning",
    "expired": "warning",
    "behind retention": "warning",
    "maintenance": "warning",
    "paused": "warning",
}

LATE = timedelta(seconds=10)
TOLD_FOR = timedelta(days=1)  # what is over, like events that expired before they were handled
LOOKED_INTO = 20  # consumers; where so many have a problem, one more tells nothing new


def problem(
    kind: str, consumer: str | None, topic: str | None, partition: int | None, what: str, remedy: str
) -> Finding:
    return Finding(kind, KINDS[kind], Subject(consumer, topic, partition), what, remedy, {})


def of_consumer(one: Standing, kind: str, what: str, remedy: str) -> Finding:
    return problem(kind, one.consumer, one.topic, None, what, remedy)


def of_partition(one: Standing, kind: str, what: str, remedy: str) -> Finding:
    what = what.strip()
    facts = {"partition": one.partition, "what": what, "others": counted.others(one.in_state - 1)}
    if one.partition != models.Position.ALL and one.in_state > 1:
        what = gettext("partition %(partition)s and %(others)s: %(what)s") % facts
    elif one.partition != models.Position.ALL:
        what = gettext("partition %(partition)s: %(what)s") % facts
    data = {"event": one.attempted} if one.attempted else {}
    return problem(kind, one.consumer, one.topic, one.partition, what, remedy)._replace(data=data)


def events_behind(one: Standing) -> str:
    return counted.events(one.lag, more=one.more_lag)


def is_running(using: str, *words: str) -> str:
    return gettext("Is one running? %(command)s") % {"command": manage_command(using, *words)}


def is_running_as_registered(using: str, *words: str) -> str:
    """Of a consumer that was never served: workers that were started before it was registered don't know it."""
    return gettext("Is one running? %(command)s, or restart those that run: they have the former code") % {
        "command": manage_command(using, *words)
    }


def unregister(using: str, one: Standing) -> str:
    command = events_command(using, "unregister", one.consumer, "--topic", one.topic)
    return gettext("If it is gone for good: %(command)s") % {"command": command}
