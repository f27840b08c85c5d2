"""The metrics and the traces for OpenTelemetry, by its API: a site's own SDK says where they go.

install()          # by the providers that the site configured, or will
OpenTelemetry(tracer_provider=…, meter_provider=…)

A trace goes from the publisher, by `traceparent` in the metadata of the event, to its handlers and on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_events import __version__, telemetry
from django_events.consuming.handlers import FailedAt
from django_events.received import ReceivedEvent
from django_events.retries import Ignore, RetryLater
from django_events.telemetry import INSTRUMENTS, Instrument

NAME = "django_events"
MOST_LINKS = 128
_FIELDS = ("traceparent", "tracestate")
_propagator = TraceContextTextMapPropagator()


class OpenTelemetry:
    """The instruments as OpenTelemetry's, and spans for publishers and handlers, until it is closed."""

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        meter = metrics.get_meter(NAME, __version__, meter_provider)
        self._receivers = [(instrument, _receiver(instrument, meter)) for instrument in INSTRUMENTS]
        for instrument, receive in self._receivers:
            instrument.receivers.append(receive)
        self._before = telemetry.trace_with(OpenTelemetryTracing(trace.get_tracer(NAME, __version__, tracer_provider)))

    def close(self) -> None:
        for instrument, receive in self._receivers:
            instrument.receivers.remove(receive)
        telemetry.trace_with(self._before)


def _receiver(instrument: Instrument, meter: metrics.Meter) -> telemetry.Receiver:
    name, unit = f"{NAME}.{instrument.name}", "s" if instrument.unit == "seconds" else f"{{{instrument.unit}}}"
    tell: Callable[..., None]
    if instrument.kind == "counter":
        tell = meter.create_counter(name, unit, instrument.help).add
    elif instrument.kind == "gauge":
        tell = meter.create_up_down_counter(name, unit, instrument.help).add
    else:
        tell = meter.create_histogram(
            name, unit, instrument.help, explicit_bucket_boundaries_advisory=list(instrument.buckets)
        ).record

    def receive(amount: float, labels: tuple[str, ...]) -> None:
        tell(amount, dict(zip(instrument.labels, labels, strict=True)))

    return receive


_installed: list[OpenTelemetry] = []


def install() -> None:
    """Count, time and trace in this process. Repeating it does nothing."""
    if not _installed:
        _installed.append(OpenTelemetry())


class OpenTelemetryTracing:
    """Spans of publishers and handlers, and how the one finds the other."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def publishing(self, topic: str, events: int) -> Iterator[None]:
        """A producer's span, where a trace is going on already: publishing alone begins none."""
        if not _is_traced():
            yield
            return
        attributes = _of(topic, "publish", "send")
        if events != 1:
            attributes["messaging.batch.message_count"] = events
        with self._tracer.start_as_current_span(f"publish {topic}", kind=SpanKind.PRODUCER, attributes=attributes):
            yield

    def carried(self, metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The metadata with the trace that goes on here, unless they name one."""
        if not _is_traced() or (metadata is not None and "traceparent" in metadata):
            return metadata
        carrier: dict[str, Any] = {}
        _propagator.inject(carrier)
        return {**(metadata or {}), **carrier}

    def handling(self, using: str, consumer: str, events: Sequence[ReceivedEvent]) -> Any:
        """A consumer's span. It goes on with the trace of the one event, or links to those of several."""
        if _is_suppressed():
            return nullcontext()
        return self._handling(using, consumer, events)

    @contextmanager
    def _handling(self, using: str, consumer: str, events: Sequence[ReceivedEvent]) -> Iterator[None]:
        first = events[0]
        attributes: dict[str, Any] = {
            **_of(first.topic, "handle", "process"),
            "messaging.consumer.group.name": consumer,
            "django_events.database": using,
        }
        parent, links = None, []
        if len(events) == 1:
            attributes["messaging.message.id"] = first.address
            attributes["messaging.destination.partition.id"] = str(first.partition)
            attributes["django_events.type"] = first.type
            attributes["django_events.attempt"] = first.attempt
            parent = _carried_by(first)
        else:
            attributes["messaging.batch.message_count"] = len(events)
            links = _links(events)
        with self._tracer.start_as_current_span(
            f"handle {first.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                _tell_of(span, error)
                raise


def _tell_of(span: trace.Span, error: BaseException) -> None:
    """What a handler decided is no error. What a relay says of its target is in the error that FailedAt has."""
    if isinstance(error, FailedAt):
        error = error.error
    if isinstance(error, Ignore | RetryLater):
        span.set_attribute("django_events.decision", "ignore" if isinstance(error, Ignore) else "retry_later")
        return
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))
    span.record_exception(error)  # last: the text of a site's own error may fail


def _of(topic: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": NAME,
        "messaging.destination.name": topic,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _is_traced() -> bool:
    return trace.get_current_span().get_span_context().is_valid and not _is_suppressed()


def _is_suppressed() -> bool:
    return bool(context.get_value("suppress_instrumentation"))


def _carried_by(event: ReceivedEvent) -> context.Context | None:
    """The context that an event came with; None if it came with none, or with something else under that name."""
    metadata: Any = event.metadata
    if not isinstance(metadata, dict):  # publishers in SQL may send any JSON
        return None
    carrier = {name: metadata[name] for name in _FIELDS if isinstance(metadata.get(name), str)}
    return _propagator.extract(carrier) if "traceparent" in carrier else None


def _links(events: Sequence[ReceivedEvent]) -> list[Link]:
    """To the publishers of these events, each once."""
    found: dict[tuple[int, int], Link] = {}
    for event in events:
        if (carried := _carried_by(event)) is None:
            continue
        of = trace.get_current_span(carried).get_span_context()
        if of.is_valid:
            found.setdefault((of.trace_id, of.span_id), Link(of))
        if len(found) == MOST_LINKS:
            break
    return list(found.values())
