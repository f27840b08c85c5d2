"""A wire to the server that a test cuts at the worst moment: the COMMIT is done, and its answer is lost.

Or it never arrives, or nothing gets through for a while.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

COMMIT = b"COMMIT\0"  # in the query of a client, and in the answer of the server


class CuttingProxy:
    """Hands everything on, until it is told to lose the answer to the next COMMIT, or the COMMIT, or to hold."""

    def __init__(self, url: str) -> None:
        server = urlsplit(url)
        self._address = (server.hostname, server.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._armed = threading.Event()
        self._before: Callable[[socket.socket], None] | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._ended = threading.Event()
        self.lost = threading.Event()
        host, port = self._listener.getsockname()
        self.url = urlunsplit(server._replace(netloc=f"{server.username}:{server.password}@{host}:{port}"))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._sockets = [self._listener]
        self._threads[0].start()

    def lose_next_answer(self) -> None:
        self.lost.clear()
        self._armed.set()

    def lose_next_commit(self) -> None:
        self.lost.clear()
        self._before = lambda client: None

    def strand_next_commit(self) -> None:
        """The client is cut off, and the server doesn't notice: its side of the transaction stays open."""
        self.lost.clear()

        def strand(client: socket.socket) -> None:
            client.shutdown(socket.SHUT_RDWR)
            self._ended.wait()

        self._before = strand

    def hold(self) -> None:
        self._flowing.clear()

    def go_on(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        self._flowing.set()
        self._ended.set()
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
                cut = threading.Event()
                for target in (self._to_server, self._to_client):
                    self._threads.append(threading.Thread(target=target, args=[client, server, cut], daemon=True))
                    self._threads[-1].start()

    def _to_server(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with _ending(client, server):
            while data := client.recv(65_536):
                self._flowing.wait()
                if COMMIT in data and self._before is not None:
                    before, self._before = self._before, None
                    self.lost.set()
                    before(client)
                    return
                if COMMIT in data and self._armed.is_set():
                    self._armed.clear()
                    cut.set()
                server.sendall(data)

    def _to_client(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with _ending(client, server):
            while data := server.recv(65_536):
                self._flowing.wait()
                if cut.is_set() and COMMIT in data:
                    self.lost.set()
                    return
                client.sendall(data)


@contextmanager
def _ending(*both: socket.socket) -> Iterator[None]:
    """When one side is gone, so is the other."""
    try:
        with suppress(OSError):
            yield
    finally:
        for one in both:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
