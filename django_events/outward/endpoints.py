"""Endpoints as their worker sees them: what to send where, signed by which secrets, and how often to try.

    for endpoint in endpoints("default"):
        request = endpoint.request(event)

An endpoint belongs to a subscription, a queue consumer that no app declares: what is in its rows is all there is.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db.models import Prefetch, Q

from django_events import declarations, models
from django_events.conf import settings
from django_events.consuming.subscribed import of_row
from django_events.models.functions import ClockTimestamp
from django_events.outward.addresses import networks
from django_events.outward.bodies import Message, listed, written
from django_events.outward.exchange import Request, RequestLimits
from django_events.outward.signing import signed
from django_events.received import ReceivedEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """An endpoint as it is in the database in one moment."""

    id: int
    consumer: declarations.DeclaredConsumer
    consumer_id: int
    topic_id: int
    url: str = field(repr=False)  # its query may be a secret
    form: str
    concurrency: int
    batch_size: int
    secrets: tuple[str, ...] = field(repr=False)  # the newest first
    expires: bool  # whether its subscription goes when nothing serves it for long

    @property
    def name(self) -> str:
        return self.consumer.name

    def request(self, event: ReceivedEvent) -> Request:
        """What is sent of an event now; UnreadableEvent if its payload can't be."""
        return self._signed(written(event, self.form) if self.batch_size == 1 else listed([event], self.form))

    def request_of(self, events: Sequence[ReceivedEvent]) -> tuple[Request, int]:
        """The same of several events, and how many of them it has: the first ones, as many as fit together."""
        message = listed(events, self.form)
        return self._signed(message), message.events

    def _signed(self, message: Message) -> Request:
        signatures = signed(self.secrets, message_id=message.id, timestamp=int(time.time()), body=message.body)
        return Request(self.url, {**message.headers, **signatures}, message.body)


def endpoints(using: str, name: str | None = None) -> list[Endpoint]:
    """The endpoints of a database to which something may be sent, or the one of a name, also if it is disabled."""
    rows = models.WebhookEndpoint.objects.using(using).select_related("consumer__topic").order_by("id")
    chosen = rows.filter(consumer__paused_at=None) if name is None else rows.filter(consumer__name=name)
    still = Q(signs_until=None) | Q(signs_until__gt=ClockTimestamp())
    secrets = models.WebhookSecret.objects.using(using).filter(still).order_by("-id")
    return [_endpoint(row) for row in chosen.prefetch_related(Prefetch("secrets", secrets))]


def _endpoint(row: models.WebhookEndpoint) -> Endpoint:
    return Endpoint(
        id=row.pk,
        consumer=of_row(row.consumer),
        consumer_id=row.consumer_id,
        topic_id=row.consumer.topic_id,
        url=row.url,
        form=row.form,
        concurrency=row.concurrency,
        batch_size=row.batch_size,
        secrets=tuple(one.secret for one in row.secrets.all()),
        expires=row.consumer.expires_after is not None,
    )


def limits() -> RequestLimits:
    """What the settings say of requests."""
    return RequestLimits(seconds=settings.WEBHOOK_TIMEOUT.total_seconds(), allowed=networks(settings.WEBHOOK_NETWORKS))
