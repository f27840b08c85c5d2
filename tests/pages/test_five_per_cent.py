"""docs/tutorial/the-five-per-cent-you-need.md: what it shows works as it stands there."""

import pytest

from tests.pages.conftest import MakeSite

pytestmark = pytest.mark.quick

PAGE = "tutorial/the-five-per-cent-you-need.md"
MODELS = """
from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=100)
    total = models.DecimalField(max_digits=10, decimal_places=2)


class Invoice(models.Model):
    order = models.ForeignKey(Order, models.CASCADE)
    amount = models.DecimalField(max_digits=10, decimal_places=2)
"""


@pytest.mark.slow
def test_the_page_is_enough_for_a_site(make_site: MakeSite):
    site = make_site(PAGE)
    site.write("shop/models.py", MODELS)
    site.take_files("shop/events.py", "shop/ordering.py", "shop/tests.py")
    site.migrate()
    site.script("from shop.ordering import place_order\nplace_order('Ada', '25.00')\nplace_order('Grace', '40.00')")

    said = site.run_block()
    assert "Events moved into the log: 2." in said
    assert "Events handled: 4." in said
    assert "A receipt for Ada" in said
    assert "No problem." in said
    assert "order.placed" in said
    assert "No dead letters" in said
    assert site.script("from shop.models import Invoice\nprint(Invoice.objects.count())") == "2\n"
    assert "OK" in site.run("test", "shop", "-v2").stderr
    assert site.all_taken()
