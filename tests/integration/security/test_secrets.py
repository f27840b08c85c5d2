"""Secrets in payloads, and the password of the database: no log, message or output has them, whatever goes wrong."""

import io
import logging
import traceback
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections
from django.test import RequestFactory, override_settings
from django.utils import timezone

from django_events import Backoff, BufferedWriter, Draft, models, publish, publish_many
from django_events.exceptions import EventsError, InvalidEvent
from django_events.health import liveness, readiness
from django_events.metrics.views import metrics
from django_events.statements import log_table
from tests.support.fix_consumers import run_once
from tests.support.fix_database import login
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

SECRET = "0b5c-secret"
PASSWORD = "9d1e-password"
PAYLOAD = {"name": SECRET}
WHERE = "$.at.datetime() > $.since.datetime()"  # fails where only one of them has a zone
CHECK = "CHECK (value->>'name' IS DISTINCT FROM '0b5c' || '-secret')"
TRIGGER = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM (NEW.value->>'name')::int; "
    "RETURN NEW; END $$; CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()"
)
RULES = {
    "CHECK": ("ALTER TABLE {table} ADD CONSTRAINT strict " + CHECK, "ALTER TABLE {table} DROP CONSTRAINT strict"),
    "NOT NULL": ("ALTER TABLE {table} ALTER key SET NOT NULL", "ALTER TABLE {table} ALTER key DROP NOT NULL"),
    "trigger": (TRIGGER, "DROP FUNCTION refuse CASCADE"),
}


@pytest.fixture(autouse=True)
def nothing_is_told(caplog, capfd):
    """Whatever a test does: afterwards all that was logged, with tracebacks, or printed is searched."""
    caplog.set_level(logging.DEBUG, logger="django_events")
    yield
    formatter = logging.Formatter()
    told = [formatter.format(record) for record in caplog.get_records("call")]
    told += [repr(record.args) for record in caplog.get_records("call")]
    for secret in (SECRET, PASSWORD):
        assert not [text for text in [*told, *capfd.readouterr()] if secret in text]


def run(text):
    with connection.cursor() as cursor:
        cursor.execute(text)


@contextmanager
def rule(kind, table):
    make, drop = RULES[kind]
    run(make.format(table=table))
    try:
        yield
    finally:
        run(drop.format(table=table))


def all_of(error):
    """As a traceback tells it, with every error behind it."""
    return "".join(traceback.format_exception(error)) + repr(error)


def called(*arguments, **options):
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command(*arguments, stdout=out, stderr=err, **options)
    except SystemExit:
        return out.getvalue() + err.getvalue()
    except CommandError as error:
        return out.getvalue() + err.getvalue() + all_of(error)
    return out.getvalue() + err.getvalue()


def writes(topic):
    with BufferedWriter(topic) as writer:
        return writer.publish(PAYLOAD)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize(
    "act",
    [
        lambda topic: publish(topic, PAYLOAD),
        lambda topic: publish(topic, PAYLOAD, type="t", metadata=PAYLOAD),
        lambda topic: publish_many(topic, [Draft(value=PAYLOAD), Draft(value=PAYLOAD)]),
        writes,
    ],
    ids=["publish", "with metadata", "publish_many", "writer"],
)
def test_a_rule_on_the_buffer_that_refuses_an_event(make_topic, kind, act):
    topic = make_topic("things")
    with rule(kind, "django_events_bufferedevent"), pytest.raises((DatabaseError, EventsError)) as raised:
        act(topic)
    assert SECRET not in all_of(raised.value)
    # Who asks for it by name finds what the server said.
    found = raised.value
    while not hasattr(found, "diag"):
        found = found.__cause__ or found.__context__
    assert SECRET in f"{found.diag.message_detail}{found.diag.message_primary}"


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_on_the_log_that_refuses_an_event(make_topic, kind):
    topic = make_topic("things")
    publish(topic, PAYLOAD)
    with rule(kind, log_table(models.Topic.objects.get(name="things").pk)):
        with pytest.raises(DatabaseError) as raised:
            transfer_all()
        assert SECRET not in all_of(raised.value)
        for command in ("run_transfer", "run_events"):
            told = called(command, once=True)
            assert "failed" in told
            assert SECRET not in told


@pytest.mark.slow
def test_a_filter_that_fails_on_an_event(make_topic, make_queue, make_consumer, caplog):
    topic = make_topic("things")
    make_queue(topic, name="queue", where=WHERE)
    stream = make_consumer(topic, name="stream", handler=print, where=WHERE)
    publish(topic, {**PAYLOAD, "at": "2025-01-01", "since": "2025-01-01T00:00:00+00"})
    transfer_all()
    run_once(stream)
    assert "can't be read" in caplog.text
    errors = list(models.Position.objects.values_list("error", flat=True))
    assert any("filter fails" in error for error in errors), errors
    assert SECRET not in str(errors)
    for asked in ("status", "doctor", "health", "consumers"):
        assert SECRET not in called("events", asked)


def test_what_a_handler_says_is_its_own_word(make_topic, make_consumer, caplog):
    """It is written down as it is, where errors are; the events beside it are not."""
    topic = make_topic("things")

    def fails(event):
        raise ValueError("what I say")

    consumer = make_consumer(topic, name="failing", handler=fails, retry=Backoff(attempts=1))
    fill_topic(topic, PAYLOAD, PAYLOAD)
    run_once(consumer)
    letter = models.DeadLetter.objects.first()
    assert "what I say" in letter.error
    assert SECRET not in letter.error + letter.traceback


def test_what_can_not_be_published(make_topic):
    topic = make_topic("things")
    for wrong in (
        {"value": 1, "metadata": SECRET},
        {"body": SECRET},
        {"value": {"name": SECRET, "of": object()}},
        {"value": {1: SECRET, "1": SECRET, "x": {2, 3}}},
        {"value": {"name": SECRET + "\0"}},
        {"value": SECRET * 200_000},
        {"value": {"name": SECRET, "n": float("nan")}},
    ):
        with override_settings(DJANGO_EVENTS={"MAX_PAYLOAD_BYTES": 1_000}), pytest.raises(InvalidEvent) as raised:
            publish(topic, **wrong)
        assert SECRET not in str(raised.value)


def test_drafts_and_events_show_no_payload():
    assert SECRET not in repr(Draft(value=SECRET, metadata=PAYLOAD)) + repr(Draft(body=SECRET.encode()))
    assert SECRET not in repr(models.Event(value=SECRET, id=1)) + repr(models.DeadLetter(value=SECRET, event_id=1))


@pytest.fixture
def away():
    """An alias whose password is wrong, or whose server is not there."""
    names = []

    def make(**changed):
        name = f"away{len(names)}"
        connections.settings[name] = login(PASSWORD=PASSWORD, **changed)
        names.append(name)
        return name

    yield make
    for name in names:
        connections[name].close()
        del connections[name]
        del connections.settings[name]


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"PORT": "1"}, {"USER": "none-of-that-name"}, {"NAME": "nothing-there"}])
def test_a_database_that_lets_no_session_in(away, changed, make_topic):
    using = away(**changed)
    topic = make_topic("things")
    for arguments in (
        ("run_transfer", "--once"),
        ("run_events", "--once"),
        ("events", "status"),
        ("events", "doctor"),
        ("events", "health"),
        ("events", "peek", "things"),
        ("events", "verify"),
        ("events", "publish", "things", '{"name": "0b5c-secret"}'),
    ):
        told = called(*arguments, database=using)
        assert PASSWORD not in told
        assert SECRET not in told.replace('{"name": "0b5c-secret"}', "")
    with pytest.raises(DatabaseError) as raised:
        publish(topic, PAYLOAD, using=using)
    assert PASSWORD not in all_of(raised.value) and SECRET not in str(raised.value)
    with pytest.raises(EventsError), BufferedWriter(topic, using=using, max_wait=timedelta(seconds=1)) as writer:
        writer.publish(PAYLOAD)


def planted(topic):
    fill_topic(topic, PAYLOAD, {"deep": [{"Name": {"more": SECRET}}], "open": "shown"}, metadata={"name": SECRET})
    publish(topic, body=SECRET.encode())
    transfer_all()
    publish(topic, PAYLOAD, publish_at=timezone.now() + timedelta(days=1), metadata=PAYLOAD)


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [{}, {"format": "json"}], ids=["text", "json"])
def test_masked_fields_are_masked_by_commands_as_in_the_admin(make_topic, make_queue, as_json):
    topic = make_topic("things")

    def fails(event):
        raise ValueError("no")

    queue = make_queue(topic, name="queue", handler=fails, retry=Backoff(attempts=1))
    planted(topic)
    run_once(queue.subscription.consumer)
    asked = [
        ("peek", "things"),
        *(("peek", "things", "--at", str(number)) for number in (1, 2, 3)),
        ("dead-letters",),
        *(("dead-letters", "queue", "--show", str(number)) for number in (1, 2, 3)),
        ("scheduled",),
        ("verify",),
        ("doctor",),
        ("status",),
        ("interventions",),
    ]
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["name"]}):
        told = {arguments: called("events", *arguments, **as_json) for arguments in asked}
    assert not [arguments for arguments, text in told.items() if SECRET in text or "MGI1Yy1zZWNyZXQ" in text]
    assert "•••" in told["peek", "things"] and "•••" in told["scheduled",]
    assert "shown" in told["peek", "things", "--at", "2"]
    assert SECRET in called("events", "peek", "things", "--at", "1", **as_json)  # nothing is masked unless it is said


@override_settings(DEBUG=True)
def test_pages_for_probes_and_metrics(make_topic):
    topic = make_topic("things")
    planted(topic)
    for view in (liveness, readiness, metrics):
        assert SECRET not in view(RequestFactory().get("/")).content.decode()


def test_verify_names_offenders_by_their_address(make_topic):
    topic = make_topic("things")
    planted(topic)
    log = log_table(models.Topic.objects.get(name="things").pk)
    run(f"DELETE FROM {log}_1 WHERE id = 2")
    told = called("events", "verify") + called("events", "verify", format="json")
    assert "things/2" in told
    assert SECRET not in told
