"""Inboxes from streams of NATS JetStream.

    inbox(payments, source=jetstream_source("PAYMENTS"), name="payments-in")

Messages are asked for by their number in the stream, many at a time, and no consumer of JetStream is needed. Numbers
have no gaps but those of messages that were removed. A stream that was made anew has another time of its making.

It needs nats-py: pip install 'django-events-pg[nats]'
"""

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from django_events.bridges.brokers import check_package, options_of, said, unmade
from django_events.bridges.sources import Found, GoneMessages, InboxMessage, Places, SourceUnavailable
from django_events.exceptions import NotReady

SECONDS = 10.0  # for a connection and for an answer, where the settings don't say
LOOKS = 0.1  # seconds between two looks for something new

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


class JetStreamReader:
    """One connection to a NATS, which reads. Its event loop runs while something is asked."""

    def __init__(self, source: JetStreamSource) -> None:
        self._source = source
        self._options: Mapping[str, Any] = {}
        self._seconds = SECONDS
        self._connection: Any = None
        self._context: Any = None
        self._loop = asyncio.new_event_loop()

    def open(self) -> None:
        try:
            options = self._options = options_of(self._source.broker)
        except NotReady as error:
            raise SourceUnavailable(str(error)) from None
        self._seconds = options.pop("timeout", SECONDS)
        self._wait(self._connect(options))

    def begin(self, start: str) -> Places:
        created, first, last = self._wait(self._about())
        if start == "beginning":
            return self._places(first - 1, created)
        if start == "end":
            return self._places(last, created)
        if not (start.isascii() and start.isdigit()):
            raise SourceUnavailable(
                f"{start!r} is no number of a message in a stream, expected 'beginning', 'end', or one like 1042."
            )
        return self._places(int(start), created)

    def read(self, places: Places, most: int) -> Found:
        if (place := places.get(self._source.stream)) is None:
            raise SourceUnavailable(
                f"The inbox has taken in messages of {', '.join(places)}, and is declared for {self._source.stream!r} "
                f"now. {_ANEW}"
            )
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
        found = self._wait(self._messages(numbers, created)) if numbers else []
        missing = begin - passed - 1
        while found and found[0] is None:  # messages that were deleted one by one
            missing, found = missing + 1, found[1:]
        messages = _until_missing(found)
        gone = []
        if missing:
            following = messages[0].id if messages else f"behind {passed + missing}"
            skipped = self._place(passed + missing, created)
            gone = [GoneMessages(self._source.stream, missing, str(passed), following, skipped)]
        return Found(messages, gone, last - passed - missing)

    def wait(self, places: Places, seconds: float) -> None:
        passed, deadline = places[self._source.stream]["number"], time.monotonic() + seconds
        while time.monotonic() < deadline:
            _, _, last = self._wait(self._about())
            if last > passed:
                return
            self._wait(asyncio.sleep(LOOKS))

    def close(self) -> None:
        with suppress(Exception):
            if self._connection is not None:
                self._loop.run_until_complete(asyncio.wait_for(self._connection.close(), 1.0))
        with suppress(Exception):
            self._loop.run_until_complete(_end_tasks())
        self._loop.close()

    async def _connect(self, options: Mapping[str, Any]) -> None:
        import nats

        async def ignore(error: Exception) -> None:
            """What goes wrong is said by what is awaited."""

        defaults = {"connect_timeout": self._seconds, "name": "django-events"}
        options = {**defaults, **options, "allow_reconnect": False, "error_cb": ignore}
        try:
            self._connection = await nats.connect(**options)
        except (TypeError, ValueError, AttributeError) as error:  # before it connects
            raise SourceUnavailable(f"NATS {self._source.broker!r}: {unmade(error, self._options)}.") from None
        self._context = self._connection.jetstream(timeout=self._seconds)

    async def _about(self) -> tuple[str, int, int]:
        """When the stream was made, the number of its first message, and that of the last one it ever had."""
        from nats.js.errors import NotFoundError

        try:
            info = await self._context.stream_info(self._source.stream)
        except NotFoundError:
            raise SourceUnavailable(f"NATS {self._source.broker!r} has no stream {self._source.stream!r}.") from None
        first = info.state.first_seq if info.state.messages else info.state.last_seq + 1
        return _written(info.created), first, info.state.last_seq

    async def _messages(self, numbers: Sequence[int], created: str) -> list[InboxMessage | None]:
        """The messages of these numbers, pipelined; None for each that is not there."""
        return list(await asyncio.gather(*(self._message(number, created) for number in numbers)))

    async def _message(self, number: int, created: str) -> InboxMessage | None:
        from nats.js.errors import NotFoundError

        try:
            found = await self._context.get_msg(self._source.stream, seq=number)
        except NotFoundError:
            return None
        return InboxMessage(
            id=str(number),
            log=self._source.stream,
            place=self._place(number, created),
            body=found.data or b"",
            headers={name.lower(): text for name, text in (found.headers or {}).items()},
            subject=found.subject,
            sent_at=found.time,
        )

    def _place(self, number: int, created: str) -> dict[str, Any]:
        return {"number": number, "created": created}

    def _places(self, number: int, created: str) -> Places:
        return {self._source.stream: self._place(number, created)}

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the loop until it is done; whatever fails is SourceUnavailable, without secrets."""
        try:
            return self._loop.run_until_complete(asyncio.wait_for(coroutine, 3 * self._seconds))
        except SourceUnavailable:
            raise
        except Exception as error:
            raise SourceUnavailable(f"NATS {self._source.broker!r}: {said(error, self._options)}") from None


_ANEW = (
    "To take in what it has now: manage.py events inbox restart NAME --from beginning, or --from the number of the "
    "last message that is not to be taken in."
)


def _written(made: datetime | str) -> str:
    """When a stream was made, the same whichever release of the client says it."""
    moment = made if isinstance(made, datetime) else datetime.fromisoformat(made)
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


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
