"""Wires between clients and a server that fail at a chosen moment: silent, or cut off before, in or after a COMMIT."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from django.db import connection, connections

COMMIT = b"COMMIT\0"  # in the query of a client, and in the answer of the server


class Ended(Exception):
    """A proxy cuts a wire: its client and its server are told that the other one is gone."""


@dataclass
class Wire:
    """One connection of a client, and the proxy's own to the server for it."""

    client: socket.socket
    server: socket.socket

    def end(self) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Hands everything on, while it flows. A subclass says what else happens to what comes by."""

    wire: type[Wire] = Wire

    def __init__(self, url: str) -> None:
        server = urlsplit(url)
        self._address = (server.hostname, server.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.flowing = threading.Event()
        self.flowing.set()
        self.host, self.port = self._listener.getsockname()
        login, at, _ = server.netloc.rpartition("@")
        self.url = urlunsplit(server._replace(netloc=f"{login}{at}{self.host}:{self.port}"))
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def from_client(self, wire: Wire, data: bytes) -> None:
        wire.server.sendall(data)

    def from_server(self, wire: Wire, data: bytes) -> None:
        wire.client.sendall(data)

    def close(self) -> None:
        self.flowing.set()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                self._start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        self.flowing.wait()
        try:
            server = socket.create_connection(self._address)
        except OSError:  # the server is down
            client.close()
            return
        self._sockets.append(server)
        wire = self.wire(client, server)
        self._start(self._hand_on, wire, server, self.from_server)
        self._hand_on(wire, client, self.from_client)

    def _hand_on(self, wire: Wire, source: socket.socket, hand_on: Callable[[Wire, bytes], None]) -> None:
        with suppress(OSError, Ended):
            while data := source.recv(65_536):
                self.flowing.wait()
                hand_on(wire, data)
        self.flowing.wait()  # a side that is gone is told of as soon as anything gets through
        wire.end()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()


AnyProxy = TypeVar("AnyProxy", bound=Proxy)


@contextmanager
def wired(kind: type[AnyProxy], alias: str = "wired") -> Iterator[AnyProxy]:
    """An alias of the test's database, whose connections go through a proxy of this kind."""
    parameters = connection.get_connection_params()
    with closing(
        kind(f"postgresql://{parameters.get('host') or 'localhost'}:{parameters.get('port') or 5432}")
    ) as proxy:
        connections.settings[alias] = {
            **connections.settings["default"],
            "ENGINE": "django.db.backends.postgresql",  # no private server of its own
            "NAME": parameters["dbname"],
            "USER": parameters.get("user", ""),
            "PASSWORD": parameters.get("password", ""),
            "HOST": proxy.host,
            "PORT": str(proxy.port),
        }
        yield proxy
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


# --- a host that loses its power or its network


class SilentProxy(Proxy):
    """Is silent both ways from a client's words on, until it comes back; nothing is closed.

    All connections through it are silent together, as those of a host are. What was under way then arrives late.
    """

    def __init__(self, url: str) -> None:
        self._words: tuple[bytes, bool] | None = None
        self.vanished = threading.Event()
        super().__init__(url)

    def vanish_at(self, words: str, *, arrives: bool = False) -> None:
        """Be silent as soon as a client says these words; if they arrive, only the answer gets lost."""
        self._words = words.encode(), arrives

    def vanish(self) -> None:
        """Be silent now."""
        self.flowing.clear()
        self.vanished.set()

    def come_back(self) -> None:
        """The network is there again."""
        self.flowing.set()

    def close(self) -> None:
        self._words = None
        super().close()

    def from_client(self, wire: Wire, data: bytes) -> None:
        if self._words is not None and self._words[0] in data:
            (_, arrives), self._words = self._words, None
            self.flowing.clear()
            if arrives:
                wire.server.sendall(data)
                data = b""
            self.vanished.set()
            self.flowing.wait()
        wire.server.sendall(data)


# --- the connection ends at the worst moment: at a COMMIT, or at its answer


@dataclass
class CommittingWire(Wire):
    """One that knows whether its client has asked for the COMMIT whose answer is to be lost."""

    asked: bool = False


class CuttingProxy(Proxy):
    """Loses the answer to the next COMMIT, or the COMMIT, when it is told to."""

    wire = CommittingWire

    def __init__(self, url: str) -> None:
        self._armed = threading.Event()
        self._before: Callable[[Wire], None] | None = None
        self._over = threading.Event()
        self.lost = threading.Event()
        super().__init__(url)

    def lose_next_answer(self) -> None:
        """The COMMIT is done, and its answer is lost."""
        self.lost.clear()
        self._armed.set()

    def lose_next_commit(self) -> None:
        self.lost.clear()
        self._before = lambda wire: None

    def strand_next_commit(self) -> None:
        """The client is cut off, and the server doesn't notice: its side of the transaction stays open."""
        self.lost.clear()

        def strand(wire: Wire) -> None:
            wire.client.shutdown(socket.SHUT_RDWR)
            self._over.wait()

        self._before = strand

    def hold(self) -> None:
        self.flowing.clear()

    def go_on(self) -> None:
        self.flowing.set()

    def close(self) -> None:
        self._over.set()
        super().close()

    def from_client(self, wire: Wire, data: bytes) -> None:
        assert isinstance(wire, CommittingWire)
        if COMMIT in data and self._before is not None:
            before, self._before = self._before, None
            self.lost.set()
            before(wire)
            raise Ended
        if COMMIT in data and self._armed.is_set():
            self._armed.clear()
            wire.asked = True
        wire.server.sendall(data)

    def from_server(self, wire: Wire, data: bytes) -> None:
        assert isinstance(wire, CommittingWire)
        if wire.asked and COMMIT in data:
            self.lost.set()
            raise Ended
        wire.client.sendall(data)


# --- the connection ends at any byte of a COMMIT, or of its answer

ASKING = b"Q\x00\x00\x00\x0bCOMMIT\x00"
ANSWER = b"C\x00\x00\x00\x0bCOMMIT\x00" + b"Z\x00\x00\x00\x05I"  # CommandComplete, ReadyForQuery: no transaction
COMPLETE = len(ANSWER) - 6


def _pooler_error() -> bytes:
    """What a pooler says when its connection to the server is gone."""
    fields = b"SFATAL\0VFATAL\0C08P01\0Mserver conn crashed?\0\0"
    return b"E" + struct.pack("!i", 4 + len(fields)) + fields


@dataclass(frozen=True)
class Cut:
    """So many bytes arrive of a COMMIT or of the answer to it, then perhaps an error; and then the connection ends."""

    at: int
    error: bool = False
    asking: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all of it arrives, and the connection ends just after it."""
        return self.at == len(ASKING if self.asking else ANSWER)

    def __str__(self) -> str:
        of = "the COMMIT" if self.asking else "the answer"
        return f"{self.at} bytes of {of}" + " and an error" * self.error


CUTS_OF_COMMIT = [Cut(at, asking=True) for at in range(len(ASKING) + 1)]
CUTS_OF_ANSWER = [
    *(Cut(at) for at in range(len(ANSWER) + 1)),
    *(Cut(at, error=True) for at in (0, COMPLETE)),
]


@dataclass
class CountingWire(Wire):
    """One that knows what its client said since its last COMMIT, and what was answered since a COMMIT to be cut."""

    said: bytes = b""
    answered: bytes = b""
    cut: Cut | None = None


class ByteProxy(Proxy):
    """Cuts the next COMMIT, or its answer, at a byte of it."""

    wire = CountingWire

    def __init__(self, url: str) -> None:
        self._next: tuple[Cut, bytes] | None = None
        self._taking = threading.Lock()
        self.done = threading.Event()
        super().__init__(url)

    def cut(self, cut: Cut, *, behind: bytes = b"") -> None:
        """Cut at the next COMMIT on a connection that has said this before, since its last COMMIT."""
        self.done.clear()
        self._next = cut, behind

    def _take(self, said: bytes) -> Cut | None:
        """The cut that is due, if this was said; it is made once."""
        with self._taking:
            if self._next is None or self._next[1] not in said:
                return None
            (cut, _), self._next = self._next, None
            return cut

    def from_client(self, wire: Wire, data: bytes) -> None:
        assert isinstance(wire, CountingWire)
        wire.said += data
        if wire.said.endswith(ASKING):
            wire.cut, wire.said = self._take(wire.said), b""
            if wire.cut is not None and wire.cut.asking:
                wire.server.sendall(data[: len(data) - len(ASKING) + wire.cut.at])
                self.done.set()
                raise Ended
        wire.server.sendall(data)

    def from_server(self, wire: Wire, data: bytes) -> None:
        assert isinstance(wire, CountingWire)
        if wire.cut is None:
            wire.client.sendall(data)
            return
        wire.answered += data
        begin = wire.answered.find(ANSWER)
        if begin < 0:
            return
        # What comes before it, as a notification, is no part of the answer.
        wire.client.sendall(wire.answered[: begin + wire.cut.at] + (_pooler_error() if wire.cut.error else b""))
        self.done.set()
        raise Ended


# --- what it costs to talk over a wire


@dataclass
class TurnsWire(Wire):
    """One that knows which of its client's turns has no answer yet."""

    turn: bytearray | None = None


class TurnsProxy(Proxy):
    """Notes what each client asks for and then waits for: all that it says between two answers is one round trip."""

    wire = TurnsWire

    def __init__(self, url: str) -> None:
        self.turns: list[bytearray] = []
        super().__init__(url)

    def from_client(self, wire: Wire, data: bytes) -> None:
        assert isinstance(wire, TurnsWire)
        if (turn := wire.turn) is None:
            turn = wire.turn = bytearray()
            self.turns.append(turn)
        turn += data
        wire.server.sendall(data)

    def from_server(self, wire: Wire, data: bytes) -> None:
        assert isinstance(wire, TurnsWire)
        wire.turn = None
        wire.client.sendall(data)
