"""docs/how-to/relay-to-mqtt.md: its target keeps its promises, and its relay sends, with a real Mosquitto."""

import json
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec

import pytest

from tests.pages.conftest import MakeSite
from tests.pages.site import Site
from tests.support.mosquitto import MOSQUITTO, PASSWORD, Mosquitto, Published
from tests.support.processes import wait_until

pytestmark = [
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed: apt-get install mosquitto"),
    pytest.mark.skipif(find_spec("paho") is None, reason="paho-mqtt is not installed: pip install 'paho-mqtt>=2.1'"),
    pytest.mark.slow,
    pytest.mark.requirement("X20"),
]

HELPER = "from tests.support.mosquitto import Mosquitto as Mosquitto\n"
PLACE = """
from shop.events import orders

for number in range({}):
    orders.publish({{"number": number}}, key=f"customer {{number % 3}}", type="order.placed")
"""
PLACE_ODD_ONES = """
from shop.events import orders

orders.publish({"number": 0}, key="Zoë", type="order.+")
orders.publish({"number": 1}, key="Zoë\\n", type="order.paid", metadata={"traceparent": "00-a-b-01"})
orders.publish(None, key="Zoë", type="order.gone")
orders.publish(body=b"\\xff", key="Zoë", type="order.scanned")
orders.publish({"number": 4, "note": "x" * 100_000}, key="Zoë", type="order.placed")
"""
RUN = """
from django.core.management import call_command

call_command("run_events", "--once", "--no-reload")
"""
LOOK = 'call_command("events", "bridges")\n'
RETRY = """
from django_events import operations

operations.retry_now("orders-to-mqtt")
"""
REWIND = """
from django_events import operations

operations.rewind("orders-to-mqtt", to="beginning")
"""
DEAD = """
from django_events.models import DeadLetter

for letter in DeadLetter.objects.order_by("id"):
    print(letter.event_id, letter.error)
"""


@pytest.fixture(scope="module")
def site(make_site: MakeSite) -> Site:
    """The page's site, with all its files."""
    site = make_site("how-to/relay-to-mqtt.md")
    assert site.take("sh").code.startswith("pip install 'paho-mqtt")
    site.take_files("shop/mqtt.py", "mysite/settings.py", "shop/events.py", "shop/tests.py")
    assert site.all_taken()
    site.write("mosquitto.py", HELPER)
    site.migrate()
    return site


@pytest.fixture
def mosquitto(site: Site) -> Iterator[Mosquitto]:
    """A Mosquitto that the site's settings have."""
    with closing(Mosquitto()) as broker:
        site.write("mysite/settings.py", f"MQTT = {dict(broker.login)!r}\n", added=True)
        yield broker


def known_by(message: Published) -> tuple[str, ...]:
    """By what a subscriber finds a double."""
    return tuple(message.properties[name] for name in ("source", "id", "time"))


def test_the_target_of_the_page_keeps_all_promises(site: Site):
    done = site.run("test", "shop.tests")
    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr


def test_a_worker_sends_all_in_the_order_of_keys(site: Site, mosquitto: Mosquitto):
    mosquitto.subscribe("shop/#")
    site.script(PLACE.format(60) + RUN)

    messages = mosquitto.received()
    assert len(messages) == len({known_by(one) for one in messages}) == 60
    for key in ("customer 0", "customer 1", "customer 2"):
        numbers = [json.loads(one.payload)["number"] for one in messages if one.properties["subject"] == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 20
    first = messages[0]
    assert (first.topic, first.content_type) == ("shop/orders/order.placed", "application/json")
    assert first.properties.keys() == {"specversion", "id", "source", "type", "time", "subject", "relay"}
    assert first.properties["source"] == "/orders"
    assert first.properties["type"] == "order.placed"
    assert first.properties["relay"] == "orders-to-mqtt"

    site.script(REWIND + RUN)
    again = mosquitto.received()[60:]
    assert {known_by(one) for one in messages[:60]} <= {known_by(one) for one in again}


def test_a_broker_that_was_restarted_while_nothing_was_sent_is_no_outage(site: Site, mosquitto: Mosquitto):
    mosquitto.subscribe("shop/#")
    worker = site.start("run_events", "--no-reload")
    site.script(PLACE.format(1))
    wait_until(lambda: len(mosquitto.received()) == 1, what="a message")
    mosquitto.stop()
    mosquitto.start()
    site.script(PLACE.format(1))
    wait_until(lambda: len(mosquitto.received()) == 2, what="another message")

    worker.terminate()
    assert worker.wait(60) == 0
    assert "MQTT" not in site.said(worker)


def test_what_can_be_no_message_is_a_dead_letter_and_what_can_is_sent(site: Site, mosquitto: Mosquitto):
    mosquitto.subscribe("shop/#")
    said = site.script(PLACE_ODD_ONES + RUN + DEAD)

    paid, gone, scanned = mosquitto.received()
    assert (paid.properties["subject"], paid.properties["traceparent"]) == ("Zoë%0A", "00-a-b-01")
    assert (gone.properties["subject"], gone.payload, gone.content_type) == ("Zoë", b"null", "application/json")
    assert (scanned.payload, scanned.content_type) == (b"\xff", "application/octet-stream")
    plus, large = said.splitlines()[-2:]
    assert "no topic of MQTT" in plus
    assert "the target takes 100000" in large


def test_without_a_subscriber_the_relay_waits(site: Site, mosquitto: Mosquitto):
    """The broker would acknowledge what it forgets at once."""
    said = site.script(PLACE.format(3) + RUN + LOOK)
    assert "'shop/orders/order.placed': No matching subscribers" in said
    assert PASSWORD not in said

    mosquitto.subscribe("shop/#")
    site.script(RETRY + RUN)
    assert sorted(json.loads(one.payload)["number"] for one in mosquitto.received()) == [0, 1, 2]
