"""Which events a model describes, as an app declares it.

@schema("order.placed", version=2)
class OrderPlaced(BaseModel):
    customer: str
    total: Decimal
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django_events.declarations.limits import is_storable

M = TypeVar("M", bound=type[Any])

LONGEST_TYPE = 200
_MARK = "__django_events_schema__"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredSchema:
    """The type and the version of the events that a model describes."""

    type: str
    version: int
    declared_at: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.type!r} version {self.version}"

    def problems(self, model: Any) -> Iterator[str]:
        """Yield a sentence for each reason why a model can't be this schema."""
        what = f"the schema {model.__qualname__}"
        if not is_storable(self.type) or not 1 <= len(self.type) <= LONGEST_TYPE:
            yield f"{what} has the type {self.type!r:.60}, expected a text of 1 to {LONGEST_TYPE} characters."
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 1:
            yield f"{what} has version={self.version!r}, expected a whole number from 1 on."
        if not callable(getattr(model, "model_validate_json", None)):
            yield (
                f"{what} is no model of pydantic 2, expected a class that inherits BaseModel: "
                "pip install 'django-events-pg[schemas]'."
            )


def schema(type: str, *, version: int = 1) -> Callable[[M], M]:
    """Declare that a pydantic model describes the events of a type: decorates the class.

    `topic(schemas=[…])` takes such models. A change that readers of older events can't bear is a new version, with an
    `upcaster` from the one before. A class that inherits the model is another one, and says its own type.
    """
    caller = sys._getframe(1)
    declared = DeclaredSchema(type=type, version=version, declared_at=f"{caller.f_code.co_filename}:{caller.f_lineno}")

    def decorate(model: M) -> M:
        if not hasattr(model, "__mro__"):
            raise TypeError(f"@schema is for classes, and {model!r} is none.")
        setattr(model, _MARK, declared)
        return model

    return decorate


def schema_of(model: Any) -> DeclaredSchema | None:
    """What the decorator of this very class says; None for one without, whatever it inherits."""
    found: DeclaredSchema | None = vars(model).get(_MARK) if isinstance(model, type) else None
    return found
