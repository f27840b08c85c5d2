"""In Django's own test cases, and with the fixtures of the plugin."""

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from django_events import consumer, publish
from django_events.testing import assert_published, drain, isolate_declarations
from testproject.shop.models import Product
from tests.integration.testing.conftest import in_autocommit, position_of, stock


class PlainTests(TestCase):
    """The shop's own consumers, in one transaction."""

    @classmethod
    def setUpTestData(cls):
        publish("stock", {"sku": "tea"}, key="tea")

    def setUp(self):
        self.enterContext(isolate_declarations())
        self.handled = []
        consumer("stock", name="count")(self.handled.append)

    def test_what_the_class_published_is_there(self):
        self.assertEqual(drain("count"), 1)
        self.assertEqual([event.address for event in self.handled], ["stock/1"])

    def test_each_test_begins_anew(self):
        self.test_what_the_class_published_is_there()

    async def test_an_async_test_drains_in_the_thread_of_its_connection(self):
        @consumer("stock", name="async")
        async def handle(event):
            await Product.objects.acreate(sku=event.key, price=1, on_shelf=1)

        self.assertEqual(await sync_to_async(drain)("async"), 1)
        self.assertEqual(await Product.objects.acount(), 1)
        [event] = await sync_to_async(assert_published)("stock", key="tea")
        self.assertEqual(event.id, 1)

    def test_a_handler_may_not_open_a_durable_transaction(self):
        """As in a worker, where it runs in the transaction that settles."""

        @consumer("stock", name="durable")
        def durable(event):
            with transaction.atomic(durable=True):
                pass

        with self.assertRaisesRegex(RuntimeError, "durable"):
            drain(durable)


class AutocommitTests(TransactionTestCase):
    def setUp(self):
        self.enterContext(isolate_declarations())

    @pytest.mark.slow
    @isolate_declarations()
    def test_everything_is_committed(self):
        consumer("stock", name="count")(lambda event: stock(event.key))
        publish("stock", {"sku": "tea"}, key="tea")

        self.assertEqual(drain(), 1)
        connection.close()
        self.assertEqual(Product.objects.get().sku, "tea")
        self.assertEqual(position_of("count").position, 1)


def test_the_fixtures_give_access_to_the_database(drain_events, published_events):
    publish("stock", 1)

    assert [event.id for event in published_events("stock")] == [None]
    assert drain_events() == 0
    assert [event.id for event in published_events()] == [1]


@pytest.mark.slow
@in_autocommit
def test_the_fixtures_work_in_autocommit(drain_events, published_events):
    publish("stock", 1)
    drain_events()
    connection.close()

    assert [event.id for event in published_events()] == [1]
