"""`manage.py events`: every subcommand, for people and for programs, and what each refuses."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO, TextIOWrapper
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections
from django.db.models import F

from django_events import Backoff, Draft, declarations, models, publish, publish_many
from django_events.log import inventory
from django_events.management import reporting
from django_events.management.commands.events import Command
from django_events.management.events import ALL
from django_events.management.events.looking import peeking, status
from django_events.models import (
    BufferedEvent,
    Clock,
    Consumer,
    DeadLetter,
    Event,
    Intervention,
    ScheduledEvent,
    Topic,
)
from django_events.models.functions import ClockTimestamp
from django_events.observing.problems import serving
from django_events.observing.state import CLOCK_OVERDUE, read
from django_events.operating.clocks import pause_clock
from django_events.operating.pausing import pause
from django_events.publishing.clocks import sync as sync_clocks
from django_events.statements import log_table
from testproject.shop.models import Product
from tests.support.fix_consumers import dead_letters, lease_of, position_of, positions, reached, run_once, serve_due
from tests.support.fix_database import alias as named_alias
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")

ONE_ATTEMPT = Backoff(attempts=1)
PATIENT = Backoff(attempts=5, base=timedelta(hours=1), cap=timedelta(hours=1))
LONG = 120


class Answer(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture
def events(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `manage.py events` as from a shell."""

    def run(*arguments: object) -> Answer:
        code: Any = 0
        try:
            Command().run_from_argv(["manage.py", "events", *map(str, arguments)])
        except SystemExit as ending:
            code = ending.code or 0
        return Answer(int(code), *capsys.readouterr())

    return run


def of(rows: list[dict[str, Any]], name: str = "reader") -> dict[str, Any]:
    """The one row that is about a consumer."""
    [row] = [row for row in rows if row["consumer"] == name]
    return row


def fill(topic: declarations.DeclaredTopic, *values: Any, **fields: Any) -> None:
    publish_many(topic, [Draft(value=value, **fields) for value in values])
    transfer_all()


def fail(event: object) -> None:
    raise ValueError("no such order")


def take(event: object) -> None:
    """A handler with nothing to do."""


def age_log(topic: declarations.DeclaredTopic, by: timedelta) -> None:
    """As if the events of a topic had been there for longer. The trigger on the whole log would refuse it.

    And as if its consumers had been registered then.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {log_table(Topic.objects.get(name=topic.name).pk)} SET logged_at = logged_at - %s", [by]
        )
    Consumer.objects.update(registered_at=F("registered_at") - by)


def kinds(answer: Answer) -> list[tuple[str, str | None]]:
    return [(problem["kind"], problem["consumer"] or problem["topic"]) for problem in answer.data["findings"]]


# --- status


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_status_of_what_is_well(events: Run, lanes, make_consumer) -> None:
    reader = make_consumer(lanes, handler=take)
    fill(lanes, *range(1_500))
    serve_due(reader)
    table, data = events("status"), events("status", "--format", "json")

    assert (table.code, table.err) == (0, "")
    assert table.out.startswith("No problem.\n\nNothing waits for the transfer.\n\ntopic")
    assert "lanes      1,500    1,500  20" in table.out
    assert re.search(r"^reader +lanes +idle +0 +0$", table.out, re.MULTILINE)
    assert list(data.data) == ["database", "at", "findings", "buffer", "scheduled", "topics", "consumers"]
    assert data.data["scheduled"] is None
    assert data.data["findings"] == data.data["buffer"] == []
    assert of(data.data["consumers"])["handled"] == 1_500
    assert datetime.fromisoformat(of(data.data["consumers"])["served_at"]).tzinfo == UTC


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_status_of_some_with_how_long_events_wait(events: Run, lanes, things, make_consumer) -> None:
    make_consumer(lanes, name="late", handler=take)
    make_consumer(lanes, name="whole", handler=take, partitioned=False)
    make_consumer(things, name="queue", handler=take, mode="queue")
    make_consumer(things, name="idle", handler=take)
    fill(lanes, 1, 2, 3)
    age_log(lanes, timedelta(hours=3))

    data = events("status", "late", "whole", "queue", "--format", "json").data
    assert {one["consumer"] for one in data["consumers"]} == {"late", "whole", "queue"}
    assert 3 * 3_600 <= of(data["consumers"], "late")["behind"] < 4 * 3_600
    assert 3 * 3_600 <= of(data["consumers"], "whole")["behind"] < 4 * 3_600
    assert of(data["consumers"], "queue")["behind"] is None
    table = events("status", "late").out
    assert "3 h" in table
    assert "idle" not in table.replace("idle    ", "")
    assert events("status", "stranger").code == 2
    assert events("status", "--watch", "soon").code == 2
    lines = events("consumers", "late", "--partitions", "--format", "json").data
    assert {line["last_id"] for line in lines} == {3}


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_status_begins_with_the_most_important_problem(events: Run, lanes, things, make_consumer) -> None:
    stopping = make_consumer(lanes, handler=fail, name="stopping", retry=ONE_ATTEMPT, on_exhausted="stop")
    retrying = make_consumer(lanes, handler=fail, name="retrying", retry=PATIENT)
    burying = make_consumer(lanes, handler=fail, name="burying", retry=ONE_ATTEMPT)
    make_consumer(lanes, handler=take, name="paused")
    make_consumer(lanes, handler=take, name="unserved")
    gone = make_consumer(lanes, handler=take, name="gone")
    fill(lanes, 1, 2, 3, key="a")
    for consumer in (stopping, retrying, burying):
        serve_due(consumer)
    pause("paused")
    age_log(lanes, timedelta(hours=2))
    declarations.consumers.discard(gone)
    new = declarations.consumer(things, name="new")(take)
    publish(things, "waits")
    BufferedEvent.objects.update(published_at=ClockTimestamp() - timedelta(minutes=3))
    try:
        data, table = events("status", "--format", "json"), events("status")
    finally:
        declarations.consumers.discard(new)

    assert kinds(data) == [
        ("transfer", "things"),
        ("stopped", "stopping"),
        ("unserved", "unserved"),
        ("retrying", "retrying"),
        ("dead letters", "burying"),
        ("not registered", "new"),
        ("undeclared", "gone"),
        ("paused", "paused"),
    ]
    partition = Event.objects.at(lanes, 1).partition
    assert f"stopped: stopping of lanes: partition {partition}: stopped at lanes/1 after 1 attempt." in table.out
    assert "ValueError: no such order" in table.out
    assert "→ Repair the cause, then: manage.py events resume stopping" in table.out
    assert "1 event in the buffer, the oldest for 3 min: no transfer moves them." in table.out
    assert "3 events behind, the oldest for 2 h: no worker handles them." in table.out
    assert "retrying 1 of 4" in table.out
    assert "burying of lanes: 3 dead letters." in table.out
    assert "manage.py events unregister gone --topic lanes" in table.out
    assert table.out.startswith("8 PROBLEMS\n")
    assert max(map(len, table.out.splitlines())) <= LONG
    listed = table.out[table.out.index("\nconsumer ") :].split("\n\n")[0]
    names = [line.split()[0] for line in listed.splitlines()[2:]]
    assert names[:3] == ["stopping", "retrying", "paused"]


@pytest.mark.slow
def test_partitions_in_the_same_problem_are_one(events: Run, lanes, make_consumer) -> None:
    failing = make_consumer(lanes, handler=fail, retry=PATIENT)
    whole = make_consumer(lanes, handler=fail, name="whole", retry=PATIENT, partitioned=False)
    fill(lanes, *range(40))
    serve_due(failing)
    serve_due(whole)
    whats = {one["consumer"]: one["what"] for one in events("status", "--format", "json").data["findings"]}

    assert whats["reader"].startswith("partition 0 and 3 others: lanes/")
    assert whats["whole"].startswith("lanes/1 failed 1 time, next at 20")


@pytest.mark.slow
def test_an_event_that_came_just_now_is_no_problem(events: Run, lanes, make_consumer) -> None:
    make_consumer(lanes, handler=take)
    fill(lanes, 1)
    publish(lanes, 2)

    assert kinds(events("status", "--format", "json")) == []


@pytest.mark.slow
def test_a_consumer_that_waits_for_a_batch_is_no_problem(events: Run, lanes, make_consumer) -> None:
    options: dict[str, Any] = {"batch_size": 10, "min_batch": 5, "max_wait": timedelta(minutes=5)}
    make_consumer(lanes, handler=take, **options)
    fill(lanes, 1)
    age_log(lanes, timedelta(minutes=4))
    assert kinds(events("status", "--format", "json")) == []

    age_log(lanes, timedelta(minutes=4))
    assert kinds(events("status", "--format", "json")) == [("unserved", "reader")]


@pytest.mark.slow
def test_a_consumer_whose_worker_is_at_it_is_no_problem(events: Run, things, make_consumer) -> None:
    reader = make_consumer(things, handler=take)
    fill(things, 1)
    age_log(things, timedelta(hours=1))
    lease = lease_of(reader, holder="host:7/1")
    assert lease is not None
    found = events("status", "--format", "json")
    lease.release()

    assert kinds(found) == []
    assert of(found.data["consumers"])["state"] == "handling"
    assert of(found.data["consumers"])["holder"] == "host:7/1"


@pytest.mark.slow
def test_status_counts_up_to_a_bound(events: Run, lanes, things, make_consumer, monkeypatch) -> None:
    monkeypatch.setattr(inventory, "COUNTED", 6)
    monkeypatch.setattr("django_events.observing.lag.COUNTED", 2)
    burying = make_consumer(lanes, handler=fail, retry=ONE_ATTEMPT)
    fill(lanes, 1, 2, 3)
    serve_due(burying)
    publish_many(lanes, [Draft(value=i) for i in range(9)])
    publish_many(things, [Draft(value=i) for i in range(3)])
    BufferedEvent.objects.update(published_at=ClockTimestamp() - timedelta(minutes=3))
    table, data = events("status"), events("status", "--format", "json").data

    counted = {row["topic"]: (row["events"], row["more"]) for row in data["buffer"]}
    assert counted == {"lanes": (3, True), "things": (3, False)}
    assert "≥ 3" in table.out
    assert "at least 6 events of 2 topics in the buffer" in table.out
    assert (of(data["consumers"])["dead_letters"], of(data["consumers"])["more_dead_letters"]) == (2, True)
    assert "at least 2 dead letters." in table.out


@pytest.mark.slow
def test_status_shows_a_screenful_and_json_all(events: Run, things, make_consumer, monkeypatch) -> None:
    monkeypatch.setattr(status, "SHOWN", 2)
    for i in range(5):
        make_consumer(things, handler=take, name=f"reader-{i}")
        pause(f"reader-{i}")
    table, data = events("status"), events("status", "--format", "json").data

    assert "… and 3 more problems" in table.out
    assert "more consumers, which are better off: manage.py events consumers" in table.out
    assert len(data["findings"]) == 5
    assert len(data["consumers"]) >= 5


@pytest.mark.slow
def test_status_looks_closely_at_a_few_only(events: Run, things, make_consumer, monkeypatch) -> None:
    monkeypatch.setattr(serving, "LOOKED_INTO", 1)
    for i in range(3):
        make_consumer(things, handler=take, name=f"reader-{i}")
    fill(things, 1)
    age_log(things, timedelta(hours=1))

    assert kinds(events("status", "--format", "json")) == [("unserved", "reader-0")]


@pytest.mark.slow
def test_the_lag_of_a_rewound_consumer_of_a_partitioned_topic(events: Run, lanes, make_consumer) -> None:
    reader, whole = (
        make_consumer(lanes, handler=take),
        make_consumer(lanes, handler=take, name="whole", partitioned=False),
    )
    fill(lanes, *range(40))
    serve_due(reader)
    serve_due(whole)
    fill(lanes, *range(10))
    found = events("consumers", "--format", "json").data
    lag_of = {
        one["partition"]: one["lag"] for one in events("consumers", "reader", "--partitions", "--format", "json").data
    }

    assert (of(found)["lag"], of(found, "whole")["lag"]) == (10, 10)
    for partition, lag in lag_of.items():
        assert lag == Event.objects.of(lanes).filter(partition=partition, id__gt=40).count()


# --- topics and consumers


@pytest.mark.slow
def test_topics(events: Run, make_topic) -> None:
    make_topic("letters", partitions=4, retention=timedelta(days=30), timeline=True)
    fill(declarations.registry.get("letters"), *range(12))
    [row] = [row for row in events("topics", "--format", "json").data if row["topic"] == "letters"]
    line = next(line for line in events("topics").out.splitlines() if line.startswith("letters"))

    size = row.pop("bytes")
    assert size > 0
    assert datetime.fromisoformat(row.pop("logged_at")) <= datetime.now(UTC) + timedelta(minutes=5)
    assert row.pop("created_at")
    assert row == {
        "topic": "letters",
        "partitions": 4,
        "events": 12,
        "first_id": 1,
        "last_id": 12,
        "segments": 2,
        "retention": 30 * 86_400.0,
        "retention_events": None,
        "retention_bytes": None,
        "keep_unread": True,
        "timeline": True,
        "compact": False,
        "compacted_until": 0,
        "declared": True,
    }
    assert line.split()[:5] == ["letters", "4", "12", "1", "12"]
    assert line.endswith("yes       yes       30 d")
    assert f"{size:,}" in line


def test_a_topic_without_events_begins_where_its_next_event_will_be(events: Run, make_topic) -> None:
    make_topic("letters")
    [row] = [row for row in events("topics", "--format", "json").data if row["topic"] == "letters"]

    assert (row["events"], row["first_id"], row["last_id"], row["logged_at"]) == (0, 1, 0, None)


@pytest.mark.slow
def test_consumers(events: Run, lanes, things, make_consumer) -> None:
    make_consumer(lanes, things, handler=take)
    fill(lanes, 1, 2)
    table, data = events("consumers", "reader"), events("consumers", "reader", "--format", "json").data

    assert [(row["consumer"], row["topic"], row["lag"]) for row in data] == [
        ("reader", "lanes", 2),
        ("reader", "things", 0),
    ]
    assert table.out.splitlines()[1].split() == ["reader", "lanes", "idle", "2", "0", "0", "0"]
    assert [row["topic"] for row in events("consumers", "--topic", "things", "--format", "json").data] == ["things"]
    assert [row["topic"] for row in events("consumers", "reader", "--topic", "things", "--format", "json").data] == [
        "things"
    ]


@pytest.fixture
def terminal(monkeypatch) -> None:
    """What is printed is shown by a terminal of 120 columns."""
    monkeypatch.setattr(reporting, "terminal_width", lambda: LONG)


@pytest.mark.slow
def test_of_a_consumer_that_is_named_all_is_counted(events: Run, lanes, make_consumer) -> None:
    name = make_consumer(lanes, handler=fail, mode="queue").name
    fill(lanes, *range(1_003))

    assert of(events("consumers", "--format", "json").data)["queue"]["available"]["more"]
    [named] = events("consumers", name, "--format", "json").data
    assert (named["lag"], named["more_lag"]) == (1_003, False)
    assert (named["queue"]["available"]["events"], named["queue"]["available"]["more"]) == (1_003, False)
    assert "1,003" in events("consumers", name).out
    assert "1,003" in events("consumers", name, "--partitions").out


@pytest.mark.slow
@pytest.mark.usefixtures("terminal")
def test_consumers_by_partition(events: Run, lanes, make_consumer) -> None:
    failing = make_consumer(lanes, handler=fail, retry=PATIENT)
    make_consumer(lanes, handler=take, name="whole", partitioned=False)
    fill(lanes, "x", key="a")
    serve_due(failing)
    partition = Event.objects.at(lanes, 1).partition
    data = events("consumers", "reader", "--partitions", "--format", "json").data
    table = events("consumers", "--partitions").out

    assert [row["partition"] for row in data] == [0, 1, 2, 3]
    assert (data[partition]["state"], data[partition]["attempted"], data[partition]["attempts"]) == ("retrying", 1, 1)
    assert data[partition]["error"] == "ValueError: no such order"
    assert "lanes/1" in table
    assert "ValueError" in table
    assert "whole     lanes         all" in table
    assert max(map(len, table.splitlines())) <= LONG


@pytest.mark.slow
@pytest.mark.usefixtures("terminal")
def test_consumers_of_long_names_and_errors_fit_and_are_whole_in_json(events: Run, make_topic, make_consumer) -> None:
    def fail_at_length(event: object) -> None:
        raise ValueError("long " * 300)

    topic = make_topic("t" * 63)
    reader = make_consumer(topic, handler=fail_at_length, name="c" * 63, retry=PATIENT)
    fill(topic, 1)
    serve_due(reader)

    for subcommand in (["status"], ["consumers"], ["consumers", "--partitions"], ["topics"]):
        assert max(map(len, events(*subcommand).out.splitlines())) <= LONG
    row = of(events("consumers", "--format", "json").data, "c" * 63)
    assert row["topic"] == "t" * 63
    assert len(row["error"]) > 1_400


@pytest.mark.parametrize("value", [5, {"POLL_INTERVAL": 3}])
def test_a_wrong_setting_is_a_line_and_exit_code_1(events: Run, settings: Any, value: object) -> None:
    settings.DJANGO_EVENTS = value
    answer = events("status")
    assert (answer.code, answer.out) == (1, "")
    assert "DJANGO_EVENTS" in answer.err and answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["consumers", "raeder"],
        ["pause", "raeder"],
        ["resume", "raeder"],
        ["rewind", "raeder", "--to", "end"],
        ["unregister", "raeder"],
        ["dead-letters", "raeder"],
        ["redrive", "raeder", "--all"],
        ["discard", "raeder", "--all", "--reason", "x"],
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.few(4)
def test_an_unknown_consumer_is_wrong_usage_and_the_likely_one_is_named(
    events: Run, things, make_consumer, arguments: list[str]
) -> None:
    make_consumer(things, handler=take)
    answer = events(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert "No consumer 'raeder' is registered in the database 'default'. Did you mean 'reader'?" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.slow
@pytest.mark.parametrize("subcommand", ["consumers", "pause", "resume", "unregister", "dead-letters"])
def test_a_topic_that_the_consumer_does_not_read_is_wrong_usage(events: Run, things, make_consumer, subcommand) -> None:
    make_consumer(things, handler=take)
    answer = events(subcommand, "reader", "--topic", "thinks")

    assert (answer.code, answer.out) == (2, "")
    assert "Consumer 'reader' doesn't read topic 'thinks'. Did you mean 'things'?" in answer.err


# --- peek


@pytest.mark.slow
def test_peek_begins_with_the_newest(events: Run, things) -> None:
    fill(things, *range(15), type="thing.made", key="k")

    assert [row["id"] for row in events("peek", "things", "--format", "json").data] == list(range(15, 5, -1))
    assert [row["id"] for row in events("peek", "things", "--limit", 2, "--format", "json").data] == [15, 14]
    assert events("peek", "things", "--limit", 1).out.splitlines()[1].split()[:4] == ["15", "0", "k", "thing.made"]


@pytest.mark.slow
def test_peek_since_an_id_is_oldest_first(events: Run, things) -> None:
    fill(things, *range(5))

    assert [row["id"] for row in events("peek", "things", "--since", 2, "--format", "json").data] == [3, 4, 5]
    assert events("peek", "things", "--since", 5).out == "No events.\n"
    assert events("peek", "things", "--since", 5, "--format", "json").data == []


@pytest.mark.slow
@pytest.mark.requirement("H4")
def test_peek_between_two_times_is_oldest_first(events: Run, things) -> None:
    publish_many(things, [Draft(value=n, key=str(n % 2)) for n in range(1, 6)])
    transfer_all()
    with connection.cursor() as cursor:
        log = log_table(Topic.objects.get(name="things").pk)
        cursor.execute(f"UPDATE {log} SET logged_at = '2026-01-01 00:00Z'::timestamptz + id * interval '1 hour'")
    asked = ["peek", "things", "--from", "2026-01-01T02:00:00Z"]

    assert [row["id"] for row in events(*asked, "--format", "json").data] == [2, 3, 4, 5]
    assert [row["id"] for row in events(*asked, "--to", "2026-01-01T05:00+01:00", "--format", "json").data] == [2, 3]
    found = events(*asked, "--key", "1", "--format", "json")
    assert [row["id"] for row in found.data] == [3, 5]
    assert events("peek", "things", "--to", "2026-01-01T00:00Z").out == "No events.\n"
    assert events(*asked, "--since", 1).code == 2
    assert "has no time zone" in events("peek", "things", "--from", "2026-01-01").err


def test_peek_at_one_event(events: Run, lanes) -> None:
    publish(lanes, {"total": 120}, type="order.placed", key="7", metadata={"by": "a test"})
    transfer_all()
    event = Event.objects.at(lanes, 1)
    table, data = events("peek", "lanes", "--at", 1), events("peek", "lanes", "--at", 1, "--format", "json").data

    assert data == {
        "address": "lanes/1",
        "topic": "lanes",
        "id": 1,
        "partition": event.partition,
        "number": 1,
        "type": "order.placed",
        "key": "7",
        "value": {"total": 120},
        "body": None,
        "erased": False,
        "unreadable": None,
        "hidden": False,
        "metadata": {"by": "a test"},
        "published_at": event.published_at.isoformat(),
        "logged_at": event.logged_at.isoformat(),
    }
    assert "address       lanes/1\n" in table.out
    assert 'metadata      {"by": "a test"}' in table.out
    assert table.out.endswith('\n\n{\n  "total": 120\n}\n')


def test_peek_at_an_event_that_is_not_there(events: Run, things) -> None:
    answer = events("peek", "things", "--at", "1,042")

    assert (answer.code, answer.out) == (1, "")
    assert "There is no event things/1042 in the log." in answer.err


@pytest.mark.slow
def test_peek_at_a_body(events: Run, things) -> None:
    publish(things, body=b"\x00\x1b[2Jsome bytes")
    transfer_all()

    assert "15 bytes" in events("peek", "things").out
    assert "\x1b" not in events("peek", "things", "--at", 1).out
    [row] = events("peek", "things", "--format", "json").data
    assert base64.b64decode(row["body"]) == b"\x00\x1b[2Jsome bytes"


@pytest.mark.slow
def test_peek_of_a_type_says_where_it_looked(events: Run, things, monkeypatch) -> None:
    for number in range(6):
        fill(things, number, key="a", type=["made", "lost"][number % 2])
    found = events("peek", "things", "--type", "lost", "--format", "json")

    assert [row["id"] for row in found.data] == [6, 4, 2]
    assert "The type was looked for in 1 to 6 only." in found.err
    monkeypatch.setattr(peeking, "SEARCHED", 3)
    assert [row["id"] for row in events("peek", "things", "--type", "lost", "--format", "json").data] == [6, 4]
    assert [
        row["id"] for row in events("peek", "things", "--type", "lost", "--since", "1", "--format", "json").data
    ] == [
        2,
        4,
    ]
    assert events("peek", "things", "--at", "1", "--type", "lost").code == 2


def test_the_help_of_a_subcommand_says_its_own_options_first(capsys) -> None:
    with pytest.raises(SystemExit):
        Command().create_parser("manage.py", "events").parse_args(["redrive", "--help"])
    told = capsys.readouterr().out

    options = told[told.index("options:") :]
    assert options.index("--error") < options.index("--settings")
    assert options.index("--execute") < options.index("--verbosity")


@pytest.mark.usefixtures("terminal")
def test_peek_shows_a_terminal_nothing_that_moves_it_and_json_all(events: Run, things) -> None:
    value = "a\x1b[31mb" + "c" * 500
    fill(things, value, key="\x1b[2J")
    table, [row] = events("peek", "things"), events("peek", "things", "--format", "json").data

    assert "\x1b" not in table.out
    assert max(map(len, table.out.splitlines())) == LONG
    assert (row["value"], row["key"]) == (value, "\x1b[2J")


def test_peek_at_a_partition(events: Run, lanes) -> None:
    fill(lanes, *range(50))
    expected = list(Event.objects.of(lanes).filter(partition=2).order_by("-id").values_list("id", flat=True))[:10]

    assert [row["id"] for row in events("peek", "lanes", "--partition", 2, "--format", "json").data] == expected
    answer = events("peek", "lanes", "--partition", 4)
    assert (answer.code, answer.out) == (2, "")
    assert "Topic lanes has no partition 4, expected 0 to 3." in answer.err


def test_peek_at_a_key_with_a_timeline(events: Run, make_topic) -> None:
    topic = make_topic("letters", timeline=True)
    fill(topic, 1, 2, key="a")
    fill(topic, 3, key="b")
    answer = events("peek", "letters", "--key", "a", "--format", "json")

    assert [row["id"] for row in answer.data] == [2, 1]
    assert answer.err == ""


@pytest.mark.slow
def test_peek_at_a_key_without_a_timeline_reads_a_part_of_the_log_and_says_so(events: Run, things, monkeypatch) -> None:
    monkeypatch.setattr(peeking, "SEARCHED", 10)
    fill(things, "old", key="a")
    fill(things, *range(8), key="b")
    fill(things, "new", key="a")
    found = events("peek", "things", "--key", "a", "--format", "json")
    fill(things, *range(5), key="b")
    later = events("peek", "things", "--key", "a", "--format", "json")

    assert [row["value"] for row in found.data] == ["new", "old"]
    assert [row["value"] for row in later.data] == ["new"]
    assert "the key was looked for in 6 to 15 only" in later.err
    assert "in 2 to 11 only" in events("peek", "things", "--key", "a", "--since", 1).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ordres"], "The database 'default' has no topic 'ordres'. Did you mean 'orders'?"),
        (["orders", "--at", "1", "--key", "a"], "--at names one event"),
        (["orders", "--at", "x"], "'x' is no id, expected a whole number, like 1042."),
        (["orders", "--limit", "0"], "0 is too few, expected at least 1."),
        ([], "TOPIC"),
    ],
)
def test_peek_refuses(events: Run, arguments: list[str], said: str) -> None:
    answer = events("peek", *arguments)

    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


# --- publish


def test_publish(events: Run, lanes) -> None:
    answer = events(
        "publish",
        "lanes",
        '{"total": 120}',
        *("--type", "order.placed", "--key", "7", "--partition", "3", "--metadata", '{"by": "hand"}'),
    )
    as_json = events("publish", "lanes", "-5", "--format", "json").data
    transfer_all()
    one, two = Event.objects.since(lanes)

    assert answer.code == 0
    assert answer.out.startswith("Published to lanes, ticket ")
    assert as_json["topic"] == "lanes"
    assert as_json["ticket"] > 0
    assert (one.value, one.type, one.key, one.partition, one.metadata) == (
        {"total": 120},
        "order.placed",
        "7",
        3,
        {"by": "hand"},
    )
    assert two.value == -5


def test_publish_a_body(events: Run, things, tmp_path, monkeypatch) -> None:
    (tmp_path / "body").write_bytes(b"\x00\xff")
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"from a pipe")))

    assert events("publish", "things", "--body-file", tmp_path / "body").code == 0
    assert events("publish", "things", "--body-file", "-").code == 0
    transfer_all()
    assert [bytes(event.body or b"") for event in Event.objects.since(things)] == [b"\x00\xff", b"from a pipe"]


def test_publish_later_and_once(events: Run, things) -> None:
    later = events("publish", "things", "1", "--at", "2999-01-01T00:00:00Z", "--dedup-key", "a")
    again = events("publish", "things", "2", "--dedup-key", "a")
    as_json = events("publish", "things", "2", "--dedup-key", "a", "--format", "json").data

    assert (later.code, again.code) == (0, 0)
    assert later.out.startswith("Scheduled for things at 2999-01-01 00:00:00Z, ticket ")
    assert again.out == "Nothing was published to things: the dedup key 'a' is taken.\n"
    assert as_json == {"topic": "things", "ticket": None, "new": False}
    assert transfer_all() == 0


@pytest.mark.slow
@pytest.mark.requirement("P2", "S13")
def test_scheduled_and_cancel(events: Run, things, lanes) -> None:
    at = datetime(2999, 1, 1, tzinfo=UTC)
    tickets = [publish(things, n, type="due", key=str(n), publish_at=at + timedelta(days=n)).ticket for n in range(3)]
    publish(lanes, "other", publish_at=at)
    table, of_key = events("scheduled", "things"), events("scheduled", "--key", "1", "--format", "json")

    assert (table.code, table.out.splitlines()[0].split()) == (
        0,
        ["topic", "ticket", "publish", "at", "type", "key", "value", "scheduled", "at"],
    )
    assert [row["value"] for row in of_key.data] == [1]
    assert [row["value"] for row in events("scheduled", "--limit", "1", "--format", "json").data] in ([0], ["other"])
    assert len(events("scheduled", "--format", "json").data) == 4

    why = ("--reason", "a test", "--by", "ada")
    dry, wrong = (
        events("cancel", "things", tickets[0], *why),
        events("cancel", "lanes", tickets[0], "--execute", *why),
    )
    assert dry.out.endswith("Nothing was changed. To do it, say the same with --execute.\n")
    assert (wrong.code, wrong.out) == (1, "")
    assert f"Topic lanes has no scheduled event with the ticket {tickets[0]:,}" in wrong.err
    assert ScheduledEvent.objects.count() == 4
    done = events("cancel", "things", tickets[0], tickets[2], "--execute", *why)
    assert done.out.endswith("2 events cancelled.\n")
    [record] = Intervention.objects.all()
    assert (record.action, record.by, record.details) == (
        "cancel",
        "ada",
        {"count": 2, "tickets": [tickets[0], tickets[2]], "reason": "a test"},
    )
    again = events("cancel", "things", tickets[0], "--execute", "--format", "json", *why)
    assert (again.code, again.out) == (1, "")
    assert events("scheduled", "things", "--format", "json").data[0]["ticket"] == tickets[1]
    assert events("scheduled", "nothing").code == 2
    assert events("cancel", "nothing", "1", *why).code == 2
    assert "--reason is empty" in events("cancel", "things", "1", "--reason", " ").err
    assert "and not both" in events("cancel", "things", *why).err
    assert "and not both" in events("cancel", "things", "1", "--key", "1", *why).err


@pytest.mark.slow
@pytest.mark.requirement("P2")
def test_scheduled_events_of_a_key_or_a_type_are_cancelled(events: Run, things, lanes) -> None:
    at = datetime(2999, 1, 1, tzinfo=UTC)
    for topic in (things, lanes):
        for n in range(6):
            publish(topic, n, type=("bill", "note")[n % 2], key=str(n % 3), publish_at=at)
    why = ("--reason", "a customer who left")

    assert events("cancel", "things", "--key", "1", *why).out.startswith("2 events would be cancelled.")
    assert ScheduledEvent.objects.count() == 12
    assert events("cancel", "things", "--key", "1", "--type", "note", "--execute", *why).out == "1 event cancelled.\n"
    assert events("cancel", "things", "--key", "1", "--execute", *why, "--format", "json").data == {
        "executed": True,
        "cancelled": 1,
    }
    assert events("cancel", "things", "--type", "bill", "--execute", *why).out == "2 events cancelled.\n"
    assert events("cancel", "things", "--type", "bill", "--execute", *why).out == "0 events cancelled.\n"
    assert ScheduledEvent.objects.filter(topic__name="lanes").count() == 6
    assert [one.details["count"] for one in Intervention.objects.order_by("id")] == [1, 1, 2]


@pytest.mark.slow
def test_times_that_no_program_reads_do_not_hide_the_others(events: Run, things) -> None:
    with connection.cursor() as cursor:
        for at in ("infinity", "-infinity", "12000-01-01"):
            cursor.execute("SELECT django_events_schedule('things', %s, '1')", [at])
    publish(things, 2, publish_at=datetime(2999, 1, 1, tzinfo=UTC))

    assert [row["value"] for row in events("scheduled", "--format", "json").data] == [2]
    assert events("status", "--format", "json").data["scheduled"]["publish_at"].startswith("2999-01-01")


@pytest.mark.slow
def test_status_tells_of_scheduled_events(events: Run, things) -> None:
    publish(things, 1, publish_at=datetime(2999, 1, 1, tzinfo=UTC))
    assert "The next scheduled event is for things, 2999-01-01 00:00:00Z: in " in events("status").out
    publish(things, 2, publish_at=datetime(2020, 1, 1, tzinfo=UTC))
    table, data = events("status").out, events("status", "--format", "json").data

    assert table.startswith("1 PROBLEM\n  transfer: things: A scheduled event is due since ")
    assert "The next scheduled event is for things, 2020-01-01 00:00:00Z: due since " in table
    assert data["scheduled"]["topic"] == "things"


def test_publish_where_a_transaction_is_required(events: Run, things, settings) -> None:
    settings.DJANGO_EVENTS = {"REQUIRE_TRANSACTION": True}

    assert events("publish", "things", "null").code == 0
    transfer_all()
    assert Event.objects.at(things, 1).value is None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ordres", "1"], 2, "Did you mean 'orders'?"),
        (["orders"], 2, "An event has a value or a body"),
        (["orders", "1", "--body-file", "-"], 2, "An event has a value or a body"),
        (["orders", "like this"], 2, "'like this' is not JSON"),
        (["orders", "1", "--metadata", "[1]"], 1, "metadata"),
        (["orders", "1", "--key", "k" * 513], 1, "512"),
        (["orders", "1", "--partition", "8"], 1, "partition"),
        (["orders", "1", "--at", "tomorrow"], 2, "'tomorrow' is no time, expected one like 2026-11-20T13:05:00Z."),
        (["orders", "1", "--at", "2h"], 2, "'2h' is no time"),
        (["orders", "1", "--at", "2026-11-20T13:05"], 2, "has no time zone"),
        (["orders", "1", "--dedup-key", "k" * 513], 1, "512"),
        (["orders", "--body-file", "/no/such/file"], 1, "The file '/no/such/file' can't be read"),
    ],
)
@pytest.mark.few(4)
def test_publish_refuses(events: Run, arguments: list[str], code: int, said: str) -> None:
    answer = events("publish", *arguments)

    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert "Traceback" not in answer.err


# --- pause and resume


@pytest.mark.slow
def test_pause_and_resume(events: Run, lanes, things, make_consumer) -> None:
    make_consumer(lanes, things, handler=take)
    first, again = events("pause", "reader", "--by", "ada"), events("pause", "reader")
    paused = Consumer.objects.filter(name="reader", paused_at__isnull=False).count()
    resumed = events("resume", "reader", "--topic", "things", "--format", "json")

    assert first.out.startswith("Consumer reader is paused on lanes and things")
    assert "was paused already" in again.out
    assert paused == 2
    assert resumed.data == {"consumer": "reader", "topics": ["things"]}
    assert events("resume", "reader", "--topic", "things").out.endswith("Nothing was changed.\n")
    assert list(Intervention.objects.order_by("pk").values_list("action", "topic", "by"))[:2] == [
        ("pause", "lanes", "ada"),
        ("pause", "things", "ada"),
    ]


def test_resume_lets_what_stopped_be_tried_again(events: Run, things, make_consumer) -> None:
    reader = make_consumer(things, handler=fail, retry=ONE_ATTEMPT, on_exhausted="stop")
    fill(things, 1)
    serve_due(reader)
    assert position_of(reader).stopped_at

    assert "goes on with things" in events("resume", "reader").out
    assert position_of(reader).stopped_at is None


# --- retry-now and skip


@pytest.mark.slow
def test_retry_tries_again_now(events: Run, things, make_consumer, make_queue) -> None:
    reader = make_consumer(things, handler=fail, retry=PATIENT)
    queue = make_queue(things, handler=fail, retry=PATIENT)
    fill(things, 1, 2)
    serve_due(reader)
    run_once(queue.subscription.consumer)

    assert events("retry-now", "reader", "2").out == (
        "Of consumer reader things/2 doesn't wait for another attempt. Nothing was changed.\n"
    )
    assert events("retry-now", "reader", "things/1").out == "Consumer reader tries again now: 1 partition.\n"
    assert events("retry-now", "reader").out.endswith("Nothing was changed.\n")
    assert events("retry-now", "queue").out == "Consumer queue tries again now: 2 deliveries.\n"
    assert events("retry-now", "queue", "--format", "json").data == {"consumer": "queue", "retried": []}


def test_retry_of_what_is_paused_is_refused(events: Run, things, make_consumer) -> None:
    make_consumer(things, handler=fail)
    pause("reader")

    answer = events("retry-now", "reader")

    assert (answer.code, answer.out) == (1, "")
    assert "manage.py events resume reader" in answer.err


@pytest.mark.slow
def test_skip_is_a_dry_run_unless_told_to(events: Run, things, make_consumer) -> None:
    reader = make_consumer(things, handler=fail, retry=PATIENT)
    fill(things, 1, 2)
    serve_due(reader)
    asked = ["skip", "reader", "things/1", "--reason", "ticket 77", "--by", "ada"]

    tried = events(*asked)
    assert tried.out.startswith("things/1 would become a dead letter of consumer reader. It failed 1 time.")
    assert tried.out.endswith("Nothing was changed. To do it, say the same with --execute.\n")
    assert dead_letters(reader) == []
    assert events(*asked, "--execute").out == "Consumer reader skipped things/1, which is a dead letter of it now.\n"
    assert [letter.error for letter in dead_letters(reader)] == ["Skipped by ada: ticket 77"]
    assert events("skip", "reader", "2", "--reason", "x", "--execute", "--format", "json").data == {
        "consumer": "reader",
        "executed": True,
        "topic": "things",
        "event_id": 2,
        "partition": 0,
        "attempts": 0,
        "error": "",
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["things/2", "--reason", "x"], 1, "is at things/1"),
        (["things/9", "--reason", "x"], 1, "no event things/9"),
        (["1", "--reason", "x"], 2, "say which, like"),
        (["things/1", "--topic", "lanes", "--reason", "x"], 2, "Say one of them."),
        (["things/1", "--reason", " "], 2, "--reason is empty"),
        (["things/1"], 2, "--reason"),
        (["thigns/1", "--reason", "x"], 2, "Did you mean 'things'"),
    ],
)
@pytest.mark.parametrize("execute", [[], ["--execute"]], ids=["dry run", "execute"])
@pytest.mark.few(4)
def test_skip_refuses(
    events: Run, things, lanes, make_consumer, arguments: list[str], code: int, said: str, execute: list[str]
) -> None:
    reader = make_consumer(things, lanes, handler=fail, retry=PATIENT)
    fill(things, 1, 2)

    answer = events("skip", "reader", *arguments, *execute)

    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert dead_letters(reader) == []


# --- snapshot


@pytest.mark.requirement("X18")
def test_snapshot_is_a_dry_run_unless_told_to(events: Run) -> None:
    Product.objects.create(sku="tea", price=1, on_shelf=3)
    Product.objects.create(sku="milk", price=1, on_shelf=5)
    asked = ["snapshot", "shop.Product", "--where", "on_shelf__gte=4", "--reason", "ticket 77", "--by", "ada"]

    tried = events(*asked)
    assert "0 of about 1" in tried.out
    assert tried.out.endswith("Nothing was changed. To do it, say the same with --execute.\n")
    assert models.BufferedEvent.objects.count() == 0
    answer = events(*asked, "--execute", "--format", "json")
    assert (answer.code, answer.data) == (
        0,
        {
            "executed": True,
            "topic": "stock",
            "table": "shop_product",
            "type": "product.snapshot",
            "rows": 1,
            "about": 1,
            "finished": True,
        },
    )
    assert [event.value for event in models.BufferedEvent.objects.all()] == [{"sku": "milk", "on_shelf": 5}]
    [done] = models.Intervention.objects.filter(action="snapshot")
    assert (done.by, done.details["reason"], done.details["state"]) == ("ada", "ticket 77", "finished")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["shop.Prodcut"], 1, "is no model"),
        (["shop.Order"], 1, "has neither an @outbox nor a capture()"),
        (["shop.Product", "--topic", "orders"], 1, "for topic 'orders'"),
        (["shop.Product", "--where", "colour=red"], 1, "Cannot resolve keyword 'colour'"),
        (["shop.Product", "--where", "red"], 2, "is no condition"),
    ],
)
def test_snapshot_refuses(events: Run, arguments: list[str], code: int, said: str) -> None:
    answer = events("snapshot", *arguments, "--execute")

    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err


# --- rewind


@pytest.mark.slow
@pytest.mark.requirement("S9")
def test_rewind_is_a_dry_run_unless_told_to(events: Run, lanes, make_consumer) -> None:
    reader = make_consumer(lanes, handler=take)
    fill(lanes, *range(40))
    serve_due(reader)
    before = list(positions(reader).values())
    table = events("rewind", "reader", "--to", "beginning")
    data = events("rewind", "reader", "--to", "beginning", "--format", "json").data

    assert list(positions(reader).values()) == before
    assert not Intervention.objects.exists()
    assert "Nothing was changed. To do it, say the same with --execute." in table.out
    assert (data["consumer"], data["executed"]) == ("reader", False)
    assert [(move["topic"], move["partition"], move["after"]) for move in data["moves"]] == [
        ("lanes", partition, 1) for partition in range(4)
    ]
    assert sum(move["events"] for move in data["moves"]) == 40
    for move in data["moves"]:
        assert f"{move['events']} come again" in table.out

    done = events("rewind", "reader", "--to", "beginning", "--execute", "--by", "ada", "--format", "json").data
    assert done == {**data, "executed": True}
    assert reached(reader) == [0, 0, 0, 0]
    assert {row.by for row in Intervention.objects.all()} == {"ada"}
    assert serve_due(reader) == 40


@pytest.mark.slow
def test_rewind_to_an_id_an_end_and_a_time(events: Run, things, make_consumer) -> None:
    reader = make_consumer(things, handler=take)
    fill(things, *range(5))
    moment = Event.objects.at(things, 1).logged_at
    age_log(things, timedelta(hours=2))
    fill(things, *range(5))
    serve_due(reader)

    assert "is rewound" in events("rewind", "reader", "--to", "3", "--execute").out
    assert reached(reader) == [2]
    forward = events("rewind", "reader", "--to", "end", "--execute")
    assert "8 left out" in forward.out
    assert reached(reader) == [10]
    assert "5 come again" in events("rewind", "reader", "--to", moment.isoformat(), "--execute").out
    assert reached(reader) == [5]
    assert "none" in events("rewind", "reader", "--to", "6", "--execute").out


@pytest.mark.slow
def test_a_site_without_time_zones_rewinds_to_the_same_moment(events: Run, things, make_consumer, settings) -> None:
    reader = make_consumer(things, handler=take)
    fill(things, *range(5))
    moment = Event.objects.at(things, 1).logged_at
    age_log(things, timedelta(minutes=1))
    fill(things, *range(5))
    serve_due(reader)
    settings.USE_TZ = False
    connection.close()
    try:
        answer = events("rewind", "reader", "--to", moment.isoformat(), "--execute")
        shown = events("peek", "things", "--at", "6", "--format", "json").data
    finally:
        settings.USE_TZ = True
        connection.close()

    assert answer.code == 0
    assert reached(reader) == [5]
    assert datetime.fromisoformat(shown["logged_at"]) == Event.objects.at(things, 6).logged_at


@pytest.mark.slow
def test_rewind_to_so_long_ago(events: Run, things, make_consumer) -> None:
    reader = make_consumer(things, handler=take)
    fill(things, 1, 2)
    serve_due(reader)
    events("rewind", "reader", "--to=-2h", "--execute")
    assert reached(reader) == [0]

    events("rewind", "reader", "--to", "0s", "--execute")
    assert reached(reader) == [2]
    assert [row["id"] for row in events("peek", "things", "--from", "1d", "--format", "json").data] == [1, 2]
    assert events("peek", "things", "--to", "1d", "--format", "json").data == []


@pytest.mark.slow
def test_rewind_one_partition(events: Run, lanes, make_consumer) -> None:
    reader = make_consumer(lanes, handler=take)
    fill(lanes, *range(40))
    serve_due(reader)
    before = reached(reader)
    events("rewind", "reader", "--to", "1", "--partition", "2", "--execute")

    assert reached(reader) == [*before[:2], 0, before[3]]


@pytest.mark.slow
def test_rewind_tells_which_dead_letters_it_drops(events: Run, things, make_consumer) -> None:
    reader = make_consumer(things, handler=fail, retry=ONE_ATTEMPT)
    fill(things, 1, 2, 3)
    serve_due(reader)

    assert "2 dropped" in events("rewind", "reader", "--to", "2").out
    assert len(dead_letters(reader)) == 3
    assert "2 dropped" in events("rewind", "reader", "--to", "2", "--execute").out
    assert [letter.event_id for letter in dead_letters(reader)] == [1]


@pytest.mark.slow
def test_an_id_is_a_place_in_one_topic(events: Run, things, lanes, make_consumer) -> None:
    reader = make_consumer(things, lanes, handler=take)
    fill(things, 1, 2)
    serve_due(reader)
    answer = events("rewind", "reader", "--to", "1", "--execute")

    assert (answer.code, answer.out) == (2, "")
    assert "and 1 is an offset in one of them. Say --topic." in answer.err
    assert events("rewind", "reader", "--to", "1", "--topic", "things", "--execute").code == 0
    assert events("rewind", "reader", "--to", "beginning", "--execute").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--to", "99"], 1, "Topic things ends at 1, so event 99 doesn't exist yet"),
        (["--to", "99", "--execute"], 1, "Topic things ends at 1, so event 99 doesn't exist yet"),
        (["--to", "end", "--partition", "7"], 1, "has no position in partition 7"),
        (["--to", "yesterday"], 2, "'yesterday' is no start in a log"),
        (["--to", "2026-11-20"], 2, "has no time zone, expected 2026-11-20T00:00:00Z for UTC"),
        ([], 2, "--to"),
        (["--to", "end", "--topic", "thinks"], 2, "Did you mean 'things'?"),
        (["--to", "end", "--wait", "0"], 2, "0 is too few"),
    ],
)
@pytest.mark.few(4)
def test_rewind_refuses(events: Run, things, make_consumer, arguments: list[str], code: int, said: str) -> None:
    reader = make_consumer(things, handler=take)
    fill(things, 1)
    answer = events("rewind", "reader", *arguments)

    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert reached(reader) == [0]


@pytest.mark.slow
@pytest.mark.requirement("E12")
def test_rewind_waits_for_what_is_in_hand_and_not_for_ever(events: Run, things, make_consumer) -> None:
    reader = make_consumer(things, handler=take)
    fill(things, 1)
    lease = lease_of(reader, holder="host:7/1")
    assert lease is not None
    answer = events("rewind", "reader", "--to", "end", "--wait", "1", "--execute")
    lease.release()

    assert (answer.code, answer.out) == (1, "")
    assert "is still handling events after 1 s, by host:7/1. Nothing was changed." in answer.err


# --- unregister


@pytest.mark.slow
@pytest.mark.requirement("E12")
def test_unregister_is_a_dry_run_unless_told_to(events: Run, things, lanes, make_consumer) -> None:
    reader = make_consumer(things, lanes, handler=take)
    fill(things, 1)
    declarations.consumers.discard(reader)
    table = events("unregister", "reader", "--topic", "things")

    assert table.out.splitlines()[1].split() == ["reader", "things", "idle", "0", "1"]
    assert "Nothing was changed. To do it, say the same with --execute." in table.out
    assert Consumer.objects.filter(name="reader").count() == 2
    done = events("unregister", "reader", "--topic", "things", "--execute", "--format", "json").data
    assert (done["executed"], [row["topic"] for row in done["consumers"]]) == (True, ["things"])
    assert [row.topic.name for row in Consumer.objects.filter(name="reader")] == ["lanes"]
    assert "Consumer reader is forgotten." in events("unregister", "reader", "--execute").out
    assert not Consumer.objects.filter(name="reader").exists()


@pytest.mark.slow
@pytest.mark.requirement("E12")
@pytest.mark.parametrize("execute", [[], ["--execute"]])
def test_unregister_refuses_what_is_declared_at_work_or_has_dead_letters(
    events: Run, things, make_consumer, execute: list[str]
) -> None:
    reader = make_consumer(things, handler=fail, retry=ONE_ATTEMPT)
    fill(things, 1)
    declared = events("unregister", "reader", *execute)
    declarations.consumers.discard(reader)
    lease = lease_of(reader)
    assert lease is not None
    at_work = events("unregister", "reader", *execute)
    lease.release()
    serve_due(reader)
    with_letters = events("unregister", "reader", *execute)

    assert [declared.code, at_work.code, with_letters.code] == [1, 1, 1]
    assert "is declared at" in declared.err
    assert "is handling events now" in at_work.err
    assert "has 1 dead letters, which would be lost" in with_letters.err
    assert Consumer.objects.filter(name="reader").exists()


# --- dead letters


@pytest.fixture
def burying(things, make_consumer) -> declarations.DeclaredConsumer:
    """A consumer that gave up on three events."""
    reader: declarations.DeclaredConsumer = make_consumer(things, handler=fail, retry=ONE_ATTEMPT)
    fill(things, {"n": 1}, key="a", type="thing.made")
    fill(things, {"n": 2}, key="a")
    fill(things, {"n": 3}, key="b")
    serve_due(reader)
    return reader


@pytest.mark.slow
@pytest.mark.requirement("S6")
def test_dead_letters_are_listed(events: Run, burying) -> None:
    table, data = events("dead-letters", "reader"), events("dead-letters", "--format", "json").data

    assert [row["address"] for row in data] == ["things/1", "things/2", "things/3"]
    assert {name: data[0][name] for name in ("consumer", "topic", "id", "partition", "key", "type", "attempts")} == {
        "consumer": "reader",
        "topic": "things",
        "id": 1,
        "partition": 0,
        "key": "a",
        "type": "thing.made",
        "attempts": 1,
    }
    assert data[0]["error"] == "ValueError: no such order"
    assert datetime.fromisoformat(data[0]["dead_at"]).tzinfo == UTC
    assert table.out.splitlines()[1].startswith("things/1  reader    a    thing.made         1  20")
    assert table.err == ""


@pytest.fixture
def varied(things, make_consumer) -> declarations.DeclaredConsumer:
    """A consumer with dead letters of three errors, of other types and keys."""

    def fail_by_type(event: Any) -> None:
        if event.type == "thing.lost":
            raise LookupError(f"no order {event.id} at {object()!r}")
        raise ValueError(f"bad {event.value}")

    reader: declarations.DeclaredConsumer = make_consumer(things, handler=fail_by_type, retry=ONE_ATTEMPT)
    for number in range(1, 5):
        fill(things, number, key="ab"[number % 2], type="thing.lost")
    fill(things, "x", key="c", type="thing.made")
    serve_due(reader)
    return reader


def ids_of(letters: list[DeadLetter]) -> list[int]:
    return sorted(letter.event_id for letter in letters)


LOST = (
    "LookupError in tests.integration.management.test_events_command:fail_by_type: no order # at <object object at #>"
)


@pytest.mark.slow
@pytest.mark.requirement("S6")
def test_dead_letters_are_counted_by_error(events: Run, varied) -> None:
    data = events("dead-letters", "--by-error", "--format", "json").data

    assert [(o["letters"], o["consumer"], o["topic"]) for o in data] == [
        (4, "reader", "things"),
        (1, "reader", "things"),
    ]
    assert data[0]["fingerprint"] == LOST
    assert data[0]["oldest"] < data[0]["newest"]
    table = events("dead-letters", "--by-error", "--limit", "1")
    assert "LookupError in tests" in table.out
    assert "ValueError" not in table.out
    assert "There are more than these 1: --limit shows them." in table.err
    assert events("dead-letters", "--by-error", "--type", "none").out == "No dead letters.\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--error", LOST], [1, 2, 3, 4]),
        (["--error", "no order 2"], [2]),
        (["--error", "% order"], []),
        (["--type", "thing.made"], [5]),
        (["--key", "a"], [2, 4]),
        (["--key", "a", "--error", "no order 4"], [4]),
        (["--since", "1h"], [1, 2, 3, 4, 5]),
        (["--until=-1h"], []),
        (["--until", "2100-01-01T00:00:00Z", "--key", "c"], [5]),
    ],
)
@pytest.mark.requirement("S6")
@pytest.mark.few(4)
def test_dead_letters_are_chosen_alike_to_list_and_to_act(
    events: Run, varied, arguments: list[str], ids: list[int]
) -> None:
    addresses = [f"things/{event_id}" for event_id in ids]

    assert [o["id"] for o in events("dead-letters", "reader", *arguments, "--format", "json").data] == ids
    discarded = events("discard", "reader", *arguments, "--reason", "x", "--format", "json").data
    assert (discarded["dead_letters"], discarded["executed"], len(dead_letters(varied))) == (addresses, False, 5)
    events("discard", "reader", *arguments, "--reason", "x", "--execute")
    assert ids_of(dead_letters(varied)) == sorted({1, 2, 3, 4, 5} - set(ids))


@pytest.mark.slow
def test_redrive_by_error(events: Run, varied) -> None:
    data = events("redrive", "reader", "--error", "LookupError", "--execute", "--format", "json").data

    assert (data["count"], data["executed"]) == (4, True)
    assert ids_of(list(DeadLetter.objects.of(varied).waiting())) == [1, 2, 3, 4]


@pytest.mark.parametrize("arguments", [["--all", "--error", "x"], ["things/1", "--type", "x"], []])
def test_dead_letters_are_chosen_in_one_way(events: Run, varied, arguments: list[str]) -> None:
    answer = events("redrive", "reader", *arguments)

    assert answer.code == 2
    assert "one of these three" in answer.err


@pytest.mark.slow
def test_dead_letters_up_to_a_limit(events: Run, burying) -> None:
    answer = events("dead-letters", "--limit", "2", "--format", "json")

    assert [row["id"] for row in answer.data] == [1, 2]
    assert "There are more than these 2: --limit shows them." in answer.err


@pytest.mark.slow
def test_no_dead_letters(events: Run, things, make_consumer) -> None:
    make_consumer(things, handler=take)

    assert events("dead-letters", "reader").out == "No dead letters.\n"
    assert events("dead-letters", "reader", "--format", "json").data == []
    assert events("redrive", "reader", "--all").out == "Consumer reader has no such dead letters.\n"


@pytest.mark.slow
def test_a_dead_letter_is_shown_whole(events: Run, burying) -> None:
    table = events("dead-letters", "reader", "--show", "things/2").out
    data = events("dead-letters", "--show", "things/2", "--format", "json").data

    assert (data["address"], data["value"], data["number"]) == ("things/2", {"n": 2}, 2)
    assert "in fail" in data["traceback"]
    assert 'raise ValueError("no such order")' in table
    assert '{\n  "n": 2\n}' in table
    assert events("dead-letters", "reader", "--show", "2", "--format", "json").data == data


def test_a_dead_letter_that_is_not_there_is_not_shown(events: Run, burying) -> None:
    answer = events("dead-letters", "reader", "--show", "things/9")

    assert (answer.code, answer.out) == (1, "")
    assert "There is no dead letter things/9." in answer.err


@pytest.mark.slow
def test_a_dead_letter_of_several_consumers_has_to_be_named(events: Run, burying, things, make_consumer) -> None:
    serve_due(make_consumer(things, handler=fail, name="other", retry=ONE_ATTEMPT))
    answer = events("dead-letters", "--show", "things/1")

    assert (answer.code, answer.out) == (2, "")
    assert "reader things/1" in answer.err
    assert "other things/1" in answer.err
    assert events("dead-letters", "other", "--show", "things/1").code == 0


@pytest.mark.slow
@pytest.mark.requirement("S6")
def test_redrive_is_a_dry_run_unless_told_to(events: Run, burying) -> None:
    table = events("redrive", "reader", "things/1", "2")
    data = events("redrive", "reader", "things/1", "2", "--format", "json").data

    assert table.out.startswith("2 dead letters of consumer reader would be handled again: things/1, things/2.")
    assert "say the same with --execute" in table.out
    assert data == {"consumer": "reader", "executed": False, "count": 2, "dead_letters": ["things/1", "things/2"]}
    assert not DeadLetter.objects.of(burying).waiting().exists()

    done = events("redrive", "reader", "things/1", "2", "--execute", "--by", "ada")
    assert done.out == "Consumer reader handles 2 dead letters again, as soon as a worker takes them.\n"
    assert [letter.event_id for letter in DeadLetter.objects.of(burying).waiting()] == [1, 2]
    assert "waits" in events("dead-letters").out
    [row] = Intervention.objects.all()
    assert (row.action, row.by, row.details["events"]) == ("redrive", "ada", [1, 2])


@pytest.mark.slow
def test_redrive_all(events: Run, burying) -> None:
    assert events("redrive", "reader", "--all", "--execute", "--format", "json").data == {
        "consumer": "reader",
        "executed": True,
        "count": 3,
        "dead_letters": ["things/1", "things/2", "things/3"],
    }
    assert DeadLetter.objects.of(burying).waiting().count() == 3


@pytest.mark.parametrize("execute", [[], ["--execute"]])
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["things/2"], 1, "can't be handled before things/1, which is older and has the same key 'a'"),
        (["things/1", "things/9"], 1, "Consumer reader has no dead letter things/9. Nothing was changed."),
        (["thinks/1"], 2, "Did you mean 'things'?"),
        (["one"], 2, "'one' is no id"),
        ([], 2, "or say --all: one of these three."),
        (["things/1", "--all"], 2, "or say --all: one of these three."),
    ],
)
@pytest.mark.few(4)
def test_redrive_refuses(events: Run, burying, arguments: list[str], code: int, said: str, execute: list[str]) -> None:
    answer = events("redrive", "reader", *arguments, *execute)

    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert not DeadLetter.objects.of(burying).waiting().exists()


@pytest.mark.slow
def test_of_several_topics_an_event_is_named_by_its_address(events: Run, things, lanes, make_consumer) -> None:
    reader = make_consumer(things, lanes, handler=fail, retry=ONE_ATTEMPT)
    fill(things, 1)
    fill(lanes, 1)
    serve_due(reader)
    answer = events("redrive", "reader", "1")

    assert answer.code == 2
    assert "say which, like" in answer.err
    assert events("redrive", "reader", "lanes/1", "--execute", "--format", "json").data["dead_letters"] == ["lanes/1"]
    assert [letter.consumer.topic.name for letter in DeadLetter.objects.of(reader).waiting()] == ["lanes"]


@pytest.mark.slow
@pytest.mark.requirement("S6")
def test_discard_is_a_dry_run_unless_told_to(events: Run, burying) -> None:
    table = events("discard", "reader", "--all", "--reason", "test orders")
    assert table.out.startswith("3 dead letters of consumer reader would be deleted: things/1, things/2, things/3.")
    assert len(dead_letters(burying)) == 3

    done = events("discard", "reader", "things/2", "--reason", "a test order", "--execute", "--format", "json").data
    assert done == {"consumer": "reader", "executed": True, "count": 1, "dead_letters": ["things/2"]}
    assert [letter.event_id for letter in dead_letters(burying)] == [1, 3]
    [row] = Intervention.objects.all()
    assert (row.action, row.details) == ("discard", {"count": 1, "events": [2], "reason": "a test order"})
    assert events("discard", "reader", "--all", "--reason", "x", "--execute").out == "2 dead letters discarded.\n"


@pytest.mark.slow
@pytest.mark.parametrize("reason", [[], ["--reason", " "]])
def test_discard_needs_a_reason(events: Run, burying, reason: list[str]) -> None:
    answer = events("discard", "reader", "--all", "--execute", *reason)

    assert (answer.code, answer.out) == (2, "")
    assert "--reason" in answer.err
    assert len(dead_letters(burying)) == 3


@pytest.mark.slow
def test_a_long_list_is_cut_for_people_only(events: Run, things, make_consumer) -> None:
    reader = make_consumer(things, handler=fail, retry=ONE_ATTEMPT)
    fill(things, *range(25))
    serve_due(reader)

    assert "things/20 and 5 more." in events("redrive", "reader", "--all").out
    assert len(events("redrive", "reader", "--all", "--format", "json").data["dead_letters"]) == 25


# --- interventions


@pytest.mark.slow
def test_interventions_are_listed_the_newest_first(events: Run, burying) -> None:
    assert events("interventions").out == "No interventions.\n"
    events("pause", "reader", "--by", "ada")
    events("discard", "reader", "--all", "--reason", "test orders", "--by", "ben", "--execute")
    declarations.consumers.discard(burying)
    events("unregister", "reader", "--by", "cleo", "--execute")
    data, table = events("interventions", "reader", "--format", "json").data, events("interventions", "--limit", "2")

    assert [(row["action"], row["by"]) for row in data] == [
        ("unregister", "cleo"),
        ("discard", "ben"),
        ("pause", "ada"),
    ]
    assert data[1]["details"] == {"count": 3, "events": [1, 2, 3], "reason": "test orders"}
    assert [line.split()[2:4] for line in table.out.splitlines()[1:]] == [["cleo", "unregister"], ["ben", "discard"]]
    assert "reason: test orders" in table.out
    stranger = events("interventions", "readers")
    assert (stranger.code, stranger.out) == (2, "")
    assert "No consumer 'readers' is registered" in stranger.err


def test_who_does_it_is_the_user_of_the_process_if_no_name_is_given(
    events: Run, things, make_consumer, monkeypatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "dan")
    make_consumer(things, handler=take)
    events("pause", "reader")

    assert events("interventions", "--format", "json").data[0]["by"].startswith("dan@")


# --- all of them


def test_without_a_subcommand_the_help_is_printed(events: Run) -> None:
    answer = events()

    assert answer.code == 0
    assert all(subcommand.name in answer.out for subcommand in ALL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["statsu"], "There is no subcommand 'statsu'. Did you mean 'status'?"),
        (["--no-color", "deadletters"], "Did you mean 'dead-letters'?"),
        (["xyz"], "Known are: ack, as-of, bench, bridges, cancel, check-projection, claim, clock, consumers"),
    ],
)
def test_an_unknown_subcommand_is_wrong_usage(events: Run, arguments: list[str], said: str) -> None:
    answer = events(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


@pytest.mark.slow
def test_an_argument_too_many_is_told_with_the_usage_of_the_subcommand(events: Run) -> None:
    answer = events("verify", "orders")

    assert answer.code == 2
    assert answer.err.startswith("usage: manage.py events verify ")
    assert answer.err.rstrip().endswith("manage.py events verify: error: unrecognized arguments: orders")


def test_a_database_that_is_read_only_is_told_with_the_way_out(events: Run, things, make_consumer) -> None:
    make_consumer(things, handler=print)
    options = {**connection.settings_dict["OPTIONS"], "options": "-c default_transaction_read_only=on"}
    with named_alias(OPTIONS=options):
        answer = events("pause", "reader", "--reason", "a failover", "--database", "other")

    assert answer.code == 1
    assert "is a standby, or read-only by default: point the alias at the primary, or promote it." in answer.err


def test_an_unknown_format_is_wrong_usage(events: Run) -> None:
    answer = events("status", "--format", "yaml")

    assert (answer.code, answer.out) == (2, "")
    assert "yaml" in answer.err


def test_djangos_options_stand_before_and_behind_the_subcommand(events: Run) -> None:
    before = events("--no-color", "--settings", "testproject.settings", "topics")
    behind = events("topics", "--settings", "testproject.settings", "--no-color", "--traceback", "-v", "2")

    assert (before.code, behind.code) == (0, 0)
    assert before.out == behind.out


@pytest.mark.slow
def test_it_can_be_called_from_code(things, make_consumer, capsys) -> None:
    make_consumer(things, handler=take)
    call_command("events", "pause", "reader", format="json", by="ada")
    assert json.loads(capsys.readouterr().out) == {"consumer": "reader", "topics": ["things"]}

    with pytest.raises(CommandError, match="Did you mean 'reader'") as raised:
        call_command("events", "pause", "raeder")
    assert raised.value.returncode == 2


@pytest.fixture
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    """Another database: none that answers, one without our tables, or one of another kind."""
    changes = {
        "unreachable": {"HOST": "127.0.0.1", "PORT": "1", "PASSWORD": "secret"},
        "empty": {"NAME": "template1"},
        "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}},
    }
    connections.settings["away"] = {**connections["default"].settings_dict, **changes[request.param]}
    if request.param == "unreachable":
        connections.settings["away"]["ENGINE"] = "django.db.backends.postgresql"
    yield "away"
    connections["away"].close()
    del connections["away"]
    del connections.settings["away"]


SUBCOMMANDS = {
    "status": [],
    "verify": [],
    "doctor": [],
    "health": [],
    "topics": [],
    "consumers": [],
    "workers": [],
    "scale": ["billing"],
    "peek": ["orders"],
    "tail": ["orders"],
    "fate": ["orders/1"],
    "match": ["billing"],
    "search": ["orders", "a text"],
    "schemas": [],
    "publish": ["orders", "1"],
    "scheduled": [],
    "cancel": ["orders", "1", "--reason", "a test"],
    "publish-scheduled": ["orders", "1"],
    "clock": [],
    "import-beat": ["tasks"],
    "bridges": [],
    "inbox": ["restart", "payments-in", "--from", "end"],
    "snapshot": ["shop.Product"],
    "subscribe": ["acme", "orders", "--keep"],
    "unsubscribe": ["acme"],
    "webhooks": [],
    "claim": ["receipts"],
    "ack": ["1"],
    "nack": ["1"],
    "extend": ["1"],
    "pause": ["billing"],
    "resume": ["billing"],
    "retry-now": ["billing"],
    "skip": ["billing", "1", "--reason", "x"],
    "rewind": ["billing", "--to", "end"],
    "replay": ["billing", "--ids", "1", "--reason", "x"],
    "rebuild": ["billing"],
    "check-projection": ["billing"],
    "as-of": ["billing", "--key", "ada", "--at", "1"],
    "unregister": ["billing"],
    "dead-letters": [],
    "redrive": ["billing", "--all"],
    "discard": ["billing", "--all", "--reason", "x"],
    "erase": ["things", "--key", "7", "--reason", "a test"],
    "repartition": ["orders", "2"],
    "shards": [],
    "remove-topic": ["orders"],
    "interventions": [],
    "maintain": [],
    "bench": [],
    "grants": ["--role", "reader"],
}
ASKING = [name for name in SUBCOMMANDS if name != "schemas"]  # it asks the database about a topic with schemas only


def test_every_subcommand_is_in_the_list():
    assert list(SUBCOMMANDS) == [subcommand.name for subcommand in ALL]


@pytest.mark.parametrize("subcommand", ASKING)
@pytest.mark.parametrize("alias", ["unreachable"], indirect=True)
@pytest.mark.few(6)
def test_a_database_out_of_reach_has_an_exit_code_of_its_own(events: Run, alias: str, subcommand: str) -> None:
    answer = events(subcommand, *SUBCOMMANDS[subcommand], "--database", alias, "--format", "json")

    assert (answer.code, answer.out) == (75, "")
    assert "The database 'away' can't be reached." in answer.err
    assert "Traceback" not in answer.err
    assert "secret" not in answer.err


@pytest.mark.parametrize("subcommand", ASKING)
@pytest.mark.parametrize("alias", ["empty"], indirect=True)
@pytest.mark.few(6)
def test_a_database_without_tables_names_the_way_out(events: Run, alias: str, subcommand: str) -> None:
    answer = events(subcommand, *SUBCOMMANDS[subcommand], "--database", alias)

    said = answer.out if subcommand in ("doctor", "health") else answer.err  # to those it is an answer
    assert answer.code == 1
    assert answer.out == "" or said is answer.out
    assert "manage.py migrate --database away" in said
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_database_of_another_kind_is_wrong_usage(events: Run, alias: str) -> None:
    answer = events("status", "--database", alias)

    assert (answer.code, answer.out) == (2, "")
    assert "The database 'away' is sqlite; events need PostgreSQL." in answer.err


def test_an_unknown_database_is_wrong_usage(events: Run) -> None:
    answer = events("status", "--database", "elsewhere")

    assert (answer.code, answer.out) == (2, "")
    assert "There is no database 'elsewhere'. Known are: default" in answer.err


@pytest.mark.slow
@pytest.mark.requirement("X14")
def test_clock_lists_pauses_resumes_and_runs(events: Run, things) -> None:
    assert events("clock").out == "No clocks.\n"
    clock = things.every("0 3 * * *", type="nightly")
    try:
        sync_clocks("default")
        [row] = events("clock", "--format", "json").data
        assert (row["clock"], row["cron"], row["declared"], row["paused_at"]) == (clock.name, "0 3 * * *", True, None)
        assert "things.nightly" in events("clock").out
        assert "overlapped" not in events("clock").out

        assert events("clock", "pause", clock.name).out == "Clock things.nightly is paused.\n"
        assert "was paused already" in events("clock", "pause", clock.name).out
        assert events("clock", "--format", "json").data[0]["next_at"] is None
        assert events("clock", "resume", clock.name).out == "Clock things.nightly goes on.\n"
        assert events("clock", "resume", clock.name, "--format", "json").data == {"clock": clock.name, "changed": False}
        assert "ticks now" in events("clock", "run", clock.name, "--by", "ada").out
        assert Intervention.objects.filter(action="run", by="ada").count() == 1
    finally:
        declarations.clocks.discard(clock)


@pytest.mark.requirement("X14")
def test_clock_says_which_consumer_keeps_ticks_away(events: Run, things) -> None:
    clock = things.every("0 3 * * *", type="nightly", overlap="skip")
    try:
        sync_clocks("default")
        Clock.objects.update(
            overlapped=2, overlapped_at=ClockTimestamp(), overlapped_by="writer", overlapped_as="paused"
        )
        [row] = events("clock", "--format", "json").data
        assert (row["overlap"], row["overlapped"], row["overlapped_by"], row["overlapped_as"]) == (
            "skip",
            2,
            "writer",
            "paused",
        )
        assert "overlapped by" in events("clock").out and "writer" in events("clock").out
    finally:
        declarations.clocks.discard(clock)


@pytest.mark.parametrize("arguments", [["pause"], ["list", "things.nightly"], ["stop", "things.nightly"]])
def test_clock_with_wrong_usage(events: Run, arguments: list[str]) -> None:
    assert events("clock", *arguments).code == 2


def test_a_clock_that_no_app_declares_is_removed(events: Run, things) -> None:
    clock = things.every("0 3 * * *", type="nightly")
    try:
        sync_clocks("default")
        assert "is declared at" in events("clock", "remove", clock.name, "--execute").err
    finally:
        declarations.clocks.discard(clock)
    assert events("clock", "remove", clock.name).out.startswith("Clock things.nightly would be removed.")
    assert Clock.objects.exists()
    done = events("clock", "remove", clock.name, "--execute", "--reason", "gone", "--by", "ada", "--format", "json")
    assert done.data == {"clock": clock.name, "executed": True}
    assert not Clock.objects.exists()
    told = Intervention.objects.get()
    assert (told.action, told.by, told.details["reason"]) == ("remove", "ada", "gone")


@pytest.mark.slow
def test_a_tick_that_is_overdue_is_a_problem(events: Run, things) -> None:
    clock = things.every("0 3 * * *", type="nightly")
    try:
        sync_clocks("default")
        assert kinds(events("status", "--format", "json")) == []
        Clock.objects.update(next_at=ClockTimestamp() - timedelta(minutes=5))
        [found] = events("status", "--format", "json").data["findings"]
        assert (found["kind"], found["severity"], found["topic"]) == ("clock", "error", "things")
        assert "is due since 5 min" in found["what"] and found["data"] == {"clock": clock.name}
        measured = {one.labels: one.value for one in read("default") if one.metric is CLOCK_OVERDUE}
        assert 299 < measured[("default", clock.name)] < 400
        pause_clock(clock)
        assert kinds(events("status", "--format", "json")) == []
        assert {one.value for one in read("default") if one.metric is CLOCK_OVERDUE} == {0}
    finally:
        declarations.clocks.discard(clock)
    resume = Clock.objects.update(paused_at=None)
    assert resume and kinds(events("status", "--format", "json")) == []


@pytest.mark.slow
def test_scheduled_events_are_published_now(events: Run, things) -> None:
    for n in (1, 2, 3):
        publish(things, n, key=f"k{n % 2}", publish_at=datetime.now(UTC) + timedelta(days=n))
    tickets = list(ScheduledEvent.objects.order_by("pk").values_list("pk", flat=True))

    asked = events("publish-scheduled", "things", tickets[0], "--format", "json")
    assert (asked.data["executed"], len(asked.data["events"]), transfer_all()) == (False, 1, 0)
    assert "2 events would be published." in events("publish-scheduled", "things", "--key", "k1").out
    done = events("publish-scheduled", "things", "--key", "k1", "--reason", "now", "--execute", "--format", "json")
    assert done.data == {"executed": True, "published": 2}
    transfer_all()
    assert [event.value for event in Event.objects.since(things)] == [1, 3]
    assert Intervention.objects.get().details["tickets"] == [tickets[0], tickets[2]]
    assert "no scheduled event with the ticket" in events("publish-scheduled", "things", tickets[0]).err


def test_verbs_take_a_reason(events: Run, lanes, make_consumer) -> None:
    make_consumer(lanes, handler=take)
    events("pause", "reader", "--reason", "the bank is down")
    events("resume", "reader", "--reason", "it is back")

    assert [one.details["reason"] for one in Intervention.objects.order_by("pk")] == ["the bank is down", "it is back"]


def test_clock_of_an_unknown_name(events: Run, things) -> None:
    answer = events("clock", "pause", "things.nightly")
    assert answer.code == 2
    assert "has no clock 'things.nightly'" in answer.err
