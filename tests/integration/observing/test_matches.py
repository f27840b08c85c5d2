"""What a filter matches of the newest events: as a consumer with that filter gets them, and nothing is changed."""

import json

import pytest
from django.core.management import CommandError, call_command

from django_events import Draft, publish_many
from django_events.exceptions import Invalid, UnknownName
from django_events.models import Consumer
from django_events.operations import matches
from django_events.outcomes import Matched
from tests.support.fix_consumers import run_once
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")

KINDS = ("order.placed", "order.paid", "user.new")


@pytest.fixture
def orders(make_topic):
    """Events 1 to 30 of three types in turn, whose keys are their tens, and values their ids."""
    topic = make_topic("things", segment_size=100)
    publish_many(topic, [Draft(value={"n": n}, type=KINDS[n % 3], key=f"ten.{n // 10}") for n in range(1, 31)])
    transfer_all()
    return topic


@pytest.mark.requirement("S12")
def test_it_tells_by_type_how_many_match_and_which_are_the_newest(orders):
    assert matches(orders, types=["order.*"], where="$.n > 20") == [
        Matched("order.placed", 10, 4, [30, 27, 24]),
        Matched("order.paid", 10, 3, [28, 25, 22]),
        Matched("user.new", 10, 0, []),
    ]
    assert matches("things", keys=["ten.0"], last=25) == [
        Matched("order.placed", 9, 2, [9, 6]),
        Matched("order.paid", 8, 1, [7]),
        Matched("user.new", 8, 1, [8]),
    ]
    assert sum(one.matching for one in matches(orders)) == 30


@pytest.mark.requirement("S12")
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"types": ["order.*"]},
        {"types": [">"]},
        {"types": ["user.new"], "keys": ["ten.*"]},
        {"keys": ["ten.1", "ten.2"], "where": "$.n < 15 || $.n > 22"},
        {"where": "$.nothing == 1"},
    ],
    ids=str,
)
def test_a_consumer_with_that_filter_gets_as_many(orders, make_consumer, given):
    seen = []
    told = sum(one.matching for one in matches(orders, **given))
    run_once(make_consumer(orders, handler=lambda event: seen.append(event.id), **given))

    assert told == len(seen)


def test_a_predicate_that_can_not_be_used(orders):
    with pytest.raises(Invalid, match=r"where='\$\.n >' can't be used on these events of topic things: "):
        matches(orders, where="$.n >")
    with pytest.raises(UnknownName):
        matches("unknown")
    with pytest.raises(Invalid, match=r"'a\.>\.b' in keys: '>' means the rest"):
        matches(orders, keys=["fine", "a.>.b"])
    with pytest.raises(Invalid, match="types has 'a\\\\x00', expected texts"):
        matches(orders, types=["a\0"])
    assert matches(orders, where="$.n > 29")[0].matching == 1, "the connection works"


def test_an_empty_topic_has_no_types(things):
    assert matches(things) == []


# The command


def test_the_command_looks_at_a_consumer_and_tries_a_filter(orders, make_consumer, capsys):
    make_consumer(orders, name="paid", handler=print, types=["order.paid"], where="$.n > 9")
    before = Consumer.objects.count()
    call_command("events", "match", "paid")
    printed = capsys.readouterr().out
    assert "7 of the newest 30 events of topic things match." in printed
    assert [line.split() for line in printed.splitlines()][1] == ["order.paid", "10", "7", "28,", "25,", "22"]
    call_command("events", "match", "--topic", "things", "--type", "user.*", "--last", "6", "--format", "json")
    [told] = json.loads(capsys.readouterr().out)

    assert (told["topic"], told["looked_at"], told["matching"]) == ("things", 6, 2)
    assert told["types"][0] == {"type": "user.new", "events": 2, "matching": 2, "newest": [29, 26]}
    assert Consumer.objects.count() == before


@pytest.mark.parametrize(
    "options", [[], ["--topic", "things"], ["paid", "--where", "$.n > 1"], ["--where", "$.n > 1"]], ids=str
)
def test_it_is_said_which_filter(orders, options):
    with pytest.raises(CommandError) as raised:
        call_command("events", "match", *options)
    assert raised.value.returncode == 2
