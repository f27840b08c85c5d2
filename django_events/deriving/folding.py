"""Folding events into the rows of a model: a batch reads its rows by one query, and writes them by one to three.

    fold = Folding(totals)
    with transaction.atomic(using):
        fold(using, events)

Events are folded in the order in which they are given. An error leaves nothing: the transaction is the caller's, and
the rows in memory are thrown away. Workers share a table, and two of them may have events of one row: in two
partitions, because an event may name its partition, and "7" and "07" are one number; or in two topics, while a release
adds one. So rows are locked when they are read, and one that another worker has made meanwhile is an error, which
passes with the next attempt.
"""

import datetime
import decimal
import uuid
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

from django.db import models

from django_events.declarations import DELETE, DeclaredProjection
from django_events.declarations.paths import at, steps
from django_events.exceptions import Invalid
from django_events.received import ReceivedEvent

# What can't be changed in place, so that remembering it is enough.
_PLAIN = (
    *(str, int, float, bool, bytes, type(None), decimal.Decimal, uuid.UUID),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
)


class Folding:
    """The function of a projection, and the fields of its model."""

    def __init__(self, projection: DeclaredProjection[Any], *, shared: bool = False) -> None:
        self.projection = projection
        self._shared = shared
        self.model: type[models.Model] = projection.model
        self._function = projection.function
        options = self.model._meta
        self.key_field = options.get_field(projection.key_field) if projection.key_field else options.pk
        # A generated column is the database's. All others are compared, and written where one of them changed.
        self.fields = [field for field in options.concrete_fields if not getattr(field, "generated", False)]
        self._updated = [
            field.name
            for field in self.fields
            if not field.primary_key and field is not self.key_field and not getattr(field, "auto_now_add", False)
        ]
        self.compared = [
            field
            for field in self.fields
            if field is not self.key_field
            and not (field.primary_key or getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False))
        ]
        self._key_of = self._how_to_find_the_key()

    def __call__(self, using: str, events: Sequence[ReceivedEvent]) -> None:
        """Fold events into the table, in the caller's transaction."""
        keyed = [(key, event) for event in events if (key := self.key_of(event)) is not None]
        if not keyed:
            return
        there = self.rows(using, {key for key, _ in keyed}, locked=self._shared)
        before = {key: self._values(row) for key, row in there.items()}
        rows: dict[Any, models.Model | None] = dict(there)
        made: set[Any] = set()  # keys whose row isn't, or isn't any more, the one that was read
        for key, event in keyed:
            if rows.get(key) is None:
                made.add(key)
            rows[key] = self.step(rows.get(key), key, event)
        gone = [row.pk for key, row in there.items() if key in made or rows[key] is None]
        if gone:
            self._all(using).filter(pk__in=gone).delete()
        kept = {key: row for key, row in rows.items() if row is not None}
        self.insert(using, [kept[key] for key in sorted(made & kept.keys())])
        self._update(using, [row for key, row in kept.items() if key not in made and self._values(row) != before[key]])

    def step(self, row: models.Model | None, key: Any, event: ReceivedEvent) -> models.Model | None:
        """The row of a key after one more event; None where it has none."""
        if row is None:
            row = self.model(**{self.key_field.attname: key})
        pk = row.pk
        answer = self._function(row, event)
        if answer is DELETE:
            return None
        if answer is not None:
            raise Invalid(
                f"The function of projection {self.projection} returned {answer!r}, expected None or DELETE: it "
                "changes the row that it gets."
            )
        if row.pk != pk or getattr(row, self.key_field.attname) != key:
            raise Invalid(
                f"The function of projection {self.projection} changed the key of a row, {key!r}. A row stays that of "
                "its key: return DELETE, or leave it."
            )
        return row

    def key_of(self, event: ReceivedEvent) -> Any:
        """Which row an event is for, as the model's field has it; None if it is for none."""
        key = self._key_of(event)
        if key is None:
            return None
        if isinstance(key, bool | list | dict):
            raise Invalid(
                f"Event {event.address} has the key {key!r} for projection {self.projection}, expected a text or a "
                "number."
            )
        return self.cleaned(key)

    def cleaned(self, key: object) -> Any:
        """A key as the model's field has it."""
        field = self.key_field
        while field.remote_field is not None:
            field = field.target_field
        return field.to_python(key)

    def rows(self, using: str, keys: Iterable[Any], *, locked: bool = False) -> dict[Any, models.Model]:
        """The rows of some keys, as they are in the table; locked until the transaction ends, all in one order."""
        attname = self.key_field.attname
        found = self._all(using).filter(**{f"{attname}__in": list(keys)})
        if locked:
            found = found.order_by(attname).select_for_update(of=("self",), no_key=True)
        return {getattr(row, attname): row for row in found}

    def some_keys(self, using: str, most: int) -> list[Any]:
        """The keys of so many rows, whichever they are."""
        return list(self._all(using).order_by("?").values_list(self.key_field.attname, flat=True)[:most])

    def _all(self, using: str) -> "models.QuerySet[models.Model]":
        return self.model._base_manager.using(using)

    def _values(self, row: models.Model) -> list[Any]:
        values = (getattr(row, field.attname) for field in self.fields)
        return [value if isinstance(value, _PLAIN) else deepcopy(value) for value in values]

    def insert(self, using: str, rows: list[models.Model]) -> None:
        """Insert rows of which none is there: one statement."""
        if rows:
            self._all(using).bulk_create(rows)

    def _update(self, using: str, rows: list[models.Model]) -> None:
        """Change rows that are there: one statement."""
        if rows and self._updated:
            key = [self.key_field.name]
            self._all(using).bulk_create(rows, update_conflicts=True, unique_fields=key, update_fields=self._updated)

    def _how_to_find_the_key(self) -> Callable[[ReceivedEvent], object]:
        key = self.projection.key
        if key is None:
            return lambda event: event.key
        if isinstance(key, str):
            members = steps(key)
            return lambda event: at(event.value, members)
        return key
