"""A topic as an app declares it, which also publishes to it."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from django_events.declarations.declared_schema import schema_of
from django_events.declarations.limits import MAX_PARTITIONS, MIN_SEGMENT_SIZE, NAME, NAME_RULE, check_number
from django_events.declarations.operable import Changeable
from django_events.drafts import UNSET, Draft, EventFields, Receipt

SchemaCheck = Literal["strict", "warn", "off"]
Undescribed = Literal["refuse", "pass"]
Compatibility = Literal["backward", "forward", "full", "none"]

if TYPE_CHECKING:
    from django_events.declarations.declared_clock import DeclaredClock, Missed, Overlap


def _publishing() -> Any:
    """The room above that publishes. Declarations are read before Django is set up, so it is entered with a call."""
    return import_module("django_events.publishing.api")


@dataclass(frozen=True, kw_only=True)
class DeclaredTopic(Changeable):
    """A named log, as an app declares it. Its row in the database is `models.Topic`."""

    name: str
    partitions: int = 1
    retention: timedelta | None = None
    retention_events: int | None = None
    retention_bytes: int | None = None
    keep_unread: bool = True
    segment_size: int = 1_000_000
    timeline: bool = False
    compact: bool = False
    tombstones_kept: timedelta = timedelta(days=1)
    schemas: tuple[type[Any], ...] = ()
    schema_check: SchemaCheck = "strict"
    undescribed: Undescribed = "refuse"
    compatibility: Compatibility = "backward"
    declared_at: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def publish(self, value: Any = UNSET, **fields: Unpack[EventFields]) -> Receipt:
        """Publish one event here; see `django_events.publish`."""
        receipt: Receipt = _publishing().publish(self, value, **fields)
        return receipt

    async def apublish(self, value: Any = UNSET, **fields: Unpack[EventFields]) -> Receipt:
        """Publish one event here from async code; see `django_events.publish`."""
        receipt: Receipt = await _publishing().apublish(self, value, **fields)
        return receipt

    def publish_many(self, drafts: Iterable[Draft], *, using: str | None = None) -> int:
        """Publish many events here at once; see `django_events.publish_many`."""
        published: int = _publishing().publish_many(self, drafts, using=using)
        return published

    def every(
        self,
        cron: str,
        *,
        type: str,
        tz: str = "UTC",
        key: str | None = None,
        value: Any = None,
        missed: "Missed" = "latest",
        overlap: "Overlap" = "allow",
        name: str | None = None,
    ) -> "DeclaredClock":
        """Declare a clock: an event here at each time that a cron expression names in a time zone.

        `manage.py migrate` makes its row, and the transfer publishes each tick exactly once, in the order of the ticks.
        Its metadata say which: `clock` and `tick`. After an outage, `missed` says which of the ticks that passed
        are published: the latest one, all (the newest 1,000), or with "skip" none that is a minute late. With
        `overlap="skip"` a tick is left out while a consumer has not handled the one before.
        """
        from django_events.declarations.declared_clock import DeclaredClock
        from django_events.declarations.registries import clocks

        caller = sys._getframe(1)
        declared = DeclaredClock(
            name=f"{self.name}.{type}" if name is None else name,
            topic=self.name,
            cron=cron,
            tz=tz,
            type=type,
            key=key,
            value=value,
            missed=missed,
            overlap=overlap,
            declared_at=f"{caller.f_code.co_filename}:{caller.f_lineno}",
        )
        clocks.add(declared)
        return declared

    @cached_property
    def contract(self) -> Any:
        """What its events are by its schemas: a `django_events.contracts.contract.Contract`."""
        return import_module("django_events.contracts.contract").Contract(self)

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why this can't be a topic."""
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            yield f"Topic name {self.name!r} is not valid: {NAME_RULE}."
        yield from check_number(f"Topic {self.name!r}", "partitions", self.partitions, 1, MAX_PARTITIONS)
        yield from check_number(f"Topic {self.name!r}", "segment_size", self.segment_size, MIN_SEGMENT_SIZE, 2**40)
        if self.retention is not None and (not isinstance(self.retention, timedelta) or self.retention <= timedelta(0)):
            yield (
                f"Topic {self.name!r} has retention={self.retention!r}, expected a timedelta above zero, "
                "or None to keep events for ever."
            )
        for option in ("retention_events", "retention_bytes"):
            if getattr(self, option) is not None:
                yield from check_number(f"Topic {self.name!r}", option, getattr(self, option), 1, 2**62)
        if not isinstance(self.tombstones_kept, timedelta) or self.tombstones_kept < timedelta(0):
            kept = self.tombstones_kept
            yield f"Topic {self.name!r} has tombstones_kept={kept!r}, expected a timedelta of zero or more."
        for option in ("keep_unread", "timeline", "compact"):
            if not isinstance(getattr(self, option), bool):
                yield f"Topic {self.name!r} has {option}={getattr(self, option)!r}, expected True or False."
        yield from self._problems_of_schemas()

    def _problems_of_schemas(self) -> Iterator[str]:
        what = f"Topic {self.name!r}"
        for option, known in (
            ("schema_check", SchemaCheck),
            ("undescribed", Undescribed),
            ("compatibility", Compatibility),
        ):
            if getattr(self, option) not in get_args(known):
                expected = " or ".join(map(repr, get_args(known)))
                yield f"{what} has {option}={getattr(self, option)!r}, expected {expected}."
        models: dict[tuple[str, int], Any] = {}
        for model in self.schemas:
            schema = schema_of(model)
            if schema is None:
                yield (
                    f"{what} has {model!r} in schemas, which says no type. Expected a pydantic model with a decorator "
                    f'of its own, like @schema("{self.name}.placed").'
                )
                continue
            yield from (f"{what}: {problem}" for problem in schema.problems(model))
            if (schema.type, schema.version) in models:
                yield f"{what} has two schemas of {schema}: {models[schema.type, schema.version]!r} and {model!r}."
            models.setdefault((schema.type, schema.version), model)
