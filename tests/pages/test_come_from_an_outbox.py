"""docs/how-to/come-from-an-outbox.md: each step, beside writers that don't stop."""

import subprocess
import sys
from collections import defaultdict

import psycopg
import pytest

from tests.pages.conftest import MakeSite
from tests.pages.site import Site

PAGE = "how-to/come-from-an-outbox.md"
KEYS = 5
# Writers count up the status of one order after the other, so that each order's deliveries must be 1, 2, 3 …
WRITER = """
import signal
import time

from django.db import transaction

from shop.models import Order
from shop.ordering import change_status

stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
print("ready", flush=True)
while not stopped:
    for pk in range(1, %d):
        with transaction.atomic():
            status = int(Order.objects.select_for_update().get(pk=pk).status)
            change_status(pk, str(status + 1))
        time.sleep(0.02)  # leave the processor to the others
"""
RELAY = """
import signal
import time

from shop.relay import send_some

stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
print("ready", flush=True)
while not stopped:
    if not send_some():
        time.sleep(0.01)
"""


def start(site: Site, name: str, code: str) -> "subprocess.Popen[str]":
    path = site.folder / f"{name}.py"
    path.write_text(f"import django\n\ndjango.setup()\n{code}")
    process = site._start([sys.executable, str(path)], name=name)
    site.wait_until(lambda: "ready" in site.said(process), what=f"a {name}")
    return process


def stop(*processes: "subprocess.Popen[str]") -> None:
    for process in processes:
        process.terminate()
        assert process.wait(60) == 0


def count(site: Site, query: str) -> int:
    with psycopg.connect(site.url) as connection:
        [[found]] = connection.execute(query).fetchall()
    return int(found)


def written(site: Site) -> int:
    return count(site, "SELECT sum(status::int) FROM shop_order")


def delivered(site: Site) -> int:
    return count(site, "SELECT count(*) FROM shop_delivered")


def wait_for_some(site: Site) -> None:
    """Until the writers that are at work have written, and some of it is delivered."""
    before = written(site), delivered(site)
    site.wait_until(
        lambda: written(site) > before[0] + KEYS and delivered(site) > before[1] + KEYS, what="writers and deliveries"
    )


def check(site: Site) -> None:
    """Each change was delivered once, those of an order in their order."""
    with psycopg.connect(site.url) as connection:
        wanted = connection.execute("SELECT id, status::int FROM shop_order").fetchall()
        rows = connection.execute("SELECT key, (payload ->> 'status')::int FROM shop_delivered ORDER BY id").fetchall()
    found = defaultdict(list)
    for key, status in rows:
        found[int(key)].append(status)
    assert found == {order: list(range(1, last + 1)) for order, last in wanted}


@pytest.mark.timeout(240)
def test_the_switch_and_the_way_back_lose_nothing_and_double_nothing(make_site: MakeSite):
    site = make_site(PAGE)
    site.write("shop/events.py", "")
    site.take_files("shop/models.py", "shop/relay.py", "shop/ordering.py")
    site.migrate()
    with psycopg.connect(site.url) as connection:
        connection.execute("INSERT INTO shop_order (status) SELECT '0' FROM generate_series(1, %s)", [KEYS])
    writer = WRITER % (KEYS + 1)
    old = [start(site, "writer", writer)]
    relay = start(site, "relay", RELAY)
    wait_for_some(site)

    site.take_files("shop/events.py")
    site.run_block()
    site.start("run_transfer")
    site.start("run_consumer", "delivery", "--skip-checks")
    wait_for_some(site)

    stop(relay)
    waiting = delivered(site)
    site.wait_until(lambda: written(site) > waiting + KEYS, what="a backlog")
    site.take_files("shop/migrations/0002_outbox_to_events.py")
    site.run_block()
    by_mistake = start(site, "relay", RELAY)
    wait_for_some(site)

    kept = (site.root / "shop/ordering.py").read_text()
    site.take_files("shop/ordering.py")
    new = start(site, "writer", writer)
    wait_for_some(site)
    stop(old.pop())
    wait_for_some(site)

    site.write("shop/ordering.py", kept)
    old.append(start(site, "writer", writer))
    stop(new, by_mistake)
    site.run_block()
    site.wait_until(lambda: count(site, "SELECT count(*) FROM shop_outbox WHERE sent_at IS NULL") > KEYS, what="rows")
    site.wait_until(lambda: behind(site) == 0, what="a consumer that is at the end")
    assert "delivery" in site.run_block()
    relay = start(site, "relay", RELAY)
    wait_for_some(site)

    stop(*old)
    site.wait_until(lambda: delivered(site) == written(site), what="all of it delivered")
    stop(relay)
    check(site)
    assert site.all_taken()


def behind(site: Site) -> int:
    return count(
        site,
        "SELECT (SELECT count(*) FROM django_events_bufferedevent) + count(*) FROM django_events_event e"
        " JOIN django_events_position p ON p.partition = e.partition AND e.id > p.position",
    )
