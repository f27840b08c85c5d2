"""A wire whose one end loses its power or its network: nothing gets through any more, and nothing is closed."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit


class SilentProxy:
    """Hands everything on until it sees a client's words; then it is silent both ways, until it comes back.

    All connections through it are silent together, as those of a host are. What was under way then arrives late.
    """

    def __init__(self, url: str) -> None:
        server = urlsplit(url)
        self._address = (server.hostname, server.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._words: tuple[bytes, bool] | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self.vanished = threading.Event()
        host, port = self._listener.getsockname()
        password = f":{server.password}" if server.password else ""
        self.url = urlunsplit(server._replace(netloc=f"{server.username}{password}@{host}:{port}"))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def vanish_at(self, words: str, *, arrives: bool = False) -> None:
        """Be silent as soon as a client says these words; if they arrive, only the answer gets lost."""
        self._words = words.encode(), arrives

    def vanish(self) -> None:
        """Be silent now."""
        self._flowing.clear()
        self.vanished.set()

    def come_back(self) -> None:
        """The network is there again."""
        self._flowing.set()

    def close(self) -> None:
        self._words = None
        self._flowing.set()
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
        self._flowing.wait()
        server = socket.create_connection(self._address)
        self._sockets.append(server)
        self._start(self._to_client, client, server)
        self._to_server(client, server)

    def _start(self, target: object, *arguments: socket.socket) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))  # type: ignore[arg-type]
        self._threads[-1].start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65_536):
                self._flowing.wait()
                if self._words is not None and self._words[0] in data:
                    (_, arrives), self._words = self._words, None
                    self._flowing.clear()
                    if arrives:
                        server.sendall(data)
                        data = b""
                    self.vanished.set()
                    self._flowing.wait()
                server.sendall(data)
        self._end(client, server)

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                self._flowing.wait()
                data = server.recv(65_536)
                self._flowing.wait()
                if not data:
                    break
                client.sendall(data)
        self._end(client, server)

    def _end(self, *both: socket.socket) -> None:
        """When one side is gone, so is the other, as soon as it can be told."""
        self._flowing.wait()
        for one in both:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
