"""The table that a consumer keeps, for its page."""

from collections.abc import Sequence
from typing import NamedTuple

from django_events import declarations
from django_events.deriving.derivation import table_of
from django_events.deriving.reached import of_consumer
from django_events.models import Consumer, Rebuild
from django_events.observing.lag import PartitionProgress
from django_events.outcomes import UpTo


class KeptTable(NamedTuple):
    """The table that a consumer keeps: up to which event it is true, and how far another one is filled, if any."""

    table: str
    up_to: UpTo
    rebuild: Rebuild | None

    @property
    def percent(self) -> int:
        """How much of the logs is in the table that is filled."""
        ends = 0 if self.rebuild is None else sum(self.rebuild.ends.values())
        return 100 if self.rebuild is None or not ends else 100 * sum(self.rebuild.reached.values()) // ends


def kept_table(using: str, row: Consumer, positions: Sequence[PartitionProgress]) -> KeptTable | None:
    for one in declarations.consumers:
        if one.name == row.name and one.derived:
            rebuilds = Rebuild.objects.using(using).filter(consumer=row.name)
            return KeptTable(table_of(using, one), of_consumer(using, row, positions), rebuilds.first())
    return None
