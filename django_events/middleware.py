"""Middlewares: every event says of which user and of which request it came; a browser reads its own writes.

MIDDLEWARE = [
    …,
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_events.middleware.describe_events",
    "django_events.middleware.RememberWrites",
]
"""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast
from uuid import uuid4

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from django_events.deriving.own_writes import RememberWrites as RememberWrites
from django_events.publishing.session_settings import event_context

REQUEST_ID = re.compile(r"[\w.:/+=-]{1,200}", re.ASCII)  # what a client says otherwise is not taken over

Answer = HttpResponseBase | Awaitable[HttpResponseBase]


@sync_and_async_middleware
def describe_events(get_response: Callable[[HttpRequest], Answer]) -> Callable[[HttpRequest], Answer]:
    """Give the events of each request metadata: `user`, its primary key, and `request`, of `X-Request-ID` or random."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            with event_context(**_said_by(request)):
                return await cast("Awaitable[HttpResponseBase]", get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> Answer:
        with event_context(**_said_by(request)):
            return get_response(request)

    return answer


def _said_by(request: HttpRequest) -> dict[str, Any]:
    given = request.headers.get("X-Request-ID", "")
    metadata: dict[str, Any] = {"request": given if REQUEST_ID.fullmatch(given) else str(uuid4())}
    if hasattr(request, "user"):
        metadata["user"] = partial(_user_of, request)  # looked up when the first event wants it
    return metadata


def _user_of(request: HttpRequest) -> int | str | None:
    pk = request.user.pk
    return pk if pk is None or isinstance(pk, int | str) else str(pk)
