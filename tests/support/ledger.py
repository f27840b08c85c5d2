"""A small broker of the standard library: logs that are read and written by HTTP, and kept while it is stopped.

POST /LOG appends entries if the last number of the log is the one that the header If-Match says: 204, or 412 if it is
another one. If an entry is larger than 32,000 bytes, 413 says which one, and none is appended.
GET /LOG?after=41&most=100 answers with some entries, the numbers of the first that is left and of the last one, and
which making of the log it is.
"""

import json
import threading
import uuid
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LARGEST = 32_000


class Log:
    """Entries with the numbers 1, 2, 3 …, the oldest of which may be removed."""

    def __init__(self) -> None:
        self.made = uuid.uuid4().hex
        self.removed = 0
        self.entries: list[dict[str, Any]] = []

    @property
    def last(self) -> int:
        return self.removed + len(self.entries)

    def remove(self, entries: int) -> None:
        del self.entries[:entries]
        self.removed += entries


class Ledger:
    """The broker. Its address stays the same when it is stopped and started again."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = defaultdict(Log)
        self.lock = threading.Lock()
        self.port = 0
        self._server: Any = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        handler = type("Handler", (LedgerHandler,), {"ledger": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, log: str, entries: list[dict[str, Any]]) -> None:
        with self.lock:
            self.logs[log].entries += entries


class LedgerHandler(BaseHTTPRequestHandler):
    """One request on a connection of its own."""

    ledger: Ledger

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {name: int(values[0]) for name, values in parse_qs(url.query).items()}
        with self.ledger.lock:
            log = self.ledger.logs[url.path[1:]]
            begin = max(asked["after"] - log.removed, 0)
            answer = {
                "made": log.made,
                "first": log.removed + 1,
                "last": log.last,
                "entries": log.entries[begin : begin + asked["most"]],
            }
        self._answer(200, answer)

    def do_POST(self) -> None:
        entries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        large = [number for number, one in enumerate(entries) if len(json.dumps(one)) > LARGEST]
        with self.ledger.lock:
            log = self.ledger.logs[self.path[1:]]
            if str(log.last) != self.headers["If-Match"]:
                self._answer(412, {"last": log.last})
            elif large:
                self._answer(413, {"entry": large[0]})
            else:
                log.entries += entries
                self._answer(204, None)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def _answer(self, status: int, answer: Any) -> None:
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
