"""Metrics: what this process counts and times, the state of the databases, and who may read it."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from django_events import (
    Backoff,
    BufferedWriter,
    Draft,
    Ignore,
    ReceivedEvent,
    listen,
    publish,
    publish_many,
    redis_source,
    sse,
    telemetry,
)
from django_events.live import feeds
from django_events.live.feeds import Stage
from django_events.maintaining.expiring import expire
from django_events.metrics.exposition import text
from django_events.metrics.prometheus import Observer
from django_events.metrics.views import metrics
from django_events.models import BufferedEvent, Inbox, Topic
from django_events.models.functions import ClockTimestamp
from django_events.observing import state
from django_events.operations import pause
from django_events.statements import log_table
from django_events.testing import drain
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.fix_database import login
from tests.support.fix_topics import transfer_all
from tests.support.fix_webhooks import send_all
from tests.support.processes import wait_until

TOKEN = "a secret that is hard to guess"
AT_ONCE = Backoff(attempts=2, base=timedelta(0), cap=timedelta(0))

BEARER = {"Authorization": f"Bearer {TOKEN}"}

Read = Callable[..., float | None]

urlpatterns = [path("metrics", metrics)]


@pytest.fixture
def counted() -> Iterator[Read]:
    """What this process counts, in a registry of the test's own."""
    registry = CollectorRegistry()
    with closing(Observer(registry)):
        yield lambda name, **labels: registry.get_sample_value(
            f"django_events_{name}", {"database": "default", **labels}
        )
    assert not any(instrument.observed for instrument in telemetry.INSTRUMENTS)


@pytest.fixture
def told() -> Callable[..., Any]:
    """What the page says of the state, as Prometheus reads it."""

    def tell(name: str, **labels: str) -> Any:
        written = text(state.read_all())
        found = {
            frozenset(sample.labels.items()): sample.value
            for family in text_string_to_metric_families(written)
            for sample in family.samples
            if sample.name == f"django_events_{name}"
        }
        return found.get(frozenset({"database": "default", **labels}.items()))

    return tell


def get(**headers: str) -> HttpResponse:
    return metrics(RequestFactory().get("/metrics", headers=headers))


@pytest.mark.requirement("X10")
@pytest.mark.usefixtures("transactional_db")
def test_what_is_published_is_counted_when_it_is_committed(counted: Read, make_topic: Any) -> None:
    make_topic("sales")
    publish("sales", 1)
    publish_many("sales", [Draft(value=i) for i in range(200)])
    with transaction.atomic():
        publish("sales", 2)
        transaction.set_rollback(True)
    with BufferedWriter("sales") as writer:
        writer.publish(3)
    publish("sales", 4, dedup_key="once")
    publish("sales", 4, dedup_key="once")

    assert counted("published_total", topic="sales") == 203


@pytest.mark.requirement("X10")
@pytest.mark.usefixtures("transactional_db")
def test_the_transfer_counts_and_times_its_batches(counted: Read, make_topic: Any) -> None:
    make_topic("sales")
    make_topic("clicks", partitions=4)
    publish_many("sales", [Draft(value=i) for i in range(10)])
    publish_many("clicks", [Draft(value=i) for i in range(5)])
    BufferedEvent.objects.filter(topic__name="sales").update(published_at=ClockTimestamp() - timedelta(seconds=40))
    transfer_all(batch_size=15)

    assert counted("moved_total", topic="sales") == 10
    assert counted("moved_total", topic="clicks") == 5
    assert counted("transfer_batch_events_sum") == 15
    batches = counted("transfer_batch_events_count")
    assert batches == counted("transfer_batch_seconds_count")
    assert 40 <= (counted("publish_to_log_seconds_sum", topic="sales") or 0) < 60
    assert (counted("publish_to_log_seconds_sum", topic="clicks") or 0) < 20


@pytest.mark.requirement("X10")
@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("options", [{}, {"transactional": False}, {"batch_size": 5}, {"mode": "queue"}])
def test_what_becomes_of_events_is_counted_and_timed(
    counted: Read, make_topic: Any, make_consumer: Any, options: dict[str, Any]
) -> None:
    topic = make_topic("sales")

    def bill(event: ReceivedEvent) -> None:
        for one in event if isinstance(event, list) else [event]:
            if one.value == "bad":
                raise ValueError
            if one.value == "unwanted":
                raise Ignore("it is not wanted")

    make_consumer(topic, name="tallies", handler=bill, retry=AT_ONCE, **options)
    for value in ("good", "bad", "good", "unwanted", "good"):
        publish(topic, value)
    transfer_all()
    drain(raise_errors=False)

    of = {"consumer": "tallies", "topic": "sales"}
    outcomes = ("handled", "retried", "ignored", "dead_lettered")
    assert [counted("attempts_total", outcome=one, **of) for one in outcomes] == [3, 1, 1, 1]
    settled = counted("handler_seconds_count", outcome="handled", **of)
    assert settled
    assert [counted("handler_seconds_count", outcome=one, **of) for one in outcomes[1:]] == [1, 1, 1]
    assert settled == counted("log_to_handled_seconds_count", **of)
    assert (counted("log_to_handled_seconds_sum", **of) or 0) < 60 * settled


@pytest.mark.usefixtures("transactional_db")
def test_a_database_that_fails_is_counted(counted: Read) -> None:
    class Failing:
        using = "default"
        left = False
        tries = 0

        def connect(self) -> None: ...
        def wait(self, stop: Stop) -> None: ...
        def reset(self) -> None: ...
        def close(self) -> None: ...

        def work(self, stop: Stop) -> int:
            self.tries += 1
            if self.tries == 1:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute("SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)")
            return 0

    with closing(Stop()) as stop:
        run(Failing(), stop, once=True)
    assert counted("database_failures_total") == 1


def test_a_receiver_that_fails_is_no_harm(counted: Read, caplog: pytest.LogCaptureFixture) -> None:
    telemetry.MOVED.tell(-1, "default", "sales")  # the client refuses it
    telemetry.MOVED.tell(2, "default", "sales")

    assert counted("moved_total", topic="sales") == 2
    assert "The metric django_events_moved_total couldn't be told." in caplog.text


@pytest.mark.slow
@pytest.mark.requirement("X10")
@pytest.mark.usefixtures("transactional_db")
def test_the_state_is_told_of_topics_buffer_and_consumers(
    told: Callable[..., Any], make_topic: Any, make_consumer: Any
) -> None:
    topic = make_topic("sales", partitions=4)
    options = {"retry": AT_ONCE, "handler": lambda event: 1 / event.value}
    queue = make_consumer(topic, name="emails", mode="queue", **options)
    stream = make_consumer(topic, name="ledger", **options)
    resting = make_consumer(topic, name="tallies", handler=print)
    publish_many(topic, [Draft(value=i, key=str(i)) for i in range(10)])
    transfer_all()
    drain(queue, stream, raise_errors=False)
    publish_many(topic, [Draft(value=1), Draft(value=1)])
    BufferedEvent.objects.update(published_at=ClockTimestamp() - timedelta(hours=1))
    pause(resting)

    of_topic, emails = {"topic": "sales"}, {"topic": "sales", "consumer": "emails"}
    tallies, ledger = ({**emails, "consumer": name} for name in ("tallies", "ledger"))
    assert told("up") == 1
    assert [told(name, **of_topic) for name in ("topic_first_id", "topic_last_id", "topic_events")] == [1, 10, 10]
    assert told("topic_segments", **of_topic) >= 1
    assert told("topic_log_bytes", **of_topic) > 0
    assert told("buffer_events", **of_topic) == 2
    assert 3_600 <= told("buffer_oldest_seconds", **of_topic) < 3_700
    assert told("consumer_lag_events", **tallies) == 10
    assert 0 < told("consumer_lag_seconds", **tallies) < 300
    assert told("consumer_paused", **tallies) == 1
    assert told("consumer_state", state="paused", **tallies) == 4
    assert told("consumer_lag_events", **emails) == told("consumer_lag_seconds", **emails) == 0
    assert told("consumer_dead_letters", **emails) == told("consumer_dead_letters", **ledger) == 1
    assert told("consumer_handled_total", **ledger) == 9
    assert told("consumer_failed_total", **ledger) == 2
    assert told("consumer_dead_lettered_total", **ledger) == 1
    assert told("consumer_ignored_total", **ledger) == 0
    assert told("consumer_state", state="idle", **emails) == 1
    assert told("problems", kind="paused", severity="warning", **tallies) == 1
    assert told("problems", kind="dead letters", severity="warning", **emails) == 1
    assert told("problems", kind="dead letters", severity="warning", **ledger) == 1
    assert told("problems", kind="transfer", severity="error", consumer="", **of_topic) == 1
    assert told("scheduled_overdue_seconds") == 0


@pytest.mark.usefixtures("transactional_db")
def test_the_state_is_told_of_inboxes(told: Callable[..., Any], make_topic: Any, make_inbox: Any) -> None:
    """Also that the alerts find their inbox: a problem of one has a topic and no consumer."""
    make_inbox(make_topic("letters"), source=redis_source("post.letters"), name="letters-in")
    inboxes, of_topic = Inbox.objects.filter(name="letters-in"), {"consumer": "", "topic": "letters"}
    assert told("inbox_failing_seconds", inbox="letters-in") == 0
    assert told("problems", kind="unserved", severity="error", **of_topic) == 1

    now = ClockTimestamp()
    inboxes.update(served_at=now, lag=7, failing_since=now - timedelta(hours=1), error="The broker is away.")
    inboxes.update(unreadable=2, unreadable_at=now, gone=3, gone_at=now)
    assert told("inbox_lag", inbox="letters-in") == 7
    assert 3_600 <= told("inbox_failing_seconds", inbox="letters-in") < 3_700
    for kind, severity in (("inbox", "error"), ("unreadable", "warning"), ("messages gone", "warning")):
        assert told("problems", kind=kind, severity=severity, **of_topic) == 1

    inboxes.update(paused_at=now)
    assert told("inbox_failing_seconds", inbox="letters-in") == 0


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_seconds_behind_are_of_the_oldest_event_that_was_not_passed(
    told: Callable[..., Any], make_topic: Any, make_consumer: Any
) -> None:
    topics = [make_topic("sales", partitions=4), make_topic("clicks")]
    for name, options in {"lanes": {}, "whole": {"partitioned": False}, "queue": {"mode": "queue"}}.items():
        make_consumer(*topics, name=name, handler=print, **options)
    for topic in topics:
        publish_many(topic, [Draft(value=i, key=str(i)) for i in range(20)])
    transfer_all()
    with connection.cursor() as cursor:
        for topic in topics:
            log = log_table(Topic.objects.get(name=topic.name).pk)
            cursor.execute(f"UPDATE {log} SET logged_at = logged_at - (21 - id) * interval '1 minute'")
        older = "received_at = received_at - (21 - event_id) * interval '1 minute'"
        cursor.execute(f"UPDATE django_events_delivery SET {older}")

    for topic in topics:
        for name in ("lanes", "whole", "queue"):
            behind = told("consumer_lag_seconds", topic=topic.name, consumer=name)
            assert 1_200 <= behind < 1_260, (topic.name, name)


@pytest.mark.django_db
def test_a_database_that_is_out_of_reach_is_down_and_the_others_are_told(
    told: Callable[..., Any], settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    connections["away"] = DatabaseWrapper(login(HOST="127.0.0.1", PORT="1"), "away")
    try:
        assert "away" not in list(connections)
        samples = state.read("away")
    finally:
        del connections["away"]

    assert [(sample.metric, sample.labels, sample.value) for sample in samples] == [(state.UP, ("away",), 0)]
    assert "The state of the database 'away' can't be read." in caplog.text
    assert told("up") == 1


@pytest.fixture
def site() -> Iterator[None]:
    """A site with the page among its urls, that asks everybody to log in."""
    middleware = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=middleware, DJANGO_EVENTS={"METRICS_TOKEN": TOKEN}):
        yield


@pytest.mark.django_db
@pytest.mark.usefixtures("site")
def test_prometheus_is_not_asked_to_log_in(client: Client) -> None:
    assert client.get("/metrics", headers=BEARER).status_code == 200
    assert client.get("/metrics").status_code == 401


@pytest.mark.usefixtures("transactional_db", "site")
def test_a_database_that_is_down_is_told_where_each_request_is_a_transaction(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django opens it before a view is called, and the page would fail with it."""

    def refuse() -> None:
        raise OperationalError("away")

    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
        patch.setattr(connections["default"], "connect", refuse)
        answer = client.get("/metrics", headers=BEARER)

    assert answer.status_code == 200
    assert 'django_events_up{database="default"} 0.0' in answer.content.decode()


@pytest.mark.django_db
def test_a_database_without_tables_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE django_events_topic RENAME TO django_events_gone")
        assert [(sample.metric.name, sample.value) for sample in state.read("default")] == [("up", 0)]
        with connection.cursor() as cursor:  # what the caller does goes on
            cursor.execute("ALTER TABLE django_events_gone RENAME TO django_events_topic")
    assert state.read("default")[0].value == 1


@pytest.mark.django_db
def test_the_page_is_for_who_has_the_token_or_may_look() -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    assert get().status_code == 401
    assert get(Authorization="Bearer None").status_code == 401
    with override_settings(DJANGO_EVENTS={"METRICS_TOKEN": TOKEN}):
        refused = get(Authorization="Bearer something else than that")
        assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer")
        assert TOKEN not in refused.content.decode()
        assert get(Authorization=f"Basic {TOKEN}").status_code == 401
        answered = get(Authorization=f"Bearer {TOKEN}")
    assert answered.status_code == 200
    assert answered["Content-Type"].startswith("text/plain; version=")
    assert "no-store" in answered["Cache-Control"]
    assert 'django_events_up{database="default"} 1.0' in answered.content.decode()

    request = RequestFactory().get("/metrics")
    request.user = clerk
    assert metrics(request).status_code == 401
    clerk.user_permissions.set(Permission.objects.filter(codename__in=["view_topic", "view_consumer"]))
    request.user = User.objects.get(pk=clerk.pk)
    assert metrics(request).status_code == 200
    assert metrics(RequestFactory().post("/metrics")).status_code == 405
    with override_settings(DEBUG=True):
        assert get().status_code == 200


def test_names_with_quotes_are_written_as_prometheus_reads_them() -> None:
    name = 'a "name" with \\ and \n'
    [up] = [f for f in text_string_to_metric_families(text([state.Measurement(state.UP, (name,), 1)])) if f.samples]
    assert up.samples[0].labels == {"database": name}


def test_a_port_that_is_taken_is_explained() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match="a port of its own") as refused:
            call_command("run_transfer", "--once", "--metrics", f"{port}")
    assert refused.value.returncode == 2


@pytest.mark.parametrize("host", ["a..b", ".x", "no-such-host.invalid", "192.0.2.1", "1" * 64])
def test_a_host_that_is_not_here_is_explained(host: str) -> None:
    with pytest.raises(CommandError, match="a name or an address of this machine") as refused:
        call_command("run_transfer", "--once", "--metrics", f"{host}:9158")
    assert refused.value.returncode == 2
    assert "a port of its own" not in str(refused.value)


@pytest.mark.parametrize("where", ["", "here", "9101x", "127.0.0.1", "0", "127.0.0.1:70000"])
def test_a_wrong_port_is_explained(where: str) -> None:
    with pytest.raises(CommandError, match="expected a port like 9101") as refused:
        call_command("run_consumer", "--all", "--once", "--metrics", where)
    assert refused.value.returncode == 2


# Listeners, streams and webhooks


@pytest.mark.requirement("X10", "P6")
@pytest.mark.usefixtures("transactional_db")
def test_listeners_are_counted_with_what_they_take(things, counted):
    with listen(things) as listener, listen(things, types=["none"]):
        assert counted("listeners") == 2
        publish_many(things, [Draft(value=1), Draft(value=2)])
        transfer_all()
        assert [listener.take(60).value for _ in range(2)] == [1, 2]
        assert counted("listener_events_total", topic="things") == 2
    assert counted("listeners") == 0
    listener.close()
    assert counted("listeners") == 0


@pytest.mark.requirement("X10", "P6")
@pytest.mark.usefixtures("transactional_db")
def test_listeners_without_room_and_below_retention_are_counted(make_topic, counted, monkeypatch):
    topic = make_topic(segment_size=100, retention_events=1)
    monkeypatch.setattr(feeds, "MOST_EVENTS", 3)
    with listen(topic) as slow:
        wait_until(lambda: slow.stage is Stage.TAILED, what="the tailer")
        publish_many(topic, [Draft(value=n) for n in range(150)])
        transfer_all()
        wait_until(lambda: counted("listeners_behind_total") == 1, what="the one without room")
    assert expire("default", Topic.objects.get(name=topic.name)).segments == 1
    with listen(topic, since="things/7", expired="skip") as late:
        assert late.take(60).id == 101
    assert counted("listeners_expired_total", topic="things") == 1


@pytest.mark.requirement("X10", "P10")
@pytest.mark.usefixtures("transactional_db")
def test_streams_are_counted_and_those_that_are_refused(things, counted):
    view, request = sse(things, authorize=lambda request: {}), RequestFactory().get("/live/")
    stream = view(request)
    sent = iter(stream)
    next(sent)
    assert counted("streams") == 1
    with override_settings(DJANGO_EVENTS={"LIVE_CONNECTIONS": 1}):
        assert view(request).status_code == 503
    assert counted("streams_refused_total") == 1
    stream.close()
    assert counted("streams") == 0


@pytest.mark.requirement("X10", "P10")
@pytest.mark.usefixtures("transactional_db")
def test_requests_of_webhooks_are_counted_by_their_answer(things, make_webhook, receiver, counted):
    make_webhook(things, receiver.url("/ok"))
    make_webhook(things, receiver.url("/status/410"), name="gone")
    publish(things, 1)
    transfer_all()
    send_all()
    assert counted("webhook_answers_total", consumer="partner", topic="things", status="2xx") == 1
    assert counted("webhook_answers_total", consumer="gone", topic="things", status="4xx") == 1
    assert counted("attempts_total", consumer="partner", topic="things", outcome="handled") == 1
    assert counted("webhook_requests") == 0
