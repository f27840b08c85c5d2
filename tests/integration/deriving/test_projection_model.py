"""A projection against a simple fold of its log: whatever comes, fails, is deleted, or is rebuilt meanwhile."""

from contextlib import suppress
from itertools import count as counting

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from django_events import DELETE, Backoff, Draft, declarations, models, publish_many
from django_events.consuming import registration
from django_events.deriving import projecting, rebuilding
from django_events.exceptions import InUse, Refused
from django_events.operations import rebuild, redrive, remove_topic, repartition
from tests.integration.deriving.test_rebuilding import Stopped, stop_after
from tests.support.fix_consumers import exhaust, expire_leases, lease_of, positions, serve_due
from tests.support.fix_topics import transfer_all
from tests.support.projecting_app.models import CustomerTotal

pytestmark = pytest.mark.usefixtures("transactional_db")

EVENT = st.tuples(st.sampled_from("abcd"), st.sampled_from(["add", "add", "add", "gone", "fails", "breaks"]))
EVENTS = st.lists(EVENT, min_size=1, max_size=9)


class Model(RuleBasedStateMachine):
    """One topic, one projection, and what may be done to them."""

    names = counting(1)

    def __init__(self, make_topic):
        super().__init__()
        number = next(self.names)
        CustomerTotal.objects.all().delete()
        self.topic = make_topic(f"deeds{number}", partitions=2, segment_size=100)
        self.mended = False
        self.redriven: dict[int, int] = {}  # events that came after others, and behind which id
        self.projection = self.declare()

    def declare(self):
        once = Backoff(attempts=1)
        declared = declarations.projection(self.topic, into=CustomerTotal, name="deeds", batch_size=4, retry=once)(
            self.fold
        )
        registration.register("default", declared)
        return declared

    def fold(self, row, event):
        row.orders += 1
        row.seen.append(event.id)
        if event.type == "fails" and not self.mended:
            raise ValueError("as told")
        if event.type == "breaks" and not self.mended:
            row.region_id = 4_711  # which the database refuses, whatever comes behind it in the batch
        return DELETE if event.type == "gone" else None

    # What comes

    @rule(events=EVENTS)
    def publish(self, events):
        publish_many(self.topic, [Draft(value={}, key=key, type=type) for key, type in events])
        transfer_all()

    @rule()
    def serve(self):
        exhaust(self.projection)

    @rule()
    def serve_a_turn(self):
        serve_due(self.projection)

    @rule(partition=st.integers(0, 3))
    def die_with_a_lease(self, partition):
        with suppress(ValueError, KeyError):
            if (lease := lease_of(self.projection, partition)) is not None:
                lease.read()
                expire_leases(self.projection)

    @rule(partitions=st.integers(1, 4))
    def repartition(self, partitions):
        with suppress(Refused):
            repartition(self.topic, partitions, reason="a test")

    # What an operator does

    @rule(chunk=st.integers(1, 5), stop=st.integers(0, 3), mended=st.booleans())
    def rebuild(self, chunk, stop, mended):
        self.serve()
        rest = projecting.CHUNK, rebuilding.SHORT
        projecting.CHUNK, rebuilding.SHORT = chunk, 2
        self.mended = mended
        try:
            with suppress(Stopped):
                rebuild(self.projection, past_failures=True, on_progress=stop_after(stop))
            rebuild(self.projection, past_failures=True)
        finally:
            projecting.CHUNK, rebuilding.SHORT = rest
            self.mended = False
        # A first part may have been folded while the function was another one: its source is the same.
        self.redriven = {}

    # What holds

    def simply_folded(self):
        dead = set(models.DeadLetter.objects.of("deeds").values_list("event_id", flat=True))
        reached = {one.partition: one for one in positions(self.projection)}
        layout = max(one.layout for one in reached.values() if one.layout is not None)
        topic = models.Topic.objects.get(name=self.topic.name)
        rows = {}
        for event in models.Event.objects.since(self.topic):
            its = topic.layout_at(event.id)
            passed = its < layout or (its == layout and event.id <= reached[event.partition].position)
            if event.id in dead or not passed:
                continue
            if event.type == "gone":
                rows.pop(event.key, None)
            else:
                rows.setdefault(event.key, []).append(event.id)
        return rows

    @invariant()
    def rows_are_what_their_events_say(self):
        there = {row.customer: (row.orders, row.seen) for row in CustomerTotal.objects.all()}
        assert there == {key: (len(ids), ids) for key, ids in self.simply_folded().items()}

    def teardown(self):
        try:
            self.serve()
            self.rows_are_what_their_events_say()
            self.mended = True
            redrive(models.DeadLetter.objects.of("deeds"))
            exhaust(self.projection)
            assert not models.DeadLetter.objects.of("deeds").exists()
            last = models.Event.objects.since(self.topic).count()
            assert sum(positions(self.projection).values_list("dead_lettered", flat=True)) <= last
            rebuild(self.projection)
            self.rows_are_what_their_events_say()
            assert self.projection.check().drifts == []
        finally:
            declarations.consumers.discard(self.projection)
            models.Consumer.objects.filter(name="deeds").delete()
            models.Rebuild.objects.all().delete()
            with suppress(Refused, InUse):
                remove_topic(self.topic, force=True)


@pytest.mark.slow
@pytest.mark.requirement("X13")
@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(8, id="some"),
        pytest.param(60, id="many", marks=[pytest.mark.long, pytest.mark.timeout(1_200)]),
    ],
)
def test_rows_are_what_a_simple_fold_says_whatever_happens(make_topic, examples):
    run_state_machine_as_test(
        lambda: Model(make_topic),
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            phases=set(Phase) - {Phase.explain, Phase.shrink},  # which takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
