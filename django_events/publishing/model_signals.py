"""The receivers that `@outbox` connects to Django's signals. Each publishes in the transaction of the change.

`pre_save` refuses a save outside a transaction, and `post_save` publishes it. `pre_delete` reads and locks a row that
is going to be deleted, and `post_delete` publishes that.
A model has the outboxes that it was given, those of its abstract models, and those of the parents whose rows are a part
of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from django.apps import apps
from django.db import connections, transaction
from django.db.models import GeneratedField, Model, QuerySet
from django.db.models.signals import post_delete, post_save, pre_delete, pre_save

from django_events.conf import settings
from django_events.drafts import Draft
from django_events.exceptions import NotInTransaction
from django_events.publishing.api import publish
from django_events.publishing.fields import Concrete, concrete_fields, key_fields, pk_fields, written
from django_events.publishing.fitting import fitting
from django_events.publishing.outbox_options import Change, OutboxOptions, declared
from django_events.publishing.session_settings import is_suppressed

UID = "django_events.outbox"
_DELETED = "_django_events_deleted"  # an attribute of an instance from pre_delete to post_delete


@dataclass(frozen=True)
class Publisher:
    """One outbox for the rows of one table."""

    outbox: OutboxOptions
    model: type[Model]

    def event_type(self, change: Change) -> str | None:
        """The type of the events about a change; None if there are none, or if they are suppressed."""
        event_type = self.outbox.event_type(change, self.model)
        return None if event_type is None or is_suppressed(self.outbox.topic, self.model) else event_type

    @cached_property
    def payload(self) -> list[Concrete]:
        return self.outbox.payload(self.model)

    @cached_property
    def key_fields(self) -> list[Concrete]:
        key = self.outbox.key
        return key_fields(self.model, key) if isinstance(key, str) else []

    @cached_property
    def needed(self) -> list[Concrete]:
        """The fields that an event is made of: all of them, where a function or another attribute may read any."""
        reads_any = self.outbox.value is not None or (self.outbox.key is not None and not self.key_fields)
        return list(concrete_fields(self.model).values()) if reads_any else [*self.payload, *self.key_fields]

    def event(self, event_type: str, row: Model, using: str) -> Callable[[], object]:
        """A function that publishes the event about a row, as the row is now."""
        one = self.draft(event_type, row)
        topic, metadata = self.outbox.topic, one.metadata
        return partial(publish, topic, one.value, type=event_type, key=one.key, metadata=metadata, using=using)

    def draft(self, event_type: str, row: Model) -> Draft:
        """The event about a row, as the row is now."""
        value, omitted = self._value(row), list[str]()
        if self.outbox.too_large == "omit" and settings.MAX_PAYLOAD_BYTES is not None:
            value, omitted = fitting(value, most=settings.MAX_PAYLOAD_BYTES)
        metadata = {"omitted": omitted} if omitted else None
        return Draft(value=value, type=event_type, key=self._key(row), metadata=metadata)

    def _value(self, row: Model) -> Any:
        if self.outbox.value is None:
            return {field.attname: written(field, row.__dict__.get(field.attname)) for field in self.payload}
        value: Any = self.outbox.value(row)
        is_serializer = not isinstance(value, Mapping) and hasattr(value, "data")
        return value.data if is_serializer else value

    def _key(self, row: Model) -> str | None:
        key: Any = self.outbox.key
        if key is None:
            return None
        if callable(key):
            key = key(row)
        elif self.key_fields:
            parts = [written(field, row.__dict__.get(field.attname)) for field in self.key_fields]
            key = parts[0] if len(parts) == 1 else ",".join(map(str, parts))
        else:
            key = getattr(row, key)
        return None if key is None else str(key)


_publishers: dict[type[Model], list[Publisher]] = {}


def connect(outbox: OutboxOptions) -> None:
    """Declare an outbox. Its receivers are connected when all models are loaded, because others may inherit it."""
    declared.append(outbox)
    if apps.models_ready:
        _connect(outbox)


def connect_declared() -> None:
    """Connect the receivers of the outboxes that were declared while models were being loaded."""
    for outbox in declared:
        _connect(outbox)


def publishers() -> Iterator[Publisher]:
    """Every outbox, once for each table."""
    return iter({(one.outbox, one.model): one for of_model in _publishers.values() for one in of_model}.values())


def _connect(outbox: OutboxOptions) -> None:
    for model in [outbox.model, *_descendants(outbox.model)]:
        if not model._meta.abstract:
            _publishers[model] = list(_publishers_of(model))
            pre_save.connect(_refuse_autocommit, sender=model, dispatch_uid=UID)
            post_save.connect(_publish_saved, sender=model, dispatch_uid=UID)
            pre_delete.connect(_read_deleted, sender=model, dispatch_uid=UID)
            post_delete.connect(_publish_deleted, sender=model, dispatch_uid=UID)


def _descendants(model: type[Model]) -> Iterator[type[Model]]:
    for child in model.__subclasses__():
        yield child
        yield from _descendants(child)


def _publishers_of(model: type[Model]) -> Iterator[Publisher]:
    tables = [one for one in model.__mro__ if issubclass(one, Model) and hasattr(one, "_meta")]
    tables = [one for one in tables if not one._meta.abstract and not one._meta.proxy]
    for outbox in declared:
        if not issubclass(model, outbox.model) or _is_replaced(outbox, model):
            continue
        if outbox.model._meta.abstract:
            # Of the models that inherit an abstract one, the farthest ancestor has its columns.
            yield Publisher(outbox, [one for one in tables if issubclass(one, outbox.model)][-1])
        else:
            yield Publisher(outbox, next(one for one in tables if issubclass(outbox.model, one)))


def _is_replaced(outbox: OutboxOptions, model: type[Model]) -> bool:
    """Whether a model that inherits an abstract one's outbox has another one for the topic."""
    return outbox.model._meta.abstract and any(
        other is not outbox and other.topic == outbox.topic and issubclass(other.model, outbox.model)
        for other in declared
        if issubclass(model, other.model)
    )


def _refuse_autocommit(
    sender: type[Model],
    instance: Model,
    raw: bool,
    using: str,
    update_fields: frozenset[str] | None = None,
    **kwargs: Any,
) -> None:
    """In autocommit Django commits the row before it sends post_save: a crash in between would lose the event."""
    if raw or not connections[using].get_autocommit():
        return
    changes: tuple[Change, ...] = ("created", "updated") if update_fields is None else ("updated",)
    for publisher in _publishers.get(sender, ()):
        if any(publisher.event_type(change) is not None for change in changes):
            raise NotInTransaction(
                f"{sender._meta.label} has an @outbox for topic {publisher.outbox.topic!r}, and is saved outside a "
                f"transaction on {using!r}: the row would be committed before its event. Nothing was saved. Wrap the "
                "save in transaction.atomic(), set ATOMIC_REQUESTS, or use capture(), which needs no transaction."
            )


def _publish_saved(
    sender: type[Model],
    instance: Model,
    created: bool,
    raw: bool,
    using: str,
    update_fields: frozenset[str] | None = None,
    **kwargs: Any,
) -> None:
    if raw:
        return
    for publisher in _publishers.get(sender, ()):
        event_type = publisher.event_type("created" if created else "updated")
        if event_type is not None:
            inserted = created and publisher.model is sender._meta.concrete_model
            with _all_or_nothing(using):
                known = all(_is_known(field, instance, inserted, update_fields) for field in publisher.needed)
                row = instance if known else _row(publisher.model, instance, using).first() or instance
                publisher.event(event_type, row, using)()


def _read_deleted(sender: type[Model], instance: Model, using: str, **kwargs: Any) -> None:
    """Read and lock a row before its relations are deleted. Of two sessions that delete it, only one finds it."""
    events = instance.__dict__[_DELETED] = list[Callable[[], object]]()
    for publisher in _publishers.get(sender, ()):
        if publisher.model is not sender._meta.concrete_model:
            continue  # Django sends a signal of its own for the row of a parent
        event_type = publisher.event_type("deleted")
        if event_type is not None:
            row = _row(publisher.model, instance, using).select_for_update(of=("self",)).first()
            if row is not None:
                events.append(publisher.event(event_type, row, using))


def _publish_deleted(sender: type[Model], instance: Model, **kwargs: Any) -> None:
    """Publish a delete, after what receivers of pre_delete published. Django rolls the delete back on an error."""
    for publish_event in instance.__dict__.pop(_DELETED, ()):
        publish_event()


@contextmanager
def _all_or_nothing(using: str) -> Iterator[None]:
    """Mark the transaction for rollback on an error: who catches it would otherwise commit a row without its event."""
    try:
        yield
    except BaseException:
        if connections[using].in_atomic_block:
            transaction.set_rollback(True, using)
        raise


def _is_known(field: Concrete, instance: Model, inserted: bool, update_fields: frozenset[str] | None) -> bool:
    """Whether a saved instance has the value that is in the row."""
    if field.attname not in instance.__dict__ or hasattr(instance.__dict__[field.attname], "resolve_expression"):
        return False
    if inserted or field.primary_key:
        return True
    if isinstance(field, GeneratedField):
        return False
    return update_fields is None or not update_fields.isdisjoint((field.name, field.attname))


def _row(model: type[Model], instance: Model, using: str) -> QuerySet[Any]:
    # Not by a manager of the model's, which may hide rows; and an order by another table would lock that, too.
    pk = {field.attname: getattr(instance, field.attname) for field in pk_fields(model)}
    return QuerySet(model, using=using).filter(**pk).order_by()
