"""A worker's process lets collections of garbage pass over what it began with, as long as it works."""

import gc

import pytest
from django.core.management import call_command

from tests.support.fix_queues import fill_topic

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_collections_pass_over_what_was_there_while_a_command_works(things, make_consumer):
    found = []
    consumer = make_consumer(things, handler=lambda event: found.append(gc.get_freeze_count()))
    fill_topic(things, 1)
    before = gc.get_freeze_count()
    call_command("run_consumer", consumer.name, "--once")
    assert found[0] > before + 10_000
    assert gc.get_freeze_count() == 0
