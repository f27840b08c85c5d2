"""A topic whose log is not as it was made stops no other: it is a problem, tried again, and recovers by itself."""

import time

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_events import Draft, publish, publish_many
from django_events.log.inventory import waiting
from django_events.log.topics import sync
from django_events.log.transfer import Transfer
from django_events.models import Topic, TopicHead
from django_events.observing.findings import Finding
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.statements import log_table
from tests.support.fix_topics import assert_dense, log_values

pytestmark = pytest.mark.usefixtures("transactional_db")

# How it is broken, how it is repaired, what the server says, and what the way out begins with.
WAYS = {
    "a detached segment": (
        "ALTER TABLE {log} DETACH PARTITION {log}_1",
        "ALTER TABLE {log} ATTACH PARTITION {log}_1 FOR VALUES FROM (1) TO (101)",
        'relation "{log}_1" already exists',
        "A table has the name of the next segment",
    ),
    "a table of that name": (
        "CREATE TABLE {log}_201 (id int)",
        "DROP TABLE {log}_201",
        'relation "{log}_201" already exists',
        "A table has the name of the next segment",
    ),
    "a CHECK on the log": (
        "ALTER TABLE {log} ADD CONSTRAINT positive CHECK (number > 0)",
        "ALTER TABLE {log} DROP CONSTRAINT positive",
        'child table is missing constraint "positive"',
        "Take back what was added to {log}",
    ),
    "a trigger": (
        "CREATE TRIGGER refuse BEFORE INSERT ON {log} FOR EACH ROW EXECUTE FUNCTION broken_refuse()",
        "DROP TRIGGER refuse ON {log}",
        "not here",
        "Take back what was added to {log}",
    ),
    "a full disk": (
        "CREATE TRIGGER full_disk BEFORE INSERT ON {log} FOR EACH ROW EXECUTE FUNCTION broken_full()",
        "DROP TRIGGER full_disk ON {log}",
        "could not extend file",
        "Make room on the disk where {log} is.",
    ),
    "no head": (
        "DELETE FROM django_events_topichead WHERE topic_id = {topic_id}",
        "INSERT INTO django_events_topichead (topic_id, id_floor, number_floors) VALUES ({topic_id}, 0, '[]')",
        "It has no row in django_events_topichead.",
        "Make the row again",
    ),
}


@pytest.fixture
def broken(make_topic):
    """A topic whose second segment is full soon."""
    topic = make_topic("broken", segment_size=100)
    publish_many(topic, [Draft(value=n) for n in range(90)])
    Transfer("default").move()
    raised = {"refuse": "'not here'", "full": "'could not extend file' USING ERRCODE = 'disk_full'"}
    for name, error in raised.items():  # a tablespace of the log's own that is full says the same
        run(f"CREATE FUNCTION broken_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE {error}; END $$")
    yield topic
    run("DROP FUNCTION IF EXISTS broken_refuse, broken_full CASCADE")


def run(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


def row() -> Topic:
    return Topic.objects.get(name="broken")


def told() -> list[Finding]:
    return [
        one
        for one in find_problems("default", waiting("default"), None, standings("default"))
        if one.subject.topic == "broken"
    ]


def go_on(worker: Transfer) -> None:
    """As if the time had come to try it again."""
    for setback in worker.setbacks:
        setback.again_at = 0.0
    deadline = time.monotonic() + 20.0
    while worker.move() or worker.left:
        assert time.monotonic() < deadline
        for known in worker._known.values():
            if known.left_at:  # as if it had been left for long
                known.left_at -= 60.0


@pytest.mark.requirement("E6")
@pytest.mark.parametrize(("breaks", "repairs", "says", "way_out"), WAYS.values(), ids=WAYS)
def test_others_are_moved_in_the_same_look_and_it_recovers(make_topic, broken, caplog, breaks, repairs, says, way_out):
    free, names = make_topic("free"), {"topic_id": row().pk, "log": log_table(row().pk)}
    worker = Transfer("default")
    publish(free, "before")
    worker.move()
    run(breaks.format(**names))
    publish_many(broken, [Draft(value=n) for n in range(90, 150)])
    publish(free, "beside it")
    worker.move()
    assert log_values(free) == ["before", "beside it"]
    for _ in range(2):
        go_on(worker)
    assert [setback.name for setback in worker.setbacks] == ["broken"]
    assert caplog.text.count("Topic 'broken' can't be moved") == 1
    assert says.format(**names) in caplog.text
    [problem] = told()
    assert problem.kind == "transfer"
    assert says.format(**names) in problem.what
    assert problem.remedy.startswith(way_out.format(**names))

    run(repairs.format(**names))
    go_on(worker)
    assert not worker.setbacks
    assert log_values(broken) == list(range(150))
    assert_dense(broken)
    assert (row().failure, row().error, row().failing_since) == ("", "", None)
    assert told() == []


def test_it_is_tried_again_however_often_it_was(broken):
    run(f"CREATE TRIGGER refuse BEFORE INSERT ON {log_table(row().pk)} FOR EACH ROW EXECUTE FUNCTION broken_refuse()")
    worker = Transfer("default")
    publish(broken, 90)
    worker.move()
    [setback] = worker.setbacks
    setback.times = 2_000  # after 17 hours
    go_on(worker)
    assert [setback.times for setback in worker.setbacks] == [2_001]

    run(f"DROP TRIGGER refuse ON {log_table(row().pk)}")
    go_on(worker)
    assert log_values(broken) == list(range(91))


def test_what_comes_back_after_another_transfer_moved_the_topic_is_written_down_again(broken):
    """The first transfer has seen neither the repair nor the move, and fails again for the reason that it knows."""
    log = log_table(row().pk)
    breaks = f"CREATE TRIGGER refuse BEFORE INSERT ON {log} FOR EACH ROW EXECUTE FUNCTION broken_refuse()"
    first, second = Transfer("default"), Transfer("default")
    run(breaks)
    publish(broken, 90)
    first.move()
    assert row().failure
    run(f"DROP TRIGGER refuse ON {log}")
    go_on(second)
    assert not row().failure

    run(breaks)
    publish(broken, 91)
    go_on(first)
    assert "not here" in row().error


def test_a_topic_that_another_transfer_has_moved_is_no_setback(broken):
    log = log_table(row().pk)
    first, second = Transfer("default"), Transfer("default")
    run(f"CREATE TRIGGER refuse BEFORE INSERT ON {log} FOR EACH ROW EXECUTE FUNCTION broken_refuse()")
    publish(broken, 90)
    first.move()
    run(f"DROP TRIGGER refuse ON {log}")
    go_on(second)
    first.move()
    assert not first.setbacks
    first.setbacks.raise_first()


@pytest.mark.requirement("E6")
def test_once_moves_everything_else_and_then_says_what_it_could_not_move(make_topic, broken, capsys):
    frees = [make_topic(f"free{n}", segment_size=100) for n in range(3)]
    run(f"CREATE TABLE {log_table(row().pk)}_201 (id int)")
    try:
        for topic in (*frees, broken):
            publish_many(topic, [Draft(value=n) for n in range(150)])
        with pytest.raises(CommandError, match=r"failed for 1 topic; .*\nbroken: relation .* already exists") as raised:
            call_command("run_transfer", "--once")
        assert raised.value.returncode == 1
        for topic in frees:
            assert log_values(topic) == list(range(150))
    finally:
        run(f"DROP TABLE {log_table(row().pk)}_201")
    call_command("run_transfer", "--once")
    assert log_values(broken) == [*range(90), *range(150)]
    assert row().failure == ""


@pytest.mark.parametrize(
    ("adds", "takes_back"),
    [
        ("ADD CONSTRAINT positive CHECK (number > 0)", "DROP CONSTRAINT positive"),
        ("ADD COLUMN twice bigint GENERATED ALWAYS AS (id * 2) STORED", "DROP COLUMN twice"),
    ],
    ids=["CHECK", "generated column"],
)
def test_what_a_site_adds_to_all_logs_stops_only_those_that_need_a_segment(make_topic, broken, adds, takes_back):
    free = make_topic("free")
    worker = Transfer("default")
    run(f"ALTER TABLE django_events_event {adds}")
    try:
        publish_many(broken, [Draft(value=n) for n in range(90, 250)])
        publish(free, "has room")
        worker.move()
        assert log_values(free) == ["has room"]
        assert [setback.name for setback in worker.setbacks] == ["broken"]
    finally:
        run(f"ALTER TABLE django_events_event {takes_back}")
    go_on(worker)
    assert log_values(broken) == list(range(250))


def test_a_log_that_was_dropped_stops_no_other_and_is_made_anew_by_migrate(make_topic, broken):
    free = make_topic("free")
    worker = Transfer("default")
    for topic in (broken, free):
        publish(topic, "before")
    worker.move()
    run(f"DROP TABLE {log_table(row().pk)}")
    for topic in (broken, free):
        publish(topic, "afterwards")
    worker.move()
    assert log_values(free) == ["before", "afterwards"]
    [problem] = told()
    assert f'relation "{log_table(row().pk)}" does not exist' in problem.what
    assert "manage.py migrate" in problem.remedy
    sync("default")
    go_on(worker)
    assert log_values(broken) == ["afterwards"]
    assert row().failure == ""


@pytest.mark.parametrize("floor", [30, 5_000])
def test_a_floor_that_is_wrong_ends_no_turn(make_topic, broken, floor):
    """It leaves a gap, which `events verify` finds; but no reader waits for it."""
    free = make_topic("free")
    TopicHead.objects.filter(topic=row()).update(id_floor=floor)
    for topic in (broken, free):
        publish(topic, "afterwards")
    worker = Transfer("default")
    while worker.move():
        pass
    assert log_values(free) == ["afterwards"]
    assert log_values(broken)[-1] == "afterwards"
    assert not worker.left


def test_a_log_whose_rights_were_taken_away_stops_no_other(make_topic, broken):
    """From a role that is no superuser, as an operator."""
    free, log = make_topic("free", segment_size=100), log_table(row().pk)
    run("CREATE ROLE broken_operator")
    run("GRANT ALL ON ALL TABLES IN SCHEMA public TO broken_operator")
    run("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO broken_operator")
    run(f"REVOKE SELECT ON {log} FROM broken_operator")
    worker = Transfer("default")
    try:
        run("SET ROLE broken_operator")
        for topic in (broken, free):
            publish_many(topic, [Draft(value=n) for n in range(150)])
        worker.move()
        assert log_values(free) == list(range(150))
        assert [setback.said for setback in worker.setbacks] == [f"permission denied for table {log}"]
        assert "manage.py events grants --role operator" in told()[0].remedy
    finally:
        run("RESET ROLE")
        run("DROP OWNED BY broken_operator")
        run("DROP ROLE broken_operator")
    go_on(worker)
    assert log_values(broken) == [*range(90), *range(150)]
