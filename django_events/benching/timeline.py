"""Timelines, measured: how long it takes to read the events of one resource out of a long log, and whether they are
its own.

with stop_on_signals() as stop:
    measured = run("default", Resources(tenants=10, resources=1_000, events=10), samples=1_000, stop=stop)
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django_events import models, sql
from django_events.benching.load import MOST_BYTES, OF_A_ROW
from django_events.benching.percentiles import LatencySummary
from django_events.benching.scratch_topic import ScratchTopic, scratch_topic
from django_events.benching.timings import clock
from django_events.drafts import Draft
from django_events.exceptions import InUse
from django_events.log import inventory
from django_events.log.holders import holders
from django_events.log.transfer import Transfer
from django_events.models import Event
from django_events.publishing.api import publish_many
from django_events.statements import log_table
from django_events.workers.loop import connect_for_work
from django_events.workers.stopping import Stop

SQL = sql.beside(__name__)

MOST_EVENTS = 20_000_000
MOST_SAMPLES = 100_000
OF_A_VALUE = 100  # bytes of a value and its key
AT_ONCE = 5_000
SHOWN = 10  # of what is wrong
LONGEST_WAIT = 30.0  # seconds, for another transfer that is at the topic
PAUSE = 0.05


@dataclass(frozen=True, kw_only=True)
class Resources:
    """So many tenants with so many resources each, and so many events of each resource."""

    tenants: int = 10
    resources: int = 1_000
    events: int = 10

    @property
    def all_events(self) -> int:
        return self.tenants * self.resources * self.events

    @property
    def expected_bytes(self) -> int:
        """About how much is written to the tables: the log with its two indexes, and the buffer."""
        return self.all_events * (2 * (OF_A_VALUE + OF_A_ROW) + OF_A_VALUE)

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each thing that is asked too much."""
        for option, value in (("--tenants", self.tenants), ("--resources", self.resources), ("--each", self.events)):
            if value < 1:
                yield f"{option} is {value}, expected at least 1."
        if self.all_events > MOST_EVENTS or self.expected_bytes > MOST_BYTES:
            yield (
                f"{self.tenants:,} tenants with {self.resources:,} resources of {self.events:,} events are "
                f"{self.all_events:,} events, about {self.expected_bytes / 2**30:,.1f} GiB. No more than "
                f"{MOST_EVENTS:,} events and {MOST_BYTES >> 30} GiB are written. Ask for fewer."
            )

    def key(self, tenant: int, resource: int) -> str:
        return f"tenant-{tenant}/resource-{resource}"

    def drafts(self) -> Iterator[Draft]:
        """One event of every resource, then the next of every one: those of one lie far apart, as they do in life."""
        for turn in range(self.events):
            for resource in range(self.resources):
                for tenant in range(self.tenants):
                    value = {"tenant": tenant, "resource": resource, "turn": turn, "note": "something happened here"}
                    yield Draft(value=value, type="bench", key=self.key(tenant, resource))


@dataclass(frozen=True, kw_only=True)
class TimelineResult:
    """What reading timelines was like, what was wrong with some of them, and how PostgreSQL read one."""

    topic: str
    stopped: bool
    seeded: int
    seeding_seconds: float
    bytes: int
    samples: int
    milliseconds: LatencySummary | None
    wrong: list[str]
    read_by: list[str]
    plan: str


def run(
    using: str,
    resources: Resources,
    *,
    samples: int,
    seconds: float,
    stop: Stop,
    say: Callable[[str], None] = lambda text: None,
) -> TimelineResult:
    """Seed a scratch topic with a timeline, read random timelines of it, check each, and drop the scratch topic again.

    It ends after so many seconds at the latest, with what it has until then.
    """
    until = clock() + seconds
    with scratch_topic(using, timeline=True) as made:
        topic, log = made.declared, log_table(made.topic.pk)
        say(f"Seeding {topic}. Ctrl-C stops, and drops it.")
        began = clock()
        seeded = _seed(using, made, resources, lambda: stop.requested or clock() > until)
        seeding_seconds = clock() - began
        complete = seeded == resources.all_events
        took: list[float] = []
        wrong: list[str] = []
        if complete:
            sql.run(using, SQL.analyze_log.on(log=log))
            say(f"Reading {samples:,} timelines.")
            for tenant, resource in islice(_places(resources), samples):
                if stop.requested or clock() > until:
                    break
                key = resources.key(tenant, resource)
                began = clock()
                events = list(Event.objects.using(using).timeline(topic, key))
                took.append(clock() - began)
                wrong += problems(events, tenant, key, expected=resources.events)
        empty = {segment.table for segment in inventory.extents(using, made.topic) if segment.since is None}
        asked = Event.objects.using(using).timeline(topic, resources.key(0, 0))
        return TimelineResult(
            topic=topic.name,
            stopped=stop.requested,
            seeded=seeded,
            seeding_seconds=seeding_seconds,
            bytes=inventory.sizes(using, [made.topic])[topic.name][1],
            samples=len(took),
            milliseconds=LatencySummary.of(took),
            wrong=wrong[:SHOWN],
            read_by=sorted(set(_read_by(json.loads(asked.explain(format="json")), empty))),
            plan=asked.explain(),
        )


def problems(events: list[Event], tenant: int, key: str, *, expected: int) -> Iterator[str]:
    """Yield a sentence for each way in which these are not the events of one resource of a tenant, in their order."""
    for event in events:
        if event.key != key or _value(event).get("tenant") != tenant:
            yield f"The timeline of {key} has event {event.id} of {event.key}, tenant {_value(event).get('tenant')}."
    if [_value(event).get("turn") for event in events] != list(range(expected)):
        yield f"The timeline of {key} has {len(events)} events, expected {expected} in their order."


def _value(event: Event) -> dict[str, Any]:
    """All have one: it was written here."""
    return event.value or {}


def _seed(using: str, made: ScratchTopic, resources: Resources, over: Callable[[], bool]) -> int:
    """Publish and move, a batch after the other; returns how many events are in the log."""
    connect_for_work(using)
    transfer = Transfer(using, only=made.topic.pk)
    drafts, seeded = resources.drafts(), 0
    while not over() and (batch := list(islice(drafts, AT_ONCE))):
        publish_many(made.declared, batch, using=using)
        seeded += len(batch)
        _move(using, transfer, made.topic, seeded)
    return seeded


def _move(using: str, transfer: Transfer, topic: models.Topic, last_id: int) -> None:
    """Until the log ends there: the site's transfers may move some of it."""
    until = clock() + LONGEST_WAIT
    while True:
        transfer.move()
        if inventory.logs(using, [topic])[0].last_id >= last_id:
            return
        if clock() > until:
            whose = "; ".join(map(str, holders(using, [topic.pk]))) or "its holder can't be seen by this role"
            raise InUse(f"Events of {topic} could not be moved, because of a lock: {whose}. Try again.")
        time.sleep(PAUSE)


def _places(resources: Resources) -> Iterator[tuple[int, int]]:
    dice = random.Random(7)  # noqa: S311  # no secret: the same timelines each time
    while True:
        yield dice.randrange(resources.tenants), dice.randrange(resources.resources)


def _read_by(plan: Any, empty: set[str]) -> Iterator[str]:
    """The indexes that a plan reads, and the tables that it reads as a whole, but for those with nothing in them."""
    if isinstance(plan, list):
        for part in plan:
            yield from _read_by(part, empty)
    elif isinstance(plan, dict):
        if plan.get("Relation Name") in empty:
            return
        if plan.get("Node Type") == "Seq Scan":
            yield f"all of {plan['Relation Name']}"
        if "Index Name" in plan:
            yield plan["Index Name"]
        for part in plan.values():
            yield from _read_by(part, empty)
