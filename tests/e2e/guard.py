"""What no test expected in a browser: messages, errors, failed requests, requests that don't go to our server.

guard.expect("403 (Forbidden)")     # excuses one problem with this text, which has to occur
"""

import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, WebError, WebSocket

SECONDS = 10  # for what is still loading when a test ends


class Guard:
    """Looks at all pages of the contexts that it watches, and remembers what shouldn't be."""

    def __init__(self, base_url: str) -> None:
        self.host = urlsplit(base_url).netloc
        self.problems: list[str] = []
        self._expected: list[str] = []
        self._contexts: list[BrowserContext] = []
        self._loading: set[Request] = set()

    def watch(self, context: "BrowserContext") -> None:
        self._contexts.append(context)
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_finish)
        context.on("requestfailed", self._on_failure)
        context.on("page", self._on_page)

    def expect(self, text: str) -> None:
        """Excuse one problem in which this text occurs; it has to occur until the test ends."""
        self._expected.append(text)

    def check(self) -> None:
        """Let the pages finish loading; fail on a problem that wasn't expected, and on one that was and didn't come."""
        self._settle()
        problems, missing = list(self.problems), []
        for text in self._expected:
            found = next((problem for problem in problems if text in problem), None)
            if found is None:
                missing.append(f"expected and not seen: {text}")
            else:
                problems.remove(found)
        assert not problems + missing, "\n".join(["the browser tells of:", *problems, *missing])

    def _settle(self) -> None:
        """Wait for what is loading, so that no request outlives its test, and for messages that are on their way."""
        deadline = time.monotonic() + SECONDS
        for page in [page for context in self._contexts for page in context.pages]:
            page.evaluate("() => new Promise(done => setTimeout(done))")
            while self._loading and time.monotonic() < deadline:
                page.wait_for_timeout(10)
        self.problems += [f"still loading: {request.url}" for request in self._loading]
        self._loading.clear()

    def _on_console(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _on_error(self, error: "WebError") -> None:
        self.problems.append(f"error in a page: {error.error}")

    def _on_request(self, request: "Request") -> None:
        self._look_at(request.url)
        if request.resource_type != "eventsource":  # it lasts as long as its page
            self._loading.add(request)

    def _on_finish(self, request: "Request") -> None:
        self._loading.discard(request)

    def _on_failure(self, request: "Request") -> None:
        self._loading.discard(request)
        self.problems.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _on_page(self, page: "Page") -> None:
        page.on("websocket", self._on_socket)

    def _on_socket(self, socket: "WebSocket") -> None:
        self._look_at(socket.url)

    def _look_at(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob", "about") and parts.netloc != self.host:
            self.problems.append(f"request to a stranger: {url}")
