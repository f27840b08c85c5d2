"""Webhook endpoints for tests, on a database that keeps what is committed: added, served, and then gone."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings

from django_events import Backoff, declarations
from django_events.models import Consumer, Delivery, DeliveryLease, PastDelivery
from django_events.operations import add_webhook
from django_events.outward.webhook_worker import WebhookWorker
from django_events.workers.listening import Listener
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.processes import wait_until
from tests.support.receivers import Receiver

AT_ONCE = Backoff(attempts=3, base=timedelta(0))
ALLOWED = {"WEBHOOK_NETWORKS": ["127.0.0.0/8"]}
WebhookFactory = Callable[..., str]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def make_webhook(transactional_db: None) -> Iterator[WebhookFactory]:
    """Add endpoints of a topic, from its beginning, for one test; returns the secret."""
    made: list[str] = []

    def make(topic: declarations.DeclaredTopic | str, url: str, *, name: str = "partner", **options: Any) -> str:
        made.append(name)
        return add_webhook(name, topic, url, **{"start": "beginning", "retry": AT_ONCE, **options})

    with override_settings(DJANGO_EVENTS=ALLOWED):
        yield make
    ids = list(Consumer.objects.filter(name__in=made).values_list("pk", flat=True))
    for model in (Delivery, DeliveryLease, PastDelivery):
        model.objects.filter(consumer_id__in=ids).delete()
    Consumer.objects.filter(pk__in=ids).delete()


def send_all(**options: Any) -> WebhookWorker:
    """Send what is due, as a process that ends then."""
    with closing(Listener("default")) as listener, closing(Stop()) as stop:
        worker = WebhookWorker("default", listener, once=True, **options)
        try:
            run(worker, stop, once=True)
        finally:
            worker.close()
    return worker


@contextmanager
def sending(**options: Any) -> Iterator[WebhookWorker]:
    """A process that sends, as a thread, until the block ends."""
    errors: list[BaseException] = []
    made: list[WebhookWorker] = []
    stop = Stop()

    def target() -> None:
        try:
            with closing(Listener("default")) as listener:
                made.append(WebhookWorker("default", listener, **options))
                with closing(made[0]):
                    run(made[0], stop)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=target)
    thread.start()
    try:
        wait_until(lambda: made or errors, what="a worker")
        yield made[0]
    finally:
        stop.request()
        thread.join()
        stop.close()
    assert not errors, errors
