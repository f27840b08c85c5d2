"""A consumer whose topic's log can't be read stops no other: it is a problem, tried again, and recovers by itself."""

import os
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_events import Draft, publish_many
from django_events.log import setbacks
from django_events.log.inventory import waiting
from django_events.log.transfer import Transfer
from django_events.models import Consumer, DeadLetter, Topic
from django_events.observing.findings import Finding
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.statements import log_table
from tests.support.fix_consumers import working
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")

ROLE = f"broken_worker_{os.getpid()}"  # roles are the whole server's, and tests run side by side
WAYS = {
    "a dropped log": (
        "ALTER TABLE {log} RENAME TO moved_away",
        "ALTER TABLE moved_away RENAME TO {log}",
        'relation "{log}" does not exist',
        "Was its log dropped?",
    ),
    "a right taken away": (
        "LOCK TABLE {log}; REVOKE SELECT ON {log} FROM {role}",  # seen by the others as soon as the events are
        "GRANT SELECT ON {log} TO {role}",
        "permission denied for table {log}",
        "Give {log} its owner and rights back",
    ),
    "a renamed column": (
        "ALTER TABLE django_events_event DETACH PARTITION {log}; ALTER TABLE {log} RENAME COLUMN metadata TO other",
        "ALTER TABLE {log} RENAME COLUMN other TO metadata;"
        " ALTER TABLE django_events_event ATTACH PARTITION {log} FOR VALUES IN ({topic_id})",
        "column e.metadata does not exist",
        "Repair {log}",
    ),
}
KINDS = {"a stream": {}, "a queue": {"mode": "queue"}, "a queue that is filled": {"mode": "queue", "max_pending": 1}}


def run(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


@pytest.fixture
def as_worker() -> Iterator[None]:
    """Sessions that begin from now on have a role that is no superuser."""
    run(f"CREATE ROLE {ROLE}")
    run(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}")
    run(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {ROLE}")
    run(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {ROLE}")
    name = connection.settings_dict["NAME"]
    run(f'ALTER ROLE CURRENT_USER IN DATABASE "{name}" SET role = {ROLE}')
    yield
    run("RESET ROLE")
    run(f'ALTER ROLE CURRENT_USER IN DATABASE "{name}" RESET role')
    run(f"DROP OWNED BY {ROLE}")
    run(f"DROP ROLE {ROLE}")


@pytest.fixture
def names(make_topic) -> dict[str, object]:
    make_topic("broken")
    make_topic("free")
    pk = Topic.objects.get(name="broken").pk
    return {"log": log_table(pk), "topic_id": pk, "role": ROLE}


def publish_to_both(*values: int) -> None:
    for topic in ("free", "broken"):
        publish_many(topic, [Draft(value=n) for n in values])
    move_all()


def move_all() -> None:
    """Again, where a worker that fills a queue has the head of the topic in this moment."""
    transfer = Transfer("default")
    wait_until(lambda: not transfer.move() and not transfer.left, what="an empty buffer")


def told() -> list[Finding]:
    found = find_problems("default", waiting("default"), None, standings("default"))
    return [one for one in found if one.kind == "set aside"]


@pytest.mark.requirement("E6")
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("breaks", "repairs", "says", "way_out"), WAYS.values(), ids=WAYS)
@pytest.mark.few(3)
def test_others_go_on_and_it_recovers_by_itself(
    make_consumer, names, as_worker, caplog, monkeypatch, breaks, repairs, says, way_out, options
):
    monkeypatch.setattr(setbacks, "FIRST_REST", 0.05)
    got: dict[str, list[object]] = {"broken": [], "free": []}

    def handle(event):
        got[event.topic].append(event.value)

    unlucky = make_consumer("broken", handler=handle, name="unlucky", **options)
    lucky = make_consumer("free", handler=handle, name="lucky", **options)
    with working(unlucky, lucky) as pool:
        publish_to_both(1)
        wait_until(lambda: got == {"broken": [1], "free": [1]})
        with transaction.atomic():
            publish_to_both(2, 3)
            run(breaks.format(**names))
        wait_until(lambda: pool._errors or (got["free"] == [1, 2, 3] and told()))
        assert not pool._errors
        publish_many("free", [Draft(value=4)])
        move_all()
        wait_until(lambda: got["free"] == [1, 2, 3, 4])
        assert got["broken"] == [1]
        [problem] = told()
        assert (problem.subject.consumer, problem.subject.topic) == ("unlucky", "broken")
        assert says.format(**names) in problem.what
        assert problem.remedy.startswith(way_out.format(**names))

        run(repairs.format(**names))
        wait_until(lambda: got["broken"] == [1, 2, 3])
        wait_until(lambda: not told())
    assert caplog.text.count("Consumer 'unlucky' of 'broken' can't be served, others are.") == 1
    row = Consumer.objects.get(name="unlucky")
    assert (row.failure, row.error, row.failing_since) == ("", "", None)
    assert not DeadLetter.objects.exists()


@pytest.mark.requirement("E6")
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_once_serves_everything_else_and_then_says_whom_it_could_not_serve(make_consumer, names, options, capsys):
    got: list[object] = []

    def handle(event):
        got.append((event.topic, event.value))

    make_consumer("broken", handler=handle, name="unlucky", **options)
    make_consumer("free", handler=handle, name="lucky", **options)
    publish_to_both(*range(5))
    breaks, repairs, says, _ = WAYS["a dropped log"]
    run(breaks.format(**names))
    try:
        with pytest.raises(CommandError, match="failed for 1 consumer") as raised:
            call_command("run_consumer", "unlucky", "lucky", "--once")
        assert raised.value.returncode == 1
        assert f"\nunlucky of broken: {says.format(**names)}\n" in str(raised.value)
        assert got == [("free", n) for n in range(5)]
    finally:
        run(repairs.format(**names))
    assert told()
    call_command("run_consumer", "unlucky", "lucky", "--once")
    assert got[5:] == [("broken", n) for n in range(5)]
    assert not told()
