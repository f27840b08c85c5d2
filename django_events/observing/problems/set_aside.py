"""Consumers that workers can't serve, because their log can't be read or their filter fails: kind `set aside`."""

from collections.abc import Iterator

from django.utils.translation import gettext

from django_events import models, sql
from django_events.log.setbacks import HIDDEN, MISSING
from django_events.observing.commands import events_command
from django_events.observing.findings import Finding
from django_events.observing.problems import repairs
from django_events.observing.problems.situation import Situation
from django_events.observing.problems.telling import problem
from django_events.phrases import moment
from django_events.statements import log_table


def set_aside(seen: Situation) -> Iterator[Finding]:
    rows = models.Consumer.objects.using(seen.using).exclude(failure="").filter(paused_at=None).select_related("topic")
    for row in rows.order_by("name", "topic__name"):
        what = gettext("can't be served since %(moment)s.") % {
            "moment": moment(row.failing_since) if row.failing_since else ""
        }
        yield problem("set aside", row.name, row.topic.name, None, f"{what} {row.error}", _of_consumer(seen.using, row))


def _of_consumer(using: str, row: models.Consumer) -> str:
    """What lets a consumer be served again, by what the server said. Its workers then find out by themselves."""
    if row.failure == HIDDEN:
        return repairs.seeing_all()
    if row.failure == MISSING:
        return _beyond(using, row)
    kind = sql.kind_of_state(row.failure)
    derived = models.RollUp.objects.using(using).filter(name=row.name).first()
    if derived is not None and derived.table in row.error:
        return gettext("Repair the table of the roll-up, %(table)s; or make it anew: %(command)s") % {
            "table": derived.table,
            "command": events_command(using, "rebuild", row.name),
        }
    if kind is sql.ErrorKind.TABLE_GONE:
        return repairs.of_log(using, models.Topic(pk=row.topic_id, failure=row.failure))
    if kind is sql.ErrorKind.FORBIDDEN:
        return gettext("Give %(log)s its owner and rights back: %(command)s") % {
            "log": log_table(row.topic_id),
            "command": events_command(using, "grants", "--role consumer"),
        }
    return gettext("Repair %(log)s, if it was changed by hand, or the filter of the consumer.") % {
        "log": log_table(row.topic_id)
    }


def _beyond(using: str, row: models.Consumer) -> str:
    """How a consumer gets over an event that is missing, once that is known to be gone for good."""
    skip, rewind = ("skip", row.name, f"{row.topic.name}/ID", "--reason …"), ("rewind", row.name, "--to ID")
    return gettext("Find out what is missing: %(verify)s. If it is gone for good, go on without it: %(going_on)s") % {
        "verify": events_command(using, "verify", "--topic", row.topic.name),
        "going_on": events_command(using, *(skip if row.mode == "queue" else rewind)),
    }
