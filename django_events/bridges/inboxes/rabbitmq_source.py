"""Inboxes from queues of RabbitMQ.

    inbox(payments, source=rabbitmq_source("bank.payments"), name="payments-in")

A message is acknowledged after the COMMIT. One that comes again within `window` is recognised: by its CloudEvent's
source, id and time, or by its property `message_id`. One that has neither is taken in each time it comes.

The queue's order holds while one consumer reads it. So by default the inbox asks for it exclusively, and a second
process stands by.

It needs amqp: pip install 'django-events-pg[rabbitmq]'
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, ClassVar

from django_events.bridges.brokers import check_package, options_of, said, unmade
from django_events.bridges.inboxes.amqp_frames import RAW, tolerant
from django_events.bridges.inboxes.queue_sources import WINDOW, QueuedMessage, QueueInUse, check_times, identity_of
from django_events.bridges.inboxes.sources import InboxMessage, SourceUnavailable, moment_of
from django_events.bridges.relays.rabbitmq import LONGEST_KEY, SECONDS, connected
from django_events.exceptions import NotReady

HEARTBEAT = 10  # seconds: the server gives the queue to another process after two that didn't come
WAITS = 1.0  # second that is waited for the first message
GAP = 0.01  # seconds: what comes later than that behind another message is of the next batch
MOST_PREFETCHED = 65_535
IN_USE = "in exclusive use"
OF_A_STREAM = "x-stream-offset"  # a header of what comes from a queue of that type
PROPERTIES = ("message_id", "type", "correlation_id", "reply_to", "app_id", "content_encoding")


@dataclass(frozen=True, kw_only=True)
class RabbitMQSource:
    """A queue of a RabbitMQ as the source of an inbox."""

    queue: str
    broker: str = "rabbitmq"
    exclusive: bool = True
    window: timedelta = WINDOW
    is_queue: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{self.broker} {self.queue}"

    def problems(self) -> Iterator[str]:
        if not isinstance(self.queue, str) or not 0 < len(self.queue.encode()) <= LONGEST_KEY:
            yield f"rabbitmq_source has {self.queue!r:.300}, expected the name of a queue."
        if not isinstance(self.exclusive, bool):
            yield f"rabbitmq_source has exclusive={self.exclusive!r}, expected True or False."
        yield from check_times("rabbitmq_source", window=self.window)

    def check_installed(self) -> None:
        check_package("amqp", "rabbitmq")

    def reader(self) -> "RabbitMQReader":
        return RabbitMQReader(self)


def rabbitmq_source(
    queue: str, *, broker: str = "rabbitmq", exclusive: bool = True, window: timedelta = WINDOW
) -> RabbitMQSource:
    """An inbox's source: a queue of the RabbitMQ that `DJANGO_EVENTS["BROKERS"]` has under this name.

    `exclusive=False` lets several processes and other programs read the queue, without its order. `window` is for how
    long a message that comes again is recognised.
    """
    return RabbitMQSource(queue=queue, broker=broker, exclusive=exclusive, window=window)


class RabbitMQReader:
    """One connection to a RabbitMQ, which consumes."""

    in_order = True

    def __init__(self, source: RabbitMQSource) -> None:
        self._source = source
        self._options: Mapping[str, Any] = {}
        self._connection: Any = None
        self._channel: Any = None
        self.holds = 2.0 * HEARTBEAT
        self._consumes = self._cancelled = False
        self._waiting: deque[QueuedMessage] = deque()  # delivered, or given back; the oldest first

    def open(self) -> None:
        import amqp

        try:
            options = self._options = options_of(self._source.broker)
        except NotReady as error:
            raise SourceUnavailable(str(error)) from None
        seconds = options.pop("timeout", SECONDS)
        try:
            self._connection = connected({"heartbeat": HEARTBEAT, **options}, seconds, frame_handler=tolerant)
            self.holds = 2.0 * (self._connection.heartbeat or HEARTBEAT)
            self._channel = self._connection.channel()
            self._channel.auto_decode = False  # bodies are bytes
            self._channel.queue_declare(self._source.queue, passive=True)
        except NotReady as error:
            raise SourceUnavailable(f"RabbitMQ {self._source.broker!r}: {error}") from None
        except (OSError, amqp.AMQPError) as error:
            raise self._unavailable(error) from None
        except Exception as error:
            raise SourceUnavailable(f"RabbitMQ {self._source.broker!r}: {unmade(error, self._options)}.") from None

    def receive(self, most: int) -> Sequence[QueuedMessage]:
        try:
            if not self._consumes:
                self._consume(most)
            self._connection.heartbeat_tick()
            if not self._waiting:
                self._drain(WAITS)
            while len(self._waiting) < most and self._drain(GAP):
                pass
        except SourceUnavailable:
            raise
        except Exception as error:
            raise self._unavailable(error) from None
        if self._cancelled:
            raise SourceUnavailable(f"The queue {self._source.queue!r} was deleted, or is not available any more.")
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def acknowledge(self, messages: Iterable[QueuedMessage]) -> None:
        try:
            for one in messages:
                self._channel.basic_ack(one.message.place)
        except Exception as error:
            raise self._unavailable(error) from None

    def give_back(self, messages: Iterable[QueuedMessage], after: timedelta) -> None:
        """Keep them, not acknowledged, in front of all others."""
        self._waiting.extendleft(reversed(list(messages)))

    def lag(self) -> int | None:
        try:
            found = self._channel.queue_declare(self._source.queue, passive=True)
        except Exception as error:
            raise self._unavailable(error) from None
        return int(found.message_count) + len(self._waiting)

    def keep(self) -> None:
        self._connection.heartbeat_tick()
        while self._drain(GAP):
            pass

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(Exception):
            connection.sock.settimeout(1.0)
            connection.close()
        with suppress(Exception):
            connection.collect()

    def _consume(self, most: int) -> None:
        import amqp

        self._channel.basic_qos(0, min(most, MOST_PREFETCHED), False)
        try:
            self._channel.basic_consume(
                self._source.queue,
                exclusive=self._source.exclusive,
                callback=self._delivered,
                on_cancel=self._on_cancel,
            )
        except amqp.AccessRefused as error:
            if IN_USE not in str(error):
                raise
            raise QueueInUse(
                f"The queue {self._source.queue!r} can't be had exclusively: another consumer reads it, or it is a "
                "classic one with x-single-active-consumer. To read it beside others: rabbitmq_source(…, "
                "exclusive=False)."
            ) from None
        self._consumes = True

    def _drain(self, seconds: float) -> bool:
        """Read what the server says next; returns whether it said anything in time."""
        try:
            self._connection.drain_events(timeout=seconds)
        except TimeoutError:
            return False
        return True

    def _delivered(self, found: Any) -> None:
        if OF_A_STREAM in (found.properties.get("application_headers") or {}):
            raise SourceUnavailable(
                f"The queue {self._source.queue!r} is of the type stream, which forgets nothing, and of which a reader "
                "gets what comes while it is there. An inbox needs a classic or a quorum queue: bind one to the "
                "exchange. Nothing was taken in from the stream."
            )
        self._waiting.append(self._message(found))

    def _on_cancel(self, tag: str) -> None:
        self._cancelled = True

    def _message(self, found: Any) -> QueuedMessage:
        properties, body = found.properties, _bytes(found.body)
        given = dict(properties.get("application_headers") or {})
        undecoded = given.pop(RAW, None)
        headers = {str(name).lower(): _text(value) for name, value in given.items()}
        headers |= {name.replace("_", "-"): _text(properties[name]) for name in PROPERTIES if name in properties}
        if (content_type := properties.get("content_type")) is not None:
            headers["content-type"] = content_type
        sent_at = _moment(sent := properties.get("timestamp"))
        if sent is not None and sent_at is None:
            headers["timestamp"] = str(sent)
        named = properties.get("message_id")
        message = InboxMessage(
            id=named or sha256(body).hexdigest()[:16],
            log=self._source.queue,
            place=found.delivery_info["delivery_tag"],
            body=body,
            headers=headers,
            subject=found.delivery_info["routing_key"],
            sent_at=sent_at,
            fields={"properties": undecoded} if isinstance(undecoded, bytes) else {},
        )
        return QueuedMessage(message, identity_of(headers, named), "", bool(found.delivery_info.get("redelivered")))

    def _unavailable(self, error: BaseException) -> SourceUnavailable:
        return SourceUnavailable(f"RabbitMQ {self._source.broker!r}: {said(error, self._options)}")


def _bytes(body: Any) -> bytes:
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _moment(sent: Any) -> datetime | None:
    """When the publisher says that it was sent."""
    if isinstance(sent, datetime):
        return sent if sent.tzinfo is not None else sent.replace(tzinfo=UTC)
    return moment_of(sent) if isinstance(sent, int) else None
