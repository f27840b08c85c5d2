"""`topic()`, `consumer()`, `queue()`, `rollup()`, `projection()`, `relay()` and `inbox()`: an app declares by them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from django_events.declarations.declared_consumer import (
    BatchHandler,
    DeclaredConsumer,
    EventHandler,
    Handler,
    Mode,
    Start,
)
from django_events.declarations.declared_inbox import (
    MOST_BUFFERED,
    DeclaredInbox,
    Expired,
    InboxSource,
    MessageTransform,
    OnUnreadable,
)
from django_events.declarations.declared_projection import DeclaredProjection, Fold, KeyOfEvent
from django_events.declarations.declared_relay import DeclaredRelay, Form, RelayTarget, Transform, forms_of
from django_events.declarations.declared_rollup import DeclaredRollUp
from django_events.declarations.declared_topic import Compatibility, DeclaredTopic, SchemaCheck, Undescribed
from django_events.declarations.limits import named, names_of, texts
from django_events.declarations.registries import consumers, inboxes, registry
from django_events.retries import Backoff

Row = TypeVar("Row")
Declaration = TypeVar("Declaration", bound=DeclaredConsumer)


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
    compact: bool = False,
    tombstones_kept: timedelta = timedelta(days=1),
    schemas: Sequence[type[Any]] = (),
    schema_check: SchemaCheck = "strict",
    undescribed: Undescribed = "refuse",
    compatibility: Compatibility = "backward",
) -> DeclaredTopic:
    """Declare a topic. `manage.py migrate` creates it; declaring it again changes nothing.

    With `compact`, only the newest event of each key is kept of those that all consumers have passed; one without a
    value deletes its key, and goes itself after `tombstones_kept`. Such a topic has a timeline.
    `schemas` are the models of its events, each under a `@schema`: what is published must fit them, unless
    `schema_check` says otherwise, and have one, unless `undescribed` is "pass". How they may change is `compatibility`,
    which `manage.py events schemas check` judges.
    """
    declared = DeclaredTopic(
        name=name,
        partitions=partitions,
        retention=retention,
        retention_events=retention_events,
        retention_bytes=retention_bytes,
        keep_unread=keep_unread,
        segment_size=segment_size,
        timeline=timeline or compact is True,
        compact=compact,
        tombstones_kept=tombstones_kept,
        schemas=(schemas,) if isinstance(schemas, type) else tuple(schemas),
        schema_check=schema_check,
        undescribed=undescribed,
        compatibility=compatibility,
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
    metadata: str | None
    vars: Mapping[str, Any] | None
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
    outcomes: DeclaredTopic | str | None


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
    metadata: str | None = None,
    vars: Mapping[str, Any] | None = None,
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
    outcomes: DeclaredTopic | str | None = None,
) -> Callable[[EventHandler], DeclaredConsumer] | Callable[[BatchHandler], DeclaredConsumer] | DeclaredConsumer:
    """Declare a consumer: a decorator of its handler, or with `handler` the path of one, imported when it runs.

    `manage.py migrate` registers it; declaring it again changes nothing. The handler gets one event,
    or with `batch_size` a list of at most so many. A stream reads its topics in order, by partition; with
    mode="queue" each event has a status of its own, and a failing one holds up nothing but, if `ordered`, its key.
    """
    declared = DeclaredConsumer(
        name=name,
        topics=names_of(topics),
        handler=handler or "",
        batch_size=batch_size,
        min_batch=min_batch,
        max_wait=max_wait,
        types=texts(types),
        keys=texts(keys),
        where=where,
        metadata=metadata,
        vars=None if vars is None else dict(vars),
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
        outcomes=None if outcomes is None else str(outcomes),
        declared_at=_caller(),
    )
    if handler is not None:
        consumers.add(declared)
        return declared

    def decorate(function: Handler) -> DeclaredConsumer:
        return _declared(replace(declared, handler=function), function)

    return decorate


def queue(
    *topics: DeclaredTopic | str,
    name: str,
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    metadata: str | None = None,
    vars: Mapping[str, Any] | None = None,
    start: Start = "beginning",
    retry: Backoff = Backoff(),
    lease: timedelta = timedelta(seconds=30),
    ordered: bool = False,
    delay: timedelta | None = None,
    history: timedelta | None = None,
    max_pending: int | None = None,
    outcomes: DeclaredTopic | str | None = None,
) -> DeclaredConsumer:
    """Declare a queue consumer without a handler: programs claim its events, by `claim()` or `events claim`.

    No worker serves it. All else is as of a consumer with mode="queue".
    """
    declared = DeclaredConsumer(
        name=name,
        topics=names_of(topics),
        handler=None,
        types=texts(types),
        keys=texts(keys),
        where=where,
        metadata=metadata,
        vars=None if vars is None else dict(vars),
        partitioned=False,
        start=start,
        retry=retry,
        lease=lease,
        mode="queue",
        ordered=ordered,
        delay=delay,
        history=history,
        max_pending=max_pending,
        outcomes=None if outcomes is None else str(outcomes),
        declared_at=_caller(),
    )
    consumers.add(declared)
    return declared


def rollup(
    *topics: DeclaredTopic | str,
    name: str,
    every: timedelta = timedelta(minutes=1),
    by: Mapping[str, str] | None = None,
    sums: Mapping[str, str] | None = None,
    mins: Mapping[str, str] | None = None,
    maxs: Mapping[str, str] | None = None,
    at: str = "published_at",
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    groups: int = 10_000,
    retention: timedelta | None = None,
    start: Start = "beginning",
    lease: timedelta = timedelta(seconds=30),
) -> DeclaredRollUp:
    """Declare a roll-up: a table of figures of the events, in buckets of `every`, and by groups.

    `manage.py migrate` makes its table, and workers keep it true as they serve any stream consumer, but in SQL: a range
    of ids at once, in the transaction that moves the position, so each event counts exactly once. It counts events, and
    numbers in their values as sums, minima and maxima, each under a name. Groups are a jsonpath, "type", "key", or
    "key until :", the part of the key before a text; those beyond `groups` are counted together. A value that is no
    number is counted as skipped.
    """
    declared = DeclaredRollUp(
        name=name,
        topics=names_of(topics),
        handler="django_events.deriving.rolling_up.RollUpFold",
        every=every,
        by=named(by),
        sums=named(sums),
        mins=named(mins),
        maxs=named(maxs),
        at=at,
        types=texts(types),
        keys=texts(keys),
        where=where,
        groups=groups,
        retention=retention,
        partitioned=False,
        start=start,
        lease=lease,
        declared_at=_caller(),
    )
    consumers.add(declared)
    return declared


class ProjectionOptions(TypedDict, total=False):
    """What `projection` takes beside the topics and the model."""

    name: str | None
    key: str | KeyOfEvent | None
    key_field: str | None
    types: Sequence[str] | None
    keys: Sequence[str] | None
    where: str | None
    batch_size: int
    partitioned: bool | None
    start: Start
    retry: Backoff
    on_exhausted: Literal["dead_letter", "stop"]
    timeout: timedelta | None
    lease: timedelta


@overload
def projection(
    *topics: DeclaredTopic | str, into: type[Row], **options: Unpack[ProjectionOptions]
) -> Callable[[Fold[Row]], DeclaredProjection[Row]]: ...


@overload
def projection(
    *topics: DeclaredTopic | str, into: str, **options: Unpack[ProjectionOptions]
) -> Callable[[Fold[Any]], DeclaredProjection[Any]]: ...


def projection(
    *topics: DeclaredTopic | str,
    into: type[Any] | str,
    name: str | None = None,
    key: str | KeyOfEvent | None = None,
    key_field: str | None = None,
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    batch_size: int = 500,
    partitioned: bool | None = None,
    start: Start = "beginning",
    retry: Backoff = Backoff(),
    on_exhausted: Literal["dead_letter", "stop"] = "dead_letter",
    timeout: timedelta | None = None,
    lease: timedelta = timedelta(seconds=30),
) -> Callable[[Fold[Any]], DeclaredProjection[Any]]:
    """Declare a projection: a decorator of the function that changes the row of a key by an event of that key.

    `manage.py migrate` registers it as a stream consumer with the function's name, or this one. The rows of a batch are
    read by one query, and written in the transaction that moves the position: each event counts exactly once. The
    function gets the key's row, a new one if there is none, and returns nothing, or DELETE.
    """
    declared_at = _caller()

    def decorate(function: Fold[Any]) -> DeclaredProjection[Any]:
        complete: DeclaredProjection[Any] = DeclaredProjection(
            name=function.__name__ if name is None else name,
            topics=names_of(topics),
            handler=function,
            into=into,
            key=key,
            key_field=key_field,
            batch_size=batch_size,
            types=texts(types),
            keys=texts(keys),
            where=where,
            # By another key than the event's, two partitions would have events of one row.
            partitioned=key is None if partitioned is None else partitioned,
            start=start,
            retry=retry,
            on_exhausted=on_exhausted,
            timeout=timeout,
            lease=lease,
            declared_at=declared_at,
        )
        return _declared(complete, function)

    return decorate


def relay(
    topic: DeclaredTopic | str,
    *,
    to: RelayTarget,
    name: str,
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    metadata: str | None = None,
    vars: Mapping[str, Any] | None = None,
    transform: Transform | None = None,
    form: Form | None = None,
    partitioned: bool = True,
    batch_size: int = 500,
    start: Start = "beginning",
    retry: Backoff = Backoff(),
    on_exhausted: Literal["dead_letter", "stop"] = "dead_letter",
    timeout: timedelta | None = None,
    lease: timedelta = timedelta(seconds=30),
) -> DeclaredRelay:
    """Declare a relay: a stream consumer that sends a topic's events to a broker, in order, in batches.

    `manage.py migrate` registers it, and workers serve it as any stream consumer. The position moves when the target
    has acknowledged a whole batch. A target that is down counts no attempt. `transform` gets an event and returns what
    to send instead of its value, as JSON or bytes; None leaves the event out.
    """
    declared = DeclaredRelay(
        name=name,
        topics=(str(topic),),
        handler="django_events.bridges.relays.relaying.Relaying",
        to=to,
        form=form if form is not None else forms_of(to)[0],
        transform=transform,
        types=texts(types),
        keys=texts(keys),
        where=where,
        metadata=metadata,
        vars=None if vars is None else dict(vars),
        partitioned=partitioned,
        transactional=False,
        batch_size=batch_size,
        start=start,
        retry=retry,
        on_exhausted=on_exhausted,
        timeout=timeout,
        lease=lease,
        declared_at=_caller(),
    )
    consumers.add(declared)
    return declared


def inbox(
    topic: DeclaredTopic | str,
    *,
    source: InboxSource,
    name: str,
    transform: MessageTransform | None = None,
    start: str = "beginning",
    batch_size: int = 500,
    on_unreadable: OnUnreadable = "publish",
    expired: Expired = "stop",
    keep_ids: bool = False,
    most_buffered: int | None = MOST_BUFFERED,
    most_lag: Mapping[str, int] | None = None,
    retry: Backoff = Backoff(attempts=5, cap=timedelta(minutes=1)),
) -> DeclaredInbox:
    """Declare an inbox: the messages of a broker become events of a topic, in order, each exactly once.

    `manage.py migrate` registers it, and `run_inbox` serves it. How far it is in the source is written in the
    transaction that publishes the events. CloudEvents are taken in as they are; `transform` gets a message and returns
    a Draft, or None to leave it out. A message that can't be read is published as an event of its own type with all of
    its bytes, or with on_unreadable="stop" the inbox waits in front of it.
    With keep_ids the topic is a mirror of another site's: it has the same events under the same ids, and no others.
    It takes nothing in while `most_buffered` events of the topic wait for the transfer, or while a consumer that
    `most_lag` names is so many events behind.
    """
    declared = DeclaredInbox(
        name=name,
        topic=str(topic),
        source=source,
        transform=transform,
        start=start,
        batch_size=batch_size,
        on_unreadable=on_unreadable,
        expired=expired,
        keep_ids=keep_ids,
        most_buffered=most_buffered,
        most_lag=most_lag,
        retry=retry,
        declared_at=_caller(),
    )
    inboxes.add(declared)
    return declared


def _declared(complete: Declaration, function: Handler) -> Declaration:
    """Add what decorates a function, which stays what it was to those who read it."""
    for attribute, value in (("__doc__", function.__doc__), ("__wrapped__", function)):
        object.__setattr__(complete, attribute, value)
    consumers.add(complete)
    return complete


def _caller() -> str:
    """Where the app called one of these functions."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
