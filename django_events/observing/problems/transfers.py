"""Events that no transfer moves, and those that none publishes although they are due: kinds `transfer` and `clock`."""

from collections.abc import Iterator, Sequence

from django.utils.translation import gettext

from django_events import declarations, models
from django_events.log.holders import LockHolder
from django_events.log.holders import holders as lock_holders
from django_events.log.inventory import Waiting
from django_events.log.setbacks import HEADLESS
from django_events.models.functions import ClockTimestamp
from django_events.observing import counted
from django_events.observing.commands import manage_command
from django_events.observing.findings import Finding
from django_events.observing.problems import repairs
from django_events.observing.problems.situation import Situation
from django_events.observing.problems.telling import LATE, LOOKED_INTO, is_running, problem
from django_events.phrases import duration, moment


def late(seen: Situation) -> Iterator[Finding]:
    """Events that wait: for a transfer, for a session that holds a lock, or for the repair of a log."""
    ids = [one.topic_id for one in seen.waiting]
    topics = models.Topic.objects.using(seen.using).in_bulk(ids)
    failing = {pk: row for pk, row in topics.items() if row.failure}
    mirrors = {pk for pk, row in topics.items() if row.mirror_of or row.name in declarations.inboxes.mirrors}
    late = [one for one in seen.waiting if one.age > LATE and one.topic_id not in {*failing, *mirrors}]
    held: dict[int, LockHolder] = {}
    for holder in lock_holders(seen.using, [one.topic_id for one in late[:LOOKED_INTO]]) if late else []:
        held.setdefault(holder.topic_id, holder)
    left = [one for one in late if one.topic_id not in held]
    if left:
        yield _not_moved(seen.using, left)
    for one in seen.waiting:
        facts: dict[str, object] = {"events": counted.events(one.events, more=one.more), "time": duration(one.age)}
        if one.topic_id in mirrors:
            yield _left_by_mirror(one, facts)
        elif one.topic_id in failing:
            yield _failing(seen.using, failing[one.topic_id], facts)
        elif one.topic_id in held:
            yield _held(seen.using, one, held[one.topic_id], facts)


def _not_moved(using: str, late: Sequence[Waiting]) -> Finding:
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
    found = problem("transfer", None, topic, None, what % facts, is_running(using, "run_transfer"))
    return found._replace(data={"topics": sorted(one.topic for one in late)})


def _held(using: str, one: Waiting, holder: LockHolder, facts: dict[str, object]) -> Finding:
    if holder.kind == "headless":
        row = models.Topic(pk=one.topic_id, name=one.topic, failure=HEADLESS)
        what = gettext("%(events)s in the buffer, the oldest for %(time)s: the topic has lost its head.") % facts
        return problem("transfer", None, one.topic, None, what, repairs.of_log(using, row))
    what = gettext("%(events)s in the buffer, the oldest for %(time)s: %(holder)s.") % {**facts, "holder": holder}
    remedy = gettext("End it, or its session: %(command)s") % {"command": holder.session.ending}
    return problem("transfer", None, one.topic, None, what, remedy)


def _left_by_mirror(one: Waiting, facts: dict[str, object]) -> Finding:
    what = gettext(
        "%(events)s in the buffer, the oldest for %(time)s: the topic is a mirror, so no transfer moves them."
    )
    remedy = gettext(
        "They were published before it was one. To have them in its log, declare its inbox without keep_ids, and run "
        "migrate: it is no mirror any more then."
    )
    return problem("transfer", None, one.topic, None, what % facts, remedy)


def _failing(using: str, row: models.Topic, facts: dict[str, object]) -> Finding:
    what = gettext("%(events)s in the buffer, the oldest for %(time)s: its log takes none since %(moment)s.") % {
        **facts,
        "moment": moment(row.failing_since) if row.failing_since else "",
    }
    return problem("transfer", None, row.name, None, f"{what} {row.error}", repairs.of_log(using, row))


def overdue(seen: Situation) -> Iterator[Finding]:
    if seen.scheduled is not None and seen.scheduled.overdue > LATE:
        what = gettext("A scheduled event is due since %(time)s: no transfer publishes it.") % {
            "time": duration(seen.scheduled.overdue)
        }
        yield problem("transfer", None, seen.scheduled.topic, None, what, is_running(seen.using, "run_transfer"))


def overdue_ticks(seen: Situation) -> Iterator[Finding]:
    """Clocks that an app here declares and no transfer lets tick. One that no app declares doesn't tick at all."""
    names = [one.name for one in declarations.clocks]
    if not names:
        return
    rows = models.Clock.objects.using(seen.using).filter(name__in=names, paused_at=None).select_related("topic")
    late = rows.annotate(now=ClockTimestamp()).filter(next_at__lt=ClockTimestamp() - LATE).defer("value")
    for row in late.order_by("next_at", "name"):
        what = gettext("The tick of clock %(clock)s at %(moment)s is due since %(time)s: no transfer publishes it.") % {
            "clock": row.name,
            "moment": moment(row.next_at),
            "time": duration(row.now - row.next_at),
        }
        remedy = gettext("Is one running that declares it, and has the package cronsim? %(command)s") % {
            "command": manage_command(seen.using, "run_transfer")
        }
        yield problem("clock", None, row.topic.name, None, what, remedy)._replace(data={"clock": row.name})
