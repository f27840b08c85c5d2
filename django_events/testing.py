"""For the tests of your own code: what was published, and what its consumers make of it.

    class BillingTests(TestCase):
        def test_an_order_is_billed(self):
            place_order("Ada", Decimal("25.00"))
            drain()
            [event] = assert_published("invoices", type="invoice.written", value_contains={"customer": "Ada"})

All of it works in the test's thread, on its connection and in its transaction, so a plain `TestCase`
will do: nothing is committed, no thread is started, and nothing is left behind.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import merge
from typing import Any, TypeVar, cast

from django.db import transaction

from django_events import declarations, models, sql
from django_events.bridges.inboxes.source_promises import check_source
from django_events.bridges.relays.target_promises import check_target
from django_events.consuming.children import children_left_behind
from django_events.consuming.handlers import BoundHandler, broken
from django_events.declarations.limits import refuse_no_duration
from django_events.drafts import UNSET, Draft
from django_events.event_columns import BUFFERED
from django_events.exceptions import Invalid, InvalidEvent, Refused
from django_events.matching import FILTER, condition
from django_events.models.buffer import writable
from django_events.publishing.encoding import BufferRow, encode, to_json
from django_events.received import ReceivedEvent
from django_events.workers.draining import Drain, HandlerRaised

SQL = sql.beside(__name__)

__all__ = [
    "PublishedEvent",
    "assert_published",
    "check_source",
    "check_target",
    "deliver",
    "drain",
    "isolate_declarations",
    "published",
]

SHOWN = 5  # events in a message
STORED = (*BUFFERED, "published_at")
T = TypeVar("T", bound=declarations.Declared)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedEvent:
    """An event as it is stored, in the buffer or in the log.

    What the transfer decides is None as long as it is in the buffer. That is why it is no ReceivedEvent, which
    always has an id.
    """

    topic: str
    type: str
    key: str | None
    value: Any
    body: bytes | None
    metadata: dict[str, Any]
    partition: int | None
    published_at: datetime
    id: int | None = None
    number: int | None = None
    logged_at: datetime | None = None

    @property
    def data(self) -> Any:
        """What `event.data` is in a handler: the model that the topic's schemas have for its type."""
        return ReceivedEvent(self.topic, _columns(self, 1)).data

    def __str__(self) -> str:
        where = f"{self.topic}, in the buffer" if self.id is None else f"{self.topic}/{self.id}"
        content = f"value={self.value!r}" if self.body is None else f"body={self.body!r}"
        return f"{where}: type={self.type!r}, key={self.key!r}, {content:.300}"


def published(
    topic: declarations.DeclaredTopic | str | None = None, *, using: str | None = None
) -> list[PublishedEvent]:
    """What was published so far, to one topic or to all, in order, drained or not.

    A topic's events are in the order of its log; those of several topics are merged by the time of publishing.
    It is all that is in the test's database: what was there before the test began is in it too.
    """
    using = writable(using)
    topics = models.Topic.objects.using(using).order_by("id")
    if topic is not None:
        topics = topics.filter(name=declarations.registry.get(topic).name)
    names = dict(topics.values_list("id", "name"))
    lanes: dict[int, list[PublishedEvent]] = {topic_id: [] for topic_id in names}
    logged = models.Event.objects.using(using).values(*STORED, "id", "number", "logged_at")
    buffered = models.BufferedEvent.objects.using(using).values(*STORED)
    for rows in (logged, buffered):
        for row in rows.filter(topic_id__in=names).order_by("topic_id", "id"):
            topic_id, body = row.pop("topic_id"), row.pop("body")
            lanes[topic_id].append(PublishedEvent(topic=names[topic_id], body=_bytes(body), **row))
    return list(merge(*lanes.values(), key=lambda event: event.published_at))


def assert_published(
    topic: declarations.DeclaredTopic | str,
    *,
    type: Any = UNSET,
    key: Any = UNSET,
    value: Any = UNSET,
    value_contains: Any = UNSET,
    count: int | None = None,
    using: str | None = None,
) -> list[PublishedEvent]:
    """Fail unless events like this were published to a topic: at least one, or exactly `count`. Returns them.

    What isn't given may be anything. `value_contains` may leave out members of objects, at every depth.
    """
    __tracebackhide__ = True
    wanted = _Wanted(declarations.registry.get(topic).name, type, key, value, value_contains)
    there = published(topic, using=using)
    found = [event for event in there if not wanted.differences(event)]
    if len(found) == count or (found and count is None):
        return found
    raise AssertionError(wanted.complaint(found, there or published(using=using), count))


def drain(
    *consumers: declarations.DeclaredConsumer | str,
    using: str | None = None,
    raise_errors: bool = True,
    limit: int = 1_000,
    ahead: timedelta = timedelta(0),
) -> int:
    """Run the transfer and the consumers, all or those that are named, until nothing is due.

    Returns how many events were handled. A relay sends only if it is named. What handlers publish is moved and handled
    too, in rounds; AssertionError says that after several of them more than `limit` events came of others. A handler's
    error is raised, with a note that names the event; nothing of that event is settled, so it comes again. With
    `raise_errors=False` it is retried or becomes a dead letter, as its consumer says. RetryLater and Ignore are a
    handler's decisions, and followed. A retry that waits is not due. Scheduled events are published `ahead` of their
    time by as much, and so are all ticks of clocks.

    Inside a transaction it works in that one and commits nothing; in autocommit in transactions of its own.
    """
    refuse_no_duration("drain() has ahead", ahead)
    using = writable(using)
    chosen = list(dict.fromkeys(declarations.consumers.get(one) for one in consumers))
    for one in chosen:
        if one.is_for_claims:
            one.load()  # says that it has none
    # A test sends to no broker, unless it names the relay.
    served = chosen or [one for one in declarations.consumers if not (one.is_for_claims or one.is_relay)]
    draining = Drain(using, served, raise_errors=raise_errors, limit=limit, ahead=ahead)
    try:
        return draining.run()
    except HandlerRaised as raised:
        error = raised.error
    raise error


def deliver(
    consumer: declarations.DeclaredConsumer | str,
    *events: ReceivedEvent | PublishedEvent | models.Event | Draft,
    using: str | None = None,
) -> Any:
    """Call a consumer's handler with an event, as a worker would, and return what it returns.

    A handler of batches gets a list. A draft becomes an event of the consumer's first topic, with the id 1, the
    next one 2. A transactional handler runs in a transaction, which its error rolls back; the error comes
    out as it is. Refused says that a worker would not call it. No position moves and no attempt is counted.
    """
    using = writable(using)
    declared = declarations.consumers.get(consumer) if isinstance(consumer, str) else consumer
    received = [_received(using, declared, event, nth) for nth, event in enumerate(events, start=1)]
    most = declared.batch_size or 1
    if not 1 <= len(received) <= most:
        takes = "one event" if most == 1 else f"1 to {most} events"
        raise Invalid(f"Consumer {declared.name!r} takes {takes} at once, got {len(received)}.")
    for event in received:
        _refuse_filtered(using, declared, event)
    handler = BoundHandler(declared)
    argument = received if declared.batch_size is not None else received[0]
    if not declared.transactional:
        with closing(handler), children_left_behind():
            return handler.invoke(argument)
    with transaction.atomic(using), children_left_behind():
        result = handler.invoke(argument)
        if swallowed := broken(using):
            raise swallowed
        return result


@contextmanager
def isolate_declarations() -> Iterator[None]:
    """Forget at the end which topics, consumers, clocks, inboxes and upcasters were declared. It decorates a test, too.

    `drain()` makes what was declared since the last `migrate`, in the test's transaction.
    """
    topics, consumers = list(declarations.registry), list(declarations.consumers)
    clocks, upcasters = list(declarations.clocks), list(declarations.upcasters)
    inboxes = list(declarations.inboxes)
    try:
        yield
    finally:
        _restore(declarations.registry, topics)
        _restore(declarations.consumers, consumers)
        _restore(declarations.clocks, clocks)
        _restore(declarations.upcasters, upcasters)
        _restore(declarations.inboxes, inboxes)


def _restore(registry: declarations.Registry[T], before: list[T]) -> None:
    for one in list(registry):
        registry.discard(one)
    for one in before:
        registry.add(one)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a test expects of an event, and what it is told when there is none like it."""

    topic: str
    type: Any
    key: Any
    value: Any
    value_contains: Any

    def __str__(self) -> str:
        given = {"type": self.type, "key": self.key, "value": self.value}
        parts = [f"{name}={wanted!r}" for name, wanted in given.items() if wanted is not UNSET]
        if self.value_contains is not UNSET:
            parts.append(f"a value that contains {self.value_contains!r}")
        return f" with {', '.join(parts)}" if parts else ""

    def differences(self, event: PublishedEvent) -> list[str]:
        """A sentence for each way in which an event is not what is wanted."""
        found: list[str] = []
        for name in ("type", "key"):
            if getattr(self, name) is not UNSET:
                found += _differences(getattr(event, name), getattr(self, name), name, exact=True)
        for wanted, exact in ((self.value, True), (self.value_contains, False)):
            if wanted is UNSET:
                continue
            if event.body is not None:
                found.append("it has a body instead of a value")
            else:
                found += _differences(event.value, _as_json(wanted), "value", exact=exact)
        return found

    def complaint(self, found: list[PublishedEvent], there: list[PublishedEvent], count: int | None) -> str:
        """What was expected, and what is there instead: in the topic or, if that is empty, in the others."""
        expected = "at least 1" if count is None else "none" if count == 0 else str(count)
        lines = [f"Expected {expected} of {self.topic!r}{self}, got {len(found) or 'none'}."]
        here = [event for event in there if event.topic == self.topic]
        if not here:
            lines.append(f"Nothing was published to {self.topic!r}.")
            elsewhere = Counter(event.topic for event in there).most_common(SHOWN)
            lines += [f"{events} to {topic!r}." for topic, events in elsewhere]
            return "\n".join(lines)
        lines.append("Published, closest first:")
        closest = sorted(((self.differences(event), event) for event in here), key=lambda pair: len(pair[0]))
        for differences, event in closest[:SHOWN]:
            lines.append(f"  {event}")
            lines += [f"      {difference}" for difference in differences[:SHOWN]]
        if len(closest) > SHOWN:
            lines.append(f"  … and {len(closest) - SHOWN} more")
        return "\n".join(lines)


def _differences(actual: Any, wanted: Any, where: str, *, exact: bool) -> list[str]:
    """Where two JSON values differ. Unless `exact`, an object may have further members."""
    if isinstance(actual, dict) and isinstance(wanted, dict):
        found = [f"{where} has no {name!r}" for name in wanted if name not in actual]
        if exact:
            found += [f"{where} has {name!r} too" for name in actual if name not in wanted]
        inner = [(actual[name], wanted[name], f"{where}[{name!r}]") for name in wanted if name in actual]
    elif isinstance(actual, list) and isinstance(wanted, list) and len(actual) == len(wanted):
        found, inner = [], [(*pair, f"{where}[{n}]") for n, pair in enumerate(zip(actual, wanted, strict=True))]
    else:
        return [] if _is_same(actual, wanted) else [f"{where} is {actual!r:.200}, not {wanted!r:.200}"]
    return found + [line for one, other, at in inner for line in _differences(one, other, at, exact=exact)]


def _is_same(actual: Any, wanted: Any) -> bool:
    # JSON's true is not 1, as it is in Python.
    if isinstance(wanted, bool | int | float) and isinstance(actual, bool) is not isinstance(wanted, bool):
        return False
    return bool(actual == wanted)


def _as_json(value: Any) -> Any:
    """A value as it comes back from the database. What isn't JSON, like mock.ANY, compares itself."""
    if declarations.schema_of(value.__class__) is not None:
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if isinstance(value, dict):
        return {next(iter(json.loads(to_json("key", {key: None})))): _as_json(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    try:
        return json.loads(to_json("value", value))
    except InvalidEvent:
        return value


def _bytes(body: Any) -> bytes | None:
    return body if body is None else bytes(body)


def _received(
    using: str,
    consumer: declarations.DeclaredConsumer,
    event: ReceivedEvent | PublishedEvent | models.Event | Draft,
    nth: int,
) -> ReceivedEvent:
    """An event as a worker hands it to this consumer. `nth` is its id where it has none."""
    if isinstance(event, ReceivedEvent):
        return ReceivedEvent(event.topic, event.columns, consumer=consumer.name, attempt=event.attempt, database=using)
    if isinstance(event, Draft):
        topic = declarations.registry.get(consumer.topics[0])
        encoded = encode(topic, event.value, event.body, event.type, event.key, event.metadata, event.partition)
        row = cast("BufferRow", encoded)  # it is handed over now, whatever time or dedup key it has
        partition, now = event.partition or 0, datetime.now(UTC)
        columns = (nth, partition, nth, row.type, row.key, row.value, row.body, row.metadata, now, now)
        return ReceivedEvent(topic.name, columns, consumer=consumer.name, database=using)
    if not isinstance(event, PublishedEvent | models.Event):
        raise TypeError(f"{event!r:.80} can't be delivered, expected a Draft or an event.")
    return ReceivedEvent(str(event.topic), _columns(event, nth), consumer=consumer.name, database=using)


def _columns(event: PublishedEvent | models.Event, nth: int) -> tuple[Any, ...]:
    """All that is stored of an event, in the order of `EVENT`, JSON as text; `nth` where it has no id or number."""
    body = _bytes(event.body)
    erased = body is None and event.value is None and "erased" in event.metadata
    return (
        event.id or nth,
        event.partition or 0,
        event.number or nth,
        event.type,
        event.key,
        None if body is not None or erased else to_json("value", event.value),
        body,
        to_json("metadata", event.metadata),
        event.published_at,
        event.logged_at or event.published_at,
    )


def _refuse_filtered(using: str, consumer: declarations.DeclaredConsumer, event: ReceivedEvent) -> None:
    """Refused if workers would not give this event to the consumer. The database decides, as it does for them."""
    otherwise = "A worker would pass over it. Deliver one that fits, or call the handler yourself."
    if event.topic not in consumer.topics:
        topics = ", ".join(map(repr, consumer.topics))
        raise Refused(f"Consumer {consumer.name!r} reads {topics}, and {event} is none of it. {otherwise}")
    if not consumer.filtered:
        return
    value = None if event.body is not None else to_json("value", event.value)
    metadata = to_json("metadata", event.metadata)
    statement = SQL.matches.on(match=condition(consumer))
    [[fits]] = sql.fetch(using, statement, type=event.type, key=event.key, value=value, metadata=metadata)
    if not fits:
        filters = {name: getattr(consumer, name) for name in FILTER}
        named = ", ".join(f"{name}={wanted!r}" for name, wanted in filters.items() if wanted is not None)
        raise Refused(
            f"Consumer {consumer.name!r} takes {named}, and {event} with the value {event.value!r:.200} doesn't fit. "
            f"{otherwise}"
        )
