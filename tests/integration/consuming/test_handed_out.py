"""Events under a token: any process settles them by it, and after a takeover none does."""

import base64
import json
import threading
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction

from django_events import Backoff, Draft, claim, models, publish_many
from django_events.consuming.programs import handed_out
from django_events.consuming.programs.handed_out import ack, extend, hand_out, nack
from django_events.exceptions import Invalid, LeaseLost, Refused, UnknownName
from django_events.models.functions import ClockTimestamp
from tests.support.fix_consumers import dead_letters
from tests.support.fix_queues import another, deliveries, end_pauses, fill_topic, finish, pending, values
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("S2")]

HOUR = timedelta(hours=1)


@pytest.fixture
def queue(things, make_queue):
    made = make_queue(things)
    fill_topic(things, *"abcde")
    return made


def end_lease(token):
    assert models.DeliveryLease.objects.filter(token=token).update(leased_until=ClockTimestamp())


def said_by(capsys, *arguments):
    call_command("events", *arguments, "--format", "json")
    return json.loads(capsys.readouterr().out)


def test_what_is_handed_out_is_settled_by_its_token(queue):
    token, events = hand_out("queue", 3)
    assert [event.value for event in events] == ["a", "b", "c"]
    assert [event.value for event in hand_out("queue", 10).events] == ["d", "e"]
    assert hand_out("queue", 10) == (None, [])

    assert ack(token, [1]) == ([1], [])
    assert ack(token, [1, 2]) == ([2], [1])
    assert ack(token) == ([3], [])
    assert pending(queue) == [4, 5]
    assert models.DeliveryLease.objects.count() == 1  # of d and e
    assert models.Position.objects.get(consumer__name="queue").handled == 3
    with pytest.raises(LeaseLost, match=f"No events are claimed under the token {token}: they were settled, or"):
        ack(token)


def test_an_event_that_is_not_under_the_token_is_left_alone(queue):
    token, _ = hand_out("queue", 2)
    other, _ = hand_out("queue", 2)

    assert ack(token, [3, 99, 1]) == ([1], [3, 99])
    assert pending(queue) == [2, 3, 4, 5]
    assert ack(other) == ([3, 4], [])


def test_a_failed_event_is_tried_again_when_it_is_said(queue):
    token, _ = hand_out("queue", 3)

    assert nack(token, [1]) == ([1], [])
    assert nack(token, [2], after=HOUR, error="421 try later") == ([2], [])
    waiting = {one.event_id: one for one in deliveries(queue)}
    assert (waiting[1].attempts, waiting[2].attempts, waiting[3].attempts) == (1, 1, 0)
    assert waiting[2].error == "Reported: 421 try later"
    assert waiting[2].visible_at - waiting[1].visible_at > HOUR - timedelta(minutes=5)
    assert ack(token, [1, 2, 3]) == ([3], [1, 2])

    again = hand_out("queue", 10)
    assert [(event.value, event.attempt) for event in again.events] == [("a", 2)]
    ack(again.token)


def test_the_last_attempt_that_fails_is_a_dead_letter_with_its_error(things, make_queue):
    queue = make_queue(things, retry=Backoff(attempts=2, base=timedelta(0)))
    fill_topic(things, "a", "b")
    first = hand_out("queue", 1)
    nack(first.token, error="no such address")
    second = hand_out("queue", 1)
    assert second.events[0].attempt == 2
    nack(second.token, error="no such address")

    assert pending(queue) == [2]
    [letter] = dead_letters(queue.subscription.consumer)
    assert (letter.event_id, letter.error, letter.attempts) == (1, "Reported: no such address", 2)


def test_in_order_a_failed_event_gives_back_those_of_its_key(things, make_queue):
    queue = make_queue(things, ordered=True)
    publish_many(things, [Draft(value=value, key=key) for value, key in [("a", "k"), ("b", "other"), ("c", "k")]])
    transfer_all()
    token, events = hand_out("queue", 10)
    assert len(events) == 3

    assert nack(token, [1, 3], after=HOUR) == ([1, 3], [])
    assert {one.event_id: one.attempts for one in deliveries(queue)} == {1: 1, 2: 0, 3: 0}
    assert ack(token) == ([2], [])
    assert hand_out("queue", 10).token is None  # the key waits for its first event
    end_pauses(queue)
    assert values(queue.claim(10)) == ["a", "c"]
    models.DeliveryLease.objects.all().delete()


def test_a_token_whose_lease_was_taken_over_settles_nothing(queue):
    token, _ = hand_out("queue", 3)
    end_lease(token)
    taken = another(queue).claim(10)
    assert taken.lost_token == token

    for settle in (ack, nack, extend):
        with pytest.raises(LeaseLost):
            settle(token)
    assert len(pending(queue)) == 5
    assert values(taken) == ["a", "b", "c"]
    finish(taken)
    assert pending(queue) == [4, 5]


def test_a_token_whose_time_is_over_and_that_has_no_successor_still_settles(queue):
    token, _ = hand_out("queue", 2)
    end_lease(token)

    assert ack(token) == ([1, 2], [])
    assert pending(queue) == [3, 4, 5]


def test_two_processes_with_one_token_settle_each_event_once(queue):
    token, _ = hand_out("queue", 5)
    gate, done = threading.Barrier(2), []

    def settle():
        gate.wait()
        try:
            done.append(ack(token))
        except LeaseLost:
            done.append(None)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=settle) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ([1, 2, 3, 4, 5], []) in done
    assert pending(queue) == []
    assert models.Position.objects.get(consumer__name="queue").handled == 5


def test_a_takeover_between_reading_and_settling_undoes_all_of_it(queue):
    """The process reads what it is to settle, freezes, and wakes up after another worker had its events."""
    token, _ = hand_out("queue", 2)
    held = handed_out._Held(token, None, using="default")
    end_lease(token)
    taken = another(queue).claim(10)
    finish(taken)

    with pytest.raises(LeaseLost):
        held.claimed.ack(*held.events)
    assert models.Position.objects.get(consumer__name="queue").handled <= 2
    assert pending(queue) == [3, 4, 5]


def test_after_a_worker_died_events_come_alone_and_the_others_wait_for_a_careful_worker(queue):
    dead = hand_out("queue", 3)
    end_lease(dead.token)

    first = hand_out("queue", 10)
    assert [(event.value, event.attempt) for event in first.events] == [("a", 1)]
    assert models.Delivery.objects.get(event_id=1).attempts == 1  # counted before it was handed out
    second = hand_out("queue", 10)
    assert [event.value for event in second.events] == ["b"]
    assert ack(first.token) == ([1], [])
    assert ack(second.token) == ([2], [])
    third = hand_out("queue", 10)
    assert [event.value for event in third.events] == ["c"]
    ack(third.token)
    assert [event.value for event in hand_out("queue", 10).events] == ["d", "e"]
    assert models.DeliveryLease.objects.count() == 1


def test_more_time_keeps_the_next_worker_away(queue):
    token, _ = hand_out("queue", 2, lease=timedelta(seconds=1))
    before = models.DeliveryLease.objects.get(token=token).leased_until

    assert extend(token, HOUR) == [1, 2]
    assert models.DeliveryLease.objects.get(token=token).leased_until - before > HOUR - timedelta(minutes=5)
    with pytest.raises(Invalid, match="expected a timedelta from 1 second to 1 day"):
        extend(token, timedelta(days=2))


def test_in_a_transaction_that_rolls_back_nothing_is_settled(queue):
    token, _ = hand_out("queue", 2)
    with pytest.raises(RuntimeError), transaction.atomic():
        ack(token)
        raise RuntimeError("the caller's own")

    assert pending(queue) == [1, 2, 3, 4, 5]
    assert ack(token) == ([1, 2], [])


def test_what_was_rewound_is_left_out(queue):
    token, _ = hand_out("queue", 2)
    models.Delivery.objects.filter(event_id=1).update(token=None)  # as a rewind leaves it

    assert ack(token, [1, 2]) == ([2], [1])


def test_a_claim_waits_for_what_comes(queue, things):
    with claim("queue", 10) as claimed:
        claimed.ack(*claimed)
    come = threading.Event()

    def publish():
        come.wait()
        fill_topic("things", "late")
        connections.close_all()

    publisher = threading.Thread(target=publish)
    publisher.start()
    connection.execute_wrappers.append(_opens(come))  # it has looked once before the event comes
    try:
        with claim("queue", wait=timedelta(minutes=1)) as claimed:
            assert [event.value for event in claimed] == ["late"]
            claimed.ack(*claimed)
    finally:
        connection.execute_wrappers.pop()
        publisher.join()


def _opens(gate):
    def wrapper(execute, statement, parameters, many, context):
        answer = execute(statement, parameters, many, context)
        if "django_events_deliverylease" in statement:
            gate.set()
        return answer

    return wrapper


def test_a_claim_does_not_wait_inside_a_transaction(queue):
    with (
        transaction.atomic(),
        pytest.raises(Refused, match=r"claim\(\) has wait= inside a transaction"),
        claim("queue", wait=HOUR),
    ):
        pass
    with pytest.raises(Invalid, match="expected a timedelta from 0 to 1 day"), claim("queue", wait=timedelta(days=2)):
        pass


def test_a_program_works_on_a_queue_by_commands(queue, things, capsys):
    publish_many(things, [Draft(body=b"\x00\xff", type="raw", metadata={"a": 1})])
    transfer_all()
    data = said_by(capsys, "claim", "queue", "--most", "10", "--lease", "10m", "--worker", "a script")
    assert (data["consumer"], type(data["token"])) == ("queue", str)
    assert [event["value"] for event in data["events"]] == ["a", "b", "c", "d", "e", None]
    assert base64.b64decode(data["events"][5]["body"]) == b"\x00\xff"
    assert data["events"][5]["metadata"] == {"a": 1}
    assert data["events"][0]["address"] == "things/1"
    assert data["events"][0]["attempt"] == 1
    lease = models.DeliveryLease.objects.get()
    assert (lease.holder, str(lease.token)) == ("a script", data["token"])

    token = data["token"]
    assert said_by(capsys, "ack", token, "1", "2", "77") == {"settled": [1, 2], "left_out": [77]}
    assert said_by(capsys, "nack", token, "3", "--after", "5m", "--error", "busy") == {"settled": [3], "left_out": []}
    assert said_by(capsys, "extend", token, "--lease", "1h") == {"left": [4, 5, 6]}
    call_command("events", "ack", token)
    assert capsys.readouterr().out == "3 events settled as handled.\n"
    with pytest.raises(CommandError, match="No events are claimed under the token") as refused:
        call_command("events", "ack", token)
    assert refused.value.returncode == 1
    assert said_by(capsys, "claim", "queue") == {"consumer": "queue", "token": None, "events": []}
    call_command("events", "claim", "queue")
    assert capsys.readouterr().out == "There is nothing to claim.\n"


def test_commands_for_people_show_what_they_have(queue, capsys):
    call_command("events", "claim", "queue", "--most", "2")
    out = capsys.readouterr().out
    token = models.DeliveryLease.objects.get().token
    assert out.startswith(f"things, token {token}\n\n")
    assert '"a"' in out
    call_command("events", "ack", str(token), "1", "9")
    assert "1 event settled as handled. Not under this token (any more), and left alone: 9." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["claim", "unheard-of"], "unheard-of"),
        (["claim", "queue", "--lease", "soon"], "'soon' is no length of time, expected one like 30s, 10m, 2h or 1d."),
        (["claim", "queue", "--lease", "2d"], "expected a timedelta from 1 second to 1 day"),
        (["claim", "queue", "--most", "0"], "0 is too few"),
        (["claim", "queue", "--topic", "others"], "doesn't read topic 'others'"),
        (["ack", "abc"], "'abc' is no id"),
        (["ack", "9223372036854775809"], "No events are claimed under the token"),
        (["nack", "1", "--after", "-5m"], "expected one"),
    ],
)
def test_what_can_t_be_is_refused_with_a_sentence(queue, arguments, said):
    with pytest.raises((CommandError, UnknownName), match=said):
        call_command("events", *arguments)
    assert len(pending(queue)) == 5
    assert not models.DeliveryLease.objects.exists()


def test_a_stream_is_refused(things, make_consumer):
    make_consumer(things, handler=print, name="stream")
    with pytest.raises(Refused, match="is a stream"):
        hand_out("stream")


def test_a_value_that_python_can_t_read_comes_with_its_reason(queue, things, capsys):
    with claim("queue", 10) as claimed:
        claimed.ack(*claimed)
    with connection.cursor() as cursor:
        cursor.execute("SELECT django_events_publish('things', '{\"n\": 1e5000}')")
    transfer_all()

    [event] = said_by(capsys, "claim", "queue")["events"]
    assert event["value"] is None
    assert event["unreadable"]
