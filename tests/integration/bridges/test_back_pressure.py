"""Inboxes that wait until the transfer, or a consumer, has caught up: real brokers, a transfer that stands still."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import override_settings

from django_events import (
    Draft,
    declarations,
    jetstream_source,
    kafka_source,
    log_source,
    publish_many,
    rabbitmq_source,
    redis_source,
    sqs_source,
)
from django_events.bridges.inboxes import back_pressure
from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.bridges.inboxes.serving import worker_of
from django_events.bridges.inboxes.taking_in import find
from django_events.checks.bridges import check_inboxes
from django_events.log.inventory import next_scheduled, waiting, waiting_of_topic
from django_events.log.transfer import Transfer
from django_events.models import Topic
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.observing.state import INBOX_FAILING, INBOX_WAITING, read
from django_events.operations import pause, pause_inbox, restart_inbox, resume_inbox
from django_events.workers.all_in_one import AllInOne
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.fix_consumers import serve_due
from tests.support.fix_inboxes import row, take_in, turn, values
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21")]

SOURCE = redis_source("bank")
FULL = "5 events of topic 'things' or more wait in the buffer for the transfer, and it goes on when 2 are left"


@dataclass
class Broker:
    """What a test asks of any broker."""

    source: Any
    send: Callable[[Sequence[int]], Any]
    left: Callable[[], int] = lambda: 0  # of a queue: what is with the queue, and in no reader's hand


def of_redis(server):
    def send(numbers):
        with server.client() as client:
            for number in numbers:
                client.xadd("bank", {"data": json.dumps(number)})

    return Broker(SOURCE, send)


def of_nats(server):
    server.add_stream("BANK", "bank.>")

    def send(numbers):
        async def publish_all(context):
            for number in numbers:
                await context.publish("bank.in", json.dumps(number).encode())

        server.ask(publish_all)

    return Broker(jetstream_source("BANK"), send)


def of_kafka(server):
    def send(numbers):
        server.publish("bank", [json.dumps(number).encode() for number in numbers], key="one")

    return Broker(kafka_source("bank"), send)


def of_rabbitmq(server):
    server.declare("bank", kind="classic")

    def send(numbers):
        for number in numbers:
            server.publish("bank", json.dumps(number).encode(), message_id=f"m{number}")

    def left():
        with closing(server.connection()) as one:
            return one.channel().queue_declare("bank", passive=True).message_count

    return Broker(rabbitmq_source("bank"), send, left)


def of_aws(server):
    server.make_queue("bank.fifo")

    def send(numbers):
        server.send("bank.fifo", *map(json.dumps, numbers), MessageGroupId="one")

    def left():
        name = "ApproximateNumberOfMessages"
        with closing(server.client("sqs")) as client:
            queue = client.get_queue_url(QueueName="bank.fifo")["QueueUrl"]
            return int(client.get_queue_attributes(QueueUrl=queue, AttributeNames=[name])["Attributes"][name])

    return Broker(sqs_source("bank.fifo"), send, left)


BROKERS = {"redis": of_redis, "nats": of_nats, "kafka": of_kafka, "rabbitmq": of_rabbitmq, "aws": of_aws}
QUEUES = ("rabbitmq", "aws")


@pytest.fixture(autouse=True)
def at_each_turn(monkeypatch):
    """Look at each turn."""
    monkeypatch.setattr(back_pressure, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(back_pressure, "RESTS", 0)


@pytest.fixture
def bank(redis):
    return of_redis(redis)


def number_of(message):
    return Draft(value=message.json())


def fill(topic, *numbers):
    """As other publishers do; it stays in the buffer."""
    publish_many(topic, [Draft(value=number) for number in numbers])


def move(events):
    """Let the transfer move so many events, and no more."""
    assert Transfer("default", batch_size=events).move(until=lambda: True) == events


def buffered(topic):
    return waiting_of_topic("default", Topic.objects.get(name=topic.name).pk, counted=1_000)


def problems():
    found = find_problems("default", waiting("default"), next_scheduled("default"), standings("default"))
    return {one.kind: one for one in found if "inbox" in one.data}


@pytest.mark.requirement("S8")
@pytest.mark.parametrize(
    "kind", ["redis", *(pytest.param(one, marks=pytest.mark.slow) for one in BROKERS if one != "redis")]
)
def test_an_inbox_waits_for_the_transfer_and_goes_on_without_a_loss_or_a_double(things, make_inbox, request, kind):
    broker = BROKERS[kind](request.getfixturevalue(kind))
    broker.send(range(12))
    inbox = make_inbox(things, source=broker.source, transform=number_of, batch_size=2, most_buffered=5)
    assert take_in(inbox) == 6
    since = row().waiting_since
    assert since is not None and row().failing_since is None
    assert FULL in row().error and "manage.py run_transfer" in row().error
    assert broker.left() == (6 if kind in QUEUES else 0), "what it had in hand is with the queue"
    assert take_in(inbox) == 0
    assert row().waiting_since == since

    assert transfer_all() == 6
    assert take_in(inbox) == 6, "to the next limit, which is behind the end"
    assert values(things) == list(range(12))
    assert take_in(inbox) == 0
    assert row().taken == 12
    transfer_all()
    assert take_in(inbox) == 0
    assert (row().waiting_since, row().failing_since, row().error) == (None, None, "")


def test_it_goes_on_when_half_is_left_in_any_process(things, make_inbox, bank):
    """A process that has just started finds in the row what the inbox waits for."""
    bank.send(range(12))
    inbox = make_inbox(things, source=SOURCE, transform=number_of, batch_size=2, most_buffered=5)
    take_in(inbox)
    with closing(InboxWorker("default", inbox)) as first:
        assert turn(first) == 0
        move(3)
        assert buffered(things) == 3
        assert turn(first) == 0
        assert take_in(inbox) == 0
        move(1)
        assert turn(first) == 2
    assert values(things) == list(range(8))


def test_a_process_stands_by_while_another_one_waits_and_both_go_on(things, make_inbox, bank, caplog):
    bank.send(range(20))
    inbox = make_inbox(things, source=SOURCE, transform=number_of, batch_size=2, most_buffered=5)
    with (
        closing(InboxWorker("default", inbox, once=True)) as one,
        closing(InboxWorker("default", inbox, once=True)) as two,
        closing(Stop()) as stop,
    ):
        for taken in (6, 12, 18):
            run(one, stop, once=True)
            run(two, stop, once=True)
            assert one.waits and two.waits
            assert len(values(things)) == taken
            transfer_all()
        run(two, stop, once=True)
        run(one, stop, once=True)
        assert not one.waits and not two.waits
    assert values(things) == list(range(20))
    assert "goes on: what it waited for has caught up" in caplog.text
    assert row().error == ""


def test_a_live_worker_holds_no_connection_while_it_waits_and_says_so_once(things, make_inbox, bank, caplog):
    bank.send(range(12))
    inbox = make_inbox(things, source=SOURCE, transform=number_of, batch_size=6, most_buffered=5)
    with closing(InboxWorker("default", inbox)) as worker, closing(Stop()) as stop:
        assert turn(worker) == 6
        assert worker._reader is not None
        for _ in range(3):
            assert turn(worker) == 0
            worker.wait(stop)
        assert worker.waits and worker._reader is None
        assert caplog.text.count("takes nothing in for now") == 1
        transfer_all()
        assert turn(worker) == 6
    assert values(things) == list(range(12))


def test_it_is_no_failure_and_none_goes_on(things, make_inbox, bank):
    """A broker that is away is not asked while the buffer is full."""
    bank.send([1, 2])
    inbox = make_inbox(things, source=SOURCE, transform=number_of, most_buffered=2)
    with closing(InboxWorker("default", inbox)) as worker:
        with override_settings(DJANGO_EVENTS={"BROKERS": {}}):
            assert turn(worker) == 0
            assert row().failing_since is not None and row().waiting_since is None
            fill(things, 3, 4)
            worker._rests_until, worker._pressure._took = 0.0, True
            assert turn(worker) == 0
            assert row().failing_since is None and row().waiting_since is not None
            assert worker._failures == 0
            transfer_all()
            assert turn(worker) == 0
            assert row().failing_since is not None and row().waiting_since is None
        worker._rests_until = 0.0
        assert turn(worker) == 2
    assert values(things) == [3, 4, 1, 2]
    assert row().error == ""


def test_an_inbox_that_takes_nothing_in_does_not_look(things, make_inbox, bank, monkeypatch):
    looked = []
    monkeypatch.setattr(back_pressure, "waiting_of_topic", lambda *a, **more: looked.append(more) or 0)
    bank.send([1])
    with closing(InboxWorker("default", make_inbox(things, source=SOURCE, transform=number_of))) as worker:
        assert turn(worker) == 1
        for _ in range(5):
            turn(worker)
        assert looked == [{"counted": 100_000}] * 2, "before the first message, and behind it"


def test_looks_take_a_small_share_of_the_time(things, make_inbox, bank, monkeypatch):
    monkeypatch.undo()
    now = [1_000.0]

    def count(*arguments, counted):
        now[0] += 3
        return counted

    monkeypatch.setattr(back_pressure.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(back_pressure, "waiting_of_topic", count)
    pressure = back_pressure.BackPressure("default", make_inbox(things, source=SOURCE))
    assert pressure.reason(find("default", pressure.inbox))
    assert pressure.looks_again == 1_003 + 3 * 20


def test_without_a_limit_it_takes_all_in(things, make_inbox, bank):
    bank.send(range(12))
    assert take_in(make_inbox(things, source=SOURCE, transform=number_of, batch_size=2, most_buffered=None)) == 12


def test_events_of_another_topic_hold_nothing_up(things, make_topic, make_inbox, bank):
    fill(make_topic("others"), *range(20))
    bank.send(range(3))
    assert take_in(make_inbox(things, source=SOURCE, transform=number_of, most_buffered=5)) == 3


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_a_consumer_that_is_named_may_be_so_far_behind_and_no_more(things, make_consumer, make_inbox, bank, mode):
    handled = []
    ledger = make_consumer(things, handler=lambda event: handled.append(event.value), name="ledger", mode=mode)
    make_consumer(things, handler=print, name="idle")
    bank.send(range(12))
    inbox = make_inbox(things, source=SOURCE, transform=number_of, batch_size=3, most_lag={"ledger": 5})
    with closing(InboxWorker("default", inbox, once=True)) as worker, closing(Stop()) as stop:

        def once():
            taken = run(worker, stop, once=True)
            transfer_all()
            return taken

        assert turn(worker) == 3
        transfer_all()
        assert turn(worker) == 3
        transfer_all()
        assert once() == 0
        assert "Consumer 'ledger' is 5 events of topic 'things' or more behind, and it goes on when 2" in row().error
        assert "manage.py events status ledger" in row().error
        assert row().waiting_since is not None and row().failing_since is None
        while serve_due(ledger):
            pass
        assert once() == 6, "what is in the buffer is not in the log: a consumer isn't behind by it"
        assert once() == 0
        while serve_due(ledger):
            pass
        once()
    assert row().error == ""
    assert sorted(handled) == values(things) == list(range(12))


def test_a_paused_consumer_counts_and_one_that_is_not_registered_has_nothing_to_do(
    things, make_consumer, make_inbox, bank
):
    ledger = make_consumer(things, handler=print, name="ledger")
    pause(ledger)
    fill(things, *range(5))
    transfer_all()
    bank.send([10])
    inbox = make_inbox(things, source=SOURCE, transform=number_of, most_lag={"ledger": 5})
    assert take_in(inbox) == 0
    assert "is the consumer served, or paused?" in row().error
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_events_position; DELETE FROM django_events_consumer WHERE name = 'ledger'")
    assert take_in(inbox) == 1


def test_half_counts_for_what_it_waits_for_and_for_nothing_else(things, make_consumer, make_inbox, bank):
    make_consumer(things, handler=print, name="ledger")
    fill(things, *range(4))
    transfer_all()
    fill(things, *range(5))
    bank.send([10])
    inbox = make_inbox(things, source=SOURCE, transform=number_of, most_buffered=5, most_lag={"ledger": 20})
    assert take_in(inbox) == 0
    transfer_all()
    assert take_in(inbox) == 1, "the consumer is nine behind, which is more than seven, and less than twenty"


def test_it_is_shown_since_when_it_waits_and_for_what(things, make_inbox, bank, capsys):
    fill(things, *range(5))
    bank.send([10])
    take_in(make_inbox(things, source=SOURCE, transform=number_of, most_buffered=5))
    call_command("events", "bridges", "--format", "json")
    [told] = json.loads(capsys.readouterr().out)["inboxes"]
    assert (told["state"], told["failing_since"]) == ("waiting", None)
    assert told["waiting_since"] and FULL in told["error"]
    assert "inbox waits" not in problems(), "a moment is no problem"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_events_inbox SET waiting_since = now() - interval '1 hour'")
    found = problems()
    assert set(found) == {"inbox waits"}
    assert found["inbox waits"].severity == "warning"
    assert FULL in found["inbox waits"].what and "waited since" in found["inbox waits"].what
    assert "redis bank" in found["inbox waits"].remedy
    metrics = {one.metric: one.value for one in read("default") if one.metric in (INBOX_FAILING, INBOX_WAITING)}
    assert metrics[INBOX_FAILING] == 0
    assert metrics[INBOX_WAITING] >= 3_600
    with pytest.raises(CommandError, match="wait in the buffer for the transfer") as refused:
        call_command("run_inbox", "things-in", "--once", "-v0")
    assert refused.value.returncode == 1


def test_a_pause_and_a_restart_by_hand_go_before_it(things, make_inbox, bank):
    fill(things, *range(5))
    bank.send([10])
    inbox = make_inbox(things, source=SOURCE, transform=number_of, most_buffered=5)
    with closing(InboxWorker("default", inbox)) as worker:
        turn(worker)
        assert row().waiting_since is not None
        pause_inbox(inbox)
        turn(worker)
        assert not worker.waits
        assert (row().waiting_since, row().error) == (None, "")
        resume_inbox(inbox)
        restart_inbox(inbox, start="end")
        transfer_all()
        worker._rests_until = 0.0
        turn(worker)
        assert (row().error, row().taken) == ("", 0)
        bank.send([11])
        assert turn(worker) == 1


@pytest.mark.slow
def test_a_queue_that_two_processes_serve_goes_on_in_one_of_them(things, make_inbox, rabbitmq):
    broker = of_rabbitmq(rabbitmq)
    broker.send(range(12))
    inbox = make_inbox(things, source=broker.source, transform=number_of, batch_size=6, most_buffered=5)
    with closing(worker_of("default", inbox)) as one, closing(worker_of("default", inbox)) as two:
        assert turn(one) == 6
        assert (turn(one), turn(two)) == (0, 0)
        assert one.waits and two.waits
        assert broker.left() == 6
        transfer_all()
        assert turn(two) == 6
        assert turn(one) == 0
        assert row().failing_since is None
    assert values(things) == list(range(12))


@pytest.mark.slow
def test_run_events_once_takes_in_what_is_there_although_the_buffer_is_small(things, make_inbox, bank):
    """What the transfer has moved lets the inbox go on."""
    bank.send(range(23))
    inbox = make_inbox(things, source=SOURCE, transform=number_of, batch_size=2, most_buffered=5)
    taking_in = [worker_of("default", inbox, once=True)]
    with closing(AllInOne("default", [], taking_in=lambda once: taking_in)) as workers, closing(Stop()) as stop:
        assert workers.run(stop, once=True).moved == 23
    assert values(things) == list(range(23))
    assert row().error == ""


def test_a_mirror_waits_for_nothing(make_topic, make_consumer, make_inbox, shop):
    """Not even if it were declared so."""
    there, here = make_topic("there"), make_topic("here")
    make_consumer(here, handler=print, name="ledger")
    fill(there, *range(7))
    transfer_all()
    inbox = make_inbox(here, source=log_source("there", broker="shop"), keep_ids=True, batch_size=2)
    with closing(worker_of("default", replace(inbox, most_lag={"ledger": 1}), once=True)) as worker:
        assert [turn(worker) for _ in range(5)] == [2, 2, 2, 1, 0]
        assert not worker.waits


def test_a_name_that_is_no_consumer_of_the_topic_is_found_by_the_check(things, make_topic, make_consumer, make_inbox):
    make_consumer(make_topic("others"), handler=print, name="elsewhere")
    make_consumer(things, handler=print, name="ledger")
    inbox = make_inbox(things, source=SOURCE, most_lag={"ledger": 5})
    assert not [one for one in check_inboxes() if "most_lag" in one.msg]
    declarations.inboxes.discard(inbox)
    for name in ("leger", "elsewhere"):
        wrong = declarations.inbox(things, source=SOURCE, name="things-in", most_lag={name: 5})
        try:
            [found] = [one for one in check_inboxes() if "most_lag" in one.msg]
            assert found.id == "django_events.E020"
            assert f"has most_lag of '{name}'" in found.msg and "reads topic 'things'" in found.msg
            assert name != "leger" or "'ledger'" in found.msg
        finally:
            declarations.inboxes.discard(wrong)
