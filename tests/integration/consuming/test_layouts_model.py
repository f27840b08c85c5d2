"""Streams against a model of them, while their topic gets other partitions: each event once, each key in order."""

import sys
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from itertools import count

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from django_events import Backoff, Draft, RetryLater, declarations, models, publish_many, sql
from django_events.consuming import registration
from django_events.consuming import subscriptions as subscribing
from django_events.consuming.streams import layouts
from django_events.consuming.streams.partitions import claim
from django_events.consuming.subscriptions import subscriptions
from django_events.exceptions import InUse, LeaseLost, Refused
from django_events.log import layouts as log_layouts
from django_events.models.functions import ClockTimestamp
from django_events.observing.verifying.proving import verify
from django_events.operations import discard, lag, redrive, remove_topic, repartition, rewind
from django_events.workers.due_partitions import DuePartitions
from tests.support.fix_consumers import serve_lease
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")

KEYS = st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=8)
PICK = st.integers(0, 9)  # one of several, counted round
MOST_TURNS = 300
NEVER = 1e9  # seconds


class Model(RuleBasedStateMachine):
    """One topic and one stream that reads it, and what may be done to them.

    No rule has a precondition: where an event without a key goes depends on its ticket, which is another each time.
    """

    names = count(1)

    def __init__(self, make_topic, monkeypatch):
        super().__init__()
        self.monkeypatch = monkeypatch
        self.topic = make_topic(f"growing{next(self.names)}", partitions=2, segment_size=100)
        self.reader = self.declare("reader", self.handle)
        self.keys: dict[int, str | None] = {}
        self.partition_of: dict[int, int] = {}
        self.undone: set[int] = set()
        self.dead: set[int] = set()
        self.failing: set[int] = set()
        self.waiting: set[int] = set()
        self.waited: set[int] = set()
        self.held: list[tuple] = []
        self.workers = [self.worker(), self.worker()]

    def declare(self, name, handler, **options):
        options = {"retry": Backoff(attempts=2, base=timedelta(0), cap=timedelta(0)), "start": "beginning", **options}
        declared = declarations.consumer(self.topic, name=name, **options)(handler)
        registration.register("default", declared)
        return declared

    def worker(self, reader=None):
        return DuePartitions("default", subscriptions("default", [reader or self.reader]))

    @property
    def letters(self):
        return models.DeadLetter.objects.of("reader", topic=self.topic)

    @property
    def positions(self):
        return models.Position.objects.filter(consumer__name="reader", consumer__topic__name=self.topic.name)

    # What is handled

    def handle(self, event):
        if event.id in self.waiting:
            raise RetryLater(after=timedelta(hours=1))
        if event.id in self.failing:
            raise ValueError("as told")
        transaction.on_commit(lambda: self.is_handled(event))

    def is_handled(self, event):
        """It is to be handled, and everything of its key before it was."""
        self.see_dead_letters()
        key = self.keys[event.id]
        if event.id in self.dead:
            beside = [
                e.id for lease, batch in self.held if lease.token in self.tokens() for e in batch.events if e.key == key
            ]
            assert key is None or not beside, f"{event.id} is redriven beside {beside}"
            earlier = [one for one in self.dead if one < event.id and self.keys[one] == key]
        else:
            assert event.id in self.undone, f"{event.id} comes twice"
            earlier = [one for one in self.undone if one < event.id and self.keys[one] == key]
        assert key is None or not earlier, f"{event.id} comes before {earlier}"
        self.undone.discard(event.id)
        self.dead.discard(event.id)

    def see_dead_letters(self):
        there = set(self.letters.values_list("event_id", flat=True))
        assert there <= self.dead | self.failing | self.waited, "a dead letter of an event that did not fail"
        self.dead |= there
        self.undone -= there
        self.failing -= there

    def tokens(self):
        return set(self.positions.exclude(token=None).values_list("token", flat=True))

    # What comes

    @initialize(keys=KEYS)
    def begin(self, keys):
        self.publish(keys)

    @rule(keys=KEYS)
    def publish(self, keys):
        publish_many(self.topic, [Draft(value=n, key=key) for n, key in enumerate(keys)])

    @rule(keys=KEYS)
    def publish_and_move(self, keys):
        self.publish(keys)
        self.move()

    @rule()
    def move(self):
        transfer_all()
        events = models.Event.objects.of(self.topic.name).filter(id__gt=len(self.keys)).order_by("id")
        for event_id, key, partition in events.values_list("id", "key", "partition"):
            assert event_id == len(self.keys) + 1
            self.keys[event_id], self.partition_of[event_id] = key, partition
            self.undone.add(event_id)

    # What changes

    @rule(partitions=st.integers(1, 5))
    def repartition(self, partitions):
        changed = repartition(self.topic, partitions)
        assert changed.after == partitions

    @rule(partitions=st.integers(1, 5))
    def divide(self, partitions):
        """As a migration does that is killed before it comes to the consumers."""
        with sql.committed("default"):
            row = models.Topic.objects.get(name=self.topic.name)
            sql.fetch("default", sql.shared.lock_head, topic_id=row.pk)
            if row.partitions != partitions:
                log_layouts.divide("default", row, partitions)

    @rule(partitioned=st.booleans())
    def turn(self, partitioned):
        object.__setattr__(self.reader, "partitioned", partitioned)
        registration.register("default", self.reader)

    # What workers do

    @rule(number=st.integers(0, 1), everywhere=st.booleans())
    def serve(self, number, everywhere):
        self._serve(self.workers[number], everywhere)

    def _serve(self, worker, everywhere):
        for _ in range(MOST_TURNS):
            if everywhere:
                worker.look_everywhere()
            else:
                worker.look_at([one.topic_id for one in worker._subscriptions])
            if not worker.look(period=NEVER) or (due := worker.take()) is None:
                return
            lease = claim(*due, holder="a test")
            if lease is None:
                worker.refused(due.position_id)
                continue
            worker.claimed(due.position_id)
            serve_lease(lease)
            self.see_dead_letters()
            worker.served(due.position_id, until=lease.reached)
        raise AssertionError("something is still due")

    @rule(number=st.integers(0, 1), pick=PICK)
    def hold(self, number, pick):
        """A worker has read something, and is in the middle of handling it."""
        worker = self.workers[number]
        worker.look_everywhere()
        worker.look(period=NEVER)
        found = list(iter(worker.take, None))
        if not found:
            return
        lease = claim(*found[pick % len(found)], holder="a test")
        if lease is None or lease.redrives:
            if lease is not None:
                lease.release()
            return
        batch = lease.read()
        if batch is None:
            lease.release()
        else:
            self.held.append((lease, batch))

    @rule(pick=PICK, part=st.booleans())
    def finish(self, pick, part):
        if not self.held:
            return
        lease, batch = self.held.pop(pick % len(self.held))
        events = batch.events[: len(batch.events) // 2] if part else batch.events
        try:
            with transaction.atomic():
                settlement = lease.settle(events)
            lease.settled(settlement)
        except LeaseLost:
            return
        for event in events:
            self.is_handled(event)
        lease.release()
        if lease.is_at_barrier:
            layouts.pass_barrier("default", lease.subscription.consumer_id)

    @rule(pick=PICK)
    def die(self, pick):
        """A worker is gone, and its lease is over."""
        if self.held:
            self.held.pop(pick % len(self.held))
        self.expire()

    @rule()
    def expire(self):
        """All workers that have something are out of time, and may come back."""
        self.positions.filter(token__isnull=False).update(leased_until=ClockTimestamp())

    @rule(pick=PICK)
    def fail(self, pick):
        undone = sorted(self.undone)
        self.failing |= {undone[pick % len(undone)]} if undone else set()

    @rule(pick=PICK)
    def wait(self, pick):
        """An event is tried, and is to be tried again in an hour."""
        undone = sorted(self.undone)
        self.waiting |= {undone[pick % len(undone)]} if undone else set()
        self.waited |= self.waiting

    @rule()
    def end_waiting(self):
        self.waiting = set()
        self.positions.update(retry_at=None)

    @rule(number=st.integers(0, 1))
    def serve_and_die(self, number):
        """A worker is gone behind its turn, before it could have the consumer go on by the next layout."""
        with self.monkeypatch.context() as patch:
            patch.setattr(layouts, "pass_barrier", lambda using, consumer_id: False)
            self.serve(number, True)

    # What people do

    @rule(pick=PICK, serving=st.booleans())
    def redrive(self, pick, serving):
        dead = sorted(self.dead)
        with suppress(Refused):  # an older one of its key has to come first
            redrive(self.letters.filter(event_id__in=dead[pick : pick + 1]))
        if serving:
            self.serve(0, True)

    @rule(pick=PICK)
    def discard(self, pick):
        discarded = sorted(self.dead)[pick : pick + 1]
        discard(self.letters.filter(event_id__in=discarded), reason="not needed")
        self.dead -= set(discarded)

    @rule(pick=st.integers(0, 60), of_partition=st.none() | PICK)
    def rewind(self, pick, of_partition):
        if not self.keys:
            return
        to = pick % len(self.keys) + 1
        there = list(self.positions.values_list("partition", "position"))
        partition, _ = there[(of_partition or 0) % len(there)]
        if of_partition is None or partition == models.Position.ALL:
            partition = None

            def moved(event_id):
                return True

        else:

            def moved(event_id):
                return self.partition_of[event_id] == partition

        try:
            rewind("reader", to=to, topic=self.topic, partition=partition, wait=timedelta(0))
        except InUse:
            return
        for event_id in self.keys:
            if moved(event_id):
                (self.undone.add if event_id >= to else self.undone.discard)(event_id)
        self.dead = set(self.letters.values_list("event_id", flat=True))
        self.undone -= self.dead
        self.failing &= self.undone
        self.waiting &= self.undone

    # What is always so

    @invariant()
    def each_position_is_where_its_partition_says(self):
        for consumer in models.Consumer.objects.filter(topic__name=self.topic.name):
            active = [p for p in consumer.positions.all() if p.layout is not None]
            assert len({(p.layout, p.barrier) for p in active}) <= 1
            if consumer.partitioned:
                assert (
                    len(active)
                    == models.Topic.objects.get(pk=consumer.topic_id).all_layouts[active[0].layout].partitions
                )

    def teardown(self):
        if sys.exc_info()[0] is None:
            self.finish_all()
        for consumer in [one for one in declarations.consumers if self.topic.name in one.topics]:
            declarations.consumers.discard(consumer)
        declarations.registry.discard(self.topic)
        models.Position.objects.filter(consumer__topic__name=self.topic.name).update(token=None, leased_until=None)
        remove_topic(self.topic.name, force=True)

    def finish_all(self):
        self.expire()
        self.held, self.failing = [], set()
        self.end_waiting()
        self.move()
        registration.register("default", self.reader)  # as the next migration
        self._serve(self.worker(), True)
        assert self.undone == set()
        redrive(self.letters)
        self._serve(self.worker(), True)
        assert self.dead == set()
        assert lag("reader", topic=self.topic) == 0
        assert not self.positions.filter(barrier__isnull=False).exists()
        assert not self.positions.filter(layout=None).exclude(partition=models.Position.ALL).exists()
        assert list(verify("default", topic=models.Topic.objects.get(name=self.topic.name)).offenders) == []
        came: dict[str, list[int]] = defaultdict(list)
        late = self.declare("late", lambda event: came[str(event.key)].append(event.id))
        self._serve(self.worker(late), True)
        assert sorted(one for ids in came.values() for one in ids) == sorted(self.keys)
        assert all(ids == sorted(ids) for key, ids in came.items() if key != "None")


@pytest.mark.requirement("E15", "X7")
@pytest.mark.parametrize(
    ("read_ahead", "examples"),
    [
        pytest.param(100, 4, id="few-100"),
        pytest.param(3, 12, id="some-3"),
        pytest.param(100, 60, id="many-100", marks=[pytest.mark.long, pytest.mark.timeout(1_200)]),
        pytest.param(3, 60, id="many-3", marks=[pytest.mark.long, pytest.mark.timeout(1_200)]),
    ],
)
@pytest.mark.few(1)
def test_each_event_is_handled_once_and_in_the_order_of_its_key_whatever_the_layout(
    make_topic, monkeypatch, read_ahead, examples
):
    monkeypatch.setattr(subscribing, "READ_AHEAD", read_ahead)
    run_state_machine_as_test(
        lambda: Model(make_topic, monkeypatch),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            phases=set(Phase) - {Phase.explain},  # which takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
