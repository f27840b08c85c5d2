"""What becomes of a queue's events, as events: each attempt that ends is told once, in the transaction that ends it."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_events import Backoff, Ignore, claim, declarations, models
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import log_failure
from django_events.consuming.queues.filling import fill_some
from django_events.consuming.queues.server import serve_deliveries
from django_events.exceptions import Invalid, LeaseLost, Refused, UnknownName
from django_events.operations import redrive, remove_topic, rewind, skip
from django_events.syncing import sync
from tests.support.fix_consumers import run_once, write_order
from tests.support.fix_queues import another, expire, fill_topic, row_of
from tests.support.fix_rollups import by_group
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db", "shelf"), pytest.mark.requirement("H3")]

DAY = timedelta(days=1)
TWICE = Backoff(attempts=2, base=timedelta(0))


@pytest.fixture
def told(make_topic):
    return make_topic("told")


@pytest.fixture
def make(things, told, make_queue):
    def make_one(function=lambda event: None, **options):
        options = {"handler": function, "outcomes": told, "retry": TWICE, "history": DAY, **options}
        return make_queue(things, name="mailing", **options)

    return make_one


def serve(queue):
    handler = BoundHandler(queue.subscription.consumer)
    while hand := queue.claim(100):
        serve_deliveries(hand, handler, on_failure=log_failure(hand))


def outcomes():
    """What was told until now, in its order: what became of which event in which attempt."""
    transfer_all()
    events = models.Event.objects.of("told")
    return [(event.type, event.value["event"], event.value["attempt"]) for event in events]


def handle(event):
    if event.value == "bad":
        raise ValueError("bad: as ever")
    if event.value == "later" and event.attempt == 1:
        raise OSError("later")
    if event.value == "never":
        raise Ignore("not for us")
    write_order(event.value)


def test_each_attempt_that_ends_is_told_once(make, things):
    queue = make(handle)
    fill_topic(things, "a", "bad", "later", "never", "b")
    serve(queue)

    told = outcomes()
    assert sorted(told) == [
        ("dead", 2, 2),
        ("failed", 2, 1),
        ("failed", 3, 1),
        ("handled", 1, 1),
        ("handled", 3, 2),
        ("handled", 5, 1),
        ("ignored", 4, 1),
    ]
    past = models.PastDelivery.objects.of("mailing").values_list("outcome", "event_id", "attempts")
    assert sorted(past) == sorted(one for one in told if one[0] != "failed")


def test_an_outcome_says_whose_it_is_and_how_long_it_took(make, things):
    serve(make(handle))
    fill_topic(things, "bad")
    serve(make(handle))

    transfer_all()
    dead = models.Event.objects.of("told").get(type="dead")
    assert dead.key == "things/1"
    value = dict(dead.value)
    assert 0 <= value.pop("lasted") <= value.pop("took")
    assert value.pop("waited") >= 0
    assert value == {
        "consumer": "mailing",
        "topic": "things",
        "event": 1,
        "attempt": 2,
        "worker": "a test",
        "error": "ValueError",
    }


def test_programs_tell_by_claim_and_by_sql(make, things):
    make(None)
    fill_topic(things, *"abcd")
    with claim("mailing", most=1) as mine:
        mine.ack(*mine.events)
    with connection.cursor() as cursor:
        cursor.execute("SELECT token, id FROM django_events_claim('mailing', 3)")
        token = cursor.fetchall()[0][0]
        cursor.execute("SELECT django_events_ack(%s, ARRAY[2])", [token])
        cursor.execute("SELECT django_events_nack(%s, ARRAY[3], '1 hour', 'OSError: no line')", [token])
        models.Delivery.objects.filter(event_id=4).update(attempts=2)
        cursor.execute("SELECT django_events_nack(%s, ARRAY[4], NULL, 'OSError: no line')", [token])

    told = sorted(outcomes())
    assert told[1:] == [("failed", 3, 1), ("handled", 1, 1), ("handled", 2, 1)] and told[0][:2] == ("dead", 4)
    errors = models.Event.objects.of("told").exclude(type="handled").values_list("value__error", flat=True)
    assert set(errors) == {"Reported"}


def test_what_is_rolled_back_is_not_told(make, things):
    queue = make()
    fill_topic(things, "a")
    hand = queue.claim(1)
    with pytest.raises(OSError), transaction.atomic():
        hand.settle(hand.events)
        raise OSError
    assert outcomes() == []
    hand.release()
    serve(queue)
    assert outcomes() == [("handled", 1, 1)]


def test_who_lost_the_lease_tells_nothing(make, things):
    queue = make()
    fill_topic(things, "a", "b")
    late = queue.claim(2)
    expire(late)
    other = another(queue).claim(2)
    with pytest.raises(LeaseLost), transaction.atomic():
        late.settle(late.events)
    with transaction.atomic():
        other.settle(other.next(2))
    assert len(outcomes()) == 1
    other.release()
    serve(queue)
    assert sorted(outcomes()) == [("handled", 1, 1), ("handled", 2, 1)]


def test_what_an_operator_does_is_told_too(make, things):
    queue = make(handle)
    fill_topic(things, "bad", "a", "b")
    serve(queue)
    [letter] = models.DeadLetter.objects.all()
    redrive(models.DeadLetter.objects.filter(pk=letter.pk))
    run_once(queue.subscription.consumer)
    rewind(queue.subscription.consumer, to=3)
    while fill_some(queue.subscription):
        pass
    skip("mailing", 3, reason="a test order")
    serve(queue)

    of = [(kind, event) for kind, event, _ in outcomes()]
    assert of.count(("dead", 1)) == 2
    assert of.count(("handled", 3)) == 1
    assert of.count(("dead", 3)) == 1


def test_a_queue_that_tells_nothing_asks_nothing_of_it(things, make_queue):
    queue = make_queue(things, name="mailing")
    fill_topic(things, "a")
    hand = queue.claim(1)
    with CaptureQueriesContext(connection) as asked, transaction.atomic():
        hand.settle(hand.events)
    assert "bufferedevent" not in "".join(query["sql"] for query in asked)


def test_a_roll_up_of_the_outcomes_says_what_the_history_says(make, things, told, make_rollup):
    rollup = make_rollup(told, name="how-mailing-went", by={"outcome": "type"}, sums={"took": "$.took"})
    queue = make(handle)
    fill_topic(things, "a", "bad", "later", "never", "b", "c")
    serve(queue)
    transfer_all()
    run_once(rollup)
    counted = by_group(rollup, "outcome", "count")
    past = list(models.PastDelivery.objects.of("mailing").values_list("outcome", flat=True))
    assert counted == {"failed": 2, **{kind: past.count(kind) for kind in set(past)}}
    assert by_group(rollup, "outcome", "took")["handled"] > 0


def test_it_is_changed_by_migrate_and_counts_from_then_on(make, things):
    queue = make(outcomes=None)
    fill_topic(things, "a", "b")
    hand = queue.claim(1)
    make()
    with transaction.atomic():
        settlement = hand.settle(hand.events)  # by a worker that knows of no outcomes yet
    hand.settled(settlement)
    assert queue.claim(1) is None, "a worker of the former declaration gets nothing more"
    serve(make())
    assert outcomes() == [("handled", 2, 1)]
    assert row_of(queue).outcomes == "told"


def test_outcomes_must_not_lead_back(things, told, make_consumer):
    with pytest.raises(Invalid, match="leads back to what it reads"):
        make_consumer(things, name="mailing", mode="queue", handler=print, outcomes=things)
    for one in [one for one in declarations.consumers if one.name == "mailing"]:
        declarations.consumers.discard(one)
    make_consumer(things, name="mailing", mode="queue", handler=print, outcomes=told)
    with pytest.raises(Invalid, match="has outcomes='told', which leads back"):
        make_consumer(told, name="index", mode="queue", handler=print, outcomes=things)


def test_outcomes_are_those_of_queues_and_go_to_a_topic_that_is_there(things, make_consumer):
    with pytest.raises(Invalid, match="outcomes='told', which is for mode='queue'"):
        make_consumer(things, name="mailing", handler=print, outcomes="told")
    with pytest.raises(UnknownName, match="no such topic"):
        make_consumer(things, name="mailing", mode="queue", handler=print, outcomes="nowhere")


def test_a_topic_that_gets_outcomes_is_not_removed_unless_that_is_meant(make, things, told):
    queue = make()
    declarations.registry.discard(told)
    with pytest.raises(Refused, match="gets the outcomes of mailing"):
        remove_topic("told")
    remove_topic("told", force=True)
    assert row_of(queue).outcomes is None
    declarations.registry.add(told)
    sync("default")
