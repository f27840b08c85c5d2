"""A roll-up is rebuilt by the same machinery as a projection."""

from datetime import timedelta

import pytest
from django.db import connection

from django_events import Draft, publish_many
from django_events.models import Rebuild
from django_events.operations import lag, rebuild
from tests.support.fix_consumers import serve_due
from tests.support.fix_rollups import by_group, table_of
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3")]


def test_a_rolled_up_table_is_made_anew_and_goes_on(things, make_rollup):
    revenue = make_rollup(things, every=timedelta(days=1), by={"store": "$.store"}, sums={"revenue": "$.total"})
    publish_many(things, [Draft(value={"store": "ab"[n % 2], "total": n}) for n in range(100)])
    transfer_all()
    serve_due(revenue)
    before = by_group(revenue, "store", "revenue")
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table_of(revenue)}")

    done = rebuild(revenue)

    assert done.finished and done.reached == {"things": 100}
    assert by_group(revenue, "store", "revenue") == before == {"a": sum(range(0, 100, 2)), "b": sum(range(1, 100, 2))}
    assert lag(revenue) == 0 and not Rebuild.objects.exists()
    publish_many(things, [Draft(value={"store": "a", "total": 1})])
    transfer_all()
    assert serve_due(revenue) == 1
    assert by_group(revenue, "store", "revenue")["a"] == before["a"] + 1
