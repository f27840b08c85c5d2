"""A consumer as an app declares it: its options, what is wrong with them, and its handler."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Literal

from django_events.declarations.limits import (
    LONGEST_LEASE,
    MAX_BATCH,
    MAX_PENDING,
    NAME,
    NAME_RULE,
    SHORTEST_LEASE,
    check_number,
    is_json,
    is_storable,
    rest_is_last,
)
from django_events.declarations.operable import Operable
from django_events.exceptions import HandlerNotFound
from django_events.received import ReceivedEvent
from django_events.retries import Backoff

EventHandler = Callable[[ReceivedEvent], object]
BatchHandler = Callable[[list[ReceivedEvent]], object]
Handler = Callable[..., Any]  # one of them: which one, only `batch_size` says
Start = Literal["beginning", "end"] | datetime | int
Mode = Literal["stream", "queue"]


@dataclass(frozen=True, kw_only=True)
class DeclaredConsumer(Operable):
    """A named reader of topics, as an app declares it. Calling it calls its handler.

    Its rows in the database, one per topic, are `models.Consumer`.
    """

    name: str
    topics: tuple[str, ...]
    handler: Handler | str | None = field(compare=False)
    batch_size: int | None = None
    min_batch: int = 1
    max_wait: timedelta | None = None
    types: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    where: str | None = None
    metadata: str | None = None
    vars: Mapping[str, Any] | None = field(default=None, hash=False)
    partitioned: bool = True
    transactional: bool = True
    start: Start = "beginning"
    retry: Backoff = Backoff()
    on_exhausted: Literal["dead_letter", "stop"] = "dead_letter"
    timeout: timedelta | None = None
    lease: timedelta = timedelta(seconds=30)
    mode: Mode = "stream"
    ordered: bool = False
    delay: timedelta | None = None
    history: timedelta | None = None
    max_pending: int | None = None
    outcomes: str | None = None
    declared_at: str = field(default="", compare=False, repr=False)
    is_relay: ClassVar[bool] = False  # whether its handler is a bridge to a broker
    takes: ClassVar[tuple[str, ...]] = ("event",)  # what its handler is called with; with `batch_size` a list of them
    derived: ClassVar[bool] = False  # whether it keeps a table true that is nothing but its events

    def __str__(self) -> str:
        return self.name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.load()(*arguments, **options)

    @property
    def filtered(self) -> bool:
        """Whether there may be events in its topics that are not for it."""
        return (self.types, self.keys, self.where, self.metadata) != (None, None, None, None)

    @property
    def is_for_claims(self) -> bool:
        """Whether it is a queue without a handler: programs claim its events, and no worker serves it."""
        return self.handler is None

    @property
    def package(self) -> str:
        """The package of the app that has the handler."""
        handler = _without_arguments(self.handler)
        if handler is None:
            return ""
        path = handler if isinstance(handler, str) else getattr(inspect.unwrap(handler), "__module__", None) or ""
        return path.partition(".")[0]

    def load(self) -> Handler:
        """The handler itself; one that is named by its path is imported now."""
        if self.handler is None:
            raise HandlerNotFound(
                f"Consumer {self.name!r}, declared at {self.declared_at}, is a queue without a handler: programs claim "
                "its events, by claim() or `manage.py events claim`, and no worker serves it."
            )
        if not isinstance(self.handler, str):
            return self.handler
        path, _, name = self.handler.rpartition(".")
        try:
            found = getattr(import_module(path), name)
        except Exception as error:
            raise HandlerNotFound(
                f"The handler {self.handler!r} of consumer {self.name!r}, declared at {self.declared_at}, can't be "
                f"imported: {type(error).__name__}: {error}"
            ) from error
        if not callable(found):
            raise HandlerNotFound(
                f"The handler {self.handler!r} of consumer {self.name!r} is {found!r}, not a function."
            )
        handler: Handler = found
        return handler

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why this can't be a consumer."""
        what = f"Consumer {self.name!r}"
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            yield f"Consumer name {self.name!r} is not valid: {NAME_RULE}."
        yield from self._problems_of_topics(what)
        yield from self._problems_of_batches(what)
        yield from self._problems_of_filters(what)
        yield from self._problems_of_choices(what)
        yield from self._problems_of_durations(what)
        yield from self._problems_of_mode(what)
        if isinstance(self.retry, Backoff):
            yield from (f"{what}: {problem}" for problem in self.retry.problems())
        else:
            yield f"{what} has retry={self.retry!r}, expected a Backoff, like Backoff(attempts=5)."
        if isinstance(self.handler, str):
            if "." not in self.handler:
                yield f"{what} has handler={self.handler!r}, expected a path like 'shop.billing.bill'."
        elif callable(self.handler):
            if problem := self.wrong_handler(self.handler):
                yield f"{what} has the handler {_without_arguments(self.handler)!r}, {problem}."
        elif not (self.is_for_claims and self.mode == "queue"):
            yield f"{what} has the handler {self.handler!r}, expected a function."

    def wrong_handler(self, handler: Handler) -> str:
        """Why a worker can't call it, or would have nothing done by that; empty if it can."""
        if inspect.isclass(handler):
            return "expected a function: to call a class only makes one of it"
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            return "expected a function without yield: to call a generator does nothing"
        try:  # A decorator may give more to what it wraps, so what that takes says nothing.
            signature = inspect.signature(handler, follow_wrapped=False)
        except (TypeError, ValueError):  # of a function in C: it may take what it is given
            return ""
        try:
            signature.bind(*self.takes)
        except TypeError:
            return f"which takes {_without_defaults(signature)}, expected a function of {', '.join(self.takes)}"
        return ""

    def _problems_of_topics(self, what: str) -> Iterator[str]:
        if not self.topics:
            yield f"{what} has no topic, expected at least one: @consumer(orders, name={self.name!r})."
        for name in self.topics:
            if self.topics.count(name) > 1:
                yield f"{what} names topic {name!r} twice."
                return

    def _problems_of_batches(self, what: str) -> Iterator[str]:
        if self.batch_size is not None:
            yield from check_number(what, "batch_size", self.batch_size, 1, MAX_BATCH)
        yield from check_number(what, "min_batch", self.min_batch, 1, MAX_BATCH)
        if not isinstance(self.min_batch, int) or self.min_batch <= 1:
            if self.max_wait is not None:
                yield f"{what} has max_wait without min_batch, so there is nothing to wait for."
            return
        if self.batch_size is None:
            yield f"{what} has min_batch={self.min_batch!r} without batch_size, so it takes events one by one."
        elif not isinstance(self.batch_size, int) or self.min_batch > self.batch_size:
            yield f"{what} has min_batch={self.min_batch!r}, expected at most batch_size, which is {self.batch_size!r}."
        if self.max_wait is None:
            yield f"{what} has min_batch without max_wait, so a few events would wait for ever. Say how long at most."

    def _problems_of_filters(self, what: str) -> Iterator[str]:
        for option, patterns in (("types", self.types), ("keys", self.keys)):
            if patterns is None:
                continue
            if not patterns:
                yield f"{what} has {option}=[], so no event would match. Leave it out to take all."
            for pattern in patterns:
                if not is_storable(pattern):
                    yield f"{what} has {option}={list(patterns)!r}, expected texts, like ['order.*']."
                    break
                if not rest_is_last(pattern):
                    yield f"{what} has the pattern {pattern!r} in {option}: '>' means the rest, so it can only be last."
        for option, predicate, example in (
            ("where", self.where, "total > 100"),
            ("metadata", self.metadata, "user == 7"),
        ):
            if predicate is not None and (not is_storable(predicate) or not predicate.strip()):
                yield f"{what} has {option}={predicate!r}, expected a jsonpath predicate, like '$.{example}'."
        if self.vars is not None:
            yield from self._problems_of_vars(what)

    def _problems_of_vars(self, what: str) -> Iterator[str]:
        if not isinstance(self.vars, Mapping) or not is_json(self.vars):
            yield f"{what} has vars={self.vars!r}, expected JSON values by name, like {{'tenant': 'acme'}}."
        elif (self.where, self.metadata) == (None, None):
            yield f"{what} has vars={self.vars!r} and no predicate to name them, like where='$.tenant == $tenant'."

    def _problems_of_choices(self, what: str) -> Iterator[str]:
        for option in ("partitioned", "transactional", "ordered"):
            if not isinstance(getattr(self, option), bool):
                yield f"{what} has {option}={getattr(self, option)!r}, expected True or False."
        if self.on_exhausted not in ("dead_letter", "stop"):
            yield f"{what} has on_exhausted={self.on_exhausted!r}, expected 'dead_letter' or 'stop'."
        if isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                yield f"{what} has start={self.start!r} without a time zone, so it is not clear which moment is meant."
        elif isinstance(self.start, bool) or not (
            self.start in ("beginning", "end") or (isinstance(self.start, int) and self.start >= 1)
        ):
            yield (
                f"{what} has start={self.start!r}, expected 'beginning', 'end', a datetime, or the id of the first "
                "event to handle."
            )

    def _problems_of_durations(self, what: str) -> Iterator[str]:
        for option in ("max_wait", "timeout", "delay", "history"):
            value: Any = getattr(self, option)
            if value is not None and (not isinstance(value, timedelta) or value <= timedelta(0)):
                yield f"{what} has {option}={value!r}, expected a timedelta above zero, or None."
        lease: Any = self.lease
        if not isinstance(lease, timedelta) or not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
            yield f"{what} has lease={lease!r}, expected a timedelta from 1 second to 1 day."

    def _problems_of_mode(self, what: str) -> Iterator[str]:
        if self.mode not in ("stream", "queue"):
            yield f"{what} has mode={self.mode!r}, expected 'stream' or 'queue'."
        elif self.mode == "queue":
            if self.on_exhausted == "stop":
                yield f"{what} has on_exhausted='stop', which is for streams: a queue goes on with other events."
            if self.min_batch != 1:
                yield f"{what} has min_batch={self.min_batch!r}, which is for streams: a queue takes what is there."
        else:
            for option in ("ordered", "delay", "history", "max_pending", "outcomes"):
                if getattr(self, option) not in (None, False):
                    yield f"{what} has {option}={getattr(self, option)!r}, which is for mode='queue'."
        if self.max_pending is not None:
            yield from check_number(what, "max_pending", self.max_pending, 1, MAX_PENDING)


def _without_arguments(handler: Any) -> Any:
    """A handler without what `partial` gives it, which may be a secret."""
    while isinstance(handler, partial):
        handler = handler.func
    return handler


def _without_defaults(signature: inspect.Signature) -> inspect.Signature:
    """The names that a function takes: what `partial` gives it is a default here."""
    return inspect.Signature([one.replace(default=one.empty) for one in signature.parameters.values()])
