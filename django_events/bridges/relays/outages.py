"""Since when a relay's target can't be reached, and how long to wait until the next try.

An outage is of one partition of a relay in one process: what another partition sends to another place ends it not.
"""

import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django_events.bridges.relays.targets import TargetUnavailable

if TYPE_CHECKING:
    from django_events.declarations import DeclaredRelay

logger = logging.getLogger("django_events.relays")

SHORTEST_PAUSE = timedelta(seconds=0.1)
LOGGED_AGAIN = 300.0  # seconds, while the target stays away


class Outage:
    """The outage of one partition of a relay in this process, if there is one; None is all of them, read as one."""

    def __init__(self, relay: "DeclaredRelay", partition: int | None) -> None:
        self._relay = relay
        self._partition = partition
        self._since: datetime | None = None
        self._began = self._logged = 0.0
        self._tries = 0
        self._lock = threading.Lock()

    def note(self, error: TargetUnavailable, address: str) -> TargetUnavailable:
        """Count a try that failed; returns the error to settle with: it says since when, and has the next pause."""
        with self._lock:
            now = time.monotonic()
            first = self._since is None
            if self._since is None:
                self._since, self._began, self._tries = datetime.now(UTC), now, 0
            self._tries += 1
            since = self._since.strftime("%Y-%m-%d %H:%M:%S UTC")
            after = max(error.asked_for or self._relay.retry.pause(self._tries), SHORTEST_PAUSE)
            if first or now - self._logged > LOGGED_AGAIN:
                self._logged = now
                logger.error(
                    "Relay %s can't send since %s, and tries again: %s and all behind it wait, and nothing is lost. %s",
                    self._relay.name,
                    since,
                    address,
                    error,
                    extra=self._fields(),
                )
            reason = f"nothing can be sent since {since}: {error}"
            return TargetUnavailable(reason, acknowledged=error.acknowledged, after=after)

    def over(self) -> None:
        """Something was sent."""
        if self._since is None:
            return
        with self._lock:
            if self._since is None:
                return
            seconds, tries = time.monotonic() - self._began, self._tries
            self._since = None
        away = timedelta(seconds=round(seconds))
        logger.info(
            "Relay %s can send again, after %s and %d tries.", self._relay.name, away, tries, extra=self._fields()
        )

    def _fields(self) -> dict[str, Any]:
        return {"consumer": self._relay.name, "topic": self._relay.topics[0], "partition": self._partition}
