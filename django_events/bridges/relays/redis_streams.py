"""Relays to Redis streams: each event is in its stream exactly once.

    relay(orders, to=redis_stream("shop.orders"), name="orders-to-redis")   # shop.orders:0, shop.orders:1 …

An entry's id is `1042-0`, the event's id in its topic. Redis refuses an id that isn't above the last one of a stream.
So a worker that was frozen or whose answer was lost can't add an event a second time. Ids grow within a partition; so
each partition has a stream, or one relay with `partitioned=False` fills one. A batch is a transaction of Redis: all of
it is added, or nothing, so no event is left out in front of one that was added.

It needs redis: pip install 'django-events-pg[redis]'
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django_events.bridges.brokers import check_package, masked, name_of, options_of, shown, unmade
from django_events.bridges.relays.answers import Unroutable
from django_events.bridges.relays.targets import Newest, Overtaken, RelayMessage, Route, TargetUnavailable
from django_events.exceptions import NotReady
from django_events.received import ReceivedEvent

SECONDS = 10.0  # for a connection and for an answer, where the settings don't say
PIECE = 16_384  # bytes
NOT_ABOVE = "equal or smaller than the target stream top item"
NO_STREAM, WRONG_TYPE = "no such key", "WRONGTYPE"
# Before its version 6 the client quotes the whole command in an error, with what is in it.
QUOTED = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
NAME = re.compile(r".+", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class RedisStream:
    """Streams of a Redis as a relay's target: one for each partition, or one."""

    stream: str | Callable[[ReceivedEvent], str]
    broker: str = "redis"
    maxlen: int | None = None

    def __str__(self) -> str:
        return shown(self.broker, self.stream)

    def problems(self) -> Iterator[str]:
        if not callable(self.stream) and (not isinstance(self.stream, str) or not self.stream):
            yield f"redis_stream has {self.stream!r}, expected the name of a stream, or a function of an event."
        if self.maxlen is not None and (not isinstance(self.maxlen, int) or self.maxlen < 1):
            yield f"redis_stream has maxlen={self.maxlen!r}, expected a whole number from 1, or None."

    def check_installed(self) -> None:
        check_package("redis", "redis")

    def route(self, event: ReceivedEvent, partition: int | None) -> Route:
        name = name_of(self.stream, event, NAME, "the name of a stream: a text that is not empty")
        stream = name if partition is None else f"{name}:{partition}"
        return Route(stream, stream)

    def bridge(self) -> "RedisBridge":
        return RedisBridge(self)


def redis_stream(
    stream: str | Callable[[ReceivedEvent], str], *, broker: str = "redis", maxlen: int | None = None
) -> RedisStream:
    """A relay's target: streams of the Redis that `DJANGO_EVENTS["BROKERS"]` has under this name.

    Each partition fills a stream of its own, like `shop.orders:3`. A relay with `partitioned=False` fills
    `shop.orders` alone. `maxlen` is how many entries a stream keeps, about.
    """
    return RedisStream(stream=stream, broker=broker, maxlen=maxlen)


class RedisBridge:
    """One connection to a Redis."""

    largest = None
    sends_only = True

    def __init__(self, target: RedisStream) -> None:
        self._target = target
        self._options: Mapping[str, Any] = {}
        self._pooled: Any = None  # the client that the other one's connection is of
        self._client: Any = None  # one with a connection of its own
        self._was_connected = False

    def open(self) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        try:
            self._options = options_of(self._target.broker)
        except NotReady as error:
            raise TargetUnavailable(str(error)) from None
        # Redis' own retries would send a batch again without asking what is there.
        defaults = {"socket_timeout": SECONDS, "socket_connect_timeout": SECONDS, "retry": Retry(NoBackoff(), 0)}
        kept = {"decode_responses": False, "redis_connect_func": self._connected}
        options = {**defaults, **self._options, **kept}
        url = options.pop("url", None)
        try:
            self._pooled = redis.Redis(**options) if url is None else redis.Redis.from_url(url, **options)
        except Exception as error:
            raise TargetUnavailable(f"Redis {self._target.broker!r}: {unmade(error, self._options)}.") from None
        try:
            self._client = self._pooled.client()
            self._transaction([])  # without the right to one, commands would be done one by one
        except Exception as error:
            raise self._unavailable(error) from None

    def _connected(self, connection: Any) -> None:
        """Let the client make one connection.

        It would replace one that ended without a word, by one to a server that may have lost entries in a failover.
        Only `newest` finds that out, and it is asked of a new bridge. A function of the settings may log in.
        """
        import redis

        if self._was_connected:
            raise redis.ConnectionError("the connection had ended")
        self._was_connected = True
        log_in = self._options.get("redis_connect_func")
        if log_in is None:
            connection.on_connect()
        else:
            log_in(connection)

    def newest(self, log: str) -> Newest | None:
        from redis.exceptions import ResponseError

        try:
            last_id = self._client.xinfo_stream(log)["last-generated-id"].decode()
            entries = self._client.xrevrange(log, count=1)
        except ResponseError as error:
            if NO_STREAM in str(error).lower():
                return Newest(0)
            if WRONG_TYPE in str(error) and callable(self._target.stream):
                raise Unroutable(f"Redis {self._target.broker!r} has {log!r}, and it is no stream.") from None
            raise self._unavailable(error) from None
        except Exception as error:
            raise self._unavailable(error) from None
        event_id, _, again = last_id.partition("-")
        if last_id == "0-0":
            return Newest(0)
        if not entries or entries[0][0].decode() != last_id:  # trimmed or deleted: Redis remembers the id alone
            return Newest(int(event_id))
        fields = _texts(entries[0][1])
        address, relay = fields.get("ce_id", ""), fields.get("ce_relay", "")
        if address and again != "0":  # a dead letter behind the event that has this id
            address, fields = f"{address.rpartition('/')[0]}/{event_id}", self._entry(log, f"{event_id}-0")
        try:
            published_at = datetime.fromisoformat(fields["ce_time"]) if "ce_time" in fields else None
        except ValueError:
            address = ""
        if not address:
            raise TargetUnavailable(
                f"The newest entry of the stream {log!r}, {last_id}, is not of a relay. Each relay needs streams of "
                "its own, and no other program may add to them."
            )
        return Newest(int(event_id), address, published_at, relay)

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        from redis.exceptions import ResponseError

        try:
            answers = self._transaction(
                [self._addition(one, at) for one, at in zip(messages, self._ids(messages), strict=True)]
            )
        except Exception as error:
            raise self._unavailable(error) from None
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if any(isinstance(error, ResponseError) and NOT_ABOVE in str(error) for error in errors):
            raise Overtaken
        if errors:
            raise self._unavailable(errors[0])
        return [None] * len(messages)

    def _addition(self, message: RelayMessage, entry_id: str) -> bytes:
        """The command that adds an entry, as it is sent."""
        maxlen = [] if self._target.maxlen is None else ["MAXLEN", "~", str(self._target.maxlen)]
        parts = [*map(_argument, ("XADD", message.route.to, *maxlen, entry_id))]
        for name, text in message.attributes.items():
            parts += _attribute(name), _argument(text)
        for name, text in message.headers.items():
            parts += _header(name), _argument(text)
        if message.key is not None:
            parts += _header("key"), _argument(message.key)
        parts.append(_header("data"))
        return _command(parts, b"null" if message.body is None else message.body)

    def _transaction(self, commands: Sequence[bytes]) -> list[Any]:
        """Send commands as one transaction; returns the answer to each, which may be an error.

        The client's own pipeline takes twice as long to write them, and to read that each is queued.
        """
        from redis.exceptions import ResponseError

        connection, queued = self._client.connection, list[ResponseError]()
        connection.send_packed_command(list(in_pieces([command("MULTI"), *commands, command("EXEC")])))
        for _ in range(len(commands) + 1):
            try:
                connection.read_response()
            except ResponseError as error:
                queued.append(error)
        try:
            answers = connection.read_response()
        except ResponseError as error:  # that nothing is done, where one was refused; it may be EXEC itself
            raise queued[0] if queued else error from None
        if queued:
            raise queued[0]
        if not isinstance(answers, list) or len(answers) != len(commands):
            raise ResponseError("the transaction was not answered as one")
        return answers

    def close(self) -> None:
        if self._pooled is not None:
            with suppress(Exception):
                self._pooled.connection_pool.disconnect()

    def _ids(self, messages: Sequence[RelayMessage]) -> Iterator[str]:
        """The ids of their entries. Dead letters come behind what is there, which is asked each time."""
        last: dict[str, tuple[int, int]] = {}
        for message in messages:
            if not message.redriven:
                yield f"{message.event_id}-0"
                continue
            stream = message.route.to
            event_id, again = last[stream] if stream in last else self._last_id(stream)
            last[stream] = event_id, again + 1
            yield f"{event_id}-{again + 1}"

    def _last_id(self, stream: str) -> tuple[int, int]:
        """Both parts of the last id of a stream. Without a stream, a dead letter is in front of all events: `0-1`."""
        from redis.exceptions import ResponseError

        try:
            last = self._client.xinfo_stream(stream)["last-generated-id"].decode()
        except ResponseError as error:
            if NO_STREAM in str(error).lower():
                return 0, 0
            raise
        event_id, _, again = last.partition("-")
        return int(event_id), int(again)

    def _entry(self, stream: str, entry_id: str) -> dict[str, str]:
        """What the entry with this id has; nothing if it is trimmed."""
        try:
            entries = self._client.xrange(stream, entry_id, entry_id)
        except Exception as error:
            raise self._unavailable(error) from None
        return _texts(entries[0][1]) if entries else {}

    def _unavailable(self, error: BaseException) -> TargetUnavailable:
        if isinstance(error, TargetUnavailable):
            return error
        words = QUOTED.sub("", f"{type(error).__name__}: {error}")
        return TargetUnavailable(f"Redis {self._target.broker!r}: {masked(words, self._options)}")


def in_pieces(commands: Iterable[bytes]) -> Iterator[bytes]:
    """What is sent, in pieces: the client's `socket_timeout` is for each of them."""
    piece: list[bytes] = []
    size = 0
    for one in commands:
        piece.append(one)
        size += len(one)
        if size >= PIECE:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def command(*texts: str) -> bytes:
    """A command as Redis reads it: how many arguments, and each behind its number of bytes."""
    *others, last = texts
    return _command(list(map(_argument, others)), last.encode())


def _command(parts: Sequence[str], last: bytes) -> bytes:
    return b"*%d\r\n%b$%d\r\n%b\r\n" % (len(parts) + 1, "".join(parts).encode(), len(last), last)


def _argument(text: str) -> str:
    return f"${len(text) if text.isascii() else len(text.encode())}\r\n{text}\r\n"


@cache
def _attribute(name: str) -> str:
    """The name of a field, of which there are few."""
    return _argument(f"ce_{name}")


@cache
def _header(name: str) -> str:
    return _argument(name.replace("-", "_"))


def _texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in fields.items()}
