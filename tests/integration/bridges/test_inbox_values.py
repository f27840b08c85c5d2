"""The values that an inbox takes in: stored as they came, and found where they can't be stored or read again."""

import json
import math

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from django_events import redis_source, schema
from django_events.bridges.inboxes.drafting import Unreadable, event_of
from django_events.bridges.inboxes.sources import InboxMessage
from django_events.declarations import DeclaredInbox, DeclaredTopic
from django_events.models import BufferedEvent, Topic
from tests.support.fix_inboxes import take_in, values

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21")]

THINGS = DeclaredTopic(name="things")
INBOX = DeclaredInbox(name="things-in", topic="things", source=redis_source("bank"))


def event(body):
    """What a message with this payload becomes."""
    return event_of(
        INBOX, THINGS, InboxMessage("1-0", "bank", {}, body=body, headers={"ce_id": "1", "ce_type": "paid"})
    )


def stored(text):
    """What PostgreSQL has of a value, as text."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::jsonb::text", [text])
        return cursor.fetchone()[0]


@pytest.mark.parametrize(
    "number", ["12.10", "0.12345678901234567890123", "100000000000000000001", "-0.5", "9007199254740993.25"]
)
def test_a_number_keeps_all_its_digits(things, make_inbox, redis, number):
    with redis.client() as client:
        client.xadd("bank", {"ce_id": "1", "ce_type": "paid", "data": f' {{"amount" : {number} }}'})
    assert take_in(make_inbox(things, source=redis_source("bank"))) == 1
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT value::text FROM {BufferedEvent._meta.db_table}")
        assert cursor.fetchall() == [(f'{{"amount": {number}}}',)]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"[1.5e3, 2E-2]", [1500.0, 0.02]),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        ('{"a": "Ä"}'.encode("utf-16"), {"a": "Ä"}),
        (b'\n {"a": 1, "a": 2}\n', {"a": 2}),
        (b'"\\ud83d\\ude00"', "😀"),
        (b"0." + b"0" * 400 + b"1", 0.0),
        (b"null", None),
        (None, None),
    ],
)
def test_what_is_written_in_another_way_means_the_same(body, value):
    assert json.loads(stored(event(body).value)) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1] 2",
        b"NaN",
        b'{"a": Infinity}',
        b"1e400",
        b'"\\ud83d"',
        b'"\\u0000"',
        b'"a\0b"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"9" * 4_301,
        b"[" * 501 + b"]" * 501,
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_stored_or_read_again_is_said_to_be_so(body):
    with pytest.raises(Unreadable):
        event(body)


TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)
NUMBERS = st.integers() | st.floats() | st.integers(min_value=10**300)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
WAYS = st.fixed_dictionaries({"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 1])})


@given(
    value=JSON, ways=WAYS, cut=st.integers(0, 30), put=st.sampled_from(["", "", "0", "e5", ".", '"', "\\", "[", ","])
)
def test_whatever_is_taken_in_is_stored_and_means_what_it_meant(value, ways, cut, put):
    text = json.dumps(value, **ways)
    body = (text[:cut] + put + text[cut:]).encode("utf-8", "surrogatepass")
    try:
        row = event(body)
    except Unreadable:
        return
    assert same(json.loads(stored(row.value)), json.loads(body))


def same(found, sent):
    """Whether two values are, up to the last digit of a float that PostgreSQL has exactly, and Python rounds."""
    if isinstance(sent, float) or isinstance(found, float):
        return math.isclose(found, sent)
    if isinstance(sent, dict):
        return found.keys() == sent.keys() and all(same(found[name], sent[name]) for name in sent)
    if isinstance(sent, list):
        return len(found) == len(sent) and all(map(same, found, sent))
    return found == sent


@schema("paid", version=1)
class Paid(BaseModel):
    """A payment, whose topic has to be there."""

    topic: str

    @field_validator("topic")
    @classmethod
    def is_there(cls, name: str) -> str:
        assert Topic.objects.filter(name=name).exists()
        return name


def test_models_may_ask_the_database(make_topic, make_inbox, redis):
    things = make_topic("things", schemas=[Paid])
    with redis.client() as client:
        for n in range(3):
            client.xadd("bank", {"ce_id": str(n), "ce_type": "paid", "data": '{"topic": "things"}'})
    assert take_in(make_inbox(things, source=redis_source("bank"))) == 3
    assert values(things) == [{"topic": "things"}] * 3
