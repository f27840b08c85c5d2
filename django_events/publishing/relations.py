"""Many-to-many relations: whose changed, and by what, from whichever side it was done."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import ForeignKey, ManyToManyField, Model, QuerySet

from django_events.publishing.fields import Concrete, written

Pairs = dict[Any, list[Any]]  # whose relation, and those that came or went, by the values that the rows between have


@dataclass(frozen=True)
class Relation:
    """A many-to-many field, from the side of the model that has it."""

    name: str
    through: type[Model]
    here: "ForeignKey[Any, Any]"  # of the rows between, to the model that has the field
    there: "ForeignKey[Any, Any]"  # and to the other one
    symmetrical: bool

    def value_of(self, owner: Model) -> Any:
        """What the rows between have of an instance: its primary key, or another field."""
        return getattr(owner, self._field(self.here).attname)

    def pairs(self, instance: Model, reverse: bool, others: Iterable[Any]) -> Pairs:
        """What these others are to an instance."""
        others = list(others)
        value = getattr(instance, self._field(self.there if reverse else self.here).attname)
        if reverse:
            return {other: [value] for other in others}
        mirrored = {other: [value] for other in others} if self.symmetrical else {}
        return {**mirrored, value: others}

    def lock(self, instance: Model, reverse: bool, others: Iterable[Any] | None, using: str) -> None:
        """Let nobody else change what these others, or all, are to an instance until the transaction ends."""
        if others is not None:
            rows = self._owners(self.pairs(instance, reverse, others), using).select_for_update(no_key=True)
        else:  # whoever adds to an instance needs the key of its row, when it commits at the latest
            own = self.there if reverse else self.here
            name = self._field(own).attname
            rows = QuerySet(own.related_model, using=using).filter(**{name: getattr(instance, name)}).order_by()
            rows = rows.select_for_update()
        list(rows.values_list("pk"))

    def standing(self, instance: Model, reverse: bool, others: Iterable[Any] | None, using: str) -> list[Any]:
        """Which of these others, or of all, are related to an instance."""
        here, there = (self.there, self.here) if reverse else (self.here, self.there)
        value = getattr(instance, self._field(here).attname)
        rows: QuerySet[Any] = QuerySet(self.through, using=using).filter(**{here.attname: value})
        if others is not None:
            rows = rows.filter(**{f"{there.attname}__in": list(others)})
        return list(rows.select_for_update().order_by("pk").values_list(there.attname, flat=True))

    def owners(self, pairs: Pairs, using: str) -> Sequence[Model]:
        """The instances whose relation changed."""
        return list(self._owners(pairs, using))

    def _owners(self, pairs: Pairs, using: str) -> "QuerySet[Any]":
        name, model = self._field(self.here).attname, self.here.related_model
        return QuerySet(model, using=using).filter(**{f"{name}__in": list(pairs)}).order_by("pk")

    def written(self, others: Iterable[Any]) -> list[Any]:
        """Those that came or went, as an event has them."""
        return sorted(written(self._field(self.there), other) for other in others)

    def _field(self, key: "ForeignKey[Any, Any]") -> Concrete:
        target: Concrete = key.target_field
        return target


def relations_of(model: type[Model], names: Iterable[str]) -> list[Relation]:
    """The relations of these names, once all models are there. Wrong names are a check's business."""
    found = []
    for one in model._meta.many_to_many:
        # Other packages have relations of their own there, like the TaggableManager of django-taggit.
        if one.name in names and isinstance(one, ManyToManyField):
            through: Any = one.remote_field.through
            here = through._meta.get_field(one.m2m_field_name())
            there = through._meta.get_field(one.m2m_reverse_field_name())
            found.append(Relation(one.name, through, here, there, bool(one.remote_field.symmetrical)))
    return found
