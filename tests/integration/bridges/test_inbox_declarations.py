"""Inboxes whose declaration, database or broker is another one than a worker believes: a rolling deployment, a leader
that changed, a connection that ended, a database that can only be read.
"""

import json
import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.test import override_settings

from django_events import Draft, RetryLater, declarations, jetstream_source, kafka_source, log_source, redis_source
from django_events.bridges.inboxes import inbox_worker, taking_in
from django_events.bridges.inboxes import jetstream_source as jetstream_sources
from django_events.bridges.inboxes import redis_source as redis_sources
from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.models import Inbox
from django_events.operating import inboxes
from django_events.operating.inboxes import pause_inbox, restart_inbox, resume_inbox
from django_events.testing import published
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.fix_inboxes import row, take_in, values

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21")]

SOURCE = redis_source("bank")


def add(redis, *numbers, stream="bank"):
    with redis.client() as client:
        return [client.xadd(stream, {"data": json.dumps(number)}) for number in numbers]


def send(nats, *numbers):
    async def publish(context):
        for number in numbers:
            await context.publish("bank.in", json.dumps(number).encode())

    nats.ask(publish)


def value_of(message):
    return Draft(value=message.json())


def turn(worker):
    with closing(Stop()) as stop:
        worker._rests_until = 0.0
        run(worker, stop, once=True)


@pytest.fixture
def declare_anew():
    """Put another declaration into the place of one, as the newer code of a deployment does."""
    made = []

    def declare(former, **changes):
        declarations.inboxes.discard(former)
        declarations.inboxes.add(newer := replace(former, **changes))
        made.append(newer)
        return newer

    yield declare
    for one in made:
        declarations.inboxes.discard(one)


def test_a_process_with_the_former_source_publishes_nothing_after_the_inbox_was_begun_in_the_new_one(
    things, make_inbox, declare_anew, redis
):
    add(redis, 1, 2)
    add(redis, 10, 11, stream="bank2")
    former = make_inbox(things, source=SOURCE, transform=value_of)
    with closing(InboxWorker("default", former, once=True)) as of_former:
        turn(of_former)
        newer = declare_anew(former, source=redis_source("bank2"))
        [told] = inboxes.sync("default")
        assert "inbox restart things-in" in told
        with closing(InboxWorker("default", newer, once=True)) as of_newer:
            turn(of_newer)
            assert "at a position of redis bank, and a process declares it for redis bank2" in row().error
            add(redis, 3)
            turn(of_former)  # it goes on until the inbox is begun anew
            restart_inbox("things-in", start="beginning")
            turn(of_former)
            assert values(things) == [1, 2, 3]
            turn(of_newer)
            turn(of_former)
    assert values(things) == [1, 2, 3, 10, 11]
    assert (row().source, list(row().position)) == ("redis bank2", ["bank2"])


@pytest.mark.parametrize(
    ("make_source", "keep_ids"),
    [
        *((source, False) for source in (redis_source, jetstream_source, kafka_source, log_source)),
        (log_source, True),
    ],
)
def test_a_row_of_another_source_is_refused_without_reading(things, make_inbox, make_source, keep_ids):
    inbox = make_inbox(things, source=make_source("bank", broker="away"), keep_ids=keep_ids)
    Inbox.objects.filter(name=inbox.name).update(source="away other", position={"other": {}})
    with override_settings(DJANGO_EVENTS={"BROKERS": {}}):  # a reader that was opened would say that there is no broker
        assert take_in(inbox) == 0
    assert row().error.startswith("It is at a position of away other, and a process declares it for away bank.")
    assert row().position == {"other": {}}


def test_a_stream_of_the_same_name_at_another_broker_is_another_source(things, make_inbox, declare_anew, redis):
    add(redis, 1)
    former = make_inbox(things, source=SOURCE, transform=value_of)
    take_in(former)
    with (
        override_settings(DJANGO_EVENTS={"BROKERS": {"west": {**redis.options, "db": 1}}}),
        redis.client() as client,
    ):
        client.select(1)
        client.xadd("bank", {"data": "2"}, id="1-0")
        newer = declare_anew(former, source=redis_source("bank", broker="west"))
        inboxes.sync("default")
        take_in(newer)
        assert "declares it for west bank" in row().error
        restart_inbox("things-in", start="beginning")
        take_in(newer)
        client.flushdb()
    assert values(things) == [1, 2]


def test_a_process_with_the_former_topic_publishes_nothing_there_after_migrate(
    things, make_topic, make_inbox, declare_anew, redis
):
    others = make_topic("others")
    former = make_inbox(things, source=SOURCE, transform=value_of)
    newer = declare_anew(former, topic="others")
    assert inboxes.sync("default") == ["Inbox things-in: to others, and it goes on where it was."]
    add(redis, 1)
    with closing(InboxWorker("default", former, once=True)) as worker:
        turn(worker)
        assert "publishes to 'others'" in worker.failure
    assert (row().error, row().failing_since) == ("", None), "the newer worker has nothing to do with it"
    take_in(newer)
    assert (values(things), values(others)) == ([], [1])


@pytest.mark.parametrize("start", ["5-0", "no id"])
def test_an_inbox_does_not_begin_behind_an_id_where_there_is_no_stream(things, make_inbox, redis, start):
    [_, last] = add(redis, 1, 2)
    inbox = make_inbox(things, source=SOURCE, transform=value_of)
    take_in(inbox)
    with redis.client() as client:
        client.rename("bank", "elsewhere")
        restart_inbox("things-in", start=last if start == "5-0" else start)
        take_in(inbox)
        assert row().position is None and ("there is no stream" in row().error or "is no id" in row().error)
        client.rename("elsewhere", "bank")
    take_in(inbox)
    assert values(things) == [1, 2]


def test_a_transform_whose_connection_to_another_database_ended_is_tried_again(things, make_inbox, redis):
    connections.databases["other"] = {**connection.settings_dict, "CONN_MAX_AGE": None}

    def look_up(message):
        with connections["other"].cursor() as cursor:
            cursor.execute("SELECT 1")
        return value_of(message)

    try:
        add(redis, 1)
        with closing(InboxWorker("default", make_inbox(things, source=SOURCE, transform=look_up), once=True)) as worker:
            turn(worker)
            pid = connections["other"].connection.info.backend_pid
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
            add(redis, 2)
            with closing(Stop()) as stop:
                worker.work(stop)
                assert "of a database, while transform had bank/" in row().error
                worker._rests_until = 0.0
                worker.work(stop)
    finally:
        connections["other"].close()
        del connections.databases["other"]
    assert values(things) == [1, 2] and row().error == ""


def test_a_limit_for_statements_cuts_off_no_batch(things, make_inbox, redis):
    add(redis, *["x" * 50_000] * 20)
    inbox = make_inbox(things, source=SOURCE, transform=value_of)
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '1s'")
    limits = []
    with connection.execute_wrapper(lambda execute, *given: _limit_of(execute, *given, limits)):
        take_in(inbox)
    with connection.cursor() as cursor:
        cursor.execute("RESET statement_timeout")
    assert set(limits) == {"0"}


def _limit_of(execute, statement, parameters, many, context, limits):
    if "taken = taken +" in str(statement):
        with context["connection"].connection.cursor() as beside:
            limits.append(beside.execute("SHOW statement_timeout").fetchone()[0])
    return execute(statement, parameters, many, context)


def test_a_database_that_can_only_be_read_does_not_end_the_worker(things, make_inbox, redis, caplog):
    inbox = make_inbox(things, source=SOURCE, transform=value_of)
    take_in(inbox)
    add(redis, 1)
    with closing(InboxWorker("default", inbox, once=True)) as worker, closing(Stop()) as stop:
        worker.connect()
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
        assert worker.work(stop) == 0
        assert "read-only" in worker.failure and "can't write down why it waits" in caplog.text
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = off")
        turn(worker)
    assert values(things) == [1]


def test_a_source_that_makes_no_reader_is_an_outage(things, make_inbox):
    class Broken:
        def __str__(self):
            return "broken"

        def problems(self):
            return iter(())

        def check_installed(self):
            """Nothing is missing."""

        def reader(self):
            raise RuntimeError("no reader")

    take_in(make_inbox(things, source=Broken()))
    assert row().error == "RuntimeError in the reader"


def test_what_a_leader_does_not_know_yet_is_not_gone(things, make_inbox, nats, monkeypatch):
    nats.add_stream("BANK", "bank.in")
    send(nats, 1, 2)
    inbox = make_inbox(things, source=jetstream_source("BANK"), transform=value_of, expired="skip")
    take_in(inbox)
    about, asked = jetstream_sources.JetStreamReader._about, []

    async def one_ahead(reader):
        created, first, last = await about(reader)
        asked.append(last)
        return created, first, last + (len(asked) == 1)

    monkeypatch.setattr(jetstream_sources.JetStreamReader, "_about", one_ahead)
    take_in(inbox)
    assert "ended at 3 when its reading began" in row().error
    monkeypatch.undo()
    send(nats, 3, 4)
    take_in(inbox)
    assert (values(things), row().gone) == ([1, 2, 3, 4], 0)


def test_each_message_between_gaps_is_asked_for_once(things, make_inbox, nats, monkeypatch):
    nats.add_stream("BANK", "bank.in")
    send(nats, *range(1, 61))

    async def punch(context):
        for number in range(2, 61, 2):
            await context.delete_msg("BANK", number)

    nats.ask(punch)
    asked, messages = [], jetstream_sources.JetStreamReader._messages

    def counted(reader, numbers, created):
        asked.extend(numbers)
        return messages(reader, numbers, created)

    monkeypatch.setattr(jetstream_sources.JetStreamReader, "_messages", counted)
    take_in(make_inbox(things, source=jetstream_source("BANK"), transform=value_of, expired="skip"))
    assert values(things) == [*range(1, 61, 2)]
    assert sorted(asked) == [*range(1, 61)]
    assert row().gone == 30


def test_a_message_of_jetstream_that_can_not_be_read_keeps_its_subject_and_time(things, make_inbox, nats):
    nats.add_stream("BANK", "bank.>")

    async def publish(context):
        await context.publish("bank.in.DE", b"no JSON")

    nats.ask(publish)
    take_in(make_inbox(things, source=jetstream_source("BANK"), transform=value_of))
    [event] = published(things)
    assert event.metadata["subject"] == "bank.in.DE" and event.metadata["sent_at"].startswith("20")


def test_a_worker_that_freezes_while_it_stores_keeps_no_other_one_waiting(things, make_inbox, redis, monkeypatch):
    """The server waits for the rest of its COPY without end."""
    add(redis, 1, 2)
    inbox = make_inbox(things, source=SOURCE, transform=value_of)
    store, stored, goes_on, first = taking_in.store, threading.Event(), threading.Event(), []

    def freezing(using, topic, events):
        answer = store(using, topic, events)
        if not first:
            first.append(threading.current_thread())
            stored.set()
            assert goes_on.wait(60)
        return answer

    def serve():
        try:
            take_in(inbox)
        finally:
            connection.close()

    monkeypatch.setattr(taking_in, "store", freezing)
    frozen = threading.Thread(target=serve)
    frozen.start()
    try:
        assert stored.wait(60)
        assert take_in(inbox) == 2
    finally:
        goes_on.set()
        frozen.join()
    assert values(things) == [1, 2] and row().taken == 2


def test_what_was_read_before_a_pause_is_not_published_after_it(things, make_inbox, redis):
    add(redis, 1)
    paused = []

    def transform(message):
        if not paused:
            paused.append(pause_inbox("things-in"))
            resume_inbox("things-in")
            return Draft(value="of the transform before the pause")
        return value_of(message)

    take_in(make_inbox(things, source=SOURCE, transform=transform))
    assert values(things) == [1]


def test_a_worker_that_rests_for_long_leaves_the_broker_when_it_is_paused(things, make_inbox, redis, monkeypatch):
    monkeypatch.setattr(inbox_worker, "LOOKS_AGAIN", 0.0)

    def wait_long(message):
        raise RetryLater("the bank is closed", after=timedelta(hours=1))

    add(redis, 1)
    inbox = make_inbox(things, source=SOURCE, transform=wait_long)
    with closing(InboxWorker("default", inbox)) as worker, closing(Stop()) as stop:
        worker.connect()
        worker.work(stop)
        assert worker._reader is not None and row().failing_since is not None
        pause_inbox("things-in")
        worker.work(stop)
        assert worker._reader is None
    assert worker.failure == ""


def test_what_an_event_is_refused_for_is_kept_with_the_payload_alone(things, make_inbox, redis, caplog):
    add(redis, 1)
    inbox = make_inbox(
        things, source=SOURCE, transform=lambda message: Draft(value=1, key="IBAN" * 200), on_unreadable="stop"
    )
    take_in(inbox)
    assert "refuses what it becomes" in row().error
    assert "IBAN" not in row().error + caplog.text


def test_a_request_to_stop_is_noticed_between_two_messages(things, make_inbox, redis):
    add(redis, 1, 2, 3)
    with closing(Stop()) as stop:

        def transform(message):
            stop.request()
            return value_of(message)

        with closing(InboxWorker("default", make_inbox(things, source=SOURCE, transform=transform))) as worker:
            worker.connect()
            worker.work(stop)
    assert values(things) == [1]


def test_a_reading_that_was_too_large_makes_the_next_one_smaller(things, make_inbox, redis, monkeypatch):
    monkeypatch.setattr(redis_sources, "BATCH_BYTES", 1_000)
    add(redis, *["x" * 400] * 12)
    read, found = redis_sources.RedisReader.read, []

    def noted(reader, places, most):
        answer = read(reader, places, most)
        found.append(len(answer.messages))
        return answer

    monkeypatch.setattr(redis_sources.RedisReader, "read", noted)
    take_in(make_inbox(things, source=SOURCE, transform=value_of, batch_size=6))
    assert found[:3] == [6, 2, 4]
    assert len(values(things)) == 12
