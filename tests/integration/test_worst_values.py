"""Values that PostgreSQL takes, and readers can't: the culprit alone pays, and all others go on."""

import pytest
from django.db import connection

from django_events import models

from tests import worst_values
from tests.conftest import transfer_all
from tests.fix_consumers import exhaust, position_of, run_once
from tests.fix_queues import AT_ONCE, deliveries
from tests.fix_queues import pending as pending_of

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

UNREADABLE = {**worst_values.EXPANDING, **worst_values.UNDECODED}


@pytest.fixture
def transactional_db(committed_db):
    """Nothing is flushed: see there."""


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


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("batch_size", [None, 100])
def test_a_stream_goes_on_with_all_but_what_can_not_be_read(things, make_consumer, batch_size):
    handler = Noted()
    reader = make_consumer(things, handler=handler, retry=AT_ONCE, batch_size=batch_size)
    insert(things, *among_others(UNREADABLE.values()))
    exhaust(reader)

    assert sorted(set(handler.seen)) == list(range(len(UNREADABLE) + 1))
    dead = dead_letters(reader)
    assert [letter.event_id for letter in dead] == [2, 4, 6, 8, 10, 12]
    assert [letter.attempts for letter in dead] == [1, 1, 1, 3, 3, 3]
    assert position_of(reader).position == 2 * len(UNREADABLE) + 1
    assert dead[0].error.startswith(f"UnreadableEvent: The payload of event {things.name}/2, ")


@pytest.mark.requirement("D4")
def test_a_queue_goes_on_with_all_but_what_can_not_be_read(things, make_queue):
    handler = Noted()
    queue = make_queue(things, handler=handler)
    insert(things, *among_others(UNREADABLE.values()))
    serve_queue(queue)

    assert sorted(set(handler.seen)) == list(range(len(UNREADABLE) + 1))
    assert pending_of(queue) == []
    dead = dead_letters(queue.subscription.consumer)
    assert [letter.event_id for letter in dead] == [2, 4, 6, 8, 10, 12]
    assert [letter.attempts for letter in dead] == [1, 1, 1, 3, 3, 3]


def serve_queue(queue):
    """A whole worker, until no delivery is left."""
    for _ in range(20):
        run_once(queue.subscription.consumer)
        if not deliveries(queue).exists():
            return
    raise AssertionError(f"deliveries are left: {pending_of(queue)}")
