"""Compaction: the newest event of each key stays, whatever is read, written, erased or rewound meanwhile."""

from datetime import timedelta

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_events import Backoff, Draft, declarations, models, publish_many
from django_events.consuming.queues.filling import fill_some
from django_events.exceptions import EventExpired, EventsMissing
from django_events.log import compaction, retention, segments
from django_events.log.topics import sync
from django_events.maintaining.expiring import expire
from django_events.maintaining.steps import STEPS
from django_events.models import Event, Topic, TopicHead
from django_events.models.times import first_since
from django_events.observing.verifying.proving import verify
from django_events.operations import erase, lag, pause, redrive, remove_topic, repartition, rewind
from django_events.statements import log_table
from django_events.workers.maintaining import run_steps
from tests.support.fix_consumers import dead_letters, lease_of, position_of, positions, run_once
from tests.support.fix_queues import deliveries, fill_topic, finish, values
from tests.support.fix_topics import transfer_all, wait_for_older_transactions
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("S14")]

DAY = timedelta(days=1)
LOCKS = (
    "SELECT count(*) FROM pg_locks"
    " WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND "
)
REWRITING = LOCKS + "granted AND mode = 'ShareRowExclusiveLock'"
WAITING = LOCKS + "NOT granted AND mode = '{}'"


@pytest.fixture
def make_prices(make_topic):
    """A compacted topic with small segments."""
    return lambda **options: make_topic("things", **{"segment_size": 100, "compact": True, **options})


@pytest.fixture
def prices(make_prices):
    """Of one partition, with 450 updates to 7 keys."""
    topic = make_prices()
    update(topic, 450)
    return topic


@pytest.fixture
def held_up(prices, in_thread, connect):
    """A compaction whose swap waits for a reader: that one's session, one to look by, and what it becomes."""
    reader, looks = connect(), connect(autocommit=True)
    reader.execute(f"SELECT count(*) FROM {log_table(row().pk)}")
    compacting = in_thread(compact, patience=60)
    wait_until(lambda: looks.execute(REWRITING).fetchone()[0] >= 4, what="a compaction at its work")
    return reader, looks, compacting


def update(topic, count, *, keys=7, first=0):
    publish_many(topic, [Draft(value=n, key=str(n % keys)) for n in range(first, first + count)])
    transfer_all()
    wait_for_older_transactions()


def row():
    return Topic.objects.select_related("head").get(name="things")


def compact(**options):
    done = compaction.compact("default", row(), **options)
    return done.segments, done.events, done.kept_for


def compact_at_last():
    """The same as soon as no session of the server's own, like autovacuum's, has an older snapshot."""
    return wait_until(lambda: done if (done := compact())[0] else None, what="a compaction")


def look(session):
    """Begin a transaction with a snapshot. It sees what `update` has published, which has waited for that."""
    session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.execute("SELECT 1")


def ids(topic, upto=None):
    events = Event.objects.since(topic)
    return list((events if upto is None else events.filter(id__lte=upto)).values_list("id", flat=True))


def state(topic):
    return dict(Event.objects.latest(topic).values_list("key", "value"))


def ends(topic):
    """The number of the last event of each partition."""
    newest = Event.objects.of(topic).order_by("partition", "-id").distinct("partition")
    return dict(newest.values_list("partition", "number"))


def fold(events):
    """The newest value of each key, without those that were deleted."""
    found = {}
    for event in events:
        found[event.key] = event.value
    return {key: value for key, value in found.items() if value is not None and key is not None}


def bounds():
    return [(one.first, one.end) for one in segments.segments("default", row().pk)]


def sound():
    return list(verify("default", topic=row()).offenders) == []


def make_older(topic, upto, by=2 * DAY):
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {log_table(row().pk)} SET logged_at = logged_at - %s WHERE id <= %s", [by, upto])


def remove(id):
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {log_table(row().pk)} WHERE id = %s", [id])


# What goes, and what stays


def test_the_newest_event_of_each_key_stays_where_it_was(prices):
    newest = {str(n % 7): n for n in range(443, 450)}
    assert state(prices) == newest
    assert compact() == (4, 393, None)

    kept = list(Event.objects.since(prices).filter(id__lte=400).values_list("id", "number", "key", "value"))
    assert kept == [(n, n, str((n - 1) % 7), n - 1) for n in range(394, 401)]
    assert ids(prices)[7:] == list(range(401, 451))
    assert bounds() == [(1, 401), (401, 501), (501, 601)]
    assert (row().head.compacted_until, row().head.kept_events) == (400, 7)
    assert state(prices) == newest
    assert sound()


def test_it_is_done_again_when_as_many_events_came_as_were_kept(make_prices):
    topic = make_prices()
    update(topic, 350, keys=90)
    assert compact() == (3, 210, None)
    assert compact() == (0, 0, None)
    update(topic, 40, keys=90, first=350)
    assert compact() == (0, 0, None)
    update(topic, 60, keys=90, first=390)
    assert compact() == (2, 100, None)
    assert len(ids(topic, 400)) == 90 == row().head.kept_events
    assert sound()


def test_what_is_kept_is_put_into_segments_that_hold_it(make_prices):
    topic = make_prices()
    update(topic, 950, keys=250)
    assert compact() == (7, 650, None)
    assert bounds()[:4] == [(1, 701), (701, 801), (801, 901), (901, 1001)]
    assert sound()


def test_what_has_no_key_stays(make_prices):
    topic = make_prices()
    publish_many(topic, [Draft(value=n, key="k" if n % 3 else None) for n in range(250)])
    transfer_all()
    compact()
    assert ids(topic, 200) == [n for n in range(1, 201) if n % 3 == 1 or n == 200]
    assert sound()


def test_a_deleted_key_goes_with_its_tombstone_when_that_is_old_enough(make_prices):
    topic = make_prices(tombstones_kept=DAY)
    fill_topic(topic, "a", "b", None, key="gone")
    fill_topic(topic, "c", key="there")
    update(topic, 250)
    assert "gone" not in state(topic)
    assert compact() == (2, 191, None)
    assert Event.objects.timeline(topic, "gone").values_list("id", flat=True).get() == 3
    with pytest.raises(Event.DoesNotExist, match="has no event of this key, or the newest one deletes it"):
        Event.objects.latest(topic, key="gone")

    make_older(topic, 100)
    update(topic, 100)
    assert compact()[0] == 2
    assert not Event.objects.timeline(topic, "gone").exists()
    assert Event.objects.latest(topic, key="there").id == 4
    assert sound()


def test_a_tombstone_stays_while_something_older_of_its_key_does(make_prices):
    """A segment that loses little is not rewritten, so what the tombstone deletes is still there."""
    topic = make_prices(tombstones_kept=timedelta(0))
    fill_topic(topic, *range(100), key="big")
    publish_many(topic, [Draft(value=n, key=f"only-{n}") for n in range(99)])
    fill_topic(topic, "x", key="gone")
    assert bounds()[1] == (101, 201)
    update(topic, 1)
    with connection.cursor() as cursor:  # as if both had been compacted
        cursor.execute("UPDATE django_events_topichead SET compacted_until = 200, kept_events = 101")
    fill_topic(topic, None, key="gone")
    update(topic, 250)

    compact()
    assert "gone" not in state(topic)
    remaining = list(Event.objects.timeline(topic, "gone"))
    assert remaining == [] or remaining[-1].is_tombstone
    assert sound()


def test_an_erased_event_is_a_tombstone(make_prices):
    topic = make_prices(tombstones_kept=timedelta(0))
    fill_topic(topic, "secret", key="customer-7")
    update(topic, 250)
    erase(topic, key="customer-7", reason="asked for")
    assert "customer-7" not in state(topic)
    make_older(topic, 1)
    compact()
    assert not Event.objects.timeline(topic, "customer-7").exists()
    assert sound()


def test_a_body_is_a_payload(make_prices):
    topic = make_prices(tombstones_kept=timedelta(0))
    publish_many(topic, [Draft(body=b"\0", key="bytes"), Draft(value=False, key="no"), Draft(value=[], key="none")])
    update(topic, 250)
    compact()
    assert {"bytes", "no", "none"} <= {event.key for event in Event.objects.latest(topic)}
    assert bytes(Event.objects.latest(topic, key="bytes").body) == b"\0"


def test_payloads_of_all_kinds_and_sizes_are_what_they_were(make_prices):
    topic = make_prices()
    large = {"text": "ä\n\\" * 100_000, "number": 12345678901234567890.5}
    given_values = {"large": large, "text": "a\tb\\N", "list": [1, None, {"a": 1}], "deep": {"a": {"b": None}}}
    publish_many(topic, [Draft(value=value, key=key, metadata={"m": key}) for key, value in given_values.items()])
    publish_many(topic, [Draft(body=bytes(range(256)) * 4_000, key="body")])
    update(topic, 250)
    before = list(Event.objects.latest(topic).order_by("id").values())
    compact()
    assert list(Event.objects.latest(topic).order_by("id").values()) == before


def test_of_several_partitions_the_last_event_of_each_stays(make_prices):
    topic = make_prices(partitions=4)
    update(topic, 450, keys=50)
    ends = dict(
        Event.objects.of(topic).order_by("partition", "-id").distinct("partition").values_list("partition", "number")
    )
    before = state(topic)
    compact()
    assert state(topic) == before
    assert sound()
    update(topic, 50, keys=50, first=450)
    now = dict(
        Event.objects.of(topic).order_by("partition", "-id").distinct("partition").values_list("partition", "number")
    )
    assert sum(now.values()) - sum(ends.values()) == 50
    assert sound()


@pytest.mark.slow
def test_few_keys_need_few_segments_however_long_they_are_updated(make_prices):
    topic = make_prices(segment_size=1_000)
    for turn in range(8):
        update(topic, 1_000, keys=100, first=turn * 1_000)
        compact()
        assert sound()
    assert len(bounds()) <= 5
    assert Event.objects.of(topic).count() <= 2_100


def test_the_last_segment_ends_early_for_it(make_prices, monkeypatch):
    make_prices(segment_size=1_000_000)
    monkeypatch.setattr(compaction, "SMALLEST", 200)
    topic = next(one for one in declarations.registry if one.name == "things")
    update(topic, 150)
    assert compact() == (0, 0, None)
    update(topic, 150, first=150)
    assert compact() == (0, 0, None)  # nothing is behind it yet
    assert bounds()[0] == (1, 301)
    update(topic, 1, first=300)
    assert compact() == (1, 293, None)
    assert len(ids(topic)) == 8


def test_a_segment_of_large_events_ends_earlier(make_prices, monkeypatch):
    topic = make_prices(segment_size=1_000_000)
    monkeypatch.setattr(compaction, "LARGE", 1_000)
    publish_many(topic, [Draft(value="x" * 3_000, key=str(n % 7)) for n in range(110)])
    transfer_all()
    assert compact() == (0, 0, None)
    update(topic, 1)
    assert compact() == (1, 103, None)


# Consumers


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_nothing_goes_that_a_consumer_has_not_passed(prices, make_consumer, mode):
    seen = []
    slow = make_consumer(prices, handler=lambda event: seen.append(event.value), start="beginning", mode=mode)
    pause(slow, reason="a test")
    assert compact() == (0, 0, "reader")
    assert len(ids(prices)) == 450

    models.Consumer.objects.update(paused_at=None)
    run_once(slow)
    assert sorted(seen) == list(range(450))
    assert compact() == (4, 393, None)


def test_what_a_consumer_has_passed_of_a_segment_goes_with_all_of_it(prices, make_consumer):
    reader = make_consumer(prices, handler=print, start="beginning")
    positions(reader).update(position=250, number=250)
    assert compact() == (2, 193, "reader")
    assert ids(prices)[:8] == [*range(194, 201), 201]
    assert row().head.compacted_until == 200
    assert sound()


@pytest.mark.slow
def test_a_dead_letter_keeps_nothing_and_is_redriven_from_its_copy(prices, make_consumer):
    failing = [3]

    def handle(event):
        if event.value in failing:
            raise ValueError

    reader = make_consumer(prices, handler=handle, start="beginning", retry=Backoff(attempts=1))
    run_once(reader)
    compact()
    failing.clear()
    [letter] = dead_letters(reader)
    assert letter.value == 3
    redrive([letter])
    run_once(reader)
    assert dead_letters(reader) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"partitioned": False}, {"types": ["a"]}, {"mode": "queue"}])
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.few(3)
def test_who_begins_at_the_beginning_comes_to_the_same_state(make_prices, make_consumer, partitions, options):
    topic = make_prices(partitions=partitions)
    publish_many(topic, [Draft(value=n, key=str(n % 30), type="a") for n in range(450)])
    transfer_all()
    before = state(topic)
    compact()
    seen = []
    late = make_consumer(topic, handler=seen.append, start="beginning", **options)
    run_once(late)
    assert fold(sorted(seen, key=lambda event: event.id)) == before
    assert len(seen) == Event.objects.of(topic).count()
    assert lag(late) == 0
    assert sound()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_a_rewind_over_what_is_gone_reads_what_is_left(prices, make_consumer, mode):
    seen = []
    reader = make_consumer(prices, handler=lambda event: seen.append(event.id), start="beginning", mode=mode)
    run_once(reader)
    compact()
    for to in (1, 200, 397, 400, 401):
        seen.clear()
        rewind(reader, to=to)
        run_once(reader)
        assert sorted(seen) == [id for id in ids(prices) if id >= to]
        assert sound()


@pytest.mark.slow
def test_a_rewound_consumer_keeps_what_is_behind_it(prices, make_consumer):
    reader = make_consumer(prices, handler=print, start="beginning")
    run_once(reader)
    update(prices, 300, first=450)
    run_once(reader)
    rewind(reader, to=150)
    assert compact() == (1, 93, "reader")
    run_once(reader)
    assert compact()[2] is None


@pytest.mark.parametrize(("partitions", "lost"), [(1, 420), (4, 420)])
def test_above_what_is_compacted_nothing_may_be_missing(make_prices, make_consumer, partitions, lost):
    topic = make_prices(partitions=partitions)
    update(topic, 450, keys=30)
    compact()
    late = make_consumer(topic, handler=print, start="beginning", batch_size=1_000)
    partition = Event.objects.get(topic=row(), id=lost).partition
    remove(lost)
    with pytest.raises(EventsMissing, match="is missing: it is not in the log"):
        lease_of(late, partition).read()
    assert "gap" in {one.kind for one in verify("default", topic=row()).offenders}


@pytest.mark.parametrize("by_function", [False, True])
def test_above_what_is_compacted_nothing_may_be_missing_for_a_queue(make_prices, make_queue, by_function):
    topic = make_prices()
    update(topic, 450, keys=80)
    compact()
    remove(420)
    queue = make_queue(topic, live=False, start="beginning")
    if by_function:
        with pytest.raises(DatabaseError, match="is missing"), connection.cursor() as cursor:
            cursor.execute("SELECT FROM django_events_claim('queue', 1)")
        return
    with pytest.raises(EventsMissing, match="is missing"):
        while fill_some(queue.subscription):
            pass


@pytest.mark.slow
def test_a_consumer_that_has_just_begun_is_where_it_should_be(make_prices, make_consumer):
    topic = make_prices(partitions=4, retention=DAY)
    publish_many(topic, [Draft(value=n, key=str(n * n % 97) if n % 50 else f"once-{n}") for n in range(450)])
    transfer_all()
    compact()
    make_consumer(topic, handler=print, start="beginning")
    assert sound()
    make_older(topic, 400)
    expire("default", row())
    make_consumer(topic, handler=print, start="beginning", name="later")
    assert sound()


# Beside others


def test_a_snapshot_from_before_sees_what_stays(prices, connect):
    """It looked at other tables so far, so it has no lock on the log, and the swap does not wait for it."""
    session = connect()
    look(session)
    compact_at_last()
    there = session.execute(f"SELECT id FROM {log_table(row().pk)} WHERE id <= 400 ORDER BY id").fetchall()
    assert [id for (id,) in there] == list(range(394, 401))
    session.rollback()


def test_what_a_snapshot_does_not_see_is_not_rewritten_while_it_is_open(prices, connect):
    """It would see these events all at once, in the middle of a log that ends before them."""
    session = connect()
    look(session)
    update(prices, 400, first=450)
    assert compact_at_last() == (4, 393, None)
    assert row().head.compacted_until == 400
    seen = session.execute(f"SELECT id FROM {log_table(row().pk)} ORDER BY id").fetchall()
    assert [id for (id,) in seen] == [*range(394, 451)]
    [done] = run_steps("default", [one for one in STEPS if one.name == "compaction"])
    assert done.result["waits_for"] == {"things": f"the snapshot of session {session.info.backend_pid}"}
    session.rollback()
    assert compact() == (5, 400, None)


def test_a_reader_postpones_the_swap_and_loses_nothing(prices, connect):
    session = connect()
    session.execute(f"SELECT count(*) FROM {log_table(row().pk)}")
    before = ids(prices)
    with pytest.raises(OperationalError):
        compact(patience=0)
    assert ids(prices) == before
    assert row().head.compacted_until == 0
    session.rollback()
    assert compact() == (4, 393, None)


@pytest.mark.slow
def test_maintenance_says_whose_lock_it_waits_for(prices, connect):
    session = connect()
    session.execute(f"LOCK TABLE {log_table(row().pk)}_101 IN ROW EXCLUSIVE MODE")
    [done] = run_steps("default", [one for one in STEPS if one.name == "compaction"])
    assert done.result["waits_for"]["things"].startswith(f"a lock of session {session.info.backend_pid}")
    session.rollback()
    [done] = run_steps("default", [one for one in STEPS if one.name == "compaction"])
    assert done.result == {"segments": 4, "events": 393, "bytes": done.result["bytes"], "kept_for": {}, "waits_for": {}}
    assert done.result["bytes"] > 0


@pytest.mark.slow
def test_an_erasure_waits_and_what_it_blanks_is_not_copied(prices, held_up, in_thread):
    session, looks, compacting = held_up
    erasing = in_thread(erase, prices, key="3", reason="asked for")
    waits = WAITING.format("RowExclusiveLock")
    wait_until(lambda: looks.execute(waits).fetchone()[0])
    session.rollback()
    compacting.result()
    erasing.result()
    assert all(event.erased for event in Event.objects.timeline(prices, "3"))
    assert "3" not in state(prices)
    assert sound()


@pytest.mark.slow
def test_two_at_once_do_it_once(held_up):
    session, _, first = held_up
    with pytest.raises(OperationalError):
        compact()
    session.rollback()
    assert first.result() == (4, 393, None)
    assert compact() == (0, 0, None)
    assert sound()


@pytest.mark.slow
def test_what_waits_for_a_compaction_holds_no_lock_that_its_swap_needs(held_up, in_thread, monkeypatch):
    session, looks, first = held_up
    monkeypatch.setitem(compaction.SETTINGS, "lock_timeout", "60s")
    second = in_thread(compact, patience=60)
    waits = "NOT granted AND locktype = 'advisory'"
    wait_until(lambda: looks.execute(LOCKS + waits).fetchone()[0], what="one that waits for the other")
    held = "SELECT count(*) FROM pg_locks WHERE granted AND relation = %s::regclass AND pid IN "
    waiting = f"(SELECT pid FROM pg_locks WHERE {waits})"
    assert looks.execute(held + waiting, [log_table(row().pk)]).fetchone() == (0,)
    session.rollback()
    assert first.result() == (4, 393, None)
    assert second.result() == (0, 0, None)
    assert sound()


@pytest.mark.slow
def test_a_consumer_that_goes_back_meanwhile_keeps_what_it_needs(prices, make_consumer, in_thread, connect):
    reader = make_consumer(prices, handler=print, start="beginning")
    run_once(reader)
    session = connect()
    looks = connect(autocommit=True)
    session.execute(f"SELECT count(*) FROM {log_table(row().pk)}")
    compacting = in_thread(compact, patience=60)
    wait_until(lambda: looks.execute(REWRITING).fetchone()[0] >= 4)
    rewind(reader, to=10)
    session.rollback()
    assert compacting.result() == (0, 0, None)
    assert len(ids(prices)) == 450
    assert position_of(reader).position == 9


@pytest.mark.slow
def test_a_pause_of_retention_holds_it_up(prices):
    retention.pause("default", timedelta(hours=1))
    with pytest.raises(retention.Paused):
        compact()
    assert len(ids(prices)) == 450
    retention.pause("default", None)
    assert compact() == (4, 393, None)


def test_in_a_failed_transaction_nothing_is_left(prices):
    before = bounds()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        compact()
        raise ZeroDivisionError
    assert bounds() == before
    assert len(ids(prices)) == 450


@pytest.mark.slow
def test_an_index_is_built_of_a_segment_that_is_rewritten_meanwhile(prices, in_thread, connect):
    session = connect()
    looks = connect(autocommit=True)
    session.execute(f"SELECT count(*) FROM {log_table(row().pk)}")
    compacting = in_thread(compact, patience=60)
    wait_until(lambda: looks.execute(REWRITING).fetchone()[0] >= 4)
    dividing = in_thread(repartition, prices, 4)
    waits = WAITING.format("ShareUpdateExclusiveLock")
    wait_until(lambda: looks.execute(waits).fetchone()[0])
    session.rollback()
    compacting.result()
    assert dividing.result().after == 4
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass", [f"{log_table(row().pk)}_1"])
        assert cursor.fetchall() == [(3,)]  # the primary key, by key and by partition
    update(prices, 250, first=450)
    assert sound()


def test_what_went_since_it_was_planned_is_left_alone(prices, monkeypatch):
    planned = compaction._groups

    def late(using, topic, *plan):
        groups = planned(using, topic, *plan)
        with retention.writing(using, topic.pk) as now:
            first = segments.segments(using, topic.pk)[0]
            retention.remove(using, now, retention.Outlived(first, first.first, first.end - 1, 0))
        return groups

    monkeypatch.setattr(compaction, "_groups", late)
    assert compact() == (0, 0, None)
    monkeypatch.undo()
    assert compact() == (3, 293, None)
    assert sound()


@pytest.mark.long
def test_an_event_that_can_not_be_sent_keeps_its_segments_only(make_prices):
    topic = make_prices()
    update(topic, 950, keys=250)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {log_table(row().pk)} SET value = (SELECT jsonb_agg(n) FROM (SELECT '1e131000'::numeric AS n"
            " FROM generate_series(1, 9000)) AS large) WHERE id = 660"
        )
    before = Event.objects.of(topic).filter(id__lte=700).count()
    with pytest.raises(DatabaseError):
        compact()
    assert Event.objects.of(topic).filter(id__lte=700).count() == before
    assert compact() == (0, 0, None)  # not due before as many events came again
    assert sound()


def test_the_segment_where_a_log_ends_is_not_rewritten(prices):
    pk = row().pk
    with (
        pytest.raises(DatabaseError, match="has no event behind 600"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT django_events_rewrite_segments(%s, 401, 601)", [pk])
        cursor.execute("SELECT django_events_swap_segments(%s, 401, 601)", [pk])
    assert len(ids(prices)) == 450


@pytest.mark.slow
def test_one_topic_stops_no_other(prices, make_topic, monkeypatch):
    other = make_topic("others", segment_size=100, compact=True)
    update(other, 450)
    steps = [one for one in STEPS if one.name == "compaction"]

    def full(**options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compaction, "SpooledTemporaryFile", full)
    [done] = run_steps("default", steps)
    assert "others: [Errno 28]" in done.error
    assert "things: [Errno 28]" in done.error
    monkeypatch.undo()
    [done] = run_steps("default", steps)
    assert done.result["segments"] == 8


# Reading


def test_an_event_that_is_gone_says_so(prices):
    compact()
    with pytest.raises(EventExpired, match="The event things/7 is compacted: a newer one of its key came after it"):
        Event.objects.at(prices, 7)
    assert Event.objects.at(prices, 400).value == 399


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0, 100, 350, 394, 396, 399, 400, 401, 430, 450])
@pytest.mark.few(3)
def test_times_are_found_over_the_gaps(prices, moment):
    for id in range(10, 451, 10):
        make_older(prices, id, by=timedelta(minutes=1))
    compact()
    times = {event.id: event.logged_at for event in Event.objects.of(prices)}
    at = times.get(moment, min(times.values()) - DAY) if moment else min(times.values()) - DAY
    found = first_since("default", row().pk, at, first=1, end=451)
    assert {id for id, logged in times.items() if logged >= at} == {id for id in times if id >= found}
    assert set(Event.objects.between(prices, at)) == {one for one in Event.objects.of(prices) if one.logged_at >= at}


def test_filters_choose_among_the_newest(make_prices):
    topic = make_prices()
    publish_many(topic, [Draft(value=1, key="a", type="set"), Draft(value=2, key="a", type="gone")])
    publish_many(topic, [Draft(value=3, key="b", type="set"), Draft(value=None, key="c"), Draft(value=5)])
    transfer_all()
    assert list(Event.objects.latest(topic).filter(type="set").values_list("value", flat=True)) == [3]
    assert list(Event.objects.filter(type="set").latest(topic).values_list("value", flat=True)) == [3]
    assert Event.objects.latest(topic, key="b").value == 3
    assert Event.objects.of(topic).latest("id").value == 5
    assert Event.objects.of(topic).latest("-id").value == 1
    with pytest.raises(Event.DoesNotExist):
        Event.objects.latest(topic, key="c")


# Beside other options


def test_retention_drops_what_compaction_left(make_prices):
    topic = make_prices(partitions=4, retention=DAY)
    update(topic, 450, keys=30)
    compact()
    make_older(topic, 400)
    expire("default", row())
    assert TopicHead.objects.get(topic=row()).id_floor == 400
    assert ids(topic) == list(range(401, 451))
    assert sound()
    update(topic, 250, keys=30, first=450)
    compact()
    assert sound()


@pytest.mark.slow
def test_other_partitions_beside_it(make_prices):
    topic = make_prices()
    update(topic, 250, keys=30)
    repartition(topic, 4)
    update(topic, 250, keys=30, first=250)
    before = state(topic)
    compact()
    assert sound()
    repartition(topic, 2)
    update(topic, 450, keys=30, first=500)
    compact()
    assert sound()
    assert state(topic) == before | {str(n % 30): n for n in range(500, 950)}


def test_a_topic_that_has_events_is_compacted_from_then_on(make_topic):
    topic = make_topic("things", segment_size=100)
    update(topic, 450)
    assert compact() == (0, 0, None)
    declarations.registry.discard(topic)
    declared = declarations.topic("things", segment_size=100, compact=True)
    try:
        assert [line for line in sync("default") if "things" in line] == [
            "Topic things: compact False → True.",
            "Topic things: timeline False → True.",
        ]
        assert compact() == (4, 393, None)
        assert sound()
    finally:
        declarations.registry.discard(declared)


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 4])
def test_a_log_that_lost_its_topics_row_goes_on(make_prices, partitions):
    prices = make_prices(partitions=partitions)
    update(prices, 450)
    compact()
    Topic.objects.filter(name="things").delete()
    sync("default")
    assert state(prices) == {str(n % 7): n for n in range(443, 450)}
    assert row().head.compacted_until == 400
    update(prices, 250, first=450)
    compact()
    assert sound()


# Any order


PUBLISHED = st.lists(st.tuples(st.sampled_from(["set", "set", "gone"]), st.integers(0, 130)), min_size=60, max_size=160)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(partitions=st.sampled_from([1, 3]), turns=st.lists(st.tuples(PUBLISHED, st.booleans()), min_size=1, max_size=5))
def test_a_fold_is_what_it_was_whatever_came_in_which_order(make_topic, partitions, turns):
    Topic.objects.filter(name="things").exists() and remove_topic("things", force=True)
    topic = make_topic("things", segment_size=100, compact=True, partitions=partitions, tombstones_kept=timedelta(0))
    told = []
    for published, compacts in turns:
        drafts = [
            Draft(value=None if what == "gone" else [len(told), n], key=str(key))
            for n, (what, key) in enumerate(published)
        ]
        publish_many(topic, drafts)
        transfer_all()
        told += [(draft.key, draft.value) for draft in drafts]
        if compacts:
            compact()
        compacted = row().head.compacted_until
        for until in (compacted, (compacted + len(told)) // 2, len(told)):
            model = {key: value for key, value in dict(told[:until]).items() if value is not None}
            assert fold(Event.objects.since(topic).filter(id__lte=until)) == model
        assert state(topic) == model
    assert sound()


def test_a_queue_that_waits_keeps_what_it_has(prices, make_queue):
    queue = make_queue(prices)
    fill_topic(prices, *range(250), key="new")
    hand = queue.claim(10)
    assert compact()[2] == "queue"
    assert len(values(hand)) == 10
    finish(hand)
    assert deliveries(queue).count() == 690
