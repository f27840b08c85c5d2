"""What Django's signals tell of models with an outbox, published.

A class has the outboxes that it was given, those of the abstract models it is made of, and those of the parents whose
rows are a part of it. A row that an instance only inherits is deleted under a signal of its own.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections, router, transaction
from django.db.models import GeneratedField, Model, QuerySet
from django.db.models.signals import class_prepared, m2m_changed, post_delete, post_save, pre_delete, pre_save

from django_events.conf import settings
from django_events.publishing.api import publish
from django_events.publishing.fields import CHANGED, Concrete, key_fields, pk_fields, written
from django_events.publishing.fitting import fitting
from django_events.publishing.relations import Relation, relations_of
from django_events.publishing.session_settings import is_suppressed

if TYPE_CHECKING:
    from django_events.publishing.outbox import Outbox, What

_RAW = "django_events_raw"  # an attribute of an instance's state
_WRAPPED = "_django_events_watches_saves"
_PENDING = "_django_events_pending"  # an attribute of a connection

declared: list["Outbox"] = []


@dataclass(frozen=True)
class Publisher:
    """An outbox at work, for the rows of one table."""

    outbox: "Outbox"
    model: type[Model]  # whose table it is

    def event_type(self, what: "What") -> str | None:
        """The type of the events about a change; None if there is none, or if it is suppressed here."""
        event_type = self.outbox.event_type(what, self.model)
        return None if event_type is None or is_suppressed(self.outbox.topic, self.model) else event_type

    @cached_property
    def payload(self) -> list[Concrete]:
        """The fields that events contain."""
        return [] if self.outbox.value is not None else self.outbox.payload(self.model)

    @cached_property
    def watched(self) -> list[Concrete]:
        return self.outbox.watched(self.model)

    @cached_property
    def hidden(self) -> list[Concrete]:
        return self.outbox.hidden(self.model)

    @cached_property
    def key_fields(self) -> list[Concrete]:
        key = self.outbox.key
        return key_fields(self.model, key) if isinstance(key, str) else []

    @cached_property
    def compared(self) -> list[Concrete]:
        """The fields of which an update says from what to what they changed, and those that are watched but hidden."""
        return list(dict.fromkeys([*self.payload, *self.watched]))

    @cached_property
    def wanted(self) -> list[Concrete]:
        """The fields whose values an event needs."""
        return list(dict.fromkeys([*self.compared, *self.key_fields]))

    @cached_property
    def relations(self) -> list[Relation]:
        return relations_of(self.model, self.outbox.m2m)


@dataclass
class Before:
    """What was known of a row before it was saved."""

    row: Mapping[str, Any] | None = None
    nothing: bool = False  # that is watched is going to be saved


@dataclass(eq=False)
class Save:
    """A save that is going on."""

    instance: Model
    updates: bool  # by force
    before: list[Before] = field(default_factory=list)
    updated: dict[type[Model], bool] = field(default_factory=dict)  # whether the row was there, of each table
    stored: Mapping[str, Any] = field(default_factory=dict)  # the attributes that were written
    told: bool = False


class _Saving(threading.local):
    """The saves of this thread: a state of the instance would be copied and pickled with it."""

    def __init__(self) -> None:
        self.saves: list[Save] = []


_publishers: dict[type[Model], list[Publisher]] = {}
_saving = _Saving()


def connect(outbox: "Outbox") -> None:
    """Publish what an outbox declares, from now on."""
    declared.append(outbox)
    _watch_saves(outbox.model)
    for model in [outbox.model, *_descendants(outbox.model)]:
        if not model._meta.abstract:
            _connect(model)


def publishers() -> Iterator[Publisher]:
    """Every outbox at work, once for each table."""
    seen = set()
    for of_model in _publishers.values():
        for publisher in of_model:
            if (publisher.outbox, publisher.model) not in seen:
                seen.add((publisher.outbox, publisher.model))
                yield publisher


def connect_relations() -> None:
    """The tables of many-to-many relations are known when all models are."""
    for publisher in publishers():
        for relation in publisher.relations:
            m2m_changed.connect(_relation_changes, sender=relation.through, dispatch_uid="django_events")


def _descendants(model: type[Model]) -> Iterator[type[Model]]:
    for child in model.__subclasses__():
        yield child
        yield from _descendants(child)


def _connect(model: type[Model]) -> None:
    _publishers[model] = list(_publishers_of(model))
    pre_save.connect(_before_save, sender=model, dispatch_uid="django_events")
    post_save.connect(_after_save, sender=model, dispatch_uid="django_events")
    pre_delete.connect(_before_delete, sender=model, dispatch_uid="django_events")
    post_delete.connect(_after_delete, sender=model, dispatch_uid="django_events")
    if apps.ready:
        connect_relations()


def _connect_new(sender: type[Model], **kwargs: Any) -> None:
    if any(issubclass(sender, outbox.model) for outbox in declared):
        _connect(sender)


class_prepared.connect(_connect_new, dispatch_uid="django_events")


def _publishers_of(model: type[Model]) -> Iterator[Publisher]:
    tables = [one for one in model.__mro__ if issubclass(one, Model) and hasattr(one, "_meta")]
    tables = [one for one in tables if not one._meta.abstract and not one._meta.proxy]
    for outbox in declared:
        if not issubclass(model, outbox.model):
            continue
        if outbox.model._meta.abstract:
            # The table that has the columns of an abstract model is that of the farthest that inherits it.
            table = [one for one in tables if issubclass(one, outbox.model)][-1]
        else:
            table = next(one for one in tables if issubclass(outbox.model, one))
        if not _is_replaced(outbox, table):
            yield Publisher(outbox, table)


def _is_replaced(outbox: "Outbox", model: type[Model]) -> bool:
    """Whether a model that inherits an abstract one's outbox has another one for the topic."""
    return outbox.model._meta.abstract and any(
        other is not outbox and other.topic == outbox.topic and issubclass(other.model, outbox.model)
        for other in declared
        if issubclass(model, other.model)
    )


def _watch_saves(model: type[Model]) -> None:
    """Make a save and its events one: Django would commit the row, in autocommit, before it sends the signal."""
    if _WRAPPED in vars(model):
        return
    save_base: Any = model.save_base
    save_table: Any = model._save_table  # type: ignore[attr-defined]

    @wraps(save_base)
    def watched_save(self: Model, *args: Any, using: str | None = None, **kwargs: Any) -> None:
        alias = using or router.db_for_write(type(self), instance=self)
        with _save(self, alias, updates=kwargs.get("force_update", False)):
            save_base(self, *args, using=alias, **kwargs)

    @wraps(save_table)
    def noted_save(self: Model, raw: bool = False, cls: Any = None, *args: Any, **kwargs: Any) -> Any:
        updated = save_table(self, raw, cls, *args, **kwargs)
        if (save := _save_of(self)) is not None:
            save.updated[cls], save.stored = bool(updated), dict(self.__dict__)
        return updated

    model.save_base = watched_save  # type: ignore[method-assign]
    model._save_table = noted_save  # type: ignore[attr-defined]
    setattr(model, _WRAPPED, True)


@contextmanager
def _save(instance: Model, using: str, *, updates: bool) -> Iterator[None]:
    """A save in a transaction. Where a receiver's error keeps its events back, nobody can commit the row."""
    save = Save(instance, updates)
    _saving.saves.append(save)  # they may be nested: a receiver may save the instance again
    try:
        if connections[using].in_atomic_block:
            yield
        else:
            with transaction.atomic(using):
                yield
    except BaseException:
        if save.updated and not save.told and connections[using].in_atomic_block:
            transaction.set_rollback(True, using)
        raise
    finally:
        _saving.saves.remove(save)


def _save_of(instance: Model) -> Save | None:
    return next((save for save in reversed(_saving.saves) if save.instance is instance), None)


def _pending(using: str) -> dict[Any, Any]:
    """What is known between the signals before a change and after it, of the transaction that is open."""
    connection = connections[using]
    block = connection.atomic_blocks[:1]
    known, pending = getattr(connection, _PENDING, (None, {}))
    if known != block:  # a transaction before may have failed between the signals
        pending = {}
        setattr(connection, _PENDING, (block, pending))
    return pending


@contextmanager
def _all_or_nothing(using: str) -> Iterator[None]:
    """Whoever catches the error of an event must not commit the change that it is about."""
    try:
        yield
    except BaseException:
        if connections[using].in_atomic_block:
            transaction.set_rollback(True, using)
        raise


# Saving


def _before_save(
    sender: type[Model],
    instance: Model,
    raw: bool,
    using: str,
    update_fields: frozenset[str] | None = None,
    **kwargs: Any,
) -> None:
    setattr(instance._state, _RAW, raw)
    save = _save_of(instance)
    if raw or save is None:
        return
    for publisher in _publishers.get(sender, ()):
        save.before.append(_before(publisher, instance, using, update_fields, updates=save.updates))


def _before(
    publisher: Publisher, instance: Model, using: str, update_fields: frozenset[str] | None, *, updates: bool
) -> Before:
    """Read and lock the row: what the instance was loaded with may be old, or was never committed."""
    model = publisher.model
    if not publisher.watched or publisher.event_type("updated") is None:
        return Before()
    pk = _pk_of(model, instance)
    made = all(field.has_default() or field.has_db_default() for field in pk_fields(model))
    if None in pk or (instance._state.adding and made and not updates):
        return Before()
    if not any(_is_saved(field, update_fields) for field in publisher.watched):
        return Before(nothing=True)
    return Before(row=_row(model, pk, publisher.wanted, using, lock=True))


def _after_save(
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
    save = _save_of(instance)
    before, stored = ([], instance.__dict__) if save is None else (save.before, save.stored)
    with _all_or_nothing(using):
        for place, publisher in enumerate(_publishers.get(sender, ())):
            known = before[place] if before else Before()
            # The row of a parent may be there although that of the child is new.
            is_new = created if save is None else not save.updated.get(publisher.model, not created)
            event_type = publisher.event_type("created" if is_new else "updated")
            if event_type is not None and (is_new or not known.nothing):
                _publish_saved(publisher, instance, stored, event_type, known, using, update_fields, is_new=is_new)
    if save is not None:
        save.told = True


def _publish_saved(
    publisher: Publisher,
    instance: Model,
    stored: Mapping[str, Any],
    event_type: str,
    known: Before,
    using: str,
    update_fields: frozenset[str] | None,
    *,
    is_new: bool,
) -> None:
    unknown = _unknown(publisher, instance, stored, update_fields, is_new=is_new)
    values = {field.attname: instance.__dict__.get(field.attname) for field in publisher.wanted}
    if unknown:
        values.update(_row(publisher.model, _pk_of(publisher.model, instance), publisher.wanted, using) or {})
    changed = {} if is_new else _changes(publisher, known, values)
    if changed is None:
        return
    if publisher.outbox.value is not None and unknown:
        instance = _instance(publisher.model, _pk_of(publisher.model, instance), using) or instance
    _publish(publisher, event_type, _value(publisher, instance, values, changed), instance, values, using)


def _changes(publisher: Publisher, before: Before, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """What changed of the fields that events show; None if some are watched, and none of them changed."""
    if not publisher.watched or before.row is None:
        return {}
    changed: dict[Concrete, Any] = {}
    for one in publisher.compared:
        was, became = written(one, before.row[one.attname]), written(one, values[one.attname])
        if was != became:
            changed[one] = {"old": was, "new": became}
    if changed.keys().isdisjoint(publisher.watched):
        return None
    return {one.attname: change for one, change in changed.items() if one not in publisher.hidden}


def _unknown(
    publisher: Publisher,
    instance: Model,
    stored: Mapping[str, Any],
    update_fields: frozenset[str] | None,
    *,
    is_new: bool,
) -> list[Concrete]:
    """The fields whose values in the row the instance doesn't know; those of a function may be any."""
    state = instance.__dict__
    fields = list(pk_fields(publisher.model)) + publisher.wanted
    if publisher.outbox.value is not None:
        fields = list(type(instance)._meta.concrete_fields)
    return [
        one
        for one in fields
        if one.column is not None
        and (
            one.attname not in state
            or state[one.attname] is not stored.get(one.attname)  # a receiver before ours has set it
            or hasattr(state[one.attname], "resolve_expression")
            or (not is_new and isinstance(one, GeneratedField))
            or not (is_new or one.primary_key or _is_saved(one, update_fields))
        )
    ]


def _is_saved(one: Concrete, update_fields: frozenset[str] | None) -> bool:
    if update_fields is None or isinstance(one, GeneratedField):  # which follows others
        return True
    return one.name in update_fields or one.attname in update_fields


# Deleting


def _before_delete(sender: type[Model], instance: Model, using: str, **kwargs: Any) -> None:
    """Look which rows there are: of two who delete a row, the one that locks it publishes that."""
    pending = _pending(using)
    rows = pending[id(instance)] = []
    with _all_or_nothing(using):
        for publisher in _publishers.get(sender, ()):
            event_type = publisher.event_type("deleted")
            if event_type is None or publisher.model is not sender._meta.concrete_model:
                continue  # the parent's row has a signal of its own
            pk = _pk_of(publisher.model, instance)
            values = _row(publisher.model, pk, publisher.wanted, using, lock=True)
            if values is not None:
                # A function gets the row as it is, not what was done to the instance since it was loaded.
                row = instance if publisher.outbox.value is None else _instance(type(instance), pk, using) or instance
                pending[publisher, pk] = (event_type, _value(publisher, row, values, {}), values)
                rows.append((publisher, pk))


def _after_delete(sender: type[Model], instance: Model, using: str, **kwargs: Any) -> None:
    pending = _pending(using)
    with _all_or_nothing(using):
        for publisher, pk in pending.pop(id(instance), ()):
            # One row may go twice: as that of a proxy and of a child, or because a receiver deletes it before Django.
            if (publisher, pk) in pending:
                event_type, value, values = pending.pop((publisher, pk))
                _publish(publisher, event_type, value, instance, values, using)


# Relations


def _relation_changes(
    sender: type[Model],
    instance: Model,
    action: str,
    reverse: bool,
    pk_set: set[Any] | None,
    using: str,
    **kwargs: Any,
) -> None:
    """Look what there is before a change, and publish afterwards what came of it: a function sees the row as it is."""
    # A fixture says what its relations are; there is no flag for it.
    if getattr(instance._state, _RAW, False):
        return
    when, _, what = action.partition("_")
    for publisher in publishers():
        for relation in publisher.relations:
            if relation.through is not sender or not (reverse or isinstance(instance, publisher.model)):
                continue
            # Django sends one and the same set before and after.
            change = (publisher, relation, what, id(instance), id(pk_set))
            if when == "pre":
                _pending(using)[change] = _standing(publisher, relation, instance, reverse, pk_set, using)
                continue
            standing = _pending(using).pop(change, [])
            others = [pk for pk in pk_set or () if pk not in standing] if what == "add" else standing
            if others:
                with _all_or_nothing(using):
                    pairs = relation.pairs(instance, reverse, others)
                    _publish_relation(publisher, relation, "added" if what == "add" else "removed", pairs, using)


def _standing(
    publisher: Publisher,
    relation: Relation,
    instance: Model,
    reverse: bool,
    pk_set: set[Any] | None,
    using: str,
) -> list[Any]:
    """Of two who add or remove the same, one finds it done when the other has committed."""
    if pk_set == set() or publisher.event_type("updated") is None:
        return []
    relation.lock(instance, reverse, pk_set, using)
    return relation.standing(instance, reverse, pk_set, using)


def _publish_relation(
    publisher: Publisher, relation: Relation, what: str, pairs: dict[Any, list[Any]], using: str
) -> None:
    event_type = publisher.event_type("updated")
    if event_type is None:
        return
    for owner in relation.owners(pairs, using):
        values = _row(publisher.model, _pk_of(publisher.model, owner), publisher.wanted, using)
        others = relation.written(pairs[relation.value_of(owner)])
        if values is not None and others:
            changed = {relation.name: {what: others}}
            _publish(publisher, event_type, _value(publisher, owner, values, changed), owner, values, using)


# Publishing


def _publish(
    publisher: Publisher, event_type: str, value: Any, instance: Model, values: Mapping[str, Any], using: str
) -> None:
    omitted: list[str] = []
    if publisher.outbox.too_large == "omit" and settings.MAX_PAYLOAD_BYTES is not None:
        value, omitted = fitting(value, most=settings.MAX_PAYLOAD_BYTES)
    metadata = {"omitted": omitted} if omitted else None
    key = _key(publisher, instance, values)
    publish(publisher.outbox.topic, value, type=event_type, key=key, metadata=metadata, using=using)


def _value(publisher: Publisher, instance: Model, values: Mapping[str, Any], changed: Mapping[str, Any]) -> Any:
    value: Any
    if publisher.outbox.value is None:
        value = {one.attname: written(one, values[one.attname]) for one in publisher.payload}
    else:
        value = publisher.outbox.value(instance)
        if not isinstance(value, Mapping) and hasattr(value, "data"):
            value = value.data  # a serializer has it there
    return {CHANGED: changed, **value} if changed and isinstance(value, Mapping) else value


def _key(publisher: Publisher, instance: Model, values: Mapping[str, Any]) -> str | None:
    key: Any = publisher.outbox.key
    if key is None:
        return None
    if callable(key):
        key = key(instance)
    elif publisher.key_fields:
        parts = [written(one, values[one.attname]) for one in publisher.key_fields]
        key = parts[0] if len(parts) == 1 else ",".join(map(str, parts))
    else:
        key = getattr(instance, key)
    return None if key is None else str(key)


def _row(
    model: type[Model], pk: tuple[Any, ...], fields: Iterable[Concrete], using: str, *, lock: bool = False
) -> dict[str, Any] | None:
    """These fields of a row as the database has them; None if there is no such row."""
    rows = _rows(model, pk, using).order_by()  # an order by another table would lock that, too
    if lock:
        rows = rows.select_for_update()
    names = {one.attname for one in (*pk_fields(model), *fields)}
    return rows.values(*names).first()


def _instance(model: type[Model], pk: tuple[Any, ...], using: str) -> Model | None:
    return _rows(model, pk, using).order_by().first()


def _rows(model: type[Model], pk: tuple[Any, ...], using: str) -> QuerySet[Any]:
    # Not by a manager of the model's, which may hide rows.
    return QuerySet(model, using=using).filter(**{f.attname: v for f, v in zip(pk_fields(model), pk, strict=True)})


def _pk_of(model: type[Model], instance: Model) -> tuple[Any, ...]:
    return tuple(getattr(instance, one.attname) for one in pk_fields(model))
