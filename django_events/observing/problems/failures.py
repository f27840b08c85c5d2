"""Events that failed, and wait for their next attempt or were given up: kinds `retrying` and `dead letters`."""

from collections.abc import Iterator

from django.utils.translation import gettext

from django_events import declarations, models, sql
from django_events.observing import counted
from django_events.observing.commands import events_command
from django_events.observing.findings import Finding
from django_events.observing.lag import Standing
from django_events.observing.problems.situation import Situation
from django_events.observing.problems.telling import LATE, is_running, of_consumer, of_partition
from django_events.phrases import moment


def retrying(seen: Situation) -> Iterator[Finding]:
    """Events that failed. One that is due already and is not attempted waits for a worker, or for a program.

    One without attempts is not to blame, and has failed no time: a relay's target is down, say.
    """
    failed = [(one, at) for one in seen.standings if one.state == "retrying" and (at := one.retry_at) is not None]
    if not failed:
        return
    now = sql.now(seen.using)
    endpoints = set(models.WebhookEndpoint.objects.using(seen.using).values_list("consumer_id", flat=True))
    for one, retry_at in failed:
        facts = {
            "event": f"{one.topic}/{one.attempted}",
            "times": counted.times(one.attempts),
            "moment": moment(retry_at),
        }
        if retry_at > now - LATE:
            what = gettext("%(event)s failed %(times)s, next at %(moment)s.")
            if not one.attempts:
                what = gettext("%(event)s and all behind it wait, next at %(moment)s.")
            remedy = gettext("To try again now: %(command)s") % {
                "command": events_command(seen.using, "retry-now", one.consumer)
            }
        elif one.consumer_id in endpoints:
            what = gettext("%(event)s failed %(times)s, is due since %(moment)s, and no process sends it.")
            remedy = is_running(seen.using, "run_webhooks")
        elif _is_for_claims(one):
            what = gettext("%(event)s failed %(times)s, is due since %(moment)s, and no program claims it.")
            remedy = gettext("Is the program running that claims from it? By hand: %(command)s") % {
                "command": events_command(seen.using, "claim", one.consumer)
            }
        else:
            what = gettext("%(event)s failed %(times)s, is due since %(moment)s, and no worker takes it.")
            if not one.attempts:
                what = gettext("%(event)s and all behind it wait, due since %(moment)s, and no worker takes them.")
            remedy = is_running(seen.using, "run_consumer", one.consumer)
        yield of_partition(one, "retrying", f"{what % facts} {one.error}", remedy)


def _is_for_claims(one: Standing) -> bool:
    """Whether programs claim its events: as declared, or by `subscribe()`."""
    found = next((consumer for consumer in declarations.consumers if consumer.name == one.consumer), None)
    return one.mode == "queue" and (found is None or found.is_for_claims)


def dead_letters(seen: Situation) -> Iterator[Finding]:
    for one in seen.standings:
        if one.dead_letters:
            what = f"{counted.dead_letters(one.dead_letters, more=one.more_dead_letters)}."
            yield of_consumer(one, "dead letters", what, events_command(seen.using, "dead-letters", one.consumer))
