"""The index of what queues ask for: it finds exactly what the filters themselves match."""

import json
from random import Random

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_events import Draft, claim, models, publish_many
from django_events.consuming.queues import filter_terms
from django_events.consuming.queues.filter_terms import Term, canonical, terms_of, variables
from django_events.exceptions import Refused
from django_events.log.transfer import Transfer
from django_events.matching import condition
from django_events.operating.orphans import forget_orphans
from django_events.operations import subscribe
from django_events.statements import log_table
from django_events.testing import deliver, drain
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("P4")]


@pytest.fixture(autouse=True)
def gone_afterwards(transactional_db):
    yield
    models.Consumer.objects.filter(subscribed=True).delete()
    forget_orphans("default")


@pytest.fixture
def indexed(monkeypatch):
    """However few filters there are."""
    monkeypatch.setattr(filter_terms, "FEW", 0)


class Asked:
    types = keys = where = metadata = vars = None

    def __init__(self, **given):
        vars(self).update(given)


def terms(**given):
    asked = Asked(**given)
    return terms_of(asked, canonical("default", asked.where), canonical("default", asked.metadata))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"keys": ["a", "b"], "where": "$.a == 1"}, [("key", "$", "a"), ("key", "$", "b")]),
        ({"keys": ["a.*"], "types": ["x"]}, []),
        ({"types": ["x"]}, []),
        ({"where": "$.a == 1"}, [("value", '$."a"[*]', 1)]),
        ({"where": "1 == $.a"}, [("value", '$."a"[*]', 1)]),
        ({"where": '$."a b".c == "x \\"y\\""'}, [("value", '$."a b"."c"[*]', 'x "y"')]),
        ({"where": "$.n > 1 && ($.a == true && $.z > 3)"}, [("value", '$."a"[*]', True)]),
        ({"where": "$.a == 1 || $.b == 2"}, [("value", '$."a"[*]', 1), ("value", '$."b"[*]', 2)]),
        ({"where": "($.a == 1 || $.b > 2) && $.c == -2.5"}, [("value", '$."c"[*]', -2.5)]),
        ({"where": "$.a == 1 || $.b > 2"}, []),
        ({"where": "$.a == $x", "vars": {"x": ["p", "q"]}}, [("value", '$."a"[*]', "p"), ("value", '$."a"[*]', "q")]),
        ({"where": "$.a == $x", "vars": {"x": {"p": 1}}}, []),
        ({"where": "$.a == $x", "vars": {"x": []}}, []),
        ({"where": "$.a > 1", "metadata": '$.tenant == "a"'}, [("metadata", '$."tenant"[*]', "a")]),
        # What can't be looked up is tried on each event.
        ({"where": "!($.a == 1)"}, []),
        ({"where": "($.a == 1) is unknown"}, []),
        ({"where": "$.a != 1"}, []),
        ({"where": "$.a == $.b"}, []),
        ({"where": "$.a + 1 == 2"}, []),
        ({"where": "$.a[0] == 1"}, []),
        ({"where": "$.* == 1"}, []),
        ({"where": "$.**.a == 1"}, []),
        ({"where": "$.a.size() == 1"}, []),
        ({"where": "$.a == null"}, []),
        ({"where": "strict $.a == 1"}, []),
        ({"where": "exists($.a ? (@ == 1))"}, []),
        ({"where": '$.a starts with "x"'}, []),
        ({"where": '$.a like_regex "== 1" && $.b == 1'}, [("value", '$."b"[*]', 1)]),
        ({"where": "$.a == 0.10000000000000000555111512312578270211815834045"}, []),
        ({"where": "$.a == " + json.dumps("x" * 1_000)}, []),
    ],
)
def test_the_terms_of_a_filter(given, expected):
    assert terms(**given) == [Term(*one) for one in expected]


def test_the_variables_of_a_predicate():
    assert variables(canonical("default", '$.a == $b && $."$c" == "$d" && $.e > $"f g"')) == {"b", "f g"}
    assert variables(None) == set()


def test_more_than_a_few_are_indexed_all_together(things, monkeypatch):
    monkeypatch.setattr(filter_terms, "FEW", 2)
    subscribe("one", things, where="$.a == 1", expires_after=None)
    subscribe("two", things, where="$.a == 2", expires_after=None)
    subscribe("any", things, where="$.a > 0", expires_after=None)
    fill_topic(things, {"a": 1}, {"a": 2})
    assert models.Consumer.objects.filter(indexed=True).count() == 0

    subscribe("three", things, where="$.a == 1", expires_after=None)
    fill_topic(things, {"a": 1}, {"a": 2})
    assert models.Consumer.objects.filter(indexed=True).count() == 3
    subscribe("two", things, where="$.a == 1", expires_after=None)
    subscribe("three", things, where="$.a >= 1", expires_after=None)
    fill_topic(things, {"a": 1}, {"a": 2})

    assert models.Consumer.objects.filter(indexed=True).count() == 2
    delivered = {"one": [1, 3, 5], "two": [2, 4, 5], "any": [1, 2, 3, 4, 5, 6], "three": [3, 5, 6]}
    for name, ids in delivered.items():
        assert list(models.Delivery.objects.of(name).values_list("event_id", flat=True)) == ids


def test_identical_filters_are_tried_once(things, indexed):
    """The predicate of all of them fails, and the one that is tried stops; then the next one is."""
    for number in range(3):
        subscribe(f"same-{number}", things, where="$.a == 1", expires_after=None)
    subscribe("other", things, where="$.a == 1 && $.b == 1", expires_after=None)

    digests = models.Consumer.objects.filter(subscribed=True).order_by("name").values_list("filter_digest", flat=True)
    assert len(set(digests)) == 2
    fill_topic(things, {"a": 1}, {"a": 2})
    assert models.Delivery.objects.filter(event_id=1).count() == 3
    assert models.Delivery.objects.count() == 3


def test_declared_consumers_have_predicates_on_metadata_and_variables(things, make_consumer):
    seen = []
    filters = {"where": "$ > $least", "metadata": "$.user == $users", "vars": {"least": 1, "users": ["ada", "bob"]}}
    stream = make_consumer(things, handler=lambda event: seen.append(event.value), **filters)
    listed = make_consumer(things, handler=print, name="listed", mode="queue", **filters)
    for value, user in [(1, "ada"), (2, "ada"), (3, "eve"), (4, "bob")]:
        things.publish(value, metadata={"user": user})
    transfer_all()

    drain(stream)
    assert seen == [2, 4]
    with claim(listed, 10) as claimed:
        assert [event.value for event in claimed] == [2, 4]
    deliver(stream, Draft(value=5, metadata={"user": "ada"}))
    with pytest.raises(Refused, match="takes where="):
        deliver(stream, Draft(value=5, metadata={"user": "eve"}))


@pytest.mark.parametrize("many", [1, 200])
@pytest.mark.few(1)
def test_the_plan_looks_up_what_an_event_has(things, indexed, many):
    """Each filter is tried on its own events, however many others there are: the server counts what it reads."""
    for number in range(many):
        subscribe(f"t{number}", things, where="$.tenant == $t", vars={"t": f"t{number}"}, expires_after=None)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_events_filterterm")
    fill_topic(things, {"tenant": "t0"})
    read = []
    for _ in range(5):  # autovacuum's looks, and such as are told late, may be among one of them
        before = _looked_up()
        fill_topic(things, {"tenant": "t0"}, {"tenant": "no one"})
        read.append(_looked_up() - before)
    assert min(read) <= 10
    assert models.Delivery.objects.count() == 6


def _looked_up():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'django_events_consumer_filter'"
        )
        [[read]] = cursor.fetchall()
    return read


SCALARS = [1, 2, 1.5, "a", "b", "1", True, None]
SEEDS = st.integers(0, 2**32)  # hypothesis alone makes nearly all values small and alike, and few of them match


def an_item(pick):
    return pick.choice([pick.choice(SCALARS)] * 3 + [[pick.choice(SCALARS), pick.choice(SCALARS)], [[1]], {}])


def an_object(pick):
    return {name: an_item(pick) for name in "ab" if pick.random() < 0.8}


def a_value(pick):
    inner = pick.choice([an_object(pick), [an_object(pick), an_object(pick)], an_item(pick)])
    return pick.choice([an_object(pick) | {"c": inner}] * 4 + [[an_object(pick), an_object(pick)], an_item(pick)])


def an_event(pick):
    types, keys = ["order.paid", "order.placed", "invoice"], [None, "a", "b", "a.b"]
    return {
        "value": a_value(pick),
        "type": pick.choice(types),
        "key": pick.choice(keys),
        "metadata": an_object(pick),
    }


def a_predicate(pick, depth=2):
    if depth and pick.random() < 0.6:
        one, two = a_predicate(pick, depth - 1), a_predicate(pick, depth - 1)
        return pick.choice(["{} && {}"] * 3 + ["({} && {})", "{} || {}", "({} || {})", "!({}) && {}"]).format(one, two)
    path = pick.choice(["$.a", "$.b", "$.c.a", "$.c.b"] * 4 + ["$[*].a", "$.a[0]", "$.c", "$"])
    item = pick.choice([json.dumps(pick.choice(SCALARS))] * 3 + ["$x", "$y", "$.b"])
    compared = pick.choice(["{0} == {1}"] * 4 + ["{1} == {0}", "{0} != {1}", "{0} > {1}", "({0} == {1}) is unknown"])
    return compared.format(path, item)


def a_filter(pick):
    made = {
        "types": pick.choice([None] * 4 + [["order.paid"], ["order.*"], ["order.paid", "invoice"]]),
        "keys": pick.choice([None] * 6 + [["a"], ["a", "b"], ["a.*"]]),
        "where": pick.choice([None, *[a_predicate(pick)] * 3]),
        "metadata": pick.choice([None, None, a_predicate(pick)]),
    }
    predicates = (made["where"], made["metadata"]) != (None, None)
    return made | {
        "vars": {"x": [pick.choice(SCALARS), pick.choice(SCALARS)], "y": an_item(pick)} if predicates else None
    }


LACKING = """
SELECT e.id
FROM (
    SELECT n AS id, x ->> 'type' AS type, x ->> 'key' AS key, x -> 'value' AS value, x -> 'metadata' AS metadata
    FROM jsonb_array_elements(%(events)s::jsonb) WITH ORDINALITY AS event (x, n)
) AS e
WHERE {condition}
    AND NOT EXISTS (
        SELECT
        FROM jsonb_to_recordset(%(terms)s::jsonb) AS t (source text, path text, value jsonb)
        CROSS JOIN jsonb_path_query(
            CASE t.source
                WHEN 'value' THEN e.value WHEN 'metadata' THEN e.metadata ELSE to_jsonb(e.key)
            END,
            t.path::jsonpath, jsonb_build_object(), true
        ) AS item (value)
        WHERE item.value = t.value
    )
"""


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=SEEDS)
def test_an_event_that_a_filter_matches_has_one_of_its_terms(seed):
    pick = Random(seed)
    chosen, events = a_filter(pick), [an_event(pick) for _ in range(30)]
    if found := terms(**chosen):
        with connection.cursor() as cursor:
            cursor.execute(
                LACKING.replace("{condition}", condition(Asked(**chosen)).text),
                {"events": json.dumps(events), "terms": json.dumps([term._asdict() for term in found])},
            )
            assert cursor.fetchall() == []


@pytest.mark.long
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(seed=SEEDS)
def test_the_index_finds_what_the_filters_match(things, indexed, seed):
    pick = Random(seed)
    filters, events = [a_filter(pick) for _ in range(6)], [an_event(pick) for _ in range(30)]
    models.Consumer.objects.filter(subscribed=True).delete()
    made = {}
    for number, chosen in enumerate(filters):
        try:
            subscribe(f"s{number}", things, **chosen, expires_after=None)
        except Exception as error:
            assert "is neither true nor false" in str(error)
            continue
        made[f"s{number}"] = Asked(**chosen)
    last = max(models.Event.objects.filter(topic__name="things").values_list("id", flat=True), default=0)
    publish_many(things, [Draft(**event) for event in events])
    while Transfer("default").move():
        pass

    topic_id = models.Topic.objects.get(name="things").pk
    for name, asked in made.items():
        delivered = set(models.Delivery.objects.filter(consumer__name=name).values_list("event_id", flat=True))
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT e.id FROM {log_table(topic_id)} AS e WHERE e.id > %(after)s AND {condition(asked).text}",
                {"after": last},
            )
            assert delivered == {event_id for (event_id,) in cursor.fetchall()}, (name, vars(asked))


def test_a_predicate_of_very_many_alternatives_is_tried_on_each_event(things):
    where = " || ".join(f"$.id == {n}" for n in range(1_200))
    subscribe("acme", things, where=where, expires_after=None)
    assert not models.Consumer.objects.get(name="acme").indexed
