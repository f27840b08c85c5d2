"""The handler of a relay: it sends a batch of events by a bridge, and comes back when all of it is acknowledged.

While a batch is sent, the server reads the next one (decision 0077).

Before anything is sent, all messages of the batch are made. So an event whose `transform` raises, or that is too large,
stops the batch in front of it: those before it are sent, and those behind it wait until it is settled.

What the target has already is not sent again, where the target knows it: after an answer that was lost, a worker that
was killed or frozen, and a rewind.
"""

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from django_events.bridges.relays.answers import Unroutable
from django_events.bridges.relays.messages import MOST_BESIDE, message_of, names_of
from django_events.bridges.relays.outages import Outage, WaitingEvent
from django_events.bridges.relays.targets import Bridge, Bridges, Newest, Overtaken, RelayMessage, TargetUnavailable
from django_events.consuming.handlers import FailedAt
from django_events.declarations import DeclaredRelay
from django_events.exceptions import MessageRefused
from django_events.models import Event, Topic
from django_events.received import ReceivedEvent

MOST_ROUNDS = 5  # of finding out what the target has, for one batch
IDLE_ENDS = 1.0  # seconds: an error that comes so soon may say no more than that an idle connection was ended
REMEMBERED = 60.0  # seconds for which a process needs no proof that no other one has gone on
MOST_LOGS = 10_000  # of a target, whose newest events one thread remembers


Meanwhile = Callable[[], AbstractContextManager[object]]  # the next events are read, where that can be


class Opened:
    """A bridge that is open, and what its thread knows of the target."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge, self.names = bridge, names_of(bridge)
        self.newest: dict[str, int] = {}  # by log of the target; 0 where it has nothing, or can't tell
        self.used = False  # whether a batch was sent by it

    @property
    def sends_only(self) -> bool:
        """What the bridge says once it is open: its settings may decide."""
        return bool(getattr(self.bridge, "sends_only", False))


class Ahead:
    """What of a partition is acknowledged behind an event that is not, until that one is settled."""

    def __init__(self) -> None:
        self.since: datetime | None = None  # of the outage for which that event waits, if there is one
        self._behind = 0
        self._ids: set[int] = set()
        self._tried_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._ids)

    def __contains__(self, event_id: int) -> bool:
        return event_id in self._ids

    def begin(self, first_id: int, settled: Callable[[], WaitingEvent]) -> None:
        """A batch begins here. Where others have gone on meanwhile, or the relay was rewound, all of it is sent.

        A rewind may be to where this process was when another one took the partition over. So if it is a while ago
        that this one had it, the row has to say that the same event still waits, for the same reason.
        """
        if self._ids and not (self._behind <= first_id <= max(self._ids) and self._still_waits(settled)):
            self._ids.clear()
        self._tried_at = time.monotonic()

    def _still_waits(self, settled: Callable[[], WaitingEvent]) -> bool:
        if time.monotonic() - self._tried_at < REMEMBERED:
            return True
        since, attempted = settled()
        return attempted == self._behind if self.since is None else since == self.since

    def note(self, behind: int, event_ids: Iterable[int]) -> None:
        """These are acknowledged, and the event in front of them is not."""
        self._behind = behind
        self._ids.update(event_ids)

    def settle(self, last_id: int) -> None:
        """All up to here is acknowledged."""
        self._ids = {one for one in self._ids if one > last_id}


class _Stuck(Exception):
    """The target could not be reached any more when it had acknowledged what is before a message."""

    def __init__(self, message: RelayMessage, error: TargetUnavailable) -> None:
        super().__init__(message, error)
        self.message = message
        self.error = error


class Batch(NamedTuple):
    """The messages of some events, up to one that can't be sent, if there is one."""

    messages: list[RelayMessage]
    failed: FailedAt | None


class Relaying:
    """What a worker calls with the events of one partition. Each of its threads has a bridge of its own."""

    def __init__(self, relay: DeclaredRelay) -> None:
        self._relay = relay
        target: Any = relay.to
        self._shared: Bridges | None = target.bridges() if hasattr(target, "bridges") else None
        self._outages: dict[int | None, Outage] = {}  # by partition
        self._using = ""
        self._opened: dict[int, Opened] = {}  # by thread
        self._acknowledged: dict[str, int] = {}  # the newest event that a log of the target has taken
        self._ahead: dict[int | None, Ahead] = {}  # by partition

    def __call__(self, events: Sequence[ReceivedEvent], meanwhile: Meanwhile = nullcontext) -> None:
        self._relay_all(events, meanwhile, redriven=False)

    def redriven(self, events: Sequence[ReceivedEvent]) -> None:
        """Send dead letters: the target has events of higher ids already, and they come behind those."""
        self._relay_all(events, nullcontext, redriven=True)

    def close(self) -> None:
        """Close the bridges of all threads, and what they share."""
        while self._opened:
            _, opened = self._opened.popitem()
            opened.bridge.close()
        if self._shared is not None:
            self._shared.close()

    def _relay_all(self, events: Sequence[ReceivedEvent], meanwhile: Meanwhile, *, redriven: bool) -> None:
        self._using = events[0].database
        partition = events[0].partition if self._relay.partitioned else None
        outage = self._outages.setdefault(partition, Outage(self._relay, partition))
        ahead = Ahead() if redriven else self._ahead.setdefault(partition, Ahead())
        ahead.begin(events[0].id, lambda: outage.settled(self._using))
        try:
            batch, refused = self._attempt(events, ahead, meanwhile, redriven=redriven)
        except _Stuck as stuck:
            self._drop()
            at = _index_of(events, stuck.message.event_id)
            noted = outage.note(stuck.error, events[at].address, using=self._using, anew=True)
            ahead.since = noted.since
            raise FailedAt(at, noted) from None
        except TargetUnavailable as error:
            self._drop()
            noted = outage.note(error, events[0].address, using=self._using, redriven=redriven)
            ahead.since = noted.since
            raise FailedAt(0, noted) from None
        except Exception as error:  # of a bridge: whatever it is, no event is to blame
            self._drop()
            said = TargetUnavailable(f"{type(error).__name__} in the bridge, {_place_of(error)}")
            raise FailedAt(0, outage.note(said, events[0].address, using=self._using, redriven=redriven)) from None
        first = None if not batch.messages else batch.messages[0]
        if first is not None and (refused is None or refused[0] is not first):
            outage.over()
        ahead.since = None
        if refused is not None:
            raise FailedAt(_index_of(events, refused[0].event_id), refused[1])
        if batch.failed is not None:
            raise batch.failed

    def _attempt(
        self, events: Sequence[ReceivedEvent], ahead: Ahead, meanwhile: Meanwhile, *, redriven: bool
    ) -> tuple[Batch, tuple[RelayMessage, Exception] | None]:
        """Send what can be sent of these, by a new connection if the one that was there has ended since."""
        opened, began = self._open(), time.monotonic()
        batch = self._batch(events, opened, redriven=redriven)
        if not opened.used:
            return batch, self._send_all(opened, batch.messages, ahead, meanwhile)
        try:
            return batch, self._send_all(opened, batch.messages, ahead, meanwhile)
        except TargetUnavailable as error:
            if time.monotonic() - began > IDLE_ENDS or error.asked_for is not None:
                raise
            # It can't tell what of this has arrived.
            if not all(one.route.log and not one.redriven for one in batch.messages):
                raise
        self._drop()
        return batch, self._send_all(self._open(), batch.messages, ahead, meanwhile)

    def _batch(self, events: Sequence[ReceivedEvent], opened: Opened, *, redriven: bool) -> Batch:
        """Make the messages, up to the first event that can't be one."""
        relay, route_of, partitioned = self._relay, self._target.route, self._relay.partitioned
        largest = opened.bridge.largest
        surely = -1 if largest is None else largest - MOST_BESIDE  # bodies up to this size fit, whatever is beside them
        messages: list[RelayMessage] = []
        for index, event in enumerate(events):
            try:
                route = route_of(event, event.partition if partitioned else None)
                message = message_of(event, relay, route, redriven=redriven, names=opened.names)
            except TargetUnavailable:  # of the target as it is declared, and not of this event
                raise
            except Exception as error:
                return Batch(messages, FailedAt(index, error))
            if message is None:
                continue
            if largest is not None and len(message.body or b"") > surely and (size := message.size) > largest:
                said = f"It has {size} bytes with its headers, and the target takes {largest}."
                return Batch(messages, FailedAt(index, MessageRefused(said)))
            messages.append(message)
        return Batch(messages, None)

    def _send_all(
        self, opened: Opened, messages: list[RelayMessage], ahead: Ahead, meanwhile: Meanwhile
    ) -> tuple[RelayMessage, Exception] | None:
        """Send what the target has not; returns the first message that it refuses for itself, if there is one."""
        for _ in range(MOST_ROUNDS):
            left, unroutable = self._missing(opened, messages, ahead)
            if not left:
                return self._settled(messages, unroutable, ahead)
            try:
                with meanwhile() if opened.sends_only else nullcontext():
                    answers = opened.bridge.send(left)
            except TargetUnavailable as error:
                for message in left[: error.acknowledged]:
                    self._note_taken(opened, message)
                if error.ahead:
                    ids = [one.event_id for one in left if one.address in error.ahead]
                    ahead.note(left[error.acknowledged].event_id, ids)
                if error.acknowledged < len(left) and left[error.acknowledged] is not messages[0]:
                    raise _Stuck(left[error.acknowledged], error) from None
                raise
            except Overtaken:
                for log in {one.route.log for one in left}:
                    opened.newest.pop(log, None)
                continue
            return self._settled(messages, self._answered(opened, left, answers, ahead) or unroutable, ahead)
        raise TargetUnavailable("others write there at the same time: what the target has changed five times meanwhile")

    def _missing(
        self, opened: Opened, messages: list[RelayMessage], ahead: Ahead
    ) -> tuple[list[RelayMessage], tuple[RelayMessage, Exception] | None]:
        """Those to be sent, up to one that nothing in the target is for, if there is one."""
        if not ahead and not _logs_of(messages):
            return messages, None  # the target can't tell what it has
        left = []
        for message in messages:
            try:
                if message.event_id not in ahead and self._is_missing(opened, message):
                    left.append(message)
            except Unroutable as error:
                return left, (message, error)
        return left, None

    def _settled(
        self, messages: list[RelayMessage], refused: tuple[RelayMessage, Exception] | None, ahead: Ahead
    ) -> tuple[RelayMessage, Exception] | None:
        """What `_send_all` returns, when all in front of that is acknowledged."""
        if messages:
            ahead.settle(messages[-1].event_id if refused is None else refused[0].event_id - 1)
        return refused

    def _answered(
        self, opened: Opened, messages: list[RelayMessage], answers: Sequence[Exception | None], ahead: Ahead
    ) -> tuple[RelayMessage, Exception] | None:
        opened.used = True
        if len(answers) == len(messages) and not any(answers) and not _logs_of(messages):
            return None  # nearly always, of a target that can't tell what it has
        refused: tuple[RelayMessage, Exception] | None = None
        for message, error in zip(messages, answers, strict=False):
            if error is None:
                self._note_taken(opened, message)
                if refused is not None:
                    ahead.note(refused[0].event_id, [message.event_id])
            elif refused is None:
                refused = message, error
        if refused is None and len(answers) < len(messages):
            raise TargetUnavailable("the bridge left messages unanswered")
        return refused

    def _note_taken(self, opened: Opened, message: RelayMessage) -> None:
        """Remember what a log of the target has acknowledged, also to notice later that it has lost it."""
        log = message.route.log
        if log and not message.redriven:  # a dead letter says nothing of what is in front of it
            opened.newest[log] = max(opened.newest.get(log, 0), message.event_id)
            self._acknowledged[log] = opened.newest[log]

    def _is_missing(self, opened: Opened, message: RelayMessage) -> bool:
        """Whether a message is to be sent: it isn't there, as far as the target knows."""
        log = message.route.log
        if not log:
            return True
        if log not in opened.newest:
            if len(opened.newest) >= MOST_LOGS:
                opened.newest.clear()
            opened.newest[log] = self._newest(opened.bridge, message)
        return message.redriven or message.event_id > opened.newest[log]

    def _newest(self, bridge: Bridge, message: RelayMessage) -> int:
        """The newest event that the target has; TargetUnavailable if it is of another past than the topic's log.

        Also if it lost what it had acknowledged to this process, and this message would come in front of that.
        """
        log = message.route.log
        found = bridge.newest(log)
        if found is None:
            return 0
        self._refuse_stranger(found, log)
        acknowledged = self._acknowledged.get(log, 0)
        if found.event_id < acknowledged < message.event_id:
            topic = self._relay.topics[0]
            raise TargetUnavailable(
                f"{log!r} has lost what it had acknowledged: its newest event was {topic}/{acknowledged}, and is "
                f"{found.event_id} now. Rewind to event {found.event_id + 1}: only what is lost is sent again. To "
                "leave that out, restart the workers."
            )
        return found.event_id

    def _refuse_stranger(self, found: Newest, log: str) -> None:
        topic, using = self._relay.topics[0], self._using
        if found.address and found.address.rpartition("/")[0] != topic:
            raise TargetUnavailable(
                f"{log!r} has {found.address} as its newest message, which is not of topic {topic!r}. Each relay needs "
                "a target of its own."
            )
        if found.relay and found.relay != self._relay.name:
            raise TargetUnavailable(
                f"{log!r} is filled by the relay {found.relay!r}, and {self._relay.name!r} would take for sent what "
                "that one left out. Each relay needs a target of its own, and one that is renamed, too."
            )
        last_id, published_at = _logged(using, topic, found.event_id)
        if found.event_id > last_id:
            raise TargetUnavailable(
                f"{log!r} has event {topic}/{found.event_id}, and the log of {using!r} ends at {last_id}. Another "
                "database's relay fills it, or this one was restored: send to a new target."
            )
        if published_at is not None and found.published_at is not None and published_at != found.published_at:
            raise TargetUnavailable(
                f"{log!r} has another event {topic}/{found.event_id} than the log of {using!r}: it was published at "
                f"{found.published_at}, and this one at {published_at}. Another database's relay fills it, or this one "
                "was restored: send to a new target."
            )

    @property
    def _target(self) -> Any:
        return self._relay.to

    def _open(self) -> Opened:
        thread = threading.get_ident()
        if (found := self._opened.get(thread)) is None:
            found = self._opened[thread] = Opened((self._shared or self._target).bridge())
            found.bridge.open()
        return found

    def _drop(self) -> None:
        """Close this thread's bridge: the next attempt opens another one."""
        if (found := self._opened.pop(threading.get_ident(), None)) is not None:
            found.bridge.close()


def _logged(using: str, topic: str, event_id: int) -> tuple[int, datetime | None]:
    """The last id of a topic's log, and when an event of it was published, if it is still there."""
    topic_id = Topic.objects.using(using).values_list("id", flat=True).get(name=topic)
    events = Event.objects.using(using).filter(topic_id=topic_id)
    last: int = events.order_by("-id").values_list("id", flat=True).first() or 0
    return last, events.filter(id=event_id).values_list("published_at", flat=True).first()


def _logs_of(messages: Iterable[RelayMessage]) -> set[str]:
    return {one.route.log for one in messages} - {""}


def _index_of(events: Iterable[ReceivedEvent], event_id: int) -> int:
    return next(index for index, event in enumerate(events) if event.id == event_id)


def _place_of(error: BaseException) -> str:
    """Where it was raised. What it says is left out: only a bridge of this package knows what in it is secret."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(raised.filename).name}:{raised.lineno}"
