"""A projection as an app declares it: a consumer that keeps the rows of a model true, by a plain function.

@projection(orders, into=CustomerTotal, key="$.customer")
def totals(row: CustomerTotal, event: ReceivedEvent) -> None:
    row.total += event.value["total"]
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, ClassVar, Final, Generic, TypeVar

from django_events.declarations.declared_consumer import DeclaredConsumer, Handler
from django_events.declarations.operable import Rebuildable
from django_events.declarations.paths import wrong_path
from django_events.exceptions import HandlerNotFound
from django_events.outcomes import Drifts, UpTo
from django_events.received import ReceivedEvent

Row = TypeVar("Row")


class Deletion(Enum):
    """What the function of a projection returns to have the row deleted; see `DELETE`."""

    DELETE = "delete"


DELETE: Final = Deletion.DELETE
Fold = Callable[[Row, ReceivedEvent], Deletion | None]
KeyOfEvent = Callable[[ReceivedEvent], object]


@dataclass(frozen=True, kw_only=True)
class DeclaredProjection(DeclaredConsumer, Rebuildable, Generic[Row]):
    """A model that a consumer keeps true. Calling it calls its function, with a row and an event.

    `into` is the model, or its name as in "shop.CustomerTotal". `key` says to which row an event belongs: by default
    its own key; or a path into its value, or a function. `key_field` is the model's field that holds it, by default its
    primary key.
    """

    into: Any = None
    key: str | KeyOfEvent | None = None
    key_field: str | None = None
    takes: ClassVar[tuple[str, ...]] = ("row", "event")
    derived: ClassVar[bool] = True

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.function(*arguments, **options)

    @property
    def model(self) -> type[Row]:
        """The model itself, when Django is set up."""
        found: type[Row] = (
            import_module("django.apps").apps.get_model(self.into) if isinstance(self.into, str) else self.into
        )
        return found

    def load(self) -> Handler:
        """What handles its events: it folds a batch of them into the rows; HandlerNotFound if it can't."""
        for problem in (*self.problems(), *self.problems_of_model()):
            raise HandlerNotFound(problem)
        handler: Handler = self._room().handler_of(self)
        return handler

    @property
    def function(self) -> Fold[Row]:
        """What changes a row by an event."""
        function: Fold[Row] = super().load()
        return function

    def derivation(self) -> Any:
        """How its table is filled, for those who make another one."""
        return self._room().derivation_of(self)

    def as_of(self, at: int | Mapping[str, int], *, key: object, using: str | None = None) -> Row | None:
        """The row of a key as it was when all events up to an id were folded, and none behind it; None if it had none.

        Of several topics, the id of each. It is folded anew from the log, and nothing is written.
        """
        row: Row | None = self._room().as_of(self, at, key=key, using=using)
        return row

    def check(self, *, sample: int = 1000, using: str | None = None) -> Drifts:
        """Fold a sample of keys anew from the log, and name what is otherwise in the rows.

        Up to where the consumer is now. Nothing is written; workers may run meanwhile.
        """
        drifts: Drifts = self._room().check(self, sample=sample, using=using)
        return drifts

    def up_to(self, *, using: str | None = None) -> list[UpTo]:
        """Of each topic, up to which event its rows are true, and when that was logged; see `deriving.reached`."""
        found: list[UpTo] = import_module("django_events.deriving.reached").up_to(self, using=using)
        return found

    @staticmethod
    def _room() -> Any:
        """Declarations are read before Django is set up, so the room above is entered with a call."""
        return import_module("django_events.deriving.projecting")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        what = f"Projection {self.name!r}"
        if isinstance(self.key, str):
            if problem := wrong_path(self.key):
                yield f"{what} has key={self.key!r}: {problem}."
        elif self.key is not None and not callable(self.key):
            yield f"{what} has key={self.key!r}, expected a path like '$.customer', a function of the event, or None."
        if self.key is not None and self.partitioned:
            yield (
                f"{what} has a key of its own and partitioned=True. Partitions are by the event's key, so two of them "
                "may have events of one row, and their order would be lost. Leave partitioned out."
            )
        if self.start == "end":
            yield (
                f"{what} has start='end': a rebuild could not find out where that was. Expected 'beginning', a "
                "datetime, or the id of the first event."
            )

    def problems_of_model(self) -> Iterator[str]:
        """Yield a sentence for each reason why the model can't be kept by it. Models must be loaded."""
        what = f"Projection {self.name!r}"
        try:
            options: Any = getattr(self.model, "_meta", None)
        except (LookupError, ValueError) as error:
            said = str(error) if isinstance(error, LookupError) else "expected one like 'shop.CustomerTotal'."
            yield f"{what} is into {self.into!r}, which is no model of an installed app: {said}"
            return
        if options is None or options.abstract:
            yield f"{what} is into {self.into!r}, expected a model that has a table."
            return
        label = options.label
        if options.parents and not options.proxy:
            yield f"{what} is into {label}, which has rows in several tables: a projection fills one."
            return
        if options.swapped or not options.managed:
            yield f"{what} is into {label}, whose table other code makes, so it could not be rebuilt."
        if self.key_field is None and options.pk.get_internal_type().endswith("AutoField"):
            yield (
                f"{what} is into {label}, whose primary key is counted by the database. Name the field that holds the "
                "key of a row, with key_field=…, or make it the primary key."
            )
        yield from self._problems_of_key_field(what, options)

    def _problems_of_key_field(self, what: str, options: Any) -> Iterator[str]:
        name = self.key_field or options.pk.name
        fields = {field.name: field for field in options.concrete_fields}
        if len(getattr(options, "pk_fields", ())) > 1:
            yield f"{what} is into {options.label}, whose primary key has several columns: a row has one key."
        elif name not in fields:
            yield f"{what} has key_field={name!r}, which {options.label} has not. It has: {', '.join(fields)}."
        elif not fields[name].unique:
            yield f"{what} has key_field={name!r}, which is not unique in {options.label}: a key has one row."
