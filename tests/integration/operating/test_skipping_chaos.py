"""Skipping and trying again beside workers that die: each event is handled once or a dead letter, and in order."""

import random
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from itertools import count

import pytest

from django_events import Backoff, Draft, models, publish_many
from django_events.consuming.queues.deliveries import Queue
from django_events.consuming.subscriptions import subscriptions
from django_events.exceptions import Refused
from django_events.log.transfer import Transfer
from django_events.models.functions import ClockTimestamp
from django_events.operations import lag, pause, redrive, resume, retry_now, skip
from tests.integration.consuming.test_queue_chaos import deadlocks
from tests.support.fix_consumers import lease_of, working, write_order, written
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

EVENTS, ROUNDS = 200, 25
KEYS = ["a", "b", "c", "d", "e"]


KINDS = {
    "stream": {},
    "stream with partitions": {"partitioned": True},
    "batches": {"batch_size": 7},
    "filtered": {"types": ["wanted"], "partitioned": True},
    "queue": {"mode": "queue"},
    "ordered": {"mode": "queue", "ordered": True, "history": timedelta(hours=1)},
    "ordered, few at once": {"mode": "queue", "ordered": True, "max_pending": 15},
}


@pytest.mark.slow
@pytest.mark.requirement("S3", "S4", "S5", "S6")
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(2)
def test_each_event_is_handled_once_or_a_dead_letter(lanes, make_consumer, in_thread, kind, seed):
    dice = random.Random(seed)

    def handle(event):
        if dice.random() < 0.2:
            raise ValueError("bad luck")
        write_order(event.id)

    def handler(given):
        for event in given if isinstance(given, list) else [given]:
            handle(event)

    options = {"retry": Backoff(attempts=3, base=timedelta(milliseconds=20)), "start": "beginning", **KINDS[kind]}
    consumer = make_consumer(lanes, handler=handler, lease=timedelta(seconds=30), **options)
    letters, before = models.DeadLetter.objects.of(consumer), deadlocks()
    died = set()  # which events were dead letters at some time: they are handled behind others of their keys
    skipped = []

    def produce():
        transfer, own = Transfer("default"), random.Random(seed)
        for _ in range(EVENTS // 10):
            drafts = [Draft(value=None, key=own.choice(KEYS), type=own.choice(["wanted", "other"])) for _ in range(10)]
            publish_many(lanes, drafts)
            transfer.move()

    def next_ones():
        """Such as may be skipped, as far as one can see."""
        if consumer.mode == "queue":
            return list(
                models.Delivery.objects.of(consumer).order_by("event_id").values_list("event_id", flat=True)[:9]
            )
        found = models.Event.objects.of(lanes).filter(type__in=["wanted", "other"][: 1 if consumer.types else 2])
        firsts = []
        for position in models.Position.objects.filter(consumer__name=consumer.name):
            lane = found.filter(partition=position.partition) if position.partition >= 0 else found
            firsts += lane.filter(id__gt=position.position).order_by("id").values_list("id", flat=True)[:1]
        return firsts

    def meddle(seed):
        own = random.Random(seed)
        for turn in count():
            if turn >= ROUNDS and (skipped or lag(consumer) == 0):
                return
            with suppress(Refused):
                match own.randrange(8):
                    case 0 | 1 | 2:
                        event_id = own.choice(next_ones() or [1])
                        skip(consumer, event_id, reason="a race", wait=timedelta(seconds=own.choice([0, 2, 2])))
                        skipped.append(event_id)
                    case 3 | 4:
                        retry_now(consumer)
                    case 5:
                        pause(consumer)
                        resume(consumer)
                    case 6:
                        died.update(letters.values_list("event_id", flat=True))
                        redrive(letters)
                    case 7:
                        freeze(own)

    def freeze(own):
        """A worker takes something, and is never heard of again; its time is over."""
        if consumer.mode == "queue":
            [subscription] = subscriptions("default", [consumer])
            hand = Queue(subscription, holder="a frozen one").claim(own.choice([1, 3, 20]))
            leases = models.DeliveryLease.objects.filter(token=0 if hand is None else hand.token)
        else:
            lease = lease_of(consumer, own.randrange(4) if consumer.partitioned else models.Position.ALL)
            leases = models.Position.objects.filter(token=0 if lease is None else lease.token)
        leases.update(leased_until=ClockTimestamp())

    with working(consumer, threads=3):
        futures = [in_thread(produce), *(in_thread(meddle, 10 * seed + n) for n in range(3))]
        for future in futures:
            future.result(120)
        transfer_all()
        resume(consumer)
        wait_until(lambda: settled(consumer), what="an end of it")
        died.update(letters.values_list("event_id", flat=True))
        redrive(letters.order_by("event_id")[:5])
        wait_until(lambda: settled(consumer), what="an end of what is handled again")
    assert deadlocks() == before
    assert not models.DeliveryLease.objects.exists()

    handled, dead = list(map(int, written())), sorted(letters.values_list("event_id", flat=True))
    events = models.Event.objects.of(lanes)
    keys = dict((events.filter(type="wanted") if consumer.types else events).values_list("id", "key"))
    assert sorted(handled + dead) == sorted(keys), "lost or doubled"
    done = models.Intervention.objects.filter(action="skip")
    assert sorted(one.details["event"] for one in done) == sorted(skipped)
    if kind != "queue":
        check_order([event_id for event_id in handled if event_id not in died.union(skipped)], keys)
    positions = models.Position.objects.filter(consumer__name=consumer.name)
    assert sum(one.handled for one in positions) == len(handled)
    buried = models.DeadLetter.objects.of(consumer).count()
    assert sum(one.dead_lettered for one in positions) >= buried


def settled(consumer):
    """Nothing is to be done but what waits for people: where keys are in order, an older dead letter of its key."""
    in_order = consumer.mode == "stream" or consumer.ordered
    letters = models.DeadLetter.objects.of(consumer)
    dead = {letter.key: letter.event_id for letter in letters.filter(redrive_at=None).order_by("-event_id")}
    again = letters.filter(redrive_at__isnull=False)
    waiting = [one for one in again if not (in_order and dead.get(one.key, one.event_id) < one.event_id)]
    return lag(consumer) == 0 and not waiting


def check_order(handled, keys):
    of_key = defaultdict(list)
    for event_id in handled:
        of_key[keys[event_id]].append(event_id)
    assert of_key
    for several in of_key.values():
        assert several == sorted(several)
