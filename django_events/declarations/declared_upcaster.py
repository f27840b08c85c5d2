"""How a value of one version becomes one of the next, as an app declares it.

@upcaster("order.placed", 1)
def with_currency(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "currency": "EUR"}
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django_events.declarations.limits import is_storable

Upcast = Callable[[Any], Any]
F = TypeVar("F", bound=Upcast)


@dataclass(frozen=True, kw_only=True)
class DeclaredUpcaster:
    """A function that takes the value of an event from a version to the next one."""

    type: str
    version: int
    function: Upcast
    declared_at: str = field(default="", compare=False, repr=False)

    @property
    def name(self) -> str:
        return named(self.type, self.version)

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why this can't be an upcaster."""
        if not is_storable(self.type) or not self.type:
            yield f"An upcaster has the type {self.type!r}, expected a text, like 'order.placed'."
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 1:
            yield f"An upcaster of {self.type!r} is from version {self.version!r}, expected a whole number from 1 on."


def named(type: str, version: int) -> str:
    """What the registry calls the upcaster from a version."""
    return f"{type} from version {version}"


def upcaster(type: str, version: int) -> Callable[[F], F]:
    """Declare how a value of this version becomes one of the next: decorates a function, which stays what it is.

    The function gets the value as JSON decodes it, and returns the value of version + 1. Readers run it, each time they
    read such an event, so it asks nothing but the value: no database, no clock. The log stays as it is.
    """
    caller = sys._getframe(1)

    def decorate(function: F) -> F:
        from django_events.declarations.registries import upcasters

        if not callable(function):
            raise TypeError(f"@upcaster is for functions, and {function!r} is none.")
        upcasters.add(
            DeclaredUpcaster(
                type=type,
                version=version,
                function=function,
                declared_at=f"{caller.f_code.co_filename}:{caller.f_lineno}",
            )
        )
        return function

    return decorate
