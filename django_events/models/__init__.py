"""The tables: what one row of each is."""

from django_events.models.buffer import BufferedEvent, DedupKey, ScheduledEvent
from django_events.models.clocks import Clock
from django_events.models.consumers import Consumer, DeadLetter, FilterTerm, Intervention, Position
from django_events.models.deliveries import Delivery, DeliveryLease, PastDelivery
from django_events.models.events import Event
from django_events.models.inboxes import Inbox
from django_events.models.maintenance import MaintenanceStep
from django_events.models.rebuilds import Rebuild
from django_events.models.rollups import RollUp
from django_events.models.samples import Overview, Sample
from django_events.models.shards import ShardMap, ShardMove
from django_events.models.staging import SinkBatch, StagedEvent
from django_events.models.topics import Topic, TopicHead
from django_events.models.webhooks import WebhookAttempt, WebhookEndpoint, WebhookSecret

__all__ = [
    "BufferedEvent",
    "Clock",
    "Consumer",
    "DeadLetter",
    "DedupKey",
    "Delivery",
    "DeliveryLease",
    "Event",
    "FilterTerm",
    "Inbox",
    "Intervention",
    "MaintenanceStep",
    "Overview",
    "PastDelivery",
    "Position",
    "Rebuild",
    "RollUp",
    "Sample",
    "ScheduledEvent",
    "ShardMap",
    "ShardMove",
    "SinkBatch",
    "StagedEvent",
    "Topic",
    "TopicHead",
    "WebhookAttempt",
    "WebhookEndpoint",
    "WebhookSecret",
]
