"""What `@outbox` was given for a model, and what is wrong with it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from django.db.models import Model

from django_events.drafts import Unset
from django_events.publishing.fields import Concrete, chosen, concrete_fields, key_fields, named, problems_of_keys

TooLarge = Literal["refuse", "omit"]
Change = Literal["created", "updated", "deleted"]


@dataclass(frozen=True, kw_only=True, eq=False)
class OutboxOptions:
    """Which changes of a model are events of which topic, and what those contain."""

    model: type[Model]
    topic: str
    key: str | Callable[[Any], Any] | None
    created: str | Unset | None
    updated: str | Unset | None
    deleted: str | Unset | None
    value: Callable[[Any], Any] | None
    fields: tuple[str, ...] | None
    exclude: tuple[str, ...]
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
        there = f"There are {', '.join(sorted(concrete_fields(model)))}."
        for option in ("fields", "exclude"):
            for name in getattr(self, option) or ():
                if named(model, name) is None:
                    yield f"{what} has {name!r} in {option}, which is no field with a column. {there}"
        if not self.model._meta.abstract:
            others = [one for one in declared if one.model is self.model and one.topic == self.topic]
            if len(others) > 1 and others[0] is self:
                yield f"{what} is declared {len(others)} times, so each change would be as many events."
        if isinstance(self.key, str):
            yield from problems_of_keys(what, key_fields(model, self.key), chosen(model, self.exclude))
            if not key_fields(model, self.key) and not hasattr(model, self.key):
                yield f"{what} has key={self.key!r}, which is neither a field nor another attribute. {there}"

    def event_type(self, change: Change, model: type[Model]) -> str | None:
        """The type of the events about a change of a model; None if the outbox publishes none."""
        given: str | Unset | None = getattr(self, change)
        return f"{model._meta.model_name}.{change}" if isinstance(given, Unset) else given

    def payload(self, model: type[Model]) -> list[Concrete]:
        """The fields that its events contain."""
        return chosen(model, self.fields, self.exclude)


declared: list[OutboxOptions] = []
