"""The relays that are measured, each to a broker of the figure's own, by the broker's name."""

from typing import Any

from django_events import jetstream, kafka, redis_stream
from django_events.bridges.relays.relaying import Relaying
from django_events.declarations import DeclaredRelay

BATCH = 500
TARGETS: dict[str, Any] = {
    "redis": redis_stream("bench"),
    "nats": jetstream("bench", stream="BENCH"),
    "kafka": kafka("bench"),
}
# Where a relay of a topic with one partition puts its events.
STREAM_OF_REDIS, STREAM_OF_NATS, SUBJECT_OF_NATS = "bench:0", "BENCH-0", "bench.0"


def a_relay(broker: str, *, name: str = "bench", to: Any = None, **options: Any) -> DeclaredRelay:
    """A relay of the topic `bench` to a broker, or to another target."""
    return DeclaredRelay(
        name=name,
        topics=("bench",),
        handler=f"{Relaying.__module__}.Relaying",
        to=to or TARGETS[broker],
        transactional=False,
        batch_size=BATCH,
        **options,
    )
