"""The problems of a database, most important first, each with what to do about it.

`what` and `remedy` are in the reader's language, commands in them are not. A `kind` is a name.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from django.utils.translation import gettext

from django_events import declarations, models, sql
from django_events.consuming.subscriptions import declared_otherwise, made_by_of
from django_events.exceptions import HandlerNotFound
from django_events.log.holders import LockHolder
from django_events.log.holders import holders as lock_holders
from django_events.log.inventory import NextScheduled, Waiting
from django_events.log.setbacks import HEADLESS, HIDDEN, MISSING
from django_events.models.functions import ClockTimestamp
from django_events.observing import counted
from django_events.observing.dead_rows import Holder, Pile, holders, piles
from django_events.observing.findings import Finding, Severity, Subject
from django_events.observing.inbox_states import state_of
from django_events.observing.lag import Standing, oldest_waits
from django_events.phrases import duration, moment
from django_events.statements import log_table, quoted

SQL = sql.beside(__name__)

LATE = timedelta(seconds=10)
HUNG = timedelta(minutes=10)  # in hand; of a consumer with a time-out, as much longer than that
UNSERVED = timedelta(seconds=60)
HELD = timedelta(hours=1)  # an old snapshot
FAILS = timedelta(minutes=10)  # a webhook endpoint, to which nothing can be delivered
UNCLEANED = timedelta(minutes=10)  # a table of dead rows: autovacuum looks once a minute
TOLD_FOR = timedelta(days=1)  # what expired before it was handled
UNMAINTAINED = timedelta(minutes=15)
COMMAND_OF_WORKERS = "manage.py run_consumer"
LOOKED_INTO = 20  # consumers; where so many have a problem, one more tells nothing new

# In these kinds events don't move, or can be lost; the others are warnings.
ERRORS = {
    "transfer",
    "clock",
    "stopped",
    "set aside",
    "prepared",
    "unserved",
    "hung",
    "snapshot",
    "bloat",
    "not registered",
    "webhook disabled",
    "inbox",
}

Declared = set[tuple[str, str]]


def find_problems(
    using: str, waiting: Iterable[Waiting], scheduled: NextScheduled | None, standings: list[Standing]
) -> list[Finding]:
    """Judge what was seen in the buffer, among the scheduled events and of the consumers, and look at dead rows."""
    declared = {(consumer.name, topic) for consumer in declarations.consumers for topic in consumer.topics}
    return [
        *_late(using, list(waiting)),
        *_overdue(scheduled),
        *_overdue_ticks(using),
        *_stopped(standings),
        *_set_aside(using),
        *_prepared(using),
        *_unserved(using, declared, standings),
        *_hung(using),
        *_retrying(using, standings),
        *_dead(standings),
        *_rolled_up(using, declared),
        *_held_back(using),
        *_bloated(using),
        *_unregistered(using, declared, standings),
        *_declared_otherwise(using, declared),
        *_webhooks(using, standings),
        *_inboxes(using),
        *_undeclared(declared | _subscribed(using), standings),
        *_expired(using),
        *_behind_retention(using, declared, standings),
        *_maintenance(using),
        *_paused(using, standings),
    ]


def _late(using: str, waiting: Sequence[Waiting]) -> Iterator[Finding]:
    """Events that wait: for a transfer, for a session that holds a lock, or for the repair of a log."""
    ids = [one.topic_id for one in waiting]
    topics = models.Topic.objects.using(using).in_bulk(ids)
    failing = {pk: row for pk, row in topics.items() if row.failure}
    mirrors = {pk for pk, row in topics.items() if row.mirror_of or row.name in declarations.inboxes.mirrors}
    late = [one for one in waiting if one.age > LATE and one.topic_id not in {*failing, *mirrors}]
    held: dict[int, LockHolder] = {}
    for holder in lock_holders(using, [one.topic_id for one in late[:LOOKED_INTO]]) if late else []:
        held.setdefault(holder.topic_id, holder)
    left = [one for one in late if one.topic_id not in held]
    if left:
        yield _not_moved(left)
    for one in waiting:
        facts: dict[str, object] = {"events": counted.events(one.events, more=one.more), "time": duration(one.age)}
        if one.topic_id in mirrors:
            yield _left_by_mirror(one, facts)
        elif one.topic_id in failing:
            yield _failing(failing[one.topic_id], facts)
        elif one.topic_id in held:
            yield _held(one, held[one.topic_id], facts)


def _not_moved(late: Sequence[Waiting]) -> Finding:
    """One process that is dead is one problem, of however many topics."""
    facts = {
        "events": counted.events(sum(one.events for one in late), more=any(one.more for one in late)),
        "time": duration(max(one.age for one in late)),
        "topics": counted.topics(len(late)),
    }
    if len(late) == 1:
        topic, what = (
            late[0].topic,
            gettext("%(events)s in the buffer, the oldest for %(time)s: no transfer moves them."),
        )
    else:
        topic = None
        what = gettext("%(events)s of %(topics)s in the buffer, the oldest for %(time)s: no transfer moves them.")
    found = _problem("transfer", None, topic, None, what % facts, _is_running("run_transfer"))
    return found._replace(data={"topics": sorted(one.topic for one in late)})


def _held(one: Waiting, holder: LockHolder, facts: dict[str, object]) -> Finding:
    if holder.kind == "headless":
        row = models.Topic(pk=one.topic_id, name=one.topic, failure=HEADLESS)
        what = gettext("%(events)s in the buffer, the oldest for %(time)s: the topic has lost its head.") % facts
        return _problem("transfer", None, one.topic, None, what, _repair(row))
    what = gettext("%(events)s in the buffer, the oldest for %(time)s: %(holder)s.") % {**facts, "holder": holder}
    remedy = gettext("End it, or its session: %(command)s") % {"command": holder.session.ending}
    return _problem("transfer", None, one.topic, None, what, remedy)


def _left_by_mirror(one: Waiting, facts: dict[str, object]) -> Finding:
    what = gettext(
        "%(events)s in the buffer, the oldest for %(time)s: the topic is a mirror, so no transfer moves them."
    )
    remedy = gettext(
        "They were published before it was one. To have them in its log, declare its inbox without keep_ids, and run "
        "migrate: it is no mirror any more then."
    )
    return _problem("transfer", None, one.topic, None, what % facts, remedy)


def _failing(row: models.Topic, facts: dict[str, object]) -> Finding:
    what = gettext("%(events)s in the buffer, the oldest for %(time)s: its log takes none since %(moment)s.") % {
        **facts,
        "moment": moment(row.failing_since) if row.failing_since else "",
    }
    return _problem("transfer", None, row.name, None, f"{what} {row.error}", _repair(row))


def _repair(row: models.Topic) -> str:
    """What makes a log take events again, by what the server said. The transfer then finds out by itself."""
    log = log_table(row.pk)
    if row.failure == HEADLESS:
        return gettext("Make the row again, see %(page)s") % {"page": "docs/how-to/repair.md"}
    if row.failure == HIDDEN:
        return _seeing_all()
    kind = sql.kind_of_state(row.failure)
    if kind is sql.ErrorKind.TABLE_EXISTS:
        return gettext(
            "A table has the name of the next segment of %(log)s. Attach it, if it is one that was detached; otherwise "
            "rename it or drop it."
        ) % {"log": log}
    if kind is sql.ErrorKind.TABLE_GONE:
        return gettext("Was its log dropped? Restore it, or make a new one: %(command)s") % {
            "command": "manage.py migrate"
        }
    if kind is sql.ErrorKind.FORBIDDEN:
        return gettext("Give %(log)s its owner and rights back: %(command)s") % {
            "log": log,
            "command": _events("grants", "--role operator"),
        }
    if kind is sql.ErrorKind.DISK_FULL:
        return gettext("Make room on the disk where %(log)s is.") % {"log": log}
    return gettext("Take back what was added to %(log)s or its segments: constraints, columns, triggers, policies.") % {
        "log": log
    }


def _overdue(scheduled: NextScheduled | None) -> Iterator[Finding]:
    if scheduled is not None and scheduled.overdue > LATE:
        what = gettext("A scheduled event is due since %(time)s: no transfer publishes it.") % {
            "time": duration(scheduled.overdue)
        }
        yield _problem("transfer", None, scheduled.topic, None, what, _is_running("run_transfer"))


def _overdue_ticks(using: str) -> Iterator[Finding]:
    """Clocks that an app here declares and no transfer lets tick. One that no app declares doesn't tick at all."""
    names = [one.name for one in declarations.clocks]
    if not names:
        return
    rows = models.Clock.objects.using(using).filter(name__in=names, paused_at=None).select_related("topic")
    late = rows.annotate(now=ClockTimestamp()).filter(next_at__lt=ClockTimestamp() - LATE).defer("value")
    for row in late.order_by("next_at", "name"):
        what = gettext("The tick of clock %(clock)s at %(moment)s is due since %(time)s: no transfer publishes it.") % {
            "clock": row.name,
            "moment": moment(row.next_at),
            "time": duration(row.now - row.next_at),
        }
        remedy = gettext("Is one running that declares it, and has the package cronsim? %(command)s") % {
            "command": "manage.py run_transfer"
        }
        yield _problem("clock", None, row.topic.name, None, what, remedy)._replace(data={"clock": row.name})


def _stopped(standings: list[Standing]) -> Iterator[Finding]:
    for one in standings:
        if one.state == "stopped":
            remedy = gettext("Repair the cause, then: %(command)s") % {"command": _events("resume", one.consumer)}
            yield _of_partition(one, "stopped", f"{_where_it_stopped(one)} {one.error}", remedy)


def _where_it_stopped(one: Standing) -> str:
    facts = {
        "event": f"{one.topic}/{one.attempted}",
        "position": f"{one.topic}/{one.position}",
        "attempts": counted.attempts(one.attempts),
    }
    if one.attempted and one.attempts:
        return gettext("stopped at %(event)s after %(attempts)s.") % facts
    if one.attempted:
        return gettext("stopped at %(event)s.") % facts
    if one.attempts:
        return gettext("stopped behind %(position)s after %(attempts)s.") % facts
    return gettext("stopped behind %(position)s.") % facts


def _set_aside(using: str) -> Iterator[Finding]:
    """Consumers that workers can't serve, because their log can't be read or their filter fails."""
    rows = models.Consumer.objects.using(using).exclude(failure="").filter(paused_at=None).select_related("topic")
    for row in rows.order_by("name", "topic__name"):
        what = gettext("can't be served since %(moment)s.") % {
            "moment": moment(row.failing_since) if row.failing_since else ""
        }
        yield _problem("set aside", row.name, row.topic.name, None, f"{what} {row.error}", _repair_for(row))


def _repair_for(row: models.Consumer) -> str:
    """What lets a consumer be served again, by what the server said. Its workers then find out by themselves."""
    if row.failure == HIDDEN:
        return _seeing_all()
    if row.failure == MISSING:
        return _beyond(row)
    kind = sql.kind_of_state(row.failure)
    derived = models.RollUp.objects.using(row._state.db).filter(name=row.name).first()
    if derived is not None and derived.table in row.error:
        return gettext("Repair the table of the roll-up, %(table)s; or make it anew: %(command)s") % {
            "table": derived.table,
            "command": _events("rebuild", row.name),
        }
    if kind is sql.ErrorKind.TABLE_GONE:
        return _repair(models.Topic(pk=row.topic_id, failure=row.failure))
    if kind is sql.ErrorKind.FORBIDDEN:
        return gettext("Give %(log)s its owner and rights back: %(command)s") % {
            "log": log_table(row.topic_id),
            "command": _events("grants", "--role consumer"),
        }
    return gettext("Repair %(log)s, if it was changed by hand, or the filter of the consumer.") % {
        "log": log_table(row.topic_id)
    }


def _seeing_all() -> str:
    command = "ALTER TABLE … DISABLE ROW LEVEL SECURITY"
    return gettext("Let its role see all rows: %(command)s (of its owner: NO FORCE), or ALTER ROLE … BYPASSRLS") % {
        "command": command
    }


def _beyond(row: models.Consumer) -> str:
    """How a consumer gets over an event that is missing, once that is known to be gone for good."""
    skip, rewind = ("skip", row.name, f"{row.topic.name}/ID", "--reason …"), ("rewind", row.name, "--to ID")
    return gettext("Find out what is missing: %(verify)s. If it is gone for good, go on without it: %(going_on)s") % {
        "verify": _events("verify", "--topic", row.topic.name),
        "going_on": _events(*(skip if row.mode == "queue" else rewind)),
    }


def _prepared(using: str) -> Iterator[Finding]:
    """Forgotten prepared transactions that lock rows which workers or transfers write."""
    for name, role, table, age, consumer, topic in sql.fetch(using, sql.shared.prepared, age=LATE):
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
        yield _problem("prepared", consumer, topic, None, what, remedy)


def _unserved(using: str, declared: Declared, standings: list[Standing]) -> Iterator[Finding]:
    """Consumers with something to do and no worker. An event that came just now is no problem yet."""
    candidates = _candidates(using, declared, standings)[:LOOKED_INTO]
    for one, age in _left_alone(using, candidates):
        facts = {"events": _lag(one), "time": duration(age)}
        if broken := _handler_missing(one.consumer):
            what = gettext("%(events)s behind, the oldest for %(time)s: no worker can handle them. %(error)s") % {
                **facts,
                "error": broken,
            }
            yield _of_all(one, "unserved", what, gettext("Deploy what is missing, and restart the workers."))
            continue
        what = gettext("%(events)s behind, the oldest for %(time)s: no worker handles them.") % facts
        command = f"run_consumer {one.consumer}"
        remedy = _is_running(command) if one.served_at else _is_running_as_registered(command)
        yield _of_all(one, "unserved", what, remedy)._replace(data={"command": COMMAND_OF_WORKERS})


def together(found: Iterable[Finding]) -> list[Finding]:
    """For people: one worker that is dead is one problem, of however many consumers; the others as they are."""
    found = list(found)
    alike = [one for one in found if one.data.get("command") == COMMAND_OF_WORKERS]
    if len(alike) < 2:
        return found
    names = list(dict.fromkeys(str(one.subject.consumer) for one in alike))
    what = gettext("%(consumers)s are unserved, no worker handles their events: %(names)s.") % {
        "consumers": counted.consumers(len(names)),
        "names": ", ".join(names),
    }
    command = f"{COMMAND_OF_WORKERS} {' '.join(names)}"
    told = alike[0]._replace(
        subject=Subject(), what=what, remedy=gettext("Is one running? %(command)s") % {"command": command}
    )
    return [told if one is alike[0] else one for one in found if one is alike[0] or one not in alike]


def _handler_missing(consumer: str) -> str:
    """Why its handler can't be imported here: workers of this code don't serve it then, as the check W002 warns."""
    try:
        declarations.consumers.get(consumer).load()
    except HandlerNotFound as error:
        return str(error)
    return ""


def idle_troubles(using: str, standings: list[Standing]) -> dict[int, str]:
    """Which of these consumers aren't merely idle: `unserved`, or `undeclared`, which nothing will serve."""
    declared = {(consumer.name, topic) for consumer in declarations.consumers for topic in consumer.topics}
    idle = [one for one in standings if one.state == "idle" and one.mode != "spark"]
    served = declared | _subscribed(using)
    undeclared = {one.consumer_id: "undeclared" for one in idle if (one.consumer, one.topic) not in served}
    left_alone = _left_alone(using, _candidates(using, declared, idle))
    return {**undeclared, **{one.consumer_id: "unserved" for one, _ in left_alone}}


def _candidates(using: str, declared: Declared, standings: list[Standing]) -> list[Standing]:
    candidates = []
    failing = set(models.Consumer.objects.using(using).exclude(failure="").values_list("pk", flat=True))
    for one in standings:
        if one.consumer_id in failing:  # they are set aside, and there are workers
            continue
        if not one.lag or one.state not in ("idle", "lost", "retrying") or (one.consumer, one.topic) not in declared:
            continue
        if declarations.consumers.get(one.consumer).is_for_claims:  # a program may come once a day
            continue
        if one.paused_at is not None or (one.unserved_for is not None and one.unserved_for <= UNSERVED):
            continue
        candidates.append(one)
    return candidates


def _left_alone(using: str, candidates: list[Standing]) -> Iterator[tuple[Standing, timedelta]]:
    """Those that have had something due for long, and for how long."""
    waits = oldest_waits(using, [one.consumer_id for one in candidates], due=True) if candidates else {}
    registered = _registered_for(using, waits)
    for one in candidates:
        age = waits.get(one.consumer_id)
        patience = declarations.consumers.get(one.consumer).max_wait or timedelta(0)
        if age is not None and min(age, registered[one.consumer_id]) > UNSERVED + patience:
            yield one, age


def _registered_for(using: str, consumer_ids: Iterable[int]) -> dict[int, timedelta]:
    """How long ago these consumers were registered: before, no worker could know of them."""
    rows = models.Consumer.objects.using(using).filter(pk__in=consumer_ids).annotate(now=ClockTimestamp())
    return {row.pk: row.now - row.registered_at for row in rows}


def _hung(using: str) -> Iterator[Finding]:
    """What workers have in hand for very long, although they live: a handler that doesn't come back."""
    timeouts = {one.name: one.timeout or timedelta(0) for one in declarations.consumers}
    now = sql.now(using)
    for consumer, topic, partition, event_id, holder, since in sql.fetch(
        using, SQL.in_hand, age=HUNG, most=LOOKED_INTO
    ):
        if now - since <= HUNG + timeouts.get(consumer, timedelta(0)):
            continue
        what = gettext("%(holder)s has had %(event)s in hand for %(time)s: its handler has not come back.") % {
            "holder": holder,
            "event": f"{topic}/{event_id}",
            "time": duration(now - since),
        }
        remedy = gettext("See what that process does, and end it: others go on. By itself: consumer(…, timeout=…)")
        of_partition = None if partition == models.Position.ALL else partition
        yield _problem("hung", consumer, topic, of_partition, what, remedy)


def _retrying(using: str, standings: list[Standing]) -> Iterator[Finding]:
    """Events that failed. One that is due already and is not attempted waits for a worker, or for a program.

    One without attempts is not to blame, and has failed no time: a relay's target is down, say.
    """
    failed = [(one, at) for one in standings if one.state == "retrying" and (at := one.retry_at) is not None]
    if not failed:
        return
    now = sql.now(using)
    endpoints = set(models.WebhookEndpoint.objects.using(using).values_list("consumer_id", flat=True))
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
            remedy = gettext("To try again now: %(command)s") % {"command": _events("retry-now", one.consumer)}
        elif one.consumer_id in endpoints:
            what = gettext("%(event)s failed %(times)s, is due since %(moment)s, and no process sends it.")
            remedy = _is_running("run_webhooks")
        elif _is_for_claims(one):
            what = gettext("%(event)s failed %(times)s, is due since %(moment)s, and no program claims it.")
            remedy = gettext("Is the program running that claims from it? By hand: %(command)s") % {
                "command": _events("claim", one.consumer)
            }
        else:
            what = gettext("%(event)s failed %(times)s, is due since %(moment)s, and no worker takes it.")
            if not one.attempts:
                what = gettext("%(event)s and all behind it wait, due since %(moment)s, and no worker takes them.")
            remedy = _is_running(f"run_consumer {one.consumer}")
        yield _of_partition(one, "retrying", f"{what % facts} {one.error}", remedy)


def _is_for_claims(one: Standing) -> bool:
    """Whether programs claim its events: as declared, or by `subscribe()`."""
    found = next((consumer for consumer in declarations.consumers if consumer.name == one.consumer), None)
    return one.mode == "queue" and (found is None or found.is_for_claims)


def _dead(standings: list[Standing]) -> Iterator[Finding]:
    for one in standings:
        if one.dead_letters:
            what = f"{counted.dead_letters(one.dead_letters, more=one.more_dead_letters)}."
            yield _of_all(one, "dead letters", what, _events("dead-letters", one.consumer))


def _rolled_up(using: str, declared: Declared) -> Iterator[Finding]:
    """Roll-ups that have as many groups as they may, and those that lately left out an event."""
    names = {consumer for consumer, _ in declared}
    rows = models.RollUp.objects.using(using).filter(name__in=names).annotate(now=ClockTimestamp()).order_by("name")
    for row, topic in [(row, topic) for row in rows for name, topic in sorted(declared) if name == row.name]:
        if row.full_since is not None:
            what = gettext(
                "has %(groups)s groups since %(moment)s, as many as it may: further ones are counted together."
            ) % {"groups": f"{row.most_groups:,}", "moment": moment(row.full_since)}
            remedy = gettext(
                "Is the group one that never ends, like a number of an order? Or let it have more: %(way)s"
            ) % {"way": "rollup(…, groups=…)"}
            yield _problem("groups", row.name, topic, None, what, remedy)
        if row.left_out_at is not None and row.now - row.left_out_at < TOLD_FOR:
            what = gettext("%(events)s left out, which can't be counted, the last at %(moment)s.") % {
                "events": counted.events(row.left_out),
                "moment": moment(row.left_out_at),
            }
            remedy = gettext("Does its filter fail on a value? After the repair, count anew: %(command)s") % {
                "command": _events("rebuild", row.name)
            }
            yield _problem("left out", row.name, topic, None, f"{what} {row.error}", remedy)


def _held_back(using: str) -> Iterator[Finding]:
    for holder in holders(using, age=HELD, most=LOOKED_INTO):
        what = gettext("%(holder)s: dead rows pile up, and every look gets slower.") % {"holder": _holder(holder)}
        yield _problem("snapshot", None, None, None, what, _end_of(holder))


def _bloated(using: str) -> Iterator[Finding]:
    """A table that is busy has dead rows of the last minutes, which is no problem."""
    for pile in piles(using):
        facts = {"table": pile.table, "dead": f"{pile.dead:,}", "live": f"{pile.live:,}"}
        if pile.cleaned_at is None or pile.cleaned_before is None:
            what = gettext("%(table)s has %(dead)s dead rows, %(live)s live ones, and was never vacuumed.")
            yield _uncleaned(pile, what % facts)
        elif pile.cleaned_before > UNCLEANED:
            what = gettext("%(table)s has %(dead)s dead rows, %(live)s live ones: no vacuum came since %(moment)s.")
            yield _uncleaned(pile, what % {**facts, "moment": moment(pile.cleaned_at)})
        else:
            for holder in holders(using, age=UNCLEANED, most=1):
                what = gettext("%(table)s has %(dead)s dead rows, %(live)s live ones: no vacuum can help. %(holder)s.")
                yield _problem("bloat", None, None, None, what % {**facts, "holder": _holder(holder)}, _end_of(holder))


def _uncleaned(pile: Pile, what: str) -> Finding:
    remedy = gettext("VACUUM %(table)s. Is autovacuum on, and free to come? SHOW autovacuum") % {"table": pile.table}
    return _problem("bloat", None, None, None, what, remedy)


def _unregistered(using: str, declared: Declared, standings: list[Standing]) -> Iterator[Finding]:
    for consumer, topic in sorted(declared - {(one.consumer, one.topic) for one in standings}):
        what = gettext("declared at %(place)s, and not registered in the database %(database)s.") % {
            "place": declarations.consumers.get(consumer).declared_at,
            "database": repr(using),
        }
        yield _problem("not registered", consumer, topic, None, what, f"manage.py migrate --database {using}")


def _declared_otherwise(using: str, declared: Declared) -> Iterator[Finding]:
    """Consumers whose filter is another one in the code that looks: it is older than what is registered, or newer."""
    names = {consumer for consumer, _ in declared}
    rows = models.Consumer.objects.using(using).filter(name__in=names).exclude(mode="spark").select_related("topic")
    derived = made_by_of(using, declarations.consumers)
    for row in rows.order_by("name", "topic__name"):
        here = declarations.consumers.get(row.name)
        if (row.name, row.topic.name) in declared and (differing := declared_otherwise(row, here, derived)):
            what = gettext(
                "declared at %(place)s with %(options)s as registered: workers of this code leave it alone."
            ) % {
                "place": here.declared_at,
                "options": differing,
            }
            remedy = gettext("Run the code that was registered; or register this one: %(command)s") % {
                "command": f"manage.py migrate --database {using}"
            }
            yield _problem("declared otherwise", row.name, row.topic.name, None, what, remedy)


def _subscribed(using: str) -> Declared:
    """The subscriptions, which no app declares, and programs serve."""
    rows = models.Consumer.objects.using(using).filter(subscribed=True)
    return set(rows.values_list("name", "topic__name"))


def _webhooks(using: str, standings: list[Standing]) -> Iterator[Finding]:
    """Endpoints that were disabled, those to which nothing can be delivered, and those that no process serves."""
    found = models.WebhookEndpoint.objects.using(using).annotate(now=ClockTimestamp())
    rows = {row.consumer_id: row for row in found}
    of_endpoints = [one for one in standings if one.consumer_id in rows]
    waits = oldest_waits(using, [one.consumer_id for one in of_endpoints], due=True) if of_endpoints else {}
    registered = _registered_for(using, waits)
    for one in of_endpoints:
        row, age = rows[one.consumer_id], waits.get(one.consumer_id)
        if one.paused_at is not None:
            if row.disabled_because:
                what = gettext("disabled since %(moment)s, %(events)s behind: %(reason)s.") % {
                    "moment": moment(one.paused_at),
                    "events": _lag(one),
                    "reason": row.disabled_because.rstrip("."),
                }
                yield _of_all(one, "webhook disabled", what, _events("resume", one.consumer))
        elif row.failing_since is not None and row.now - row.failing_since > FAILS:
            what = gettext("nothing could be delivered since %(moment)s, %(events)s behind.") % {
                "moment": moment(row.failing_since),
                "events": _lag(one),
            }
            remedy = gettext("To try again now: %(command)s") % {"command": _events("retry-now", one.consumer)}
            yield _of_all(one, "webhook fails", what, remedy)
        elif (
            row.failing_since is None
            and age is not None
            and min(age, registered[one.consumer_id]) > UNSERVED
            and (one.unserved_for is None or one.unserved_for > UNSERVED)
        ):
            what = gettext("%(events)s behind, the oldest for %(time)s: no process sends them.") % {
                "events": _lag(one),
                "time": duration(age),
            }
            yield _of_all(one, "unserved", what, _is_running("run_webhooks"))


def _inboxes(using: str) -> Iterator[Finding]:
    """Inboxes that take nothing in, those that no worker serves, and what was lately lost or could not be read."""
    rows = models.Inbox.objects.using(using).select_related("topic").annotate(now=ClockTimestamp()).order_by("name")
    seen = set()
    for row in rows:
        seen.add(row.name)
        state = state_of(row, row.now)
        if state == "undeclared":
            what = gettext("inbox %(inbox)s: no installed app declares it.") % {"inbox": row.name}
            remedy = gettext("If it is gone for good: %(command)s") % {
                "command": _events("inbox", "remove", row.name, "--execute")
            }
            yield _of_inbox("undeclared", row, what, remedy)
            continue
        if state == "paused" and row.paused_at is not None:
            what = gettext("inbox %(inbox)s: paused since %(moment)s.") % {
                "inbox": row.name,
                "moment": moment(row.paused_at),
            }
            remedy = gettext("To let it go on: %(command)s") % {"command": _events("inbox", "resume", row.name)}
            yield _of_inbox("paused", row, what, remedy)
        elif state == "unserved" or row.served_at is None:
            what = gettext("inbox %(inbox)s: no worker takes in what comes from %(source)s.") % {
                "inbox": row.name,
                "source": row.source,
            }
            yield _of_inbox("unserved", row, what, _is_running(f"run_inbox {row.name}"))
        elif row.failing_since is not None and row.now - row.failing_since > LATE:
            what = gettext("inbox %(inbox)s takes nothing in since %(moment)s.") % {
                "inbox": row.name,
                "moment": moment(row.failing_since),
            }
            remedy = gettext("It tries again by itself. Repair what it says.")
            yield _of_inbox("inbox", row, f"{what} {row.error}", remedy)
        if row.unreadable_at is not None and row.now - row.unreadable_at < TOLD_FOR:
            what = gettext("inbox %(inbox)s could not read %(messages)s, the last at %(moment)s.") % {
                "inbox": row.name,
                "messages": f"{row.unreadable:,}",
                "moment": moment(row.unreadable_at),
            }
            remedy = gettext("They are events of the topic: %(command)s") % {
                "command": _events("peek", row.topic.name, "--type", "inbox.unreadable")
            }
            yield _of_inbox("unreadable", row, what, remedy)
        if row.gone_at is not None and row.now - row.gone_at < TOLD_FOR:
            what = gettext("inbox %(inbox)s goes on without %(messages)s that its source removed, at %(moment)s.") % {
                "inbox": row.name,
                "messages": f"{row.gone:,}",
                "moment": moment(row.gone_at),
            }
            remedy = gettext("Let the source keep messages for longer, or serve the inbox all the time.")
            yield _of_inbox("messages gone", row, what, remedy)
    for one in declarations.inboxes:
        if one.name not in seen:
            what = gettext("inbox %(inbox)s is declared at %(place)s, and not registered in the database %(database)s.")
            facts = {"inbox": one.name, "place": one.declared_at, "database": repr(using)}
            found = _problem(
                "not registered", None, one.topic, None, what % facts, f"manage.py migrate --database {using}"
            )
            yield found._replace(data={"inbox": one.name})


def _of_inbox(kind: str, row: models.Inbox, what: str, remedy: str) -> Finding:
    return _problem(kind, None, row.topic.name, None, what, remedy)._replace(data={"inbox": row.name})


def _undeclared(declared: Declared, standings: list[Standing]) -> Iterator[Finding]:
    for one in standings:
        if one.mode != "spark" and (one.consumer, one.topic) not in declared:
            what = gettext("no installed app declares it: no worker serves it, and %(topic)s is kept for it.") % {
                "topic": one.topic
            }
            yield _of_all(one, "undeclared", what, _unregister(one))


def _behind_retention(using: str, declared: Declared, standings: list[Standing]) -> Iterator[Finding]:
    """Consumers for which the log is kept longer than its topic asks. The longest lags are looked into first."""
    kept = dict(models.Topic.objects.using(using).exclude(retention=None).values_list("name", "retention"))
    behind = [one for one in standings if one.lag and one.topic in kept]
    behind = sorted(behind, key=lambda one: one.lag, reverse=True)[:LOOKED_INTO]
    waits = oldest_waits(using, [one.consumer_id for one in behind])
    for one in behind:
        age, retention = waits.get(one.consumer_id), kept[one.topic]
        if age is not None and retention is not None and age > retention:
            what = gettext(
                "%(events)s behind, the oldest for %(time)s: %(topic)s keeps events for %(retention)s, these longer."
            ) % {"events": _lag(one), "time": duration(age), "topic": one.topic, "retention": duration(retention)}
            yield _of_all(one, "behind retention", what, _catch_up(one, declared))


def _expired(using: str) -> Iterator[Finding]:
    """Consumers that retention lately moved past events they had not handled, as keep_unread=False allows."""
    lately = models.Intervention.objects.using(using).filter(action="expire", at__gt=ClockTimestamp() - TOLD_FOR)
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
        yield _problem("expired", consumer, topic, None, what, remedy)


def _maintenance(using: str) -> Iterator[Finding]:
    """Steps of maintenance that fail, or did not run lately. Where none ever ran, the site is new: no problem."""
    steps = list(models.MaintenanceStep.objects.using(using).annotate(now=ClockTimestamp()).order_by("name"))
    for step in steps:
        if step.error and step.failing_since is not None:
            what = gettext("the step %(step)s fails since %(moment)s. %(error)s") % {
                "step": step.name,
                "moment": moment(step.failing_since),
                "error": step.error,
            }
            yield _problem("maintenance", None, None, None, what, _events("maintain", step.name))
    ended = [(step.now - step.finished_at, step.finished_at) for step in steps if step.finished_at is not None]
    if ended and min(ended)[0] > UNMAINTAINED:
        what = gettext("none since %(moment)s.") % {"moment": moment(min(ended)[1])}
        yield _problem("maintenance", None, None, None, what, _is_running("run_transfer"))


def _catch_up(one: Standing, declared: Declared) -> str:
    if (one.consumer, one.topic) not in declared:
        return _unregister(one)
    if one.paused_at is not None or one.state == "stopped":
        return gettext("Let it go on: %(resume)s, or leave them out: %(rewind)s") % {
            "resume": _events("resume", one.consumer),
            "rewind": _events("rewind", one.consumer, "--to end"),
        }
    return gettext("Is it slow? More workers, or leave them out: %(rewind)s") % {
        "rewind": _events("rewind", one.consumer, "--to end")
    }


def _paused(using: str, standings: list[Standing]) -> Iterator[Finding]:
    disabled = models.WebhookEndpoint.objects.using(using).exclude(disabled_because="")
    told = set(disabled.values_list("consumer_id", flat=True))  # as disabled
    for one in standings:
        if one.paused_at is not None and one.consumer_id not in told:
            what = gettext("paused since %(moment)s, %(events)s behind.") % {
                "moment": moment(one.paused_at),
                "events": _lag(one),
            }
            yield _of_all(one, "paused", what, _events("resume", one.consumer))


def _lag(one: Standing) -> str:
    return counted.events(one.lag, more=one.more_lag)


def _events(*words: str) -> str:
    return " ".join(("manage.py events", *words))


def _is_running(command: str) -> str:
    return gettext("Is one running? %(command)s") % {"command": f"manage.py {command}"}


def _is_running_as_registered(command: str) -> str:
    """Of a consumer that was never served: workers that were started before it was registered don't know it."""
    return gettext("Is one running? %(command)s, or restart those that run: they have the former code") % {
        "command": f"manage.py {command}"
    }


def _unregister(one: Standing) -> str:
    command = _events("unregister", one.consumer, "--topic", one.topic)
    return gettext("If it is gone for good: %(command)s") % {"command": command}


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


def _problem(
    kind: str, consumer: str | None, topic: str | None, partition: int | None, what: str, remedy: str
) -> Finding:
    severity: Severity = "error" if kind in ERRORS else "warning"
    return Finding(kind, severity, Subject(consumer, topic, partition), what, remedy, {})


def _of_all(one: Standing, kind: str, what: str, remedy: str) -> Finding:
    return _problem(kind, one.consumer, one.topic, None, what, remedy)


def _of_partition(one: Standing, kind: str, what: str, remedy: str) -> Finding:
    what = what.strip()
    facts = {"partition": one.partition, "what": what, "others": counted.others(one.in_state - 1)}
    if one.partition != models.Position.ALL and one.in_state > 1:
        what = gettext("partition %(partition)s and %(others)s: %(what)s") % facts
    elif one.partition != models.Position.ALL:
        what = gettext("partition %(partition)s: %(what)s") % facts
    data = {"event": one.attempted} if one.attempted else {}
    return _problem(kind, one.consumer, one.topic, one.partition, what, remedy)._replace(data=data)
