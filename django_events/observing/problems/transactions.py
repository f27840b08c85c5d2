"""Transactions that keep what others need: locked rows, or dead ones. Kinds `prepared`, `snapshot` and `bloat`."""

from collections.abc import Iterator
from datetime import timedelta

from django.utils.translation import gettext

from django_events import sql
from django_events.observing.dead_rows import Holder, Pile, holders, piles
from django_events.observing.findings import Finding
from django_events.observing.problems.situation import Situation
from django_events.observing.problems.telling import LATE, LOOKED_INTO, problem
from django_events.phrases import duration, moment
from django_events.statements import quoted

OLD = timedelta(hours=1)  # a snapshot
UNCLEANED = timedelta(minutes=10)  # a table of dead rows: autovacuum looks once a minute


def prepared(seen: Situation) -> Iterator[Finding]:
    """Forgotten prepared transactions that lock rows which workers or transfers write."""
    for name, role, table, age, consumer, topic in sql.fetch(seen.using, sql.shared.prepared, age=LATE):
        what = gettext("The prepared transaction %(name)s of %(role)s has held rows of %(table)s for %(time)s.") % {
            "name": repr(name),
            "role": role,
            "table": table,
            "time": duration(age),
        }
        literal = quoted(name)
        remedy = gettext(
            "If a handler prepared it, undo it: %(rollback)s. Otherwise as its owner wants: %(commit)s"
        ) % {
            "rollback": f"ROLLBACK PREPARED {literal}",
            "commit": f"COMMIT PREPARED {literal}",
        }
        yield problem("prepared", consumer, topic, None, what, remedy)


def held_back(seen: Situation) -> Iterator[Finding]:
    for holder in holders(seen.using, age=OLD, most=LOOKED_INTO):
        what = gettext("%(holder)s: dead rows pile up, and every look gets slower.") % {"holder": _holder(holder)}
        yield problem("snapshot", None, None, None, what, _end_of(holder))


def bloated(seen: Situation) -> Iterator[Finding]:
    """A table that is busy has dead rows of the last minutes, which is no problem."""
    for pile in piles(seen.using):
        facts = {"table": pile.table, "dead": f"{pile.dead:,}", "live": f"{pile.live:,}"}
        if pile.cleaned_at is None or pile.cleaned_before is None:
            what = gettext("%(table)s has %(dead)s dead rows, %(live)s live ones, and was never vacuumed.")
            yield _uncleaned(pile, what % facts)
        elif pile.cleaned_before > UNCLEANED:
            what = gettext("%(table)s has %(dead)s dead rows, %(live)s live ones: no vacuum came since %(moment)s.")
            yield _uncleaned(pile, what % {**facts, "moment": moment(pile.cleaned_at)})
        else:
            for holder in holders(seen.using, age=UNCLEANED, most=1):
                what = gettext("%(table)s has %(dead)s dead rows, %(live)s live ones: no vacuum can help. %(holder)s.")
                yield problem("bloat", None, None, None, what % {**facts, "holder": _holder(holder)}, _end_of(holder))


def _uncleaned(pile: Pile, what: str) -> Finding:
    remedy = gettext("VACUUM %(table)s. Is autovacuum on, and free to come? SHOW autovacuum") % {"table": pile.table}
    return problem("bloat", None, None, None, what, remedy)


def _holder(one: Holder) -> str:
    facts = {**one._asdict(), "moment": moment(one.since) if one.since else ""}
    if one.kind == "slot":
        return gettext("Replication slot %(name)s needs rows that are dead for long") % facts
    if one.kind == "prepared":
        return gettext("Prepared transaction %(name)s of %(role)s is open since %(moment)s") % facts
    if one.application:
        return gettext("Session %(name)s of %(role)s (%(application)s) has a transaction open since %(moment)s") % facts
    return gettext("Session %(name)s of %(role)s has a transaction open since %(moment)s") % facts


def _end_of(one: Holder) -> str:
    """The SQL that ends the session, or the prepared transaction."""
    name = quoted(one.name)
    if one.kind == "slot":
        command = f"SELECT pg_drop_replication_slot({name})"
        return gettext("Let its reader go on, or if it is gone for good: %(command)s") % {"command": command}
    if one.kind == "prepared":
        commands = {"commit": f"COMMIT PREPARED {name}", "rollback": f"ROLLBACK PREPARED {name}"}
        return gettext("%(commit)s, or %(rollback)s") % commands
    return gettext("End it, or its session: %(command)s") % {"command": f"SELECT pg_terminate_backend({one.name})"}
