"""What is to be written of the messages that were found, up to one that holds the inbox up.

intakes = Intakes(inbox, topic, attempt)
intake = intakes.of(row.position, reader.read(row.position, 100), stop)  # HeldUp says why there is none
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain
from typing import cast

from django.db import DatabaseError, InterfaceError

from django_events import telemetry
from django_events.bridges.inboxes.drafting import Unreadable, event_of, unreadable_event
from django_events.bridges.inboxes.sources import Found, GoneMessages, InboxMessage, Places
from django_events.bridges.inboxes.taking_in import Intake
from django_events.declarations import DeclaredInbox, DeclaredTopic
from django_events.exceptions import InvalidEvent
from django_events.phrases import count
from django_events.publishing.encoding import BufferRow, Encoded
from django_events.retries import RetryLater
from django_events.workers.stopping import Stop


class HeldUp(Exception):
    """Nothing behind a message can be taken in now."""

    def __init__(self, reason: str, *, after: timedelta | None = None, again: bool = False) -> None:
        super().__init__(reason)
        self.after = after
        self.again = again


class Intakes:
    """What the messages of one inbox become. `attempt` counts an attempt at a message, and returns how many it had."""

    def __init__(self, inbox: DeclaredInbox, topic: DeclaredTopic, attempt: Callable[[InboxMessage], int]) -> None:
        self._inbox = inbox
        self._topic = topic
        self._attempt = attempt

    def of(self, places: Places, found: Found, stop: Stop) -> Intake:
        """The events of what was found, up to a message that can't be taken in now, or a request to stop."""
        intake = Intake(begins_at=dict(places))
        for gone in found.gone:
            if self._inbox.expired == "stop":
                raise HeldUp(
                    f"{told(gone)} were removed from the source before they were taken in. The inbox waits in front "
                    f"of what is left: {gone.next}. To go on without them: inbox(…, expired='skip')"
                )
            intake.begins_at[gone.log] = gone.place
            intake.gone += gone.messages
        events = self._events(intake, found, stop)
        first = next(events, None)
        if first is not None and self._is_made_meanwhile:
            intake.events = cast("Iterator[BufferRow]", chain((first,), events))
        elif first is not None:
            intake.events = [first, *events]
        return intake

    @property
    def _is_made_meanwhile(self) -> bool:
        """Whether events are made while the database takes in those in front of them.

        Only where no code of the site makes them: it may ask the database, whose connection waits for it. And a trace
        that goes on belongs to what came before.
        """
        return self._inbox.transform is None and not self._topic.schemas and telemetry.tracing is None

    def _events(self, intake: Intake, found: Found, stop: Stop) -> Iterator[Encoded]:
        taken = 0
        for message in found.messages:
            if taken and stop.requested:
                break
            try:
                event, is_readable = self.event(message, is_first=taken == 0 and not found.gone)
            except HeldUp:
                if taken == 0 and not found.gone:
                    raise
                break
            taken += 1
            intake.last[message.log] = message
            if not is_readable:
                intake.unread.append(message.address)
            if event is None:
                intake.left_out += 1
            else:
                intake.published += 1
                yield event
        intake.lag = None if found.lag is None else found.lag - taken
        if found.passed is not None and taken == len(found.messages):
            intake.passed, intake.lag, intake.rows = found.passed

    def event(self, message: InboxMessage, *, is_first: bool) -> tuple[Encoded | None, bool]:
        """What a message becomes, and whether it can be read. Attempts count where no other one is in front of it."""
        try:
            return event_of(self._inbox, self._topic, message), True
        except RetryLater as error:
            raise HeldUp(f"transform wants {message.address} to wait: {error}", after=error.after) from error
        except (DatabaseError, InterfaceError) as error:  # it may pass, and is no message's fault
            said = f"{type(error).__name__} of a database, while transform had {message.address}"
            raise HeldUp(said, again=True) from error
        except Unreadable as error:
            reason, unreadable = str(error), error
            if error.again and (not is_first or self._attempt(message) < self._inbox.retry.attempts):
                raise HeldUp(f"{message.address} can't be read, and is tried again: {reason}", again=True) from error
        if self._inbox.on_unreadable == "stop":
            raise HeldUp(
                f"{message.address} can't be read, and the inbox waits in front of it: {reason} It goes on when "
                "transform can read it, or leaves it out."
            )
        try:
            return unreadable_event(self._inbox, self._topic, message, unreadable.whole), False
        except InvalidEvent as error:
            raise HeldUp(
                f"{message.address} can't be read ({reason}), and topic {self._topic.name!r} doesn't take it as an "
                f"event that says so: {error} The inbox waits in front of it until transform reads it or leaves it out."
            ) from error


def told(gone: GoneMessages) -> str:
    """`3 messages of 'payments-0' behind 1041`."""
    return f"{count(gone.messages, gone.unit)} of {gone.log!r} behind {gone.behind}"
