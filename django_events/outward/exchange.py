"""A request to a receiver, what it answered, and what follows from that."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import NamedTuple

from django_events.outward.addresses import Network

LONGEST_REST = timedelta(days=1)  # that a receiver may ask for
BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class Request(NamedTuple):
    """What is sent where."""

    url: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLimits:
    """How long a request takes at most, all of it, and to which networks beside the public ones it may go."""

    seconds: float
    allowed: Sequence[Network] = ()


class NotDelivered(Exception):
    """Why an attempt to deliver an event failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookAnswer:
    """What came back from a request: a status with the begin of its body, or the error because of which none came."""

    status: int | None
    seconds: float
    excerpt: str = ""
    error: str = ""
    retry_after: timedelta | None = None

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def status_class(self) -> str:
        """`2xx` and the like; `none` without an answer."""
        return "none" if self.status is None else f"{self.status // 100}xx"

    @property
    def gone(self) -> bool:
        """Whether the receiver wants no more requests at all."""
        return self.status == HTTPStatus.GONE

    @property
    def down(self) -> bool:
        """Whether the reason is the receiver rather than the event: others of its events would fail as well."""
        return self.status is None or self.status >= 500 or self.status == HTTPStatus.TOO_MANY_REQUESTS

    @property
    def failure(self) -> NotDelivered | None:
        """Why the event is not delivered; None if it is."""
        if self.delivered:
            return None
        if self.status is None:
            return NotDelivered(self.error)
        said = f"{self.status} {phrase(self.status)}".strip()
        if 300 <= self.status < 400:
            said += ", and redirects are not followed: the endpoint needs the URL itself"
        if self.retry_after is not None:
            said += f", to be tried again after {self.retry_after}"
        return NotDelivered(said)


def phrase(status: int) -> str:
    """`Too Many Requests`; empty for a status that has no name."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def rest_asked_for(status: int, header: str | None, *, now: datetime | None = None) -> timedelta | None:
    """For how long a receiver that is busy wants to be left alone, by its `Retry-After`: seconds, or a date."""
    if header is None or status not in BUSY:
        return None
    header = header.strip()
    if re.fullmatch("[0-9]{1,10}", header):
        rest = timedelta(seconds=int(header))
    else:
        try:
            until = parsedate_to_datetime(header)
        except ValueError:
            return None
        until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
        rest = until - (now or datetime.now(UTC))
    return min(max(rest, timedelta(0)), LONGEST_REST)
