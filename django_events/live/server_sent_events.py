"""Server-sent events: a view that sends events to browsers as they come into the log.

    path("live/orders/", sse("orders", authorize=lambda request: {"keys": [f"{request.user.pk}.>"]}))

The `id:` of what is sent is the position in all topics, so a browser's `Last-Event-ID` resumes exactly. It waits
without a connection to the database: under ASGI in the event loop, under WSGI in the thread of its request.
"""

import asyncio
import json
import logging
import re
import signal
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from datetime import timedelta
from types import FrameType
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary, WeakSet, ref

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, InterfaceError, close_old_connections, connections, transaction
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseBase,
    HttpResponseNotAllowed,
    StreamingHttpResponse,
)

from django_events import sql, telemetry
from django_events.conf import settings
from django_events.contracts import cloudevents
from django_events.exceptions import EventExpired, EventsError, Invalid, LogReplaced, UnreadableEvent
from django_events.live import positions
from django_events.live.listening import LiveListener, Topics, listen
from django_events.live.texts import SharedTexts
from django_events.masking import without_masked
from django_events.received import ReceivedEvent

logger = logging.getLogger("django_events.live")

Authorize = Callable[[HttpRequest], Any]
Transform = Callable[[ReceivedEvent], Any]
SentForm = Literal["json", "cloudevent"]

FIFTEEN_SECONDS, TWO_SECONDS = timedelta(seconds=15), timedelta(seconds=2)
FILTERS = {"types", "keys", "where"}
MOST_TOGETHER = 65_536  # bytes of a part; a single event may be larger
LONGEST_TURN = 0.005  # seconds for which a stream makes a part, while all else in the event loop waits
COME_BACK_AFTER = "5"  # seconds, where a process has as many streams as it may have
REPLACED = (
    "The log is another one than before. What you have of it may be wrong; this stream goes on with what comes now."
)
LINE_END = re.compile("\r\n|\r|\n")


def sse(
    topics: Topics,
    *,
    authorize: Authorize,
    transform: Transform | None = None,
    form: SentForm = "json",
    heartbeat: timedelta = FIFTEEN_SECONDS,
    retry: timedelta = TWO_SECONDS,
    using: str | None = None,
) -> Callable[..., HttpResponseBase]:
    """A view that sends the events of topics to a browser's `EventSource`, for ASGI and for WSGI.

    `authorize` gets the request, and returns the filter of this user, a dict with `types`, `keys` and `where`, of which
    none is needed; None and PermissionDenied refuse it. `transform` gets an event and returns what is sent of it, None
    for nothing. It may be a coroutine function, as `authorize` may be. With form="cloudevent" each event is sent as a
    CloudEvent, one JSON object, and what `transform` returns is its data.
    """
    if form not in get_args(SentForm):
        raise Invalid(f"form is {form!r}, expected {' or '.join(map(repr, get_args(SentForm)))}.")
    names = set(listen(topics).names)  # refuses topics that make no sense

    @transaction.non_atomic_requests
    def view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        filters = _called(authorize, request)
        if filters is None or filters is False:
            raise PermissionDenied("These events are not for this user.")
        if not isinstance(filters, Mapping) or filters.keys() - FILTERS:
            raise Invalid(f"authorize() returned {filters!r}, expected a dict with types, keys and where, or None.")
        since = request.headers.get("Last-Event-ID") or request.GET.get("lastEventId") or None
        try:
            since = _in_topics(since, names)
        except Invalid as error:
            return HttpResponseBadRequest(f"Last-Event-ID: {error}", content_type="text/plain; charset=utf-8")
        listener = listen(topics, since=since, using=using, **filters)

        def anew() -> LiveListener:
            return listen(topics, using=using, **filters)

        is_async = isinstance(request, ASGIRequest)
        stream = EventStream(listener, anew, transform, form, heartbeat=heartbeat, retry=retry, is_async=is_async)
        if _streams.let_in(stream):
            return stream
        telemetry.STREAMS_REFUSED.tell(1, listener.using)
        refused = HttpResponse("This process has as many streams as it may have.", status=503)
        refused["Retry-After"] = COME_BACK_AFTER
        return refused

    return view


def _in_topics(since: str | None, names: set[str]) -> str | None:
    """A position that a browser came with, without topics that the view sent before a deploy."""
    if since is None or since == "beginning":
        return since
    known = {name: seen for name, seen in positions.read(since).items() if name in names}
    return positions.written(known) or None


def _close_connections() -> None:
    """Close those that `authorize` or a middleware opened in this thread, which is kept for as long as the stream."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _called(function: Callable[..., Any], given: Any) -> Any:
    return async_to_sync(function)(given) if iscoroutinefunction(function) else function(given)


class EventStream(StreamingHttpResponse):
    """The response of a view of `sse`: it goes on until the browser leaves, or the streams of the process are ended."""

    def __init__(
        self,
        listener: LiveListener,
        anew: Callable[[], LiveListener],
        transform: Transform | None,
        form: SentForm,
        *,
        heartbeat: timedelta,
        retry: timedelta,
        is_async: bool,
    ) -> None:
        self.using = listener.using
        self._listener = listener
        self._anew = anew
        self._transform = transform
        self._form = form
        self._heartbeat = heartbeat.total_seconds()
        self._begin = f"retry: {retry.total_seconds() * 1000:.0f}\n"
        self._over = False
        content = _asent_by(ref(self)) if is_async else _sent_by(ref(self))
        super().__init__(content, content_type="text/event-stream; charset=utf-8")
        self["Cache-Control"] = "no-cache"
        self["X-Accel-Buffering"] = "no"

    def end(self) -> None:
        """End it, from any thread; the browser comes back, and goes on where it was."""
        self._over = True
        self._listener.cancel()

    def close(self) -> None:
        self.end()
        _streams.discard(self)
        super().close()

    def _send(self) -> Iterator[bytes]:
        try:
            _streams.add(self)
            _close_connections()
            yield self._begin.encode()
            while not self._over:
                try:
                    with self._listener as listener:
                        yield self._heading(listener)
                        while not listener.closed:
                            close_old_connections()  # `transform` may have asked
                            yield self._step(listener)
                except LogReplaced as error:
                    yield self._replaced(error)
                    continue
                except (EventsError, DatabaseError, InterfaceError) as error:
                    _say_ended(error)
                return
        finally:
            self.end()
            _streams.discard(self)

    async def _asend(self) -> AsyncGenerator[bytes]:
        if _is_wanted and threading.current_thread() is threading.main_thread():
            _catch_signals()
        try:
            _streams.add(self)
            await sync_to_async(_close_connections)()
            yield self._begin.encode()
            while not self._over:
                try:
                    async with self._listener as listener:
                        yield self._heading(listener)
                        while not listener.closed:
                            part = await self._apart(listener)
                            yield part
                            await _let_others_run()
                except LogReplaced as error:
                    yield self._replaced(error)
                    continue
                except (EventsError, DatabaseError, InterfaceError) as error:
                    _say_ended(error)
                return
        finally:
            self.end()
            _streams.discard(self)

    def _step(self, listener: LiveListener) -> bytes:
        try:
            event = listener.take(self._heartbeat)
        except EventExpired as error:
            return _told("expired", error, listener)
        if event is None:
            return _heartbeat(listener)
        try:
            return self._text(event, listener)
        except Exception as error:
            return _left_out(event, error, listener)

    async def _apart(self, listener: LiveListener) -> bytes:
        """What is told next, and the events that wait behind it, as far as they fit a part and a turn.

        Where `transform` is a coroutine function it is one event: what is ready does not wait for what the next one
        waits for.
        """
        try:
            event = await listener.atake(self._heartbeat)
        except EventExpired as error:
            return _told("expired", error, listener)
        until = time.monotonic() + LONGEST_TURN
        part = bytearray(await self._atext(event, listener))
        if iscoroutinefunction(self._transform):
            return bytes(part)
        while listener.has_event and len(part) < MOST_TOGETHER and time.monotonic() < until:
            part += await self._atext(await listener.atake(self._heartbeat), listener)
        return bytes(part)

    async def _atext(self, event: ReceivedEvent | None, listener: LiveListener) -> bytes:
        if event is None:
            return _heartbeat(listener)
        try:
            if self._transform is not None and iscoroutinefunction(self._transform):
                return _written(event, self._formed(event, await self._transform(event)), listener)
            return self._text(event, listener)
        except Exception as error:
            return _left_out(event, error, listener)

    def _text(self, event: ReceivedEvent, listener: LiveListener) -> bytes:
        if self._transform is not None:
            return _written(event, self._formed(event, _called(self._transform, event)), listener)
        made = _as_it_is if self._form == "json" else _as_cloudevent
        return _id(listener).encode() + _texts.of(event, self._form, lambda: _block(event, made(event)))

    def _formed(self, event: ReceivedEvent, transformed: Any) -> Any:
        if transformed is None or self._form == "json":
            return transformed
        return json.dumps(cloudevents.around(event, {"data": without_masked(_plain(transformed))}))

    def _heading(self, listener: LiveListener) -> bytes:
        """The position at which it begins: a browser that is cut off before the first event resumes there."""
        return f"{_id(listener)}\n".encode()

    def _replaced(self, error: LogReplaced) -> bytes:
        """The log is another one: what comes from now on is all there is to tell."""
        self._listener = self._anew()
        if self._over:
            self._listener.cancel()
        logger.info(
            "A stream of events to a browser goes on at the end of the log. %s", error, extra={"database": self.using}
        )
        return f"event: replaced\ndata: {json.dumps({'message': REPLACED})}\n\n".encode()


def _sent_by(stream: "ref[EventStream]") -> Iterator[bytes]:
    """What a stream sends. It is not kept by that: a response that Django drops, because its browser left, is gone."""
    if (begun := stream()) is not None:
        yield from begun._send()


async def _asent_by(stream: "ref[EventStream]") -> AsyncIterator[bytes]:
    if (begun := stream()) is not None:
        async with aclosing(begun._asend()) as parts:
            async for part in parts:
                yield part


async def _let_others_run() -> None:
    """Wait for a turn: one stream makes a part in each round of the event loop, and all else runs in between.

    Nothing else waits where events wait and the socket takes them. Without it a few hundred streams that are behind
    would answer no other request for minutes, and go on to write to browsers that have left.
    """
    loop = asyncio.get_running_loop()
    if (turn := _turns.get(loop)) is None:
        turn = _turns[loop] = asyncio.Lock()
    async with turn:  # in the order in which they came
        await asyncio.sleep(0)


def _as_it_is(event: ReceivedEvent) -> dict[str, Any]:
    said = {"topic": event.topic, "id": event.id, "type": event.type, "key": event.key}
    try:
        value = event.value
        json.dumps(value)
    except (UnreadableEvent, ValueError, RecursionError) as error:
        return {**said, "value": None, "unreadable": str(error), "logged_at": event.logged_at}
    return {**said, "value": value, "logged_at": event.logged_at}


def _as_cloudevent(event: ReceivedEvent) -> str:
    """A text, because fields are masked in the data only: an attribute may be called like a masked field."""
    try:
        return json.dumps(cloudevents.structured(event))
    except (UnreadableEvent, ValueError, RecursionError) as error:
        return json.dumps(cloudevents.around(event, {"data": None, "unreadable": str(error)}))


def _written(event: ReceivedEvent, data: Any, listener: LiveListener) -> bytes:
    """An event as it is sent; of one that nothing is to be told of, only that it is passed."""
    return _heartbeat(listener) if data is None else _id(listener).encode() + _block(event, data)


def _block(event: ReceivedEvent, data: Any) -> bytes:
    """The lines of an event behind the one of the position, which is each stream's own."""
    text = data if isinstance(data, str) else json.dumps(without_masked(_plain(data)))
    name = f"event: {event.type}\n" if event.type and not LINE_END.search(event.type) else ""
    lines = "".join(f"data: {line}\n" for line in LINE_END.split(text))
    return f"{name}{lines}\n".encode(errors="replace")


def _plain(data: Any) -> Any:
    return json.loads(json.dumps(data, cls=DjangoJSONEncoder))


def _heartbeat(listener: LiveListener) -> bytes:
    """A comment, and the position: events that are not for this user are passed, too."""
    return f":\n{_id(listener)}\n".encode()


def _told(name: str, error: EventExpired, listener: LiveListener) -> bytes:
    return f"{_id(listener)}event: {name}\ndata: {json.dumps({'message': str(error)})}\n\n".encode()


def _id(listener: LiveListener) -> str:
    """The line of the position. An empty one would wipe the browser's: one that was ended while it opened has none."""
    return f"id: {position}\n" if (position := listener.position) else ""


def _left_out(event: ReceivedEvent, error: Exception, listener: LiveListener) -> bytes:
    logger.error(
        "Event %s can't be sent to a browser: it is left out. %s: %s",
        event.address,
        type(error).__name__,
        error,
        extra={"topic": event.topic, "database": event.database},
    )
    return _heartbeat(listener)


def _say_ended(error: Exception) -> None:
    said = sql.said(error) if isinstance(error, DatabaseError | InterfaceError) else str(error)
    logger.warning("A stream of events to a browser has ended. %s", said, extra={"database": ""})


class _Streams:
    """The open streams of this process, and those whose responses Django has and hasn't begun to send."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[EventStream] = set()
        self._let_in: WeakSet[EventStream] = WeakSet()
        self._ending = False

    def has_room(self) -> bool:
        with self._lock:
            return self._has_room()

    def let_in(self, stream: EventStream) -> bool:
        """Keep a place for a stream, if there is one: all browsers may come at once, as after a deploy."""
        with self._lock:
            if has_room := self._has_room():
                self._let_in.add(stream)
        return has_room

    def _has_room(self) -> bool:
        return len(self._open) + len(self._let_in) < settings.LIVE_CONNECTIONS

    def add(self, stream: EventStream) -> None:
        with self._lock:
            self._let_in.discard(stream)
            self._open.add(stream)
            ending = self._ending
        telemetry.STREAMS.tell(1, stream.using)
        if ending:
            stream.end()

    def discard(self, stream: EventStream) -> None:
        with self._lock:
            was_open = stream in self._open
            self._open.discard(stream)
            self._let_in.discard(stream)
            if not self._open:
                _texts.clear()
        if was_open:
            telemetry.STREAMS.tell(-1, stream.using)

    def end(self, *, for_good: bool) -> int:
        with self._lock:
            self._ending = self._ending or for_good
            ended = list(self._open)
        for stream in ended:
            stream.end()
        return len(ended)


_texts = SharedTexts()
_streams = _Streams()
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_is_wanted = False
_ended_by_signal: dict[int, Any] = {}  # the handlers of signals that are ours


def end_streams(*, for_good: bool = False) -> int:
    """End the streams of this process to browsers, which come back and go on where they were; returns how many.

    With `for_good` each later one ends when it begins: the process is about to stop.
    """
    return _streams.end(for_good=for_good)


def end_streams_on_sigterm() -> None:
    """Call it in `asgi.py`: on SIGTERM all streams end, and the server need not wait for them, before it does as usual.

    So they do on SIGINT, which Ctrl-C sends. A signal that the process ignores, or that the server handles outside of
    Python, is left alone. Repeating it does nothing, nor does another thread than the main one, in which `runserver`
    loads the site: it doesn't wait for streams. Servers install handlers of their own afterwards, so it is done again
    by the first stream in the main thread's event loop.
    """
    global _is_wanted
    _is_wanted = True
    if threading.current_thread() is threading.main_thread():
        _catch_signals()


def _catch_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if before is signal.SIG_IGN or before is None:  # it stops nothing; None: a handler that only C can call
            continue
        if before is not _ended_by_signal.get(number, _ended_by_signal):
            _ended_by_signal[number] = _ending_streams(before)
            signal.signal(number, _ended_by_signal[number])


def _ending_streams(before: Any) -> Callable[[int, FrameType | None], None]:
    """A handler that ends the streams, and then does what the one before did."""

    def ended(number: int, frame: FrameType | None) -> None:
        # The main thread may hold any lock while a handler of a signal runs in it.
        threading.Thread(target=_streams.end, kwargs={"for_good": True}, daemon=True).start()
        if callable(before):
            before(number, frame)
        elif before is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return ended
