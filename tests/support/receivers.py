"""Receivers of webhooks: real servers on loopback, whose paths say how they behave.

with Receiver() as receiver:
    send(receiver.url("/ok"))
    receiver.requests
"""

import asyncio
import json
import re
import ssl
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Received:
    """A request that came in whole."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """A server in a thread. What a path does can be changed while it runs: `receiver.behave["/ok"] = "status/500"`.

    `status/500` answers so at once. `busy/30` is 429 with `Retry-After: 30`. `moved` redirects to a cloud's metadata.
    `hang` answers when `release()` is called, `drip` never ends its body, `drip-head` its head, `huge` neither, and
    `half` closes in the head. `nonsense` is no HTTP. `fail-first/2` answers 409 to the first two requests of each
    event, then 204.
    """

    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    behave: dict[str, str] = field(default_factory=dict)
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._released: asyncio.Event = asyncio.Event()
        self._seen = Counter[str]()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def url(self, path: str = "/ok", host: str = "") -> str:
        return f"{'https' if self.tls else 'http'}://{host or self.host}:{self.port}{path}"

    def release(self) -> None:
        """Answer all that hang, now and from now on."""
        self._loop.call_soon_threadsafe(self._released.set)

    def ids(self, path: str | None = None) -> list[str]:
        """The ids of the events that came, in order, each as often as it came."""
        return [one.id for one in tuple(self.requests) if path is None or one.path == path]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        tasks = set[asyncio.Task[None]]()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (task := asyncio.current_task()) is not None:
                tasks.add(task)
            self.connections += 1
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
                await self._talk(reader, writer, self.connections)
            writer.close()

        server = await asyncio.start_server(connected, self.host, 0, ssl=self.tls, backlog=1_000)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        while line := await reader.readline():
            path = line.decode().split(" ")[1]
            headers = dict[str, str]()
            while (header := (await reader.readline()).decode().strip()) != "":
                name, _, text = header.partition(":")
                headers[name.lower()] = text.strip()
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            one = Received(path, headers, body, connection)
            self.requests.append(one)
            if not await self._answer(writer, self.behave.get(path, path.strip("/")), one):
                return

    async def _answer(self, writer: asyncio.StreamWriter, behaviour: str, one: Received) -> bool:
        """Returns whether the connection stays open."""
        what, _, detail = behaviour.partition("/")
        head, extra, text = "204 No Content", "", ""
        if what == "hang":
            await self._released.wait()
        elif what == "status":
            head, text = f"{detail} As Asked", f"this is {detail}"
        elif what == "busy":
            head, extra = "429 Too Many Requests", f"Retry-After: {detail}\r\n"
        elif what == "moved":
            head, extra = "302 Found", "Location: http://169.254.169.254/latest/meta-data/\r\n"
        elif what == "fail-first":
            self._seen[one.id] += 1
            if self._seen[one.id] <= int(detail):
                head = "409 Not Yet"
        elif what == "half":
            writer.write(b"HTTP/1.1 200 O")
            await writer.drain()
            return False
        elif what == "nonsense":
            writer.write(b"nonsense\r\n\r\n")
            await writer.drain()
            return False
        elif what == "drip-head":
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                writer.write(b"X-Drip: 1\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)
        elif what in ("drip", "huge"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n")
            while True:
                writer.write(b"x" if what == "drip" else b"x" * 1_000_000)
                await writer.drain()
                await asyncio.sleep(0.05 if what == "drip" else 0)
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(text)}\r\n{extra}\r\n{text}".encode())
        await writer.drain()
        return True


def events_of(receiver: Receiver, pattern: str = ".*") -> list[int]:
    """The ids within their topic of the events that came to paths like this, in order, each as often as it came."""
    chosen = [one for one in tuple(receiver.requests) if re.fullmatch(pattern, one.path)]
    return [int(one.id.rpartition("/")[2]) for one in chosen]
