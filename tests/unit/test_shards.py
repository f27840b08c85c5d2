"""In which shard a key is: the same in every process and version, and few keys move."""

import pytest

from django_events.exceptions import InvalidEvent
from django_events.operating.resharding import Change
from django_events.publishing.shards import check_key, owner

pytestmark = pytest.mark.requirement("E11")


@pytest.mark.parametrize(
    ("key", "shard"),
    [
        ("", "west"),
        ("customer-1", "west"),
        ("customer-2", "default"),
        ("customer-3", "east"),
        ("customer-4", "default"),
        ("Größe", "default"),
        ("鍵", "east"),
        ("🔑", "west"),
    ],
)
def test_these_keys_are_there_for_ever(key, shard):
    """Where a key is must never change: it would be accepted in two databases by two versions of this package."""
    assert owner(key, ["default", "east", "west"]) == shard


KEYS = [f"customer-{number}" for number in range(6_000)]


def test_the_order_of_the_shards_doesn_t_matter():
    assert [owner(key, "abcd") for key in KEYS[:200]] == [owner(key, "dbca") for key in KEYS[:200]]


def test_each_shard_has_its_share():
    shares = [sum(owner(key, ["a", "b", "c"]) == shard for key in KEYS) for shard in "abc"]
    assert all(1_800 < share < 2_200 for share in shares)


def test_a_new_shard_takes_its_share_from_all_and_no_other_key_moves():
    moved = {(owner(key, "abc"), owner(key, "abcd")) for key in KEYS}
    assert moved == {(a, a) for a in "abc"} | {(a, "d") for a in "abc"}


@pytest.mark.parametrize("key", [7, None, b"7", ["7"], "\ud800"])
def test_a_key_is_a_text(key):
    with pytest.raises(InvalidEvent, match="shard_by is"):
        check_key(key)


def test_who_is_waited_for_is_who_keys_come_from():
    added = Change(2, ("a", "b"), ("a", "b", "c"), "a")
    assert [added.sources(one) for one in "abc"] == [[], [], ["a", "b"]]
    assert added.first_phase == ["a", "b"] and added.second_phase == ["c", "a", "b"]
    drained = Change(3, ("a", "b", "c"), ("b", "c"), "a")
    assert [drained.sources(one) for one in "abc"] == [[], ["a"], ["a"]]
    assert drained.first_phase == drained.second_phase == ["a", "b", "c"]
    first = Change(1, (), ("b", "c"), "a")
    assert first.first_phase == ["a"] and first.second_phase == ["b", "c", "a"]
    assert [first.sources(one) for one in "abc"] == [[], [], []]


@pytest.mark.parametrize("before", ["a", "ab", "abc"])
@pytest.mark.parametrize("after", ["a", "bc", "abcd", "d"])
def test_every_key_that_moves_comes_from_one_that_is_waited_for(before, after):
    change = Change(2, tuple(before), tuple(after), "a")
    for key in KEYS[:500]:
        source, shard = owner(key, before), owner(key, after)
        assert source == shard or source in change.sources(shard)
