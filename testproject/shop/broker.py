"""`demo --relay`: a Redis of the demo's own, to which a relay sends the orders, and what came there.

with orders_relayed() as (relay, options):
    ...                 # a worker serves the relay
    in_redis(options)   # the ids of the events, by stream, in their order
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from django_events import DeclaredRelay, declarations, redis_stream, relay
from django_events.operations import unregister
from testproject.shop import events

STREAM = "shop.orders"
BROKER = "demo"
START_SECONDS = 30.0
# Redis ends when the demo does, also if that is killed: the pipe ends then.
KEEPER = 'exec 3<&0; "$@" <&- >/dev/null 2>&1 & read -r _ <&3; kill $!; wait $!'


@contextmanager
def _redis_of_our_own() -> Iterator[dict[str, Any]]:
    """A server in a temporary folder until the block ends, and by what options its client reaches it."""
    program = shutil.which("redis-server")
    if program is None:
        raise CommandError("--relay needs redis-server: apt-get install redis-server, or brew install redis.")
    target = redis_stream(STREAM, broker=BROKER)
    target.check_installed()
    with tempfile.TemporaryDirectory(prefix="django-events-redis-") as folder:
        socket = Path(folder, "s")
        command = [program, "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", ""]
        server = subprocess.Popen(["sh", "-c", KEEPER, "keeper", *command], stdin=subprocess.PIPE)
        options = {"unix_socket_path": str(socket)}
        try:
            _wait_for(server, socket)
            with override_settings(DJANGO_EVENTS={"BROKERS": {BROKER: options}}):
                yield options
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()


def _wait_for(server: "subprocess.Popen[bytes]", socket: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not socket.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise CommandError("redis-server did not start.")
        time.sleep(0.05)


@contextmanager
def orders_relayed() -> Iterator[tuple[DeclaredRelay, dict[str, Any]]]:
    """A relay of all orders to a new Redis, until the block ends: then both are gone."""
    with _redis_of_our_own() as options:
        declared = relay(events.orders, to=redis_stream(STREAM, broker=BROKER), name="to-redis")
        try:
            call_command("migrate", verbosity=0)
            yield declared, options
        finally:
            declarations.consumers.discard(declared)
            unregister(declared.name)


def in_redis(options: dict[str, Any]) -> dict[str, list[int]]:
    """The ids of the events that are there: an entry's id begins with the event's."""
    import redis

    with redis.Redis(**options, decode_responses=True) as client:
        streams = sorted(client.scan_iter(f"{STREAM}*"))
        return {name: [int(entry.partition("-")[0]) for entry, _ in client.xrange(name)] for name in streams}
