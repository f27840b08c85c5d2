"""Programs in other languages claim and settle events by SQL functions alone: the same as Python's claim()."""

import threading
from datetime import timedelta

import psycopg
import pytest
from django.db import connection

from django_events import Backoff, Draft, claim, models, publish_many
from django_events.consuming.worker_functions import created
from django_events.migrations._worker_functions import CREATE_WORKER_FUNCTIONS
from django_events.models.functions import ClockTimestamp
from tests.support.fix_consumers import dead_letters
from tests.support.fix_queues import deliveries, end_pauses, fill_topic, pending
from tests.support.fix_topics import transfer_all

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
