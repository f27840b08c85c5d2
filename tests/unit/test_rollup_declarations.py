"""What a declaration of a roll-up may say, and what is wrong with others."""

from datetime import timedelta

import pytest

from django_events.declarations import DeclaredRollUp
from django_events.declarations.limits import named
from django_events.deriving.rolling_up import RollUpFold

pytestmark = pytest.mark.requirement("H3")


def declared(**options):
    given = {
        "name": "revenue",
        "topics": ("orders",),
        "handler": "django_events.deriving.rolling_up.RollUpFold",
        "partitioned": False,
    }
    return DeclaredRollUp(**{**given, **options})


def problems(**options):
    return list(declared(**options).problems())


def test_one_that_says_everything_is_right():
    assert (
        problems(
            every=timedelta(minutes=5),
            by=(("store", "$.store"), ("kind", "type"), ("of", "key"), ("tenant", "key until :"), ("a", "strict $.a")),
            sums=(("revenue", "$.total"),),
            mins=(("least", "lax $.total"),),
            maxs=(("most", "$.total.double()"),),
            at="$.placed_at",
            groups=1,
            retention=timedelta(days=1),
        )
        == []
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": timedelta(seconds=7)}, "that divide a day"),
        ({"every": timedelta(days=2)}, "that divide a day"),
        ({"every": timedelta(0)}, "that divide a day"),
        ({"every": timedelta(milliseconds=500)}, "that divide a day"),
        ({"every": 60}, "that divide a day"),
        ({"at": "created_at"}, "expected 'published_at', 'logged_at', or a jsonpath"),
        ({"by": (("store", "store"),)}, "expected a jsonpath like '$.store', 'type', 'key'"),
        ({"by": (("store", "key until "),)}, "expected a jsonpath like '$.store', 'type', 'key'"),
        ({"by": tuple((f"g{n}", "type") for n in range(7))}, "expected at most 6"),
        ({"sums": (("revenue", "total"),)}, "expected the jsonpath of a number"),
        ({"sums": (("count", "$.total"),)}, "none of bucket, count, skipped"),
        ({"sums": (("Revenue", "$.total"),)}, "expected small letters"),
        ({"sums": (("store", "$.a"),), "by": (("store", "$.b"),)}, "the name 'store' twice"),
        ({"by": ("store",)}, "by=('store',), expected jsonpaths by name"),
        ({"sums": (7,)}, "sums=(7,), expected jsonpaths by name"),
        ({"groups": 0}, "groups=0"),
        ({"groups": 10**7}, "expected a whole number from 1 to 1,000,000"),
        ({"retention": timedelta(0)}, "expected a timedelta above zero"),
        ({"start": "end"}, "a rebuild could not find out where that was"),
        ({"name": "No"}, "Consumer name 'No' is not valid"),
    ],
)
def test_what_is_wrong_is_said(options, said):
    assert any(said in problem for problem in problems(**options)), problems(**options)


def test_it_has_no_function_to_call():
    assert isinstance(declared().load(), RollUpFold)
    with pytest.raises(TypeError, match="folded in the database"):
        declared()("an event")


def test_what_is_declared_otherwise_is_named():
    before, now = declared(sums=(("a", "$.a"),)), declared(sums=(("b", "$.b"),), every=timedelta(hours=1))
    assert now.differs_from(before.made_by) == 'every=3600.0 instead of 60.0, sums={"b": "$.b"} instead of {"a": "$.a"}'
    assert now.differs_from(now.made_by) == ""


@pytest.mark.parametrize(("given", "kept"), [(["store"], ("store",)), ("store", ("store",)), (7, (7,)), (None, ())])
def test_what_is_no_mapping_is_kept_for_the_check(given, kept):
    assert named(given) == kept
