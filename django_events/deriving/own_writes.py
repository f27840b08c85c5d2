"""Pages that show what their browser has just changed: a cookie remembers until where it has written.

    MIDDLEWARE = [ …, "django_events.middleware.RememberWrites"]

    @reads_own_writes("search")
    def results(request): …

The middleware notes after each request that may write, like a POST, the last ticket that its databases gave. Before a
view with `reads_own_writes`, it waits until the view's consumers have passed all up to there.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core import signing
from django.db import DatabaseError, InterfaceError, connections
from django.http import HttpRequest, HttpResponseBase

from django_events import sql
from django_events.declarations import DeclaredConsumer
from django_events.deriving.passed import Wait, last_ticket, look, prepare
from django_events.deriving.waiting import afinish, finish
from django_events.exceptions import Invalid, NotReady, NotSeen, UnknownName
from django_events.models.databases import databases

logger = logging.getLogger("django_events.waiting")

View = TypeVar("View", bound=Callable[..., Any])
Answer = HttpResponseBase | Awaitable[HttpResponseBase]

ONE_SECOND = timedelta(seconds=1)
MIDDLEWARE = "django_events.middleware.RememberWrites"
COOKIE, SALT = "django_events_writes", "django_events.writes"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")


@dataclass(frozen=True, slots=True)
class OwnWrites:
    """What a view asks for: the consumers that have to pass its browser's writes, and for how long it waits."""

    consumers: tuple[str, ...]
    timeout: timedelta


def reads_own_writes(*consumers: DeclaredConsumer | str, timeout: timedelta = ONE_SECOND) -> Callable[[View], View]:
    """Call the view when these consumers have passed what its browser has written, or after `timeout`.

    `request.reads_own_writes` says which: False is for a page that says that a change will show soon. It is for views
    of functions, sync or async, and as a method_decorator for `dispatch`. The middleware RememberWrites does the
    waiting, before the view's transaction begins.
    """
    if not consumers or not all(isinstance(one, DeclaredConsumer | str) for one in consumers):
        raise Invalid("Name the consumers whose work the view shows: @reads_own_writes('search').")
    wanted = OwnWrites(tuple(str(one) for one in consumers), timeout)

    def decorate(view: View) -> View:
        if iscoroutinefunction(view):

            @wraps(view)
            async def called_async(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                _refuse_unwaited(request)
                return await view(request, *args, **kwargs)

            called: Any = called_async
        else:

            @wraps(view)
            def called_sync(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                _refuse_unwaited(request)
                return view(request, *args, **kwargs)

            called = called_sync
        called.own_writes = wanted
        return cast("View", called)

    return decorate


def _refuse_unwaited(request: HttpRequest) -> None:
    if not hasattr(request, "reads_own_writes"):
        raise NotReady(f"A view with reads_own_writes() needs the middleware: add {MIDDLEWARE!r} to MIDDLEWARE.")


class RememberWrites:
    """Remember until where a browser has written, in a signed cookie, and let its next pages wait for that.

    A subclass may say otherwise which requests write, and for how long that is remembered.
    """

    sync_capable = async_capable = True
    remembered = timedelta(minutes=1)

    def __init__(self, get_response: Callable[[HttpRequest], Answer]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
        self.process_view = self._wait_async if self.is_async else self._wait

    def writes(self, request: HttpRequest, response: HttpResponseBase) -> bool:
        """Whether a request may have written: here, by its method."""
        return request.method not in SAFE_METHODS

    def __call__(self, request: HttpRequest) -> Answer:
        if self.is_async:
            return self._answer_async(request)
        response = cast("HttpResponseBase", self.get_response(request))
        if self.writes(request, response):
            self._remember(request, response)
        return response

    async def _answer_async(self, request: HttpRequest) -> HttpResponseBase:
        response = await cast("Awaitable[HttpResponseBase]", self.get_response(request))
        if self.writes(request, response):
            await sync_to_async(self._remember)(request, response)
        return response

    def _wait(self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any) -> None:
        if (wanted := getattr(view, "own_writes", None)) is not None:
            _seen(request, True)
            for wait in self._begun(request, wanted):
                try:
                    finish(wait, _of(wait, wanted))
                except NotSeen as error:
                    _unseen(request, error)

    async def _wait_async(self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any) -> None:
        if (wanted := getattr(view, "own_writes", None)) is not None:
            _seen(request, True)
            for wait in await sync_to_async(self._begun)(request, wanted):
                try:
                    await afinish(wait, _of(wait, wanted))
                except NotSeen as error:
                    _unseen(request, error)

    def _begun(self, request: HttpRequest, wanted: OwnWrites) -> list[Wait]:
        """A wait for each database in which the browser has written, after a first look."""
        written, waits, unknown = self._written(request), [], []
        for using, ticket in written.items():
            try:
                wait = prepare(using, [], [], wanted.consumers, upper=ticket)
            except UnknownName as error:  # its consumers read what another database has
                unknown.append(error)
                continue
            look(using, [wait])
            waits.append(wait)
        if unknown and not waits:
            raise unknown[0]
        return waits

    def _written(self, request: HttpRequest) -> dict[str, int]:
        try:
            value = signing.loads(request.COOKIES.get(COOKIE, ""), salt=SALT, max_age=self.remembered)
        except signing.BadSignature:  # there is none, it was made up, or it is too old
            return {}
        return {using: int(ticket) for using, ticket in value.items() if using in connections}

    def _remember(self, request: HttpRequest, response: HttpResponseBase) -> None:
        """Of the databases that the request used: what it did in others came by another connection."""
        used = {connection.alias for connection in connections.all(initialized_only=True)}
        try:
            now = {using: last_ticket(using) for using in databases() if using in used}
        except (DatabaseError, InterfaceError, NotReady) as error:  # an answer to what was written must not be lost
            said = str(error) if isinstance(error, NotReady) else sql.said(error)
            logger.warning("What a request has written can't be remembered. %s", said, extra={"database": ""})
            return
        if written := {**self._written(request), **now}:
            response.set_cookie(
                COOKIE,
                signing.dumps(written, salt=SALT, compress=True),
                max_age=self.remembered,
                path=settings.SESSION_COOKIE_PATH,
                domain=settings.SESSION_COOKIE_DOMAIN,
                secure=settings.SESSION_COOKIE_SECURE or request.is_secure(),
                httponly=True,
                samesite="Lax",
            )


def _of(wait: Wait, wanted: OwnWrites) -> timedelta:
    """In a transaction, as in a test, there is only what it can see now."""
    return timedelta(0) if connections[wait.using].in_atomic_block else wanted.timeout


def _seen(request: HttpRequest, seen: bool) -> None:
    request.reads_own_writes = seen  # type: ignore[attr-defined]  # an attribute of ours


def _unseen(request: HttpRequest, error: NotSeen) -> None:
    _seen(request, False)
    logger.info("A page doesn't show yet what its browser has written. %s", error)
