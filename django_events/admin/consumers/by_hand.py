"""What was lately done to a consumer by hand, for its page."""

from datetime import timedelta
from typing import Any, NamedTuple

from django_events.models import Consumer, Intervention

BY_HAND, LOOKED_AT = 10, 1_000  # interventions on the page of a consumer, and rows that are looked at for them


class DoneByHand(NamedTuple):
    """An intervention; of a rewind the first of its partitions, and how many there are."""

    first: Intervention
    partitions: int

    @property
    def details(self) -> dict[str, Any]:
        """What was said, and of one partition all that was changed."""
        details: dict[str, Any] = self.first.details
        if self.partitions == 1:
            return details
        said = {name: value for name, value in details.items() if name in ("to", "reason")}
        return {"partitions": self.partitions, **said}


def done_by_hand(using: str, row: Consumer) -> list[DoneByHand]:
    """The newest interventions. A rewind is written down for each partition, and is one here."""
    about = Intervention.objects.using(using).filter(consumer=row.name, topic=row.topic.name)
    done: list[DoneByHand] = []
    last: Intervention | None = None
    for one in about.order_by("-at", "-pk")[:LOOKED_AT]:
        if last is not None and _is_same_rewind(last, one):
            done[-1] = done[-1]._replace(partitions=done[-1].partitions + 1)
        elif len(done) == BY_HAND:
            break
        else:
            done.append(DoneByHand(one, 1))
        last = one
    return done


def _is_same_rewind(later: Intervention, one: Intervention) -> bool:
    """Whether these are two partitions of a rewind, which move in one transaction."""
    if (later.action, one.action) != ("rewind", "rewind") or later.at - one.at > timedelta(seconds=1):
        return False
    said = [(each.by, each.details.get("to"), each.details.get("reason")) for each in (later, one)]
    return said[0] == said[1] and later.details.get("partition") != one.details.get("partition")
