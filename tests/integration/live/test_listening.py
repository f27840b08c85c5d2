"""Listeners: every event once and in order, whatever commits late, is slow, is lost or expires; one tailer for all."""

import asyncio
import threading

import pytest
from django.db import connections, transaction

from django_events import Draft, listen, publish, publish_many
from django_events.exceptions import EventExpired, EventsMissing, Invalid, LogReplaced, Refused, UnknownName
from django_events.live import positions, reading, tailing
from django_events.live.feeds import MOST_EVENTS, Stage
from django_events.live.listening import LiveListener
from django_events.maintaining.expiring import expire
from django_events.models import Event, Topic
from django_events.statements import log_table
from tests.support.fix_topics import drop_topics, transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("P7")]

PATIENT = 60.0


def fill(topic, *values, **fields):
    publish_many(topic, [Draft(value=value, **fields) for value in values])
    transfer_all()


def values(listener, count):
    return [event.value for event in taken(listener, count)]


def taken(listener, count):
    events = []
    while len(events) < count:
        event = listener.take(PATIENT)
        assert event is not None, f"after {len(events)} of {count} events nothing came"
        events.append(event)
    return events


def threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("django_events ")}


def no_threads():
    return not threads()


def tailer_of(using="default"):
    return tailing._tailers[using]


def is_tailed(*listeners):
    return all(one.stage is Stage.TAILED for one in listeners)


# Where it begins, and what it gets


def test_it_hears_what_comes_from_now_on(things):
    fill(things, "before")
    with listen(things) as listener:
        assert listener.position == "things/1"
        fill(things, "first", "second")
        first, second = taken(listener, 2)
        assert (first.value, first.address, first.database) == ("first", "things/2", "default")
        assert second.address == listener.position == "things/3"
        assert listener.take(0) is None


def test_it_begins_behind_a_position_or_at_the_beginning(things, lanes):
    fill(things, 1, 2, 3)
    fill(lanes, "a", "b")
    with listen(things, since="things/1") as listener:
        assert values(listener, 2) == [2, 3]
    with listen([things, lanes], since="beginning") as listener:
        assert sorted(map(str, values(listener, 5))) == ["1", "2", "3", "a", "b"]
        assert positions.read(listener.position) == {"things": 3, "lanes": 2}
    with listen(["things", "lanes"], since="lanes/1") as listener:
        assert values(listener, 1) == ["b"]
        fill(things, 4)
        assert values(listener, 1) == [4]
        again = listener.position
    assert again == "things/4,lanes/2"
    with listen([things, lanes], since=again) as listener:
        assert listener.take(0) is None


def test_a_for_loop_closes_what_it_opened(things):
    fill(things, *range(5))
    for event in listen(things, since="beginning"):
        if event.value == 2:
            break
    del event
    wait_until(no_threads, what="the end of the tailer")


def test_a_transaction_that_commits_late_is_heard_in_the_order_of_the_log(things, in_thread):
    published, may_commit = threading.Event(), threading.Event()

    def late():
        with transaction.atomic():
            publish(things, "late")
            published.set()
            assert may_commit.wait(PATIENT)

    with listen(things) as listener:
        committing = in_thread(late)
        assert published.wait(PATIENT)
        fill(things, "early")
        assert values(listener, 1) == ["early"]
        position = listener.position
        may_commit.set()
        committing.result(PATIENT)
        transfer_all()
        assert values(listener, 1) == ["late"]
    with listen(things, since=position) as again:
        assert values(again, 1) == ["late"]


def test_what_one_listener_does_to_a_value_no_other_sees(things):
    with listen(things) as one, listen(things) as other:
        fill(things, {"n": 1})
        [event] = taken(one, 1)
        event.value["n"] = 2
        assert values(other, 1) == [{"n": 1}]


# Filters


@pytest.mark.parametrize("since", [None, "beginning"])
def test_filters_choose(things, since):
    def publish_all():
        publish_many(
            things,
            [
                Draft(value={"n": n}, type=f"order.{'paid' if n % 2 else 'sent'}", key=f"eu.{n % 3}")
                for n in range(1, 10)
            ],
        )
        transfer_all()

    if since:
        publish_all()
    with (
        listen(things, since=since, types=["order.paid"]) as paid,
        listen(things, since=since, types=["order.*"], keys=["*.2"]) as two,
        listen(things, since=since, where="$.n > 7") as large,
        listen(things, since=since, types=["order.sent"], where="$.n > 7") as large_sent,
    ):
        if not since:
            wait_until(lambda: is_tailed(paid, two, large, large_sent), what="the tailer")
            publish_all()
        assert [one["n"] for one in values(paid, 5)] == [1, 3, 5, 7, 9]
        assert [one["n"] for one in values(two, 3)] == [2, 5, 8]
        assert [one["n"] for one in values(large, 2)] == [8, 9]
        assert [one["n"] for one in values(large_sent, 1)] == [8]
        wait_until(lambda: large_sent.position == "things/9", what="what doesn't fit to be passed")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"types": ["order.>.x"]}, "'>' means the rest"),
        ({"since": "things"}, "is no position"),
        ({"since": "things/1,things/2"}, "is no position"),
        ({"since": "others/1"}, "which is not listened to"),
        ({"expired": "no"}, "expected 'raise' or 'skip'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(things, options, said):
    with pytest.raises(Invalid, match=said):
        listen(things, **options)


def test_what_the_database_refuses_is_raised_when_it_is_opened(things):
    for wrong, error in (
        (listen("nothing"), UnknownName),
        (listen(things, where="$.n >"), Invalid),
        (listen(things, since="things/5"), LogReplaced),
    ):
        with pytest.raises(error), wrong:
            pass
        assert wrong.closed
    wait_until(no_threads, what="the end of the tailer")


# One tailer


@pytest.mark.slow
@pytest.mark.requirement("P6")
def test_two_hundred_listeners_cost_as_many_queries_as_one(things, monkeypatch):
    reads = []
    usual = reading.next_events
    monkeypatch.setattr(reading, "next_events", lambda *given: reads.append(given) or usual(*given))
    listeners = [listen(things, types=["a.*"] if n % 2 else None) for n in range(200)]
    for one in listeners:
        one.__enter__()
    try:
        wait_until(lambda: is_tailed(*listeners), what="all with the tailer")
        assert len(threads()) == 3
        wait_until(lambda: tailer_of()._flag is not None and not tailer_of()._named, what="its last look")
        reads.clear()
        for n in range(3):
            fill(things, n, type="a.b")
        assert [values(one, 3) for one in listeners] == [[0, 1, 2]] * 200
        assert len(reads) < 20
    finally:
        for one in listeners:
            one.close()
    assert no_threads()


@pytest.mark.requirement("P6")
def test_events_for_one_listener_are_offered_to_no_other(things, monkeypatch):
    offered = []
    usual = LiveListener.offer
    listeners = [listen(things, keys=[f"{n}.>"] if n % 2 else [f"{n}"]) for n in range(100)]
    for one in listeners:
        one.__enter__()
    try:
        wait_until(lambda: is_tailed(*listeners) and not tailer_of()._joining, what="all with the tailer")
        fill(things, "for none")
        wait_until(lambda: {one.position for one in listeners} == {"things/1"}, what="what is for none to be passed")
        monkeypatch.setattr(LiveListener, "offer", lambda *given: offered.append(given[0]) or usual(*given))
        fill(things, "odd", key="7.1")
        fill(things, "even", key="8")
        assert values(listeners[7], 1) == ["odd"]
        assert values(listeners[8], 1) == ["even"]
        wait_until(lambda: {one.position for one in listeners} == {"things/3"}, what="the others to pass them")
        assert offered == [listeners[7], listeners[8]]
    finally:
        for one in listeners:
            one.close()


def test_no_position_passes_an_event_before_it_is_offered(things, monkeypatch):
    positions_then = []
    usual = LiveListener.offer

    def offer(listener, topic, events, upto):
        positions_then.append((listener.position, [event.id for event in events]))
        return usual(listener, topic, events, upto)

    with listen(things, keys=["a"]) as one, listen(things, keys=["a"], types=["x"]) as other, listen(things) as each:
        wait_until(lambda: is_tailed(one, other, each) and not tailer_of()._joining, what="all with the tailer")
        fill(things, "before")
        wait_until(lambda: one.position == other.position == "things/1" and values(each, 1), what="all to pass it")
        monkeypatch.setattr(LiveListener, "offer", offer)
        fill(things, "now", key="a", type="x")
        assert values(one, 1) == values(other, 1) == values(each, 1) == ["now"]
    assert positions_then == [("things/1", [2])] * 3


def meanwhile(monkeypatch, happens):
    """What happens while the first listener is read for by itself, behind what is read for it."""
    usual, left = reading.next_wanted, [happens]

    def next_wanted(*given):
        found = usual(*given)
        if left:
            left.pop()()
        return found

    monkeypatch.setattr(reading, "next_wanted", next_wanted)


def test_one_that_catches_up_while_the_tailer_reads_on_misses_nothing(things, monkeypatch):
    with listen(things) as first:
        wait_until(lambda: is_tailed(first), what="the tailer")

        def read_on():
            fill(things, "meanwhile")
            wait_until(lambda: first.position == "things/0" and len(first._waiting) == 1, what="the tailer")
            wait_until(lambda: [one.position for one in tailer_of()._followed.values()] == [1], what="its position")

        meanwhile(monkeypatch, read_on)
        with listen(things) as second:
            assert values(second, 1) == ["meanwhile"]
            fill(things, "then")
            assert values(second, 1) == ["then"]
        assert values(first, 2) == ["meanwhile", "then"]


def test_one_that_caught_up_before_a_failover_is_read_for_again(things, monkeypatch):
    """The log of the server that took over may end before what the listener has seen."""
    with listen(things) as first:
        wait_until(lambda: is_tailed(first), what="the tailer")

        def fail_over():
            tailer_of()._losses += 1

        meanwhile(monkeypatch, fail_over)
        left_behind = []
        usual = LiveListener.fall_behind
        monkeypatch.setattr(LiveListener, "fall_behind", lambda one: left_behind.append(one) or usual(one))
        with listen(things) as second:
            wait_until(lambda: left_behind == [second] and is_tailed(second), what="another look")
            fill(things, "then")
            assert values(first, 1) == values(second, 1) == ["then"]


def test_a_gap_before_one_that_catches_up_is_not_of_the_others(make_topic, monkeypatch):
    topic = make_topic(segment_size=100, retention_events=1)
    fill(topic, *range(1, 100))
    with listen(topic) as first:
        wait_until(lambda: is_tailed(first), what="the tailer")

        def expire_some():
            fill(topic, *range(100, 151))
            wait_until(lambda: len(first._waiting) == 51, what="the tailer")
            wait_until(lambda: [one.position for one in tailer_of()._followed.values()] == [150], what="its position")
            assert expire("default", Topic.objects.get(name=topic.name)).segments == 1

        meanwhile(monkeypatch, expire_some)
        left_behind = []
        usual = LiveListener.fall_behind
        monkeypatch.setattr(LiveListener, "fall_behind", lambda one: left_behind.append(one) or usual(one))
        with listen(topic, since="things/98", keys=["x"]) as second:
            with pytest.raises(EventExpired, match="things/100 has expired"):
                second.take(PATIENT)
            wait_until(lambda: is_tailed(second), what="its way back")
        assert left_behind == [second]
        assert values(first, 51) == list(range(100, 151))


@pytest.mark.slow
@pytest.mark.requirement("P6")
def test_a_slow_listener_holds_up_none_and_loses_nothing(things):
    count = MOST_EVENTS * 3
    with listen(things) as slow, listen(things) as quick:
        wait_until(lambda: is_tailed(slow, quick), what="the tailer")
        for start in range(0, count, 100):
            fill(things, *range(start, start + 100))
            assert values(quick, 100) == list(range(start, start + 100))
        assert slow.stage is Stage.BEHIND
        assert len(slow._waiting) == MOST_EVENTS
        assert values(slow, count) == list(range(count))
        wait_until(lambda: is_tailed(slow), what="its return to the tailer")
        fill(things, "last")
        assert values(slow, 1) == values(quick, 1) == ["last"]


def test_a_lost_connection_loses_and_doubles_nothing(things, connect):
    other = connect(autocommit=True)
    with listen(things) as listener:
        wait_until(lambda: is_tailed(listener), what="the tailer")
        mine = connections["default"].connection.info.backend_pid
        for n in range(5):
            fill(things, n)
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid NOT IN (pg_backend_pid(), %s) AND backend_type = 'client backend'",
                [mine],
            )
            fill(things, n + 100)
        assert values(listener, 10) == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]
        assert listener.take(0) is None


# What is gone


def test_one_below_retention_is_told_and_goes_on_behind_it(make_topic):
    topic = make_topic(segment_size=100, retention_events=1)
    fill(topic, *range(1, 151))
    assert expire("default", Topic.objects.get(name=topic.name)).segments == 1

    with listen(topic, since="things/20") as listener:
        with pytest.raises(EventExpired, match="things/21 to things/100 have expired"):
            listener.take(PATIENT)
        assert listener.position == "things/100"
        assert values(listener, 1) == [101]
    with listen(topic, since="things/20", expired="skip") as listener:
        assert values(listener, 50) == list(range(101, 151))
    with listen(topic, since="beginning") as listener:
        assert values(listener, 50) == list(range(101, 151))


def test_a_hole_is_an_error(things):
    fill(things, *range(1, 6))
    with connections["default"].cursor() as cursor:
        log = log_table(Topic.objects.get(name="things").pk)
        cursor.execute(f"ALTER TABLE {log} DISABLE TRIGGER ALL")
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(f"DELETE FROM {log} WHERE id = 3")
        cursor.execute("SET session_replication_role = DEFAULT")
    # It may be found while the listener is opened.
    with pytest.raises(EventsMissing, match="things/3 is missing"), listen(things, since="things/1") as listener:
        taken(listener, 2)


def test_a_topic_that_is_made_anew_is_told(make_topic):
    topic = make_topic("again")
    fill(topic, 1)
    with listen(topic) as listener:
        wait_until(lambda: is_tailed(listener), what="the tailer")
        drop_topics(["again"])
        make_topic("again")
        if tailer := tailing._tailers.get("default"):  # unless it has looked by itself
            with tailer._naming:
                tailer._everywhere = True
            tailer._flag.set()
        with pytest.raises(LogReplaced, match="'again' was removed, or made anew"):
            listener.take(PATIENT)
        assert listener.closed and listener.take(0) is None


# Ends


def test_closing_passes_nothing_that_was_not_taken(things):
    fill(things, 1, 2, 3)
    with listen(things, since="things/0") as listener:
        assert values(listener, 1) == [1]
        wait_until(lambda: len(listener._waiting) == 2, what="the others")
    assert listener.position == "things/1"


def test_closing_wakes_one_that_waits(things, in_thread):
    listener = listen(things)
    with listener:
        waiting = in_thread(listener.take)
        wait_until(lambda: is_tailed(listener), what="the tailer")
        listener.close()
        assert waiting.result(PATIENT) is None
    assert no_threads()


def test_another_process_is_told_to_listen_anew(things):
    listener = listen(things)
    listener._process += 1
    with pytest.raises(Refused, match="made in another process"):
        listener.take(0)


# Async


def test_it_is_an_async_iterator_too(things, in_thread):
    async def hear():
        heard = []
        async with listen(things) as listener:
            filled = in_thread(fill, things, *range(300))
            async for event in listener:
                heard.append(event.value)
                if len(heard) == 300:
                    break
            assert listener.position == "things/300"
            assert await listener.atake(0) is None
        filled.result(PATIENT)
        return heard

    assert asyncio.run(hear()) == list(range(300))
    wait_until(no_threads, what="the end of the tailer")


def test_cancelling_leaves_nothing(things):
    async def hear():
        async for event in listen(things):
            raise AssertionError(event)

    async def main():
        tasks = [asyncio.create_task(hear()) for _ in range(20)]
        while not threads():
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        assert {type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)} == {asyncio.CancelledError}

    asyncio.run(main())
    wait_until(no_threads, what="the end of the tailer")
    assert Event.objects.of(things).count() == 0
