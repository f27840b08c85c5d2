"""The subcommands of `manage.py events`, in the order in which its help lists them."""

from django_events.management.events.acting import PAUSE, RESUME, REWIND, UNREGISTER
from django_events.management.events.benching import BENCH
from django_events.management.events.claiming import ACK, CLAIM, EXTEND, NACK
from django_events.management.events.clocks import CLOCK
from django_events.management.events.dead_letters import DEAD_LETTERS, DISCARD, REDRIVE
from django_events.management.events.erasing import ERASE
from django_events.management.events.failing import RETRY, SKIP
from django_events.management.events.grants import GRANTS
from django_events.management.events.importing import IMPORT_BEAT
from django_events.management.events.inboxes import BRIDGES, INBOX_COMMAND
from django_events.management.events.looking.doctor import DOCTOR
from django_events.management.events.looking.fates import FATE
from django_events.management.events.looking.health import HEALTH
from django_events.management.events.looking.listing import CONSUMERS, INTERVENTIONS, TOPICS
from django_events.management.events.looking.matching import MATCH
from django_events.management.events.looking.peeking import PEEK
from django_events.management.events.looking.scaling import SCALE
from django_events.management.events.looking.searching import SEARCH
from django_events.management.events.looking.status import STATUS
from django_events.management.events.looking.tailing import TAIL
from django_events.management.events.looking.verifying import VERIFY
from django_events.management.events.looking.workers import WORKERS
from django_events.management.events.maintaining import MAINTAIN
from django_events.management.events.publishing import PUBLISH
from django_events.management.events.rebuilding import AS_OF, CHECK_PROJECTION, REBUILD
from django_events.management.events.removing import REMOVE_TOPIC
from django_events.management.events.repartitioning import REPARTITION
from django_events.management.events.replaying import REPLAY
from django_events.management.events.scheduling import CANCEL, PUBLISH_SCHEDULED, SCHEDULED
from django_events.management.events.schemas import SCHEMAS
from django_events.management.events.shards import SHARDS
from django_events.management.events.snapshotting import SNAPSHOT
from django_events.management.events.subscribing import SUBSCRIBE, UNSUBSCRIBE
from django_events.management.events.webhooks import WEBHOOKS

ALL = (
    STATUS,
    VERIFY,
    DOCTOR,
    HEALTH,
    TOPICS,
    CONSUMERS,
    WORKERS,
    SCALE,
    PEEK,
    TAIL,
    FATE,
    MATCH,
    SEARCH,
    SCHEMAS,
    PUBLISH,
    SCHEDULED,
    CANCEL,
    PUBLISH_SCHEDULED,
    CLOCK,
    IMPORT_BEAT,
    BRIDGES,
    INBOX_COMMAND,
    SNAPSHOT,
    SUBSCRIBE,
    UNSUBSCRIBE,
    WEBHOOKS,
    CLAIM,
    ACK,
    NACK,
    EXTEND,
    PAUSE,
    RESUME,
    RETRY,
    SKIP,
    REWIND,
    REPLAY,
    REBUILD,
    CHECK_PROJECTION,
    AS_OF,
    UNREGISTER,
    DEAD_LETTERS,
    REDRIVE,
    DISCARD,
    ERASE,
    REPARTITION,
    SHARDS,
    REMOVE_TOPIC,
    INTERVENTIONS,
    MAINTAIN,
    BENCH,
    GRANTS,
)
SUBCOMMANDS = {subcommand.name: subcommand for subcommand in ALL}
