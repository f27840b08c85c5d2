"""What the hot paths count, time and trace. `django_events.metrics` hands it to Prometheus and OpenTelemetry.

    if telemetry.MOVED.observed:
        telemetry.MOVED.tell(len(events), using, topic)

    with telemetry.publishing(topic, events=1):
        ...

Each metric is declared here once, for Prometheus and OpenTelemetry alike. Without an observer, telling costs nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol

logger = logging.getLogger("django_events.telemetry")

Kind = Literal["counter", "gauge", "histogram"]
Receiver = Callable[[float, tuple[str, ...]], None]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3_600)
EVENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What a number is called and what it means. The values of its labels are few: names, never keys or ids."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ("database",)
    unit: str = ""

    @property
    def full_name(self) -> str:
        """As Prometheus wants it: django_events_moved_total."""
        unit = f"_{self.unit}" if self.unit in ("seconds", "bytes") else ""
        return f"django_events_{self.name}{unit}{'_total' if self.kind == 'counter' else ''}"


@dataclass(frozen=True, kw_only=True)
class Instrument(Metric):
    """A metric of this process, told by what happens in it."""

    buckets: Sequence[float] = ()
    receivers: list[Receiver] = field(default_factory=list, compare=False)

    @property
    def observed(self) -> bool:
        return bool(self.receivers)

    def tell(self, amount: float, *labels: str) -> None:
        """Count, or measure; a gauge goes up and down by the amount.

        What goes wrong with a receiver is none of the business of those who tell.
        """
        for receive in tuple(self.receivers):
            try:
                receive(amount, labels)
            except Exception:
                logger.exception("The metric %s couldn't be told.", self.full_name)


OF_CONSUMER = ("database", "consumer", "topic")

PUBLISHED = Instrument(
    name="published",
    kind="counter",
    unit="events",
    labels=("database", "topic"),
    help="Events that Python published in this process, and whose transaction is committed.",
)
MOVED = Instrument(
    name="moved",
    kind="counter",
    unit="events",
    labels=("database", "topic"),
    help="Events that this process moved from the buffer into the log.",
)
BATCH_EVENTS = Instrument(
    name="transfer_batch_events",
    kind="histogram",
    unit="events",
    buckets=EVENTS,
    help="How many events a batch of the transfer moved.",
)
BATCH_SECONDS = Instrument(
    name="transfer_batch",
    kind="histogram",
    unit="seconds",
    buckets=SECONDS,
    help="How long a batch of the transfer took, its commit included.",
)
PUBLISH_TO_LOG = Instrument(
    name="publish_to_log",
    kind="histogram",
    unit="seconds",
    labels=("database", "topic"),
    buckets=SECONDS,
    help="From the publisher's statement to the log, of the event that waited longest in each batch.",
)
ATTEMPTS = Instrument(
    name="attempts",
    kind="counter",
    unit="events",
    labels=(*OF_CONSUMER, "outcome"),
    help="Events that this process settled: handled, retried, ignored, dead_lettered or stopped.",
)
HANDLER = Instrument(
    name="handler",
    kind="histogram",
    unit="seconds",
    labels=(*OF_CONSUMER, "outcome"),
    buckets=SECONDS,
    help="How long the handler took for the events that were settled together, or for an attempt that failed.",
)
LOG_TO_HANDLED = Instrument(
    name="log_to_handled",
    kind="histogram",
    unit="seconds",
    labels=OF_CONSUMER,
    buckets=SECONDS,
    help="From the log to the end of the handling, of the oldest of the events that were settled together.",
)
LEASES_LOST = Instrument(
    name="leases_lost",
    kind="counter",
    unit="leases",
    labels=OF_CONSUMER,
    help="Leases that this process lost while it handled events: they were taken over, rewound or unregistered.",
)
DATABASE_FAILURES = Instrument(
    name="database_failures",
    kind="counter",
    unit="failures",
    help="Times that a worker of this process had to begin anew because its database failed, or was away.",
)
LISTENERS = Instrument(
    name="listeners",
    kind="gauge",
    unit="listeners",
    help="Listeners that are open in this process, those of streams to browsers among them.",
)
LISTENER_EVENTS = Instrument(
    name="listener_events",
    kind="counter",
    unit="events",
    labels=("database", "topic"),
    help="Events that listeners of this process took: one that two of them took counts twice.",
)
LISTENERS_BEHIND = Instrument(
    name="listeners_behind",
    kind="counter",
    unit="times",
    help="Times that a listener had no room, or met something unusual, and was read for by itself from then on.",
)
LISTENERS_EXPIRED = Instrument(
    name="listeners_expired",
    kind="counter",
    unit="times",
    labels=("database", "topic"),
    help="Times that retention had removed what came next for a listener.",
)
STREAMS = Instrument(
    name="streams",
    kind="gauge",
    unit="streams",
    help="Streams of server-sent events to browsers that are open in this process.",
)
STREAMS_REFUSED = Instrument(
    name="streams_refused",
    kind="counter",
    unit="requests",
    help="Requests for a stream that were answered with 503, because this process had as many as it may have.",
)
WEBHOOK_REQUESTS = Instrument(
    name="webhook_requests",
    kind="gauge",
    unit="requests",
    help="Requests to receivers of webhooks that are under way in this process.",
)
WEBHOOK_ANSWERS = Instrument(
    name="webhook_answers",
    kind="counter",
    unit="requests",
    labels=(*OF_CONSUMER, "status"),
    help="Requests to receivers of webhooks that ended: 2xx, 3xx, 4xx, 5xx, none without an answer, unsent.",
)

INSTRUMENTS = tuple(one for one in vars().copy().values() if isinstance(one, Instrument))


class Tracing(Protocol):
    """A tracer: it follows events from their publisher to their handlers."""

    def publishing(self, topic: str, events: int) -> AbstractContextManager[object]: ...

    def carried(self, metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None: ...

    def handling(self, using: str, consumer: str, events: Sequence[Any]) -> AbstractContextManager[object]: ...


tracing: Tracing | None = None
_NOTHING = nullcontext()
_NO_SPAN = "The span %r couldn't be told."


def trace_with(new: Tracing | None) -> Tracing | None:
    """Have it trace from now on; returns what did before."""
    global tracing
    before, tracing = tracing, new
    return before


def publishing(topic: str, *, events: int) -> AbstractContextManager[object]:
    """A block that publishes."""
    if (traced := tracing) is None:
        return _NOTHING
    return _Harmless(f"publish {topic}", lambda: traced.publishing(topic, events))


def carried(metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The metadata of an event that is published, with the trace that goes on with it."""
    if tracing is None:
        return metadata
    try:
        return tracing.carried(metadata)
    except Exception:
        logger.exception("An event can't carry its trace.")
        return metadata


def handling(using: str, consumer: str, events: Sequence[Any]) -> AbstractContextManager[object]:
    """A block that calls a handler."""
    if (traced := tracing) is None:
        return _NOTHING
    return _Harmless(f"handle {events[0].topic}", lambda: traced.handling(using, consumer, events))


class _Harmless:
    """A span around a block. What goes wrong with it is none of the block's business; what the block raises goes on."""

    def __init__(self, name: str, begin: Callable[[], AbstractContextManager[object]]) -> None:
        self._name = name
        self._begin = begin
        self._span: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        try:
            span = self._begin()
            span.__enter__()
        except Exception:
            logger.exception(_NO_SPAN, self._name)
        else:
            self._span = span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span is None:
            return
        try:
            self._span.__exit__(kind, error, traceback)
        except Exception as raised:
            if raised is not error:
                logger.exception(_NO_SPAN, self._name)
