"""Programs in other languages claim and settle events by SQL functions alone: the same as Python's claim()."""

import contextlib
import threading
from datetime import timedelta

import psycopg
import pytest
from django.db import connection, transaction

from django_events import Backoff, Draft, claim, models, publish_many
from django_events.consuming.programs.handed_out import ack, hand_out, nack
from django_events.consuming.programs.worker_functions import created
from django_events.exceptions import EventsMissing
from django_events.maintaining.queues import serve_queues
from django_events.migrations._worker_functions import CREATE_WORKER_FUNCTIONS
from django_events.models.functions import ClockTimestamp
from tests.support.fix_consumers import dead_letters, run_once
from tests.support.fix_database import WAITS_FOR_A_LOCK
from tests.support.fix_queues import another, deliveries, end_pauses, expire, fill_topic, pending, values
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until
from tests.support.worst_values import EXPANDING

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("S2")]

HOUR = timedelta(hours=1)
TIMEOUT = 60  # seconds, for what ends much sooner


class Program:
    """A program without Django: a session of its own, and four functions."""

    def __init__(self, **options):
        parameters = connection.get_connection_params()
        known = {k: parameters[k] for k in ("host", "port", "user", "password", "dbname") if parameters.get(k)}
        self.session = psycopg.connect(**known, **{"autocommit": True, **options})

    def claim(self, consumer="queue", most=1, **options):
        """The token, and the events as they come: id, attempt and value."""
        given = "".join(f", {name} => %({name})s" for name in options)
        rows = self.session.execute(
            f"SELECT token, id, attempt, value FROM django_events_claim(%(consumer)s, %(most)s{given})",
            {"consumer": consumer, "most": most, **options},
        ).fetchall()
        return (rows[0][0] if rows else None), [row[1:] for row in rows]

    def call(self, name, *arguments):
        marks = ", ".join(["%s"] * len(arguments))
        return self.session.execute(f"SELECT django_events_{name}({marks})", arguments).fetchone()[0]

    def ack(self, token, ids=None):
        return self.call("ack", token, ids)

    def nack(self, token, ids=None, delay=None, error=""):
        return self.call("nack", token, ids, delay, error)

    def extend(self, token, lease=None):
        return self.call("extend", token, lease)


@pytest.fixture
def program():
    made = []

    def make(**options):
        made.append(Program(**options))
        return made[-1]

    yield make
    for one in made:
        one.session.close()


@pytest.fixture
def queue(things, make_queue):
    made = make_queue(things)
    fill_topic(things, *"abcde")
    return made


def end_lease(token):
    assert models.DeliveryLease.objects.filter(token=token).update(leased_until=ClockTimestamp())


def test_the_functions_are_made_of_the_statements_of_pythons_workers():
    assert CREATE_WORKER_FUNCTIONS.strip() == created()


def test_events_are_claimed_and_settled(queue, program):
    one, other = program(), program()

    token, events = one.claim(most=3)
    assert events == [(1, 1, "a"), (2, 1, "b"), (3, 1, "c")]
    assert other.claim(most=10)[1] == [(4, 1, "d"), (5, 1, "e")]
    assert one.claim() == (None, [])

    assert other.ack(token, [1]) == [1]
    assert one.ack(token, [1, 2, 99]) == [2]
    assert one.ack(token) == [3]
    assert pending(queue) == [4, 5]
    assert models.Position.objects.get(consumer__name="queue").handled == 3
    with pytest.raises(psycopg.Error, match=f"No events are claimed under the token {token}") as lost:
        one.ack(token)
    assert lost.value.sqlstate == "DE004"


def test_an_event_comes_with_all_that_it_says(things, make_queue, program):
    make_queue(things)
    publish_many(things, [Draft(body=b"\x00\xff", type="raw", key="k", metadata={"a": 1})])
    transfer_all()
    rows = program().session.execute("SELECT * FROM django_events_claim('queue', worker => 'a shop in Go')")
    assert [column.name for column in rows.description] == [
        "token", "topic", "id", "attempt", "type", "key", "value", "body", "metadata", "published_at", "logged_at",
    ]  # fmt: skip
    event = models.Event.objects.at("things", 1)
    [row] = rows.fetchall()
    assert row[1:] == (
        "things", 1, 1, "raw", "k", None, b"\x00\xff", {"a": 1}, event.published_at, event.logged_at,
    )  # fmt: skip
    assert models.DeliveryLease.objects.get().holder == "a shop in Go"


def test_a_failed_event_is_tried_again_when_it_is_said(queue, program):
    worker = program()
    token, _ = worker.claim(most=3)

    assert worker.nack(token, [1]) == [1]
    assert worker.nack(token, [2], HOUR, "421 try later") == [2]
    waiting = {one.event_id: one for one in deliveries(queue)}
    assert (waiting[1].attempts, waiting[2].attempts, waiting[3].attempts) == (1, 1, 0)
    assert waiting[2].error == "Reported: 421 try later"
    assert waiting[2].visible_at - waiting[1].visible_at > HOUR - timedelta(minutes=5)
    assert worker.ack(token, [1, 2, 3]) == [3]

    token, events = worker.claim(most=10)
    assert events == [(1, 2, "a")]  # it failed before, so it comes alone
    assert worker.ack(token) == [1]
    position = models.Position.objects.get(consumer__name="queue")
    assert (position.handled, position.failed) == (2, 2)


@pytest.mark.parametrize(
    ("retry", "least", "most"),
    [
        (Backoff(attempts=9, base=timedelta(minutes=2)), 6, 8),
        (Backoff(attempts=9, base=timedelta(minutes=2), cap=timedelta(minutes=4)), 3, 4),
        (Backoff(attempts=9, pauses=[timedelta(minutes=1), timedelta(minutes=20)]), 15, 20),
    ],
)
def test_an_error_follows_the_schedule_of_the_consumer(things, make_queue, program, retry, least, most):
    queue = make_queue(things, retry=retry)
    fill_topic(things, "a")
    deliveries(queue).update(attempts=2)
    worker = program()
    token, _ = worker.claim()
    worker.nack(token, error="busy")

    [row] = deliveries(queue)
    [[left]] = worker.session.execute("SELECT clock_timestamp()").fetchall()
    assert row.attempts == 3
    assert timedelta(minutes=least) - HOUR / 60 < row.visible_at - left <= timedelta(minutes=most)


def test_dead_letters_are_those_that_pythons_claim_makes(things, make_queue, program):
    errors = [
        "no such address",
        "order 1042 of 0x7f33aa is gone\nsee the log",
        "  told by 8b6f3c1e-90f0-4c41-a4e6-9bfe2ab4d5c1 ",
        "x" * 30_000,
        "",
        "naïve 🧪 file12 deadbeef01",
    ]
    made = [make_queue(things, name=name, retry=Backoff(attempts=1), history=HOUR) for name in ("queue", "other")]
    publish_many(things, [Draft(value=n, type="t", key="k", metadata={"n": n}) for n in range(len(errors))])
    transfer_all()
    worker = program()
    token, events = worker.claim(most=10)
    handed = hand_out("other", 10)
    for (event_id, _, _), error in zip(events, errors, strict=True):
        assert worker.nack(token, [event_id], error=error) == [event_id]
        nack(handed.token, [event_id], error=error)

    ours, others = ([_without_ids(letter) for letter in dead_letters(q.subscription.consumer)] for q in made)
    assert len(ours) == len(errors)
    for one, other in zip(ours, others, strict=True):
        if one["error"].startswith("RetryLater"):  # the program said nothing
            for letter in (one, other):
                assert letter.pop("error").startswith("RetryLater: to be tried again after 0")
                assert letter.pop("fingerprint").startswith("RetryLater: to be tried again after #")
                letter["traceback"] = ""
        other["traceback"] = other["traceback"].removeprefix("django_events.consuming.programs.handed_out.")
        assert one == other
    past = [
        list(models.PastDelivery.objects.of(n).values_list("event_id", "outcome", "attempts"))
        for n in ("queue", "other")
    ]
    assert past[0] == past[1] != []
    counts = models.Position.objects.filter(consumer__name__in=["queue", "other"])
    assert set(counts.values_list("failed", "dead_lettered")) == {(len(errors), len(errors))}


def _without_ids(letter):
    left_out = ("id", "_state", "consumer_id", "dead_at")
    return {name: value for name, value in vars(letter).items() if name not in left_out}


def test_in_order_a_failed_event_gives_back_those_of_its_key(things, make_queue, program):
    queue = make_queue(things, ordered=True)
    publish_many(things, [Draft(value=value, key=key) for value, key in [("a", "k"), ("b", "other"), ("c", "k")]])
    transfer_all()
    worker = program()
    token, events = worker.claim(most=10)
    assert len(events) == 3

    assert worker.nack(token, [1, 3], HOUR) == [1, 3]
    assert {one.event_id: one.attempts for one in deliveries(queue)} == {1: 1, 2: 0, 3: 0}
    assert worker.ack(token) == [2]
    assert worker.claim(most=10)[0] is None  # the key waits for its first event
    end_pauses(queue)
    token, events = worker.claim(most=10)
    assert events == [(1, 2, "a")]
    assert worker.claim(most=10)[0] is None  # and is in hand
    worker.ack(token)
    assert worker.claim(most=10)[1] == [(3, 1, "c")]


def test_after_a_worker_died_events_come_alone_each_attempt_counted(queue, program):
    dead = program()
    token, _ = dead.claim(most=3)
    dead.session.close()
    end_lease(token)

    worker = program()
    first, events = worker.claim(most=10)
    assert events == [(1, 1, "a")]
    assert models.Delivery.objects.get(event_id=1).attempts == 1
    second, events = worker.claim(most=10)
    assert events == [(2, 1, "b")]
    assert (worker.ack(first), worker.ack(second)) == ([1], [2])
    third, events = worker.claim(most=10)
    assert events == [(3, 1, "c")]
    worker.ack(third)
    assert worker.claim(most=10)[1] == [(4, 1, "d"), (5, 1, "e")]
    assert models.DeliveryLease.objects.count() == 1


def test_an_event_that_ends_its_workers_is_a_dead_letter_in_the_end_and_no_other_is(things, make_queue, program):
    queue = make_queue(things, retry=Backoff(attempts=2, base=timedelta(0)))
    fill_topic(things, *"abc")
    seen = []
    while (claimed := program().claim(most=10))[0] is not None:
        token, events = claimed
        seen.append([value for _, _, value in events])
        if seen[-1] == ["a", "b", "c"] or seen[-1] == ["a"]:
            end_lease(token)  # as of a worker that died
        else:
            program().ack(token)
    assert seen == [["a", "b", "c"], ["a"], ["b"], ["a"], ["c"]] or seen.count(["a"]) == 2
    [letter] = dead_letters(queue.subscription.consumer)
    assert (letter.event_id, letter.attempts) == (1, 2)
    assert letter.error == (
        "WorkerEnded: No attempt is left. 2 are counted, and the last one never came back: its worker ended or froze."
    )
    assert pending(queue) == []


def test_a_worker_that_froze_settles_nothing_when_it_acks_too_late(queue, program):
    frozen, worker = program(), program()
    token, _ = frozen.claim(most=2)
    end_lease(token)
    assert worker.claim()[1] == [(1, 1, "a")]

    for late in (frozen.ack, frozen.nack, frozen.extend):
        with pytest.raises(psycopg.Error, match="No events are claimed") as lost:
            late(token)
        assert lost.value.sqlstate == "DE004"
    assert len(pending(queue)) == 5
    assert dead_letters(queue.subscription.consumer) == []


def test_a_worker_that_froze_between_its_ack_and_commit_is_ended(queue, program):
    frozen, worker = program(autocommit=False), program()
    token, _ = worker.claim(most=5)
    end_lease(token)
    assert frozen.ack(token, [1]) == [1]  # and never commits

    assert worker.claim(most=5)[1] == [(1, 1, "a")]
    with pytest.raises(psycopg.OperationalError):
        frozen.session.commit()
    assert pending(queue) == [1, 2, 3, 4, 5]


def test_work_and_ack_are_one_transaction(queue, program):
    worker = program()
    token, _ = worker.claim(most=2)
    with pytest.raises(RuntimeError), worker.session.transaction():
        worker.ack(token)
        raise RuntimeError("its own")
    assert pending(queue) == [1, 2, 3, 4, 5]

    with worker.session.transaction():
        assert worker.ack(token, [2]) == [2]
        assert worker.ack(token, [1, 2]) == [1]
    assert pending(queue) == [3, 4, 5]
    assert models.Position.objects.get(consumer__name="queue").handled == 2


def test_two_sessions_with_one_token_settle_each_event_once(queue, program):
    one, other = program(autocommit=False), program()
    token, _ = other.claim(most=5)
    assert one.ack(token, [1, 2]) == [1, 2]
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(other.ack(token)))
    waiting.start()
    _until_blocked(program(), other)
    one.session.commit()
    waiting.join(TIMEOUT)

    assert answers == [[3, 4, 5]]
    assert pending(queue) == []


@pytest.mark.slow
def test_sessions_that_share_a_token_never_take_it_for_lost(things, make_queue, program):
    queue = make_queue(things)
    fill_topic(things, *range(100))
    one, other, watcher = program(autocommit=False), program(), program()
    for first in range(1, 100, 2):
        token, _ = other.claim(most=2)
        one.ack(token, [first])
        answers = []
        waiting = threading.Thread(target=lambda token=token, answers=answers: answers.append(other.ack(token)))
        waiting.start()
        _until_blocked(watcher, other)
        one.session.commit()
        waiting.join(TIMEOUT)
        assert answers == [[first + 1]]
    assert pending(queue) == []


@pytest.mark.slow
def test_python_settles_what_such_a_session_leaves(things, make_queue, program, in_thread):
    queue = make_queue(things)
    fill_topic(things, *range(60))
    one, watcher = program(autocommit=False), program()
    for first in range(1, 60, 2):
        token, _ = one.claim(most=2)
        one.session.commit()
        one.ack(token, [first])
        waiting = in_thread(ack, token)
        wait_until(
            lambda: watcher.session.execute(WAITS_FOR_A_LOCK).fetchone(),
            what="an ack that waits",
        )
        one.session.commit()
        assert waiting.result(TIMEOUT).settled == [first + 1]
    assert pending(queue) == []


def _until_blocked(watcher, program):
    pid = program.session.info.backend_pid
    for _ in range(10_000):
        if watcher.session.execute("SELECT cardinality(pg_blocking_pids(%s))", [pid]).fetchone()[0]:
            return
    raise AssertionError("it waits for no lock")


def test_more_time_keeps_the_next_worker_away(queue, program):
    worker = program()
    token, _ = worker.claim(most=2, lease=timedelta(seconds=1))
    before = models.DeliveryLease.objects.get(token=token).leased_until

    assert worker.extend(token, HOUR) == [1, 2]
    assert models.DeliveryLease.objects.get(token=token).leased_until - before > HOUR - timedelta(minutes=5)
    worker.extend(token)  # the consumer's own
    assert models.DeliveryLease.objects.get(token=token).leased_until - before < HOUR


@pytest.mark.parametrize(
    ("call", "state"),
    [
        ("SELECT * FROM django_events_claim('queue', 0)", "22023"),
        ("SELECT * FROM django_events_claim('queue', NULL)", "22023"),
        ("SELECT * FROM django_events_claim('queue', 1, '2 days')", "22023"),
        ("SELECT * FROM django_events_claim('queue', most_bytes => NULL)", "22023"),
        ("SELECT * FROM django_events_claim('queue', most_bytes => -1)", "22023"),
        ("SELECT * FROM django_events_claim('unheard-of')", "DE005"),
        ("SELECT * FROM django_events_claim('queue', of_topic => 'others')", "DE005"),
        ("SELECT * FROM django_events_claim('stream')", "DE005"),
        ("SELECT django_events_ack(9)", "DE004"),
        ("SELECT django_events_ack(NULL)", "DE004"),
        ("SELECT django_events_nack(9, delay => '-1 s')", "22023"),
        ("SELECT django_events_extend(9, '2 days')", "22023"),
        ("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM django_events_claim('queue')", "25001"),
    ],
)
def test_what_can_t_be_is_refused_with_a_state(queue, make_consumer, things, program, call, state):
    make_consumer(things, handler=print, name="stream")
    with pytest.raises(psycopg.Error) as refused:
        program().session.execute(call)
    assert refused.value.sqlstate == state
    assert not models.DeliveryLease.objects.exists()


def test_a_paused_or_stopped_consumer_gives_nothing(queue, program):
    worker = program()
    models.Consumer.objects.filter(name="queue").update(paused_at=ClockTimestamp())
    assert worker.claim() == (None, [])
    models.Consumer.objects.filter(name="queue").update(paused_at=None)
    models.Position.objects.filter(consumer__name="queue").update(stopped_at=ClockTimestamp())
    assert worker.claim() == (None, [])


def test_a_claim_keeps_to_a_window_of_received_times(queue, program):
    worker = program()
    [[moment]] = worker.session.execute("SELECT clock_timestamp()").fetchall()
    deliveries(queue).filter(event_id__gt=2).update(received_at=moment + HOUR)
    assert worker.claim(most=10, received_since=moment)[1] == [(3, 1, "c"), (4, 1, "d"), (5, 1, "e")]
    assert worker.claim(most=10, received_until=moment)[1] == [(1, 1, "a"), (2, 1, "b")]


FILTERS = [
    {"types": ["order.*", "exact"]},
    {"keys": ["k.>", "z"]},
    {"types": ["order.*"], "where": "$.n > 2"},
    {"where": "$.n.double() > 2"},
]


@pytest.mark.parametrize("options", FILTERS)
def test_what_is_not_there_yet_is_made_from_the_log_by_its_filter(things, make_queue, program, options):
    drafts = [
        Draft(value={"n": n}, type=kind, key=key)
        for n, (kind, key) in enumerate(
            [("order.paid", "k.1"), ("exact", "z"), ("order.a.b", "k"), ("order.sent", "k.a.b"), ("other", None)] * 2
        )
    ]
    publish_many(things, drafts)
    publish_many(things, [Draft(body=b"no value", type="order.body", key="z")])
    transfer_all()
    queue = make_queue(things, live=False, **options)
    other = make_queue(things, name="other", **options)

    ids = [event_id for event_id, _, _ in program().claim(most=100)[1]]
    assert ids == pending(other) == pending(queue) != []
    row = models.Consumer.objects.get(name="queue")
    assert (row.live, row.filled_until) == (False, 11)
    fill_topic(things, {"n": 9}, type="order.late", key="z")
    serve_queues("default", lambda: False)
    assert pending(queue) == [*ids, 12]
    assert models.Consumer.objects.get(name="queue").live


def test_a_queue_with_a_limit_is_filled_as_it_is_worked_off(things, make_queue, program):
    make_queue(things, max_pending=4)
    fill_topic(things, *range(4))
    fill_topic(things, *range(4, 20))
    worker, seen = program(), []
    while (claimed := worker.claim(most=3))[0] is not None:
        seen += [value for _, _, value in claimed[1]]
        worker.ack(claimed[0])
    assert seen == list(range(20))


def test_a_dead_letter_that_is_redriven_is_claimed_though_the_log_has_dropped_it(things, make_queue, program):
    queue = make_queue(things, retry=Backoff(attempts=1))
    fill_topic(things, "a", "b", key="k")
    worker = program()
    token, _ = worker.claim()
    worker.nack(token, error="bad")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("DELETE FROM django_events_event WHERE topic_id = django_events_topic_id('things') AND id = 1")
        cursor.execute("RESET session_replication_role")
    models.DeadLetter.objects.update(redrive_at=ClockTimestamp())
    assert serve_queues("default", lambda: False) == {"filled": 0, "redriven": 1}

    token, events = worker.claim(most=5)
    assert [value for _, _, value in events] == ["a", "b"]
    worker.ack(token)
    assert dead_letters(queue.subscription.consumer) == []


def test_a_dropped_event_s_delivery_goes_and_a_missing_event_is_an_error(things, make_queue, program):
    queue = make_queue(things)
    fill_topic(things, *"abc")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("DELETE FROM django_events_event WHERE topic_id = django_events_topic_id('things') AND id = 1")
        cursor.execute("RESET session_replication_role")
    worker = program()
    with pytest.raises(psycopg.Error, match="Event things/1 is missing") as lost:
        worker.claim(most=3)
    assert lost.value.sqlstate == "DE006"
    models.TopicHead.objects.filter(topic__name="things").update(id_floor=1)
    seen = []
    while (claimed := worker.claim(most=3))[0] is not None:
        seen += [value for _, _, value in claimed[1]]
        worker.ack(claimed[0])
    assert seen == ["b", "c"]
    assert pending(queue) == []


@pytest.mark.parametrize("name", EXPANDING)
def test_what_no_program_could_read_is_a_dead_letter_and_the_others_come(things, make_queue, program, name):
    queue = make_queue(things)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_bufferedevent (topic_id, value) SELECT django_events_topic_id('things'), value"
            f" FROM (VALUES ('1'::jsonb), ({EXPANDING[name]}), ('2')) AS worst (value)"
        )
    transfer_all()
    worker, seen = program(), []
    while (claimed := worker.claim(most=10))[0] is not None:
        seen += [value for _, _, value in claimed[1]]
        worker.ack(claimed[0])
    assert seen == [1, 2]
    [letter] = models.DeadLetter.objects.defer("value").filter(consumer=queue.subscription.consumer_id)
    assert letter.error.startswith("UnreadableEvent: The payload of event things/2, ")
    assert letter.attempts == 1


def test_a_claim_is_as_large_as_it_may_be_and_what_is_larger_comes_alone(things, make_queue, program):
    make_queue(things)
    fill_topic(things, "a", "b" * 5_000, "c" * 50_000, "d")
    worker, seen = program(), []
    while (claimed := worker.claim(most=10, most_bytes=10_000))[0] is not None:
        seen.append([value[:1] for _, _, value in claimed[1]])
        worker.ack(claimed[0])
    assert seen == [["a", "b"], ["c"], ["d"]]


def test_the_position_follows_so_that_the_log_is_not_kept(queue, program):
    worker = program()
    token, _ = worker.claim(most=5)
    worker.ack(token, [1, 2])
    assert models.Position.objects.get(consumer__name="queue").position == 2
    fill_topic("things", "late")
    worker.ack(token)
    assert models.Position.objects.get(consumer__name="queue").position == 5


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
def test_twenty_programs_and_a_python_worker_share_the_events(things, make_queue, program, ordered):
    events, keys = 400, 23
    queue = make_queue(things, ordered=ordered)
    publish_many(things, [Draft(value=n, key=f"k{n % keys}") for n in range(events)])
    transfer_all()
    lock, seen, failures = threading.Lock(), [], []

    def work(worker):
        try:
            while pending_of(worker):
                token, claimed = worker.claim(most=7)
                if token is None:
                    continue
                with lock:
                    seen.extend(value for _, _, value in claimed)
                failed = [event_id for event_id, attempt, value in claimed if value % 50 == 0 and attempt == 1]
                if failed:
                    worker.nack(token, failed)
                with contextlib.suppress(psycopg.Error):  # all of it was given back
                    worker.ack(token)
        except Exception as error:
            failures.append(error)

    def pending_of(worker):
        return worker.session.execute("SELECT EXISTS (SELECT FROM django_events_delivery)").fetchone()[0]

    threads = [threading.Thread(target=work, args=[program()]) for _ in range(20)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        with claim("queue", 5) as claimed:
            with lock:
                seen.extend(event.value for event in claimed)
            claimed.ack(*claimed)
    for thread in threads:
        thread.join(TIMEOUT)

    assert failures == []
    assert set(seen) == set(range(events))
    assert pending(queue) == []
    position = models.Position.objects.get(consumer__name="queue")
    assert position.handled == events
    assert len(seen) - events <= position.failed * 7
    if ordered:
        for key in range(keys):
            done = list(dict.fromkeys(reversed([n for n in seen if n % keys == key])))
            assert done[::-1] == sorted(done)


def test_a_program_that_keeps_its_transaction_open_stops_no_other_session(things, make_queue, program):
    """Neither the transfer, which needs the topic's head, nor other programs; `fill` is part of its transaction too."""
    make_queue(things, live=False)
    fill_topic(things, *"abcd")
    patient, other = program(autocommit=False), program()
    token, events = patient.claim(most=2)
    assert [value for _, _, value in events] == ["a", "b"]

    fill_topic(things, "e")  # the transfer goes on
    assert other.claim(most=5) == (None, [])  # the deliveries are in that transaction still
    patient.ack(token)
    patient.session.commit()
    assert [value for _, _, value in other.claim(most=5)[1]] == ["c", "d"]
    assert [value for _, _, value in other.claim(most=5)[1]] == ["e"]


@pytest.mark.slow
def test_a_program_that_froze_after_its_ack_stops_no_ack_of_others(queue, program):
    frozen, other = program(autocommit=False), program()
    token, _ = other.claim(most=2)
    more, _ = other.claim(most=3)
    frozen.ack(token)  # and has the row that counts

    assert other.ack(more) == [3, 4, 5]
    assert pending(queue) == [1, 2]
    frozen.session.rollback()
    assert models.Position.objects.get(consumer__name="queue").handled == 0  # the count was given up, the ack was not
    assert other.ack(token) == [1, 2]


@pytest.mark.slow
def test_a_program_that_froze_after_its_ack_stops_no_worker_of_python(queue, program, caplog):
    frozen = program(autocommit=False)
    token, _ = frozen.claim(most=2)
    frozen.session.commit()
    frozen.ack(token)  # and has the row that counts

    handed = hand_out("queue", 1)
    assert ack(handed.token, using="default").settled == [3]
    assert run_once(queue.subscription.consumer) == 2
    assert pending(queue) == [1, 2]
    said = [record.message for record in caplog.records if "locked" in record.message]
    assert said == [
        f"Consumer 'queue' of 'things': another session has its position locked, so this is not counted: {n} handled."
        for n in (1, 2)
    ]
    frozen.session.rollback()
    assert models.Position.objects.get(consumer__name="queue").handled == 0


@pytest.mark.parametrize("ordered", [False, True])
def test_programs_and_pythons_workers_take_over_from_each_other(things, make_queue, program, ordered):
    queue = make_queue(things, ordered=ordered)
    publish_many(things, [Draft(value=value, key="k") for value in "abc"])
    transfer_all()
    worker = program()
    token, _ = worker.claim(most=3)
    end_lease(token)
    taken = another(queue).claim(10)
    assert (taken.lost_token, values(taken)) == (token, ["a", "b", "c"])
    expire(taken)

    token, events = worker.claim(most=3)
    assert events == [(1, 1, "a")]
    worker.ack(token)
    second = hand_out("queue", 10)
    assert [event.value for event in second.events] == ["b"]
    assert worker.ack(second.token) == [2]  # a token is good wherever it is from


def test_names_are_not_looked_up_in_the_path_of_the_caller(queue, program):
    worker = program()
    [[home]] = worker.session.execute("SELECT current_schema()").fetchall()
    worker.session.execute("SET search_path = pg_temp")
    worker.session.execute("CREATE TEMP TABLE django_events_consumer (id integer)")
    [[token]] = worker.session.execute(f"SELECT token FROM {home}.django_events_claim('queue')").fetchall()
    assert worker.session.execute(f"SELECT {home}.django_events_ack(%s)", [token]).fetchone() == ([1],)
    assert worker.session.execute("SHOW search_path").fetchone() == ("pg_temp",)
    assert worker.session.execute("SHOW enable_seqscan").fetchone() == ("on",)


def test_what_a_claim_sets_for_its_plans_ends_with_it(queue, program):
    worker = program(autocommit=False)
    token, _ = worker.claim()
    assert token is not None
    assert worker.session.execute("SHOW enable_sort").fetchone() == ("on",)
    worker.session.rollback()
    with connection.cursor() as cursor, transaction.atomic(), claim("queue", 5) as claimed:
        assert len(claimed) == 5
        cursor.execute("SHOW enable_sort")
        assert cursor.fetchone() == ("on",)


def test_a_queue_that_can_t_be_filled_keeps_none_of_the_others_waiting(make_topic, make_queue):
    for name in ("apples", "things"):
        topic = make_topic(name)
        make_queue(topic, name=f"of-{name}", live=False)
        fill_topic(topic, "a", "b")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("DELETE FROM django_events_event WHERE topic_id = django_events_topic_id('apples') AND id = 1")
        cursor.execute("RESET session_replication_role")

    with pytest.raises(EventsMissing, match="apples/1"):
        serve_queues("default", lambda: False)
    ours = models.Consumer.objects.filter(name__startswith="of-").order_by("name")
    assert [*ours.values_list("name", "live")] == [
        ("of-apples", False),
        ("of-things", True),
    ]
