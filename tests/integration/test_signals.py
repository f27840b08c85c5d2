"""Signals of our own: what happened is told once, when it is settled, and receivers can't do harm."""

from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.dispatch import Signal
from django.utils import timezone

from django_events import Backoff, BufferedWriter, Draft, Ignore, publish, publish_many
from django_events.signals import event_dead_lettered, event_handled, event_published, event_retried
from django_events.testing import drain
from tests.support.fix_consumers import exhaust, write_order, written
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

AT_ONCE = Backoff(attempts=2, base=timedelta(0), cap=timedelta(0))


@contextmanager
def received(*signals: Signal):
    """What these signals say in the block."""
    told = []
    names = {event_published: "published", event_handled: "handled", event_retried: "retried"}

    def receiver(signal, sender, **what):
        told.append((names.get(signal, "dead"), sender, what))

    for signal in signals:
        signal.connect(receiver)
    try:
        yield told
    finally:
        for signal in signals:
            signal.disconnect(receiver)


def test_publishing_says_how_many_of_which_type(things):
    with received(event_published) as told:
        publish(things, 1, type="a")
        publish_many(things, [Draft(value=n, type="a" if n % 3 else "b") for n in range(6)])
        publish_many(things, [Draft(value=n, type="many") for n in range(200)])
        publish(things, 1, type="later", publish_at=timezone.now() + timedelta(hours=1))
        publish(things, 1, type="once", dedup_key="k")
        publish(things, 1, type="once", dedup_key="k")
        publish_many(things, [Draft(value=1, type="once", dedup_key="k"), Draft(value=1, type="once", dedup_key="l")])

    assert {sender for _, sender, _ in told} == {things}
    assert [(what["topic"], what["type"], what["count"], what["using"]) for _, _, what in told] == [
        ("things", "a", 1, "default"),
        ("things", "b", 2, "default"),
        ("things", "a", 4, "default"),
        ("things", "many", 200, "default"),
        ("things", "later", 1, "default"),
        ("things", "once", 1, "default"),
        ("things", "once", 1, "default"),
    ]


@pytest.mark.parametrize("mode", ["stream", "queue"])
@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("batch_size", [None, 10])
def test_handled_events_are_told_when_they_are_settled(things, make_consumer, mode, transactional, batch_size):
    def handle(events):
        write_order("here")

    consumer = make_consumer(
        things, handler=handle, mode=mode, transactional=transactional, batch_size=batch_size, retry=AT_ONCE
    )
    publish_many(things, [Draft(value=n) for n in range(5)])
    with received(event_handled, event_retried, event_dead_lettered) as told:
        assert drain(consumer) == 5

    assert {(name, sender) for name, sender, _ in told} == {("handled", consumer)}
    assert sorted(event.id for _, _, what in told for event in what["events"]) == [1, 2, 3, 4, 5]
    assert all(what["topic"] == "things" and what["seconds"] >= 0 and what["using"] == "default" for *_, what in told)


@pytest.mark.parametrize("mode", ["stream", "queue"])
@pytest.mark.parametrize("transactional", [True, False])
def test_a_failing_event_is_retried_and_then_a_dead_letter(things, make_consumer, mode, transactional):
    def handle(event):
        if event.value == 2:
            raise ZeroDivisionError("no")

    consumer = make_consumer(things, handler=handle, mode=mode, transactional=transactional, retry=AT_ONCE)
    publish_many(things, [Draft(value=n) for n in range(5)])
    with received(event_handled, event_retried, event_dead_lettered) as told:
        drain(consumer, raise_errors=False)

    failed = [(name, what["event"].id, type(what["error"])) for name, _, what in told if name != "handled"]
    assert failed == [("retried", 3, ZeroDivisionError), ("dead", 3, ZeroDivisionError)]
    assert [what["pause"] for name, _, what in told if name == "retried"] == [timedelta(0)]
    handled = [event.id for name, _, what in told if name == "handled" for event in what["events"]]
    assert sorted(handled) == [1, 2, 4, 5]


def test_an_ignored_event_is_neither(things, make_consumer):
    def handle(event):
        raise Ignore("not for us")

    consumer = make_consumer(things, handler=handle)
    publish(things, 1)
    with received(event_handled, event_retried, event_dead_lettered) as told:
        drain(consumer)

    assert told == []


def test_receivers_can_do_no_harm(things, make_consumer, caplog):
    consumer = make_consumer(things, handler=lambda event: write_order(event.value), retry=AT_ONCE)

    def fail(**what):
        raise ZeroDivisionError("a receiver's own")

    for signal in (event_published, event_handled):
        signal.connect(fail)
    try:
        with transaction.atomic():
            publish(things, 1)
            publish_many(things, [Draft(value=2)])
        assert drain(consumer) == 2
    finally:
        for signal in (event_published, event_handled):
            signal.disconnect(fail)

    assert written() == ["1", "2"]
    assert "a receiver's own" in caplog.text


def test_a_receiver_whose_query_fails_takes_nothing_along(things, caplog):
    """An error of the database that is hidden would turn the COMMIT into a rollback, without a word."""

    def fail(**what):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    event_published.connect(fail)
    try:
        with transaction.atomic():
            write_order("beside it")
            publish(things, 1)
            publish_many(things, [Draft(value=2)])
        with BufferedWriter(things) as writer:
            future = writer.publish(3)
        assert future.result() is True
    finally:
        event_published.disconnect(fail)

    assert written() == ["beside it"]
    assert transfer_all() == 3
    assert "division by zero" in caplog.text


def test_what_is_rolled_back_is_not_told(things):
    with received(event_published) as told, transaction.atomic():
        publish(things, 1)
        transaction.set_rollback(True)
    assert told == []


def test_one_consumers_signals_can_be_chosen(things, make_consumer):
    first = make_consumer(things, handler=lambda event: None, name="first")
    second = make_consumer(things, handler=lambda event: None, name="second")
    told = []

    def receiver(consumer, **what):
        told.append(consumer.name)

    event_handled.connect(receiver, sender=second)
    try:
        publish(things, 1)
        drain(first, second)
    finally:
        event_handled.disconnect(receiver, sender=second)

    assert told == ["second"]


def test_workers_tell_it_after_their_commit(things, make_consumer):
    consumer = make_consumer(things, handler=lambda event: write_order(event.value), batch_size=None)
    publish_many(things, [Draft(value=n) for n in range(3)])
    drain()  # moves them, and lets the consumer pass them
    seen = []

    def receiver(events, **what):
        seen.append((len(events), len(written())))

    event_handled.connect(receiver)
    try:
        publish_many(things, [Draft(value=n) for n in range(3)])
        transfer_all()
        exhaust(consumer)
    finally:
        event_handled.disconnect(receiver)

    assert sum(events for events, _ in seen) == 3
    assert seen[-1][1] == 6
