"""What the tests of the testing helpers share: they hold in one transaction, and in autocommit."""

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import connection

from django_events import (
    Backoff,
)
from django_events.models import Position
from django_events.testing import isolate_declarations
from testproject.shop.models import Product

ONCE = Backoff(attempts=1)
LATER = Backoff(attempts=3, base=timedelta(hours=1), cap=timedelta(hours=1))
AT_ONCE = Backoff(attempts=3, base=timedelta(0), cap=timedelta(0))

in_a_transaction = pytest.mark.django_db
in_autocommit = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(autouse=True)
def isolated():
    """What a test declares is gone before the next one."""
    with isolate_declarations():
        yield


@pytest.fixture
def seen():
    """What handlers got."""
    return []


@pytest.fixture(params=["in a transaction", "in autocommit"])
def anywhere(request):
    """A test that holds in a TestCase and in a TransactionTestCase."""
    request.getfixturevalue("db" if request.param == "in a transaction" else "transactional_db")


def stock(sku):
    return Product.objects.create(sku=sku, price=Decimal("4.50"), on_shelf=7)


def position_of(name):
    return Position.objects.get(consumer__name=name)


def settings_of_the_session():
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'plpgsql.%'")  # come when first used
        return dict(cursor.fetchall())


def backends():
    """Who is connected to the database, to be compared with later."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return set(cursor.fetchall())


def pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


def assert_nothing_is_leased():
    assert not Position.objects.exclude(token=None, leased_until=None, holder="").exists()
