"""Inboxes from a real NATS JetStream: what becomes an event, and what is gone."""

import json

import pytest
from django.test import override_settings

from django_events import Draft, jetstream, jetstream_source
from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.operating.inboxes import restart_inbox
from django_events.testing import published
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.fix_consumers import serve_due
from tests.support.fix_inboxes import error, row, take_in, values
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21")]

SOURCE = jetstream_source("BANK")


@pytest.fixture
def bank(nats):
    nats.add_stream("BANK", "bank.>")
    return nats


def add(nats, *numbers, subject="bank.in"):
    async def publish(context):
        for number in numbers:
            await context.publish(subject, json.dumps({"n": number}).encode())

    nats.ask(publish)


def payment(message):
    return Draft(value=message.json()["n"], type=message.subject, key=message.headers.get("account"))


def test_what_a_relay_of_ours_wrote_is_taken_in_as_it_was(things, make_topic, make_relay, make_inbox, nats):
    nats.add_stream("SENT", "sent")
    sent = make_topic("sent")
    fill_topic(sent, {"n": 1}, [2, None], None, type="order.placed", key="Ä/da %")
    serve_due(make_relay(sent, to=jetstream("sent", stream="SENT"), partitioned=False))
    assert take_in(make_inbox(things, source=jetstream_source("SENT"))) == 3

    events = published(things)
    assert [(one.value, one.type, one.key) for one in events] == [
        ({"n": 1}, "order.placed", "Ä/da %"),
        ([2, None], "order.placed", "Ä/da %"),
        (None, "order.placed", "Ä/da %"),
    ]
    assert events[0].metadata["message"] == "SENT/1"
    assert events[0].metadata["ce"]["id"] == "sent/1"


def test_order_is_kept_over_many_batches(things, make_inbox, bank):
    add(bank, *range(50))
    assert take_in(make_inbox(things, source=SOURCE, transform=payment, batch_size=7)) == 50
    assert values(things) == list(range(50))
    assert (row().taken, row().lag) == (50, 0)
    assert published(things)[0].type == "bank.in"


@pytest.mark.parametrize(("start", "expected"), [("beginning", [1, 2, 3, 4]), ("end", [4]), ("2", [3, 4])])
def test_an_inbox_begins_where_it_is_told(things, make_inbox, bank, start, expected):
    add(bank, 1, 2, 3)
    inbox = make_inbox(things, source=SOURCE, transform=payment, start=start)
    take_in(inbox)
    add(bank, 4)
    take_in(inbox)
    assert values(things) == expected


def test_a_twin_that_is_faster_leaves_nothing_to_do(things, make_inbox, bank):
    add(bank, *range(10))
    began = []

    def transform(message):
        if not began:
            began.append(message)
            assert take_in(inbox) == 10
        return payment(message)

    inbox = make_inbox(things, source=SOURCE, transform=transform)
    assert take_in(inbox) == 0
    assert values(things) == list(range(10))


def test_a_message_that_cannot_be_read_is_an_event_with_its_bytes_in_its_place(things, make_inbox, bank):
    add(bank, 1)
    bank.publish("bank.in", b"\xff\0", account="x")
    add(bank, 3)
    take_in(make_inbox(things, source=SOURCE, transform=payment))

    _, unreadable, last = published(things)
    assert (unreadable.type, unreadable.body, last.value) == ("inbox.unreadable", b"\xff\0", 3)
    assert unreadable.metadata["headers"] == {"account": "x"}


@pytest.mark.parametrize("expired", ["stop", "skip"])
def test_messages_that_were_removed_are_said(things, make_inbox, bank, expired):
    inbox = make_inbox(things, source=SOURCE, transform=payment, expired=expired)
    add(bank, 1, 2)
    take_in(inbox)
    add(bank, *range(3, 10))

    async def remove(context):
        await context.purge_stream("BANK", seq=6)  # up to 5
        await context.delete_msg("BANK", 7)

    bank.ask(remove)
    take_in(inbox)
    if expired == "stop":
        assert "3 messages of 'BANK' behind 2 were removed" in error()
        assert values(things) == [1, 2]
    else:
        assert values(things) == [1, 2, 6, 8, 9]
        assert row().gone == 4
        assert row().error == ""


@pytest.mark.parametrize("more", [0, 1, 4])
def test_a_stream_that_was_made_anew_is_refused(things, make_inbox, bank, more):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    add(bank, 1, 2)
    take_in(inbox)
    bank.clear()
    take_in(inbox)
    assert "has no stream 'BANK'" in error()
    bank.add_stream("BANK", "bank.>")
    add(bank, *range(10, 10 + more))
    assert take_in(inbox) == 0
    assert "made anew" in error()
    restart_inbox("things-in", start="beginning")
    assert take_in(inbox) == more
    assert values(things) == [1, 2, *range(10, 10 + more)]


@pytest.mark.slow
def test_a_broker_that_is_killed_is_found_again_by_the_same_worker(things, make_inbox, bank):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    worker, stop = InboxWorker("default", inbox, once=True), Stop()
    add(bank, 1)
    assert run(worker, stop, once=True) == 1
    bank.kill()
    run(worker, stop, once=True)
    assert "NATS 'nats'" in error()
    bank.start()
    add(bank, 2)
    wait_until(lambda: run(worker, stop, once=True) == 1, what="the second one")
    worker.close()
    stop.close()
    assert values(things) == [1, 2]


def test_what_is_wrong_with_the_login_is_said_without_it(things, make_inbox, nats):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    options = {"servers": ["nats://worker:hunter-two@127.0.0.1:1"], "timeout": 0.1}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"nats": options}}):
        take_in(inbox)
    assert "NATS 'nats'" in error()
    assert "hunter-two" not in error()
