"""Retention of roll-ups: old buckets go, and groups without buckets make room."""

from datetime import UTC, datetime, timedelta

import pytest

from django_events import Draft, publish_many
from django_events.deriving.forgetting import forget_old_buckets
from django_events.maintaining.steps import STEPS
from tests.support.fix_consumers import serve_due
from tests.support.fix_rollups import all_rows, by_group, known_groups, row_of
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3")]

DAY = timedelta(days=1)


def fill(topic, *drafts):
    now = datetime.now(UTC)
    values = [{"at": (now - timedelta(days=days)).isoformat(), "store": store} for days, store in drafts]
    publish_many(topic, [Draft(value=value) for value in values])
    transfer_all()


def test_old_buckets_go_and_the_others_stay(things, make_rollup):
    counted = make_rollup(things, every=DAY, at="$.at", by={"store": "$.store"}, retention=10 * DAY)
    kept = make_rollup(things, name="kept", every=DAY, at="$.at")
    fill(things, (100, "a"), (50, "b"), (20, "a"), (5, "a"), (0, "c"))
    serve_due(counted)
    serve_due(kept)
    assert forget_old_buckets("default", seconds=20, at_once=1) == 3
    assert by_group(counted, "store", "count") == {"a": 1, "c": 1}
    assert len(all_rows(kept)) == 5
    assert forget_old_buckets("default", seconds=20) == 0


def test_groups_without_a_bucket_make_room(things, make_rollup):
    counted = make_rollup(things, every=DAY, at="$.at", by={"store": "$.store"}, groups=2, retention=10 * DAY)
    fill(things, (50, "a"), (1, "b"), (1, "c"))
    serve_due(counted)
    assert row_of(counted).full_since is not None
    forget_old_buckets("default", seconds=20)
    assert known_groups(counted) == 1
    assert row_of(counted).full_since is None
    fill(things, (1, "d"), (1, "e"))
    serve_due(counted)
    assert by_group(counted, "store", "count") == {"b": 1, "(other)": 2, "d": 1}


def test_maintenance_does_it(things, make_rollup):
    counted = make_rollup(things, every=DAY, at="$.at", retention=10 * DAY)
    fill(things, (50, "a"))
    serve_due(counted)
    [step] = [one for one in STEPS if one.name == "roll-ups"]
    assert step.run("default", lambda: False) == {"deleted": 1}
    assert all_rows(counted) == []
