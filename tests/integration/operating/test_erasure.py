"""What is erased is nowhere any more, and everything else is as it was."""

import itertools
import json
import os
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone

from django_events import Backoff, Draft, RetryLater, declarations, models, publish, publish_many
from django_events.exceptions import InvalidEvent, Refused
from django_events.log.transfer import Transfer
from django_events.models import Event, Intervention
from django_events.operating.erasing import traces, waiting
from django_events.operating.erasing.erasure import Erasure
from django_events.operations import erase, publish_again, rewind, skip
from django_events.statements import log_table
from tests.support.fix_consumers import dead_letters, run_once, working
from tests.support.fix_queues import another, fail, fill_topic, values
from tests.support.fix_topics import assert_dense, transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

SECRET = "so-secret"  # without digits, which a fingerprint leaves out
KEY = "ada@example.com"
ONLY_ONCE = {"reason": "asked for"}


@pytest.fixture(
    params=[pytest.param(False, marks=pytest.mark.long, id="without timeline"), pytest.param(True, id="with timeline")]
)
def timeline(request):
    return request.param


def tables_with(text):
    """The tables of the database in which some row says this."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        )
        found = []
        for (table,) in cursor.fetchall():
            cursor.execute(f"SELECT FROM {table} AS t WHERE position(%s IN t::text) > 0 LIMIT 1", [text])
            found += [table] if cursor.fetchall() else []
            hexed = text.encode().hex()
            cursor.execute(f"SELECT FROM {table} AS t WHERE position(%s IN t::text) > 0 LIMIT 1", [hexed])
            found += [table] if cursor.fetchall() else []
    return sorted(set(found))


def places(topic):
    return list(
        Event.objects.since(topic).values_list("id", "partition", "number", "type", "published_at", "logged_at")
    )


def plant(topic):
    """Events of the key and of others in every place; returns the ids of the key in the log."""
    drafts = [
        Draft(value={"name": SECRET, "n": n}, key=key, type="order.placed", metadata={"who": SECRET})
        for n in range(4)
        for key in (KEY, "grace")
    ]
    drafts = [
        draft if draft.key == KEY else Draft(value={"name": "hers"}, key="grace", metadata={"who": "her"})
        for draft in drafts
    ]
    publish_many(topic, drafts)
    publish(topic, body=SECRET.encode(), key=KEY)
    transfer_all()
    publish(topic, {"name": SECRET}, key=KEY)
    publish(topic, {"name": SECRET}, key=KEY, publish_at=timezone.now() + timedelta(days=1), dedup_key=KEY)
    row = models.Topic.objects.get(name=topic.name)
    models.StagedEvent.objects.create(
        topic=row, key=KEY, value={"name": SECRET}, attempt="7b2f6e0e-0f3c-4f0a-9d5e-000000000001"
    )


@pytest.fixture
def planted(make_topic, make_queue, make_consumer, timeline):
    topic = make_topic("people", partitions=4, timeline=timeline)

    def fails(event):
        raise ValueError(f"no {event.value or event.body}")

    stream = make_consumer(topic, name="stream", handler=fails, retry=erasure_retry(1))
    make_consumer(topic, name="retrying", handler=fails, retry=erasure_retry(5))
    make_queue(topic, name="dying", handler=fails, retry=erasure_retry(1))
    make_queue(topic, name="waiting", handler=fails, retry=erasure_retry(5), ordered=True, history=timedelta(days=1))
    plant(topic)
    yield topic
    models.StagedEvent.objects.all().delete()
    models.ScheduledEvent.objects.all().delete()
    models.DedupKey.objects.all().delete()
    models.BufferedEvent.objects.filter(topic__name="people").delete()
    assert stream is not None


def erasure_retry(attempts):
    return Backoff(attempts=attempts, base=timedelta(hours=1), cap=timedelta(hours=1))


def let_them_fail():
    run_once(*(declarations.consumers.get(name) for name in ("stream", "retrying", "dying", "waiting")))


@pytest.mark.parametrize("forget_key", [False, True], ids=["key stays", "key goes"])
def test_what_is_erased_is_nowhere_any_more(planted, forget_key):
    let_them_fail()
    waiting = models.Delivery.objects.of("waiting").filter(attempts__gt=0).first()
    skip("waiting", waiting.event_id, reason="a try")
    let_them_fail()
    before = places(planted)
    others = list(Event.objects.since(planted).filter(key="grace").values_list("id", "value", "metadata"))
    found = tables_with(SECRET)
    for name in (
        "bufferedevent",
        "scheduledevent",
        "stagedevent",
        "deadletter",
        "delivery",
        "intervention",
        "position",
    ):
        assert f"django_events_{name}" in found

    erased = erase(planted, key=KEY, forget_key=forget_key, **ONLY_ONCE)

    assert tables_with(SECRET) == []
    assert (tables_with(KEY) == []) is forget_key
    assert (erased.events, erased.buffered, erased.scheduled, erased.staged) == (5, 1, 1, 1)
    assert erased.in_hand == []
    assert places(planted) == before
    assert list(Event.objects.since(planted).filter(key="grace").values_list("id", "value", "metadata")) == others
    publish(planted, {"name": "new"}, key=KEY)
    transfer_all()
    assert_dense(planted)
    of_key = Event.objects.since(planted).filter(key__in=[KEY, erased.new_key or KEY])
    assert [event.erased for event in of_key] == [True] * 6 + [False]
    assert len(set(of_key.values_list("partition", flat=True))) == 1


def test_saying_it_again_changes_nothing(planted):
    let_them_fail()
    erase(planted, key=KEY, **ONLY_ONCE)
    times = list(Event.objects.since(planted).values_list("metadata", flat=True))

    again = erase(planted, key=KEY, **ONLY_ONCE)

    assert again.rows == 0
    assert list(Event.objects.since(planted).values_list("metadata", flat=True)) == times


def test_a_dry_run_counts_and_changes_nothing(planted):
    let_them_fail()
    found = tables_with(SECRET)

    would = erase(planted, key=KEY, dry_run=True, **ONLY_ONCE)
    assert tables_with(SECRET) == found
    assert not Intervention.objects.filter(action="erase").exists()
    done = erase(planted, key=KEY, **ONLY_ONCE)

    assert (would.events, would.buffered, would.scheduled, would.staged) == (5, 1, 1, 1)
    assert would.dead_letters == done.dead_letters > 0


def test_a_dry_run_counts_what_loses_its_key_only(planted, capsys):
    let_them_fail()
    erase(planted, key=KEY, **ONLY_ONCE)

    would = erase(planted, key=KEY, forget_key=True, dry_run=True, **ONLY_ONCE)
    call_command("events", "erase", "people", key=KEY, reason="asked for", forget_key=True, format="json")
    said = json.loads(capsys.readouterr().out)
    done = erase(planted, key=KEY, forget_key=True, **ONLY_ONCE)

    for place in ("events", "buffered", "scheduled", "staged", "dead_letters", "dedup_keys"):
        assert getattr(would, place) == getattr(done, place) == said[place] > 0, place
    assert said["deliveries"] is said["errors"] is None
    assert erase(planted, key=KEY, forget_key=True, dry_run=True, **ONLY_ONCE).rows == 0


def test_the_record_says_who_why_and_how_many_but_not_whose(planted):
    erase(planted, key=KEY, by="ada", reason="asked for")

    row = Intervention.objects.get(action="erase")
    assert (row.by, row.topic, row.consumer) == ("ada", "people", "")
    assert row.details["reason"] == "asked for"
    assert (row.details["events"], row.details["finished"]) == (5, True)
    assert KEY not in json.dumps(row.details)
    assert erase(planted, key=KEY, dry_run=True, **ONLY_ONCE).key == row.details["key"]


def test_single_events_are_erased_by_id(planted):
    let_them_fail()
    ids = list(Event.objects.since(planted).filter(key=KEY).values_list("id", flat=True))

    assert erase(planted, ids=ids[:2], **ONLY_ONCE).events == 2

    of_key = Event.objects.since(planted).filter(key=KEY)
    assert [event.erased for event in of_key] == [True, True, False, False, False]
    letters = models.DeadLetter.objects.filter(event_id__in=ids)
    assert all((letter.event_id in ids[:2]) == letter.erased for letter in letters)


def test_a_handler_tells_an_erased_event_from_a_null(make_topic, make_consumer):
    topic = make_topic("people")
    fill_topic(topic, None, {"name": SECRET}, key=KEY)
    erase(topic, ids=[2], **ONLY_ONCE)
    seen = []
    consumer = make_consumer(
        topic, handler=lambda event: seen.append((event.value, event.body, event.erased, sorted(event.metadata)))
    )
    rewind(consumer, to="beginning")

    run_once(consumer)

    assert seen == [(None, None, False, []), (None, None, True, ["erased"])]


def test_an_erased_event_is_not_published_again(make_topic):
    topic = make_topic("people")
    fill_topic(topic, {"name": SECRET}, key=KEY)
    erase(topic, key=KEY, **ONLY_ONCE)

    with pytest.raises(InvalidEvent, match="was erased"):
        publish_again(topic, 1)


def test_a_dead_letter_of_an_expired_event_is_erased_too(planted):
    let_them_fail()
    with connection.cursor() as cursor:
        row = models.Topic.objects.get(name="people")
        cursor.execute(f"TRUNCATE django_events_event_{row.pk}")

    assert erase(planted, key=KEY, **ONLY_ONCE).dead_letters > 0

    assert "django_events_deadletter" not in tables_with(SECRET)


@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
def test_an_error_about_an_event_that_was_dropped_in_hand_is_erased_too(make_topic, make_queue, ordered):
    topic = make_topic("people")
    queue = make_queue(topic, retry=erasure_retry(5), ordered=ordered)
    fill_topic(topic, {"name": SECRET}, key=KEY)
    hand = queue.claim(1)
    values(hand)
    row = models.Topic.objects.get(name="people")
    models.TopicHead.objects.filter(topic=row).update(id_floor=1, number_floors=[1])
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE django_events_event_{row.pk}")
    fail(hand, hand.events[0], ValueError(SECRET))
    assert tables_with(SECRET)

    assert erase(topic, key=KEY, **ONLY_ONCE).deliveries == 1

    assert tables_with(SECRET) == []
    assert erase(topic, key=KEY, **ONLY_ONCE).rows == 0


def test_what_an_interrupted_unregistering_left_is_erased_too(make_topic, make_queue):
    topic = make_topic("people")
    queue = make_queue(topic, retry=erasure_retry(5), ordered=True)
    fill_topic(topic, {"name": SECRET}, key=KEY)
    hand = queue.claim(1)
    values(hand)
    fail(hand, hand.events[0], ValueError(SECRET))
    models.Consumer.objects.filter(pk=queue.subscription.consumer_id).delete()
    assert "django_events_delivery" in tables_with(SECRET)

    erase(topic, key=KEY, forget_key=True, **ONLY_ONCE)

    assert tables_with(SECRET) == tables_with(KEY) == []


@pytest.mark.slow
def test_who_has_it_in_hand_is_waited_for(make_topic, make_consumer, in_thread, capsys):
    topic = make_topic("people")
    fill_topic(topic, {"name": SECRET}, key=KEY)
    has_it, may_fail = threading.Event(), threading.Event()

    def fails_late(event):
        has_it.set()
        may_fail.wait(60)
        raise ValueError(event.value["name"])

    consumer = make_consumer(topic, handler=fails_late, retry=erasure_retry(1), transactional=False)
    rewind(consumer, to="beginning")
    with working(consumer):
        assert has_it.wait(60)
        held = erase(topic, key=KEY, wait=timedelta(seconds=0.1), **ONLY_ONCE)
        with pytest.raises(SystemExit) as unfinished:
            call_command("events", "erase", "people", key=KEY, reason="asked for", wait=1, execute=True, format="json")
        assert unfinished.value.code == 1
        said = json.loads(capsys.readouterr().out)
        assert (said["executed"], said["finished"], said["in_hand"]) == (True, False, held.in_hand)
        erasing = in_thread(erase, topic, key=KEY, wait=timedelta(seconds=20), **ONLY_ONCE)
        wait_until(lambda: Intervention.objects.filter(action="erase").count() == 3)
        may_fail.set()
        erased = erasing.result(60)
        assert held.in_hand
        assert erased.in_hand == []
        assert dead_letters(consumer)
    assert tables_with(SECRET) == []


@pytest.mark.long
def test_nothing_escapes_between_publishers_transfers_and_workers(make_topic, make_consumer, make_queue, in_thread):
    topic = make_topic("people", partitions=3)
    seen = {"stream": [], "queue": []}

    def note(event):
        seen[event.consumer].append(event.id)
        if event.value and event.id % 7 == 0 and event.attempt < 2:
            raise RetryLater(after=timedelta(0))
        if event.value and event.id % 11 == 0:
            raise ValueError(event.value["name"])

    stream = make_consumer(topic, name="stream", handler=note, transactional=False, retry=erasure_retry(1))
    queue = make_queue(topic, name="queue", handler=note, ordered=True, transactional=False, retry=erasure_retry(1))
    stop, committed = threading.Event(), itertools.count()
    published = []

    def publishing():
        while not stop.is_set():
            publish_many(topic, [Draft(value={"name": SECRET}, key=key) for key in (KEY, "grace", KEY)])
            published.append(next(committed))

    def transferring():
        transfer = Transfer("default")
        while not stop.is_set():
            transfer.move()

    others = [in_thread(publishing), in_thread(transferring), in_thread(transferring)]
    queue_consumer = queue.subscription.consumer
    try:
        with working(stream, queue_consumer, threads=2):
            for _ in range(5):
                reached = len(published) + 10
                wait_until(lambda reached=reached: len(published) >= reached)
                with transaction.atomic():
                    mark = publish(topic, {"name": "mark"}, key=KEY)
                erase(topic, key=KEY, forget_key=True, **ONLY_ONCE)
                assert mark is not None
                left = Event.objects.since(topic).filter(value__name="mark")
                assert not left.exists(), "what was committed before the call was not erased"
                assert not models.BufferedEvent.objects.filter(value__name="mark").exists()
    finally:
        stop.set()
        for other in others:
            other.result(60)
    transfer_all()
    erase(topic, key=KEY, forget_key=True, **ONLY_ONCE)

    assert_dense(topic)
    assert Event.objects.of(topic).count() == 3 * len(published) + 5
    assert not Event.objects.of(topic).filter(key=KEY).exists()
    assert [e for e in Event.objects.of(topic) if e.key != "grace" and not e.erased] == []
    assert tables_with(KEY) == []


def test_no_payload_is_handed_out_before_those_of_its_key_while_keys_go(make_topic, make_queue, monkeypatch):
    topic = make_topic("people")
    queue = make_queue(topic, ordered=True)
    fill_topic(topic, *range(10), key=KEY)
    monkeypatch.setattr(Erasure, "ERASED_AT_ONCE", 4)
    of_events, handed_out = traces.of_events, []

    def worked_meanwhile(*args):
        of_events(*args)
        hands = [hand for hand in (queue.claim(1), another(queue).claim(1)) if hand is not None]
        handed_out.append([value for hand in hands for value in values(hand)])
        for hand in hands:
            hand.release()

    monkeypatch.setattr(traces, "of_events", worked_meanwhile)
    erased = erase(topic, key=KEY, forget_key=True, **ONLY_ONCE)

    assert (erased.events, erased.deliveries) == (10, 10)
    assert [None, None] in handed_out, "two keys at once were never seen"
    assert {value for hands in handed_out for value in hands} == {None}


@pytest.mark.parametrize("forget_key", [False, True], ids=["key stays", "key goes"])
def test_no_transaction_holds_more_of_the_buffer_than_a_batch(make_topic, monkeypatch, forget_key):
    topic = make_topic("people")
    publish_many(topic, [Draft(value=n, key=KEY if n % 2 else "grace") for n in range(40)])
    monkeypatch.setattr(Erasure, "ERASED_AT_ONCE", 3)
    blank, at_once = waiting._blank, []

    def noting(*args):
        rows = blank(*args)
        at_once.append(rows[0][0])
        return rows

    monkeypatch.setattr(waiting, "_blank", noting)
    would = erase(topic, key=KEY, forget_key=forget_key, dry_run=True, **ONLY_ONCE)
    assert would.buffered == 20
    assert erase(topic, key=KEY, forget_key=forget_key, **ONLY_ONCE).buffered == 20

    assert at_once == [3, 3, 3, 3, 3, 3, 2] * (2 if forget_key else 1)
    transfer_all()
    assert [event.erased for event in Event.objects.of(topic)] == [False, True] * 20


class Killed(BaseException):
    """As if the process had ended."""


@pytest.mark.parametrize("step", [*range(1, 12), *range(14, 50, 7)])
@pytest.mark.few(2)
def test_what_was_interrupted_is_finished_by_saying_it_again(planted, monkeypatch, step):
    let_them_fail()
    monkeypatch.setattr(Erasure, "ERASED_AT_ONCE", 2)
    before, steps, count = places(planted), itertools.count(1), Erasure.count

    def killed_in_between(*args):
        if next(steps) == step:
            raise Killed
        return count(*args)

    monkeypatch.setattr(Erasure, "count", killed_in_between)
    with pytest.raises(Killed):
        erase(planted, key=KEY, forget_key=True, **ONLY_ONCE)
    monkeypatch.setattr(Erasure, "count", count)
    assert tables_with(KEY)
    erase(planted, key=KEY, forget_key=True, **ONLY_ONCE)

    assert tables_with(SECRET) == tables_with(KEY) == []
    assert places(planted) == before
    finished = Intervention.objects.filter(action="erase").order_by("pk").values_list("details__finished", flat=True)
    assert list(finished) == [False, True]


@pytest.mark.parametrize(
    "table", ["django_events_bufferedevent", "log", "django_events_delivery", "django_events_deadletter"]
)
@pytest.mark.few(1)
def test_a_process_that_is_killed_while_it_erases_is_finished_by_another_one(planted, connect, table):
    """It waits for a session's lock, on one place after another, when SIGKILL comes."""
    let_them_fail()
    before = places(planted)
    parameters = connection.get_connection_params()
    url = "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**{"password": "", **parameters})
    command = [sys.executable, "testproject/manage.py", "events", "erase", "people", "--key", KEY, "--forget-key"]
    locked = log_table(models.Topic.objects.get(name="people").pk) if table == "log" else table
    other = connect()
    other.execute(f"SELECT FROM {locked} FOR UPDATE")
    started = subprocess.Popen(
        [*command, "--reason", "a test", "--execute"],
        env={**os.environ, "DATABASE_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: waiting_for_locks() or started.poll() is not None, what="an erasure that waits")
        assert started.poll() is None
    finally:
        started.kill()
        started.wait()
        other.rollback()
    assert Intervention.objects.filter(action="erase", details__finished=False).count() == 1
    assert tables_with(SECRET)
    erase(planted, key=KEY, forget_key=True, **ONLY_ONCE)
    assert tables_with(SECRET) == tables_with(KEY) == []
    assert places(planted) == before


def waiting_for_locks():
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchall()


def stopped_at_its_filter(make_topic, make_queue):
    topic = make_topic("people")
    make_queue(topic, name="stopped", where="$.at.datetime() > $.since.datetime()")
    fill_topic(topic, {"at": "2026-01-01T00:00:00+00", "since": "2026-01-01T00:00:00"}, key=KEY)
    return topic, models.Position.objects.get(consumer__name="stopped")


def test_why_a_consumer_is_stopped_is_still_said(make_topic, make_queue):
    topic, position = stopped_at_its_filter(make_topic, make_queue)
    said = position.error
    assert said.startswith("Its filter fails on an event that comes behind people/0. cannot convert")

    assert erase(topic, key="stranger", **ONLY_ONCE).rows == 0
    position.refresh_from_db()
    assert position.error == said

    assert erase(topic, key=KEY, **ONLY_ONCE).errors == 1
    position.refresh_from_db()
    assert position.error == (
        "Its filter fails on an event that comes behind people/0. What the database said about it was erased."
    )
    assert position.stopped_at is not None
    assert erase(topic, key=KEY, **ONLY_ONCE).rows == 0


def test_refusals(planted):
    for wrong in ({}, {"key": KEY, "ids": [1]}, {"ids": [1], "forget_key": True}):
        with pytest.raises(Refused, match="Nothing was changed"):
            erase(planted, **wrong, **ONLY_ONCE)
    with pytest.raises(Refused, match="reason is empty"):
        erase(planted, key=KEY, reason=" ")
    with pytest.raises(Refused, match="small transactions"), transaction.atomic():
        erase(planted, key=KEY, **ONLY_ONCE)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"key": 7}, "key is 7, expected a str"),
        ({"key": "a\0b"}, "key has a NUL"),
        ({"key": KEY, "reason": "a\0b"}, "reason has a NUL"),
        ({"key": KEY, "by": "a\0b"}, "by has a NUL"),
        ({"ids": ["1"]}, "'1' is no id"),
        ({"ids": [0]}, "0 is no id"),
        ({"ids": [77]}, "no event people/77: the log ends at 9"),
        ({"ids": [1, 10**20]}, "no event people/100000000000000000000"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_recorded(planted, wrong, said):
    with pytest.raises(Refused, match=said):
        erase(planted, **{**ONLY_ONCE, **wrong})
    assert not Intervention.objects.filter(action="erase").exists()


def test_the_command_tells_first_and_does_it_then(planted, capsys):
    let_them_fail()
    call_command("events", "erase", "people", key=KEY, reason="asked for")
    assert "Nothing was changed" in capsys.readouterr().out
    assert tables_with(SECRET)

    call_command("events", "erase", "people", key=KEY, reason="asked for", execute=True, forget_key=True)
    out = capsys.readouterr().out
    assert "VACUUM" in out
    assert KEY not in out
    assert tables_with(SECRET) == []
    call_command("events", "peek", "people", at=1)
    assert "(erased)" in capsys.readouterr().out
    call_command("events", "erase", "people", key=KEY, reason="asked for", execute=True)
    assert "nothing to erase" in capsys.readouterr().out
    with pytest.raises(CommandError, match="either --key or --id"):
        call_command("events", "erase", "people", reason="asked for")


def test_a_key_keeps_its_pseudonym_if_it_was_erased_while_the_secret_of_that_time_is_a_fallback(make_topic, settings):
    topic = make_topic("people")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "of last year", []
    publish(topic, 1, key=KEY)
    first = erase(topic, key=KEY, forget_key=True, **ONLY_ONCE)

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "of this year", ["of last year"]
    publish(topic, 2, key=KEY)
    rotated = erase(topic, key=KEY, forget_key=True, **ONLY_ONCE)
    another = erase(topic, key="grace", forget_key=True, **ONLY_ONCE)
    settings.SECRET_KEY_FALLBACKS = []
    later = erase(topic, key=KEY, forget_key=True, **ONLY_ONCE)

    assert rotated.new_key == first.new_key
    assert later.new_key == first.new_key
    assert rotated.key == later.key != first.key, "records name it by the newest secret"
    assert another.new_key != first.new_key
    numbers = dict(Intervention.objects.filter(action="erase").values_list("details__new_key", "pk"))
    assert len(numbers) == 2
    assert erase(topic, key="grace", forget_key=True, **ONLY_ONCE).new_key == another.new_key
