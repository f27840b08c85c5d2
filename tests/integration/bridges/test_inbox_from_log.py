"""Inboxes from the log of another site, as new events. The source is another topic of the same database."""

from contextlib import closing

import pgtrigger
import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from django_events import Draft, declarations, log_source, publish, publish_many, redis_source
from django_events.bridges.inboxes import log_reader
from django_events.checks.bridges import check_inboxes
from django_events.checks.publishers import check_captures, check_outboxes
from django_events.models import Event, Topic
from django_events.operations import erase, remove_topic, restart_inbox
from django_events.publishing.capture import Capture
from django_events.publishing.model_signals import publishers
from django_events.sql.limited import answering_within
from django_events.statements import log_table
from django_events.testing import published
from tests.integration.bridges.test_mirrors import compact, cut
from tests.support.fix_inboxes import row, take_in, values
from tests.support.fix_mirrors import lose
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X22")]

SOURCE = log_source("there", broker="shop")


def send(topic, *values, **options):
    publish_many(topic, [Draft(value=value, key=str(value), **options) for value in values])
    transfer_all()


@pytest.fixture
def there(make_topic):
    return make_topic("there", partitions=3, segment_size=100)


def test_events_of_another_site_become_events_of_this_one(there, things, make_inbox, shop):
    publish(there, {"total": 7}, type="order.placed", key="a", metadata={"caused_by": "clicks/3", "tenant": "x"})
    publish(there, body=b"\0\xff", type="bytes")
    publish(there, None)
    send(there, *range(20))
    inbox = make_inbox(things, source=SOURCE)
    assert take_in(inbox) == 23
    first, second, third, *rest = published(things)
    assert (first.value, first.type, first.key) == ({"total": 7}, "order.placed", "a")
    assert (first.metadata["tenant"], first.metadata["message"], first.metadata["inbox"]) == (
        "x",
        "there/1",
        "things-in",
    )
    origin = Event.objects.at(there, 1)
    assert first.metadata["origin"] == {
        "caused_by": "clicks/3",
        "published_at": origin.published_at.isoformat(),
        "logged_at": origin.logged_at.isoformat(),
    }
    assert "caused_by" not in first.metadata
    assert (second.body, second.type, third.value) == (b"\0\xff", "bytes", None)
    assert [event.value for event in rest] == list(range(20))
    assert take_in(inbox) == 0
    assert (row().taken, row().lag) == (23, 0)


def test_what_is_left_out_by_a_filter_is_passed(there, things, make_inbox, shop, monkeypatch):
    monkeypatch.setattr(log_reader, "WINDOW", 7)
    for number in range(60):
        publish(there, number, type="order.paid" if number % 20 == 0 else "order.placed", key=f"k.{number % 3}")
    transfer_all()
    inbox = make_inbox(things, source=log_source("there", broker="shop", types=["order.paid"]))
    take_in(inbox)
    assert values(things) == [0, 20, 40]
    assert (row().position["there"]["id"], row().lag, row().taken) == (60, 0, 3)
    lose(there, 58)
    take_in(inbox)
    assert "ends at 58" in row().error


def test_filters_are_patterns(there, things, make_inbox, shop):
    for number in range(6):
        publish(there, number, type=f"order.{'paid' if number % 2 else 'placed'}", key=f"k.{number}")
    transfer_all()
    take_in(make_inbox(things, source=log_source("there", broker="shop", types=["*.paid"], keys=["k.1", "k.5", "k.4"])))
    assert values(things) == [1, 5]


def test_transform_gets_the_event_as_a_draft(there, things, make_inbox, shop):
    def doubled(message):
        if message.json() == 2:
            return None
        return Draft(value=message.draft.value * 2, type=message.headers["type"], key=message.key)

    send(there, 1, 2, 3, type="number")
    take_in(make_inbox(things, source=SOURCE, transform=doubled))
    assert [(event.value, event.type, event.key) for event in published(things)] == [
        (2, "number", "1"),
        (6, "number", "3"),
    ]
    assert row().left_out == 1


def test_expired_events_are_counted(there, things, make_inbox, shop):
    inbox = make_inbox(things, source=SOURCE)
    send(there, 1)
    take_in(inbox)
    send(there, *range(2, 350))
    cut(there, 200)
    take_in(inbox)
    assert "199 messages of 'there' behind 1 were removed" in row().error
    declarations.inboxes.discard(inbox)
    take_in(make_inbox(things, source=SOURCE, expired="skip"))
    assert values(things) == [1, *range(201, 350)]
    assert row().gone == 199


def test_what_retention_removes_while_a_filter_reads_is_counted(there, things, make_inbox, shop, monkeypatch):
    read, left = log_reader.LogReader._messages, [there]

    def interrupted(reader, *arguments):
        found = read(reader, *arguments)
        if left:
            cut(left.pop(), 200)
        return found

    send(there, *range(250), type="a")
    monkeypatch.setattr(log_reader.LogReader, "_messages", interrupted)
    take_in(make_inbox(things, source=log_source("there", broker="shop", types=["a"]), expired="skip"))
    assert (values(things), row().gone) == (list(range(200, 250)), 200)


def test_what_was_compacted_is_no_loss(make_topic, things, make_inbox, shop):
    there = make_topic("there", segment_size=100, compact=True)
    publish_many(there, [Draft(value=n, key=str(n % 7)) for n in range(450)])
    transfer_all()
    compact(there)
    take_in(make_inbox(things, source=SOURCE, batch_size=50))
    assert values(things) == list(Event.objects.since(there).values_list("value", flat=True))
    assert (row().gone, row().error) == (0, "")


def test_a_topic_that_was_made_anew_and_begun_again(there, things, make_inbox, make_topic, shop):
    inbox = make_inbox(things, source=SOURCE)
    send(there, 1, 2)
    take_in(inbox)
    declarations.registry.discard(there)
    remove_topic("there", force=True)
    take_in(inbox)
    assert "has no topic 'there'" in row().error
    there = make_topic("there", partitions=3)
    send(there, 10, 11, 12)
    take_in(inbox)
    assert "removed and made anew" in row().error
    restart_inbox(inbox, start="1")
    take_in(inbox)
    assert values(things) == [1, 2, 11, 12]


def test_an_erased_event_is_one_without_a_payload(there, things, make_inbox, shop):
    send(there, 1, 2)
    erase("there", ids=[1], reason="asked for")
    take_in(make_inbox(things, source=SOURCE))
    assert values(things) == [None, 2]


def test_a_value_that_no_reader_takes_is_an_event_that_says_so(there, things, make_inbox, shop):
    send(there, 1)
    with connection.cursor() as cursor:
        table = log_table(Topic.objects.get(name="there").pk)
        cursor.execute(f"UPDATE {table} SET value = to_jsonb(('1' || repeat('0', 5000))::numeric)")
    take_in(make_inbox(things, source=SOURCE))
    [event] = published(things)
    assert event.type == "inbox.unreadable"
    assert event.metadata["message"] == "there/1"


def test_large_events_are_few_at_a_time(there, things, make_inbox, shop, monkeypatch):
    monkeypatch.setattr(log_reader, "BATCH_BYTES", 5_000)
    publish_many(there, [Draft(body=bytes([n]) * 2_000) for n in range(20)])
    transfer_all()
    assert take_in(make_inbox(things, source=SOURCE)) == 20
    assert [event.body[0] for event in published(things)] == list(range(20))


@pytest.mark.parametrize("keep_ids", [True, False])
def test_what_was_stored_compressed_is_counted_as_it_travels(
    there, things, make_topic, make_inbox, shop, monkeypatch, keep_ids
):
    monkeypatch.setattr(log_reader, "BATCH_BYTES", 250_000)
    batches = []
    name = "_copied" if keep_ids else "_messages"
    read = getattr(log_reader.LogReader, name)

    def counted(*arguments):
        batches.append(read(*arguments))
        return batches[-1]

    monkeypatch.setattr(log_reader.LogReader, name, counted)
    publish_many(there, [Draft(value=str(n) * 100_000) for n in range(10)] + [Draft(body=bytes(100_000))] * 10)
    transfer_all()
    here = make_topic("here", partitions=3)
    assert take_in(make_inbox(here, source=SOURCE, keep_ids=keep_ids)) == 20
    assert max(len(one.ids) for one in batches) == 3
    transfer_all()
    assert [len(event.value or event.body) for event in Event.objects.of(here).order_by("id")] == [100_000] * 20


def test_an_answer_may_come_slowly_but_not_stop():
    slowly = "SELECT pg_sleep(0.1), repeat('x', 100000) FROM generate_series(1, 8)"
    known = connection.get_connection_params()
    options = {name: known[name] for name in ("host", "port", "dbname", "user", "password") if known.get(name)}
    with closing(answering_within(0.5, whole=False).connect(**options, application_name="slow")) as session:
        assert len(session.execute(slowly).fetchall()) == 8
        with pytest.raises(psycopg.OperationalError, match=r"did not answer within 0\.5 s"):
            session.execute("SELECT pg_sleep(1)")

    def ended():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'slow'"
            )
            return not cursor.fetchall()

    wait_until(ended, what="the end of the session that was given up")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"source": log_source("no name", broker="shop")}, "log_source has 'no name'"),
        ({"source": log_source("there", broker="")}, "has broker=''"),
        ({"source": log_source("there", broker="shop", types=[])}, "has types=[]"),
        ({"source": log_source("there", broker="shop", keys=["a"]), "keep_ids": True}, "takes all events"),
        ({"source": SOURCE, "keep_ids": True, "transform": len}, "transform would change them"),
        ({"source": SOURCE, "keep_ids": 1}, "keep_ids=1"),
    ],
)
def test_what_is_wrong_is_said(options, problem):
    declared = declarations.inbox("things", name="things-in", **options)
    declarations.inboxes.discard(declared)
    assert [said for said in declared.problems() if problem in said]


def test_only_the_log_of_another_site_has_ids_to_keep():
    declared = declarations.inbox("things", name="things-in", source=redis_source("bank"), keep_ids=True)
    declarations.inboxes.discard(declared)
    assert any("is for the log of another site" in said for said in declared.problems())


def test_what_else_publishes_to_a_mirror_is_said(things):
    with_clock = things.every("0 3 * * *", type="due")
    first = declarations.inbox(things, name="first", source=SOURCE, keep_ids=True)
    second = declarations.inbox(things, name="second", source=SOURCE)
    try:
        said = [one.msg for one in check_inboxes() if "is a mirror of shop there" in one.msg]
    finally:
        for one in (first, second):
            declarations.inboxes.discard(one)
        declarations.clocks.discard(with_clock)
    assert any("inbox 'second' publishes to it" in one for one in said)
    assert any("clock 'things.due' publishes to it" in one for one in said)


def test_bridges_shows_it(there, things, make_inbox, shop, capsys):
    send(there, 1)
    take_in(make_inbox(things, source=SOURCE))
    call_command("events", "bridges")
    assert "shop there" in capsys.readouterr().out


def test_captures_and_outboxes_of_a_mirror_are_said():
    outboxes = {publisher.outbox.topic for publisher in publishers()}
    captures = {one.declared.topic for _, one in pgtrigger.registered() if isinstance(one, Capture)}
    mirrors = [
        declarations.inbox(topic, name=f"{topic}-in", source=SOURCE, keep_ids=True) for topic in outboxes | captures
    ]
    try:
        said = [one.msg for one in (*check_outboxes(), *check_captures())]
    finally:
        for one in mirrors:
            declarations.inboxes.discard(one)
    for what in ["An @outbox"] * bool(outboxes) + ["A capture()"] * bool(captures):
        assert any(one.startswith(what) and "is a mirror of shop there" in one for one in said)
    assert captures
    assert not [one for one in (*check_outboxes(), *check_captures()) if "mirror" in one.msg]
