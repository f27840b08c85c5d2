"""A projection at work: the handler of its consumer, and how its table is filled for a rebuild."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from django.db import DatabaseError, transaction

from django_events import models, sql
from django_events.consuming.failures import summary_of
from django_events.declarations import DeclaredProjection
from django_events.deriving import shadowing
from django_events.deriving.checking import as_of as as_of
from django_events.deriving.checking import check as check
from django_events.deriving.derivation import Failed
from django_events.deriving.folding import Folding
from django_events.deriving.reading import Source, read
from django_events.received import ReceivedEvent
from django_events.retries import Ignore

SQL = sql.beside(__name__)

CHUNK = 1_000  # events of each topic that a rebuild folds in one transaction


class ProjectionHandler:
    """Folds a batch of events, in the transaction that settles them."""

    def __init__(self, projection: DeclaredProjection[Any]) -> None:
        self._name = projection.name
        self._several = len(projection.topics) > 1
        # Whatever is declared here: workers of the next release may fold other topics, or by partitions.
        self._fold = Folding(projection, shared=True)

    def __call__(self, events: Sequence[ReceivedEvent]) -> None:
        using = events[0].database
        if self._several:  # workers of two topics would read the same row, and one of them would undo the other's
            sql.fetch(using, SQL.one_at_a_time, projection=self._name)
        self._fold(using, events)


class FoldedEvents(NamedTuple):
    """As `derivation.Folded`."""

    reached: dict[str, int]
    events: int
    failed: Failed | None = None


class ProjectionFilling:
    """Folds ranges of the log, as a `derivation.Derivation`."""

    def __init__(self, projection: DeclaredProjection[Any]) -> None:
        self._projection = projection
        self._fold = Folding(projection)

    def table(self, using: str) -> str:
        return self._fold.model._meta.db_table

    @property
    def fingerprint(self) -> str:
        """Of the function as it is written, and of what decides which events it gets for which row."""
        of = self._projection
        written = [
            _source(of.function),
            _source(of.key),
            of.key_field,
            of.topics,
            of.types,
            of.keys,
            of.where,
            of.start,
        ]
        return sha256(repr(written).encode()).hexdigest()

    def make(self, using: str, table: tuple[str, str]) -> None:
        """A table like the one that migrations made."""
        schema, name = table
        shadowing.make_like(using, shadowing.served(using, name), schema)

    def changed_over(self, using: str) -> None:
        """Nothing else depends on it."""

    def fold(
        self, using: str, rows: Sequence[models.Consumer], *, after: Mapping[str, int], until: Mapping[str, int]
    ) -> FoldedEvents:
        sources = [Source.of(self._projection, row) for row in rows]
        events, reached = read(using, sources, after=after, until=until, most=CHUNK)
        try:
            with transaction.atomic(using):
                self._fold(using, events)
        except Exception as error:
            _raise_if_of_server(error)
            return self._one_by_one(using, events, dict(after), reached)
        return FoldedEvents(reached, len(events))

    def _one_by_one(
        self, using: str, events: Sequence[ReceivedEvent], passed: dict[str, int], reached: dict[str, int]
    ) -> FoldedEvents:
        """Together they failed: fold up to the one that does."""
        for count, event in enumerate(events):
            event.forget()
            try:
                with transaction.atomic(using):
                    self._fold(using, [event])
            except Ignore:
                pass
            except Exception as error:
                _raise_if_of_server(error)
                return FoldedEvents(passed, count, Failed(event.topic, event.id, summary_of(error)))
            passed[event.topic] = event.id
        return FoldedEvents(reached, len(events))


def handler_of(projection: DeclaredProjection[Any]) -> ProjectionHandler:
    """What handles the events of a projection."""
    return ProjectionHandler(projection)


def derivation_of(projection: DeclaredProjection[Any]) -> ProjectionFilling:
    """How the table of a projection is filled anew."""
    return ProjectionFilling(projection)


def _raise_if_of_server(error: Exception) -> None:
    """Raise an error that isn't the event's: the next try may succeed."""
    kinds = (sql.ErrorKind.LOST, sql.ErrorKind.LOCKED, sql.ErrorKind.CONFLICT, sql.ErrorKind.CANCELED)
    if isinstance(error, DatabaseError) and (sql.kind_of(error) in kinds or sql.kind_of(error).of_server):
        raise error


def _source(of: Callable[..., Any] | str | None) -> str | None:
    """A function as it is written; where that can't be found, its name."""
    if not callable(of):
        return of
    try:
        return inspect.getsource(of)
    except (OSError, TypeError):
        return f"{of.__module__}.{of.__qualname__}"
