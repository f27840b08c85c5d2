"""The state as text for Prometheus, which takes no package: the client would need half a second for 1,000 consumers.

text(read_all())
"""

from collections.abc import Iterable

from django_events.observing.state import STATE_METRICS, Measurement
from django_events.telemetry import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def text(samples: Iterable[Measurement]) -> str:
    """The samples by metric, each with what it means."""
    lines: dict[Metric, list[str]] = {metric: _header(metric) for metric in STATE_METRICS}
    for metric, labels, value in samples:
        named = ",".join(
            f'{name}="{label.translate(_ESCAPED)}"' for name, label in zip(metric.labels, labels, strict=True)
        )
        lines[metric].append(f"{metric.full_name}{{{named}}} {float(value)!r}")
    return "".join(f"{line}\n" for of_metric in lines.values() for line in of_metric)


def _header(metric: Metric) -> list[str]:
    return [f"# HELP {metric.full_name} {metric.help}", f"# TYPE {metric.full_name} {metric.kind}"]
