"""What processes count and time, for Prometheus, by prometheus-client.

install()                   # count in this process from now on, into the client's own registry
text = of_all_processes()   # of those that share PROMETHEUS_MULTIPROC_DIR
"""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from django_events.telemetry import INSTRUMENTS, Instrument

PREFIX = "django_events_"


class Observer:
    """The instruments as metrics of a registry, until it is closed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._observed = [(instrument, *_observed(instrument, registry)) for instrument in INSTRUMENTS]
        for instrument, _, receive in self._observed:
            instrument.receivers.append(receive)

    def close(self) -> None:
        for instrument, metric, receive in self._observed:
            instrument.receivers.remove(receive)
            self._registry.unregister(metric)


def _observed(
    instrument: Instrument, registry: CollectorRegistry
) -> tuple[Counter | Gauge | Histogram, Callable[..., None]]:
    metric: Any
    if instrument.kind == "counter":
        metric = Counter(instrument.full_name, instrument.help, instrument.labels, registry=registry)
    elif instrument.kind == "gauge":
        metric = Gauge(
            instrument.full_name, instrument.help, instrument.labels, registry=registry, multiprocess_mode="livesum"
        )
    else:
        metric = Histogram(
            instrument.full_name, instrument.help, instrument.labels, registry=registry, buckets=instrument.buckets
        )
    known: dict[tuple[str, ...], Callable[[float], None]] = {}

    def receive(amount: float, labels: tuple[str, ...]) -> None:
        if (tell := known.get(labels)) is None:
            child = metric.labels(*labels)
            tell = known[labels] = child.observe if instrument.kind == "histogram" else child.inc
        tell(amount)

    return metric, receive


_installed: list[Observer] = []


def install() -> None:
    """Have this process count and time, into the registry that all of it shares. Repeating it does nothing."""
    if not _installed:
        _installed.append(Observer(REGISTRY))


class _OfAllProcesses(Collector):
    """What all processes of this site counted, where they share a folder for it; of ours only."""

    def collect(self) -> Iterable[Metric]:
        alone = CollectorRegistry(auto_describe=False)
        everything = MultiProcessCollector(alone).collect()  # type: ignore[no-untyped-call]
        return [one for one in everything if one.name.startswith(PREFIX)]


def of_all_processes() -> str:
    """What all processes of this site counted, as text for Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfAllProcesses())
    return generate_latest(registry).decode()
