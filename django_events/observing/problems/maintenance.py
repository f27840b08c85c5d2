"""Steps of maintenance that fail, or did not run lately: kind `maintenance`."""

from collections.abc import Iterator
from datetime import timedelta

from django.utils.translation import gettext

from django_events import models
from django_events.models.functions import ClockTimestamp
from django_events.observing.commands import events_command
from django_events.observing.findings import Finding
from django_events.observing.problems.situation import Situation
from django_events.observing.problems.telling import is_running, problem
from django_events.phrases import moment

UNMAINTAINED = timedelta(minutes=15)


def maintenance(seen: Situation) -> Iterator[Finding]:
    """Where none ever ran, the site is new: no problem."""
    steps = list(models.MaintenanceStep.objects.using(seen.using).annotate(now=ClockTimestamp()).order_by("name"))
    for step in steps:
        if step.error and step.failing_since is not None:
            what = gettext("the step %(step)s fails since %(moment)s. %(error)s") % {
                "step": step.name,
                "moment": moment(step.failing_since),
                "error": step.error,
            }
            yield problem("maintenance", None, None, None, what, events_command(seen.using, "maintain", step.name))
    ended = [(step.now - step.finished_at, step.finished_at) for step in steps if step.finished_at is not None]
    if ended and min(ended)[0] > UNMAINTAINED:
        what = gettext("none since %(moment)s.") % {"moment": moment(min(ended)[1])}
        yield problem("maintenance", None, None, None, what, is_running(seen.using, "run_transfer"))
