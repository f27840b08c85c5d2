"""The problems of a database, most important first, each with what to do about it: a module for each subject.

found = find_problems(using, waiting(using), next_scheduled(using), standings(using))
"""

from collections.abc import Iterable, Sequence

from django.utils.translation import gettext

from django_events.log.inventory import NextScheduled, Waiting
from django_events.observing import counted
from django_events.observing.commands import manage_command
from django_events.observing.findings import Finding, Subject
from django_events.observing.lag import Standing
from django_events.observing.problems import (
    failures,
    inboxes,
    maintenance,
    registrations,
    retention,
    rollups,
    serving,
    set_aside,
    stopped,
    transactions,
    transfers,
    webhooks,
)
from django_events.observing.problems.situation import Situation, declared_here

MOST_IMPORTANT_FIRST = (
    transfers.late,
    transfers.overdue,
    transfers.overdue_ticks,
    stopped.stopped,
    set_aside.set_aside,
    transactions.prepared,
    serving.unserved,
    serving.hung,
    failures.retrying,
    failures.dead_letters,
    rollups.left_out_or_full,
    transactions.held_back,
    transactions.bloated,
    registrations.not_registered,
    registrations.declared_otherwise,
    webhooks.endpoints,
    inboxes.inboxes,
    registrations.undeclared,
    retention.expired,
    retention.behind_retention,
    maintenance.maintenance,
    stopped.paused,
)


def find_problems(
    using: str, waiting: Iterable[Waiting], scheduled: NextScheduled | None, standings: Sequence[Standing]
) -> list[Finding]:
    """Judge what was seen in the buffer, among the scheduled events and of the consumers, and look at the rest."""
    seen = Situation(using, list(waiting), scheduled, standings, declared_here())
    return [problem for find in MOST_IMPORTANT_FIRST for problem in find(seen)]


def together(using: str, found: Iterable[Finding]) -> list[Finding]:
    """For people: one worker that is dead is one problem, of however many consumers; the others as they are."""
    found = list(found)
    alike = [one for one in found if one.data.get("command") == serving.COMMAND_OF_WORKERS]
    if len(alike) < 2:
        return found
    names = list(dict.fromkeys(str(one.subject.consumer) for one in alike))
    what = gettext("%(consumers)s are unserved, no worker handles their events: %(names)s.") % {
        "consumers": counted.consumers(len(names)),
        "names": ", ".join(names),
    }
    command = manage_command(using, "run_consumer", *names)
    told = alike[0]._replace(
        subject=Subject(), what=what, remedy=gettext("Is one running? %(command)s") % {"command": command}
    )
    return [told if one is alike[0] else one for one in found if one is alike[0] or one not in alike]
