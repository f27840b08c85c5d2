"""What a snapshot publishes of a table: rows as the triggers of `capture()` see them, or as an `@outbox` does.

    source = source_of(Order, topic="orders", using="default")
    keys = next_keys(source, after=None, where=None, most=1_000)
    busy = source.publish(keys, label)

Each row is locked FOR SHARE until the transaction of its event ends, so what changes it comes after that event.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import pgtrigger
from django.db import connections
from django.db.models import ForeignKey, Model, Q, QuerySet

from django_events import sql
from django_events.exceptions import Invalid, NotReady
from django_events.publishing.api import publish_many
from django_events.publishing.capture import Capture, CaptureOptions
from django_events.publishing.fields import Concrete, pk_fields
from django_events.publishing.model_signals import Publisher, publishers
from django_events.statements import declared

SQL = sql.beside(__name__)

Key = tuple[Any, ...]  # a primary key, which has more than one part where it is composite


class Label(NamedTuple):
    """What the events of a snapshot say besides their rows."""

    topic_id: int
    type: str
    snapshot: int


class RowSource(Protocol):
    """The rows of a table, and how they are published."""

    @property
    def model(self) -> type[Model]: ...
    @property
    def topic(self) -> str: ...
    @property
    def using(self) -> str: ...

    def publish(self, keys: Sequence[Key], label: Label, *, patient: bool = False) -> list[Key]:
        """Publish the rows of these keys, in the caller's transaction; returns those that others have locked.

        With `patient` it waits for them. A row that is gone is left out.
        """


def next_keys(source: RowSource, *, after: Key | None, where: Q | None, most: int) -> list[Key]:
    """The next primary keys, in order, of rows that are visible now."""
    rows: QuerySet[Any] = QuerySet(source.model, using=source.using).order_by("pk")
    if where is not None:
        rows = rows.filter(where).distinct()
    composite = len(pk_fields(source.model)) > 1
    if after is not None:
        rows = rows.filter(pk__gt=after if composite else after[0])
    found = rows.values_list("pk", flat=True)[:most]
    return [tuple(one) if composite else (one,) for one in found]


def as_texts(model: type[Model], key: Key) -> list[str]:
    """A primary key for JSON."""
    if len(key) == 1 and type(key[0]) is int:  # as most are
        return [str(key[0])]
    return [str(field.get_prep_value(part)) for field, part in zip(pk_fields(model), key, strict=True)]


def from_texts(model: type[Model], texts: Sequence[str]) -> Key:
    return tuple(_target(field).to_python(text) for field, text in zip(pk_fields(model), texts, strict=True))


@dataclass(frozen=True, slots=True)
class CapturedRows:
    """The rows of a table with triggers, which the server makes into events by itself."""

    model: type[Model]
    topic: str
    using: str
    trigger: Capture

    def publish(self, keys: Sequence[Key], label: Label, *, patient: bool = False) -> list[Key]:
        fields, parts = list(enumerate(pk_fields(self.model))), self.trigger.row_parts(self.model)
        same = [SQL.same_part.on(row=("r", str(field.column)), wanted=("w", f"key_{n}")) for n, field in fields]
        statement = SQL.publish_rows.on(
            wanted=[self._wanted(n, field) for n, field in fields],
            same=sql.all_of(same),
            table=self.model._meta.db_table,
            locking=SQL.waiting if patient else SQL.not_waiting,
            key=declared(parts.key),
            checked=declared(parts.checked),
            end=declared(parts.end),
            shown=declared(parts.shown),
            condition=declared(parts.condition),
        )
        rows = sql.fetch(
            self.using,
            statement,
            keys=json.dumps([as_texts(self.model, key) for key in keys]),
            topic_id=label.topic_id,
            type=label.type,
            metadata=json.dumps({"snapshot": label.snapshot}),
        )
        return [keys[index - 1] for [index] in rows]

    def _wanted(self, index: int, field: Concrete) -> sql.Statement:
        kind = _target(field).rel_db_type(connections[self.using])
        return SQL.part_of_key.on(index=index, type=declared(str(kind)), name=f"key_{index}")


@dataclass(frozen=True, slots=True)
class OutboxRows:
    """The rows of a model with an outbox, which are read, and made into events by Python."""

    model: type[Model]
    topic: str
    using: str
    publisher: Publisher

    def publish(self, keys: Sequence[Key], label: Label, *, patient: bool = False) -> list[Key]:
        composite = len(pk_fields(self.model)) > 1
        wanted = [key if composite else key[0] for key in keys]
        rows: QuerySet[Any] = QuerySet(self.model, using=self.using).filter(pk__in=wanted).order_by("pk")
        there = set(rows.values_list("pk", flat=True))
        locked = list(rows.select_for_update(of=("self", *_parents(self.model)), no_key=True, skip_locked=not patient))
        drafts = [self.publisher.draft(label.type, row) for row in locked]
        about = {"snapshot": label.snapshot}
        publish_many(
            self.topic,
            [replace(one, metadata={**(one.metadata or {}), **about}) for one in drafts],
            using=self.using,
        )
        busy = there - {row.pk for row in locked}
        return [key for key, pk in zip(keys, wanted, strict=True) if pk in busy]


def source_of(model: type[Model], *, topic: str | None, using: str) -> RowSource:
    """What is published of a model's table, to this topic if it has several; Invalid if that isn't one thing."""
    found = [one for one in _sources(model, using) if topic in (None, one.topic)]
    if len(found) == 1:
        if isinstance(found[0], CapturedRows):
            _refuse_condition_of_change(found[0])
            _refuse_uninstalled(found[0])
        return found[0]
    label = model._meta.label
    to = "" if topic is None else f" for topic {topic!r}"
    if not found:
        raise Invalid(f"{label} has neither an @outbox nor a capture(){to}: nothing says what its events contain.")
    topics = ", ".join(sorted({one.topic for one in found}))
    if topic is None and len({one.topic for one in found}) > 1:
        raise Invalid(f"{label} has events in {topics}. Say which topic its snapshot is for.")
    raise Invalid(f"{label} has {len(found)} declarations for {topics}, which say different things of a row.")


def _sources(model: type[Model], using: str) -> Iterator[RowSource]:
    table = model._meta.concrete_model or model
    registered: Any = pgtrigger.registered()
    seen: list[CaptureOptions] = []
    for of, trigger in registered:
        if isinstance(trigger, Capture) and of._meta.concrete_model is table and trigger.declared not in seen:
            seen.append(trigger.declared)
            yield CapturedRows(table, trigger.declared.topic, using, trigger)
    for publisher in publishers():
        if publisher.model is table:
            yield OutboxRows(table, publisher.outbox.topic, using, publisher)


def _refuse_condition_of_change(source: CapturedRows) -> None:
    """Of a row that is there nothing has changed, so it would be left out without a word."""
    if source.trigger.compares(source.model):
        raise Invalid(
            f"capture({source.topic!r}) of {source.model._meta.label} has a condition that compares OLD and NEW: it is "
            "about a change, and doesn't say which rows have events. Give the model another capture, without it."
        )


def _refuse_uninstalled(source: CapturedRows) -> None:
    """A change that no trigger sees would leave what was published before it as the last word about its row."""
    registered: Any = pgtrigger.registered()
    for model, trigger in registered:
        if not isinstance(trigger, Capture) or trigger.declared != source.trigger.declared:
            continue
        if model._meta.concrete_model is source.model:
            status, enabled = trigger.get_installation_status(model, database=source.using)
            if status == "UNINSTALLED" or not enabled:
                raise NotReady(
                    f"Trigger {trigger.name} of {source.model._meta.db_table} is not there, or disabled: changes "
                    f"behind the snapshot would be lost. Run: manage.py migrate --database {source.using}"
                )


def _parents(model: type[Model]) -> Iterator[str]:
    """The links to the rows of its parents, which are a part of it."""
    for parent, link in model._meta.parents.items():
        if link is not None:
            yield link.name
            yield from (f"{link.name}__{further}" for further in _parents(parent))


def _target(field: Concrete) -> Concrete:
    while isinstance(field, ForeignKey):
        field = field.target_field
    return field
