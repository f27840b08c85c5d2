"""What the site wants told of this process, by the setting TELEMETRY."""

from importlib import import_module
from importlib.util import find_spec

from django_events import conf


def install() -> None:
    """Have it counted, timed and traced. What is named and not installed is found by `manage.py check`."""
    for name in conf.telemetry():
        package, _ = conf.TELEMETRY[name]
        if find_spec(package) is not None:
            import_module(f"django_events.metrics.{name}").install()
