"""The same question asked of several databases at the same time, so that none waits for another one.

found = in_each(["default", "west"], standings, seconds=2)
found["west"].error     # OperationalError, if it could not be reached or gave no answer in time
found["default"].value()
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

from django_events.sql.limited import limited

T = TypeVar("T")


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What one database answered, or the error that came instead."""

    answered: T | None = None
    error: Exception | None = None

    def value(self) -> T:
        """The answer; the error is raised if it came instead."""
        if self.error is not None:
            raise self.error
        return cast("T", self.answered)


def in_each(aliases: Iterable[str], ask: Callable[[str], T], *, seconds: int) -> dict[str, Answer[T]]:
    """Ask each database on a new connection in a thread of its own; see `limited` for what `seconds` limits."""

    def of_one(using: str) -> Answer[T]:
        try:
            return Answer(limited(using, partial(ask, using), seconds=seconds))
        except Exception as error:
            return Answer(error=error)

    asked = list(dict.fromkeys(aliases))
    if not asked:
        return {}
    with ThreadPoolExecutor(len(asked), "django_events each") as threads:
        answers = [threads.submit(copy_context().run, of_one, using) for using in asked]
        return {using: answer.result() for using, answer in zip(asked, answers, strict=True)}
