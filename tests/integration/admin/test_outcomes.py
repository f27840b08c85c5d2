"""The page of a queue that tells what became of its events."""

import pytest

from django_events import declarations
from django_events.consuming import registration
from tests.integration.admin.conftest import address, consumer_of

pytestmark = pytest.mark.django_db


def test_the_page_of_a_queue_says_where_its_outcomes_go(olga, lanes, make_topic):
    told = make_topic("told")
    queue = declarations.queue(lanes, name="mailing", outcomes=told)
    registration.register("default", queue)

    page = olga.get(address("consumer", consumer_of(queue))).content.decode()

    declarations.consumers.discard(queue)
    assert "<dt>Its outcomes go to</dt><dd>told</dd>" in page
