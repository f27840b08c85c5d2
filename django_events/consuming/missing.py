"""Events that a worker doesn't find in the log: retention or compaction has removed them, or they are missing.

Ids have no gaps, and the numbers of a partition have none either. Retention writes down, in the transaction that drops
events, up to which id and number it dropped them: the floors; compaction, up to which id there are gaps. An event above
both that can't be found is missing, and must not be passed over as if it had been removed.
"""

from typing import NamedTuple

from django_events import sql
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import EventsMissing
from django_events.log.floors import Floors, floors_of
from django_events.received import ReceivedEvent


class Gap(NamedTuple):
    """An event that must exist after the id `after`, up to the id `upper`, and was not read."""

    what: str
    after: int
    upper: int


def floors(of: Subscription) -> Floors:
    """The floors of a consumer's topic now. Without the topic's head row, nothing counts as dropped."""
    return floors_of(of.using, of.topic_id) or Floors(0, [], 0)


def refuse_missing(of: Subscription, event_id: int) -> None:
    """EventsMissing for an event that can't be found, unless retention or compaction has removed it."""
    if event_id > floors(of).absent_until:
        raise missing(f"Event {of.topic}/{event_id}")


def left_out(address: str) -> EventsMissing:
    """The error if a read left out an event that the log has: going on after it would lose the event."""
    return EventsMissing(f"The log has event {address}, and a read left it out.")


def missing(what: str) -> EventsMissing:
    """The error if an event can't be found and retention has not dropped it."""
    return EventsMissing(
        f"{what} is missing: it is not in the log, and retention has not dropped it. Was it "
        "removed by hand, or lost with a file?"
    )


def refuse_gap(
    of: Subscription, partition: int, events: list[ReceivedEvent], *, after: int, number: int, upper: int
) -> None:
    """EventsMissing if `events` lacks one of those behind the id `after`, which had this number, up to the id `upper`.

    Called for every batch, of a partition of which all events were read.
    """
    if _gap(of, partition, events, upper, after, number) is None:
        return
    dropped = floors(of)
    number = max(number, dropped.number(partition))
    after = max(after, dropped.id)
    events = [event for event in events if event.id > dropped.id]
    if after < dropped.compacted_until:  # the last event of a partition up to there stays: numbers go on from it
        below = [event for event in events if event.id <= dropped.compacted_until]
        number, last = max([number, *(event.number for event in below)]), max([after, *(one.id for one in below)])
        after = min(dropped.compacted_until, upper)
        events = [event for event in events if event.id > after]
        if events and not dropped.compacts and events[0].number - 1 - number <= after - last:
            number = max(number, events[0].number - 1)  # a mirror's: its source may have removed that one, too
    if (gap := _gap(of, partition, events, upper, after, number)) is None:
        return
    statement = sql.shared.batch_end.on(
        log=of.log, events=of.events_of(partition), match=of.match, after=gap.after, upper=gap.upper, most=1
    )
    [[there]] = sql.fetch_whole(of.using, statement)
    raise missing(gap.what) if there is None else left_out(f"{of.topic}/{there}")


def _gap(
    of: Subscription, partition: int, events: list[ReceivedEvent], upper: int, after: int, number: int
) -> Gap | None:
    """The first missing event: found by its id, or in a partition by the number of an event after it."""
    if of.whole:
        if len(events) >= upper - after:
            return None
        lost = next((n for n, event in enumerate(events, after + 1) if event.id != n), after + len(events) + 1)
        return Gap(f"Event {of.topic}/{lost}", lost - 1, lost)
    if not events or events[-1].number - number <= len(events):
        return None
    before = after
    for lost, event in enumerate(events, number + 1):
        if event.number != lost:
            break
        before = event.id
    what = f"Event number {lost} of partition {partition}, which comes before {of.topic}/{event.id},"
    return Gap(what, before, event.id - 1)
