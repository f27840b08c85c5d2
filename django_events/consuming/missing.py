"""Events that a worker doesn't find in the log: retention or compaction has removed them, or they are missing.

Ids have no gaps, and the numbers of a partition have none either. Retention writes down, in the transaction that drops
events, up to which id and number it dropped them: the floors; compaction, up to which id there are gaps. An event above
both that can't be found is missing, and must not be passed over as if it had been removed.
"""

from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import EventsMissing
from django_events.log.floors import Floors, floors_of


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
