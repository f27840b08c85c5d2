"""The worker of webhooks: it claims deliveries of all endpoints, has them sent, and has what came back settled.

    worker = WebhookWorker("default", listener)
    run(worker, stop)

The database is asked in the worker's thread, requests are sent in the sender's. Any number of processes share the
endpoints: a delivery is claimed by one at a time, under a token, and one whose lease was taken over settles nothing.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from queue import Empty, SimpleQueue

from django.db import DatabaseError, InterfaceError

from django_events import models, sql, telemetry
from django_events.consuming.failures import Failure
from django_events.consuming.handling import begin, no_attempt_left
from django_events.consuming.leases import give_up
from django_events.consuming.queues.claimed_deliveries import ClaimedDeliveries
from django_events.consuming.queues.deliveries import Queue
from django_events.consuming.queues.server import QueueServer
from django_events.consuming.setbacks import ConsumerSetbacks, sets_aside
from django_events.consuming.subscribed import note_served
from django_events.consuming.subscriptions import Subscription, subscriptions
from django_events.exceptions import EventsMissing, LeaseLost, NotReady, UnreadableEvent
from django_events.log import channel
from django_events.outward.endpoints import Endpoint, endpoints, limits
from django_events.outward.exchange import Request, WebhookAnswer
from django_events.outward.hands import EndpointLine, Hand
from django_events.outward.sending import Sender
from django_events.outward.settling import Answered, WebhookSettling
from django_events.received import ReceivedEvent
from django_events.workers.due_partitions import Due, DuePartitions
from django_events.workers.lease_renewal import LeaseRenewal
from django_events.workers.listening import Listener
from django_events.workers.loop import connect_for_work
from django_events.workers.stopping import Stop
from django_events.workers.wakeup_flag import WakeupFlag

logger = logging.getLogger("django_events.webhooks")

LAST_LOOKS = 0.05  # seconds between two looks for answers, when the process ends
MOST = 500  # requests under way, of all endpoints together


class WebhookWorker:
    """Serves the webhook endpoints of one database."""

    def __init__(self, using: str, listener: Listener, *, most: int = MOST, once: bool = False) -> None:
        self.using = using
        self.setbacks = ConsumerSetbacks(using)
        self._told = 0
        self._most = most
        self._once = once
        self._holder = f"{socket.gethostname()}:{os.getpid()}/webhooks"
        self.settling = WebhookSettling(
            using, holder=self._holder, look_again=self._look_again, changed=self._look_for_changes
        )
        self._listener = listener
        self._wakeup = WakeupFlag()
        self._sender = Sender(limits())
        self._renewal = LeaseRenewal(using, stop=lambda: None)
        self._requests = 0  # under way, of lost hands too
        self._answers = SimpleQueue[Answered]()
        self._unsettled: list[Answered] = []
        self._lines: dict[int, EndpointLine] = {}  # by the consumer's id
        self._left: list[Hand] = []  # of endpoints that are disabled, or removed
        self._due: DuePartitions | None = None
        self._loaded_at: float | None = None
        if not once:
            listener.on(channel.LOG, self._notified)
            listener.start()

    @property
    def left(self) -> bool:
        """Whether requests are under way for which `--once` waits."""
        return self._once and bool(self._requests)

    @property
    def poll(self) -> float:
        """How long to wait at most without looking everywhere, in seconds."""
        return self._listener.pause

    @property
    def _hands(self) -> list[Hand]:
        return [*self._left, *(hand for line in self._lines.values() for hand in line.hands)]

    def take_settled(self) -> int:
        """How many attempts were settled since the last time."""
        before, self._told = self._told, self.settling.attempts
        return self._told - before

    def hand_back(self) -> None:
        """Give up all leases, for a process that ends at once: see `LeaseRenewal.hand_back`."""
        self._renewal.hand_back()

    def connect(self) -> None:
        connect_for_work(self.using)

    def work(self, stop: Stop) -> int:
        """Settle what was answered, and send what can be sent; returns how many events were settled or claimed."""
        settled = self._settle_answered()
        self._load_sometimes()
        self._start_waiting()
        return settled + self._claim_due(stop)

    def wait(self, stop: Stop) -> None:
        """Until an answer comes, something is published or due, or an endpoint has rested."""
        now = time.monotonic()
        times = [line.rests_until - now for line in self._lines.values() if line.more and line.rests]
        if self._due is not None:
            times.append(self._due.seconds_to_next(period=self.poll))
        self._wakeup.wait(stop, max(min([self.poll, *times]), 0.0))

    def reset(self) -> None:
        """What was answered is settled on the next connection; what is in hand is renewed on another one."""
        self._loaded_at = None

    def close(self) -> None:
        """Wait for the answers of what is under way, settle them, and free the rest for other processes."""
        deadline = time.monotonic() + limits().seconds
        with closing(Stop()) as never:
            while self._requests and time.monotonic() < deadline and self._settles():
                self._wakeup.wait(never, LAST_LOOKS)
        self._sender.close()
        if self._settles():
            for hand in self._hands:
                with suppress(DatabaseError, InterfaceError, LeaseLost):
                    hand.claimed.release()
                hand.renewal.close()
            with suppress(DatabaseError, InterfaceError):
                for line in self._lines.values():
                    line.server.close()
        self._renewal.close()
        self._wakeup.close()

    def _settles(self) -> bool:
        """Whether what was answered could be settled, before this process ends."""
        try:
            self._settle_answered()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Answers can't be settled, so these events are sent again. %s", sql.said(error))
            return False
        return True

    def _notified(self, payload: str) -> None:
        """Events arrived, or a person changed something."""
        news = channel.read(payload)
        if self._due is not None:
            self._due.arrived(news.partitions)
            self._due.freed(news.topic_ids)
        if news.topic_ids or news.everywhere:
            self._loaded_at = None
        self._wakeup.set()

    # Which endpoints there are

    def _load_sometimes(self) -> None:
        """Read the endpoints again once in a while, and when something changed."""
        if self._loaded_at is not None and time.monotonic() - self._loaded_at < self.poll:
            return
        self._loaded_at = time.monotonic()
        found = {one.consumer_id: one for one in endpoints(self.using)}
        if served := [one.consumer_id for one in found.values() if one.expires]:
            note_served(self.using, served)
        known = {consumer_id: line.endpoint.consumer for consumer_id, line in self._lines.items()}
        if self._due is None or known != {consumer_id: one.consumer for consumer_id, one in found.items()}:
            self._take_on(list(found.values()))
        for consumer_id, line in self._lines.items():
            line.endpoint = found.get(consumer_id, line.endpoint)
            if +line.server.queue.counts and not line.hands:  # nothing is claimed soon that would write them down
                line.server.queue.flush()

    def _take_on(self, found: list[Endpoint]) -> None:
        """Serve these from now on."""
        try:
            subscribed = subscriptions(self.using, [one.consumer for one in found])
        except NotReady:  # one was unregistered in this moment
            self._loaded_at = None
            return
        of_consumer = {one.consumer_id: one for one in subscribed}
        lines = {one.consumer_id: self._line(one, of_consumer[one.consumer_id]) for one in found}
        for consumer_id, line in self._lines.items():
            if lines.get(consumer_id) is not line:
                self._left += line.hands
        self._lines = lines
        self._due = DuePartitions(self.using, subscribed, setbacks=self.setbacks)

    def _line(self, endpoint: Endpoint, subscription: Subscription) -> EndpointLine:
        line = self._lines.get(endpoint.consumer_id)
        if line is not None and line.endpoint.consumer == endpoint.consumer:
            return line
        [(position_id, _)] = subscription.positions
        queue = Queue(subscription, holder=self._holder)
        return EndpointLine(endpoint, QueueServer(queue), position_id)

    # What is claimed and sent

    def _claim_due(self, stop: Stop) -> int:
        claimed = 0
        for line, room in self._with_room(stop):
            claimed += self._claim(line, room)
        return claimed

    def _with_room(self, stop: Stop) -> Iterator[tuple[EndpointLine, int]]:
        """The endpoints for which something may be claimed now, and those that are due, each with how much."""
        for line in [line for line in self._lines.values() if line.more]:
            if not stop.requested and (room := line.room(self._most - self._requests)) > 0:
                yield line, room
        while not stop.requested and self._due is not None and self._is_due(self._due):
            if (due := self._due.take()) is None:
                return
            if (found := self._lines.get(due.subscription.consumer_id)) is not None:
                found.more = True
                self._renew(found, due)
                if (room := found.room(self._most - self._requests)) > 0:
                    yield found, room

    def _is_due(self, due: DuePartitions) -> bool:
        try:
            return due.look(period=self.poll)
        except NotReady:  # one was unregistered in this moment
            self._due = self._loaded_at = None
            return False

    def _renew(self, line: EndpointLine, due: Due) -> None:
        """Serve the endpoint by what its consumer's row says now."""
        if line.server.subscription is not due.subscription:
            line.server = QueueServer(Queue(due.subscription, holder=self._holder))

    def _claim(self, line: EndpointLine, room: int) -> int:
        """Claim deliveries of an endpoint, and begin to send them; returns how many."""
        assert self._due is not None  # noqa: S101
        line.server.at_once, began = room, time.monotonic()
        try:
            claimed = line.server.claim(ours=self._renewal.leases)
        except (DatabaseError, EventsMissing) as error:
            if not self._set_aside(line, error):
                raise
            return 0
        line.more = line.server.more or line.server.ask_again
        if claimed is None:
            if line.server.unclaimable is not None:
                self._due.unclaimable(line.position_id, *line.server.unclaimable)
            if not line.more:
                self._due.refused(line.position_id)
            return int(line.server.ask_again)
        self._due.claimed(line.position_id)
        self._due.served(line.position_id, until=None, ended=True)
        return self._take_in_hand(line, claimed, began)

    def _set_aside(self, line: EndpointLine, error: DatabaseError | EventsMissing) -> bool:
        """Leave an endpoint alone for a while if the error is about its log or its filter; others go on."""
        if self._due is None or not sets_aside(self.using, error):
            return False
        line.more = False
        line.server.start_over()
        self._due.set_aside(Due(line.server.subscription, line.position_id, models.Position.ALL), error)
        return True

    def _take_in_hand(self, line: EndpointLine, claimed: ClaimedDeliveries, began: float) -> int:
        renewal = ExitStack()
        renewal.enter_context(self._renewal.renewing(claimed))
        hand = Hand(line, claimed, renewal, proven_at=began)
        line.hands.append(hand)
        count = len(claimed.attempts)
        self._start(hand)
        return count

    def _start_waiting(self) -> None:
        """Go on with what is in hand: the next of a key, or what waited for room."""
        for hand in self._hands:
            if len(hand.under_way) < len(hand.claimed.left):
                self._start(hand)
            elif not hand.under_way:
                self._drop(hand)

    def _start(self, hand: Hand) -> None:
        """Send of a hand what can be sent now; what an endpoint that rests or is disabled has is freed."""
        line = hand.line
        try:
            if self._is_open(line) and not line.rests:
                for events in hand.next():
                    if line.requests >= line.endpoint.concurrency or self._is_full(line):
                        return
                    if not hand.is_ours():
                        raise hand.claimed.lose()
                    if len(events) == 1:
                        self._send(hand, events[0])
                    else:
                        self._send_together(hand, events)
            if not hand.under_way:
                self._put_down(hand)
        except LeaseLost as error:
            self._lose(hand, error)
        except (DatabaseError, EventsMissing) as error:
            if not self._set_aside(line, error):
                raise
            self._drop(hand)
            give_up(self.using, [hand.claimed.token])

    def _is_full(self, line: EndpointLine) -> bool:
        """Whether the process has no room for one more request. An endpoint with nothing under way has room for one."""
        return self._requests >= self._most and line.requests > 0

    def _is_open(self, line: EndpointLine) -> bool:
        return self._lines.get(line.endpoint.consumer_id) is line

    def _put_down(self, hand: Hand) -> None:
        """Free what is left of a hand of which nothing is under way."""
        if not hand.claimed.released:
            hand.claimed.release()
            hand.line.freed()
        self._drop(hand)

    def _drop(self, hand: Hand) -> None:
        hand.renewal.close()
        for hands in (hand.line.hands, self._left):
            if hand in hands:
                hands.remove(hand)

    def _lose(self, hand: Hand, error: LeaseLost) -> None:
        """Nothing of a hand is settled any more; the answers to what is under way mean nothing."""
        logger.warning("%s", error, extra=hand.claimed.fields)
        of = hand.claimed.subscription
        telemetry.LEASES_LOST.tell(1, self.using, of.consumer.name, of.topic)
        hand.lost = True
        self._drop(hand)
        give_up(self.using, [hand.claimed.token])  # other workers need not wait for what is still leased under it
        hand.line.freed()

    def _send(self, hand: Hand, event: ReceivedEvent) -> None:
        """Begin to send an event; one that can't be sent at all is settled as failed."""
        claimed = hand.claimed
        begun: ReceivedEvent | Failure = event
        if claimed.is_careful(event):
            if claimed.attempts_of(event) >= claimed.subscription.consumer.retry.attempts:
                begun = no_attempt_left(claimed, event)
            else:
                begun = begin(claimed, event)
        if isinstance(begun, Failure):
            self.settling.settle_failure(hand, begun)
            return
        try:
            request = hand.line.endpoint.request(begun)
        except UnreadableEvent as error:
            self.settling.settle_failure(hand, claimed.judge(begun, error))
            return
        self._give_to_sender(hand, request, [begun])

    def _send_together(self, hand: Hand, events: list[ReceivedEvent]) -> None:
        """Begin to send some events in one request, as many as fit: none of them was attempted before."""
        try:
            request, count = hand.line.endpoint.request_of(events)
        except UnreadableEvent as error:
            self.settling.settle_failure(hand, hand.claimed.judge(events[0], error))
            return
        self._give_to_sender(hand, request, events[:count])

    def _give_to_sender(self, hand: Hand, request: Request, events: list[ReceivedEvent]) -> None:
        hand.requests += 1
        self._requests += 1
        telemetry.WEBHOOK_REQUESTS.tell(1, self.using)
        hand.under_way |= {event.id for event in events}

        def answered(answer: WebhookAnswer | None) -> None:
            """Called in the sender's thread."""
            self._answers.put(Answered(hand, events, request.url, answer))
            self._wakeup.set()

        self._sender.send(request, answered, until=hand.good_until)

    # What is settled, see `settling`

    def _settle_answered(self) -> int:
        """Settle what was answered; what can't be settled now, because the database is away, is kept."""
        with suppress(Empty):
            while True:
                self._unsettled.append(self._answers.get_nowait())
                self._unsettled[-1].hand.requests -= 1
                self._requests -= 1
                self._tell_answered(self._unsettled[-1])
        settled = 0
        while self._unsettled:
            hand = self._unsettled[0].hand
            of_hand = [one for one in self._unsettled if one.hand is hand]
            if not hand.lost:
                try:
                    self.settling.settle(hand, of_hand)
                    settled += sum(len(one.events) for one in of_hand)
                except LeaseLost as error:
                    self._lose(hand, error)
            self._unsettled = [one for one in self._unsettled if one.hand is not hand]
        return settled

    def _look_again(self, endpoint: Endpoint, failure: Failure) -> None:
        """Look for what is tried again before the next look everywhere."""
        if self._due is not None and failure.pause is not None and failure.pause.total_seconds() < self.poll:
            self._due.look_at([endpoint.topic_id])

    def _look_for_changes(self) -> None:
        """Read the endpoints again before anything more is claimed: one was disabled, or has another URL."""
        self._loaded_at = None

    def _tell_answered(self, answered: Answered) -> None:
        of, answer = answered.hand.claimed.subscription, answered.answer
        telemetry.WEBHOOK_REQUESTS.tell(-1, self.using)
        telemetry.WEBHOOK_ANSWERS.tell(
            1, self.using, of.consumer.name, of.topic, "unsent" if answer is None else answer.status_class
        )
