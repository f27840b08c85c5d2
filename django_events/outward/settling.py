"""What becomes of the deliveries of an endpoint, by what its receiver answered: each attempt in one transaction.

    settling = WebhookSettling("default", holder="host:7/webhooks", look_again=…, changed=…)
    settling.settle(hand, answered)

An endpoint to which nothing could be delivered for too long, or that wants no more, is disabled in that transaction.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from django.db import transaction

from django_events import models, sql, telemetry
from django_events.conf import settings
from django_events.consuming.failures import Failure, Verdict, storable
from django_events.consuming.handling import log_failure
from django_events.consuming.queues.claimed_deliveries import DeliverySettlement
from django_events.models.databases import for_database
from django_events.operating.interventions import record
from django_events.outward.endpoints import Endpoint
from django_events.outward.exchange import NotDelivered, WebhookAnswer
from django_events.outward.hands import Hand
from django_events.received import ReceivedEvent
from django_events.signals import event_dead_lettered, event_handled, event_retried, webhook_disabled

logger = logging.getLogger("django_events.webhooks")
SQL = sql.beside(__name__)

GONE = "the receiver answered 410 Gone: it wants no more events"
NOT_SENT = "It was too late to send it: the process was frozen."


class Answered(NamedTuple):
    """What came back from a request; None if it was too late to send it."""

    hand: Hand
    events: list[ReceivedEvent]
    url: str
    answer: WebhookAnswer | None


class WebhookSettling:
    """Settles for the worker of one process, and counts what it settled."""

    def __init__(
        self,
        using: str,
        *,
        holder: str,
        look_again: Callable[[Endpoint, Failure], None],
        changed: Callable[[], None],
    ) -> None:
        """`look_again` is told of each failure that is tried again, `changed` of an endpoint that was disabled."""
        self.using = using
        self.delivered = self.failed = self.unwanted = 0
        self._holder = holder
        self._look_again, self._changed = look_again, changed

    @property
    def attempts(self) -> int:
        """How many were settled."""
        return self.delivered + self.failed + self.unwanted

    def settle(self, hand: Hand, answered: list[Answered]) -> None:
        """Settle what is not settled yet: when the database was away in the middle, it comes again."""
        line = hand.line
        delivered = [
            (event, one.answer)
            for one in answered
            if one.answer is not None and one.answer.delivered
            for event in one.events
            if event.id in hand.under_way
        ]
        if delivered:
            self._settle_delivered(hand, delivered)
        for one in answered:
            answer = one.answer
            if answer is not None:
                line.note(answer)
            if answer is None or answer.gone:
                self._settle_uncounted(one)
                continue
            for event in one.events:
                # An earlier one of its key has failed in the same request, and this one was released with it.
                if (error := answer.failure) is None or event.id not in hand.under_way:
                    continue
                failure = replace(hand.claimed.judge(event, error), seconds=answer.seconds)
                if failure.pause is not None and answer.retry_after is not None:
                    failure = replace(failure, pause=max(failure.pause, answer.retry_after))
                self.settle_failure(hand, failure, one)
        if hand.claimed.ordered:
            line.freed()  # the next of these keys

    def _settle_delivered(self, hand: Hand, delivered: list[tuple[ReceivedEvent, WebhookAnswer]]) -> None:
        endpoint, events = hand.line.endpoint, [event for event, _ in delivered]
        with transaction.atomic(self.using):
            settlement = hand.claimed.settle(events)
            self._note_attempts(endpoint, delivered)
            sql.fetch(self.using, SQL.works, endpoint_id=endpoint.id)
        self._settled(hand, settlement)
        self.delivered += len(events)
        self._tell_delivered(hand, delivered)

    def settle_failure(self, hand: Hand, failure: Failure, answered: Answered | None = None) -> None:
        """Settle an attempt that failed; without an answer nothing was sent. Disable what failed for too long."""
        log_failure(hand.claimed)(failure)
        endpoint, reason = hand.line.endpoint, ""
        with transaction.atomic(self.using):
            settlement = hand.claimed.settle([], failure)
            if answered is not None and answered.answer is not None:
                self._note_attempts(endpoint, [(failure.event, answered.answer)])
                for (lasted,) in sql.fetch(self.using, SQL.fails, endpoint_id=endpoint.id):
                    if lasted > settings.WEBHOOK_DISABLED_AFTER:
                        reason = f"nothing could be delivered for {lasted.days} days"
                        reason = f"{reason}, the last time because of: {failure.error}"
                        reason = self._disable(endpoint, answered.url, reason)
        self._settled(hand, settlement)
        self.failed += 1
        self._look_again(endpoint, failure)
        self._tell_failure(hand, failure)
        self._tell_disabled(endpoint, reason)

    def _settle_uncounted(self, answered: Answered) -> None:
        """Settle what was not sent, or not wanted: the events are not to blame, so no attempt at them is counted.

        A receiver that wants no more is disabled, if the lease is still ours. Its events stay, until a person resumes
        or removes the endpoint.
        """
        hand, events, url, answer = answered
        endpoint, reason = hand.line.endpoint, ""
        error = NotDelivered(NOT_SENT if answer is None else GONE)
        for event in events:
            if event.id not in hand.under_way:  # released with an earlier one of its key
                continue
            failure = Failure(event, error, Verdict.RETRY, timedelta(0), counts=False)
            log_failure(hand.claimed)(failure)
            with transaction.atomic(self.using):
                settlement = hand.claimed.settle([], failure)
                if answer is not None:
                    self._note_attempts(endpoint, [(event, answer)])
                    reason = self._disable(endpoint, url, GONE)
            self._settled(hand, settlement)
            self.unwanted += answer is not None
            self._look_again(endpoint, failure)
            self._tell_disabled(endpoint, reason)

    def _settled(self, hand: Hand, settlement: DeliverySettlement) -> None:
        hand.claimed.settled(settlement)
        hand.under_way -= settlement.out

    def _note_attempts(self, endpoint: Endpoint, made: list[tuple[ReceivedEvent, WebhookAnswer]]) -> None:
        sql.fetch(
            self.using,
            SQL.note_attempts,
            endpoint_id=endpoint.id,
            event_ids=[event.id for event, _ in made],
            attempts=[event.attempt for event, _ in made],
            seconds=[answer.seconds for _, answer in made],
            statuses=[answer.status for _, answer in made],
            excerpts=[storable(answer.excerpt) for _, answer in made],
            errors=[storable(answer.error) for _, answer in made],
        )

    def _disable(self, endpoint: Endpoint, url: str, reason: str) -> str:
        """Pause an endpoint in the open transaction; returns why, or nothing if it is paused, or has another URL."""
        if not sql.fetch(self.using, SQL.disable, endpoint_id=endpoint.id, url=url, reason=storable(reason)):
            self._changed()
            return ""
        row = models.Consumer.objects.using(self.using).select_related("topic").get(pk=endpoint.consumer_id)
        record(self.using, row, "pause", by=self._holder, reason=reason)
        return reason

    def _tell_disabled(self, endpoint: Endpoint, reason: str) -> None:
        if not reason:
            return
        self._changed()
        topic, name = endpoint.consumer.topics[0], endpoint.name
        logger.error(
            "Webhook endpoint %r is disabled: %s. When it works again: manage.py events resume %s",
            name,
            reason,
            name + for_database(self.using),
            extra={"database": self.using, "consumer": name, "topic": topic},
        )
        webhook_disabled.send_robust(name, endpoint=name, topic=topic, reason=reason, using=self.using)

    def _tell_delivered(self, hand: Hand, delivered: list[tuple[ReceivedEvent, WebhookAnswer]]) -> None:
        of = hand.claimed.subscription
        seconds = sum(answer.seconds for _, answer in delivered)
        events = [event for event, _ in delivered]
        if telemetry.ATTEMPTS.observed:
            labels = self.using, of.consumer.name, of.topic
            telemetry.ATTEMPTS.tell(len(events), *labels, "handled")
            for event, answer in delivered:
                telemetry.HANDLER.tell(answer.seconds, *labels, "handled")
                telemetry.LOG_TO_HANDLED.tell(max(time.time() - event.logged_at.timestamp(), 0.0), *labels)
        if event_handled.receivers:
            event_handled.send_robust(
                of.consumer, consumer=of.consumer, topic=of.topic, events=events, seconds=seconds, using=self.using
            )

    def _tell_failure(self, hand: Hand, failure: Failure) -> None:
        of, event, error = hand.claimed.subscription, failure.event, failure.error
        if telemetry.ATTEMPTS.observed:
            labels = self.using, of.consumer.name, of.topic, failure.verdict.outcome
            telemetry.ATTEMPTS.tell(1, *labels)
            if failure.seconds is not None:
                telemetry.HANDLER.tell(failure.seconds, *labels)
        if failure.verdict is Verdict.RETRY:
            event_retried.send_robust(
                of.consumer, consumer=of.consumer, event=event, error=error, pause=failure.pause, using=self.using
            )
        elif failure.verdict is Verdict.DEAD_LETTER:
            event_dead_lettered.send_robust(
                of.consumer, consumer=of.consumer, event=event, error=error, using=self.using
            )
