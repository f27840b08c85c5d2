"""Handlers that write down that they were called, and do what the event tells them.

A letter's value may name a `gate` to wait at, until a test lets them through.
"""

from django.db import connections

from django_events import ReceivedEvent, publish
from tests.support.consuming_app.models import Effect


def answer(event: ReceivedEvent) -> None:
    """Answer a letter, unless it wants none."""
    write(event)
    if not event.value.get("silent"):
        publish("answers", {"to": event.address}, using=event.database)


def read(event: ReceivedEvent) -> None:
    write(event, note=event.value["to"])


def write(event: ReceivedEvent, *, note: str = "") -> None:
    wait_at_gate(event)
    Effect.objects.using(event.database).create(
        consumer=event.consumer, event=event.address, attempt=event.attempt, note=note
    )


def wait_at_gate(event: ReceivedEvent) -> None:
    """A lock that a test holds: it sees who waits, and decides for how long."""
    if gate := event.value.get("gate"):
        with connections[event.database].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [gate])
