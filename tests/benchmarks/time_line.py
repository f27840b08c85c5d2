"""Where the time of one event goes, over both hops: from before publish() to the handler, part by part."""

from collections import Counter
from collections.abc import Iterator
from statistics import mean

from django_events import publish
from django_events.benching.percentiles import percentile
from django_events.declarations import DeclaredConsumer, DeclaredTopic
from tests.benchmarks.by_hand import noop
from tests.benchmarks.consuming import registered
from tests.benchmarks.database import truncate
from tests.benchmarks.end_to_end import ENDING, RATE, cast, is_passed
from tests.benchmarks.harness import Effort, Row, figure
from tests.benchmarks.trace import Mark, cycles
from tests.benchmarks.transfer import BUFFER, declared


@figure("N8t", "the time line of one event over both hops, at 100 events a second: means of its parts")
def parts(effort: Effort) -> Iterator[Row]:
    """The events whose marks come in the usual order, with no other event on its way: the parts add up to the whole."""
    for mode in ("stream", "queue"):
        lines = [_on_the_path(one) for one in _cycles(mode, max(effort.events(30), 10))]
        names = [tuple(what for _, what in line) for line in lines]
        usual, count = Counter(names).most_common(1)[0]
        chosen = [line for line, name in zip(lines, names, strict=True) if name == usual]
        of = f"{mode}, {count} of {len(lines)} events"
        for before, what in enumerate(usual[1:]):
            yield _row(f"{of}: until {what}", [line[before + 1][0] - line[before][0] for line in chosen])
        yield _row(f"{of}: all of it", [line[-1][0] - line[0][0] for line in chosen])


def _row(what: str, seconds: list[float]) -> Row:
    took = sorted(1_000 * one for one in seconds)
    return Row(what=what, unit="ms", measured=mean(took), against="its p99", reference=percentile(took, 0.99))


def _on_the_path(line: list[Mark]) -> list[Mark]:
    """Without what the transfer does when the consumer knows already."""
    return [mark for mark in line if not mark[1].startswith("transfer: has the answer")]


def _cycles(mode: str, seconds: int) -> Iterator[list[Mark]]:
    truncate(BUFFER)
    topic = DeclaredTopic(name="bench")
    consumer = DeclaredConsumer(name="bench", topics=("bench",), handler=noop, mode=mode, partitioned=mode == "stream")
    with declared(topic), registered(consumer), cast() as processes:
        mover = processes.play_traced("transfer")
        reader = processes.play_traced("note_latency", mode)
        publish("bench", {"sent": 0})
        processes.wait_until(lambda: is_passed(consumer, 1), what="the first event")
        publisher = processes.play_traced("publish_at_a_rate", RATE, seconds)
        sent = processes.result("traced-publish_at_a_rate", publisher, seconds=seconds + ENDING)
        processes.wait_until(lambda: is_passed(consumer, 1 + len(sent["result"])), what="the last event")
        moved, read = processes.stop("traced-transfer", mover), processes.stop("traced-note_latency", reader)
    marks = [(moment, what) for one in (sent, moved, read) for moment, what in one["marks"]]
    yield from cycles(marks, [(began, moment) for began, moment in read["result"] if began])
