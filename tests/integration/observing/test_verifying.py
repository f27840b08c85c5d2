"""`manage.py events verify`: what is sound is proved, and each offender is named."""

import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_events import Backoff, Draft, declarations, publish_many
from django_events.log.transfer import Transfer
from django_events.models import (
    Consumer,
    DeadLetter,
    Delivery,
    DeliveryLease,
    Event,
    PastDelivery,
    Position,
    Topic,
    TopicHead,
)
from django_events.observing.findings import Finding
from django_events.observing.verifying import deliveries, proving, walking
from django_events.observing.verifying.proving import Verified, verify
from django_events.operating.dead_letters import redrive
from django_events.operating.rewinding import rewind
from django_events.operations import erase
from django_events.statements import log_table
from tests.integration.management.test_events_command import Run, events
from tests.support.fix_consumers import run_once, serve_due, working
from tests.support.fix_queues import fill_topic, finish
from tests.support.fix_topics import transfer_all

__all__ = ["events"]  # a fixture

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X3")]

VERIFICATIONS = 12
ONE_ATTEMPT = Backoff(attempts=1)


def raw(statement: str, *parameters: Any) -> None:
    """As an operator with psql and good intentions."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def log_of(topic: declarations.DeclaredTopic) -> str:
    return log_table(Topic.objects.get(name=topic.name).pk)


def segment_of(topic: declarations.DeclaredTopic, first: int = 1) -> str:
    """Inserting and deleting there goes past the trigger on the whole log."""
    return f"{log_of(topic)}_{first}"


def remove(topic: declarations.DeclaredTopic, *ids: int) -> None:
    raw(f"DELETE FROM {segment_of(topic)} WHERE id = ANY(%s)", list(ids))


def verified(topic: declarations.DeclaredTopic, **options: Any) -> Verified:
    return verify("default", topic=Topic.objects.get(name=topic.name), **options)


def offenders(topic: declarations.DeclaredTopic, **options: Any) -> list[Finding]:
    return list(verified(topic, **options).offenders)


def places(topic: declarations.DeclaredTopic, **options: Any) -> list[tuple[str, str | None, int | None, int | None]]:
    return [
        (one.kind, one.subject.consumer, one.subject.partition, one.subject.id) for one in offenders(topic, **options)
    ]


def sometimes(chance: float) -> Callable[[Any], None]:
    def handle(event: Any) -> None:
        if random.Random(f"{event.id} {event.attempt}").random() < chance:
            raise ValueError("not today")

    return handle


def fill(topic: declarations.DeclaredTopic, number: int, *, keys: int = 7) -> None:
    publish_many(topic, [Draft(value=i, key=str(i % keys) if i % 3 else None, type=f"t{i % 2}") for i in range(number)])
    transfer_all()


# --- what is sound


def test_an_empty_database_is_proved(events: Run) -> None:
    answer = events("verify", "--format", "json")

    assert (answer.code, answer.data["findings"]) == (0, []), answer.out
    assert answer.data["proved"] is True


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, pytest.param(12, marks=pytest.mark.long)])
def test_after_a_chaos_all_is_proved(events: Run, make_topic, make_consumer, make_queue, steps: int) -> None:
    lanes, one = make_topic("lanes", partitions=4, segment_size=300), make_topic("one", segment_size=250)
    streams = [
        make_consumer(lanes, name="stream", handler=sometimes(0.05), retry=ONE_ATTEMPT),
        make_consumer(lanes, one, name="both", handler=sometimes(0.02), retry=ONE_ATTEMPT, types=["t1"]),
        make_consumer(lanes, name="whole", handler=sometimes(0.02), retry=ONE_ATTEMPT, partitioned=False),
    ]
    queues = [
        make_queue(lanes, name="queue", handler=sometimes(0.05), retry=ONE_ATTEMPT, history=timedelta(days=1)),
        make_queue(one, name="ordered", handler=sometimes(0.05), retry=ONE_ATTEMPT, ordered=True, max_pending=50),
    ]
    everybody = [*streams, *(queue.subscription.consumer for queue in queues)]
    dice = random.Random(7)
    for step in range(steps):
        fill(lanes, 130)
        fill(one, 90)
        run_once(*dice.sample(everybody, 2))
        hand = queues[step % 2].claim(5)
        if hand is None:
            rewind(dice.choice(everybody), to=dice.choice(["beginning", "end"]))
        elif step % 3:
            finish(hand)
        else:
            hand.release()
        letters = list(DeadLetter.objects.filter(redrive_at=None, consumer__ordered=False)[:3])
        redrive([letter for letter in letters if letter.key is None])
        found = verify("default")
        assert not list(found.offenders), list(found.offenders)

    answer = events("verify", "--format", "json")
    assert answer.code == 0, answer.out
    [of_lanes] = [row for row in answer.data["topics"] if row["topic"] == "lanes"]
    assert (of_lanes["first_id"], of_lanes["last_id"], of_lanes["events"]) == (1, 130 * steps, 130 * steps)
    assert of_lanes["dead_letters"] == DeadLetter.objects.filter(consumer__topic__name="lanes").count() > 0
    assert "Proved: ids and numbers without a gap" in events("verify").out


def test_ranges_are_walked_as_one_log(lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(lanes, 100)
    monkeypatch.setattr(walking, "AT_ONCE", 7)
    told: list[int] = []

    found = verify("default", on_progress=lambda topic, number: told.append(number) if topic == "lanes" else None)

    assert not found.offenders
    assert (told[0], told[-1], len(told)) == (7, 100, 15)


def test_only_the_last_ones(events: Run, lanes) -> None:
    fill(lanes, 100)
    remove(lanes, 40)

    assert places(lanes, last=50) == []
    assert places(lanes, last=70) == [("gap", None, None, 40)]
    answer = events("verify", "--topic", "lanes", "--last", "50", "--format", "json")
    assert (answer.code, answer.data["events"], answer.data["topics"][0]["first_id"]) == (0, 50, 51)


@pytest.mark.slow
def test_what_retention_removed_is_not_missing(lanes, make_consumer) -> None:
    reader = make_consumer(lanes, handler=print)
    fill(lanes, 100)
    serve_due(reader)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT partition, max(number) FROM {log_of(lanes)} WHERE id <= 30 GROUP BY partition")
        floors = dict(cursor.fetchall())
    remove(lanes, *range(1, 31))
    assert places(lanes)[0] == ("gap", None, None, 1)

    TopicHead.objects.filter(topic__name="lanes").update(
        id_floor=30, number_floors=[floors.get(p, 0) for p in range(4)]
    )
    assert places(lanes) == []
    TopicHead.objects.filter(topic__name="lanes").update(number_floors=[0, 0, 0, 0])
    assert ("floor", None, None, 30) in places(lanes)


@pytest.mark.parametrize("partitions", [1, 4])
def test_what_a_head_says_is_removed_is_there(make_topic, partitions: int) -> None:
    topic = make_topic("things", partitions=partitions)
    fill(topic, 10)
    head = TopicHead.objects.filter(topic__name="things")
    head.update(id_floor=4, number_floors=[4] + [0] * (partitions - 1))

    assert places(topic) == [("floor", None, None, 1)]
    [wrong] = offenders(topic, last=3)
    assert wrong.what == "Its head says that all up to 4 was removed, and 1 to 4 are in the log."
    remove(topic, 1, 2, 3)
    [wrong] = offenders(topic)
    assert wrong.what == "Its head says that all up to 4 was removed, and 4 is in the log."
    remove(topic, 4)
    assert ("floor", None, None, 4) not in places(topic)


def test_the_first_numbers_of_the_last_ones(things) -> None:
    """Of one partition they are the ids."""
    fill(things, 50)
    raw(f"UPDATE {segment_of(things)} SET number = number + 5 WHERE id > 40")

    assert places(things, last=5) == [("number", None, 0, 46)]
    assert places(things) == [("number", None, 0, 41)]


def test_a_log_that_is_empty_has_its_end_in_its_head(things, make_consumer) -> None:
    reader = make_consumer(things, handler=print)
    fill(things, 10)
    serve_due(reader)
    remove(things, *range(1, 11))
    TopicHead.objects.filter(topic__name="things").update(id_floor=10, number_floors=[10])

    assert places(things) == []


def test_retention_while_it_walks(things, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(things, 60)
    monkeypatch.setattr(walking, "AT_ONCE", 10)

    def retention(topic: str, events: int) -> None:
        if topic == "things" and events == 10:
            remove(things, *range(1, 36))
            TopicHead.objects.filter(topic__name="things").update(id_floor=35, number_floors=[35])

    found = verify("default", topic=Topic.objects.get(name="things"), on_progress=retention)

    assert not list(found.offenders)
    assert found.topics[0].events == 10 + 25


# --- the log


@pytest.mark.slow
def test_a_missing_event(events: Run, lanes) -> None:
    fill(lanes, 50)
    remove(lanes, 7, 20, 21, 22)

    assert places(lanes) == [("gap", None, None, 7), ("gap", None, None, 20)]
    answer = events("verify", "--topic", "lanes")
    assert answer.code == 1
    assert "2 OFFENDERS" in answer.out
    assert "gap: lanes/7: 7 is missing." in answer.out
    assert "gap: lanes/20: 20 to 22, 3 events, are missing." in answer.out


def test_a_gap_at_the_border_of_two_ranges(lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(lanes, 50)
    remove(lanes, *range(8, 25))
    monkeypatch.setattr(walking, "AT_ONCE", 7)

    assert places(lanes) == [("gap", None, None, 8)]


def test_wrong_numbers_partitions_and_times(lanes) -> None:
    fill(lanes, 50)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {log_of(lanes)} WHERE partition = 2 ORDER BY id DESC LIMIT 1")
        [(number,)] = cursor.fetchall()
        cursor.execute(f"SELECT id FROM {log_of(lanes)} WHERE partition = 1 ORDER BY id DESC LIMIT 1")
        [(stray,)] = cursor.fetchall()
    raw(f"UPDATE {segment_of(lanes)} SET number = number + 5 WHERE id = %s", number)
    raw(f"UPDATE {segment_of(lanes)} SET partition = 9 WHERE id = %s", stray)
    raw(f"UPDATE {segment_of(lanes)} SET logged_at = logged_at - interval '1 hour' WHERE id = 30")

    assert sorted(places(lanes), key=str) == [
        ("number", None, 2, number),
        ("partition", None, 9, stray),
        ("time", None, Event.objects.at(lanes, 30).partition, 30),
    ]


def test_an_event_too_many(things) -> None:
    fill(things, 10)
    raw(
        f"INSERT INTO {segment_of(things)} (topic_id, id, partition, number, type, metadata, published_at, logged_at) "
        f"SELECT topic_id, 12, partition, 12, type, metadata, published_at, logged_at FROM {segment_of(things)} "
        "WHERE id = 10"
    )

    assert places(things) == [("gap", None, None, 11)]


def test_many_offenders_are_counted(events: Run, things) -> None:
    fill(things, 200)
    remove(things, *range(2, 200, 2))

    answer = events("verify", "--topic", "things", "--format", "json")

    assert (answer.code, len(answer.data["findings"]), answer.data["more"]) == (1, 20, {"gap": 79})
    assert "… and 79 more of the kind gap" in events("verify", "--topic", "things").out


def test_a_key_in_a_partition_of_its_own_is_a_note(events: Run, lanes) -> None:
    fill(lanes, 10)
    with connection.cursor() as cursor:
        cursor.execute("SELECT ((hashtextextended('k', 0) & 9223372036854775807) %% 4)::int", {})
        [(own,)] = cursor.fetchall()
    publish_many(lanes, [Draft(value=1, key="k", partition=(own + 1) % 4)])
    transfer_all()

    answer = events("verify", "--topic", "lanes")

    assert answer.code == 0
    assert "1 event with a key in another partition" in answer.out


# --- tables


@pytest.mark.slow
def test_segments_and_logs(events: Run, make_topic) -> None:
    topic = make_topic("short", segment_size=100)
    fill(topic, 250)
    log = log_of(topic)
    raw(f"ALTER TABLE {log} DETACH PARTITION {log}_101")
    try:
        found = {(one.kind, one.subject.id) for one in offenders(topic)}
        assert found == {("segment", 101), ("gap", 101)}
        assert {one.what for one in offenders(topic) if one.kind == "segment"} == {
            f"No segment for 101 to 200, between {log}_1 and {log}_201.",
            f"The table {log}_101 is not attached to the log, so no reader finds what is in it.",
        }
    finally:
        raw(f"ALTER TABLE {log} ATTACH PARTITION {log}_101 FOR VALUES FROM (101) TO (201)")
    assert places(topic) == []

    raw(f"ALTER TABLE django_events_event DETACH PARTITION {log}")
    answer = events("verify", "--format", "json")
    assert [(one["kind"], one["topic"]) for one in answer.data["findings"]] == [("topic", "short")]
    raw(f"ALTER TABLE django_events_event ATTACH PARTITION {log} FOR VALUES IN ({log.rsplit('_', 1)[1]})")

    TopicHead.objects.filter(topic__name="short").delete()
    assert [(one.kind, one.subject.topic) for one in verify("default").offenders] == [("topic", "short")]


def test_what_is_left_of_topics_and_consumers(events: Run, things, make_queue) -> None:
    make_queue(things)
    fill_topic(things, *range(3))
    Consumer.objects.filter(name="queue").delete()
    raw("INSERT INTO django_events_bufferedevent (topic_id, value) VALUES (99999, '1')")

    answer = events("verify", "--format", "json")

    assert [(one["kind"], one["topic"]) for one in answer.data["findings"]] == [("buffer", "id 99999")]
    [note] = answer.data["notes"]
    assert note.startswith("3 deliveries of a consumer that is gone")


# --- consumers


def test_positions(lanes, make_consumer) -> None:
    reader = make_consumer(lanes, handler=print)
    fill(lanes, 50)
    serve_due(reader)
    mine = Position.objects.filter(consumer__name="reader")
    number = mine.get(partition=1).number
    mine.filter(partition=0).update(position=51)
    mine.filter(partition=1).update(number=number - 1)
    mine.filter(partition=2).delete()
    mine.filter(partition=3).update(partition=7)

    reached = mine.get(partition=7).position
    assert sorted(places(lanes), key=str) == [
        ("position", "reader", 0, 51),
        ("position", "reader", 1, mine.get(partition=1).position),
        ("position", "reader", 2, None),
        ("position", "reader", 3, None),
        ("position", "reader", 7, reached),
    ]
    [wrong] = [one for one in offenders(lanes) if one.subject.partition == 1]
    assert wrong.data["expected"].startswith(f"{number:,}, as the log has it")


def test_deliveries(things, make_queue) -> None:
    queue = make_queue(things)
    fill_topic(things, *range(10))
    hand = queue.claim(2)
    assert hand is not None
    assert places(things) == []
    of = Delivery.objects.filter(consumer_id=queue.subscription.consumer_id)
    consumer_id = queue.subscription.consumer_id
    Delivery.objects.create(consumer_id=consumer_id, event_id=99, received_at="2026-01-01T00:00Z")
    of.filter(event_id=4).update(token=12345)
    of.filter(event_id=5).update(token=hand.token)
    raw(
        "INSERT INTO django_events_deadletter (consumer_id, event_id, partition, number, type, value, metadata, "
        "published_at, logged_at, attempts, error, traceback) "
        "SELECT %s, id, partition, number, type, value, metadata, published_at, "
        f"logged_at, 1, '', '' FROM {log_of(things)} WHERE id = 6",
        consumer_id,
    )
    Consumer.objects.filter(pk=consumer_id).update(filled_until=11)
    found = offenders(things)

    assert sorted((one.kind, one.subject.id, one.what) for one in found) == [
        ("delivery", 4, "A delivery under a lease that doesn't exist."),
        ("delivery", 5, "A delivery under a lease that doesn't name it."),
        ("delivery", 6, "It is a delivery and a dead letter, whose redrive was not asked for."),
        ("delivery", 99, "A delivery of an event that the log doesn't have: its last id is 10."),
        ("filling", 11, "It is filled until 11, beyond the end of the log."),
    ]
    assert {one.subject.consumer for one in found} == {"queue"}
    of.filter(event_id__gt=3).delete()
    Consumer.objects.filter(pk=consumer_id).update(filled_until=0)
    Position.objects.filter(consumer_id=consumer_id).update(position=1, number=1)
    assert places(things) == [("delivery", "queue", None, 1)]
    assert DeliveryLease.objects.filter(consumer_id=consumer_id).count() == 1


@pytest.mark.slow
def test_keys_of_an_ordered_queue(make_topic, make_queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "AT_ONCE", 7)
    lanes = make_topic("lanes", partitions=4, segment_size=100)
    ordered, other = make_queue(lanes, name="ordered", ordered=True), make_queue(lanes, name="other")
    fill(lanes, 120)
    assert places(lanes) == []

    of = Delivery.objects.filter(consumer_id=ordered.subscription.consumer_id)
    of.filter(event_id=20).update(key="another one's")
    of.filter(event_id=60).update(key=None)
    keyless = Event.objects.of(lanes).filter(key=None).order_by("id").last()
    assert keyless is not None and keyless.id > 60
    of.filter(event_id=keyless.id).update(key="a key")
    Delivery.objects.filter(consumer_id=other.subscription.consumer_id, event_id=5).update(key="no matter")
    expected = [("delivery", "ordered", None, event_id) for event_id in (20, 60, keyless.id)]
    assert places(lanes) == expected
    assert places(lanes, last=70) == expected[1:]
    assert offenders(lanes)[0].what == 'A delivery with the key "another one\'s".'
    assert offenders(lanes)[1].what == "A delivery with no key."
    assert offenders(lanes)[2].data["expected"].startswith("One with no key, as its event")


def test_a_key_that_is_being_erased_is_no_offence(lanes, make_queue) -> None:
    ordered = make_queue(lanes, name="ordered", ordered=True)
    fill_topic(lanes, 1, 2, 3, key="a")
    consumer_id = ordered.subscription.consumer_id
    delivery = Delivery.objects.filter(consumer_id=consumer_id, event_id=2)
    erase(lanes, key="a", reason="asked for", forget_key=True)
    assert places(lanes) == []
    delivery.update(key="a")  # interrupted behind the log
    assert places(lanes) == []
    delivery.update(key=None)
    assert places(lanes) == [("delivery", "ordered", None, 2)]


@pytest.mark.slow
def test_what_a_large_hand_names(things, make_queue) -> None:
    queue = make_queue(things)
    fill_topic(things, *range(3_000))
    hand, other = queue.claim(2_000), queue.claim(500)
    assert hand is not None and other is not None
    assert places(things) == []

    of = DeliveryLease.objects.filter(token=hand.token)
    of.update(event_ids=[event_id for event_id in range(1, 2_001) if event_id != 1_234] + [2_001])
    assert places(things) == [("delivery", "queue", None, 1_234)]
    of.update(event_ids={"by": "hand"})
    assert verified(things).offenders.totals["delivery"] == 2_000


def test_dead_letters_and_history(things, make_queue) -> None:
    queue = make_queue(things, history=timedelta(days=1))
    consumer_id = queue.subscription.consumer_id
    fill_topic(things, *range(5))
    for event_id, number in ((3, 4), (9, 9)):
        raw(
            "INSERT INTO django_events_deadletter (consumer_id, event_id, partition, number, type, metadata, "
            "published_at, logged_at, attempts, error, traceback) "
            "VALUES (%s, %s, 0, %s, '', '{}', now(), now(), 1, '', '')",
            consumer_id,
            event_id,
            number,
        )
    Delivery.objects.filter(consumer_id=consumer_id).delete()
    now = "2026-01-01T00:00Z"
    PastDelivery.objects.create(
        consumer_id=consumer_id, event_id=8, received_at=now, first_at=now, last_at=now, processed_at=now, attempts=1,
        delivered=1, outcome="handled", worker="w",
    )  # fmt: skip

    assert sorted(places(things), key=str) == [
        ("dead letter", "queue", 0, 3),  # by its number
        ("dead letter", "queue", 0, 3),  # and its copy
        ("dead letter", "queue", 0, 9),
        ("history", "queue", None, 8),
    ]


def bad(event: Any) -> None:
    raise ValueError("never")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"partitioned": False}])
def test_dead_letters_that_a_stream_has_yet_to_pass(lanes, make_consumer, options: dict[str, Any]) -> None:
    reader = make_consumer(lanes, handler=bad, retry=ONE_ATTEMPT, **options)
    fill(lanes, 40)
    serve_due(reader)
    assert DeadLetter.objects.count() == 40
    assert places(lanes) == []

    position = Position.objects.filter(consumer__name="reader").order_by("number").last()
    assert position is not None
    of_partition = Event.objects.of(lanes).filter(**({"partition": position.partition} if not options else {}))
    first, *others = of_partition.order_by("id")
    Position.objects.filter(pk=position.pk).update(position=first.pk[1], number=1)

    found = verified(lanes).offenders
    assert found.totals["dead letter"] == len(others)
    assert [(one.subject.partition, one.subject.id) for one in found] == [
        (event.partition, event.id) for event in others
    ][:20]
    assert next(iter(found)).what == f"A dead letter ahead of the position {first.id}."


# --- while others work


def test_inside_of_a_transaction_it_is_refused(events: Run, things) -> None:
    with transaction.atomic():
        answer = events("verify")
    assert (answer.code, "can't run inside a transaction" in answer.err) == (2, True)


def test_an_unknown_topic_is_refused(events: Run, things) -> None:
    answer = events("verify", "--topic", "thing")
    assert (answer.code, "things" in answer.err) == (2, True)


def test_no_session_waits_for_it_and_it_waits_for_none(connect, things) -> None:
    """It lets go of the log before it looks at deliveries, and keeps no lock while it walks."""
    fill(things, 10)
    locks: list[int] = []
    other = connect(autocommit=True)

    def look(topic: str, events: int) -> None:
        [(held,)] = other.execute(
            "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass", [log_of(things)]
        ).fetchall()
        locks.append(held)

    verify("default", topic=Topic.objects.get(name="things"), on_progress=look)
    assert locks == [0]


@pytest.mark.long
def test_a_busy_database_has_no_offenders(make_topic, make_consumer, make_queue, in_thread, monkeypatch) -> None:
    monkeypatch.setattr(walking, "AT_ONCE", 500)
    lanes, one = make_topic("lanes", partitions=3, segment_size=400), make_topic("one", segment_size=300)
    stream = make_consumer(lanes, name="stream", handler=sometimes(0.01), retry=Backoff(attempts=2, base=timedelta(0)))
    filtered = make_consumer(lanes, one, name="filtered", handler=sometimes(0.01), retry=ONE_ATTEMPT, types=["t1"])
    queue = make_queue(lanes, name="queue", handler=sometimes(0.02), retry=ONE_ATTEMPT).subscription.consumer
    ordered = make_queue(
        one, name="ordered", handler=sometimes(0.02), retry=ONE_ATTEMPT, ordered=True, history=timedelta(days=1),
        max_pending=100,
    ).subscription.consumer  # fmt: skip
    done = threading.Event()

    def until_done(work: Callable[[], object]) -> None:
        while not done.is_set():
            work()
            done.wait(0.005)

    def publish_some() -> None:
        for topic in (lanes, one):
            publish_many(topic, [Draft(value=i, key=str(i % 5), type=f"t{i % 2}") for i in range(20)])

    mover = Transfer("default")

    def again() -> None:
        redrive(DeadLetter.objects.filter(consumer__name="queue", redrive_at=None)[:5])
        for consumer in (stream, queue):
            rewind(consumer, to="end")
        done.wait(0.05)

    with working(stream, filtered, queue, ordered, threads=4):
        threads = [in_thread(until_done, work) for work in (publish_some, mover.move, again)]
        try:
            for _ in range(VERIFICATIONS):
                found = verify("default")
                assert not list(found.offenders), list(found.offenders)
        finally:
            done.set()
            for thread in threads:
                thread.result()
    transfer_all()
    assert sum(one.events for one in found.topics) > 1_000


@pytest.mark.slow
def test_a_log_that_a_session_locked_is_said(things, connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "TRIES", 1)
    holder = connect()
    holder.execute(f"LOCK TABLE {log_of(things)} IN ACCESS EXCLUSIVE MODE")

    with pytest.raises(OperationalError, match="lock timeout"):
        verified(things)
