"""What this process declares: topics and consumers, as frozen descriptions that touch no database.

    # shop/events.py: discovered in every installed app
    orders = topic("orders", partitions=8, retention=timedelta(days=30))

    @consumer(orders, name="billing")
    def bill(event): ...

`manage.py migrate` makes the rows and tables; `manage.py check` finds wrong declarations.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, ClassVar, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from django_events.drafts import UNSET, Draft, EventFields, Receipt
from django_events.exceptions import HandlerNotFound, Invalid, UnknownName, did_you_mean
from django_events.operable import Operable
from django_events.received import ReceivedEvent
from django_events.retries import Backoff

NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
NAME_RULE = (
    "it starts with a small letter and goes on with at most 62 small letters, digits, dots, dashes or underscores"
)
MAX_PARTITIONS = 1_000
MIN_SEGMENT_SIZE = 100


def _publishing() -> Any:
    """The room above that publishes. Declarations are read before Django is set up, so it is entered with a call."""
    return import_module("django_events.publishing.api")


@dataclass(frozen=True, kw_only=True)
class DeclaredTopic:
    """A named log, as an app declares it. Its row in the database is `models.Topic`."""

    name: str
    partitions: int = 1
    retention: timedelta | None = None
    retention_events: int | None = None
    retention_bytes: int | None = None
    keep_unread: bool = True
    segment_size: int = 1_000_000
    timeline: bool = False
    declared_at: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def publish(self, value: Any = UNSET, **fields: Unpack[EventFields]) -> Receipt:
        """Publish one event here; see `django_events.publish`."""
        receipt: Receipt = _publishing().publish(self, value, **fields)
        return receipt

    async def apublish(self, value: Any = UNSET, **fields: Unpack[EventFields]) -> Receipt:
        """Publish one event here from async code; see `django_events.publish`."""
        receipt: Receipt = await _publishing().apublish(self, value, **fields)
        return receipt

    def publish_many(self, drafts: Iterable[Draft], *, using: str | None = None) -> int:
        """Publish many events here at once; see `django_events.publish_many`."""
        published: int = _publishing().publish_many(self, drafts, using=using)
        return published

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why this can't be a topic."""
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            yield f"Topic name {self.name!r} is not valid: {NAME_RULE}."
        yield from _check_number(f"Topic {self.name!r}", "partitions", self.partitions, 1, MAX_PARTITIONS)
        yield from _check_number(f"Topic {self.name!r}", "segment_size", self.segment_size, MIN_SEGMENT_SIZE, 2**40)
        if self.retention is not None and (not isinstance(self.retention, timedelta) or self.retention <= timedelta(0)):
            yield (
                f"Topic {self.name!r} has retention={self.retention!r}, expected a timedelta above zero, "
                "or None to keep events for ever."
            )
        for option in ("retention_events", "retention_bytes"):
            if getattr(self, option) is not None:
                yield from _check_number(f"Topic {self.name!r}", option, getattr(self, option), 1, 2**62)
        for option in ("keep_unread", "timeline"):
            if not isinstance(getattr(self, option), bool):
                yield f"Topic {self.name!r} has {option}={getattr(self, option)!r}, expected True or False."


def _check_number(what: str, option: str, value: Any, low: int, high: int) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        yield f"{what} has {option}={value!r}, expected a whole number from {low:,} to {high:,}."


def _is_storable(text: Any) -> bool:
    """Whether it is a text that PostgreSQL takes."""
    return isinstance(text, str) and "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


EventHandler = Callable[[ReceivedEvent], object]
BatchHandler = Callable[[list[ReceivedEvent]], object]
Handler = Callable[..., Any]  # one of them: which one, only `batch_size` says
Start = Literal["beginning", "end"] | datetime | int
Mode = Literal["stream", "queue"]
MAX_BATCH = 10_000
MAX_PENDING = 2**40
SHORTEST_LEASE, LONGEST_LEASE = timedelta(seconds=1), timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class DeclaredConsumer(Operable):
    """A named reader of topics, as an app declares it. Calling it calls its handler.

    Its rows in the database, one per topic, are `models.Consumer`.
    """

    name: str
    topics: tuple[str, ...]
    handler: Handler | str = field(compare=False)
    batch_size: int | None = None
    min_batch: int = 1
    max_wait: timedelta | None = None
    types: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    where: str | None = None
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
    declared_at: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.load()(*arguments, **options)

    @property
    def filtered(self) -> bool:
        """Whether there may be events in its topics that are not for it."""
        return (self.types, self.keys, self.where) != (None, None, None)

    def load(self) -> Handler:
        """The handler itself; one that is named by its path is imported now."""
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
        elif not callable(self.handler):
            yield f"{what} has the handler {self.handler!r}, expected a function."

    def _problems_of_topics(self, what: str) -> Iterator[str]:
        if not self.topics:
            yield f"{what} has no topic, expected at least one: @consumer(orders, name={self.name!r})."
        for name in self.topics:
            if self.topics.count(name) > 1:
                yield f"{what} names topic {name!r} twice."
                return

    def _problems_of_batches(self, what: str) -> Iterator[str]:
        if self.batch_size is not None:
            yield from _check_number(what, "batch_size", self.batch_size, 1, MAX_BATCH)
        yield from _check_number(what, "min_batch", self.min_batch, 1, MAX_BATCH)
        if not isinstance(self.min_batch, int) or self.min_batch <= 1:
            if self.max_wait is not None:
                yield f"{what} has max_wait without min_batch, so there is nothing to wait for."
            return
        if not isinstance(self.batch_size, int) or self.min_batch > self.batch_size:
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
                if not _is_storable(pattern):
                    yield f"{what} has {option}={list(patterns)!r}, expected texts, like ['order.*']."
                    break
                if ">" in pattern.split(".")[:-1]:
                    yield f"{what} has the pattern {pattern!r} in {option}: '>' means the rest, so it can only be last."
        if self.where is not None and (not _is_storable(self.where) or not self.where.strip()):
            yield f"{what} has where={self.where!r}, expected a jsonpath predicate, like '$.total > 100'."

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
            for option in ("ordered", "delay", "history", "max_pending"):
                if getattr(self, option) not in (None, False):
                    yield f"{what} has {option}={getattr(self, option)!r}, which is for mode='queue'."
        if self.max_pending is not None:
            yield from _check_number(what, "max_pending", self.max_pending, 1, MAX_PENDING)


class Declared(Protocol):
    """What topics and consumers have in common."""

    @property
    def name(self) -> str: ...

    @property
    def declared_at(self) -> str: ...

    def problems(self) -> Iterator[str]: ...


T = TypeVar("T", bound=Declared)


class Registry(Generic[T]):
    """The declarations of one kind in this process, in the order in which they were made."""

    kind: ClassVar[str]
    example: ClassVar[str]

    def __init__(self) -> None:
        self._declared: list[T] = []
        self._by_name: dict[str, T] = {}

    def add(self, one: T) -> None:
        # A module that is loaded again declares the same at the same place again.
        self._set([t for t in self._declared if (t.name, t.declared_at) != (one.name, one.declared_at)] + [one])

    def discard(self, one: T) -> None:
        self._set([t for t in self._declared if t is not one])

    def _set(self, declared: list[T]) -> None:
        self._declared = declared
        self._by_name = {one.name: one for one in reversed(declared)}

    def __iter__(self) -> Iterator[T]:
        return iter(self._declared)

    def get(self, one: T | str) -> T:
        """The declaration that is meant; the error for an unknown one names the likely one."""
        name: Any = one if isinstance(one, str) else getattr(one, "name", one)
        try:
            return self._by_name[name]
        except (KeyError, TypeError):
            raise UnknownName(
                f"No installed app declares a {self.kind} {name!r}. {did_you_mean(str(name), self._by_name)} "
                f"Declare it in an app's events.py: {self.example.format(name)}."
            ) from None

    def check(self) -> None:
        """Raise for the first declaration that is not valid."""
        for _, problem in self.problems():
            raise Invalid(problem)

    def problems(self) -> Iterator[tuple[T, str]]:
        """Yield each wrong declaration with the reason, duplicates included."""
        places: dict[str, str] = {}
        for one in self:
            yield from ((one, problem) for problem in one.problems())
            if one.name in places:
                yield (
                    one,
                    f"{self.kind.capitalize()} {one.name!r} is declared twice: "
                    f"{places[one.name]} and {one.declared_at}.",
                )
            places.setdefault(one.name, one.declared_at)


class TopicRegistry(Registry[DeclaredTopic]):
    kind = "topic"
    example = "topic({!r})"


class ConsumerRegistry(Registry[DeclaredConsumer]):
    kind = "consumer"
    example = "@consumer(…, name={!r})"


registry = TopicRegistry()
consumers = ConsumerRegistry()


def topic(
    name: str,
    *,
    partitions: int = 1,
    retention: timedelta | None = None,
    retention_events: int | None = None,
    retention_bytes: int | None = None,
    keep_unread: bool = True,
    segment_size: int = 1_000_000,
    timeline: bool = False,
) -> DeclaredTopic:
    """Declare a topic. `manage.py migrate` creates it; declaring it again changes nothing."""
    declared = DeclaredTopic(
        name=name,
        partitions=partitions,
        retention=retention,
        retention_events=retention_events,
        retention_bytes=retention_bytes,
        keep_unread=keep_unread,
        segment_size=segment_size,
        timeline=timeline,
        declared_at=_caller(),
    )
    registry.add(declared)
    return declared


class ConsumerOptions(TypedDict, total=False):
    """What `consumer` takes beside the topics, the name, the handler and `batch_size`."""

    min_batch: int
    max_wait: timedelta | None
    types: Sequence[str] | None
    keys: Sequence[str] | None
    where: str | None
    partitioned: bool
    transactional: bool
    start: Start
    retry: Backoff
    on_exhausted: Literal["dead_letter", "stop"]
    timeout: timedelta | None
    lease: timedelta
    mode: Mode
    ordered: bool
    delay: timedelta | None
    history: timedelta | None
    max_pending: int | None


@overload
def consumer(
    *topics: DeclaredTopic | str,
    name: str,
    handler: None = None,
    batch_size: None = None,
    **options: Unpack[ConsumerOptions],
) -> Callable[[EventHandler], DeclaredConsumer]: ...


@overload
def consumer(
    *topics: DeclaredTopic | str, name: str, handler: None = None, batch_size: int, **options: Unpack[ConsumerOptions]
) -> Callable[[BatchHandler], DeclaredConsumer]: ...


@overload
def consumer(
    *topics: DeclaredTopic | str,
    name: str,
    handler: str,
    batch_size: int | None = None,
    **options: Unpack[ConsumerOptions],
) -> DeclaredConsumer: ...


def consumer(
    *topics: DeclaredTopic | str,
    name: str,
    handler: str | None = None,
    batch_size: int | None = None,
    min_batch: int = 1,
    max_wait: timedelta | None = None,
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    partitioned: bool = True,
    transactional: bool = True,
    start: Start = "beginning",
    retry: Backoff = Backoff(),
    on_exhausted: Literal["dead_letter", "stop"] = "dead_letter",
    timeout: timedelta | None = None,
    lease: timedelta = timedelta(seconds=30),
    mode: Mode = "stream",
    ordered: bool = False,
    delay: timedelta | None = None,
    history: timedelta | None = None,
    max_pending: int | None = None,
) -> Callable[[EventHandler], DeclaredConsumer] | Callable[[BatchHandler], DeclaredConsumer] | DeclaredConsumer:
    """Declare a consumer: a decorator of its handler, or with `handler` the path of one, imported when it runs.

    `manage.py migrate` registers it; declaring it again changes nothing. The handler gets one event,
    or with `batch_size` a list of at most so many. A stream reads its topics in order, by partition; with
    mode="queue" each event has a status of its own, and a failing one holds up nothing but, if `ordered`, its key.
    """
    declared = DeclaredConsumer(
        name=name,
        topics=tuple(str(one) for one in topics),
        handler=handler or "",
        batch_size=batch_size,
        min_batch=min_batch,
        max_wait=max_wait,
        types=texts(types),
        keys=texts(keys),
        where=where,
        partitioned=False if mode == "queue" else partitioned,
        transactional=transactional,
        start=start,
        retry=retry,
        on_exhausted=on_exhausted,
        timeout=timeout,
        lease=lease,
        mode=mode,
        ordered=ordered,
        delay=delay,
        history=history,
        max_pending=max_pending,
        declared_at=_caller(),
    )
    if handler is not None:
        consumers.add(declared)
        return declared

    def decorate(function: Handler) -> DeclaredConsumer:
        # What is decorated stays what it was to those who read it.
        complete = replace(declared, handler=function)
        for attribute, value in (("__doc__", function.__doc__), ("__wrapped__", function)):
            object.__setattr__(complete, attribute, value)
        consumers.add(complete)
        return complete

    return decorate


@overload
def texts(given: Sequence[str]) -> tuple[str, ...]: ...


@overload
def texts(given: Sequence[str] | None) -> tuple[str, ...] | None: ...


def texts(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """What a declaration is given as texts. A single text is taken as a sequence of one, not of its letters."""
    return None if given is None else (given,) if isinstance(given, str) else tuple(given)


def _caller() -> str:
    """Where the app called `topic()` or `consumer()`."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
