"""Filling another table of a roll-up, for a rebuild: from the beginning of the log, beside the one that is served.

filling = RollUpFilling(revenue)
filling.make("default", ("a_schema", filling.table("default")))
folded = filling.fold("default", rows, after={"orders": 0}, until={"orders": 1_000})   # where the search_path leads
filling.changed_over("default")
"""

import json
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from django.db import DatabaseError, transaction
from django.db.models import F

from django_events import models
from django_events.consuming.streams.ranges import RangeSize, is_to_halve
from django_events.declarations import DeclaredRollUp
from django_events.deriving.forgetting import forget_while_filling
from django_events.deriving.rolling_up import fold_into, note_left_out, refuse_missing
from django_events.deriving.rollups import is_full, make_table
from django_events.matching import condition
from django_events.models.functions import ClockTimestamp


class FilledAnew(NamedTuple):
    """Up to which id of each topic events are folded now, and how many that were. None failed."""

    reached: dict[str, int]
    events: int
    failed: None = None


class RollUpFilling:
    """Fills another table of a roll-up, for a rebuild: what `load` folds into, beside it and from the beginning."""

    def __init__(self, declared: DeclaredRollUp) -> None:
        self.declared = declared
        self._size = RangeSize()

    def table(self, using: str) -> str:
        """The name of the table that is served; each database has numbers of its own for it."""
        return models.RollUp.objects.using(using).get(name=self.declared.name).table

    @property
    def fingerprint(self) -> str:
        """Of what its table is made by, and which events it gets."""
        of = self.declared
        written = [json.dumps(of.made_by, sort_keys=True), of.groups, of.topics, of.types, of.keys, of.where, of.start]
        return sha256(repr(written).encode()).hexdigest()

    def make(self, using: str, table: str | tuple[str, str]) -> None:
        """Make an empty table for what is declared now, which may be otherwise than the one that is served."""
        make_table(using, self.declared, table)

    def changed_over(self, using: str) -> None:
        """Put down, in the transaction of the change-over, that the table is what is declared now.

        Workers of other code leave it alone from then on.
        """
        of, row = self.declared, models.RollUp.objects.using(using).filter(name=self.declared.name)
        row.update(made_by=of.made_by, most_groups=of.groups, retention=of.retention, full_since=None)
        if is_full(using, of, self.table(using)):
            row.update(full_since=ClockTimestamp())
        models.Consumer.objects.using(using).filter(name=of.name).update(revision=F("revision") + 1)

    def fold(
        self, using: str, rows: Sequence[models.Consumer], *, after: Mapping[str, int], until: Mapping[str, int]
    ) -> FilledAnew:
        """Fold the next events of one topic, as many as the database does in a fraction of a second.

        In the caller's transaction, into the table that its name leads to. What fails a filter is left out, and counted
        in the row of the roll-up.
        """
        row = next((row for row in rows if after[row.topic.name] < until[row.topic.name]), None)
        if row is None:
            return FilledAnew(dict(after), 0)
        topic, behind, end = row.topic, after[row.topic.name], until[row.topic.name]
        while True:
            upper = min(behind + self._size.ids, end)
            began = time.monotonic()
            try:
                with transaction.atomic(using):
                    done = fold_into(
                        using,
                        self.declared,
                        self.table(using),
                        topic.pk,
                        condition(self.declared),
                        after=behind,
                        upper=upper,
                        most_groups=self.declared.groups,
                    )
                    if done.seen < upper - behind:
                        refuse_missing(using, topic.name, topic.pk, done.seen, behind, upper)
            except DatabaseError as error:
                if not is_to_halve(error, upper - behind):
                    raise
                self._size.failed(upper - behind)
                if upper - behind == 1:
                    note_left_out(using, self.declared.name, f"{topic.name}/{upper}", error)
                    return FilledAnew({**after, topic.name: upper}, 1)
            else:
                self._size.took(upper - behind, time.monotonic() - began)
                self._forget(using)
                return FilledAnew({**after, topic.name: upper}, upper - behind)

    def _forget(self, using: str) -> None:
        if (retention := self.declared.retention) is not None:
            groups = [name for name, _ in self.declared.by]
            forget_while_filling(using, self.table(using), retention=retention, groups=groups)
