"""Changes of models as events: `@outbox` publishes what Django's model signals tell, in the transaction of the change.

    @outbox("orders", created="order.placed", updated="order.changed", deleted="order.cancelled")
    class Order(models.Model): ...

Django sends signals for what it does with instances. For what it does without them there is `capture()`: bulk_create,
QuerySet.update(), COPY, raw SQL.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from django.db.models import ManyToManyField, Model

from django_events import declarations
from django_events.drafts import UNSET, Unset
from django_events.publishing.fields import (
    Concrete,
    chosen,
    concrete_fields,
    key_fields,
    named,
    problem_of_names,
    problems_of_keys,
)
from django_events.publishing.model_signals import connect, declared

M = TypeVar("M", bound=type[Model])
TooLarge = Literal["refuse", "omit"]
What = Literal["created", "updated", "deleted"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outbox:
    """What `@outbox` declares: which changes of a model are events, and what those say."""

    model: type[Model]
    topic: str
    key: str | Callable[[Any], Any] | None
    created: str | Unset | None
    updated: str | Unset | None
    deleted: str | Unset | None
    value: Callable[[Any], Any] | None
    fields: tuple[str, ...] | None
    exclude: tuple[str, ...]
    watch: tuple[str, ...]
    m2m: tuple[str, ...]
    too_large: str

    def problems(self, model: type[Model]) -> Iterator[str]:
        """Yield a sentence for each reason why it can't publish events of a model, which may inherit it."""
        what = f"@outbox({self.topic!r}) of {model._meta.label}"
        if (self.created, self.updated, self.deleted) == (None, None, None):
            yield f"{what} publishes nothing: created, updated and deleted are all None."
        if self.value is not None and (self.fields is not None or self.exclude):
            yield f"{what} has a value, and fields or exclude too. Only one of them can say what events contain."
        if self.value is not None and not callable(self.value):
            yield f"{what} has value={self.value!r}, expected a function of an instance, or a serializer class."
        if self.too_large not in get_args(TooLarge):
            yield f"{what} has too_large={self.too_large!r}, expected 'refuse' or 'omit'."
        if self.updated is None and (self.watch or self.m2m):
            yield f"{what} has {'watch' if self.watch else 'm2m'}, but updated=None, so nothing comes of it."
        if self.watch or self.m2m:
            shown = () if self.value is not None else self.payload(model)
            if (problem := problem_of_names(what, shown)) is not None:
                yield problem
        there = f"There are {', '.join(sorted(concrete_fields(model)))}."
        for option in ("fields", "exclude", "watch"):
            for name in getattr(self, option) or ():
                if named(model, name) is None:
                    yield f"{what} has {name!r} in {option}, which is no field with a column. {there}"
        for name in self.m2m:
            relation = next((field for field in model._meta.many_to_many if field.name == name), None)
            if relation is None:
                yield f"{what} has {name!r} in m2m, which is no many-to-many field of it."
            elif not isinstance(relation, ManyToManyField):
                through = getattr(relation.remote_field, "through", None)
                between = "the model of the table between" if through is None else through._meta.label
                yield (
                    f"{what} has {name!r} in m2m, which is a {type(relation).__name__} and no ManyToManyField: its "
                    f"changes can't be told. Leave it out, and give {between} an outbox or a capture() of its own."
                )
        if not self.model._meta.abstract:
            others = [one for one in declared if one.model is self.model and one.topic == self.topic]
            if len(others) > 1 and others[0] is self:
                yield f"{what} is there {len(others)} times, so each change would be as many events."
        if isinstance(self.key, str):
            yield from problems_of_keys(what, key_fields(model, self.key), self.hidden(model))
        if isinstance(self.key, str) and not key_fields(model, self.key) and not hasattr(model, self.key):
            yield f"{what} has key={self.key!r}, which is neither a field nor another attribute. {there}"

    def event_type(self, what: What, model: type[Model]) -> str | None:
        """The type of the events about a change of a model; None if there are none."""
        given: str | Unset | None = getattr(self, what)
        return f"{model._meta.model_name}.{what}" if isinstance(given, Unset) else given

    def payload(self, model: type[Model]) -> list[Concrete]:
        """The fields that its events contain."""
        return chosen(model, self.fields, self.exclude)

    def hidden(self, model: type[Model]) -> list[Concrete]:
        """The fields that its events never show, watched or not."""
        return chosen(model, self.exclude)

    def watched(self, model: type[Model]) -> list[Concrete]:
        """The fields of which one must have changed for an update to be an event."""
        return chosen(model, self.watch)


def outbox(
    topic: declarations.Topic | str,
    *,
    key: str | Callable[[Any], Any] | None = "pk",
    created: str | Unset | None = UNSET,
    updated: str | Unset | None = UNSET,
    deleted: str | Unset | None = UNSET,
    value: Callable[[Any], Any] | None = None,
    fields: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    watch: Sequence[str] = (),
    m2m: Sequence[str] = (),
    too_large: TooLarge = "refuse",
) -> Callable[[M], M]:
    """Publish an event for each instance of a model that is created, updated or deleted, in the same transaction.

    The types are `order.created`, `order.updated` and `order.deleted` for a model `Order`, unless they are named; None
    publishes nothing. The value is the row, or some `fields` of it, or what `value` makes of the instance: a function,
    or a serializer class. With `watch` an update is an event only if one of these fields changed, and says from
    what to what. Changes of the relations in `m2m` are updates too. An event that is larger than MAX_PAYLOAD_BYTES
    fails the save; with `too_large="omit"` it is published without its largest fields, as few as possible, and its
    metadata name them: `{"omitted": ["body"]}`.
    """

    if isinstance(topic, type):
        raise TypeError(f"@outbox needs a topic: @outbox('{topic.__name__.lower()}s') above class {topic.__name__}.")

    def declare(model: M) -> M:
        if not isinstance(model, type) or not issubclass(model, Model):
            raise TypeError(f"@outbox is for models, and {model!r} is none.")
        connect(
            Outbox(
                model=model,
                topic=str(topic),
                key=key,
                created=created,
                updated=updated,
                deleted=deleted,
                value=value,
                fields=declarations.texts(fields),
                exclude=declarations.texts(exclude),
                watch=declarations.texts(watch),
                m2m=declarations.texts(m2m),
                too_large=too_large,
            )
        )
        return model

    return declare
