"""Steps of many walks, in databases that share the walks: a stream and an ordered queue write down when they came."""

from datetime import timedelta

from django.db import connections

from django_events import Backoff, ReceivedEvent, consumer, topic
from tests.support.consuming_app.models import Effect

steps = topic("steps", partitions=3)
SOON = {"lease": timedelta(seconds=2), "retry": Backoff(base=timedelta(0))}


@consumer(steps, name="walking", **SOON)
def walk(event: ReceivedEvent) -> None:
    write_down(event)


@consumer(steps, name="queueing", mode="queue", ordered=True, **SOON)
def queue(event: ReceivedEvent) -> None:
    write_down(event)


def write_down(event: ReceivedEvent) -> None:
    """The effect, and when it began: the databases are of one server, so of one clock."""
    with connections[event.database].cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::text")
        [began] = cursor.fetchone()
    note = f"{event.key} {event.value} {began}"
    Effect.objects.using(event.database).create(
        consumer=event.consumer, event=event.address, attempt=event.attempt, note=note
    )
