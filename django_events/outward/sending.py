"""Sending requests: one event loop in a thread of its own, so that a slow receiver holds up nothing but itself.

    with closing(Sender(RequestLimits(seconds=15, allowed=()))) as sender:
        sender.send(Request(url, headers, body), answers.put)

A request always ends with an answer, within its time limit. It needs aiohttp: pip install 'django-events-pg[webhooks]'
"""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from django_events.outward.addresses import ForbiddenAddress, refuse_addresses, without_secrets
from django_events.outward.exchange import Request, RequestLimits, WebhookAnswer, rest_asked_for

LONGEST_EXCERPT = 1_000  # bytes of an answer that are read
LOOK_UPS = 500  # names that are looked up at the same time, each in a thread, which is made when it is needed
NAMES_KEPT = 10  # seconds
IDLE_KEPT = 4.0  # seconds, for the next request to the same receiver: some servers close after five
ENDING = 5.0  # seconds that the loop has to end
HEADERS = {"User-Agent": "django-events", "Accept": "*/*", "Accept-Encoding": "identity"}


Answered = Callable[[WebhookAnswer | None], None]


class _CheckedResolver(AbstractResolver):
    """Looks names up, and refuses all addresses of a name if no request may go to one of them.

    A look-up that hangs keeps its thread when the request has given up. So the next request for the same name waits for
    it too, instead of taking another thread: names that hang keep one each, however often they are tried.
    """

    def __init__(self, limits: RequestLimits, *, encrypted: bool) -> None:
        self._resolver = aiohttp.ThreadedResolver()
        self._looking: dict[tuple[str, int, int], asyncio.Task[list[ResolveResult]]] = {}
        self._limits = limits
        self._encrypted = encrypted

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        asked = (host, port, int(family))
        if (looking := self._looking.get(asked)) is None:
            looking = self._looking[asked] = asyncio.create_task(self._resolver.resolve(host, port, family))
            looking.add_done_callback(lambda done: self._looked(asked, done))
        found = await asyncio.shield(looking)
        addresses = [one["host"] for one in found]
        refuse_addresses(host, addresses, self._limits.allowed, encrypted=self._encrypted)
        return found

    def _looked(self, asked: tuple[str, int, int], done: "asyncio.Task[list[ResolveResult]]") -> None:
        del self._looking[asked]
        if not done.cancelled():
            done.exception()  # which those who wait raise; there may be none

    async def close(self) -> None:
        for looking in list(self._looking.values()):
            looking.cancel()
        await self._resolver.close()


class Client:
    """The connections of an event loop, to be used in it: `async with Client(limits) as client`."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._entered = AsyncExitStack()
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> "Client":
        for encrypted in (True, False):
            session = aiohttp.ClientSession(
                connector=self._connector(encrypted=encrypted),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
                timeout=aiohttp.ClientTimeout(total=None),  # see `answer_to`
                auto_decompress=False,  # a few bytes could become a gigabyte
                trust_env=False,  # a proxy would look names up again
            )
            self._sessions[encrypted] = await self._entered.enter_async_context(session)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._entered.aclose()

    def _connector(self, *, encrypted: bool) -> aiohttp.TCPConnector:
        allowed = self._limits.allowed

        def checked(info: tuple[Any, ...]) -> socket.socket:
            """The socket of a connection. Here is the address itself, also where a URL has one instead of a name."""
            family, kind, protocol, _, (address, *_) = info
            refuse_addresses("The receiver", [address], allowed, encrypted=encrypted)
            return socket.socket(family, kind, protocol)

        return aiohttp.TCPConnector(
            limit=0,  # the engine counts
            resolver=_CheckedResolver(self._limits, encrypted=encrypted),
            ttl_dns_cache=NAMES_KEPT,
            keepalive_timeout=IDLE_KEPT,
            ssl=ssl.create_default_context(),
            socket_factory=checked,
        )

    async def answer_to(self, request: Request) -> WebhookAnswer:
        """Send a request, and return what came back, or the error, within the time limit; raises nothing but
        CancelledError.

        The status says what it means for the event. Of the body only the begin is read, and if it doesn't come in
        time, or breaks off, the status counts as it is.
        """
        began, status, retry_after, excerpt, error = time.monotonic(), None, None, b"", ""
        try:
            async with asyncio.timeout(self._limits.seconds):
                session = self._sessions[request.url.lower().startswith("https:")]
                async with session.post(
                    request.url, data=request.body, headers=request.headers, allow_redirects=False
                ) as response:
                    status, retry_after = response.status, response.headers.get("Retry-After")
                    while len(excerpt) < LONGEST_EXCERPT:
                        if not (some := await response.content.read(LONGEST_EXCERPT - len(excerpt))):
                            break
                        excerpt += some
                    if not response.content.at_eof():
                        response.close()  # the rest is not read
        except TimeoutError:
            error = f"No answer within {self._limits.seconds:g} seconds."
        except Exception as failed:  # whatever a receiver provokes is its answer
            error = _said(failed, request.url)
        return WebhookAnswer(
            status=status,
            seconds=time.monotonic() - began,
            excerpt=excerpt.decode("utf-8", "replace").replace("\0", "\ufffd"),
            error="" if status is not None else error,
            retry_after=None if status is None else rest_asked_for(status, retry_after),
        )


def _said(error: BaseException, url: str) -> str:
    """What an error says, without the secrets of the URL, which aiohttp repeats.

    What this package refused is said by itself, and not by what aiohttp made of it.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ForbiddenAddress):
        cause = cause.__cause__ or getattr(cause, "os_error", None)
    said = cause or error
    text = f"{said.status} {said.message}" if isinstance(said, aiohttp.ClientResponseError) else str(said)
    text = text.replace(url, without_secrets(url)).replace("\0", "\ufffd")[:LONGEST_EXCERPT]
    name = type(said).__name__
    return f"{name}: {text}" if text else name


class Sender:
    """Sends requests from a thread of its own. Any thread may give it requests."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(LOOK_UPS, thread_name_prefix="django_events look-ups"))
        self._tasks = set[asyncio.Task[None]]()
        self._ready = threading.Event()
        self._ending = asyncio.Event()
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._run, name="django_events webhooks", daemon=True)
        self._thread.start()
        self._ready.wait()

    def send(self, request: Request, answered: Answered, *, until: float | None = None) -> None:
        """Send it soon; `answered` is called once, in the sender's thread, unless the sender is closed before.

        It gets None if the request was not begun until a moment of the monotonic clock: the process was frozen.
        """
        if not self._thread.is_alive():
            raise RuntimeError("The thread that sends webhooks has ended.")
        self._loop.call_soon_threadsafe(self._begin, request, answered, until)

    def close(self) -> None:
        """Cancel what is under way, and end the thread. Repeating it does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(ENDING)

    def _begin(self, request: Request, answered: Answered, until: float | None) -> None:
        task = self._loop.create_task(self._answer(request, answered, until))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Request, answered: Answered, until: float | None) -> None:
        assert self._client is not None  # noqa: S101
        late = until is not None and time.monotonic() > until
        answered(None if late else await self._client.answer_to(request))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        async with Client(self._limits) as self._client:
            self._ready.set()
            await self._ending.wait()
            left = list(self._tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def send_once(request: Request, limits: RequestLimits) -> WebhookAnswer:
    """Send a single request from a thread without an event loop, like that of a command or a page."""

    async def answer() -> WebhookAnswer:
        async with Client(limits) as client:
            return await client.answer_to(request)

    return asyncio.run(answer())
