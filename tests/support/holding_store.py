"""A store between an exporter and S3, which holds up one request until it is told to hand it on.

with holding("http://127.0.0.1:5000", method="PUT", path="_delta_log/…2.json") as store:
    …  # a process that has AWS_ENDPOINT_URL = store.address
    store.reached.wait(60)
    store.go_on.set()
"""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PASSED_ON_ITS_OWN = {"transfer-encoding", "connection", "content-length", "date", "server"}


@dataclass
class HoldingStore:
    """What a test asks it."""

    address: str
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@contextmanager
def holding(server: str, *, method: str, path: str) -> Iterator[HoldingStore]:
    """Hand on what is asked of a server, but hold the first request with that method to that end of a path."""
    held = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def hand_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            is_meant = self.command == method and self.path.partition("?")[0].endswith(path)
            if is_meant and held.acquire(blocking=False):
                store.reached.set()
                store.go_on.wait(300)
            behind = http.client.HTTPConnection(urlsplit(server).netloc, timeout=60)
            try:
                behind.request(self.command, self.path, body, dict(self.headers.items()))
                answer = behind.getresponse()
                said = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in PASSED_ON_ITS_OWN or (name.lower() == "content-length" and not said):
                        self.send_header(name, value)
                if said or not answer.getheader("Content-Length"):
                    self.send_header("Content-Length", str(len(said)))
                with suppress(ConnectionError):  # it may not have waited
                    self.end_headers()
                    self.wfile.write(said)
            finally:
                behind.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = hand_on

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        store = HoldingStore(f"http://127.0.0.1:{proxy.server_port}")
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield store
        finally:
            store.go_on.set()
            proxy.shutdown()
            thread.join()
