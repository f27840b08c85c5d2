"""The shop's pages over HTTP, for this machine only: the admin and its static files.

with serving(8000) as port: ...
"""

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management.base import CommandError
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

from django_events import end_streams

HOST = "127.0.0.1"
TRIES = 100


@contextmanager
def serving(port: int) -> Iterator[int]:
    """Serve until the block ends, at this port or the next free one, which is yielded. Ends with what is in hand."""
    server = listen(port)
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="shop's pages")
    thread.start()
    try:
        yield server.server_port
    finally:
        end_streams(for_good=True)
        server.shutdown()
        server.server_close()
        thread.join()


def listen(port: int) -> "Server":
    for candidate in range(port, min(port + TRIES, 65_536)):
        try:
            return Server((HOST, candidate), QuietHandler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CommandError(f"The port {candidate} of {HOST} can't be used: {error.strerror}.") from error
    raise CommandError(f"No port of {HOST} is free from {port} on, in {TRIES} tries. Give another one with --port.")


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Leave the terminal to the address and the password."""


class Server(ThreadedWSGIServer):
    """Ends when its threads have: they finish their requests, and wait for no further ones."""

    daemon_threads = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._connected: set[socket.socket] = set()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connected.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        self._connected.discard(request)
        super().close_request(request)

    def server_close(self) -> None:
        # A browser keeps its connections: their threads would wait for its next request.
        for connected in list(self._connected):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RD)
        super().server_close()
