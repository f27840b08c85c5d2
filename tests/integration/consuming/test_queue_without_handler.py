"""A queue without a handler: programs have its events, and nothing else waits for a worker of it."""

import pytest
from django.core.management import CommandError, call_command

from django_events import Draft, claim, declarations, models, queue
from django_events.checks.declarations import check_consumers
from django_events.consuming import registration
from django_events.consuming.programs.handed_out import hand_out
from django_events.exceptions import HandlerNotFound
from django_events.models.functions import ClockTimestamp
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.testing import deliver, drain
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("S2")]


@pytest.fixture
def exports(make_topic):
    topic = make_topic("sales")
    declared = queue(topic, name="exports", types=["sale"])
    registration.sync("default")
    yield declared
    declarations.consumers.discard(declared)
    row = models.Consumer.objects.get(name="exports")
    models.Delivery.objects.filter(consumer=row).delete()
    models.DeliveryLease.objects.filter(consumer=row).delete()
    row.delete()


def publish(*values, topic="sales"):
    for value in values:
        declarations.registry.get(topic).publish(value, type="sale")
    transfer_all()


def test_programs_have_its_events(exports):
    assert (exports.mode, exports.is_for_claims, exports.declared_at.rpartition(":")[0]) == ("queue", True, __file__)
    publish(1, 2, 3)

    with claim(exports, 2) as claimed:
        assert [event.value for event in claimed] == [1, 2]
        claimed.ack(*claimed)
    token, [event] = hand_out("exports", 10)
    assert (event.value, token is not None) == (3, True)


def test_no_worker_serves_it(exports, capsys):
    publish(1)

    with pytest.raises(CommandError, match="'exports' is a queue without a handler: programs claim") as refused:
        call_command("run_consumer", "exports", "--once")
    assert refused.value.returncode == 2
    call_command("run_events", "--once")
    call_command("run_consumer", "--all", "--once")
    drain()
    for of_it in (lambda: drain(exports), exports, lambda: deliver(exports, Draft(value=1, type="sale"))):
        with pytest.raises(HandlerNotFound, match="is a queue without a handler"):
            of_it()
    assert len(hand_out("exports", 10).events) == 1


def test_nothing_is_wrong_with_it(exports):
    publish(1)
    models.Delivery.objects.update(received_at=ClockTimestamp() - (2 * exports.lease) * 60)
    models.Position.objects.filter(consumer__name="exports").update(served_at=None)

    assert [problem for problem in check_consumers(None) if "exports" in problem.msg] == []
    found = find_problems("default", [], None, standings("default"))
    assert [one for one in found if one.subject.consumer == "exports"] == []
