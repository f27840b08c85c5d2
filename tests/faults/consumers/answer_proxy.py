"""A wire to the server that knows where messages end, and cuts the server's answer to a COMMIT at any byte of it."""

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass

COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
ANSWER = b"C\x00\x00\x00\x0bCOMMIT\x00"  # CommandComplete
READY = b"Z\x00\x00\x00\x05I"  # ReadyForQuery: there is no transaction
BYTES = len(ANSWER + READY)


def _error() -> bytes:
    """What a pooler says when its connection to the server is gone."""
    fields = b"SFATAL\0VFATAL\0C08P01\0Mserver conn crashed?\0\0"
    return b"E" + struct.pack("!i", 4 + len(fields)) + fields


ERROR = _error()


@dataclass(frozen=True)
class Cut:
    """So many bytes of the answer arrive, then perhaps an error; and then the connection ends."""

    at: int
    error: bool = False

    def __str__(self) -> str:
        return f"{self.at} bytes" + " and an error" * self.error


CUTS = [
    *(Cut(at) for at in range(BYTES + 1)),
    *(Cut(at, error=True) for at in (0, len(ANSWER))),
]


class AnswerProxy:
    """Hands everything on, until it is told to cut the answer to a COMMIT: the next one behind what was said."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cut: tuple[Cut, bytes] | None = None
        self._taking = threading.Lock()
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.done = threading.Event()
        self.host, self.port = self._listener.getsockname()
        self._threads[0].start()

    def cut(self, cut: Cut, *, behind: bytes) -> None:
        """Cut the answer to the next COMMIT on a connection that has said this before, since its last COMMIT."""
        self.done.clear()
        self._cut = cut, behind

    def close(self) -> None:
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
                server = socket.create_connection(self._address)
                self._sockets += [client, server]
                wire = _Wire(self, client, server)
                for target in (wire.to_server, wire.to_client):
                    self._threads.append(threading.Thread(target=target, daemon=True))
                    self._threads[-1].start()

    def take(self, said: bytes) -> Cut | None:
        """The cut that is due, if this was said; it is made once."""
        with self._taking:
            if self._cut is None or self._cut[1] not in said:
                return None
            (cut, _), self._cut = self._cut, None
            return cut


class _Wire:
    def __init__(self, proxy: AnswerProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._cut: Cut | None = None

    def to_server(self) -> None:
        said = b""
        try:
            with suppress(OSError):
                while data := self._client.recv(65_536):
                    said += data
                    if said.endswith(COMMIT):
                        self._cut, said = self._proxy.take(said), b""
                    self._server.sendall(data)
        finally:
            self._end()

    def to_client(self) -> None:
        answer = b""
        try:
            with suppress(OSError):
                while data := self._server.recv(65_536):
                    if (cut := self._cut) is None:
                        self._client.sendall(data)
                        continue
                    answer += data
                    if (begin := answer.find(ANSWER + READY)) < 0:
                        continue
                    # What comes before it, as a notification, is no part of the answer.
                    self._client.sendall(answer[: begin + cut.at] + (ERROR if cut.error else b""))
                    self._proxy.done.set()
                    break
        finally:
            self._end()

    def _end(self) -> None:
        for one in (self._client, self._server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
