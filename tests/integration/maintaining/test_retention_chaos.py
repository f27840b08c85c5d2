"""Retention beside publishers, transfers and workers, all at once: no consumer misses an event, nor gets one twice."""

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import OperationalError

from django_events import Backoff, Draft, publish, publish_many
from django_events.exceptions import InUse
from django_events.log import retention
from django_events.log.transfer import Transfer
from django_events.maintaining.expiring import expire
from django_events.models import Consumer, Event, Intervention, Topic, TopicHead
from django_events.operations import rewind
from django_events.signals import events_expired
from testproject.shop.models import Order
from tests.support.fix_consumers import positions, working, write_order, written
from tests.support.fix_queues import deliveries, queue_of
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

EVENTS = 1_200
PUBLISHERS = 3


class Bustle:
    """Publishers, transfers and maintenance in threads, until all is published and moved."""

    def __init__(self, topic, in_thread, *, before=0):
        self.topic = topic
        self.published = before + EVENTS
        self.over = threading.Event()
        self.busy = [in_thread(self.transfer) for _ in range(2)]
        self.busy += [in_thread(self.maintain) for _ in range(2)]
        self.publishers = [in_thread(self.publish, n) for n in range(PUBLISHERS)]

    def publish(self, publisher):
        dice = random.Random(publisher)
        sequence = 0
        while sequence < EVENTS // PUBLISHERS:
            count = min(dice.choice([1, 1, 5, 60]), EVENTS // PUBLISHERS - sequence)
            numbers = range(sequence, sequence + count)
            drafts = [Draft(value=f"{publisher}/{n}", key=f"{publisher}-{n % 5}") for n in numbers]
            sequence += count
            if count == 1:
                publish(self.topic, drafts[0].value, key=drafts[0].key)
            else:
                publish_many(self.topic, drafts)

    def transfer(self):
        transfer = Transfer("default", batch_size=100)
        while not self.over.is_set():
            if not transfer.move():
                self.over.wait(0.01)

    def maintain(self):
        row = Topic.objects.get(name=self.topic.name)
        while not self.over.is_set():
            with suppress(OperationalError):  # a session holds a lock: the next time
                with retention.writing("default", row.pk) as now:
                    retention.divide("default", now)
                expire("default", row, seconds=1)
            self.over.wait(0.05)

    def finish(self, done=lambda: True):
        """What is published is in the log, and when it is done, no worker is at work any more."""
        for publisher in self.publishers:
            publisher.result(120)
        wait_until(lambda: last_id(self.topic) == self.published)
        wait_until(done)
        self.over.set()
        for one in self.busy:
            one.result(60)


def last_id(topic):
    [floor] = TopicHead.objects.filter(topic__name=topic.name).values_list("id_floor", flat=True)
    return Event.objects.peek(topic, limit=1).values_list("id", flat=True).first() or floor


def verified():
    with suppress(SystemExit):
        call_command("events", "verify", "--topic", "things")
        return True
    return False


@pytest.mark.requirement("P1")
@pytest.mark.long
def test_a_consumer_that_keeps_up_gets_everything_once_while_the_log_is_dropped_behind_it(
    make_topic, make_consumer, in_thread, monkeypatch
):
    topic = make_topic(segment_size=100, retention_events=150, partitions=3)
    monkeypatch.setattr("django_events.log.retention.SMALLEST_PART", 30)
    dice = random.Random(7)

    def unsteady(name):
        def handler(event):
            write_order(f"{name} {event.value}")
            if event.attempt < 3 and dice.random() < 0.003:
                raise ValueError("not now")

        return handler

    patience = Backoff(attempts=10, base=timedelta(0))
    stream = make_consumer(topic, name="stream", handler=unsteady("stream"), retry=patience)
    queue = make_consumer(topic, name="queue", mode="queue", handler=unsteady("queue"), retry=patience)
    ordered = make_consumer(
        topic, name="ordered", mode="queue", ordered=True, handler=unsteady("ordered"), retry=patience, max_pending=200
    )
    with working(stream, queue, ordered, threads=3):
        bustle = Bustle(topic, in_thread)
        bustle.finish(
            lambda: (
                Order.objects.count() >= 3 * EVENTS
                and TopicHead.objects.get(topic__name="things").id_floor >= EVENTS / 2
            )
        )

    notes = Counter(written())
    assert max(notes.values()) == 1
    expected = {f"{p}/{n}" for p in range(PUBLISHERS) for n in range(EVENTS // PUBLISHERS)}
    for name in ("stream", "queue", "ordered"):
        assert {note.removeprefix(f"{name} ") for note in notes if note.startswith(name)} == expected
    for name in ("stream", "ordered"):
        newest = {}
        for note in written():
            if note.startswith(name):
                publisher, sequence = note.split()[1].split("/")
                key = publisher, int(sequence) % 5
                assert newest.get(key, -1) < int(sequence), f"{note} comes after {newest[key]}"
                newest[key] = int(sequence)
    head = TopicHead.objects.get(topic__name="things")
    assert sum(head.number_floors) == head.id_floor
    assert list(Event.objects.since(topic).values_list("id", flat=True)) == list(range(head.id_floor + 1, EVENTS + 1))
    assert not Intervention.objects.filter(action="expire").exists()
    for name in ("queue", "ordered"):
        deliveries(queue_of({"queue": queue, "ordered": ordered}[name])).delete()
    assert verified()


@pytest.mark.long
def test_what_was_left_behind_and_what_was_handled_are_everything(make_topic, make_consumer, in_thread, monkeypatch):
    monkeypatch.setattr("django_events.maintaining.drop_unread.PATIENCE", timedelta(seconds=2))
    topic = make_topic(segment_size=100, retention_events=150, keep_unread=False, partitions=2)
    lost = Counter()

    def receiver(consumer, events, **kwargs):
        lost[consumer] += events

    def slow(name):
        def handler(event):
            write_order(f"{name} {event.value}")
            time.sleep(0.002)  # falls behind, on purpose

        return handler

    stream = make_consumer(topic, name="stream", handler=slow("stream"))
    queue = make_consumer(topic, name="queue", mode="queue", handler=slow("queue"))
    events_expired.connect(receiver)
    publish_many(topic, [Draft(value=f"before/{n}") for n in range(400)])
    transfer_all()
    expire("default", Topic.objects.get(name=topic.name))
    try:
        with working(stream, queue, threads=2):
            Bustle(topic, in_thread, before=400).finish()
            wait_until(
                lambda: (
                    not deliveries(queue_of(queue)).exists()
                    and Consumer.objects.filter(name="queue", live=True).exists()
                    and sum(positions(stream).values_list("number", flat=True)) == 400 + EVENTS
                )
            )
    finally:
        events_expired.disconnect(receiver)

    notes = Counter(written())
    assert max(notes.values()) == 1
    handled = Counter(note.split()[0] for note in notes)
    assert lost["stream"] >= 200
    assert handled["stream"] + lost["stream"] == 400 + EVENTS
    assert handled["queue"] + lost["queue"] == 400 + EVENTS
    told = Counter()
    for one in Intervention.objects.filter(action="expire"):
        told[one.consumer] += one.details["events"]
    assert told == lost
    assert verified()


@pytest.mark.slow
def test_registering_at_the_beginning_and_rewinding_there_race_with_retention(make_topic, make_consumer, in_thread):
    topic = make_topic(segment_size=100, retention_events=150)
    reader = make_consumer(topic, name="reader", handler=print, batch_size=1_000)
    publish_many(topic, [Draft(value=n) for n in range(EVENTS)])
    bustle = Bustle.__new__(Bustle)
    bustle.topic, bustle.over = topic, threading.Event()
    busy = [in_thread(bustle.transfer), in_thread(bustle.maintain)]
    try:
        for _ in range(30):
            positions(reader).update(position=last_id(topic), number=last_id(topic))
            with suppress(InUse):
                rewind(reader, to="beginning")
            floor = TopicHead.objects.get(topic__name="things").id_floor
            assert positions(reader).get().position >= floor, "it begins with events that are gone"
    finally:
        bustle.over.set()
        for one in busy:
            one.result(60)
