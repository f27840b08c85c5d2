"""What Django's signals tell of models with an outbox, published.

A class has the outboxes that it was given, those of the abstract models it is made of, and those of the parents whose
rows are a part of it. A row that an instance only inherits is deleted under a signal of its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections, router, transaction
from django.db.models import GeneratedField, ManyToManyField, Model, QuerySet
from django.db.models.signals import class_prepared, m2m_changed, post_save, pre_delete, pre_save

from django_events.publishing.api import publish
from django_events.publishing.fields import CHANGED, Concrete, key_fields, pk_fields, written
from django_events.publishing.telling import is_suppressed

if TYPE_CHECKING:
    from django_events.publishing.outbox import Outbox, What

_BEFORE = "django_events_before"  # the attribute of an instance's state: what was known before it is saved
_UPDATES = "django_events_updates"  # another one: it is saved with force_update
_WRAPPED = "_django_events_saves_in_a_transaction"

declared: list["Outbox"] = []


@dataclass(frozen=True)
class Publisher:
    """An outbox at work, for the rows of one table."""

    outbox: "Outbox"
    model: type[Model]  # whose table it is

    def event_type(self, what: "What") -> str | None:
        return self.outbox.event_type(what, self.model)

    @cached_property
    def payload(self) -> list[Concrete]:
        """The fields that events contain."""
        return self.outbox.payload(self.model)

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
        """The fields that say in an update from what to what they changed, and those that are watched but hidden."""
        return list(dict.fromkeys([*(() if self.outbox.value is not None else self.payload), *self.watched]))

    @cached_property
    def wanted(self) -> list[Concrete]:
        """The fields whose values an event needs."""
        return list(dict.fromkeys([*self.compared, *self.key_fields]))

    @property
    def suppressed(self) -> bool:
        return is_suppressed(self.outbox.topic, self.model)


@dataclass(frozen=True)
class Before:
    """What was known of a row before it was saved."""

    existed: bool | None = None  # None: Django will say
    row: Mapping[str, Any] | None = None  # empty: nothing that is watched is going to be saved


_publishers: dict[type[Model], list[Publisher]] = {}


def connect(outbox: "Outbox") -> None:
    """Publish what an outbox declares, from now on."""
    declared.append(outbox)
    _save_in_transactions(outbox.model)
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
        for relation in _relations(publisher):
            through: Any = relation.remote_field.through
            m2m_changed.connect(_relation_changes, sender=through, dispatch_uid="django_events")


def _descendants(model: type[Model]) -> Iterator[type[Model]]:
    for child in model.__subclasses__():
        yield child
        yield from _descendants(child)


def _connect(model: type[Model]) -> None:
    _publishers[model] = list(_publishers_of(model))
    pre_save.connect(_before_save, sender=model, dispatch_uid="django_events")
    post_save.connect(_after_save, sender=model, dispatch_uid="django_events")
    pre_delete.connect(_before_delete, sender=model, dispatch_uid="django_events")
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


def _save_in_transactions(model: type[Model]) -> None:
    """In autocommit, Django would commit the row before it sends the signal: a crash between them loses the event."""
    if _WRAPPED in vars(model):
        return
    save_base: Any = model.save_base

    @wraps(save_base)
    def save_in_a_transaction(self: Model, *args: Any, using: str | None = None, **kwargs: Any) -> None:
        alias = using or router.db_for_write(type(self), instance=self)
        setattr(self._state, _UPDATES, kwargs.get("force_update", False))
        if connections[alias].in_atomic_block:
            save_base(self, *args, using=alias, **kwargs)
        else:
            with transaction.atomic(alias):
                save_base(self, *args, using=alias, **kwargs)

    model.save_base = save_in_a_transaction  # type: ignore[method-assign]
    setattr(model, _WRAPPED, True)


@contextmanager
def _all_or_nothing(using: str) -> Iterator[None]:
    """Whoever catches the error of an event must not commit the change that it is about."""
    try:
        yield
    except Exception:
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
    if raw or not any(_looks_before(sender, publisher) for publisher in _publishers.get(sender, ())):
        return
    known = [_before(sender, publisher, instance, using, update_fields) for publisher in _publishers.get(sender, ())]
    # Saves of one instance may be nested: a receiver of a signal may save it again.
    instance._state.__dict__.setdefault(_BEFORE, []).append(known)


def _looks_before(sender: type[Model], publisher: Publisher) -> bool:
    return bool(publisher.outbox.watch) or publisher.model is not sender._meta.concrete_model


def _before(
    sender: type[Model], publisher: Publisher, instance: Model, using: str, update_fields: frozenset[str] | None
) -> Before:
    """Read and lock the row: what the instance was loaded with may be old, or was never committed."""
    model = publisher.model
    if not _looks_before(sender, publisher) or publisher.suppressed:
        return Before()
    if not publisher.watched and not instance._state.adding:
        return Before()
    pk = _pk_of(publisher, instance)
    made = all(field.has_default() or field.has_db_default() for field in pk_fields(model))
    inserts = instance._state.adding and made and not getattr(instance._state, _UPDATES, False)
    if None in pk or inserts:
        return Before(existed=False)
    if publisher.watched and not any(_is_saved(field, update_fields) for field in publisher.watched):
        return Before(existed=True, row={})
    row = _row(model, pk, publisher.wanted, using, lock=True)
    return Before(existed=row is not None, row=row)


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
    before: list[Before] = []
    if any(_looks_before(sender, publisher) for publisher in _publishers.get(sender, ())):
        before = instance._state.__dict__[_BEFORE].pop()
    for place, publisher in enumerate(_publishers.get(sender, ())):
        known = before[place] if before else Before()
        is_new = created if known.existed is None else not known.existed
        event_type = publisher.event_type("created" if is_new else "updated")
        if event_type is None or publisher.suppressed or (known.row == {} and not is_new):
            continue
        with _all_or_nothing(using):
            values = _saved_values(publisher, instance, using, update_fields, is_new=is_new)
            changed = {} if is_new else _changes(publisher, known, values)
            if changed is not None:
                _publish(publisher, instance, event_type, values, using, changed=changed)


def _changes(publisher: Publisher, before: Before, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """What changed of the fields that events show; None if some are watched, and none of them changed."""
    changed: dict[Concrete, Any] = {}
    if not publisher.watched:
        return {}
    for field in publisher.compared:
        if before.row and field.attname in before.row:
            was, became = written(field, before.row[field.attname]), written(field, values[field.attname])
            if was != became:
                changed[field] = {"old": was, "new": became}
    if changed.keys().isdisjoint(publisher.watched):
        return None
    return {field.attname: change for field, change in changed.items() if field not in publisher.hidden}


def _saved_values(
    publisher: Publisher, instance: Model, using: str, update_fields: frozenset[str] | None, *, is_new: bool
) -> dict[str, Any]:
    """The values that an event is about, as they are in the row now."""
    fields = publisher.wanted
    state = instance.__dict__
    values = {field.attname: state.get(field.attname) for field in fields}
    unknown = [
        field
        for field in fields
        if field.attname not in state
        or hasattr(state[field.attname], "resolve_expression")
        or not (is_new or field.primary_key or _is_saved(field, update_fields))
        or (isinstance(field, GeneratedField) and not is_new)
    ]
    if unknown:
        values.update(_row(publisher.model, _pk_of(publisher, instance), unknown, using) or {})
    return values


def _is_saved(field: Concrete, update_fields: frozenset[str] | None) -> bool:
    return update_fields is None or field.name in update_fields or field.attname in update_fields


# Deleting


def _before_delete(sender: type[Model], instance: Model, using: str, **kwargs: Any) -> None:
    """Before, because afterwards nobody can tell which of two deleted it: the one that finds the row publishes it."""
    for publisher in _publishers.get(sender, ()):
        if publisher.model is not sender._meta.concrete_model:
            continue  # the parent's row has a signal of its own
        event_type = publisher.event_type("deleted")
        if event_type is None or publisher.suppressed:
            continue
        with _all_or_nothing(using):
            values = _row(publisher.model, _pk_of(publisher, instance), publisher.wanted, using, lock=True)
            if values is not None:
                _publish(publisher, instance, event_type, values, using)


# Relations


def _relations(publisher: Publisher) -> list["ManyToManyField[Any, Any]"]:
    return [field for field in publisher.model._meta.many_to_many if field.name in publisher.outbox.m2m]


def _relation_changes(
    sender: type[Model],
    instance: Model,
    action: str,
    reverse: bool,
    pk_set: set[Any] | None,
    using: str,
    **kwargs: Any,
) -> None:
    if action not in ("post_add", "pre_remove", "pre_clear"):
        return
    for publisher in publishers():
        for relation in _relations(publisher):
            if relation.remote_field.through is not sender or publisher.suppressed:
                continue
            if not reverse and not isinstance(instance, publisher.model):
                continue
            with _all_or_nothing(using):
                if action == "post_add":
                    what, pairs = "added", _pairs(instance, reverse, pk_set or ())
                else:
                    what, pairs = "removed", _standing_pairs(relation, instance, reverse, pk_set, using)
                _publish_relation(publisher, relation, what, pairs, instance, reverse, using)


def _pairs(instance: Model, reverse: bool, pks: Iterable[Any]) -> dict[Any, list[Any]]:
    """Whose relation changed, by what."""
    return {pk: [instance.pk] for pk in pks} if reverse else {instance.pk: list(pks)}


def _standing_pairs(
    relation: "ManyToManyField[Any, Any]", instance: Model, reverse: bool, pk_set: set[Any] | None, using: str
) -> dict[Any, list[Any]]:
    """What of it is there to be removed."""
    here, there = relation.m2m_field_name(), relation.m2m_reverse_field_name()
    if reverse:
        here, there = there, here
    through: Any = relation.remote_field.through
    rows: QuerySet[Any] = QuerySet(through, using=using).select_for_update().filter(**{here: instance.pk})
    if pk_set is not None:
        rows = rows.filter(**{f"{there}__in": pk_set})
    return _pairs(instance, reverse, rows.order_by("pk").values_list(there, flat=True))


def _publish_relation(
    publisher: Publisher,
    relation: "ManyToManyField[Any, Any]",
    what: str,
    pairs: dict[Any, list[Any]],
    instance: Model,
    reverse: bool,
    using: str,
) -> None:
    event_type = publisher.event_type("updated")
    owners = QuerySet(publisher.model, using=using).in_bulk(list(pairs)) if reverse else {instance.pk: instance}
    for pk, others in pairs.items():
        values = _row(publisher.model, (pk,), publisher.wanted, using) if others and pk in owners else None
        if values is None or event_type is None:
            continue
        key = relation.remote_field.model._meta.pk
        pks = sorted(written(key, other) for other in others)
        _publish(publisher, owners[pk], event_type, values, using, changed={relation.name: {what: pks}})


# Publishing


def _publish(
    publisher: Publisher,
    instance: Model,
    event_type: str,
    values: Mapping[str, Any],
    using: str,
    *,
    changed: dict[str, Any] | None = None,
) -> None:
    outbox = publisher.outbox
    value: Any
    if outbox.value is None:
        value = {field.attname: written(field, values[field.attname]) for field in publisher.payload}
    else:
        value = outbox.value(instance)
        if not isinstance(value, Mapping) and hasattr(value, "data"):
            value = value.data  # a serializer has it there
    if changed and isinstance(value, Mapping):
        value = {CHANGED: changed, **value}
    publish(outbox.topic, value, type=event_type, key=_key(publisher, instance, values), using=using)


def _key(publisher: Publisher, instance: Model, values: Mapping[str, Any]) -> str | None:
    key: Any = publisher.outbox.key
    if key is None:
        return None
    if callable(key):
        key = key(instance)
    elif publisher.key_fields:
        parts = [written(field, values[field.attname]) for field in publisher.key_fields]
        key = parts[0] if len(parts) == 1 else ",".join(map(str, parts))
    else:
        key = getattr(instance, key)
    return None if key is None else str(key)


def _row(
    model: type[Model], pk: tuple[Any, ...], fields: Iterable[Concrete], using: str, *, lock: bool = False
) -> dict[str, Any] | None:
    """These fields of a row as the database has them; None if there is no such row."""
    # Not by a manager of the model's, which may hide rows.
    rows: QuerySet[Any] = QuerySet(model, using=using).filter(
        **{f.attname: v for f, v in zip(pk_fields(model), pk, strict=True)}
    )
    if lock:
        rows = rows.select_for_update()
    names = {field.attname for field in (*pk_fields(model), *fields)}
    return rows.values(*names).first()


def _pk_of(publisher: Publisher, instance: Model) -> tuple[Any, ...]:
    return tuple(getattr(instance, field.attname) for field in pk_fields(publisher.model))
