"""Inboxes from streams of NATS JetStream.

    inbox(payments, source=jetstream_source("PAYMENTS"), name="payments-in")

Messages are asked for by their number in the stream, some at a time, and no consumer of JetStream is needed. Numbers
have no gaps but those of messages that were removed. A stream that was made anew has another time of its making. A
server that came back without its last messages gives their numbers to others: so the inbox also remembers when the last
message that it took in was stored, and looks at it again with each reading, as long as the stream has it.

It needs nats-py: pip install 'django-events-pg[nats]'
"""

import asyncio
import json
import re
import time
from base64 import b64decode
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.header import decode_header
from email.parser import BytesParser
from functools import partial
from typing import Any, TypeVar

from django_events.bridges.brokers import check_package, options_of, said, unmade
from django_events.bridges.inboxes.sources import Found, GoneMessages, InboxMessage, Places, SourceUnavailable
from django_events.exceptions import NotReady

SECONDS = 10.0  # for a connection and for an answer, where the settings don't say
LOOKS = 0.1  # seconds between two looks for something new
AT_ONCE = 32  # messages that are asked for and not answered
AT_ONCE_BYTES = 32 * 2**20  # of them; answers are a third longer, and a server ends a connection with 64 MB to be read
BATCH_BYTES = 32 * 2**20  # of a batch's answers: behind them none is asked for
NOT_FOUND = 404
NO_MESSAGE = 10037  # what isn't found is the message

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class JetStreamSource:
    """A stream of a NATS JetStream as the source of an inbox."""

    stream: str
    broker: str = "nats"

    def __str__(self) -> str:
        return f"{self.broker} {self.stream}"

    def problems(self) -> Iterator[str]:
        if not isinstance(self.stream, str) or not self.stream or set(self.stream) & set(" .*>/\\"):
            yield (
                f"jetstream_source has {self.stream!r}, expected the name of a stream, without spaces, dots, '*', '>' "
                "and slashes."
            )

    def check_installed(self) -> None:
        check_package("nats", "nats")

    def reader(self) -> "JetStreamReader":
        return JetStreamReader(self)


def jetstream_source(stream: str, *, broker: str = "nats") -> JetStreamSource:
    """An inbox's source: a stream of the NATS that `DJANGO_EVENTS["BROKERS"]` has under this name."""
    return JetStreamSource(stream=stream, broker=broker)


class _Questions:
    """What is asked for one batch, and what has come of it."""

    def __init__(self, numbers: Sequence[int], asks_until: float) -> None:
        self.numbers = iter(numbers)  # of those that are not asked for
        self.asks_until = asks_until  # by the loop's clock
        self.awaited: dict[str, int] = {}  # the numbers of the others, by the subject of the answer
        self.answers: dict[int, Any] = {}  # that are to be read, by number
        self.answered: asyncio.Future[None] | None = None  # which waits for the next one
        self.size = 0  # bytes of all that were answered


class JetStreamReader:
    """One connection to a NATS, which reads. Its event loop runs while something is asked."""

    def __init__(self, source: JetStreamSource) -> None:
        self._source = source
        self._options: Mapping[str, Any] = {}
        self._seconds = SECONDS
        self._connection: Any = None
        self._context: Any = None
        self._loop = asyncio.new_event_loop()
        self._ahead: dict[int, InboxMessage | None] = {}  # what the last reading got behind a gap, by number
        self._told: Exception | None = None  # what the server said beside its answers
        self._inbox, self._asked = "", 0  # where answers go, and how many were asked for
        self._batch = _Questions([], 0.0)

    def open(self) -> None:
        try:
            options = self._options = options_of(self._source.broker)
        except NotReady as error:
            raise SourceUnavailable(str(error)) from None
        self._seconds = options.pop("timeout", SECONDS)
        self._wait(self._connect(options))

    def begin(self, start: str) -> Places:
        self._ahead = {}
        created, first, last = self._wait(self._about())
        if start == "beginning":
            return self._places(first - 1, created)
        if start == "end":
            return self._begun(last, created)
        if not (start.isascii() and start.isdigit()):
            raise SourceUnavailable(
                f"{start!r} is no number of a message in a stream, expected 'beginning', 'end', or one like 1042."
            )
        if int(start) > last:
            raise SourceUnavailable(
                f"The inbox is to begin behind message {start}, and the stream {self._source.stream!r} ends at {last}. "
                "To begin behind what it has now: manage.py events inbox restart NAME --from end"
            )
        return self._begun(int(start), created)

    def _begun(self, number: int, created: str) -> Places:
        message = self._wait(self._message(number, created)) if number else None
        return self._places(number, created) if message is None else {self._source.stream: message.place_behind}

    def read(self, places: Places, most: int) -> Found:
        place = places[self._source.stream]
        passed = place["number"]
        created, first, last = self._wait(self._about())
        if created != place["created"] or last < passed:
            raise SourceUnavailable(
                f"The stream {self._source.stream!r} was made at {created} and ends at {last}, and the inbox has taken "
                f"in up to {passed} of one that was made at {place['created']}: it was deleted and made anew, or its "
                f"server has lost messages. {_ANEW}"
            )
        begin = max(passed + 1, first)
        numbers = range(begin, min(last, begin + most - 1) + 1)
        found = self._read_ahead(numbers, created)
        self._check(place, until=numbers[-1] if numbers else passed)
        missing, last_of = begin - passed - 1, begin + len(found) - 1
        while found and found[0] is None:  # messages that were deleted one by one
            missing, found = missing + 1, found[1:]
        messages = _until_missing(found)
        self._ahead = {last_of - n: one for n, one in enumerate(reversed(found[len(messages) :]))}
        gone = []
        if missing:
            following = messages[0].id if messages else f"behind {passed + missing}"
            skipped = self._place(passed + missing, created)
            gone = [GoneMessages(self._source.stream, missing, str(passed), following, skipped)]
        return Found(messages, gone, last - passed - missing)

    def _check(self, place: dict[str, Any], *, until: int) -> None:
        """After a reading: what was read is behind that place, in the same stream; SourceUnavailable if not.

        A server that doesn't know the last number that was asked for, `until`, knows nothing of what is missing: it may
        have become the leader meanwhile.

        When the stream has not the message of the place any more, its time can't be compared.
        """
        message = self._wait(self._message(place["number"], place["created"])) if place["number"] else None
        stored = None if message is None else message.place_behind["stored"]
        if place["stored"] is not None and stored is not None and stored != place["stored"]:
            raise SourceUnavailable(
                f"Message {place['number']} of the stream {self._source.stream!r} was stored at {stored}, and the one "
                f"of that number that the inbox has taken in at {place['stored']}: the server has lost messages, and "
                f"given their numbers to others. {_ANEW}"
            )
        created, _, last = self._wait(self._about())
        if created != place["created"] or last < place["number"]:
            raise SourceUnavailable(f"The stream {self._source.stream!r} was made anew while it was read.")
        if last < until:
            raise SourceUnavailable(
                f"The stream {self._source.stream!r} ended at {until} when its reading began, and ends at {last} now."
            )

    def wait(self, places: Places, seconds: float) -> None:
        passed, deadline = places[self._source.stream]["number"], time.monotonic() + seconds
        while time.monotonic() < deadline:
            _, _, last = self._wait(self._about())
            if last > passed:
                return
            self._wait(asyncio.sleep(LOOKS))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        with suppress(Exception):
            if self._connection is not None:
                self._loop.run_until_complete(asyncio.wait_for(self._connection.close(), 1.0))
        with suppress(Exception):
            self._loop.run_until_complete(_end_tasks())
        self._loop.close()

    async def _connect(self, options: Mapping[str, Any]) -> None:
        from nats.aio.client import Client

        async def keep(error: Exception) -> None:
            """A right that is missing is said here alone: no answer comes."""
            self._told = error

        defaults = {"connect_timeout": self._seconds, "name": "django-events"}
        options = {**defaults, **options, "allow_reconnect": False, "error_cb": keep}
        try:
            self._connection = Client()  # kept first: one that is refused has a socket to be closed, too
            await self._connection.connect(**options)
        except OSError:  # a certificate that can't be verified is a ValueError, too
            raise
        except (TypeError, ValueError, AttributeError) as error:  # before it connects
            raise SourceUnavailable(f"NATS {self._source.broker!r}: {unmade(error, self._options)}.") from None
        self._context = self._connection.jetstream(timeout=self._seconds)
        self._inbox = self._connection.new_inbox()
        await self._connection.subscribe(f"{self._inbox}.*", cb=self._answered)

    async def _about(self) -> tuple[str, int, int]:
        """When the stream was made, the number of its first message, and that of the last one it ever had."""
        from nats.js.errors import NotFoundError

        try:
            info = await self._context.stream_info(self._source.stream)
        except NotFoundError:
            raise SourceUnavailable(f"NATS {self._source.broker!r} has no stream {self._source.stream!r}.") from None
        first = info.state.first_seq if info.state.messages else info.state.last_seq + 1
        return _written(info.created), first, info.state.last_seq

    def _read_ahead(self, numbers: Sequence[int], created: str) -> list[InboxMessage | None]:
        """As `_messages`, or what is there of them since the last reading: each gap is a reading of its own."""
        known: list[InboxMessage | None] = []
        while len(known) < len(numbers) and numbers[len(known)] in self._ahead:
            known.append(self._ahead[numbers[len(known)]])
        return known or self._messages(numbers, created)

    def _messages(self, numbers: Sequence[int], created: str) -> list[InboxMessage | None]:
        """The messages of these numbers, or the first of them if they are large or slow; None for each that is gone."""
        return self._wait(self._together(numbers, created))

    async def _message(self, number: int, created: str) -> InboxMessage | None:
        """A message by its number, or None."""
        [message] = await self._together([number], created)
        return message

    async def _together(self, numbers: Sequence[int], created: str) -> list[InboxMessage | None]:
        """As `_messages`.

        Some are asked for at once, and with each answer another one: the server finds it while answers are read here. A
        request of the client's own takes a task and a timer for each.
        """
        batch = self._batch = _Questions(numbers, self._loop.time() + self._seconds)
        for _ in range(max(1, min(AT_ONCE, AT_ONCE_BYTES // self._connection.max_payload))):
            await self._ask()
        found: dict[int, InboxMessage | None] = {}
        while batch.awaited or batch.answers:
            if not batch.answers:
                await self._next_answer(batch)
            answers, batch.answers = batch.answers, {}
            found |= {number: self._message_of(number, answer, created) for number, answer in answers.items()}
        return [found[number] for number in numbers[: len(found)]]

    async def _ask(self) -> None:
        """Ask for the message that is next in the batch, if there is one."""
        if (number := next(self._batch.numbers, None)) is None:
            return
        self._asked += 1
        reply = f"{self._inbox}.{self._asked}"
        self._batch.awaited[reply] = number
        asked = f"$JS.API.STREAM.MSG.GET.{self._source.stream}"
        await self._connection.publish(asked, b'{"seq":%d}' % number, reply=reply)

    async def _next_answer(self, batch: "_Questions") -> None:
        batch.answered = self._loop.create_future()
        try:
            await asyncio.wait_for(batch.answered, self._seconds)
        except TimeoutError:
            raise TimeoutError(f"no answer within {self._seconds:g} s") from None

    async def _answered(self, answer: Any) -> None:
        """What the server says to a question; nothing where it was too late for that."""
        batch = self._batch
        if (number := batch.awaited.pop(answer.subject, None)) is None:
            return
        batch.answers[number] = answer
        batch.size += len(answer.data)
        if batch.answered is not None and not batch.answered.done():
            batch.answered.set_result(None)
        if batch.size < BATCH_BYTES and self._loop.time() < batch.asks_until:
            await self._ask()

    def _message_of(self, number: int, answer: Any, created: str) -> InboxMessage | None:
        """What an answer tells. The client takes most of its time to read headers as those of a mail."""
        if answer.headers:
            _refuse_no_responders(answer.headers)
        told = json.loads(answer.data)
        if "error" in told:
            _refuse_all_but_missing(told["error"])
            return None
        found = told["message"]
        return InboxMessage(
            id=str(number),
            log=self._source.stream,
            place=partial(self._place, number, created, found["time"]),
            body=b64decode(found.get("data", "")),
            headers=headers_of(b64decode(found.get("hdrs", ""))),
            fields={},
            subject=found["subject"],
            sent_at=datetime.fromisoformat(found["time"]).astimezone(UTC),
        )

    def _place(self, number: int, created: str, stored: str | None = None) -> dict[str, Any]:
        return {"number": number, "created": created, "stored": None if stored is None else _written(stored)}

    def _places(self, number: int, created: str) -> Places:
        return {self._source.stream: self._place(number, created)}

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the loop until it is done; whatever fails is SourceUnavailable, without secrets."""
        self._told = None
        try:
            return self._loop.run_until_complete(asyncio.wait_for(coroutine, 3 * self._seconds))
        except SourceUnavailable:
            raise
        except Exception as error:
            told = "" if self._told is None else f" The server said: {said(self._told, self._options)}"
            raise SourceUnavailable(f"NATS {self._source.broker!r}: {said(error, self._options)}{told}") from None


_ANEW = (
    "To take in what it has now: manage.py events inbox restart NAME --from beginning, or --from the number of the "
    "last message that is not to be taken in."
)


def _refuse_no_responders(headers: Mapping[str, str]) -> None:
    from nats.errors import NoRespondersError

    if headers.get("Status") == "503":
        raise NoRespondersError


def _refuse_all_but_missing(error: dict[str, Any]) -> None:
    """Raise what an answer says that is an error, unless it is that there is no such message."""
    from nats.js.errors import APIError

    # A stream that is not there is not found, too. Servers before 2.3 say no code of their own.
    if error["code"] != NOT_FOUND or error.get("err_code", NO_MESSAGE) != NO_MESSAGE:
        APIError.from_error(error)


def _written(made: datetime | str) -> str:
    """When a stream was made, the same whichever release of the client says it."""
    moment = made if isinstance(made, datetime) else datetime.fromisoformat(made)
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


_ARE_PLAIN = re.compile(rb"(?:[!-9;-~]+:[ -~]*\r\n)*(?:\r\n)?").fullmatch  # visible names, and ASCII behind them


def headers_of(raw: bytes) -> dict[str, str]:
    """The headers of a message as texts, by names in small letters. The first line says the version of the protocol.

    Most are plain lines, and need nothing that reads mails.
    """
    _, _, lines = raw.partition(b"\r\n")
    if not _ARE_PLAIN(lines):
        return parsed_headers(lines)
    named = [line.split(":", 1) for line in lines.decode().split("\r\n") if line]
    return {name.lower(): value.lstrip(" ") for name, value in named}


def parsed_headers(lines: bytes) -> dict[str, str]:
    """The same of any lines, as the client reads them."""
    parsed = BytesParser().parsebytes(lines, headersonly=True)
    return {_text(name).lower(): _text(value) for name, value in parsed.items()}


def _text(header: Any) -> str:
    """A name or a value as UTF-8. The client has what isn't ASCII as text of stray bytes, or as a header of mails."""
    if isinstance(header, str) and header.isascii():
        return header
    parts = [(header, None)] if isinstance(header, str) else decode_header(header)
    raw = (one.encode("utf-8", "surrogateescape") if isinstance(one, str) else one for one, _ in parts)
    return b"".join(raw).decode("utf-8", "replace")


def _until_missing(found: Sequence[InboxMessage | None]) -> list[InboxMessage]:
    messages = []
    for one in found:
        if one is None:
            break
        messages.append(one)
    return messages


async def _end_tasks() -> None:
    """End what the client has left running, so that the loop closes without a word."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
