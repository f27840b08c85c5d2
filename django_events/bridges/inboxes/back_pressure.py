"""What keeps an inbox from taking in more: events that wait for the transfer, and consumers that are far behind.

    pressure = BackPressure(using, inbox)
    reason = pressure.reason(row)         # at each turn
    ...
    pressure.took()                       # whenever something was published

A limit that is reached holds the inbox until half of it is left, so that it doesn't stop and go by the second. What it
waits for is in its row, as the sentence that people read. So all processes that serve it go on at the same count.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from django_events import models, sql
from django_events.bridges.inboxes.taking_in import UNLIMITED, InboxRow
from django_events.declarations import DeclaredInbox
from django_events.log.inventory import waiting_of_topic
from django_events.observing.lag import progress

LOOK_EVERY = 1.0  # seconds
# A look counts up to its limits. It walks over the rows of moved events, too, as long as an old snapshot keeps them:
# half a second for a million of them. So there is none for so many times as long as one took.
RESTS = 20


class _Limit(NamedTuple):
    """What may be behind an inbox, and the sentence that says that it is too much."""

    most: int
    counted: Callable[[int], int]  # how much it is, counted up to so much
    sentence: str

    @property
    def half(self) -> int:
        return self.most // 2


class BackPressure:
    """What one worker of an inbox knows of it. Not for several threads."""

    def __init__(self, using: str, inbox: DeclaredInbox, *, once: bool = False) -> None:
        self.using = using
        self.inbox = inbox
        self.looks_again = 0.0  # at which moment of the monotonic clock
        self._once = once
        self._reason = ""
        self._took = True  # since the last look; before the first one, the buffer may be full

    def took(self) -> None:
        """Something was published: only that makes another look worthwhile."""
        self._took = True

    def reason(self, row: InboxRow) -> str:
        """What the inbox has to wait for now, in a sentence; empty if nothing."""
        if bool(row.waits_for) == bool(self._reason):
            if not row.waits_for and not self._took:
                return ""
            if time.monotonic() < self.looks_again and not (self._once and self._reason):
                return self._reason
        began = time.monotonic()
        self._reason = self._look(row)
        now, self._took = time.monotonic(), False
        self.looks_again = now + max(LOOK_EVERY, RESTS * (now - began))
        return self._reason

    def _look(self, row: InboxRow) -> str:
        # The looks inside keep these: a site's limit is meant for pages.
        settings = {name: UNLIMITED[name] for name in ("statement_timeout", "lock_timeout")}
        with sql.by_index(self.using, **settings):
            for one in self._limits(row):
                enough = one.half + 1 if row.waits_for == one.sentence else one.most
                if one.counted(enough) >= enough:
                    return one.sentence
        return ""

    def _limits(self, row: InboxRow) -> Iterator[_Limit]:
        most, topic = self.inbox.most_buffered, self.inbox.topic
        if most is not None:
            yield _Limit(
                most,
                partial(self._buffered, row.topic_id),
                f"{most:,} events of topic {topic!r} or more wait in the buffer for the transfer, and it goes on when "
                f"{most // 2:,} are left: does a transfer run, and keep up? manage.py run_transfer",
            )
        for name, lag in (self.inbox.most_lag or {}).items():
            yield _Limit(
                lag,
                partial(self._lag, row.topic_id, name),
                f"Consumer {name!r} is {lag:,} events of topic {topic!r} or more behind, and it goes on when "
                f"{lag // 2:,} are left: is the consumer served, or paused? manage.py events status {name}",
            )

    def _buffered(self, topic_id: int, counted: int) -> int:
        return waiting_of_topic(self.using, topic_id, counted=counted)

    def _lag(self, topic_id: int, name: str, counted: int) -> int:
        """One that is paused is behind, too. One that isn't registered has nothing to do."""
        rows = list(models.Consumer.objects.using(self.using).filter(topic_id=topic_id, name=name))
        return sum(one.lag for one in progress(self.using, rows, counted=counted)) if rows else 0
