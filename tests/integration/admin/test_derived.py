"""The page of a consumer that keeps a table: which one, up to where it is true, and how a rebuild gets on."""

import pytest

from django_events import declarations, publish_many
from django_events.consuming import registration
from django_events.models import Rebuild
from django_events.testing import drain
from tests.integration.admin.conftest import address, consumer_of
from tests.integration.deriving.test_projections import add, order
from tests.support.projecting_app.models import CustomerTotal

pytestmark = pytest.mark.django_db


@pytest.fixture
def projection(lanes):
    declared = declarations.projection(lanes, into=CustomerTotal, name="totals")(add)
    registration.register("default", declared)
    publish_many(lanes, [order("ada", n) for n in range(12)])
    drain(declared)
    yield declared
    declarations.consumers.discard(declared)


def page(client, projection):
    return client.get(address("consumer", consumer_of(projection))).content.decode()


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_its_page_says_which_table_it_keeps_and_up_to_where(olga, projection):
    text = page(olga, projection)

    assert "<code>projecting_app_customertotal</code>" in text and "<dt>True up to event</dt><dd>12 <span" in text
    assert "Is filled anew" not in text
    assert "<code>manage.py events rebuild totals</code>" in text  # no button: see docs/how-to/projections.md


@pytest.mark.slow
def test_what_would_count_twice_is_not_offered(olga, projection):
    text = page(olga, projection)

    assert "Pause…" in text and "Replay events…" not in text
    assert "Rewind…" in text  # on: what is missing from the log, or should not count, is left out


@pytest.mark.slow
@pytest.mark.requirement("X13")
def test_its_page_says_how_a_rebuild_gets_on(olga, projection):
    row = Rebuild.objects.create(
        consumer="totals", table="x", schema="x", fingerprint="", reached={"lanes": 3}, ends={"lanes": 12}
    )
    assert "25 %, since" in page(olga, projection) and "stopped" in page(olga, projection)

    row.token, row.holder, row.failed = 7, "host:1", [["lanes", 2, "ValueError"]]
    row.leased_until = row.started_at
    row.save()
    text = page(olga, projection)
    assert "by host:1" in text and "not folded: 1" in text


@pytest.mark.slow
def test_the_page_of_another_consumer_says_nothing_of_it(olga, lanes, make_consumer):
    reader = make_consumer(lanes, handler=lambda event: None)

    text = page(olga, reader)
    assert "Keeps the table" not in text and "events rebuild" not in text
