"""The index of what queues ask for: it finds exactly what the filters themselves match."""

import json

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_events import Draft, models, publish_many
from django_events.consuming.filter_terms import Term, canonical, terms_of, variables
from django_events.log.transfer import Transfer
from django_events.matching import condition
from django_events.operating.orphans import forget_orphans
from django_events.operations import subscribe
from django_events.statements import log_table
from tests.support.fix_queues import fill_topic

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("P4")]


@pytest.fixture(autouse=True)
def gone_afterwards(transactional_db):
    yield
    models.Consumer.objects.filter(subscribed=True).delete()
    forget_orphans("default")


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
        ({"keys": ["a.*"], "types": ["x"]}, [("type", "$", "x")]),
        ({"types": ["x", "y.>"]}, []),
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


def test_identical_filters_are_tried_once(things):
    """The predicate of all of them fails, and the one that is tried stops; then the next one is."""
    for number in range(3):
        subscribe(f"same-{number}", things, where="$.a == 1", expires_after=None)
    subscribe("other", things, where="$.a == 1 && $.b == 1", expires_after=None)

    digests = models.Consumer.objects.filter(subscribed=True).order_by("name").values_list("filter_digest", flat=True)
    assert len(set(digests)) == 2
    fill_topic(things, {"a": 1}, {"a": 2})
    assert models.Delivery.objects.filter(event_id=1).count() == 3
    assert models.Delivery.objects.count() == 3


@pytest.mark.parametrize("many", [1, 200])
def test_the_plan_looks_up_what_an_event_has(things, many):
    """Each filter is tried on its own events, however many others there are: the server counts what it reads."""
    for number in range(many):
        subscribe(f"t{number}", things, where="$.tenant == $t", vars={"t": f"t{number}"}, expires_after=None)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_events_filterterm")
    fill_topic(things, {"tenant": "t0"})
    before = _looked_up()
    fill_topic(things, {"tenant": "t0"}, {"tenant": "no one"})
    assert _looked_up() - before <= 10
    assert models.Delivery.objects.count() == 2


def _looked_up():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'django_events_consumer_filter'"
        )
        [[read]] = cursor.fetchall()
    return read


SCALARS = st.sampled_from([1, 2, 1.5, -1, "a", "b", "1", True, None])
LEAVES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.lists(st.lists(SCALARS, max_size=1), max_size=1))
OBJECTS = st.dictionaries(st.sampled_from("ab"), LEAVES, max_size=2)
VALUES = st.one_of(
    LEAVES,
    st.dictionaries(st.sampled_from("abc"), st.one_of(LEAVES, OBJECTS, st.lists(OBJECTS, max_size=2)), max_size=3),
    st.lists(OBJECTS, max_size=2),
)
EVENTS = st.fixed_dictionaries(
    {
        "value": VALUES,
        "type": st.sampled_from(["order.paid", "order.placed", "invoice"]),
        "key": st.sampled_from([None, "a", "b", "a.b"]),
        "metadata": OBJECTS,
    }
)
PATHS = st.sampled_from(["$.a", "$.b", "$.a.b", "$.c.a", "$.b.b", "$[*].a", "$.a[0]", "$"])
OPERANDS = st.one_of(SCALARS.map(json.dumps), st.sampled_from(["$x", "$y"]), PATHS)
COMPARED = st.builds(
    "{} {} {}".format, st.one_of(PATHS, OPERANDS), st.sampled_from(["==", "==", "==", "!=", ">"]), OPERANDS
)
PREDICATES = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("{} && {}".format, inner, inner),
        inner.map("!({})".format),
        inner.map("({}) is unknown".format),
    ),
    max_leaves=4,
)
FILTERS = st.fixed_dictionaries(
    {
        "types": st.sampled_from([None, None, ["order.paid"], ["order.*"], ["order.paid", "invoice"]]),
        "keys": st.sampled_from([None, None, None, ["a"], ["a", "b"], ["a.*"]]),
        "where": st.one_of(st.none(), PREDICATES),
        "metadata": st.one_of(st.none(), st.none(), PREDICATES),
        "vars": st.fixed_dictionaries({"x": LEAVES, "y": LEAVES}),
    }
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(filters=st.lists(FILTERS, min_size=1, max_size=6), events=st.lists(EVENTS, min_size=1, max_size=12))
def test_the_index_finds_what_the_filters_match(things, filters, events):
    models.Consumer.objects.filter(subscribed=True).delete()
    made = {}
    for number, chosen in enumerate(filters):
        if (chosen["where"], chosen["metadata"]) == (None, None):
            chosen = chosen | {"vars": None}
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
