"""Traces: from the publisher to the handlers, and on to what they publish. The SDK is the real one."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from opentelemetry import context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from django_events import (
    Backoff,
    BufferedWriter,
    Draft,
    Ignore,
    ReceivedEvent,
    event_context,
    publish,
    publish_many,
    redis_stream,
    telemetry,
)
from django_events.exceptions import InvalidEvent
from django_events.metrics.opentelemetry import OpenTelemetry, OpenTelemetryTracing
from django_events.models import BufferedEvent, DeadLetter, Event
from django_events.testing import drain
from testproject.shop.models import Order, Payment, Product
from tests.support.fix_consumers import run_once, write_order
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.requirement("X10"), pytest.mark.usefixtures("transactional_db")]

AT_ONCE = Backoff(attempts=2, base=timedelta(0), cap=timedelta(0))


class Traced:
    """A site with a tracer, and what it exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracer = self.provider.get_tracer("the site")

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> Any:
        [span] = self.spans(name)
        return span

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        found = data.resource_metrics if data is not None else []
        return {m.name: m for of in found for scope in of.scope_metrics for m in scope.metrics}


@pytest.fixture
def traced() -> Iterator[Traced]:
    site = Traced()
    with closing(OpenTelemetry(tracer_provider=site.provider, meter_provider=site.meters)):
        yield site
    site.provider.shutdown()
    site.meters.shutdown()
    assert telemetry.tracing is None
    assert not any(instrument.observed for instrument in telemetry.INSTRUMENTS)


def traceparents() -> list[str | None]:
    return [e.metadata.get("traceparent") for e in BufferedEvent.objects.order_by("id")]


def parent_of(span: Any) -> Any:
    return span.parent and span.parent.span_id


def test_a_trace_goes_from_the_request_to_the_handler_and_to_what_that_publishes(
    traced: Traced, make_topic: Any, make_consumer: Any
) -> None:
    make_topic("sales", partitions=4)
    make_topic("letters")

    def bill(event: ReceivedEvent) -> None:
        publish("letters", {"about": event.value})

    make_consumer("sales", name="tallies", handler=bill)
    make_consumer("letters", name="post", mode="queue", handler=lambda event: None)
    with traced.tracer.start_as_current_span("request") as request:
        publish("sales", 7, type="placed", key="7")
    drain()

    published, handled = traced.span("publish sales"), traced.span("handle sales")
    again, read = traced.span("publish letters"), traced.span("handle letters")
    assert parent_of(published) == request.get_span_context().span_id
    assert parent_of(handled) == published.context.span_id
    assert parent_of(again) == handled.context.span_id
    assert parent_of(read) == again.context.span_id
    assert {span.context.trace_id for span in (published, handled, again, read)} == {
        request.get_span_context().trace_id
    }
    assert (published.kind, handled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(published.attributes) == {
        "messaging.system": "django_events",
        "messaging.destination.name": "sales",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
    }
    assert dict(handled.attributes) == {
        "messaging.system": "django_events",
        "messaging.destination.name": "sales",
        "messaging.operation.name": "handle",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "tallies",
        "messaging.message.id": "sales/1",
        "messaging.destination.partition.id": str(Event.objects.at("sales", 1).partition),
        "django_events.database": "default",
        "django_events.type": "placed",
        "django_events.attempt": 1,
    }


def test_a_batch_links_to_its_publishers(traced: Traced, make_topic: Any, make_consumer: Any) -> None:
    make_topic("sales")
    make_consumer("sales", name="tallies", batch_size=10, handler=lambda events: None)
    with traced.tracer.start_as_current_span("first"):
        publish_many("sales", [Draft(value=1), Draft(value=2)])
    with traced.tracer.start_as_current_span("second"):
        publish("sales", 3)
    publish("sales", 4)
    drain()

    handled, published = traced.span("handle sales"), traced.spans("publish sales")
    assert handled.parent is None
    assert [link.context.span_id for link in handled.links] == [span.context.span_id for span in published]
    assert handled.attributes["messaging.batch.message_count"] == 4
    assert published[0].attributes["messaging.batch.message_count"] == 2


def test_every_way_of_publishing_in_python_carries_the_trace(traced: Traced, make_topic: Any) -> None:
    make_topic("sales")
    with traced.tracer.start_as_current_span("request") as request, BufferedWriter("sales") as writer:
        publish("sales", 1, metadata={"user": 7})
        publish_many("sales", [Draft(value=2)])
        publish_many("sales", [Draft(value=i) for i in range(200)])
        publish("sales", 3, dedup_key="once")
        writer.publish(4)
        with event_context(user=8):
            publish("sales", 5)
    found = traceparents()

    assert len(found) == 205
    trace_id = f"{request.get_span_context().trace_id:032x}"
    assert all(one is not None and one.split("-")[1] == trace_id for one in found)
    users = [e.metadata.get("user") for e in BufferedEvent.objects.order_by("id")]
    assert {7, 8} <= set(users)


def test_what_an_outbox_publishes_carries_the_trace(traced: Traced, shelf: Product) -> None:
    write_order("a customer")
    with traced.tracer.start_as_current_span("request"), transaction.atomic():
        Payment.objects.create(order=Order.objects.get(), amount=1)
    of = traced.span("publish payments").context

    [carried] = [one for one in traceparents() if one is not None]
    assert carried == f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags:02x}"


def test_a_trace_that_is_named_is_left_as_it_is(traced: Traced, make_topic: Any) -> None:
    make_topic("sales")
    with traced.tracer.start_as_current_span("request"):
        publish("sales", 1, metadata={"traceparent": "of another system"})
    assert traceparents() == ["of another system"]


def test_where_nothing_is_traced_nothing_is_said(traced: Traced, make_topic: Any) -> None:
    make_topic("sales")
    publish("sales", 1)
    with traced.tracer.start_as_current_span("request"):
        token = context.attach(context.set_value("suppress_instrumentation", True))
        publish("sales", 2)
        context.detach(token)

    assert traceparents() == [None, None]
    assert traced.spans("publish sales") == []


def test_without_tracing_metadata_are_left_alone(make_topic: Any) -> None:
    make_topic("sales")
    with Traced().tracer.start_as_current_span("request"):
        publish("sales", 1)
    assert traceparents() == [None]


@pytest.mark.parametrize("carried", ["", "nonsense", 7, {"a": 1}, "00-0-0-00"])
def test_events_of_others_are_handled_whatever_they_carry(
    traced: Traced, make_topic: Any, make_consumer: Any, carried: Any
) -> None:
    make_topic("sales")
    handled: list[Any] = []
    make_consumer("sales", name="tallies", handler=handled.append)
    make_consumer("sales", name="batch", batch_size=2, handler=handled.extend)
    for value in (1, 2):
        publish("sales", value, metadata={"traceparent": carried})
    drain()

    assert len(handled) == 4
    assert all(span.parent is None and not span.links for span in traced.spans("handle sales"))


def test_an_error_is_told_and_a_decision_is_none(traced: Traced, make_topic: Any, make_consumer: Any) -> None:
    make_topic("sales")

    def bill(event: ReceivedEvent) -> None:
        if event.value == "unwanted":
            raise Ignore("not wanted")
        if event.attempt == 1:
            raise ValueError("no such order")

    make_consumer("sales", name="tallies", mode="queue", retry=AT_ONCE, handler=bill)
    publish("sales", "bad")
    publish("sales", "unwanted")
    drain(raise_errors=False)

    failed = [span for span in traced.spans("handle sales") if span.status.status_code is StatusCode.ERROR]
    assert {span.attributes["messaging.message.id"] for span in failed} == {"sales/1"}
    assert failed[0].attributes["error.type"] == "ValueError"
    assert failed[0].events[0].attributes["exception.message"] == "no such order"
    [ignored] = [s for s in traced.spans("handle sales") if "django_events.decision" in s.attributes]
    assert ignored.attributes["django_events.decision"] == "ignore"
    assert {s.attributes["django_events.attempt"] for s in traced.spans("handle sales")} == {1, 2}


class Broken(SpanProcessor):
    """Of a site whose exporter has a bug."""

    def __init__(self, at: str) -> None:
        self.at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.at == "start" and " sales" in span.name:
            raise RuntimeError("it broke at the start")

    def on_end(self, span: Any) -> None:
        if self.at == "end" and " sales" in span.name:
            raise RuntimeError("it broke at the end")


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_trace_that_fails_is_no_harm(
    traced: Traced, make_topic: Any, make_consumer: Any, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    make_topic("sales")
    traced.provider.add_span_processor(Broken(at))
    handled: list[Any] = []
    around: list[Any] = []

    def bill(event: ReceivedEvent) -> None:
        around.append(get_current_span().get_span_context().is_valid)
        if event.value == "bad":
            raise ValueError("no such order")
        handled.append(event.value)

    consumer = make_consumer("sales", name="tallies", handler=bill, retry=AT_ONCE)
    with traced.tracer.start_as_current_span("request") as request:
        publish("sales", 1)
        publish_many("sales", [Draft(value=2), Draft(value="bad")])
        with pytest.raises(InvalidEvent):
            publish("sales", object())
        assert get_current_span() is request
    drain(consumer, raise_errors=False)

    assert handled == [1, 2]
    assert not get_current_span().get_span_context().is_valid
    [letter] = DeadLetter.objects.all()
    assert (letter.value, letter.error) == ("bad", "ValueError: no such order")
    assert all(around) is (at == "end")
    assert "The span 'publish sales' couldn't be told." in caplog.text
    assert "The span 'handle sales' couldn't be told." in caplog.text
    assert f"it broke at the {at}" in caplog.text


def test_an_error_that_cannot_be_told_is_raised_as_it_is(traced: Traced, make_topic: Any, make_consumer: Any) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def bill(event: ReceivedEvent) -> None:
        raise Unspeakable

    make_topic("sales")
    consumer = make_consumer("sales", name="tallies", handler=bill, retry=AT_ONCE)
    publish("sales", 1)
    drain(consumer, raise_errors=False)

    [letter] = DeadLetter.objects.all()
    assert "Unspeakable" in letter.error
    assert {span.status.status_code for span in traced.spans("handle sales")} == {StatusCode.ERROR}


def test_an_event_is_published_without_its_trace_where_that_fails(
    make_topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(OpenTelemetryTracing):
        def carried(self, metadata: Any) -> Any:
            raise RuntimeError("nothing can be carried")

    make_topic("sales")
    before = telemetry.trace_with(Broken(TracerProvider(shutdown_on_exit=False).get_tracer("the site")))
    try:
        publish("sales", 1, metadata={"user": 7})
    finally:
        telemetry.trace_with(before)

    assert [e.metadata for e in BufferedEvent.objects.all()] == [{"user": 7}]
    assert "An event can't carry its trace." in caplog.text


@pytest.mark.parametrize("metadata", ["[1]", "null", "7", '"traceparent"'])
def test_metadata_that_are_no_object_carry_no_trace(
    traced: Traced, make_topic: Any, make_consumer: Any, metadata: str
) -> None:
    make_topic("sales")
    handled: list[Any] = []
    make_consumer("sales", name="tallies", handler=handled.append)
    make_consumer("sales", name="batch", batch_size=2, handler=handled.extend)
    with connection.cursor() as cursor:
        for value in ("1", "2"):
            cursor.execute(
                "INSERT INTO django_events_bufferedevent (topic_id, partition, type, value, metadata)"
                " SELECT id, 0, '', %s, %s FROM django_events_topic WHERE name = 'sales'",
                [value, metadata],
            )
    drain()

    assert [event.metadata for event in handled] == [json.loads(metadata)] * 4
    assert len(traced.spans("handle sales")) == 3
    assert all(span.parent is None and not span.links for span in traced.spans("handle sales"))


def test_an_async_handler_goes_on_with_the_trace(traced: Traced, make_topic: Any, make_consumer: Any) -> None:
    make_topic("sales")

    async def bill(event: ReceivedEvent) -> None:
        with traced.tracer.start_as_current_span("inside"):
            pass

    make_consumer("sales", name="tallies", transactional=False, handler=bill)
    publish("sales", 1)
    drain()

    assert parent_of(traced.span("inside")) == traced.span("handle sales").context.span_id


def test_the_metrics_are_those_of_prometheus(traced: Traced, make_topic: Any, make_consumer: Any) -> None:
    make_topic("sales")
    make_consumer("sales", name="tallies", handler=lambda event: None)
    for value in range(3):
        publish("sales", value)
    transfer_all()
    drain()
    found = traced.metrics()

    [published] = found["django_events.published"].data.data_points
    assert (published.value, dict(published.attributes)) == (3, {"database": "default", "topic": "sales"})
    assert found["django_events.published"].unit == "{events}"
    [attempts] = found["django_events.attempts"].data.data_points
    assert (attempts.value, attempts.attributes["outcome"]) == (3, "handled")
    assert found["django_events.handler"].unit == "s"
    [handler] = found["django_events.handler"].data.data_points
    assert tuple(handler.explicit_bounds) == telemetry.SECONDS
    assert {one.split(".", 1)[1] for one in found} <= {one.name for one in telemetry.INSTRUMENTS}


@pytest.mark.requirement("X20")
def test_a_relay_whose_target_can_not_be_reached_has_decided_to_wait(
    traced: Traced, things: Any, make_relay: Any
) -> None:
    fill_topic(things, 1)
    run_once(make_relay(things, to=redis_stream("t", broker="unknown")))

    span = traced.span("handle things")
    assert span.attributes["django_events.decision"] == "retry_later"
    assert (span.events, span.status.status_code) == ((), StatusCode.UNSET)
