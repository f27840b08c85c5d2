"""How a log that takes no events, or can't be read, is repaired, by what the server said when it failed."""

from django.utils.translation import gettext

from django_events import models, sql
from django_events.log.setbacks import HEADLESS, HIDDEN
from django_events.observing.commands import events_command, manage_command
from django_events.statements import log_table


def of_log(using: str, row: models.Topic) -> str:
    log = log_table(row.pk)
    if row.failure == HEADLESS:
        return gettext("Make the row again, see %(page)s") % {"page": "docs/how-to/repair.md"}
    if row.failure == HIDDEN:
        return seeing_all()
    kind = sql.kind_of_state(row.failure)
    if kind is sql.ErrorKind.TABLE_EXISTS:
        return gettext(
            "A table has the name of the next segment of %(log)s. Attach it, if it is one that was detached; otherwise "
            "rename it or drop it."
        ) % {"log": log}
    if kind is sql.ErrorKind.TABLE_GONE:
        return gettext("Was its log dropped? Restore it, or make a new one: %(command)s") % {
            "command": manage_command(using, "migrate")
        }
    if kind is sql.ErrorKind.FORBIDDEN:
        return gettext("Give %(log)s its owner and rights back: %(command)s") % {
            "log": log,
            "command": events_command(using, "grants", "--role operator"),
        }
    if kind is sql.ErrorKind.DISK_FULL:
        return gettext("Make room on the disk where %(log)s is.") % {"log": log}
    return gettext("Take back what was added to %(log)s or its segments: constraints, columns, triggers, policies.") % {
        "log": log
    }


def seeing_all() -> str:
    command = "ALTER TABLE … DISABLE ROW LEVEL SECURITY"
    return gettext("Let its role see all rows: %(command)s (of its owner: NO FORCE), or ALTER ROLE … BYPASSRLS") % {
        "command": command
    }
