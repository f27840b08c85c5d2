"""The pages on relays, inboxes and mirrors, and the one on outgrowing a database: what they declare is registered.

Their other code is run. No broker is there: that relays and inboxes do what the pages say is for the tests in
tests/integration/bridges.
"""

import pytest

from tests.pages.conftest import MakeSite
from tests.pages.site import Site, shortened

pytestmark = [pytest.mark.slow, pytest.mark.requirement("X20", "X21")]

DECLARED = """
from io import StringIO

from django.core.management import call_command
from django_events import declarations
from django_events.bridges.brokers import options_of

for registry in (declarations.registry, declarations.consumers, declarations.inboxes):
    problems = [problem for _, problem in registry.problems()]
    assert not problems, problems
call_command("check", "--database", "default")
shown = StringIO()
call_command("events", "bridges", stdout=shown)
bridges = [(one.name, one.to) for one in declarations.consumers if one.is_relay]
bridges += [(one.name, one.source) for one in declarations.inboxes]
for name, bridge in bridges:
    bridge.check_installed()
    assert name in shown.getvalue(), shown.getvalue()
assert [name for name, _ in bridges] == expected, bridges
"""
PUBLISH = """
from django_events import publish
from django_events.log.transfer import Transfer

publish({topic!r}, type={type!r}, **{payload!r})
Transfer("default").move()
"""


def make(make_site: MakeSite, page: str, app: str) -> Site:
    site = make_site(page)
    for package in (app, f"{app}/migrations"):
        site.write(f"{package}/__init__.py", "")
    if app != "shop":
        site.write("mysite/settings.py", f"\nINSTALLED_APPS += [{app!r}]\n", added=True)
    site.variables |= {"REDIS_PASSWORD": "hunter-two", "RABBITMQ_PASSWORD": "hunter-two"}
    return site


def check_registered(site: Site, *names: str, code: str = "") -> None:
    """`migrate` registers these relays and inboxes, which are all that the page declares; run this code in the site."""
    site.migrate()
    site.script(f"expected = {list(names)!r}\n{DECLARED}\n{code}")


def test_relays_of_the_page_can_be_registered(make_site: MakeSite):
    site = make(make_site, "how-to/relay-to-a-broker.md", "shop")
    assert site.take("sh").code.startswith("pip install")
    site.take_files("shop/events.py", "mysite/settings.py")
    assert "rabbitmqctl" in site.take("sh").code
    site.take_files("shop/events.py")
    assert "events rewind orders-to-partners" in site.take("sh").code
    site.take_files("shop/events.py")
    assert site.all_taken()
    code = """
from types import SimpleNamespace

from shop.events import for_partners

for broker in ("redis", "nats", "kafka", "rabbitmq", "aws"):
    assert options_of(broker), broker
assert for_partners(SimpleNamespace(value={"id": 7, "total": 0})) is None
assert for_partners(SimpleNamespace(value={"id": 7, "total": 3})) == {"order": 7, "total": 3}
"""
    names = ("orders-to-redis", "orders-to-partners", "orders-to-redis-v2")
    check_registered(site, *names, code=code)


def test_inboxes_of_the_page_can_be_registered(make_site: MakeSite):
    site = make(make_site, "how-to/take-in-from-a-broker.md", "bank")
    assert site.take("sh").code.startswith("pip install")
    site.take_files("bank/events.py", "bank/events.py")
    code = """
import json

from bank.events import payment
from django_events import InboxMessage


def message(**value):
    return InboxMessage(id="1-0", log="bank.payments", place={}, key=None, body=json.dumps(value).encode(), headers={})


assert payment(message(test=True)) is None
assert payment(message(test=False, iban="DE1")).key == "DE1"
"""
    unreadable = PUBLISH.format(topic="payments", type="inbox.unreadable", payload={"body": b"{"})
    check_registered(site, "payments-in", "payments-from-rabbitmq", "payments-from-sqs", code=code + unreadable)
    again = "from django_events.models import BufferedEvent\nprint(BufferedEvent.objects.get().value)"
    assert site.script(site.take().code + again) == "{'raw': '{'}\n"
    site.take_files("bank/events.py")
    assert site.all_taken()
    site.migrate()
    site.script("from django_events import declarations\nassert list(declarations.inboxes.problems()) == []")


def test_the_mirror_of_the_page_can_be_registered(make_site: MakeSite):
    site = make(make_site, "how-to/mirror-a-topic.md", "reports")
    site.take_files("reports/events.py", "mysite/settings.py")
    assert "--role mirror" in site.take("sh").code
    site.take_files("reports/events.py")
    assert site.all_taken()
    check_registered(site, "orders-from-shop", "paid-orders-in", code="assert options_of('shop')")


def test_what_only_reads_can_ask_a_replica(make_site: MakeSite):
    site = make(make_site, "how-to/outgrow-one-database.md", "shop")
    site.write("shop/events.py", "from django_events import topic\n\norders = topic('orders')\n")
    site.migrate()
    # An alias of the same database stands for the replica.
    replica = '\nDATABASES["replica"] = {**DATABASES["default"], "TEST": {"MIRROR": "default"}}\n'
    site.write("mysite/settings.py", replica, added=True)
    code = shortened(site.take().code, {"Event.objects": "found = Event.objects", "1042": "0"})
    first = PUBLISH.format(topic="orders", type="order.placed", payload={"value": {"id": 7}})
    assert site.script(f"{first}{code}print([event.value for event in found])") == "[{'id': 7}]\n"
    assert site.all_taken()
