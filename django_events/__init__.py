"""Events for Django: published in your transaction, kept in order in your PostgreSQL.

    from django_events import publish, topic

    orders = topic("orders", partitions=8)

    with transaction.atomic():
        order.save()
        orders.publish({"id": order.pk}, type="order.placed", key=str(order.pk))

Here is what a site declares, publishes and handles with. What a person does to a running system is in
`django_events.operations`. The names load when they are first used, so importing this package imports no model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Backoff": "django_events.retries",
    "BufferedWriter": "django_events.publishing.writer",
    "DELETE": "django_events.declarations",
    "Claimed": "django_events.consuming.programs.claiming",
    "DeclaredConsumer": "django_events.declarations",
    "DeclaredInbox": "django_events.declarations",
    "DeclaredProjection": "django_events.declarations",
    "DeclaredRelay": "django_events.declarations",
    "Deletion": "django_events.declarations",
    "CreateTopic": "django_events.migrating",
    "Draft": "django_events.drafts",
    "EventsError": "django_events.exceptions",
    "Ignore": "django_events.retries",
    "Receipt": "django_events.drafts",
    "ReceivedEvent": "django_events.received",
    "RetryLater": "django_events.retries",
    "DeclaredRollUp": "django_events.declarations",
    "schema": "django_events.declarations",
    "upcaster": "django_events.declarations",
    "DeclaredTopic": "django_events.declarations",
    "UNSET": "django_events.drafts",
    "apublish": "django_events.publishing.api",
    "apublish_many": "django_events.publishing.api",
    "await_for": "django_events.deriving.waiting",
    "cancel": "django_events.publishing.api",
    "capture": "django_events.publishing.capture",
    "claim": "django_events.consuming.programs.claiming",
    "close_writers": "django_events.publishing.open_writers",
    "consumer": "django_events.declarations",
    "end_streams": "django_events.live.server_sent_events",
    "end_streams_on_sigterm": "django_events.live.server_sent_events",
    "event_context": "django_events.publishing.session_settings",
    "InboxMessage": "django_events.bridges.inboxes.sources",
    "inbox": "django_events.declarations",
    "jetstream": "django_events.bridges.relays.jetstream",
    "jetstream_source": "django_events.bridges.inboxes.jetstream_source",
    "kafka": "django_events.bridges.relays.kafka",
    "kafka_source": "django_events.bridges.inboxes.kafka_source",
    "listen": "django_events.live.listening",
    "outbox": "django_events.publishing.outbox",
    "projection": "django_events.declarations",
    "publish": "django_events.publishing.api",
    "publish_many": "django_events.publishing.api",
    "queue": "django_events.declarations",
    "rabbitmq": "django_events.bridges.relays.rabbitmq",
    "rabbitmq_source": "django_events.bridges.inboxes.rabbitmq_source",
    "log_source": "django_events.bridges.inboxes.log_source",
    "redis_source": "django_events.bridges.inboxes.redis_source",
    "redis_stream": "django_events.bridges.relays.redis_streams",
    "relay": "django_events.declarations",
    "reads_own_writes": "django_events.deriving.own_writes",
    "rollup": "django_events.declarations",
    "shard_of": "django_events.publishing.shards",
    "sns": "django_events.bridges.relays.sns",
    "sqs": "django_events.bridges.relays.sqs",
    "sqs_source": "django_events.bridges.inboxes.sqs_source",
    "sse": "django_events.live.server_sent_events",
    "suppress": "django_events.publishing.session_settings",
    "topic": "django_events.declarations",
    "wait_for": "django_events.deriving.waiting",
}

__all__ = [
    "DELETE",
    "UNSET",
    "Backoff",
    "BufferedWriter",
    "Claimed",
    "CreateTopic",
    "DeclaredConsumer",
    "DeclaredInbox",
    "DeclaredProjection",
    "DeclaredRelay",
    "DeclaredRollUp",
    "DeclaredTopic",
    "Deletion",
    "Draft",
    "EventsError",
    "Ignore",
    "InboxMessage",
    "Receipt",
    "ReceivedEvent",
    "RetryLater",
    "apublish",
    "apublish_many",
    "await_for",
    "cancel",
    "capture",
    "claim",
    "close_writers",
    "consumer",
    "end_streams",
    "end_streams_on_sigterm",
    "event_context",
    "inbox",
    "jetstream",
    "jetstream_source",
    "kafka",
    "kafka_source",
    "listen",
    "log_source",
    "outbox",
    "projection",
    "publish",
    "publish_many",
    "queue",
    "rabbitmq",
    "rabbitmq_source",
    "reads_own_writes",
    "redis_source",
    "redis_stream",
    "relay",
    "rollup",
    "schema",
    "shard_of",
    "sns",
    "sqs",
    "sqs_source",
    "sse",
    "suppress",
    "topic",
    "upcaster",
    "wait_for",
]

if TYPE_CHECKING:
    from django_events.bridges.inboxes.jetstream_source import jetstream_source
    from django_events.bridges.inboxes.kafka_source import kafka_source
    from django_events.bridges.inboxes.log_source import log_source
    from django_events.bridges.inboxes.rabbitmq_source import rabbitmq_source
    from django_events.bridges.inboxes.redis_source import redis_source
    from django_events.bridges.inboxes.sources import InboxMessage
    from django_events.bridges.inboxes.sqs_source import sqs_source
    from django_events.bridges.relays.jetstream import jetstream
    from django_events.bridges.relays.kafka import kafka
    from django_events.bridges.relays.rabbitmq import rabbitmq
    from django_events.bridges.relays.redis_streams import redis_stream
    from django_events.bridges.relays.sns import sns
    from django_events.bridges.relays.sqs import sqs
    from django_events.consuming.programs.claiming import Claimed, claim
    from django_events.declarations import (
        DELETE,
        DeclaredConsumer,
        DeclaredInbox,
        DeclaredProjection,
        DeclaredRelay,
        DeclaredRollUp,
        DeclaredTopic,
        Deletion,
        consumer,
        inbox,
        projection,
        queue,
        relay,
        rollup,
        schema,
        topic,
        upcaster,
    )
    from django_events.deriving.own_writes import reads_own_writes
    from django_events.deriving.waiting import await_for, wait_for
    from django_events.drafts import UNSET, Draft, Receipt
    from django_events.exceptions import EventsError
    from django_events.live.listening import listen
    from django_events.live.server_sent_events import end_streams, end_streams_on_sigterm, sse
    from django_events.migrating import CreateTopic
    from django_events.publishing.api import (
        apublish,
        apublish_many,
        cancel,
        publish,
        publish_many,
    )
    from django_events.publishing.capture import capture
    from django_events.publishing.open_writers import close_writers
    from django_events.publishing.outbox import outbox
    from django_events.publishing.session_settings import event_context, suppress
    from django_events.publishing.shards import shard_of
    from django_events.publishing.writer import BufferedWriter
    from django_events.received import ReceivedEvent
    from django_events.retries import Backoff, Ignore, RetryLater


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
