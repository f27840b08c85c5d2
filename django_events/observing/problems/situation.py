"""What `find_problems` judges: what was read of a database once, for all problems."""

from collections.abc import Sequence
from typing import NamedTuple

from django_events import declarations
from django_events.log.inventory import NextScheduled, Waiting
from django_events.observing.lag import Standing

Declared = set[tuple[str, str]]


class Situation(NamedTuple):
    """The buffer, what is scheduled next, how consumers stand, and which consumers the apps here declare.

    `declared` has the name and a topic of each.
    """

    using: str
    waiting: Sequence[Waiting]
    scheduled: NextScheduled | None
    standings: Sequence[Standing]
    declared: Declared


def declared_here() -> Declared:
    return {(consumer.name, topic) for consumer in declarations.consumers for topic in consumer.topics}
