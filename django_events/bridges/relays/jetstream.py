"""Relays to NATS JetStream: each event is in its stream exactly once.

    relay(orders, to=jetstream("shop.orders", stream="ORDERS"), name="orders-to-nats")   # ORDERS-0, ORDERS-1 …

Each message says which sequence number the stream's last message has, and the server refuses it if that is another one.
So of two workers one is refused. Within a batch each message also names the one before it, so all that follow one that
was refused are refused, too: by the number alone the third could fit a stream to which another worker has added two.
What the stream has is in the header `ce-id` of its last message. The streams belong to the relay: each partition has
one, or one relay with `partitioned=False` fills one, and no other program may publish to them.

It needs nats-py: pip install 'django-events-pg[nats]'
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import unquote

from django_events.bridges.brokers import check_package, name_of, options_of, said, unmade
from django_events.bridges.relays.answers import Unroutable
from django_events.bridges.relays.messages import MOST_BESIDE
from django_events.bridges.relays.targets import Newest, Overtaken, RelayMessage, Route, TargetUnavailable
from django_events.contracts.cloudevents import quoted
from django_events.exceptions import MessageRefused, NotReady
from django_events.received import ReceivedEvent

FORGETFUL = ("workqueue", "interest")  # retentions
NO_STREAM = 503
SECONDS = 10.0  # for a connection and for the answers to a batch, where the settings don't say
WRONG_LAST_MESSAGE, WRONG_LAST_SEQUENCE, TOO_LARGE = 10070, 10071, 10054  # the server's codes of errors
TIME = "ce-time"
NEWEST, NEWEST_TIME = "Relay-Newest", "Relay-Newest-Time"  # the newest event in front of a dead letter
# Subjects that begin with "$" are orders to the server, and of "_INBOX" are answers.
SUBJECT = re.compile(r"(?!\$|_INBOX(\.|$))[^\s.*>]+(\.[^\s.*>]+)*")

T = TypeVar("T")


class ServerSaid(Exception):
    """The server's own words for why it takes no message."""


@dataclass(frozen=True, kw_only=True)
class JetStream:
    """Streams of a NATS JetStream as a relay's target: one for each partition, or one."""

    subject: str | Callable[[ReceivedEvent], str]
    stream: str
    broker: str = "nats"

    def __str__(self) -> str:
        return f"{self.broker} {self.stream}"

    def problems(self) -> Iterator[str]:
        if not callable(self.subject) and not (isinstance(self.subject, str) and SUBJECT.fullmatch(self.subject)):
            yield f"jetstream has {self.subject!r}, expected a subject, like 'shop.orders', or a function of an event."
        if not isinstance(self.stream, str) or not self.stream or set(self.stream) & set(" .*>/\\"):
            yield f"jetstream has stream={self.stream!r}, expected a name without spaces, dots, '*', '>' and slashes."

    def check_installed(self) -> None:
        check_package("nats", "nats")

    def route(self, event: ReceivedEvent, partition: int | None) -> Route:
        if (found := self._routes.get(partition)) is None:
            found = self._route(event, partition)
            if isinstance(self.subject, str):
                self._routes[partition] = found
        return found

    @cached_property
    def _routes(self) -> dict[int | None, Route]:
        """Where the events of each partition go, if no function of an event says that."""
        return {}

    def _route(self, event: ReceivedEvent, partition: int | None) -> Route:
        subject = name_of(
            self.subject,
            event,
            SUBJECT,
            "a subject: tokens without spaces, '*' and '>', with dots between them, and no '$' in front",
        )
        if partition is None:
            return Route(subject, self.stream)
        return Route(f"{subject}.{partition}", f"{self.stream}-{partition}")

    def bridge(self) -> "JetStreamBridge":
        return JetStreamBridge(self)


def jetstream(subject: str | Callable[[ReceivedEvent], str], *, stream: str, broker: str = "nats") -> JetStream:
    """A relay's target: streams of the NATS that `DJANGO_EVENTS["BROKERS"]` has under this name.

    Each partition fills a stream of its own, like `ORDERS-3`, by the subject `shop.orders.3`. A relay with
    `partitioned=False` fills `ORDERS` by `shop.orders`. The streams must be there, and belong to the relay alone.
    """
    return JetStream(subject=subject, stream=stream, broker=broker)


class JetStreamBridge:
    """One connection to a NATS, with an event loop in a thread of its own, so that pings are answered."""

    prefix = "ce-"
    largest = None  # the server says it, and what counts is what `send` writes
    sends_only = True

    def __init__(self, target: JetStream) -> None:
        self._target = target
        self._options: Mapping[str, Any] = {}
        self._seconds = SECONDS
        self._connection: Any = None
        self._context: Any = None
        self._sequences: dict[str, int] = {}  # of the last message, by stream
        self._forgetful: set[str] = set()  # streams that forget a message when it was read
        self._trusts = True  # the last answer of a batch to speak for all of it
        self._newest: dict[str, tuple[int, str]] = {}  # the newest event and its time, by stream
        self._inbox, self._asked = "", 0
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}  # by the subject on which it is expected
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="django_events NATS", daemon=True)

    def open(self) -> None:
        try:
            options = self._options = options_of(self._target.broker)
        except NotReady as error:
            raise TargetUnavailable(str(error)) from None
        self._seconds = options.pop("timeout", SECONDS)
        self._thread.start()
        self._wait(self._connect(options))

    def newest(self, log: str) -> Newest | None:
        return self._wait(self._find_newest(log))

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        return self._wait(self._send(messages))

    def close(self) -> None:
        if not self._thread.is_alive():
            if not self._loop.is_closed() and not self._loop.is_running():
                self._loop.close()
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result(1.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._loop.close()

    async def _connect(self, options: Mapping[str, Any]) -> None:
        from nats.aio.client import Client
        from nats.errors import NoServersError

        refused: list[Exception] = []

        async def note(error: Exception) -> None:
            """Why no server could be connected to, which NoServersError leaves out."""
            refused[:] = [error]

        # A connection that is lost ends the bridge: what was under way is asked about by the next one. And the client
        # would try servers that refuse it for two minutes: the relay's own pauses are for that.
        defaults = {"connect_timeout": self._seconds, "name": "django-events"}
        alone = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0}
        try:
            self._connection = Client()  # kept first: one that is refused has a socket to be closed, too
            await self._connection.connect(**{**defaults, **options, **alone, "error_cb": note})
        except NoServersError as error:
            raise TargetUnavailable(self._said(refused[0] if refused else error)) from None
        except OSError:  # a certificate that can't be verified is a ValueError, too
            raise
        except (TypeError, ValueError, AttributeError) as error:  # before it connects
            raise TargetUnavailable(f"NATS {self._target.broker!r}: {unmade(error, self._options)}.") from None
        self._context = self._connection.jetstream(timeout=self._seconds)
        self._inbox = self._connection.new_inbox()
        await self._connection.subscribe(f"{self._inbox}.*", cb=self._answered)

    async def _find_newest(self, stream: str) -> Newest | None:
        from nats.js.errors import NotFoundError

        try:
            found = await self._context.stream_info(stream)
        except NotFoundError:
            raise TargetUnavailable(f"NATS {self._target.broker!r} has no stream {stream!r}: create it.") from None
        state = found.state
        self._sequences[stream] = state.last_seq
        if found.config.retention in FORGETFUL:
            self._forgetful.add(stream)
        self._newest[stream] = 0, ""
        if not state.messages:
            return None
        try:
            last = await self._context.get_msg(stream, seq=state.last_seq)
        except NotFoundError:  # it was deleted, or taken from a work queue
            return None
        headers = {name.lower(): unquote(text) for name, text in (last.headers or {}).items()}
        address, time = headers.get("ce-id", ""), headers.get(TIME, "")
        topic, _, number = address.rpartition("/")
        if (newest := headers.get(NEWEST.lower())) is not None:
            number, address, time = newest, f"{topic}/{newest}", headers.get(NEWEST_TIME.lower(), "")
        try:
            event_id, published_at = int(number), datetime.fromisoformat(time) if time else None
        except ValueError:
            raise TargetUnavailable(
                f"The last message of the stream {stream!r}, {state.last_seq}, is not of a relay. Each relay needs "
                "streams of its own, and no other program may publish to them."
            ) from None
        self._newest[stream] = event_id, time
        return Newest(event_id, address, published_at, headers.get("ce-relay", ""))

    async def _send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        stream = messages[0].route.log
        if stream not in self._sequences:
            await self._find_newest(stream)
        if self._trusts and stream not in self._forgetful and not any(one.redriven for one in messages):
            return await self._send_trusting(stream, messages)
        self._trusts = True
        sent = 0
        while sent < len(messages):
            if stream not in self._sequences:
                await self._find_newest(stream)
            answers = await self._send_chain(stream, messages[sent:])
            for answer in answers:
                if isinstance(answer, MessageRefused | Unroutable):
                    return [*[None] * sent, answer]
                if isinstance(answer, BaseException):
                    raise TargetUnavailable(self._said(answer), acknowledged=sent)
                sent += 1
                if answer.get("duplicate"):  # it is there, and what follows counts from another number
                    break
                message = messages[sent - 1]
                self._sequences[stream] = answer["seq"]
                if not message.redriven:
                    self._note_newest(stream, message)
            else:
                continue
            self._sequences.pop(stream, None)
        return [None] * len(messages)

    async def _send_trusting(self, stream: str, messages: Sequence[RelayMessage]) -> Sequence[None]:
        """Let the server answer to the last one only, which it takes if it has taken all in front of it.

        Answers take longer than all else. Where that one isn't taken, each of what is left gets one, and says what is
        wrong.
        """
        expected = self._sequences[stream] + len(messages)
        self._trusts = False
        answers = await self._send_chain(stream, messages, ask_each=False)
        answer = answers[-1]
        if isinstance(answer, TimeoutError):
            raise TargetUnavailable(self._said(answer))
        if not isinstance(answer, dict) or answer["seq"] != expected:
            raise Overtaken
        self._trusts = True
        self._sequences[stream] = expected
        self._note_newest(stream, messages[-1])
        return [None] * len(messages)

    def _note_newest(self, stream: str, message: RelayMessage) -> None:
        last = message.event_id, message.attributes.get(TIME, "")
        self._newest[stream] = max(self._newest.get(stream, (0, "")), last)

    async def _send_chain(self, stream: str, messages: Sequence[RelayMessage], *, ask_each: bool = True) -> list[Any]:
        """Publish each with the number of the one before it; the answers, up to the first that is an error."""
        sequence, too_large = self._sequences[stream], None
        futures: list[asyncio.Future[dict[str, Any]]] = []
        before: str | None = None
        most = self._connection.max_payload
        for message in messages:
            self._asked += 1
            reply = f"{self._inbox}.{self._asked}"
            headers = self._headers(message, stream, sequence, before, reply)
            body = b"null" if message.body is None else message.body
            if len(body) > most - MOST_BESIDE and (size := len(body) + _size_of(headers)) > most:
                too_large = MessageRefused(f"It has {size} bytes with its headers, and the server takes {most}.")
                break
            if not ask_each and message is not messages[-1]:
                reply = ""
            else:
                answer = self._answers[reply] = self._loop.create_future()
                futures.append(answer)
            await self._connection.publish(message.route.to, body, reply=reply, headers=headers)
            sequence, before = sequence + 1, headers["Nats-Msg-Id"]
        if futures:
            await asyncio.wait(futures, timeout=self._seconds)
            self._answers.clear()
        answers: list[Any] = []
        for future in futures:
            if not future.done():
                return [*answers, TimeoutError(f"no answer within {self._seconds:g} s")]
            answer = self._judged(future.result(), stream)
            answers.append(answer)
            if not isinstance(answer, dict) or answer.get("duplicate"):
                return answers
        return answers if too_large is None else [*answers, too_large]

    def _judged(self, answer: dict[str, Any], stream: str) -> Any:
        """An acknowledgement, or the error that the server answered."""
        error = answer.get("error")
        if error is None:
            if isinstance(answer.get("seq"), int):
                return answer
            return ServerSaid("what answers is no stream")
        words, code = error.get("description", ""), error.get("err_code")
        if code in (WRONG_LAST_SEQUENCE, WRONG_LAST_MESSAGE):
            self._sequences.pop(stream, None)
            raise Overtaken
        if code == TOO_LARGE:
            return MessageRefused(f"The stream {stream!r} refuses it: {words}.")
        if error.get("code") == NO_STREAM and callable(self._target.subject):
            return Unroutable(f"NATS {self._target.broker!r}: {words}.")
        return ServerSaid(f"{words} ({code or error.get('code')})")

    async def _answered(self, message: Any) -> None:
        """What the server says to a message. The client's own way to wait for many never ends where it is an error."""
        future = self._answers.get(message.subject)
        if future is None or future.done():
            return
        if (message.headers or {}).get("Status") == "503":
            future.set_result({"error": {"description": "no stream takes its subject", "code": NO_STREAM}})
            return
        try:
            answer = json.loads(message.data)
        except ValueError:
            answer = None
        future.set_result(answer if isinstance(answer, dict) else {})

    def _headers(
        self, message: RelayMessage, stream: str, sequence: int, before: str | None, reply: str
    ) -> dict[str, str]:
        attributes = {name: quoted(text) for name, text in message.attributes.items()}
        redriven = {}
        if message.redriven:
            newest, time = self._newest.get(stream, (0, ""))
            redriven = {NEWEST: str(newest), NEWEST_TIME: time} if time else {NEWEST: str(newest)}
        # Of the first of a batch only the number: a server that was restarted may not know the id of its last message.
        chained = {} if before is None else {"Nats-Expected-Last-Msg-Id": before}
        # A stream that keeps what it has is asked what that is. If it was purged, its server's memory of ids would keep
        # an event out that isn't there any more, so no id comes twice: it has a subject for its answer. Of one that
        # forgets what was read, the id is all that recognises an event. The time tells it from another log's under its
        # address.
        once = message.attributes.get(TIME, "") if stream in self._forgetful else reply
        return {
            **attributes,
            **message.headers,
            **redriven,
            **chained,
            "Nats-Msg-Id": f"{message.address}@{once}",
            "Nats-Expected-Stream": stream,
            "Nats-Expected-Last-Sequence": str(sequence),
        }

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run in the loop's thread; whatever fails is TargetUnavailable, without secrets."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(3 * self._seconds)
        except (TargetUnavailable, Overtaken):
            raise
        except Exception as error:
            future.cancel()
            raise TargetUnavailable(self._said(error)) from None

    def _said(self, error: BaseException) -> str:
        return f"NATS {self._target.broker!r}: {said(error, self._options)}"


def _size_of(headers: Mapping[str, str]) -> int:
    """How many bytes of a message its headers take."""
    return sum(map(len, headers)) + sum(map(len, headers.values())) + len(": \r\n") * len(headers) + 14
