"""Inboxes: kinds `inbox`, `inbox waits`, `unreadable` and `messages gone`, and those that consumers have, too.

What was lost or could not be read is told for a day.
"""

from collections.abc import Iterator
from datetime import datetime

from django.utils.translation import gettext

from django_events import declarations, models
from django_events.models.functions import ClockTimestamp
from django_events.observing.commands import events_command
from django_events.observing.findings import Finding
from django_events.observing.inbox_states import state_of
from django_events.observing.problems.situation import Situation
from django_events.observing.problems.telling import LATE, TOLD_FOR, is_running, problem
from django_events.phrases import moment


def inboxes(seen: Situation) -> Iterator[Finding]:
    """Those that the database knows, and those that an app declares and it doesn't know."""
    rows = models.Inbox.objects.using(seen.using).select_related("topic").annotate(now=ClockTimestamp())
    known = {row.name: row for row in rows.order_by("name")}
    for row in known.values():
        yield from _of_row(seen.using, row, row.now)
    for one in declarations.inboxes:
        if one.name not in known:
            what = gettext("inbox %(inbox)s is declared at %(place)s, and not registered in the database %(database)s.")
            facts = {"inbox": one.name, "place": one.declared_at, "database": repr(seen.using)}
            remedy = f"manage.py migrate --database {seen.using}"
            found = problem("not registered", None, one.topic, None, what % facts, remedy)
            yield found._replace(data={"inbox": one.name})


def _of_row(using: str, row: models.Inbox, now: datetime) -> Iterator[Finding]:
    """What keeps an inbox from taking in, and what was lately lost or could not be read."""
    state = state_of(row, now)
    if state == "undeclared":
        what = gettext("inbox %(inbox)s: no installed app declares it.") % {"inbox": row.name}
        remedy = gettext("If it is gone for good: %(command)s") % {
            "command": events_command(using, "inbox", "remove", row.name, "--execute")
        }
        yield _of_inbox("undeclared", row, what, remedy)
        return
    if state == "paused" and row.paused_at is not None:
        what = gettext("inbox %(inbox)s: paused since %(moment)s.") % {
            "inbox": row.name,
            "moment": moment(row.paused_at),
        }
        remedy = gettext("To let it go on: %(command)s") % {
            "command": events_command(using, "inbox", "resume", row.name)
        }
        yield _of_inbox("paused", row, what, remedy)
    elif state == "unserved" or row.served_at is None:
        what = gettext("inbox %(inbox)s: no worker takes in what comes from %(source)s.") % {
            "inbox": row.name,
            "source": row.source,
        }
        yield _of_inbox("unserved", row, what, is_running(using, "run_inbox", row.name))
    elif row.failing_since is not None and now - row.failing_since > LATE:
        what = gettext("inbox %(inbox)s takes nothing in since %(moment)s.") % {
            "inbox": row.name,
            "moment": moment(row.failing_since),
        }
        remedy = gettext("It tries again by itself. Repair what it says.")
        yield _of_inbox("inbox", row, f"{what} {row.error}", remedy)
    elif state == "waiting" and row.waiting_since is not None and now - row.waiting_since > LATE:
        what = gettext("inbox %(inbox)s has waited since %(moment)s, so that events don't pile up behind it.") % {
            "inbox": row.name,
            "moment": moment(row.waiting_since),
        }
        remedy = gettext("It goes on by itself. Messages wait in %(source)s, as long as that keeps them.")
        yield _of_inbox("inbox waits", row, f"{what} {row.error}", remedy % {"source": row.source})
    if row.unreadable_at is not None and now - row.unreadable_at < TOLD_FOR:
        what = gettext("inbox %(inbox)s could not read %(messages)s, the last at %(moment)s.") % {
            "inbox": row.name,
            "messages": f"{row.unreadable:,}",
            "moment": moment(row.unreadable_at),
        }
        remedy = gettext("They are events of the topic: %(command)s") % {
            "command": events_command(using, "peek", row.topic.name, "--type", "inbox.unreadable")
        }
        yield _of_inbox("unreadable", row, what, remedy)
    if row.gone_at is not None and now - row.gone_at < TOLD_FOR:
        what = gettext("inbox %(inbox)s goes on without %(messages)s that its source removed, at %(moment)s.") % {
            "inbox": row.name,
            "messages": f"{row.gone:,}",
            "moment": moment(row.gone_at),
        }
        remedy = gettext("Let the source keep messages for longer, or serve the inbox all the time.")
        yield _of_inbox("messages gone", row, what, remedy)


def _of_inbox(kind: str, row: models.Inbox, what: str, remedy: str) -> Finding:
    return problem(kind, None, row.topic.name, None, what, remedy)._replace(data={"inbox": row.name})
