"""Why an event exists, and what was published because of it, as the page of an event shows it."""

from typing import Any, NamedTuple

from django_events.admin.finding import ADDRESS
from django_events.admin.topics.log import SEARCHED
from django_events.models import Event, Topic
from django_events.observing.causes import caused, caused_by
from django_events.outcomes import CausedEvent

MOST, DEPTH = 50, 5  # events that the page shows


class Linked(NamedTuple):
    """An event of the tree, and the topic that its page belongs to."""

    topic: Topic | None
    event: CausedEvent


def of(using: str, topic: Topic, event: Event, *, with_tree: bool) -> dict[str, Any]:
    """What the template shows: the cause, where it is if it is an address here, and the tree of what was caused.

    The tree is looked for in very many events, so the page has it when it is asked for.
    """
    cause = caused_by(using, topic, event.id)
    at = None if cause is None else ADDRESS.fullmatch(cause)
    found = (
        caused(using, topic, event.id, event.logged_at, most=MOST, depth=DEPTH, last=SEARCHED) if with_tree else None
    )
    events = [] if found is None else found.events
    names = {one.topic for one in events} | ({at[1]} if at else set())
    topics = {one.name: one for one in Topic.objects.using(using).filter(name__in=names)} if names else {}
    return {
        "cause": cause,
        "cause_topic": topics.get(at[1]) if at else None,
        "cause_id": int(at[2]) if at else None,
        "tree": [Linked(topics.get(one.topic), one) for one in events],
        "caused": found,
    }
