"""Roll-ups that have as many groups as they may, or lately left out an event: kinds `groups` and `left out`."""

from collections.abc import Iterator

from django.utils.translation import gettext

from django_events import models
from django_events.models.functions import ClockTimestamp
from django_events.observing import counted
from django_events.observing.commands import events_command
from django_events.observing.findings import Finding
from django_events.observing.problems.situation import Situation
from django_events.observing.problems.telling import TOLD_FOR, problem
from django_events.phrases import moment


def left_out_or_full(seen: Situation) -> Iterator[Finding]:
    names = {consumer for consumer, _ in seen.declared}
    rows = (
        models.RollUp.objects.using(seen.using).filter(name__in=names).annotate(now=ClockTimestamp()).order_by("name")
    )
    for row, topic in [(row, topic) for row in rows for name, topic in sorted(seen.declared) if name == row.name]:
        if row.full_since is not None:
            what = gettext(
                "has %(groups)s groups since %(moment)s, as many as it may: further ones are counted together."
            ) % {"groups": f"{row.most_groups:,}", "moment": moment(row.full_since)}
            remedy = gettext(
                "Is the group one that never ends, like a number of an order? Or let it have more: %(way)s"
            ) % {"way": "rollup(…, groups=…)"}
            yield problem("groups", row.name, topic, None, what, remedy)
        if row.left_out_at is not None and row.now - row.left_out_at < TOLD_FOR:
            what = gettext("%(events)s left out, which can't be counted, the last at %(moment)s.") % {
                "events": counted.events(row.left_out),
                "moment": moment(row.left_out_at),
            }
            remedy = gettext("Does its filter fail on a value? After the repair, count anew: %(command)s") % {
                "command": events_command(seen.using, "rebuild", row.name)
            }
            yield problem("left out", row.name, topic, None, f"{what} {row.error}", remedy)
