"""What was published because of an event: the tree, its bounds, and what is not found."""

import json

import pytest
from django.core.management import call_command
from django.db import connection

from django_events import Draft, publish, publish_many
from django_events.models import Event, Topic
from django_events.observing import causes
from django_events.statements import log_table
from tests.support.fix_consumers import run_once
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.requirement("X16"), pytest.mark.usefixtures("transactional_db")]


def because_of(cause, *values, topic="things"):
    publish_many(topic, [Draft(value=value, metadata={"caused_by": cause}) for value in values])
    transfer_all()


def tree(topic="things", id=1, **bounds):
    found = Event.objects.at(topic, id).caused(**bounds)
    return [(one.depth, one.address, one.cause) for one in found.events], found.more


@pytest.fixture
def chain(make_topic, make_consumer):
    """Things make parts, and parts make bolts; what is told of things is told beside them."""

    def into(topic, *values):
        def handle(event):
            for value in values:
                publish(topic, value, type=f"{topic}.made", key=str(event.id))

        return handle

    things, parts, bolts = make_topic("things"), make_topic("parts"), make_topic("bolts")
    return [
        make_consumer(things, name="parting", handler=into("parts", 1, 2)),
        make_consumer(things, name="telling", handler=into("things", "told"), types=[""]),
        make_consumer(parts, name="bolting", handler=into("bolts", 3), mode="queue"),
    ], bolts


def run(chain):
    for _ in range(3):
        run_once(*chain[0])
        transfer_all()


def test_a_chain_of_handlers_is_a_tree(chain):
    fill_topic("things", "a", "b")
    run(chain)
    told, more = tree(id=2)

    assert not more
    assert [(depth, address.split("/")[0], cause) for depth, address, cause in sorted(told)] == [
        (1, "parts", "things/2"),
        (1, "parts", "things/2"),
        (1, "things", "things/2"),
        (2, "bolts", "parts/3"),
        (2, "bolts", "parts/4"),
        (2, "parts", "things/4"),
        (2, "parts", "things/4"),
        (3, "bolts", "parts/7"),
        (3, "bolts", "parts/8"),
    ]
    addresses = [address for _, address, _ in told]
    assert all(cause == "things/2" or addresses.index(cause) < addresses.index(one) for _, one, cause in told)
    assert Event.objects.at("parts", 3).caused_by == "things/2"
    assert Event.objects.at("things", 2).caused_by is None


@pytest.mark.slow
def test_the_command_tells_it(chain, capsys):
    fill_topic("things", "a")
    run(chain)
    call_command("events", "fate", "parts/1", "--format", "json")
    told = json.loads(capsys.readouterr().out)
    call_command("events", "fate", "things/1")
    text = capsys.readouterr().out

    assert told["caused_by"] == "things/1"
    assert [one["cause"] for one in told["caused"]["events"]] == ["parts/1"]
    assert (told["caused"]["more"], told["caused"]["left_out"]) == (False, [])
    assert "\n- bolts/1" in text and "\nparts/1" in text
    assert "Looked at the " in text


def test_its_bounds(make_topic):
    make_topic()
    fill_topic("things", "a")
    because_of("things/1", *range(5))
    for id in range(6, 12):
        because_of(f"things/{id}", "deeper")

    assert len(tree()[0]) == 5 + 4 and tree()[1]
    assert len(tree(depth=10)[0]) == 5 + 6 and not tree(depth=10)[1]
    assert tree(most=3) == ([(1, f"things/{id}", "things/1") for id in (2, 3, 4)], True)
    assert tree(depth=1) == ([(1, f"things/{id}", "things/1") for id in range(2, 7)], True)
    assert tree(most=11, depth=7)[1] is False


def test_what_comes_later_than_was_looked_is_not_found_and_that_is_said(make_topic):
    make_topic()
    make_topic("parts")
    fill_topic("things", "a")
    fill_topic("parts", 1, 2)
    fill_topic("things", *range(10))
    because_of("things/1", "late")
    found = Event.objects.at("things", 1).caused(last=8)

    assert (found.events, found.left_out, found.looked_at) == ([], ("things",), 8)
    found = Event.objects.at("things", 1).caused(last=13)
    assert ([one.address for one in found.events], found.left_out, found.looked_at) == (["things/12"], (), 13)


def test_topics_beyond_the_most_are_named(make_topic, monkeypatch):
    monkeypatch.setattr(causes, "TOPICS", 1)
    make_topic("apples")
    make_topic("things")
    fill_topic("things", "a")
    because_of("things/1", 1, topic="apples")
    because_of("things/1", 2)
    found = Event.objects.at("things", 1).caused()

    assert ([one.address for one in found.events], found.left_out) == (["things/2"], ("apples",))


def test_what_a_site_says_itself_may_be_anything(make_topic):
    make_topic()
    fill_topic("things", "a")
    because_of("things/3", "before its cause")  # 2 is because of 3, and 3 of 2
    because_of("things/2", "in a circle")
    because_of("things/5", "of itself and nothing else")
    because_of({"an": "object"}, "b")
    fill_topic("things", "c", metadata={"caused_by": None})
    with connection.cursor() as cursor:
        cursor.execute("SELECT django_events_publish('things', '1', metadata => '[\"caused_by\"]')")
        cursor.execute("SELECT django_events_publish('things', '1', metadata => '\"caused_by\"')")
    transfer_all()

    assert tree(id=2) == ([(1, "things/3", "things/2")], False)
    assert tree(id=1) == ([], False)
    assert [one.caused_by for one in Event.objects.since("things", 4)] == [None] * 4


@pytest.mark.parametrize(
    ("hidden", "cause", "told"),
    [("iban", {"iban": "DE02"}, None), ("caused_by", "DE02", "•••"), ("iban", "things/7", "things/7")],
)
def test_a_cause_tells_nothing_that_is_masked(make_topic, settings, capsys, hidden, cause, told):
    settings.DJANGO_EVENTS = {"MASKED_FIELDS": [hidden]}
    make_topic()
    because_of(cause, "a")
    call_command("events", "fate", "things/1", "--format", "json")
    assert json.loads(capsys.readouterr().out)["caused_by"] == told
    assert causes.caused_by("default", Topic.objects.get(name="things"), 1) == told


def test_a_log_that_cannot_be_read_is_left_out(make_topic):
    make_topic()
    broken = make_topic("broken")
    fill_topic("things", "a")
    fill_topic("broken", "b")
    because_of("things/1", 1)
    log = log_table(Topic.objects.get(name=broken.name).pk)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {log} RENAME TO broken_log")
    try:
        found = Event.objects.at("things", 1).caused()
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE broken_log RENAME TO {log}")

    assert ([one.address for one in found.events], found.left_out) == (["things/2"], ("broken",))
