"""The other pages for those who come from something else: what they show works as it stands there."""

from tests.pages.conftest import MakeSite

MODELS = """
from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=100)
    total = models.DecimalField(max_digits=10, decimal_places=2, default=0)


class Invoice(models.Model):
    order = models.ForeignKey(Order, models.CASCADE)
    amount = models.DecimalField(max_digits=10, decimal_places=2)


class Shipment(models.Model):
    parcel = models.CharField(max_length=100)
    step = models.CharField(max_length=100)


class Outbox(models.Model):
    aggregatetype = models.CharField(max_length=100)
    aggregateid = models.CharField(max_length=100)
    type = models.CharField(max_length=100)
    payload = models.JSONField()
"""
TASKS = """
class write_invoice:
    delay_on_commit = print
"""
WAREHOUSE = """
from django_events import consumer, topic

orders = topic("orders", partitions=8)


@consumer(orders, name="warehouse")
def note(event):
    print(event.type, event.metadata)
"""


def test_from_celery(make_site: MakeSite):
    """The first block is what a reader has today: its task is a stand-in."""
    site = make_site("how-to/come-from-celery.md")
    site.write("shop/models.py", MODELS)
    site.write("shop/tasks.py", TASKS)
    site.take_files("shop/before.py", "shop/events.py", "shop/ordering.py", "shop/management/commands/close_the_day.py")
    site.migrate()

    assert site.script("from shop.before import place_order\nplace_order('Ada', 25)") == "1\n"
    site.script("from shop.ordering import place_order\nplace_order('Ada', '25.00')")
    said = site.run_block().split("\n")
    assert said[:2] == ["published", "it was there already"] or said[:2] == ["published", "published"]  # at midnight
    site.manage("run_events", "--once", "--no-reload")
    assert site.script("from shop.models import Invoice\nprint(Invoice.objects.get().amount)") == "25.00\n"
    assert site.all_taken()


def test_from_a_queue_in_the_database(make_site: MakeSite):
    site = make_site("how-to/come-from-a-database-queue.md")
    site.write("shop/models.py", MODELS)
    site.take_files("shop/events.py", "shop/rebuilding.py")
    site.migrate()
    site.script(
        "from shop.events import parcels\n"
        "from shop.rebuilding import ask_for_a_rebuild\n"
        "for step in 'packed', 'sent':\n"
        "    parcels.publish({'step': step}, key='p-7')\n"
        "assert [ask_for_a_rebuild().new for _ in range(20)].count(True) in (1, 2)  # two at the end of a minute\n"
    )
    assert "shipping" in site.run_block()
    site.manage("run_events", "--once", "--no-reload")
    shown = site.script(
        "from shop.models import Shipment\nprint(*Shipment.objects.filter(parcel='p-7').values_list('step', flat=True))"
    )
    assert shown == "packed sent\n"
    assert site.all_taken()


def test_from_change_data_capture(make_site: MakeSite):
    site = make_site("how-to/come-from-change-data-capture.md")
    site.write("shop/models.py", MODELS)
    site.write("shop/events.py", WAREHOUSE)
    site.take_files("shop/ordering.py", "shop/relays.py", "shop/both.py")
    site.migrate()
    site.script("import shop.relays")
    site.script("from shop.both import tell\nfor type in 'OrderPaid', 'OrderSent':\n    tell(7, type, {'id': 7})")
    site.manage("run_transfer", "--once")
    assert site.run_block() == "2\n"
    site.run_block()
    handled = site.manage("run_consumer", "warehouse", "--once")
    assert "OrderSent {'outbox': '2'}" in handled
    assert "OrderPaid" not in handled
    site.script("from shop.ordering import place_order\nplace_order('Ada')")
    assert "OrderPlaced {'source': 'web'}" in site.manage("run_events", "--once", "--no-reload")
    assert site.all_taken()
