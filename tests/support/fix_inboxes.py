"""Inboxes for tests, with real brokers: declared, registered, served, and then gone."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from django_events import Backoff, declarations
from django_events.bridges.inboxes import inbox_worker
from django_events.bridges.inboxes.serving import worker_of
from django_events.models import Inbox
from django_events.operating import inboxes
from django_events.testing import published
from django_events.workers.loop import run
from django_events.workers.stopping import Stop

InboxFactory = Callable[..., declarations.DeclaredInbox]
AT_ONCE = Backoff(attempts=3, pauses=[timedelta(0)])


@pytest.fixture
def make_inbox(make_topic: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[InboxFactory]:
    """Declare inboxes for one test and register them; their rows are gone when it ends."""
    monkeypatch.setattr(inbox_worker, "STANDS_BY", 0.01)
    made: list[declarations.DeclaredInbox] = []

    def make(
        topic: declarations.DeclaredTopic, *, source: Any, name: str = "things-in", **options: Any
    ) -> declarations.DeclaredInbox:
        declared = declarations.inbox(topic, source=source, name=name, **{"retry": AT_ONCE, **options})
        made.append(declared)
        inboxes.sync("default")
        return declared

    yield make
    for declared in made:
        declarations.inboxes.discard(declared)
        Inbox.objects.filter(name=declared.name).delete()


def take_in(inbox: declarations.DeclaredInbox) -> int:
    """Take in what is there now, until nothing is left; returns how many messages."""
    with closing(Stop()) as stop, closing(worker_of("default", inbox, once=True)) as worker:
        return run(worker, stop, once=True)


def turn(worker: Any) -> Any:
    """One turn of a worker, on a connection that is made if there is none."""
    with closing(Stop()) as stop:
        worker.connect()
        return worker.work(stop)


def row(name: str = "things-in") -> Inbox:
    return Inbox.objects.get(name=name)


def error() -> str:
    """Why the inbox takes nothing in, which the row says."""
    assert row().failing_since is not None
    return row().error


def values(topic: declarations.DeclaredTopic) -> list[Any]:
    return [event.value for event in published(topic)]
