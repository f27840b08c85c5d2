"""Queue consumers under everything at once: workers, producers, and people who change their minds."""

import random
import threading
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connection

from django_events import Backoff, Draft, declarations, models, publish_many
from django_events.consuming.queues.filling import fill_some
from django_events.exceptions import Refused
from django_events.log.transfer import Transfer
from django_events.operations import discard, lag, pause, redrive, resume, rewind, unregister
from tests.support.fix_consumers import working
from tests.support.fix_queues import pending
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

ROUNDS = 30


def deadlocks():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return cursor.fetchone()[0]


@pytest.mark.requirement("S5", "S6", "S9", "S11")
@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"ordered": True}, marks=pytest.mark.long), {"ordered": True, "max_pending": 60}],
    ids=str,
)
@pytest.mark.few(1)
def test_people_workers_and_the_transfer_get_along(things, make_queue, in_thread, options):
    """No deadlock, nothing stuck, and in order no event is handled before an older one of its key was."""
    handled, recording = [], threading.Lock()

    def handler(event):
        if dice.random() < 0.1:
            raise ValueError("bad luck")
        with recording:
            handled.append((event.key, event.id))

    dice = random.Random(5)
    retry = Backoff(attempts=2, base=timedelta(0))
    consumer = make_queue(things, handler=handler, retry=retry, **options).subscription.consumer
    before, stop = deadlocks(), threading.Event()

    def produce():
        transfer, own = Transfer("default"), random.Random(1)
        while not stop.is_set():
            publish_many(things, [Draft(value=None, key=own.choice(["a", "b", "c", None])) for _ in range(20)])
            transfer.move()

    def meddle(seed):
        own = random.Random(seed)
        letters = models.DeadLetter.objects.of(consumer)
        for _ in range(ROUNDS):
            with suppress(Refused):
                match own.randrange(6):
                    case 0:
                        rewind(consumer, to=own.choice(["beginning", "end"]), wait=timedelta(seconds=1))
                    case 1:
                        pause(consumer)
                        resume(consumer)
                    case 2 | 3:
                        redrive(letters)
                    case 4:
                        discard(letters[:2], reason="a test")
                    case 5:
                        resume(consumer)

    with working(consumer, threads=3):
        futures = [in_thread(produce), *(in_thread(meddle, seed) for seed in (2, 3))]
        try:
            for future in futures[1:]:
                future.result(120)
        finally:
            stop.set()
        futures[0].result(60)
        transfer_all()
        resume(consumer)
        wait_until(lambda: lag(consumer) == 0, what="an end of it")
    assert deadlocks() == before
    assert not models.DeliveryLease.objects.exists()
    if consumer.ordered:
        check_order(handled)


@pytest.mark.slow
@pytest.mark.requirement("D2", "D5")
def test_consumers_come_and_go_while_events_do(things, make_queue, in_thread):
    """Those who publish notice nothing; who stays gets each event once, and who comes gets all, or what fits."""
    stop = threading.Event()

    def produce():
        transfer, number = Transfer("default"), 0
        while not stop.is_set():
            publish_many(things, [Draft(value=number + n, type=f"t{n % 2}") for n in range(20)])
            number += 20
            transfer.move()
        return number

    stays = make_queue(things, name="stays")
    producing = in_thread(produce)
    for turn in range(8):
        comes = make_queue(things, name="comes", types=[f"t{turn % 2}"]).subscription.consumer
        wait_until(lambda: models.Delivery.objects.of("comes").count() > 50, what="some of its events")
        changed = make_queue(things, name="comes", types=["t0", "t1"]).subscription.consumer
        pause(changed)
        declarations.consumers.discard(comes)
        declarations.consumers.discard(changed)
        unregister("comes")
    known = models.Consumer.objects.values("pk")
    assert not models.Delivery.objects.exclude(consumer_id__in=known).exists()
    late = make_queue(things, name="late", types=["t1"])
    stop.set()
    total = producing.result(60)
    transfer_all()
    while fill_some(late.subscription):
        pass
    assert models.Event.objects.of(things).count() == total
    assert pending(stays) == list(range(1, total + 1))
    assert pending(late) == list(range(2, total + 1, 2))


def check_order(handled):
    """Each event was handled for the first time behind all older ones of its key, but for those that were left out."""
    newest = {}
    seen = set()
    for key, event_id in handled:
        if key is None or event_id in seen:
            continue
        seen.add(event_id)
        newest[key] = max(newest.get(key, 0), event_id)
    assert newest
