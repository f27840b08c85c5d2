"""What an operator does to a running system: every verb, by name.

from django_events.operations import redrive, rewind

Those that act on one consumer are methods of its declaration too: `billing.rewind(to=1042)`.
"""

from django_events.deriving.rebuilding import abandon_rebuild, rebuild
from django_events.deriving.snapshotting import snapshot
from django_events.observing.lag import lag
from django_events.observing.matches import matches
from django_events.observing.searching import search
from django_events.operating.cancelling import cancel_scheduled
from django_events.operating.clocks import pause_clock, remove_clock, resume_clock, run_clock
from django_events.operating.dead_letters import discard, redrive
from django_events.operating.erasing.api import erase
from django_events.operating.inboxes import pause_inbox, remove_inbox, restart_inbox, resume_inbox
from django_events.operating.pausing import pause, resume
from django_events.operating.publishing_scheduled import publish_scheduled
from django_events.operating.removing import remove_topic
from django_events.operating.repartitioning import repartition
from django_events.operating.replaying import replay
from django_events.operating.resharding import forget_shard, reshard
from django_events.operating.retrying import retry_now
from django_events.operating.rewinding import rewind
from django_events.operating.skipping import skip
from django_events.operating.subscribing import subscribe, unsubscribe
from django_events.operating.unregistering import unregister
from django_events.outcomes import (
    Matched,
    Move,
    Rebuilt,
    RemovedTopic,
    Repartitioned,
    Replayed,
    Resharded,
    Retried,
    Searched,
    Skipped,
    Snapshot,
    Subscribed,
)
from django_events.outward.exchange import WebhookAnswer
from django_events.outward.setting_up import add_webhook, change_webhook, rotate_secret, try_webhook
from django_events.publishing.republish import publish_again

__all__ = [
    "Matched",
    "Move",
    "Rebuilt",
    "RemovedTopic",
    "Repartitioned",
    "Replayed",
    "Resharded",
    "Retried",
    "Searched",
    "Skipped",
    "Snapshot",
    "Subscribed",
    "WebhookAnswer",
    "abandon_rebuild",
    "add_webhook",
    "cancel_scheduled",
    "change_webhook",
    "discard",
    "erase",
    "forget_shard",
    "lag",
    "matches",
    "pause",
    "pause_clock",
    "pause_inbox",
    "publish_again",
    "publish_scheduled",
    "rebuild",
    "redrive",
    "remove_clock",
    "remove_inbox",
    "remove_topic",
    "repartition",
    "replay",
    "reshard",
    "restart_inbox",
    "resume",
    "resume_clock",
    "resume_inbox",
    "retry_now",
    "rewind",
    "rotate_secret",
    "run_clock",
    "search",
    "skip",
    "snapshot",
    "subscribe",
    "try_webhook",
    "unregister",
    "unsubscribe",
]
