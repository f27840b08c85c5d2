"""Since when a relay's target can't be reached, and how long to wait until the next try.

An outage is of one partition of a relay: what another partition sends to another place ends it not. Since when it is,
stands in the row of the position, where the worker settles it: whichever worker tries next, it is the same outage.
"""

import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

from django.db import DatabaseError

from django_events import sql
from django_events.bridges.relays.targets import TargetUnavailable
from django_events.models import Position

if TYPE_CHECKING:
    from django_events.declarations import DeclaredRelay

logger = logging.getLogger("django_events.relays")
SQL = sql.beside(__name__)

SHORTEST_PAUSE = timedelta(seconds=0.1)
KNOWN_FOR = 600.0  # seconds for which a process goes by what it remembers
LOGGED_AGAIN = 300.0  # seconds, while the target stays away


class WaitingEvent(NamedTuple):
    """What the row of a position says."""

    since: datetime | None  # nothing can be sent
    attempted: int | None  # the event that waits for its next attempt


class Outage:
    """What this process knows of the outage of one partition, if there is one; None is all of them, read as one."""

    def __init__(self, relay: "DeclaredRelay", partition: int | None) -> None:
        self._relay = relay
        self._partition = partition
        self._since: datetime | None = None
        self._address = ""  # of the event that waits
        self._tried_at = 0.0
        self._logged = 0.0
        self._tries = 0
        self._lock = threading.Lock()

    def note(
        self, error: TargetUnavailable, address: str, *, using: str, anew: bool = False, redriven: bool = False
    ) -> TargetUnavailable:
        """Count a try that failed; returns the error to settle with: it says since when, and has the next pause.

        It is an outage `anew` if something was sent ahead of this event. Where the row says nothing, this process
        remembers it for a while: of a dead letter that is sent again nothing is written there, and a settlement may be
        lost. After a longer one another process may have gone on, and the relay may have been rewound to this event.
        """
        (noted, _), now = self._ask(using)
        with self._lock:
            is_recent = time.monotonic() - self._tried_at < KNOWN_FOR
            remembered = self._since if is_recent and (redriven or address == self._address) else None
            since = now if anew else noted or remembered or now
            if since != self._since:
                self._since, self._tries, self._logged = since, 0, 0.0
            self._address, self._tried_at = address, time.monotonic()
            self._tries += 1
            text = since.strftime("%Y-%m-%d %H:%M:%S UTC")
            if not self._logged or time.monotonic() - self._logged > LOGGED_AGAIN:
                self._logged = time.monotonic()
                logger.error(
                    "Relay %s can't send since %s, and tries again: %s and all behind it wait, and nothing is lost. %s",
                    self._relay.name,
                    text,
                    address,
                    error,
                    extra=self._fields(),
                )
            after = max(error.asked_for or self._relay.retry.pause(self._tries), SHORTEST_PAUSE)
            reason = f"nothing can be sent since {text}: {error}"
            return TargetUnavailable(reason, acknowledged=error.acknowledged, after=after, since=since)

    def over(self) -> None:
        """Something was sent."""
        if self._since is None:
            return
        with self._lock:
            if self._since is None:
                return
            since, self._since = self._since, None
        away = max(datetime.now(UTC) - since, timedelta(0))
        logger.info(
            "Relay %s can send again, after %s and %d tries.",
            self._relay.name,
            timedelta(seconds=round(away.total_seconds())),
            self._tries,
            extra=self._fields(),
        )

    def settled(self, using: str) -> "WaitingEvent":
        """What a worker has settled last, this process or another one."""
        return self._ask(using)[0]

    def _ask(self, using: str) -> tuple["WaitingEvent", datetime]:
        """What is settled, and the time: by the clock of the database, if it answers.

        Without an answer nothing can be settled either, so it need not be right.
        """
        partition = Position.ALL if self._partition is None else self._partition
        try:
            rows = sql.fetch(
                using,
                SQL.failing_since,
                consumer=self._relay.name,
                topic=self._relay.topics[0],
                partition=partition,
            )
        except DatabaseError:
            rows = []
        since, attempted, now = rows[0] if rows else (None, None, time.time())
        return WaitingEvent(None if since is None else _moment(since), attempted), _moment(now)

    def _fields(self) -> dict[str, Any]:
        return {"consumer": self._relay.name, "topic": self._relay.topics[0], "partition": self._partition}


def _moment(seconds: SupportsFloat) -> datetime:
    return datetime.fromtimestamp(float(seconds), UTC)
