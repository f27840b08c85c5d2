"""Relays to RabbitMQ: at least once, each queue in order, and a double is known by its address.

    relay(orders, to=rabbitmq("shop.orders"), name="orders-to-rabbitmq")                       # one queue
    relay(orders, to=rabbitmq(lambda event: event.type, exchange="shop"), name="orders-out")   # an exchange

Messages are persistent, and a batch is confirmed by the server before the position moves. A queue has no numbers to
compare: after a worker was killed or frozen, or an answer didn't come in time, up to a batch of each partition comes
again. What no queue takes is returned by the server (`mandatory`) and never lost.

The client is Celery's, amqp: it does what it is told in the thread that tells it, confirms can be waited for together,
and a connection can be let go of without an answer. Between batches no thread is there for heartbeats. So there are
none by default, and a connection that was idle is asked for an answer before anything is sent by it.

It needs amqp: pip install 'django-events-pg[rabbitmq]'
"""

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django_events.bridges.brokers import check_package, name_of, options_of, said, shown, unmade
from django_events.bridges.relays.answers import UNANSWERED, Unroutable, judged
from django_events.bridges.relays.targets import Newest, RelayMessage, Route, TargetUnavailable
from django_events.exceptions import MessageRefused, NotReady, did_you_mean
from django_events.received import ReceivedEvent

SECONDS = 10.0  # for a connection and for the answers to a batch, where the settings don't say
IDLE = 5.0  # seconds after which a connection is asked for an answer before it is used
LONGEST_KEY = 255  # bytes of a routing key
MOST_KEYS = 10_000  # routing keys that a bridge remembers
PREFIX = "cloudEvents:"  # of headers, by the binding of CloudEvents to AMQP
TOO_LARGE = re.compile(r"message size \d+ is larger than configured max size (\d+)")
ANY = re.compile(r".*", re.DOTALL)
NACKED = "the server refused to take it: its queue is full, or it failed"


@dataclass(frozen=True, kw_only=True)
class RabbitMQ:
    """An exchange of a RabbitMQ, or one queue, as a relay's target."""

    routing_key: str | Callable[[ReceivedEvent], str]
    exchange: str = ""
    broker: str = "rabbitmq"

    def __str__(self) -> str:
        return shown(f"{self.broker} {self.exchange}".rstrip(), self.routing_key)

    def problems(self) -> Iterator[str]:
        key = self.routing_key
        if not callable(key) and not (isinstance(key, str) and len(key.encode()) <= LONGEST_KEY):
            yield (
                f"rabbitmq has {key!r:.300}, expected a routing key of at most {LONGEST_KEY} bytes, or a function of "
                "an event. Without an exchange it is the name of a queue."
            )
        if not isinstance(self.exchange, str) or len(self.exchange.encode()) > LONGEST_KEY:
            yield f"rabbitmq has exchange={self.exchange!r:.300}, expected the name of an exchange."
        if key == "" and self.exchange == "":
            yield "rabbitmq has neither a queue nor an exchange."

    def check_installed(self) -> None:
        check_package("amqp", "rabbitmq")

    def route(self, event: ReceivedEvent, partition: int | None) -> Route:
        key = name_of(self.routing_key, event, ANY, "a routing key: a text")
        if len(key.encode("utf-8", "surrogatepass")) > LONGEST_KEY:
            raise MessageRefused(f"Its routing key, by the function of the target, is longer than {LONGEST_KEY} bytes.")
        return Route(key)

    def bridge(self) -> "RabbitMQBridge":
        return RabbitMQBridge(self)


def rabbitmq(
    routing_key: str | Callable[[ReceivedEvent], str], *, exchange: str = "", broker: str = "rabbitmq"
) -> RabbitMQ:
    """A relay's target: an exchange of the RabbitMQ that `DJANGO_EVENTS["BROKERS"]` has under this name.

    Without an exchange the routing key is the name of a queue. Exchanges and queues must be there.
    """
    return RabbitMQ(routing_key=routing_key, exchange=exchange, broker=broker)


def connected(options: Mapping[str, Any], seconds: float, **more: Any) -> Any:
    """A connection to a RabbitMQ; whatever fails is raised as it is.

    The client takes any option and ignores those that it doesn't know, like `port`: that would be found out late.
    """
    import amqp

    known = inspect.signature(amqp.Connection).parameters
    if unknown := sorted(set(options) - set(known)):
        raise NotReady(f"amqp has no option {unknown[0]!r}. {did_you_mean(unknown[0], known)}")
    # Confirms are waited for together, which `confirm_publish` would not.
    connection = amqp.Connection(**{"connect_timeout": seconds, **options, "confirm_publish": False, **more})
    try:
        connection.connect()
        connection.sock.settimeout(seconds)  # also for answers that are waited for without a time
    except BaseException:
        connection.collect()
        raise
    return connection


class RabbitMQBridge:
    """One connection to a RabbitMQ, with a channel that is confirmed."""

    largest = None  # the server doesn't say it before it refuses a message
    sends_only = False  # known when it is open

    def __init__(self, target: RabbitMQ) -> None:
        self._target = target
        self._options: Mapping[str, Any] = {}
        self._seconds = SECONDS
        self._connection: Any = None
        self._channel: Any = None
        self._blocked = False  # the server takes nothing: it is low on memory or disk
        self._proved = False  # whether it has taken a message by this connection
        self._routed: set[str] = set()  # routing keys by which a queue got the newest message
        self._used = 0.0
        self._largest_body: int | None = None  # what the server said when it refused a larger one
        self._tag = 0  # of the last message that was sent
        self._indexes: dict[int, int] = {}  # of messages that are not answered, by their tags
        self._messages: Sequence[RelayMessage] = ()
        self._answers: list[Any] = []

    def open(self) -> None:
        try:
            options = self._options = options_of(self._target.broker)
        except NotReady as error:
            raise TargetUnavailable(str(error)) from None
        self._seconds = options.pop("timeout", SECONDS)
        # A connection that ended is replaced in `send`: what logs in, or is told of it, may use the database.
        self.sends_only = not options.get("authentication") and not any(map(callable, options.values()))
        self._connect()

    def newest(self, log: str) -> Newest | None:
        return None

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        self._wake_up()
        self._messages, self._answers = messages, [self._refused(one) or UNANSWERED for one in messages]
        try:
            while (left := self._unanswered()) and not self._blocked:
                # A server that is low on memory says so when it gets a message: by a new connection it gets one first.
                together = self._together(left) if self._proved else left[:1]
                self._publish(together)
                self._proved = True
                self._leave_out_behind()
        except TargetUnavailable as error:
            self._leave_out_behind()
            return judged(messages, self._answers, error)
        if self._unanswered():
            return judged(messages, self._answers, TargetUnavailable(self._said_of(_BLOCKED)))
        return self._answers

    def close(self) -> None:
        """Say good-bye to a server that answers; else let go of the connection."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is None:
            return
        if self._proved and not self._blocked and not self._indexes:
            with suppress(Exception):
                connection.sock.settimeout(1.0)
                connection.close()
        with suppress(Exception):
            connection.collect()

    def _connect(self) -> None:
        import amqp

        self._proved = self._blocked = False
        try:
            self._connection = connected(
                self._options, self._seconds, on_blocked=self._on_blocked, on_unblocked=self._on_unblocked
            )
            channel = self._channel = self._connection.channel()
            channel.events["basic_ack"].add(self._on_ack)
            channel.events["basic_nack"].add(self._on_nack)
            channel.events["basic_return"].add(self._on_return)
            channel.confirm_select()
        except NotReady as error:
            raise TargetUnavailable(f"RabbitMQ {self._target.broker!r}: {error}") from None
        except (OSError, amqp.AMQPError) as error:
            raise self._unavailable(error) from None
        except Exception as error:
            raise TargetUnavailable(f"RabbitMQ {self._target.broker!r}: {unmade(error, self._options)}.") from None
        self._tag, self._indexes, self._used = 0, {}, time.monotonic()
        self._routed.clear()

    def _wake_up(self) -> None:
        """Replace a connection that ended while nothing was sent by it, or by which answers may come too late."""
        if self._indexes:  # they would be taken for those to other messages
            self._reconnect()
        if time.monotonic() - self._used < IDLE:
            return
        self._routed.clear()  # queues may have gone meanwhile
        try:
            self._channel.basic_qos(0, 0, False)  # any question with an answer
        except Exception:
            self._reconnect()
        self._used = time.monotonic()

    def _reconnect(self) -> None:
        self._indexes = {}
        self.close()
        self._connect()

    def _unanswered(self) -> list[int]:
        return [index for index, answer in enumerate(self._answers) if answer is UNANSWERED]

    def _together(self, left: Sequence[int]) -> list[int]:
        """Those that are sent next: of a key none behind one of which it isn't known that a queue gets it.

        A queue may be bound at any time, also between the two. It would get the second one, and then the first, which
        is tried again later.
        """
        together, waiting = list[int](), set[str | None]()
        for index in left:
            message = self._messages[index]
            if message.key is not None and message.key in waiting:
                continue
            together.append(index)
            if message.route.to not in self._routed:
                waiting.add(message.key)
        return together

    def _leave_out_behind(self) -> None:
        """What is not taken is tried again later, and so is all of its key behind it, with the same answer.

        Also what is acknowledged: else it would be in front of that for good, and a key has to end with its newest.
        """
        failed = dict[str, Any]()
        for index, (message, answer) in enumerate(zip(self._messages, self._answers, strict=True)):
            if message.key is None:
                continue
            if message.key in failed and (answer is None or answer is UNANSWERED):
                self._answers[index] = failed[message.key]
            elif answer is UNANSWERED or isinstance(answer, Unroutable | TargetUnavailable):
                failed.setdefault(message.key, answer)

    def _refused(self, message: RelayMessage) -> MessageRefused | None:
        size, most = len(message.body or b""), self._largest_body
        if most is None or size <= most:
            return None
        return MessageRefused(f"It has {size} bytes, and RabbitMQ takes {most}.")

    def _publish(self, indexes: Sequence[int]) -> None:
        """Send some messages and wait until all of them are answered; TargetUnavailable if they are not."""
        import amqp

        try:
            for index in indexes:
                self._tag += 1
                self._indexes[self._tag] = index
                message = self._messages[index]
                self._channel.basic_publish(
                    _message(message),
                    exchange=self._target.exchange,
                    routing_key=message.route.to,
                    mandatory=True,
                    timeout=self._seconds,
                )
            deadline = time.monotonic() + self._seconds
            while self._indexes and (left := deadline - time.monotonic()) > 0:
                self._connection.drain_events(timeout=left)
            self._used = time.monotonic()
        except amqp.PreconditionFailed as error:
            if (found := TOO_LARGE.search(str(error))) is None:
                raise self._unavailable(error) from None
            self._learn(int(found[1]))
            return
        except TimeoutError:
            pass
        except Exception as error:
            raise self._unavailable(error) from None
        if self._indexes:
            raise TargetUnavailable(self._said_of(_BLOCKED if self._blocked else "no answer in time"))
        for index in indexes:
            if isinstance(answer := self._answers[index], TargetUnavailable):
                raise answer

    def _learn(self, most: int) -> None:
        """Refuse what is too large. The server has closed the channel, and the others are sent again."""
        self._largest_body = most
        for index in (left := self._unanswered()):
            self._answers[index] = self._refused(self._messages[index]) or UNANSWERED
        self._reconnect()
        if self._unanswered() == left:
            raise TargetUnavailable(self._said_of(f"it refuses a message as larger than {most} bytes, and none is"))

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for index in self._answered(tag, multiple):
            if self._answers[index] is UNANSWERED:
                self._answers[index] = None
                self._note_routed(self._messages[index].route.to)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for index in self._answered(tag, multiple):
            self._answers[index] = TargetUnavailable(self._said_of(NACKED))

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """No queue is there for a message. Its acknowledgement follows."""
        where = f"exchange {exchange!r}" if exchange else "the default exchange"
        reason = f"no queue gets what {where} is sent with the routing key {routing_key!r}"
        address = message.properties.get("message_id")
        for index in self._indexes.values():
            if self._messages[index].address == address and self._answers[index] is UNANSWERED:
                is_of_event = callable(self._target.routing_key)
                self._answers[index] = Unroutable(reason) if is_of_event else TargetUnavailable(self._said_of(reason))
                self._routed.discard(routing_key)
                return

    def _note_routed(self, routing_key: str) -> None:
        if len(self._routed) >= MOST_KEYS:
            self._routed.clear()
        self._routed.add(routing_key)

    def _answered(self, tag: int, multiple: bool) -> list[int]:
        tags = [one for one in self._indexes if one <= tag] if multiple else [tag]
        return [self._indexes.pop(one) for one in tags if one in self._indexes]

    def _on_blocked(self, reason: str) -> None:
        self._blocked = True

    def _on_unblocked(self) -> None:
        self._blocked = False

    def _unavailable(self, error: BaseException) -> TargetUnavailable:
        return TargetUnavailable(self._said_of(said(error, self._options)))

    def _said_of(self, words: str) -> str:
        return f"RabbitMQ {self._target.broker!r}: {words}"


_BLOCKED = "it takes no messages now, because it is low on memory or disk"


def _message(message: RelayMessage) -> Any:
    import amqp

    headers = {f"{PREFIX}{name}": text for name, text in message.attributes.items()}
    headers |= {name: text for name, text in message.headers.items() if name != "content-type"}
    return amqp.Message(
        b"null" if message.body is None else message.body,
        content_type=message.headers["content-type"],
        delivery_mode=2,  # persistent
        message_id=message.address,
        application_headers=headers,
    )
