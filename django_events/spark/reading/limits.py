"""Where a micro-batch ends that has a limit: after so many events, or after about so many bytes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from django_events.reading.dsn import Connection, KeptConnection
from django_events.reading.ranges import Range
from django_events.reading.rows import RangeReader

SAMPLE = 511  # events that are measured at one place of a topic, asked for by 1, 2, 4 … 256
LARGE_SAMPLE = 4 << 20  # bytes, after which fewer events are enough
PLACES = (0.0, 0.5, 1.0)  # beginning, middle and end of a range


@dataclass(frozen=True)
class BatchSizes:
    """Measures some events, as the tasks of a query would read them: with the columns that are asked for."""

    session: KeptConnection
    reader: RangeReader

    def within(self, whole: Iterable[Range], most: int) -> dict[str, int]:
        """The ends of a batch of about `most` bytes, by topic; of one event at least, or a query would never go on.

        The largest measure of a topic counts, so that small events beside large ones make a batch smaller, not larger.
        """
        planned = [one for one in whole if len(one)]
        sizes = dict.fromkeys((one.topic for one in planned), 0.0)
        for place in PLACES:
            for one in planned:
                if place == PLACES[0] or len(one) > SAMPLE:
                    sizes[one.topic] = max(sizes[one.topic], self._bytes_per_event(_sample(one, place)))
            total = sum(len(one) * sizes[one.topic] for one in planned)
            if total > most:
                begins, ends = ({one.topic: getattr(one, at) for one in planned} for at in ("start", "end"))
                ends = shared(begins, ends, max(int(sum(map(len, planned)) * most / total), 1))
                planned = [replace(one, end=ends[one.topic]) for one in planned]
        return {one.topic: one.end for one in planned}

    def _bytes_per_event(self, some: Range) -> float:
        """Of a range with an event at least. Compaction has left ids without one, which are as good as empty events."""
        measured = size = 0
        while measured < len(some) and size < LARGE_SAMPLE:
            more = min(measured + 1, len(some) - measured)  # doubled, so that few large events are read, not all
            part = replace(some, start=some.start + measured, end=some.start + measured + more)
            size += self.session.run(self._measuring(part))
            measured += more
        return size / measured

    def _measuring(self, part: Range) -> Callable[[Connection], int]:
        return lambda connection: sum(batch.nbytes for batch in self.reader.read_by(connection, part))


def _sample(whole: Range, place: float) -> Range:
    count = min(SAMPLE, len(whole))
    start = whole.start + int((len(whole) - count) * place)
    return replace(whole, start=start, end=start + count)


def shared(begins: dict[str, int], ends: dict[str, int], most: int) -> dict[str, int]:
    """Ends of a batch of at most `most` events: each topic's share is in proportion to what it has to read."""
    waiting = {name: ends[name] - begins[name] for name in ends}
    total = sum(waiting.values())
    if total <= most:
        return ends
    shares = {name: most * count // total for name, count in waiting.items()}
    hungry = sorted((name for name in waiting if shares[name] < waiting[name]), key=waiting.__getitem__)
    for name in hungry[: most - sum(shares.values())]:  # what rounding left over goes to the smallest topics
        shares[name] += 1
    return {name: begins[name] + shares[name] for name in ends}
