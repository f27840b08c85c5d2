"""A worker's own page for Prometheus, on a port of its own.

with served("127.0.0.1", 9101):
    ...
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, start_http_server

from django_events.metrics import prometheus


@contextmanager
def served(host: str, port: int) -> Iterator[int]:
    """Count in this process, and serve that until the block ends; yields the port. OSError if it is taken."""
    server, thread = start_http_server(port, addr=host, registry=REGISTRY)
    prometheus.install()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
