"""Webhook endpoints with a real receiver: what is sent, tried again, given up, disabled, and what is on record."""

import json
import sys
from datetime import timedelta

import pytest
from django.dispatch import receiver as receiving
from django.test import override_settings
from django.views.debug import SafeExceptionReporterFilter
from standardwebhooks import Webhook

from django_events import Backoff, declarations, publish, queue
from django_events.exceptions import Invalid, Refused, UnknownName
from django_events.models import (
    Consumer,
    DeadLetter,
    Delivery,
    DeliveryLease,
    Intervention,
    WebhookAttempt,
    WebhookEndpoint,
    WebhookSecret,
)
from django_events.models.functions import ClockTimestamp
from django_events.operations import (
    add_webhook,
    change_webhook,
    pause,
    redrive,
    replay,
    resume,
    rotate_secret,
    try_webhook,
    unregister,
    unsubscribe,
)
from django_events.outward.endpoints import endpoints
from django_events.outward.exchange import WebhookAnswer
from django_events.outward.sending import Sender
from django_events.outward.webhook_worker import WebhookWorker
from django_events.signals import event_dead_lettered, event_handled, event_retried, webhook_disabled
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all
from tests.support.fix_webhooks import ALLOWED, send_all, sending
from tests.support.processes import wait_until
from tests.support.receivers import Receiver, events_of

pytestmark = pytest.mark.usefixtures("transactional_db")


def attempts(name="partner"):
    rows = WebhookAttempt.objects.filter(endpoint__consumer__name=name).order_by("pk")
    return [(row.event_id, row.attempt, row.status) for row in rows]


@pytest.mark.requirement("P10")
def test_each_event_is_sent_once_signed_and_on_record(things, make_webhook, receiver):
    secret = make_webhook(things, receiver.url("/status/200"), types=["order.*"])
    fill_topic(things, {"n": 1}, {"n": 2}, {"n": 3}, type="order.placed")
    fill_topic(things, {"n": 4}, type="stock.low")
    worker = send_all()

    assert sorted(events_of(receiver)) == [1, 2, 3]
    verified = [Webhook(secret).verify(one.body, one.headers) for one in receiver.requests]
    assert sorted(one["data"]["n"] for one in verified) == [1, 2, 3]
    assert sorted(attempts()) == [(1, 1, 200), (2, 1, 200), (3, 1, 200)]
    assert {row.excerpt for row in WebhookAttempt.objects.all()} == {"this is 200"}
    assert all(row.seconds > 0 for row in WebhookAttempt.objects.all())
    assert not Delivery.objects.exists()
    assert worker.settling.delivered == 3
    send_all()
    assert len(receiver.requests) == 3


@pytest.mark.requirement("P10")
def test_a_receiver_that_fails_first_gets_all_in_the_end(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/fail-first/2"))
    fill_topic(things, *range(3))
    send_all()

    assert sorted(attempts()) == [
        (n, attempt, 204 if attempt == 3 else 409) for n in (1, 2, 3) for attempt in (1, 2, 3)
    ]
    assert not DeadLetter.objects.exists()
    assert not Delivery.objects.exists()
    ids = receiver.ids()
    assert sorted(ids) == sorted(["things/1", "things/2", "things/3"] * 3)


@pytest.mark.slow
@pytest.mark.requirement("P10")
def test_a_receiver_that_is_down_is_probed_by_one_request_at_a_time(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"), retry=Backoff(attempts=50, base=timedelta(0)))
    receiver.behave["/ok"] = "status/500"
    fill_topic(things, *range(50))
    with sending():
        wait_until(lambda: WebhookAttempt.objects.count() >= 12, what="two probes")
        tried = WebhookAttempt.objects.count()
        del receiver.behave["/ok"]
        wait_until(lambda: not Delivery.objects.exists(), what="all settled")

    assert tried <= 20, "it was tried as if it were up"
    assert set(events_of(receiver)) == set(range(1, 51))


@pytest.mark.slow
def test_after_the_last_attempt_an_event_is_a_dead_letter_that_can_be_sent_again(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    receiver.behave["/ok"] = "status/400"
    fill_topic(things, "a")
    send_all()

    letter = DeadLetter.objects.get()
    assert letter.error == "NotDelivered: 400 Bad Request"
    assert attempts() == [(1, 1, 400), (1, 2, 400), (1, 3, 400)]
    del receiver.behave["/ok"]
    redrive(DeadLetter.objects.all())
    send_all()

    assert attempts()[3:] == [(1, 1, 204)]
    assert not DeadLetter.objects.exists()


@pytest.mark.slow
@pytest.mark.requirement("P10")
def test_events_are_replayed_by_id_and_by_range_under_their_own_ids(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    fill_topic(things, *range(5))
    send_all()
    replay("partner", ids=[2], reason="lost by the receiver")
    replay("partner", first=4, last=5, reason="lost by the receiver")
    send_all()

    assert sorted(receiver.ids()[5:]) == ["things/2", "things/4", "things/5"]


@pytest.mark.requirement("P10")
def test_a_redirect_fails_and_says_why(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/moved"), retry=Backoff(attempts=1))
    fill_topic(things, "a")
    send_all()

    assert attempts() == [(1, 1, 302)]
    assert "redirects are not followed" in DeadLetter.objects.get().error


@pytest.mark.requirement("P10")
def test_a_busy_receiver_is_left_alone_for_as_long_as_it_says(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/busy/3600"), concurrency=1)
    fill_topic(things, "a", "b")
    send_all()

    [(first, count, status)] = attempts()
    assert (count, status) == (1, 429)
    waiting = Delivery.objects.annotate(now=ClockTimestamp()).get(event_id=first)
    assert timedelta(minutes=55) < waiting.visible_at - waiting.now < timedelta(minutes=61)
    assert Delivery.objects.get(event_id=3 - first).attempts == 0, "the other one was not tried"


@pytest.mark.slow
@pytest.mark.requirement("P10")
def test_an_endpoint_that_is_gone_is_disabled_and_keeps_its_events(things, make_webhook, receiver, caplog):
    make_webhook(things, receiver.url("/ok"), concurrency=1)
    receiver.behave["/ok"] = "status/410"
    fill_topic(things, *range(3))
    told = []
    receiving(webhook_disabled, weak=False, dispatch_uid="told")(lambda **given: told.append(given))
    send_all()
    send_all()
    webhook_disabled.disconnect(dispatch_uid="told")

    assert len(receiver.requests) == 1
    assert [(one["endpoint"], one["topic"], one["using"]) for one in told] == [("partner", "things", "default")]
    assert "410 Gone" in told[0]["reason"]
    assert "Webhook endpoint 'partner' is disabled" in caplog.text
    assert Delivery.objects.filter(token=None, attempts=0).count() == 3
    assert "410 Gone" in WebhookEndpoint.objects.get().disabled_because
    assert Intervention.objects.get(action="pause").consumer == "partner"
    del receiver.behave["/ok"]
    resume("partner")
    send_all()

    assert sorted(events_of(receiver)[1:]) == [1, 2, 3]
    assert WebhookEndpoint.objects.get().disabled_because == ""


@pytest.mark.slow
@pytest.mark.requirement("P10")
def test_an_endpoint_that_fails_for_days_is_disabled_and_begins_anew_when_resumed(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"), retry=Backoff(attempts=50, base=timedelta(hours=1)))
    receiver.behave["/ok"] = "status/400"
    fill_topic(things, "a")
    send_all()
    endpoint = WebhookEndpoint.objects.get()
    assert endpoint.failing_since is not None
    assert not endpoint.disabled_because
    WebhookEndpoint.objects.update(failing_since=ClockTimestamp() - timedelta(days=6))
    fill_topic(things, "b")
    send_all()

    assert WebhookEndpoint.objects.get().disabled_because.startswith("nothing could be delivered for 6 days")
    assert Consumer.objects.get(name="partner").paused_at is not None
    resume("partner")
    send_all()
    assert Consumer.objects.get(name="partner").paused_at is None, "it was disabled again by the old failures"
    del receiver.behave["/ok"]
    resume("partner")
    send_all()
    endpoint.refresh_from_db()
    assert (endpoint.failing_since, endpoint.disabled_because) == (None, "")
    assert not Delivery.objects.exists()


@pytest.fixture
def answer_first(monkeypatch):
    """Answer the first request in the sender's place, after something else has happened; others are sent."""

    def answer_first(answer, meanwhile=lambda: None):
        def send(sender, request, answered, *, until):
            monkeypatch.undo()
            meanwhile()
            answered(answer)

        monkeypatch.setattr(Sender, "send", send)

    return answer_first


def fail_once(receiver, topic):
    """Let an event fail in its first attempt, and be due again: its second one is counted before it is made."""
    receiver.behave["/ok"] = "status/400"
    fill_topic(topic, "a")
    send_all()
    del receiver.behave["/ok"]
    Delivery.objects.update(visible_at=ClockTimestamp())


LATER = Backoff(attempts=3, base=timedelta(hours=1))
GONE = WebhookAnswer(status=410, seconds=0.1)


@pytest.mark.requirement("P10")
def test_a_receiver_that_is_gone_uses_up_no_attempt(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"), retry=LATER)
    fail_once(receiver, things)
    receiver.behave["/ok"] = "status/410"
    send_all()

    assert attempts() == [(1, 1, 400), (1, 2, 410)]
    assert [(one.token, one.attempts) for one in Delivery.objects.all()] == [(None, 1)]
    assert "410 Gone" in WebhookEndpoint.objects.get().disabled_because


@pytest.mark.requirement("P10")
def test_a_request_that_was_too_late_uses_up_no_attempt(things, make_webhook, receiver, answer_first):
    make_webhook(things, receiver.url("/ok"), retry=LATER)
    fail_once(receiver, things)
    answer_first(None)
    send_all()

    assert attempts() == [(1, 1, 400), (1, 2, 204)]
    assert not Delivery.objects.exists()


@pytest.mark.requirement("P10")
def test_a_process_whose_lease_was_taken_over_disables_nothing(things, make_webhook, receiver, answer_first):
    def taken_over():
        Delivery.objects.update(token=None)
        DeliveryLease.objects.all().delete()

    make_webhook(things, receiver.url("/ok"))
    fill_topic(things, "a")
    answer_first(GONE, taken_over)
    send_all()

    assert attempts() == [(1, 1, 204)]
    assert Consumer.objects.get(name="partner").paused_at is None


@pytest.mark.requirement("P10")
def test_an_answer_of_the_former_url_disables_nothing(things, make_webhook, receiver, answer_first):
    make_webhook(things, receiver.url("/ok"), batch_size=2, ordered=True)
    fill_topic(things, "a", "b", key="k")
    answer_first(GONE, lambda: change_webhook("partner", url=receiver.url("/new")))
    send_all()

    assert sorted(events_of(receiver, "/ok")) == []
    assert [event["data"] for one in receiver.requests for event in one.json()] == ["a", "b"]
    assert Consumer.objects.get(name="partner").paused_at is None


@pytest.mark.requirement("P10")
@pytest.mark.parametrize("answer", [GONE, None, WebhookAnswer(status=204, seconds=0.1)])
def test_an_endpoint_that_is_removed_while_it_is_sent_to_ends_no_run(
    things, make_webhook, receiver, answer_first, answer
):
    def removed():
        DeliveryLease.objects.update(leased_until=ClockTimestamp())
        unsubscribe("partner")

    make_webhook(things, receiver.url("/ok"))
    make_webhook(things, receiver.url("/two"), name="two")
    fill_topic(things, "a")
    answer_first(answer, removed)
    send_all()

    assert events_of(receiver) == [1]
    assert not Consumer.objects.filter(name="partner").exists()


def test_one_success_ends_the_count_of_days(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    WebhookEndpoint.objects.update(failing_since=ClockTimestamp() - timedelta(days=6))
    fill_topic(things, "a")
    send_all()

    assert WebhookEndpoint.objects.get().failing_since is None


def test_a_success_ends_what_another_process_noted_meanwhile(things, make_webhook, receiver, answer_first):
    def failed_elsewhere():
        WebhookEndpoint.objects.update(failing_since=ClockTimestamp())

    make_webhook(things, receiver.url("/ok"))
    fill_topic(things, "a")
    answer_first(WebhookAnswer(status=204, seconds=0.1), failed_elsewhere)
    send_all()

    assert WebhookEndpoint.objects.get().failing_since is None


@pytest.mark.slow
@pytest.mark.requirement("P10")
def test_each_key_is_in_order_where_asked_whatever_fails(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/fail-first/1"), ordered=True)
    for value in range(4):
        for key in "abc":
            fill_topic(things, value, key=key)
    send_all()

    delivered, seen = [], set()
    for one in receiver.requests:
        if one.id in seen:
            delivered.append((one.json()["key"], one.json()["data"]))
        seen.add(one.id)
    for key in "abc":
        assert [value for k, value in delivered if k == key] == [0, 1, 2, 3]
    assert len(receiver.requests) == 24


@pytest.mark.slow
@pytest.mark.requirement("P10")
def test_a_secret_is_shown_once_and_rotates_without_loss(things, make_webhook, receiver, caplog):
    old = make_webhook(things, receiver.url("/ok"))
    fill_topic(things, "a")
    send_all()
    new = rotate_secret("partner", keep=timedelta(days=1))
    fill_topic(things, "b")
    send_all()
    WebhookSecret.objects.exclude(signs_until=None).update(signs_until=ClockTimestamp())
    fill_topic(things, "c")
    send_all()

    first, second, third = receiver.requests
    for secret, message, takes in (
        (old, first, True),
        (new, first, False),
        (old, second, True),
        (new, second, True),
        (old, third, False),
        (new, third, True),
    ):
        try:
            Webhook(secret).verify(message.body, message.headers)
        except Exception:
            assert not takes
        else:
            assert takes
    shown = caplog.text + json.dumps(list(Intervention.objects.values("details", "by")))
    for secret in (old, new):
        assert secret not in shown
        assert secret.removeprefix("whsec_") not in shown
    latest = rotate_secret("partner", keep=timedelta(0))
    assert [one.secret for one in WebhookSecret.objects.all()] == [latest]


def test_what_an_endpoint_is_shown_as_has_no_secret(things, make_webhook, receiver):
    secret = make_webhook(things, receiver.url("/ok?token=abc"))
    [endpoint] = endpoints("default")

    assert secret in endpoint.secrets
    assert secret not in repr(endpoint)
    assert "abc" not in repr(endpoint)


@pytest.mark.requirement("P10")
def test_a_report_of_an_error_shows_no_secret(things, make_webhook, receiver):
    secret, reports = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", []
    make_webhook(things, receiver.url("/ok"))
    for verb in (
        lambda given: add_webhook("partner", things, receiver.url("/ok?token=abc"), secret=given),
        lambda given: rotate_secret("partnr", secret=given),
        lambda given: change_webhook("partnr", url=receiver.url("/ok?token=abc")),
    ):
        try:
            verb(secret)
        except (Refused, UnknownName):
            filtered = SafeExceptionReporterFilter()
            frame = sys.exc_info()[2].tb_next
            while frame is not None:
                if "setting_up" in frame.tb_frame.f_code.co_filename:
                    with override_settings(DEBUG=False):
                        reports.append(str(filtered.get_traceback_frame_variables(None, frame.tb_frame)))
                frame = frame.tb_next

    assert len(reports) >= 3
    assert not any(secret in one or "abc" in one for one in reports)


def test_a_secret_of_ones_own_is_taken(things, make_webhook, receiver):
    mine = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert make_webhook(things, receiver.url("/ok"), secret=mine) == mine
    fill_topic(things, "a")
    send_all()
    Webhook(mine).verify(receiver.requests[0].body, receiver.requests[0].headers)


@pytest.mark.requirement("P10")
def test_an_endpoint_can_be_tried(things, make_webhook, receiver):
    secret = make_webhook(things, receiver.url("/status/418"), form="cloudevent")
    pause("partner")
    answer = try_webhook("partner")

    assert (answer.status, answer.excerpt) == (418, "this is 418")
    [one] = receiver.requests
    assert Webhook(secret).verify(one.body, one.headers)["type"] == "webhook.test"
    assert one.id.startswith("things/-")
    [(event_id, count, status)] = attempts()
    assert (event_id < 0, count, status) == (True, 1, 418)


def test_an_endpoint_is_changed_while_it_is_served(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    with sending():
        fill_topic(things, "a")
        wait_until(lambda: events_of(receiver, "/ok") == [1], what="the first")
        change_webhook("partner", url=receiver.url("/status/202"), form="cloudevent_binary")
        fill_topic(things, "b")
        wait_until(lambda: 2 in events_of(receiver), what="the second")

    if events_of(receiver, "/status/202"):
        assert receiver.requests[-1].headers["ce-id"] == "things/2"
    assert Intervention.objects.filter(action="webhook").count() == 2


@pytest.mark.slow
def test_a_worker_that_runs_takes_new_endpoints_and_leaves_removed_ones(things, make_webhook, receiver):
    with sending():
        make_webhook(things, receiver.url("/one"), name="one")
        fill_topic(things, "a")
        wait_until(lambda: events_of(receiver, "/one") == [1], what="the first endpoint")
        make_webhook(things, receiver.url("/two"), name="two")
        wait_until(lambda: events_of(receiver, "/two") == [1], what="the second endpoint")
        wait_until(lambda: not Delivery.objects.exists(), what="all settled")
        unregister("one")
        fill_topic(things, "b")
        wait_until(lambda: events_of(receiver, "/two") == [1, 2], what="the second event")
    assert not WebhookEndpoint.objects.filter(consumer__name="one").exists()
    assert events_of(receiver, "/one") == [1]


@pytest.mark.requirement("P10")
def test_nothing_is_sent_to_an_address_inside_that_is_not_allowed(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"), retry=Backoff(attempts=1))
    fill_topic(things, "a")
    with override_settings(DJANGO_EVENTS={}):
        send_all()

    assert receiver.connections == 0
    assert "loopback" in DeadLetter.objects.get().error
    assert attempts() == [(1, 1, None)]


@pytest.mark.requirement("P10")
def test_what_is_refused_leaves_nothing(things, make_webhook, receiver):
    queue(things, name="taken")
    make_webhook(things, receiver.url("/ok"))
    url = receiver.url("/ok")
    try:
        for error, options in (
            (Refused, {"name": "partner"}),
            (Refused, {"name": "taken"}),
            (Invalid, {"name": "No Name"}),
            (UnknownName, {"topic": "nothing"}),
            (Invalid, {"url": "https://10.0.0.1/"}),
            (Invalid, {"url": "ftp://127.0.0.1/"}),
            (Invalid, {"secret": "whsec_x"}),
            (Invalid, {"form": "xml"}),
            (Invalid, {"concurrency": 0}),
            (Invalid, {"concurrency": True}),
            (Invalid, {"types": []}),
            (Invalid, {"where": "$.total >"}),
            (Invalid, {"retry": Backoff(attempts=0)}),
        ):
            with pytest.raises(error):
                add_webhook(**{"name": "another", "topic": "things", "url": url, **options})
    finally:
        declarations.consumers.discard(declarations.consumers.get("taken"))
    assert not Consumer.objects.filter(name__in=["another", "taken", "No Name"]).exists()
    assert (WebhookEndpoint.objects.count(), WebhookSecret.objects.count()) == (1, 1)
    for verb in (try_webhook, rotate_secret):
        with pytest.raises(UnknownName, match="'partner'"):
            verb("partnr")
    with pytest.raises(Invalid):
        change_webhook("partner")
    with pytest.raises(Invalid):
        change_webhook("partner", url="https://169.254.169.254/")
    with pytest.raises(UnknownName):
        change_webhook("partnr", concurrency=2)
    with pytest.raises(Invalid):
        rotate_secret("partner", keep=timedelta(days=-1))


def test_the_signals_of_consumers_are_sent(things, make_webhook, receiver):
    told = []
    for signal, name in ((event_handled, "handled"), (event_retried, "retried"), (event_dead_lettered, "dead")):
        receiving(signal, weak=False, dispatch_uid=name)(lambda name=name, **given: told.append(name))
    make_webhook(things, receiver.url("/fail-first/1"), name="one")
    make_webhook(things, receiver.url("/status/400"), name="two", retry=Backoff(attempts=1))
    fill_topic(things, "a")
    send_all()
    for signal, name in ((event_handled, "handled"), (event_retried, "retried"), (event_dead_lettered, "dead")):
        signal.disconnect(dispatch_uid=name)

    assert sorted(told) == ["dead", "handled", "retried"]


@pytest.mark.slow
@pytest.mark.requirement("P10")
def test_hostile_receivers_lose_nothing_and_hold_up_no_other(things, make_webhook):
    """The good one has all its events while those of the others are under way, or wait."""
    with (
        Receiver() as hostile,
        Receiver() as good,
        override_settings(DJANGO_EVENTS={**ALLOWED, "WEBHOOK_TIMEOUT": timedelta(seconds=3)}),
    ):
        paths = ["hang", "drip-head", "half", "moved", "busy/3600", "status/500"]
        patient = Backoff(attempts=50, base=timedelta(hours=1))
        with override_settings(DJANGO_EVENTS=ALLOWED):
            for number, path in enumerate(paths):
                make_webhook(things, hostile.url(f"/{path}"), name=f"hostile-{number}", retry=patient)
            for path in ("huge", "drip"):
                make_webhook(things, hostile.url(f"/{path}"), name=path)
            make_webhook(things, good.url("/ok"), name="good")
        fill_topic(things, *range(200))
        with sending():
            wait_until(lambda: len(set(events_of(good))) == 200, what="all events at the good one")
            under_way = {one.path for one in hostile.requests}
            wait_until(
                lambda: WebhookAttempt.objects.filter(endpoint__consumer__name="hostile-1").exists(), what="an end"
            )

        assert len(events_of(good)) == 200
        assert under_way >= {"/hang", "/drip-head"}
        kept = {
            name: Delivery.objects.filter(consumer__name=name).count() for name in [f"hostile-{n}" for n in range(6)]
        }
        assert kept == dict.fromkeys(kept, 200)
        assert not DeadLetter.objects.exists()


@pytest.mark.requirement("P10")
@pytest.mark.parametrize("many", [60, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.few(1)
def test_many_slow_endpoints_hold_up_no_fast_one(things, make_webhook, many):
    patient = {**ALLOWED, "WEBHOOK_TIMEOUT": timedelta(minutes=10)}
    with Receiver() as slow, Receiver() as fast:
        for number in range(many):
            make_webhook(things, slow.url("/hang"), name=f"slow-{number}")
        make_webhook(things, fast.url("/ok"), name="fast")
        fill_topic(things, "a", "b", "c")
        with override_settings(DJANGO_EVENTS=patient), sending(most=20):  # far less than the slow ones could take
            wait_until(lambda: len(slow.requests) >= many, what="a request of each slow one")
            wait_until(lambda: len(events_of(fast)) == 3, what="all events at the fast one")
            assert not WebhookAttempt.objects.filter(endpoint__consumer__name__startswith="slow").exists()
            slow.release()
            wait_until(lambda: not Delivery.objects.exists(), what="all settled")
        assert len(slow.requests) == many * 3


@pytest.mark.requirement("P10")
@pytest.mark.parametrize("form", ["json", "cloudevent"])
def test_events_are_sent_in_lists_where_asked(things, make_webhook, receiver, form):
    secret = make_webhook(things, receiver.url("/ok"), batch_size=4, form=form, ordered=True)
    for value in range(10):
        fill_topic(things, value, key="ab"[value % 2])
    send_all()

    lists = [Webhook(secret).verify(one.body, one.headers) for one in receiver.requests]
    sent = [event for events in lists for event in events]
    assert max(map(len, lists)) > 1
    assert sorted(event["id"] for event in sent) == sorted(f"things/{n}" for n in range(1, 11))
    for key in "ab":
        name = "subject" if form == "cloudevent" else "key"
        values = [event["data"] for event in sent if event[name] == key]
        assert values == sorted(values)
    assert len({one.id for one in receiver.requests}) == len(receiver.requests)
    kind = "application/cloudevents-batch+json" if form == "cloudevent" else "application/json"
    assert all(one.headers["content-type"].startswith(kind) for one in receiver.requests)
    assert sorted(attempts()) == [(n, 1, 204) for n in range(1, 11)]
    assert not Delivery.objects.exists()


@pytest.mark.slow
@pytest.mark.requirement("P10")
@pytest.mark.parametrize("ordered", [True, False])
def test_a_list_that_fails_is_sent_again_event_by_event(things, make_webhook, receiver, ordered):
    make_webhook(things, receiver.url("/fail-first/1"), batch_size=5, ordered=ordered)
    for value in range(5):
        fill_topic(things, value, key="k")
    send_all()

    first, *rest = receiver.requests
    assert len(first.json()) > 1
    singles = [one.json()[0]["data"] for one in rest if len(one.json()) == 1]
    assert set(singles) == set(range(5)) or len(rest) > len(singles)
    assert not Delivery.objects.exists()
    assert not DeadLetter.objects.exists()
    if ordered:
        got = [one.json() for one in receiver.requests if one.path]
        assert got[-1][-1]["data"] == 4


def test_a_list_ends_where_it_is_large_or_an_event_is_none(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"), batch_size=100)
    fill_topic(things, "x" * 600_000, "x" * 600_000, "small")
    send_all()

    assert sorted(len(one.json()) for one in receiver.requests) == [1, 2]
    for refused in ({"batch_size": 101}, {"batch_size": 0}, {"batch_size": 2, "form": "cloudevent_binary"}):
        with pytest.raises(Invalid):
            add_webhook("another", "things", receiver.url("/ok"), **refused)
    with pytest.raises(Invalid, match="attributes are headers"):
        change_webhook("partner", form="cloudevent_binary")
    assert WebhookEndpoint.objects.get().form == "json"


@pytest.fixture
def under_way(monkeypatch):
    """How many requests were under way with each one that began."""
    counts = []
    usual = WebhookWorker._give_to_sender

    def give(worker, *given):
        usual(worker, *given)
        counts.append(worker._requests)

    monkeypatch.setattr(WebhookWorker, "_give_to_sender", give)
    return counts


@pytest.mark.parametrize(
    "options", [{"ordered": True}, {"batch_size": 5}, {}], ids=["ordered", "single retries", "plain"]
)
def test_a_process_has_no_more_requests_under_way_than_it_may(things, make_webhook, receiver, under_way, options):
    make_webhook(things, receiver.url("/fail-first/1"), concurrency=8, **options)
    for number in range(12):
        publish(things, number, key=f"{number}")
    transfer_all()
    delivered = []

    def all_delivered():
        """One that ends when nothing is due may end before the last retry is."""
        delivered.append(send_all(most=2).settling.delivered)
        return sum(delivered) == 12

    wait_until(all_delivered, what="all deliveries")
    assert max(under_way) == 2


def test_each_endpoint_may_send_one_beside_a_full_process(things, make_webhook, receiver, under_way):
    for name in ("one", "two", "three"):
        make_webhook(things, receiver.url("/hang"), name=name, ordered=True)
    for number in range(4):
        publish(things, number, key=f"{number}")
    transfer_all()
    with sending(most=1) as worker:
        wait_until(lambda: len(receiver.requests) == 3, what="one request of each endpoint")
        receiver.release()
        wait_until(lambda: worker.settling.delivered == 12, what="all of them")
    assert max(under_way) == 3


def test_an_answer_that_wants_no_more_is_no_failure(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/status/410"))
    publish(things, 1)
    transfer_all()
    worker = send_all()
    assert (worker.settling.delivered, worker.settling.failed, worker.settling.unwanted) == (0, 0, 1)
    assert worker.take_settled() == 1
    assert worker.take_settled() == 0
