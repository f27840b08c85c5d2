"""What this process declares: topics and consumers, as frozen descriptions that touch no database.

    # shop/events.py: discovered in every installed app
    orders = topic("orders", partitions=8, retention=timedelta(days=30))

    @consumer(orders, name="billing")
    def bill(event: ReceivedEvent) -> None: ...

`manage.py migrate` makes the rows and tables; `manage.py check` finds wrong declarations.
"""

from django_events.declarations.declared_clock import DeclaredClock as DeclaredClock
from django_events.declarations.declared_clock import Missed as Missed
from django_events.declarations.declared_consumer import BatchHandler as BatchHandler
from django_events.declarations.declared_consumer import DeclaredConsumer as DeclaredConsumer
from django_events.declarations.declared_consumer import EventHandler as EventHandler
from django_events.declarations.declared_consumer import Handler as Handler
from django_events.declarations.declared_consumer import Mode as Mode
from django_events.declarations.declared_consumer import Start as Start
from django_events.declarations.declared_inbox import DeclaredInbox as DeclaredInbox
from django_events.declarations.declared_inbox import InboxSource as InboxSource
from django_events.declarations.declared_projection import DELETE as DELETE
from django_events.declarations.declared_projection import DeclaredProjection as DeclaredProjection
from django_events.declarations.declared_projection import Deletion as Deletion
from django_events.declarations.declared_relay import DeclaredRelay as DeclaredRelay
from django_events.declarations.declared_relay import Form as Form
from django_events.declarations.declared_relay import RelayTarget as RelayTarget
from django_events.declarations.declared_rollup import DeclaredRollUp as DeclaredRollUp
from django_events.declarations.declared_schema import DeclaredSchema as DeclaredSchema
from django_events.declarations.declared_schema import schema as schema
from django_events.declarations.declared_schema import schema_of as schema_of
from django_events.declarations.declared_topic import DeclaredTopic as DeclaredTopic
from django_events.declarations.declared_upcaster import DeclaredUpcaster as DeclaredUpcaster
from django_events.declarations.declared_upcaster import upcaster as upcaster
from django_events.declarations.declaring import ConsumerOptions as ConsumerOptions
from django_events.declarations.declaring import consumer as consumer
from django_events.declarations.declaring import inbox as inbox
from django_events.declarations.declaring import projection as projection
from django_events.declarations.declaring import queue as queue
from django_events.declarations.declaring import relay as relay
from django_events.declarations.declaring import rollup as rollup
from django_events.declarations.declaring import topic as topic
from django_events.declarations.limits import LONGEST_LEASE as LONGEST_LEASE
from django_events.declarations.limits import MAX_BATCH as MAX_BATCH
from django_events.declarations.limits import MAX_PARTITIONS as MAX_PARTITIONS
from django_events.declarations.limits import SHORTEST_LEASE as SHORTEST_LEASE
from django_events.declarations.limits import texts as texts
from django_events.declarations.registries import ClockRegistry as ClockRegistry
from django_events.declarations.registries import ConsumerRegistry as ConsumerRegistry
from django_events.declarations.registries import Declared as Declared
from django_events.declarations.registries import InboxRegistry as InboxRegistry
from django_events.declarations.registries import Registry as Registry
from django_events.declarations.registries import TopicRegistry as TopicRegistry
from django_events.declarations.registries import UpcasterRegistry as UpcasterRegistry
from django_events.declarations.registries import clocks as clocks
from django_events.declarations.registries import consumers as consumers
from django_events.declarations.registries import inboxes as inboxes
from django_events.declarations.registries import registry as registry
from django_events.declarations.registries import upcasters as upcasters
from django_events.drafts import EventFields as EventFields
