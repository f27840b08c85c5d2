"""The worst values by every way of publishing, and every reader of them: refused, or the neighbours go on."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from pyspark.sql.types import StructType

from django_events import BufferedWriter, Draft, models, publish, publish_many
from django_events.exceptions import EventsError, InvalidEvent, Refused
from django_events.operations import erase
from django_events.reading.ranges import Range
from django_events.spark.options import for_batch, for_sink
from django_events.spark.sink import Sink
from tests.support import worst_values
from tests.support.fix_consumers import exhaust, position_of, run_once
from tests.support.fix_queues import AT_ONCE, pending
from tests.support.fix_topics import transfer_all
from tests.support.publishing_app.models import Everything

pytestmark = [pytest.mark.usefixtures("transactional_db", "shelf"), pytest.mark.requirement("D4")]

PAST = datetime(2020, 1, 1, tzinfo=UTC)
IN_SQL_REFUSED = set(worst_values.EXPANDING)
FEW = [*worst_values.EXPANDING, *worst_values.UNDECODED, "JSON null", "a key of 100,000 characters"]


@pytest.fixture
def dsn() -> str:
    """The test's database for those that connect by themselves."""
    parameters = connection.get_connection_params()
    for django_only in ("cursor_factory", "context", "client_encoding", "prepare_threshold"):
        parameters.pop(django_only, None)
    return make_conninfo("", **parameters)


def execute(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def in_sql(statement: str) -> Callable[[str, str], None]:
    """Publish by a statement, into which the value is put."""

    def publish_it(dsn: str, name: str) -> None:
        execute(statement.replace("{value}", worst_values.ALL[name]))

    return publish_it


def in_python(send: Callable[[Any], object]) -> Callable[[str, str], None]:
    def publish_it(dsn: str, name: str) -> None:
        send(worst_values.IN_PYTHON[name]())

    return publish_it


def by_writer(value: Any) -> None:
    with BufferedWriter("things") as writer:
        writer.publish(value)


def captured(statement: str) -> Callable[[str, str], None]:
    """Change a table that is captured, and let its event be one of this topic."""

    def publish_it(dsn: str, name: str) -> None:
        try:
            execute("INSERT INTO publishing_app_everything (text) VALUES ('before')")
            execute(statement.replace("{value}", worst_values.ALL[name]))
        finally:
            execute(
                "UPDATE django_events_bufferedevent SET topic_id = (SELECT id FROM django_events_topic WHERE name = %s)"
                " WHERE value ->> 'text' = 'captured'",
                "things",
            )
            execute("SET django_events.suppressed = '*'")
            models.BufferedEvent.objects.exclude(topic__name="things").delete()
            execute("DELETE FROM publishing_app_everything")
            execute("RESET django_events.suppressed")
            models.BufferedEvent.objects.exclude(topic__name="things").delete()

    return publish_it


def by_outbox(value: Any) -> None:
    try:
        with transaction.atomic():
            Everything.objects.create(json=value, text="outbox")
    finally:
        execute(
            "UPDATE django_events_bufferedevent SET topic_id = (SELECT id FROM django_events_topic WHERE name = %s)"
            " WHERE type = 'everything.created' AND value ->> 'text' = 'outbox'",
            "things",
        )
        models.BufferedEvent.objects.exclude(topic__name="things").delete()
        execute("DELETE FROM publishing_app_everything")
        models.BufferedEvent.objects.exclude(topic__name="things").delete()


def by_sink(dsn: str, name: str) -> None:
    [[text]] = execute(f"SELECT {worst_values.text_of(name)}")
    schema = StructType().add("value", "string")
    sink = Sink(for_sink({"dsn": dsn, "topic": "things"}), schema, overwrite=False)
    staged = [sink.stage(iter([pa.RecordBatch.from_pydict({"value": [text]})]))]
    try:
        sink.publish(staged, None, 0)
    except Refused:
        sink.forget(staged)
        raise


class Way(NamedTuple):
    publish: Callable[[str, str], None]
    refused: set[str]
    names: list[str]


def way_of_sql(publish_it: Callable[[str, str], None], refused: set[str] = IN_SQL_REFUSED) -> Way:
    return Way(publish_it, refused, FEW if refused else list(worst_values.ALL))


def way_of_python(send: Callable[[Any], object], refused: set[str] = worst_values.REFUSED_IN_PYTHON) -> Way:
    return Way(in_python(send), refused, list(worst_values.IN_PYTHON))


WAYS = {
    "publish": way_of_python(partial(publish, "things")),
    "publish with publish_at": way_of_python(partial(publish, "things", publish_at=PAST)),
    "publish_many": way_of_python(lambda value: publish_many("things", [Draft(value=value)])),
    "publish_many of many": way_of_python(
        lambda value: publish_many("things", [Draft(value=value)] + [Draft(value=0)] * 100)
    ),
    "publish_many for later": way_of_python(
        lambda value: publish_many("things", [Draft(value=value, publish_at=PAST)])
    ),
    "metadata": way_of_python(lambda value: publish("things", 1, metadata={"value": value})),
    "BufferedWriter": way_of_python(by_writer),
    "@outbox": way_of_python(
        by_outbox, worst_values.REFUSED_IN_PYTHON - {"two keys of one name"}
    ),  # it saves one of them
    "django_events_publish": way_of_sql(in_sql("SELECT django_events_publish('things', {value})")),
    "metadata in SQL": way_of_sql(
        in_sql("SELECT django_events_publish('things', '1', metadata => jsonb_build_object('value', {value}))")
    ),
    "django_events_publish from a table": way_of_sql(
        in_sql(
            "WITH made AS (INSERT INTO worst_stored SELECT {value} RETURNING 1) SELECT count(*) FROM made;"
            "SELECT django_events_publish('things', value) FROM worst_stored"
        )
    ),
    "django_events_schedule": way_of_sql(in_sql("SELECT django_events_schedule('things', now(), {value})")),
    "capture() of an INSERT": way_of_sql(
        captured("INSERT INTO publishing_app_everything (text, json) SELECT 'captured', {value}")
    ),
    "capture() of an UPDATE": way_of_sql(
        captured("UPDATE publishing_app_everything SET text = 'captured', json = {value}")
    ),
    "Spark's sink": way_of_sql(by_sink),
    "INSERT into the buffer": way_of_sql(
        in_sql(
            "INSERT INTO django_events_bufferedevent (topic_id, value) SELECT django_events_open('things'), {value}"
        ),
        set(),
    ),
}


@pytest.fixture
def stored(transactional_db: None) -> Iterator[None]:
    execute("CREATE TABLE worst_stored (value jsonb)")
    yield
    execute("DROP TABLE worst_stored")


class Noted:
    """A handler that decodes what it gets, and notes which of the neighbours it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, given: Any) -> None:
        for event in given if isinstance(given, list) else [given]:
            value, _ = event.value, event.metadata
            if event.key == "good":
                self.seen.append(value)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.few(4)
def test_each_value_is_refused_or_read(way, things, make_consumer, make_queue, stored, dsn, capsys, caplog):
    caplog.set_level("CRITICAL")
    good, culprits = 0, []
    for name in WAYS[way].names:
        publish(things, good, key="good")
        good += 1
        execute("TRUNCATE worst_stored")
        try:
            WAYS[way].publish(dsn, name)
        except (EventsError, DatabaseError, psycopg.Error, ValueError, RecursionError) as error:
            assert name in WAYS[way].refused, f"{name}: {error}"
            by_django = way == "@outbox" and isinstance(
                error, ValueError | RecursionError
            )  # the column is JSON as well
            by_us = isinstance(error, InvalidEvent | Refused) or "No reader could make" in str(error)
            assert by_us or by_django, f"{name}: {error}"
            culprits.append(name)
        else:
            assert name not in WAYS[way].refused, name
    publish(things, good, key="good")
    transfer_all()
    assert set(culprits) == WAYS[way].refused & set(WAYS[way].names)
    read_everywhere(things, good + 1, make_consumer, make_queue, dsn, capsys)


def read_everywhere(things, good, make_consumer, make_queue, dsn, capsys) -> None:
    """Every reader goes through all of a log, and has all neighbours of those that it can't read."""
    [[last]] = execute(
        "SELECT max(id) FROM django_events_event WHERE topic_id = (SELECT id FROM django_events_topic WHERE name = %s)",
        things.name,
    )
    neighbours = list(range(good))
    dead: list[set[int]] = []
    handlers = [Noted(), Noted(), Noted()]
    one = make_consumer(things, handler=handlers[0], name="one", retry=AT_ONCE)
    many = make_consumer(things, handler=handlers[1], name="many", retry=AT_ONCE, batch_size=100)
    queue = make_queue(things, handler=handlers[2], retry=AT_ONCE)
    for consumer in (one, many):
        exhaust(consumer)
        assert position_of(consumer).position == last
    while pending(queue):
        run_once(queue.subscription.consumer)
    for handler in handlers:
        assert sorted(set(handler.seen)) == neighbours
    for name in ("one", "many", "queue"):
        dead.append(set(models.DeadLetter.objects.filter(consumer__name=name).values_list("event_id", flat=True)))
    assert dead[0] == dead[1] == dead[2]

    call_command("events", "peek", things.name, "--limit", "1000", "--format", "json")
    events = json.loads(capsys.readouterr().out)
    assert [event["id"] for event in sorted(events, key=lambda event: event["id"])] == list(range(1, last + 1))
    assert {event["id"] for event in events if event["unreadable"]} == dead[0]
    for event_id in sorted(dead[0])[:1]:
        call_command("events", "dead-letters", "one", "--show", f"{things.name}/{event_id}", "--format", "json")
        assert json.loads(capsys.readouterr().out)["unreadable"]
    call_command("events", "verify", "--format", "json")
    capsys.readouterr()

    exported = export(dsn, things.name, last)
    assert [row["offset"] for row in exported] == list(range(1, last + 1))
    left_out = {row["offset"] for row in exported if '"unreadable": ' in row["metadata"]}
    assert left_out <= dead[0]
    assert [json.loads(row["value"]) for row in exported if row["key"] == "good"] == neighbours

    client = Client()
    client.force_login(User.objects.create_superuser("worst"))
    try:
        topic = models.Topic.objects.get(name=things.name)
        assert client.get(f"/admin/django_events/topic/{topic.pk}/log/").status_code == 200
        for event_id in sorted(dead[0]):
            assert client.get(f"/admin/django_events/topic/{topic.pk}/log/{event_id}/").status_code == 200
        assert client.get("/admin/django_events/deadletter/").status_code == 200
        for letter in models.DeadLetter.objects.filter(consumer__name="one").only("pk"):
            assert client.get(f"/admin/django_events/deadletter/{letter.pk}/change/").status_code == 200
    finally:
        User.objects.filter(username="worst").delete()

    if dead[0]:
        erase(things, ids=dead[0], reason="a test")
        assert all(row["value"] is None for row in export(dsn, things.name, last) if row["offset"] in dead[0])


def export(dsn: str, topic: str, last: int) -> list[dict[str, Any]]:
    """What a task of Spark reads."""
    reader = for_batch({"dsn": dsn, "subscribe": topic}).reader()
    topic_id = models.Topic.objects.get(name=topic).pk
    return [row for batch in reader.read(Range(topic, topic_id, 1, last + 1)) for row in batch.to_pylist()]


IN_ONE_DATABASE = settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink what is as large as this takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["\0", "\ud83e", "\udd2a", "\U0001f9ea", "k" * 5_000, "1e5000"])
)


def around(depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.builds(pow, st.just(10), st.integers(4_290, 4_310)),
        st.floats(),
        TEXTS,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(TEXTS, inner, max_size=4),
        st.builds(around, st.integers(2, 700), inner),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@IN_ONE_DATABASE
@given(values=st.lists(VALUES, min_size=1, max_size=4))
def test_what_python_publishes_arrives_as_it_was_or_is_refused(things, make_consumer, values):
    seen: list[str] = []

    def handler(event: Any) -> None:
        assert event.value is not Ellipsis  # decoded
        seen.append(event.columns[5])

    reader = make_consumer(things, handler=handler, retry=AT_ONCE)
    taken = []
    for value in values:
        try:
            publish(things, value)
        except InvalidEvent:
            continue
        taken.append(value)
    transfer_all()
    exhaust(reader)

    assert [exactly(text) for text in seen] == [exactly(json.dumps(value)) for value in taken]
    assert not models.DeadLetter.objects.filter(consumer__name="reader").exists()


NUMBERS = st.builds("{}{}e{}".format, st.sampled_from(["", "-"]), st.integers(0, 999), st.integers(-17_000, 140_000))
JSON_TEXTS = st.recursive(
    st.one_of(st.sampled_from(["null", "true", "9" * 4_300, "9" * 4_301]), NUMBERS, st.builds(json.dumps, TEXTS)),
    lambda inner: st.one_of(
        st.builds(lambda parts: f"[{','.join(parts)}]", st.lists(inner, max_size=4)),
        st.builds(lambda text, times: f"[{','.join([text] * times)}]", NUMBERS, st.integers(2, 400)),
        st.builds(
            lambda pairs: "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in pairs.items()) + "}",
            st.dictionaries(TEXTS, inner, max_size=4),
        ),
        st.builds(lambda depth, text: "[" * depth + text + "]" * depth, st.integers(2, 7_000), inner),
    ),
    max_leaves=5,
)
REFUSED = ("22", "54", "DE003")  # no JSON for PostgreSQL, too much for it, or refused by ours


@pytest.mark.slow
@IN_ONE_DATABASE
@given(texts=st.lists(JSON_TEXTS, min_size=1, max_size=4))
def test_what_sql_publishes_arrives_as_it_was_or_is_refused_or_fails_alone(things, make_consumer, texts):
    seen: dict[int, str] = {}

    def handler(event: Any) -> None:
        assert event.value is not Ellipsis  # decoded
        seen[event.id] = event.columns[5]

    reader = make_consumer(things, handler=handler, retry=AT_ONCE)
    before = position_of(reader).position
    taken = []
    for text in texts:
        try:
            execute("SELECT django_events_publish('things', %s::jsonb)", text)
        except DatabaseError as error:
            assert str(error.__cause__.sqlstate).startswith(REFUSED), error
            continue
        taken.append(text)
    transfer_all()
    exhaust(reader)

    assert position_of(reader).position == before + len(taken)
    dead = set(models.DeadLetter.objects.filter(consumer__name="reader").values_list("event_id", flat=True))
    for event_id, text in enumerate(taken, before + 1):
        assert (event_id in seen) != (event_id in dead)
        if event_id in seen:
            assert exactly(seen[event_id]) == exactly(text)


def exactly(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)
