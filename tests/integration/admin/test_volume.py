"""The bars above a log: how many events came when, by type where a roll-up counts that."""

import re
from datetime import timedelta
from html import unescape
from urllib.parse import parse_qs

import pytest
from django.db import connection
from django.utils import timezone

from django_events import Draft, publish_many, sql
from django_events.admin.topics import volume
from django_events.models import Event, Topic
from django_events.statements import log_table
from tests.integration.admin.conftest import address
from tests.support.fix_consumers import serve_due
from tests.support.fix_rollups import table_of
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3", "H4")]

NOW = timezone.now().replace(microsecond=0)


def fill(topic, *types, ago=()):
    """Events of these types; `ago` says how long ago each was logged, which decreases."""
    publish_many(topic, [Draft(value=n, type=one, key=f"k{n}") for n, one in enumerate(types)])
    transfer_all()
    with connection.cursor() as cursor:
        for n, since in enumerate(ago, 1):
            cursor.execute(f"UPDATE {log_of(topic)} SET logged_at = %s WHERE id = %s", [NOW - since, n])


def log_of(topic):
    return log_table(row(topic).pk)


def row(topic):
    return Topic.objects.select_related("head").get(name=topic.name)


def shown(topic, **options):
    return volume.volume("default", row(topic), kept=options.pop("kept", {}), **options)


def listed(client, topic, query):
    answer = client.get(f"{address('topic', row(topic), 'log')}?{query}")
    assert answer.status_code == 200
    return {int(found) for found in re.findall(r"/log/(\d+)/\"", answer.content.decode())}


HOURS = [timedelta(hours=n) for n in (30, 20, 20, 5, 5, 5, 1)]


def test_without_a_roll_up_ids_tell_how_many_there_were(things):
    fill(things, *"abababa", ago=HOURS)
    found = shown(things)
    assert (found.total, found.top, [bar.events for bar in found.bars]) == (6, 3, [2, 3, 1])
    assert found.kinds == []
    assert shown(things, start=NOW - timedelta(hours=40)).total == 7
    assert shown(things, start=NOW - timedelta(hours=21), end=NOW - timedelta(hours=4)).total == 5
    assert shown(things, start=NOW + timedelta(hours=1), end=NOW + timedelta(hours=2)).bars == []


def test_each_bar_leads_to_its_events(olga, things):
    fill(things, *"abababa", ago=HOURS)
    found = shown(things)
    ids = [listed(olga, things, bar.parts[0].query) for bar in found.bars]
    assert ids == [{2, 3}, {4, 5, 6}, {7}]


@pytest.mark.slow
def test_a_roll_up_tells_them_by_type_and_bars_and_types_narrow_the_list(olga, things, make_rollup):
    counted = make_rollup(things, name="volume", at="logged_at", by={"kind": "type"}, every=timedelta(minutes=1))
    fill(things, *"abababa", ago=HOURS)
    serve_due(counted)
    found = shown(things)
    assert [(kind.label, kind.events) for kind in found.kinds] == [("a", 3), ("b", 3)]
    assert (found.counted_by, found.up_to.id) == ("volume", 7)
    assert [[(part.label, part.events) for part in bar.parts] for bar in found.bars] == [
        [("a", 1), ("b", 1)],
        [("a", 1), ("b", 2)],
        [("a", 1)],
    ]
    assert listed(olga, things, found.bars[1].parts[1].query) == {4, 6}
    assert listed(olga, things, found.kinds[0].query) == {1, 3, 5, 7}
    only = shown(things, kept={"type": "a"})
    assert (only.total, [bar.events for bar in only.bars]) == (3, [1, 1, 1])


def test_more_types_than_colours_are_others(things, make_rollup):
    counted = make_rollup(things, name="volume", at="logged_at", by={"kind": "type"})
    types = [f"t{n}" for n in range(9) for _ in range(9 - n)]
    fill(things, *types)
    serve_due(counted)
    found = shown(things)
    assert [kind.events for kind in found.kinds] == [9, 8, 7, 6, 5, 4, 6]
    assert found.kinds[-1].query == ""
    [bar] = found.bars
    assert sum(part.events for part in bar.parts) == len(types)
    assert sum(part.height for part in bar.parts) == pytest.approx(120, abs=0.1)
    assert "type" not in parse_qs(bar.parts[-1].query)


@pytest.mark.parametrize(
    "options",
    [
        {"at": "published_at", "by": {"kind": "type"}},
        {"at": "logged_at", "by": {"kind": "key"}},
        {"at": "logged_at", "by": {"kind": "type"}, "types": ["a"]},
    ],
)
def test_a_roll_up_that_counts_something_else_is_not_asked(things, make_rollup, options):
    make_rollup(things, **options)
    fill(things, "a")
    assert shown(things).counted_by == ""


def test_what_nothing_tells_is_not_shown(olga, things, make_topic):
    fill(things, "a")
    assert shown(things, kept={"type": "a"}) is None
    assert "Events over time" not in olga.get(f"{address('topic', row(things), 'log')}?type=a").content.decode()
    assert shown(make_topic("prices", compact=True)) is None


def test_a_roll_up_whose_table_is_gone_is_no_error(olga, things, make_rollup):
    table = table_of(make_rollup(things, name="volume", at="logged_at", by={"kind": "type"}))
    fill(things, "a")
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO away")
    try:
        assert shown(things).counted_by == ""
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE away RENAME TO {table}")


def test_the_page_keeps_what_it_was_asked_for(olga, things):
    fill(things, *"aaa")
    page = unescape(olga.get(f"{address('topic', row(things), 'log')}?key=k1").content.decode())
    queries = re.findall(r'href="\?([^"]*start=[^"]*)"', page)
    assert len(queries) == 5  # four spans, and one bar
    assert all(parse_qs(query)["key"] == ["k1"] for query in queries)


@pytest.mark.parametrize("missing", [[], [1, 2], [3, 4, 8], [9, 10]])
def test_ids_of_moments_are_those_that_halving_one_by_one_finds(things, missing):
    fill(things, *"a" * 10, ago=[timedelta(minutes=60 - 3 * (n // 2)) for n in range(10)])
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {log_of(things)} WHERE id = ANY(%s)", [missing])
    topic = row(things)
    moments = [NOW - timedelta(minutes=n) for n in range(70, 30, -1)]
    statement = volume.SQL.first_ids.on(log=log_of(things), topic_id=topic.pk)
    rows = sql.fetch("default", statement, moments=moments, first=1, beyond=11)
    there = [id for id in range(1, 11) if id not in missing]

    def behind(id):
        return sum(one >= id for one in there)

    expected = [Event.objects.of(things.name).filter(logged_at__gte=moment).count() for moment in moments]
    assert [behind(id) for (id,) in rows] == expected


def test_it_asks_few_questions_however_long_the_span(things, django_assert_max_num_queries):
    fill(things, "a")
    with django_assert_max_num_queries(15):
        shown(things, start=NOW - timedelta(days=3_000))
    assert len(volume._edges(NOW - volume.LONGEST, NOW, 86_400)) < 4_000


def test_it_says_no_more_than_is_in_the_bars(things, make_rollup, monkeypatch):
    counted = make_rollup(things, at="logged_at", by={"kind": "type"})
    fill(things, *"ab")
    serve_due(counted)
    read = volume._counted

    def counted_while_more_comes(*args):
        found = read(*args)
        fill(things, "a")
        serve_due(counted)
        return found

    monkeypatch.setattr(volume, "_counted", counted_while_more_comes)
    found = shown(things)
    assert (found.total, found.up_to.id) == (2, 2)
