"""Searching a topic's log for a text: the newest first, within bounds, and only in what is shown."""

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_events import Draft, publish_many
from django_events.exceptions import Invalid, UnknownName
from django_events.models import Event
from django_events.observing import searching
from django_events.operations import search
from django_events.outcomes import Searched
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H4")]


@pytest.fixture
def orders(make_topic):
    """Events 1 to 60 of two tenants in turn, whose values are their names; every tenth is from O'Brien."""
    topic = make_topic("things", segment_size=100, timeline=True)
    drafts = [
        Draft(
            value={"customer": "O'Brien" if n % 10 == 0 else f"customer {n}", "note": f'He said "no. {n}"'},
            type=("order.placed", "order.paid")[n % 2],
            key=f"tenant-{n % 3}/{n % 5}",
        )
        for n in range(1, 61)
    ]
    for begin in (0, 30):  # two transactions, so that there are two times
        publish_many(topic, drafts[begin : begin + 30])
        transfer_all()
    return topic


def test_the_newest_come_first_and_capitals_are_the_same(orders):
    assert search(orders, "o'brien") == Searched([60, 50, 40, 30, 20, 10], oldest=1, newest=60)
    assert search("things", "O'BRIEN", limit=2) == Searched([60, 50], oldest=50, newest=60)
    assert search(orders, "O'Brien", before=50, limit=2) == Searched([40, 30], oldest=30, newest=49)


def test_all_that_is_asked_for_is_true_of_what_is_found(orders):
    assert search(orders, "O'Brien", key="tenant-0/0").ids == [60, 30]
    assert search(orders, "O'Brien", key_prefix="tenant-1/").ids == [40, 10]
    assert search(orders, "customer", type="order.paid", key_prefix="tenant-2/", limit=3).ids == [59, 53, 47]
    assert search(orders, "O'Brien", type="order.paid").ids == []


def test_a_search_stays_in_its_time(orders):
    first_of_second = Event.objects.at(orders, 31).logged_at

    assert search(orders, "O'Brien", start=first_of_second) == Searched([60, 50, 40], oldest=31, newest=60)
    assert search(orders, "O'Brien", end=first_of_second) == Searched([30, 20, 10], oldest=1, newest=30)
    assert search(orders, "O'Brien", start=first_of_second + timedelta(days=1)).ids == []
    with pytest.raises(Invalid, match="no time zone"):
        search(orders, "O'Brien", start=first_of_second.replace(tzinfo=None))


@pytest.mark.slow
@pytest.mark.parametrize("portion", [1, 7, 1_000])
@pytest.mark.parametrize("last", [1, 7, 10, 59, 60, 1_000])
def test_it_looks_at_so_many_ids_and_says_which(orders, monkeypatch, portion, last):
    monkeypatch.setattr(searching, "PORTION", portion)
    found = search(orders, "O'Brien", last=last)

    oldest = max(61 - last, 1)
    assert found == Searched([n for n in range(60, oldest - 1, -1) if n % 10 == 0], oldest=oldest, newest=60)


def test_going_on_finds_each_once(orders):
    found, before = [], None
    while before != 1:
        some = search(orders, "O'Brien", before=before, limit=1, last=7)
        found, before = found + some.ids, some.oldest
    assert found == [60, 50, 40, 30, 20, 10]


def test_a_text_is_found_as_it_is_and_as_json_writes_it(make_topic):
    topic = make_topic("texts")
    values = ['say "hi"', "back\\slash", "two\nlines", "100%", "1000", "a_b", "aXb", {"status": "paid"}, "Zoë 日本"]
    publish_many(topic, [Draft(value=value) for value in values])
    publish_many(topic, [Draft(body=b"\x00\xffbytes, O'Brien\x00")])
    publish_many(topic, [Draft(value=None, metadata={"request": "7f3a"})])
    transfer_all()
    first = Event.objects.since(topic)[0].id

    for text, found in {
        'say "hi"': [0],
        "back\\slash": [1],
        "two\nlines": [2],
        "100%": [3],
        "a_b": [5],
        '"status": "paid"': [7],
        "日本": [8],
        "bytes, O'Brien": [9],
        "7f3a": [10],
        "%": [3],
        "\\": [0, 1, 2],
        "' OR true --": [],
        "%(type)s {log}": [],
    }.items():
        assert sorted(search(topic, text).ids) == [first + n for n in found], text


@pytest.mark.parametrize("text", ["", "a\0b"])
def test_what_is_no_text_is_refused(orders, text):
    with pytest.raises(Invalid, match="text to search for"):
        search(orders, text)


def test_what_can_not_be_meant_is_refused(orders):
    with pytest.raises(Invalid, match="name one of them"):
        search(orders, "a", key="a", key_prefix="a")
    with pytest.raises(UnknownName, match="thing"):
        search("thing", "a")


def test_the_events_of_a_tenant_in_a_time_are_there_newest_first(orders):
    """Without a text a queryset says it, by the index of the timeline."""
    start, end = (Event.objects.at(orders, n).logged_at for n in (1, 31))
    found = Event.objects.between(orders, start, end).timeline(orders, key_prefix="tenant-1/").reverse()

    assert [event.id for event in found] == [n for n in range(30, 0, -1) if n % 3 == 1]


def test_an_empty_topic_has_nothing(make_topic):
    assert search(make_topic("empty"), "a") == Searched([], oldest=1, newest=0)


def test_what_is_masked_is_not_found(make_topic, settings):
    settings.DJANGO_EVENTS = {"MASKED_FIELDS": ["iban"]}
    topic = make_topic("secrets")
    for n in range(30):
        publish_many(topic, [Draft(value={"iban": "DE02", "old": {"IBAN": ["DE02"]}, "name": "DE03" if n == 5 else n})])
    publish_many(topic, [Draft(body=b"DE02 DE03")])
    transfer_all()

    assert search(topic, "DE02").ids == []
    assert search(topic, "DE03").ids == [6]
    assert search(topic, '"name": ', limit=3).ids == [30, 29, 28]


def test_a_value_that_is_not_made_into_text_is_passed_over(make_topic):
    topic = make_topic("hostile")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_bufferedevent (topic_id, value)"
            " SELECT django_events_open('hostile'), to_jsonb(repeat('9', 100000)::numeric)"
        )
    publish_many(topic, [Draft(value="needle")])
    transfer_all()
    assert search(topic, "9").ids == []
    assert search(topic, "needle").ids == [2]


def test_the_command_shows_them_and_says_where_it_looked(orders, capsys):
    call_command("events", "search", "things", "O'Brien", "--limit", "2", "--key-prefix", "tenant-")
    out = capsys.readouterr()
    assert "O'Brien" in out.out
    assert [line.split()[0] for line in out.out.splitlines() if "O'Brien" in line] == ["60", "50"]
    assert "Looked at 50 to 60. What is older: --before 50." in out.out + out.err

    call_command("events", "search", "things", "O'Brien", "--before", "31", "--format", "json")
    told = json.loads(capsys.readouterr().out)
    assert [one["address"] for one in told["events"]] == ["things/30", "things/20", "things/10"]
    assert (told["oldest"], told["newest"]) == (1, 30)
    with pytest.raises(CommandError, match="text to search for"):
        call_command("events", "search", "things", "")
