"""Any history, folded in any ranges, is one GROUP BY of what was logged: late, erased, compacted, expired, filtered."""

import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from django_events import Draft, publish_many
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.streams.ranges import RangeSize, RangeTurn
from django_events.log import compaction, segments
from django_events.maintaining.expiring import expire
from django_events.models import Event, Topic
from django_events.models.functions import ClockTimestamp
from django_events.operations import erase, repartition
from django_events.statements import log_table
from tests.support.fix_consumers import lease_of, position_of, positions, serve_lease
from tests.support.fix_rollups import all_rows
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3")]

MOST_GROUPS, OTHER = 3, "(other)"
MORNING = datetime(2026, 3, 1, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
TIMES = [*((MORNING + n * timedelta(minutes=25)).isoformat() for n in range(5)), "no time", None]
NUMBERS = [0, 1, -7, 0.1, 2.5e-7, 12345678901234567890, "3.30", "-2", "NaN", "x", True, None, [1], {"a": 1}]
VALUES = st.one_of(
    st.fixed_dictionaries(
        {"total": st.sampled_from(NUMBERS)},
        optional={"at": st.sampled_from(TIMES), "store": st.sampled_from([*"abcde", 1, None])},
    ),
    st.sampled_from([None, 7, "text", [{"total": 5, "store": "a", "at": TIMES[0]}]]),
)
DRAFTS = st.lists(
    st.tuples(VALUES, st.sampled_from(["x", "y"]), st.sampled_from(["k1", "k2", "k3", None])), min_size=1, max_size=8
)
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class History(RuleBasedStateMachine):
    """One topic, one roll-up of it, and what was in each event when it was folded."""

    names = count(1)

    def __init__(self, make_topic, make_rollup):
        super().__init__()
        n = next(self.names)
        self.topic = make_topic(f"history{n}", compact=True, segment_size=100, partitions=2)
        self.make_rollup = lambda types: make_rollup(
            self.topic,
            name=f"figures{n}",
            every=HOUR,
            at="$.at",
            by={"store": "$.store"},
            sums={"total": "$.total"},
            mins={"least": "$.total"},
            maxs={"most": "$.total"},
            groups=MOST_GROUPS,
            types=types,
        )
        self.types = None
        self.filters: list[tuple[int, list[str] | None]] = []
        self.rollup = self.make_rollup(None)
        self.folded: list[tuple[datetime, object]] = []

    @rule(drafts=DRAFTS, times=st.sampled_from([1, 1, 1, 40]))
    def publish(self, drafts, times):
        publish_many(self.topic, [Draft(value=value, type=kind, key=key) for value, kind, key in drafts] * times)
        transfer_all()

    @rule(ids=st.integers(1, 150))
    def fold(self, ids):
        with self.noting():
            if (turn := self.turn(ids)) is not None:
                turn.read()
                turn.lease.release()

    @rule()
    def fold_all(self):
        with self.noting():
            while (lease := lease_of(self.rollup)) is not None:
                serve_lease(lease)

    @rule(ids=st.integers(1, 150))
    def die_before_the_commit(self, ids):
        if (turn := self.turn(ids)) is None:
            return
        following = turn.lease.next_range(ids)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            turn._fold(*following)
            raise ZeroDivisionError
        positions(self.rollup).update(leased_until=ClockTimestamp())

    @rule(types=st.sampled_from([None, ["x"], ["y"], ["x", "y"]]))
    def change_the_filter(self, types):
        if types != self.types:
            self.filters.append((self.last_id(), self.types))
            self.types = types
            self.rollup = self.make_rollup(types)

    @rule(key=st.sampled_from(["k1", "k2"]))
    def erase(self, key):
        erase(self.topic, key=key, reason="asked for it")

    @rule(partitions=st.integers(1, 4))
    def repartition(self, partitions):
        repartition(self.topic, partitions)

    @rule()
    def compact(self):
        compaction.compact("default", self.row())

    @rule()
    def expire(self):
        """What is behind the position may go at once."""
        Topic.objects.filter(name=self.topic.name).update(retention_events=1)
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {log_table(self.row().pk)} SET logged_at = logged_at - interval '1 day'")
        expire("default", self.row())
        Topic.objects.filter(name=self.topic.name).update(retention_events=None)
        segments.ensure("default", self.row().pk, events=1)

    @invariant()
    def it_is_one_group_by(self):
        rows = all_rows(self.rollup)
        assert {(row["bucket"], row["store"]): row for row in rows} == grouped(self.folded)
        assert len(rows) == len(grouped(self.folded))

    def row(self):
        return Topic.objects.select_related("head").get(name=self.topic.name)

    def last_id(self):
        last = Event.objects.of(self.topic).order_by("-id").values_list("id", flat=True).first()
        return max(last or 0, self.row().head.id_floor)

    def turn(self, ids):
        lease = lease_of(self.rollup)
        if lease is None:
            return None
        size = RangeSize()
        size.ids = ids
        return RangeTurn(lease, BoundHandler(self.rollup).folding, size, lambda: False, seconds=0)

    def noting(self):
        return Noting(self)


class Noting:
    """Note each event that the block folds, as it is in the log."""

    def __init__(self, history):
        self.history = history

    def __enter__(self):
        self.before = position_of(self.history.rollup).position
        return self

    def __exit__(self, *error):
        after = position_of(self.history.rollup).position
        events = Event.objects.since(self.history.topic, self.before).filter(id__lte=after)
        for event in events:
            until = [types for until, types in self.history.filters if event.id <= until]
            types = until[0] if until else self.history.types
            if types is None or event.type in types:
                self.history.folded.append((event.published_at, event.value))


def grouped(events):
    """One GROUP BY, in Python."""
    known: list[str] = []
    rows = defaultdict(list)
    for published_at, value in events:
        value = found_in(value)
        group = text_of(value.get("store"))
        if group not in known and len(known) < MOST_GROUPS:
            known.append(group)
        at = value.get("at")
        timed = isinstance(at, str) and at != "no time"
        moment = datetime.fromisoformat(at) if timed else published_at
        bucket = moment.replace(minute=0, second=0, microsecond=0)
        rows[bucket, group if group in known else OTHER].append((timed, number_of(value.get("total"))))
    return {(bucket, store): row_of_events(bucket, store, numbers) for (bucket, store), numbers in rows.items()}


def row_of_events(bucket, store, events):
    numbers = [number for timed, number in events if timed and number is not None]
    return {
        "bucket": bucket,
        "store": store,
        "count": sum(timed for timed, _ in events),
        "skipped": sum(not timed or number is None for timed, number in events),
        "total": sum(numbers) if numbers else None,
        "least": min(numbers, default=None),
        "most": max(numbers, default=None),
    }


def found_in(value):
    """A lax jsonpath looks into the first of a list."""
    while isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, dict) else {}


def text_of(value):
    return "" if value is None else str(value)


def number_of(value):
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value)
    return Decimal(text) if not isinstance(value, str) or NUMBER.fullmatch(text) else None


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_any_history_in_any_ranges_is_one_group_by(make_topic, make_rollup):
    run(make_topic, make_rollup, examples=60, steps=30)


@pytest.mark.slow
def test_some_histories_in_some_ranges_are_one_group_by(make_topic, make_rollup):
    run(make_topic, make_rollup, examples=6, steps=15)


def run(make_topic, make_rollup, *, examples, steps):
    run_state_machine_as_test(
        lambda: History(make_topic, make_rollup),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
