"""Values that PostgreSQL takes, and readers can't: the culprit alone pays, and all others go on."""

import json
import re
from contextlib import contextmanager

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction

from django_events import models
from django_events.consuming import reading
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import log_failure
from django_events.consuming.queues.claimed_deliveries import ClaimedDeliveries
from django_events.consuming.queues.server import QueueServer, serve_deliveries
from django_events.consuming.streams import leased_partitions
from django_events.consuming.streams.leased_partitions import LeasedPartition
from django_events.exceptions import EventsMissing
from django_events.operating.dead_letters import redrive
from django_events.operations import skip
from django_events.statements import log_table
from tests.support import worst_values
from tests.support.fix_consumers import exhaust, position_of, run_once
from tests.support.fix_queues import AT_ONCE, deliveries
from tests.support.fix_queues import pending as pending_of
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

UNREADABLE = {**worst_values.EXPANDING, **worst_values.UNDECODED}


def insert(topic, *values, column="value"):
    """Put payloads into the buffer by plain SQL, which nothing of ours can refuse, and have them moved."""
    with connection.cursor() as cursor:
        for value in values:
            cursor.execute(
                f"INSERT INTO django_events_bufferedevent (topic_id, {column}) "
                f"SELECT id, {value} FROM django_events_topic WHERE name = %s",
                [topic.name],
            )
    transfer_all()


def dead_letters(consumer):
    found = models.DeadLetter.objects.filter(consumer__name=consumer.name).order_by("event_id")
    return list(found.defer("value", "metadata"))


def among_others(culprits):
    """A good value between all culprits, and at both ends."""
    values = ["'0'::jsonb"]
    for place, culprit in enumerate(culprits, 1):
        values += [culprit, f"'{place}'::jsonb"]
    return values


class Noted:
    """A handler that decodes what it gets, and notes what could be decoded."""

    def __init__(self):
        self.seen = []
        self.sizes = []

    def __call__(self, given):
        events = given if isinstance(given, list) else [given]
        values = [len(event.body) if event.body is not None else event.value for event in events]
        self.seen += values
        self.sizes.append(len(values))


@pytest.mark.slow
@pytest.mark.requirement("D4")
@pytest.mark.parametrize("batch_size", [None, 100])
def test_a_stream_goes_on_with_all_but_what_can_not_be_read(things, make_consumer, batch_size):
    handler = Noted()
    reader = make_consumer(things, handler=handler, retry=AT_ONCE, batch_size=batch_size)
    insert(things, *among_others(UNREADABLE.values()))
    exhaust(reader)

    assert sorted(set(handler.seen)) == list(range(len(UNREADABLE) + 1))
    dead = dead_letters(reader)
    assert [letter.event_id for letter in dead] == [2, 4, 6, 8, 10, 12, 14]
    assert [letter.attempts for letter in dead] == [1, 1, 1, 1, 3, 3, 3]
    assert position_of(reader).position == 2 * len(UNREADABLE) + 1
    assert dead[0].error.startswith(f"UnreadableEvent: The payload of event {things.name}/2, ")


@pytest.mark.slow
@pytest.mark.requirement("D4")
def test_a_queue_goes_on_with_all_but_what_can_not_be_read(things, make_queue):
    handler = Noted()
    queue = make_queue(things, handler=handler)
    insert(things, *among_others(UNREADABLE.values()))
    serve_queue(queue)

    assert sorted(set(handler.seen)) == list(range(len(UNREADABLE) + 1))
    assert pending_of(queue) == []
    dead = dead_letters(queue.subscription.consumer)
    assert [letter.event_id for letter in dead] == [2, 4, 6, 8, 10, 12, 14]
    assert [letter.attempts for letter in dead] == [1, 1, 1, 1, 3, 3, 3]


DEEP = "(repeat('[', 4000) || repeat(']', 4000))::jsonb"


@contextmanager
def shallow_stack():
    """The server can't look through what is nested as deep as DEEP: reading it fails, like any error of data."""
    with connection.cursor() as cursor:
        cursor.execute("SET max_stack_depth = '250kB'")
        try:
            yield
        finally:
            cursor.execute("RESET max_stack_depth")


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("batch_size", [None, 100])
def test_a_stream_handles_all_but_those_on_which_a_read_fails(things, make_consumer, batch_size):
    handler = Noted()
    reader = make_consumer(things, handler=handler, retry=AT_ONCE, batch_size=batch_size)
    insert(things, *among_others([DEEP, DEEP]))
    with shallow_stack():
        exhaust(reader)

        assert sorted(set(handler.seen)) == [0, 1, 2]
        assert [letter.event_id for letter in dead_letters(reader)] == [2, 4]
        assert position_of(reader).position == 5

        redrive(models.DeadLetter.objects.filter(consumer__name="reader"))
        exhaust(reader)
        assert [letter.redrive_at for letter in dead_letters(reader)] == [None, None]  # each had its try


@pytest.mark.requirement("D4")
def test_a_queue_handles_all_but_those_on_which_a_read_fails(things, make_queue):
    handler = Noted()
    queue = make_queue(things, handler=handler)
    insert(things, *among_others([DEEP, DEEP]))
    server, handling = QueueServer(queue), BoundHandler(queue.subscription.consumer)
    with shallow_stack():
        while hand := server.claim():
            server.serve(hand, handling, on_failure=log_failure(hand))

    assert pending_of(queue) == []
    assert sorted(set(handler.seen)) == [0, 1, 2]
    assert [letter.event_id for letter in dead_letters(queue.subscription.consumer)] == [2, 4]


def serve_queue(queue):
    """A whole worker, until no delivery is left."""
    for _ in range(20):
        run_once(queue.subscription.consumer)
        if not deliveries(queue).exists():
            return
    raise AssertionError(f"deliveries are left: {pending_of(queue)}")


@pytest.mark.slow
@pytest.mark.requirement("D5")
def test_the_culprit_is_shown_as_a_sentence_and_its_neighbours_as_they_are(things, capsys):
    insert(things, *among_others(worst_values.ALL.values()))
    number = 2 * len(worst_values.ALL) + 1
    call_command("events", "peek", things.name, "--limit", "100", "--format", "json")
    events = {event["id"]: event for event in json.loads(capsys.readouterr().out)}
    call_command("events", "peek", things.name, "--limit", "100")
    text = capsys.readouterr().out

    assert len(events) == number
    assert [events[id]["value"] for id in range(1, number + 1, 2)] == list(range(number // 2 + 1))
    names = dict(zip(worst_values.ALL, range(2, number, 2), strict=True))
    unreadable = {name: events[id]["unreadable"] for name, id in names.items() if events[id]["unreadable"]}
    assert set(unreadable) == set(UNREADABLE)
    assert "(It has numbers of more than 4,300 digits" in text
    assert re.search(r"\(Python can't read these [0-9,]+ characters of JSON", text)
    for name, id in names.items():
        call_command("events", "peek", things.name, "--at", str(id))
        assert (name in UNREADABLE) == (
            "can't read these" in (out := capsys.readouterr().out) or "4,300 digits, or" in out
        )


@pytest.mark.requirement("D5")
def test_the_refusal_of_many_decimals_names_them(things):
    value = worst_values.EXPANDING["zeros with 16,383 decimals"]
    with (
        pytest.raises(DatabaseError, match="or 900 decimals, or is nested") as refused,
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT django_events_checked({value})")

    assert refused.value.__cause__.sqlstate == "DE003"


@pytest.mark.requirement("D5")
def test_what_is_scheduled_is_shown_whatever_is_in_it(things, capsys):
    with connection.cursor() as cursor:
        for value in UNREADABLE.values():
            cursor.execute(
                "INSERT INTO django_events_scheduledevent (topic_id, publish_at, value) "
                f"SELECT id, now() + '1 day', {value} FROM django_events_topic WHERE name = %s",
                [things.name],
            )
    try:
        call_command("events", "scheduled", things.name, "--format", "json")
        found = json.loads(capsys.readouterr().out)
        call_command("events", "scheduled", things.name)
    finally:
        models.ScheduledEvent.objects.filter(topic__name=things.name).delete()

    assert len(found) == len(UNREADABLE)
    assert all(event["unreadable"] and event["value"] is None for event in found)


@pytest.mark.slow
@pytest.mark.requirement("D5")
def test_dead_letters_are_shown_whatever_is_in_them(things, make_consumer, capsys):
    reader = make_consumer(things, handler=Noted(), retry=AT_ONCE)
    insert(things, *UNREADABLE.values())
    exhaust(reader)
    for place in range(len(UNREADABLE)):
        call_command("events", "dead-letters", "reader", "--show", f"{things.name}/{place + 1}", "--format", "json")
        letter = json.loads(capsys.readouterr().out)
        assert letter["value"] is None
        assert letter["unreadable"]
        call_command("events", "dead-letters", "reader", "--show", f"{things.name}/{place + 1}")
        assert "digits" in (text := capsys.readouterr().out) or "Python can't read" in text


@pytest.mark.requirement("D4")
def test_a_read_takes_no_more_into_memory_than_the_settings_say(things, make_consumer, make_queue, settings):
    """1,000 bytes each, 10,000 together: and one that is larger than all of that comes by itself."""
    settings.DJANGO_EVENTS = {"MAX_BATCH_BYTES": 10_000}
    handler, queued = Noted(), Noted()
    reader = make_consumer(things, handler=handler, batch_size=50)
    queue = make_queue(things, handler=queued, batch_size=50)
    body = "convert_to(repeat('x', 996), 'UTF8')"
    large = "convert_to(repeat('x', 20000), 'UTF8')"
    insert(things, *[body] * 25, large, *[body] * 4, column="body")
    exhaust(reader)
    serve_queue(queue)

    assert handler.seen == [996] * 25 + [20_000] + [996] * 4
    assert handler.sizes[:2] == [9, 9]  # metadata counts as well
    assert max(queued.sizes) <= 9
    assert sorted(queued.seen) == sorted(handler.seen)
    assert not models.DeadLetter.objects.filter(consumer__name__in=["reader", "queue"]).exists()


@pytest.mark.requirement("D4")
def test_an_unreadable_event_can_be_skipped(things, make_consumer, make_queue):
    stopped = make_consumer(things, handler=Noted(), on_exhausted="stop")
    queue = make_queue(things, handler=Noted())
    insert(things, "'1'::jsonb", UNREADABLE["numbers of 131,001 digits"], "'2'::jsonb")
    exhaust(stopped)
    assert position_of(stopped).stopped_at is not None
    skip("reader", 2, reason="a test")
    skip("queue", 2, reason="a test")
    exhaust(stopped)
    serve_queue(queue)

    assert position_of(stopped).position == 3
    assert [letter.event_id for letter in dead_letters(stopped)] == [2]
    assert [letter.event_id for letter in dead_letters(queue.subscription.consumer)] == [2]


def remove(topic, condition):
    """Delete events by hand, as the owner of the tables can."""
    log = log_table(models.Topic.objects.get(name=topic.name).pk)
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {log} WHERE {condition}")


LARGE = "to_jsonb(repeat('x', 5000))"


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize(
    ("gone", "first"), [("id = 1", 1), ("id IN (2, 3)", 2), ("id > 5 AND id < 8", 6), ("id IN (3, 6)", 3)]
)
def test_a_stream_says_what_is_missing_in_the_middle_of_its_log(things, make_consumer, batch_size, gone, first):
    handler = Noted()
    reader = make_consumer(things, handler=handler, batch_size=batch_size)
    insert(things, *[f"'{n}'::jsonb" for n in range(1, 9)])
    remove(things, gone)
    with pytest.raises(EventsMissing, match=f"Event things/{first} is missing"):
        exhaust(reader)

    assert all(value < first for value in handler.seen)
    assert position_of(reader).position < first


@pytest.mark.requirement("D4")
def test_a_read_that_leaves_an_event_out_passes_nothing(things, make_consumer, monkeypatch):
    """A read without an answer is not the end of the log: that would be to pass over what it has."""
    handler = Noted()
    reader = make_consumer(things, handler=handler)
    insert(things, "'1'::jsonb", "'2'::jsonb", "'3'::jsonb")
    with monkeypatch.context() as patched:
        patched.setattr(leased_partitions, "bounded", lambda *args, **options: reading.Rows([], None))
        with pytest.raises(EventsMissing, match="The log has event things/1, and a read left it out"):
            exhaust(reader)

    assert (position_of(reader).position, position_of(reader).stopped_at) == (0, None)
    exhaust(reader)
    assert handler.seen == [1, 2, 3]


@pytest.mark.requirement("D4")
def test_a_read_of_one_after_a_failure_finds_the_one_that_is_there(things, make_consumer, monkeypatch):
    reader = make_consumer(things, handler=Noted(), types=["", "a"])
    insert(things, "'1'::jsonb", DEEP)
    true = leased_partitions.bounded

    def bounded(*args, most_bytes=None, **options):
        return (
            reading.Rows([], None) if most_bytes == reading.NOTHING else true(*args, most_bytes=most_bytes, **options)
        )

    with monkeypatch.context() as patched, shallow_stack():
        patched.setattr(leased_partitions, "bounded", bounded)
        with pytest.raises(EventsMissing, match="The log has event things/2, and a read left it out"):
            exhaust(reader)

    assert (position_of(reader).position, position_of(reader).stopped_at) == (0, None)


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_an_event_that_vanishes_before_its_payload_is_read_is_not_called_unreadable(
    things, make_consumer, make_queue, settings, monkeypatch, mode, dropped
):
    """If retention dropped it, that is said. If not, it is missing, and nothing may pass over it."""
    settings.DJANGO_EVENTS = {"MAX_BATCH_BYTES": 1_000}
    handler = Noted()
    queue = make_queue(things, handler=handler, retry=AT_ONCE) if mode == "queue" else None
    reader = queue.subscription.consumer if queue else make_consumer(things, handler=handler, retry=AT_ONCE)
    insert(things, "'1'::jsonb", LARGE, "'3'::jsonb")
    kind = ClaimedDeliveries if queue else LeasedPartition
    true = kind.load

    def load(held, event):
        remove(things, f"id = {event.id}")
        if dropped:
            models.TopicHead.objects.filter(topic__name=things.name).update(id_floor=event.id)
        return true(held, event)

    monkeypatch.setattr(kind, "load", load)
    if not dropped:
        with pytest.raises(EventsMissing, match="Event things/2 is missing"):
            if queue:
                claimed = queue.claim(10)
                serve_deliveries(claimed, BoundHandler(reader), on_failure=log_failure(claimed))
            else:
                exhaust(reader)
        assert not models.DeadLetter.objects.filter(consumer__name=reader.name).exists()
        return
    if queue:
        serve_queue(queue)
    else:
        exhaust(reader)

    assert sorted(handler.seen) == [1, 3]
    [letter] = models.DeadLetter.objects.filter(consumer__name=reader.name)
    assert letter.error.startswith("UnreadableEvent: Event things/2 is not there any more: it was removed before its")
