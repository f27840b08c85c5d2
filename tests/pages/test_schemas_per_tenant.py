"""docs/how-to/schemas-per-tenant.md: both layouts, with django-tenants and two tenants."""

import psycopg
import pytest

from django_events.log.channel import LOG
from tests.pages.conftest import MakeSite
from tests.pages.site import Site

pytest.importorskip("django_tenants", reason="needs django-tenants: pip install django-tenants")

PAGE = "how-to/schemas-per-tenant.md"
SETTINGS = """
DATABASES["default"]["ENGINE"] = "django_tenants.postgresql_backend"
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
TENANT_MODEL, TENANT_DOMAIN_MODEL = "customers.Client", "customers.Domain"
OURS = ["pgtrigger", "django_events"]
SHARED_APPS = ["django_tenants", "customers", "django.contrib.contenttypes"{shared}]
TENANT_APPS = ["django.contrib.contenttypes", "shop"{tenants}]
INSTALLED_APPS = [*SHARED_APPS, *(app for app in TENANT_APPS if app not in SHARED_APPS)]
"""
CUSTOMERS = """
from django.db import models
from django_tenants.models import DomainMixin, TenantMixin


class Client(TenantMixin):
    auto_create_schema = True


class Domain(DomainMixin):
    pass
"""
SHOP = """
from django.db import models


class Order(models.Model):
    reference = models.UUIDField(unique=True)


class Invoice(models.Model):
    reference = models.UUIDField()
"""
PAYMENTS = """
from django.db import connection
from django_events import outbox


"""
EVENTS = """
import pgtrigger
from django_events import ReceivedEvent, capture, consumer, topic

from shop.models import Invoice, Order

orders = topic("orders", partitions=2)
payments = topic("payments")
pgtrigger.register(*capture("orders", key="reference"))(Order)

{handler}
"""
MIGRATE = """
from django.core.management import call_command

call_command("makemigrations", "customers", "shop", verbosity=0)
call_command("migrate_schemas", shared=True, verbosity=0)
from customers.models import Client

for name in ("acme", "zoo"):
    Client.objects.create(schema_name=name)
"""
ORDERS = """
import uuid
from django.db import connection, transaction
from django_events import Draft
from django_tenants.utils import schema_context
from shop.events import orders
from shop.models import Order
{middleware}

def view(request):
    with transaction.atomic():
        orders.publish(request, key=connection.schema_name)
        orders.publish_many([Draft(value=n, key=connection.schema_name) for n in range(2)])
        Order.objects.create(reference=uuid.uuid4())

for tenant in ("acme", "zoo", "acme"):
    with schema_context(tenant):
        {call}
"""
WITHOUT_TENANT = """
from django_events.exceptions import NotReady
from shop.events import orders
try:
    orders.publish("without a tenant")
except NotReady as error:
    print(error)
"""
SAVED = """
from django.db import transaction
from django_tenants.utils import schema_context
from shop.events import orders
from shop.models import Payment

for tenant in ("acme", "zoo"):
    with schema_context(tenant), transaction.atomic():
        orders.publish(tenant, key=str(Payment.objects.create().pk))
"""
READ = """
from django_events.models import Event

for topic in ("payments", "orders"):
    events = Event.objects.of(topic).filter(key__in=["1", "acme/1", "zoo/1"])
    print(*sorted(f"{event.key} {'erased' if event.erased else 'there'}" for event in events))
"""
BUFFERED = """
from django.db import connection
from django_events import BufferedWriter
from django_events.exceptions import NotWritten
from shop.events import orders

if hasattr(connection, "set_schema"):
    connection.set_schema("acme")
writer = BufferedWriter(orders)
written = writer.publish("by a thread")
try:
    writer.close()
    print("written:", written.result())
except NotWritten as error:
    print("refused:", error)
"""
BOTH = """
from django_tenants.utils import schema_context
from django_events.models import BufferedEvent
from shop.events import orders

orders.publish("without a tenant")
with schema_context("acme"):
    orders.publish("with a tenant")
    print(BufferedEvent.objects.values_list("value", flat=True))
print(BufferedEvent.objects.values_list("value", flat=True))
"""
COUNT = """
from django_tenants.utils import schema_context
from shop.models import Invoice

for tenant in ("acme", "zoo"):
    with schema_context(tenant):
        print(tenant, Invoice.objects.count())
"""


OURS = ", *OURS"


def make(make_site: MakeSite, *, shared: str = "", tenants: str = "") -> Site:
    site = make_site(PAGE)
    site.write("customers/__init__.py", "")
    site.write("customers/migrations/__init__.py", "")
    site.write("customers/models.py", CUSTOMERS)
    site.write("shop/models.py", SHOP)
    silenced = site.take().code
    site.write("mysite/settings.py", SETTINGS.format(shared=shared, tenants=tenants) + silenced, added=True)
    return site


def test_one_log_for_all_tenants(make_site: MakeSite):
    site = make(make_site, shared=OURS)
    middleware, handler = site.take().code, site.take().code
    bill = handler.replace("...", 'Invoice.objects.create(reference=event.value["reference"])').replace(
        "def bill", '@consumer(orders, name="billing", types=["*.created"])\ndef bill'
    )
    site.write("shop/events.py", EVENTS.format(handler=bill))
    payment = site.take().code.replace('"orders"', '"payments"').replace("class Order", "class Payment")
    site.write("shop/models.py", PAYMENTS + payment.replace("...", "pass"), added=True)
    site.script(MIGRATE)
    site.script(ORDERS.format(middleware=middleware, call='tenant_in_events(view)("hello")'))

    assert "moved into the log: 12." in site.manage("run_transfer", "--once")
    site.manage("run_consumer", "billing", "--once")
    assert site.script(COUNT) == "acme 2\nzoo 1\n"
    events = "from django_events.models import Event\n"
    told = site.script(events + "print([e.metadata['tenant'] for e in Event.objects.of('orders')].count('acme'))")
    assert told == "8\n"

    site.script(SAVED)
    assert "moved into the log: 4." in site.manage("run_transfer", "--once")
    assert site.script(READ) == "acme/1 there zoo/1 there\n1 there 1 there\n"
    for topic, key in (("payments", "acme/1"), ("orders", "1")):
        site.manage("events", "erase", topic, "--key", key, "--reason", "asked for", "--execute")
    assert site.script(READ) == "acme/1 erased zoo/1 there\n1 erased 1 erased\n"
    site.manage("events", "verify")
    assert site.script(BUFFERED) == "written: True\n"  # one log: whatever the tenant


def test_a_log_for_each_tenant(make_site: MakeSite):
    site = make(make_site, tenants=OURS)
    bill = (
        '@consumer(orders, name="billing", types=["*.created"])\n'
        'def bill(event: ReceivedEvent) -> None:\n    Invoice.objects.create(reference=event.value["reference"])'
    )
    site.write("shop/events.py", EVENTS.format(handler=bill))
    site.script(MIGRATE)
    site.script(ORDERS.format(middleware="", call='view("hello")'))
    said = site.script(WITHOUT_TENANT)
    assert "enter a tenant first" in said
    said = site.script(BUFFERED)
    assert said.startswith("refused:"), said
    assert "enter a tenant first" in said
    ended = site.run("tenant_command", "run_consumer", "billing", "--once", "--schema=acme")
    assert ended.returncode, ended.stdout
    assert "The tables of django_events are not in the database 'default', as far as" in ended.stderr
    assert "leads (public)" in ended.stderr
    site.skip_until("TENANT")
    site.write("mysite/settings.py", site.take().code + '\n    INSTALLED_APPS.remove("customers")\n', added=True)
    for tenant, events in (("acme", 8), ("zoo", 4)):
        site.variables["TENANT"] = tenant
        assert f"moved into the log: {events}." in site.manage("run_transfer", "--once")
        site.manage("run_consumer", "billing", "--once")
        assert "No problem" in site.manage("events", "status")
        site.manage("events", "verify")
    del site.variables["TENANT"]
    assert site.script(COUNT) == "acme 2\nzoo 1\n"

    site.variables["TENANT"] = "typo"
    ended = site.run("events", "status")
    assert ended.returncode, ended.stdout
    assert "leads (typo,public)" in ended.stderr

    site.variables["TENANT"] = "zoo"
    with psycopg.connect(site.url, autocommit=True) as connection:
        connection.execute(f"LISTEN {LOG}")
        assert site.script(BUFFERED) == "written: True\n"
        assert "moved into the log: 1." in site.manage("run_transfer", "--once")
        assert [notice.channel for notice in connection.notifies(timeout=60, stop_after=1)] == [LOG]
    site.variables["TENANT"] = "acme"
    assert "moved into the log: 0." in site.manage("run_transfer", "--once")


def test_in_both_lists_there_are_two_logs(make_site: MakeSite):
    site = make(make_site, shared=OURS, tenants=OURS)
    site.write("shop/events.py", EVENTS.format(handler=""))
    site.script(MIGRATE)
    assert site.script(BOTH) == "<QuerySet ['with a tenant']>\n<QuerySet ['without a tenant']>\n"
