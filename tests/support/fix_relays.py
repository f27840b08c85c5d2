"""Relays for tests: declared, registered, served, and then gone."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_events import Backoff, declarations
from django_events.consuming import registration
from django_events.event_columns import EVENT
from django_events.models import Event
from django_events.received import ReceivedEvent
from tests.support.fix_consumers import forget_consumers

RelayFactory = Callable[..., declarations.DeclaredRelay]
PATIENT = Backoff(attempts=3, base=timedelta(hours=1))  # tests end pauses themselves


def received(*, former: bool = False, topic: str = "things") -> list[ReceivedEvent]:
    """The events of the log, as a handler gets them, or as a former log had them under their ids."""
    published_at, rows = EVENT.index("published_at"), []
    for row in map(list, Event.objects.order_by("id").values_list(*EVENT)):
        row[published_at] -= timedelta(hours=former)
        rows.append(row)
    return [ReceivedEvent(topic, row, database="default") for row in rows]


@pytest.fixture
def make_relay(make_topic: Any) -> Iterator[RelayFactory]:
    """Declare relays for one test and register them; their rows are gone when it ends."""
    made: list[declarations.DeclaredConsumer] = []

    def make(
        topic: declarations.DeclaredTopic, *, to: Any, name: str = "relay", **options: Any
    ) -> declarations.DeclaredRelay:
        declared = declarations.relay(topic, to=to, name=name, **{"retry": PATIENT, **options})
        made.append(declared)
        declarations.consumers.check()
        registration.register("default", declared)
        return declared

    yield make
    forget_consumers(made)
