"""What people do in the admin: it happens, it is written down, and what can't be done says why."""

import html
import re
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.admin.models import LogEntry
from django.test import override_settings
from django.utils import timezone
from django.utils.formats import number_format

from django_events import Backoff, declarations, publish
from django_events.admin.lists import AtLeast
from django_events.models import (
    BufferedEvent,
    Clock,
    DeadLetter,
    Delivery,
    Event,
    Inbox,
    Intervention,
    ScheduledEvent,
    Topic,
)
from django_events.models.functions import ClockTimestamp
from django_events.publishing.clocks import sync as sync_clocks
from django_events.testing import drain
from tests.integration.admin.conftest import address, consumer_of, topic_of
from tests.support.fix_consumers import position_of
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.django_db


class Broken:
    """A handler that fails until it is repaired, and what it has handled."""

    def __init__(self):
        self.repaired = False
        self.handled = []

    def __call__(self, event):
        if not self.repaired:
            raise ValueError(f"number {event.id} is broken")
        self.handled.append(event.id)


@pytest.fixture
def broken():
    return Broken()


def declare(make_consumer, topic, broken, **options):
    def handler(event):
        broken(event)

    return make_consumer(topic, handler=handler, **options)


@pytest.fixture
def dead(things, make_consumer, broken):
    """A consumer with three dead letters, two of which have the same error but for a number."""
    reader = declare(make_consumer, things, broken, mode="queue", retry=Backoff(attempts=1))
    for n in range(3):
        things.publish({"n": n}, key=str(n), type="t")
    drain(raise_errors=False)
    assert DeadLetter.objects.count() == 3
    return reader


def said(answer):
    return [str(message) for message in answer.context["messages"]]


def log_entry():
    return LogEntry.objects.latest("pk")


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_pause_and_resume(olga, things, make_consumer, broken):
    row = consumer_of(declare(make_consumer, things, broken))

    answer = olga.post(address("consumer", row, "act/pause"), follow=True)
    row.refresh_from_db()
    assert row.paused_at is not None
    assert "is paused" in said(answer)[0]
    assert "Resume…" in answer.content.decode() and "Pause…" not in answer.content.decode()
    assert (log_entry().object_id, log_entry().get_change_message()[:6]) == (str(row.pk), "pause:")
    assert Intervention.objects.latest("pk").by == "olga"
    history = olga.get(address("consumer", row, "history")).content.decode()
    assert "is paused" in history

    again = olga.post(address("consumer", row, "act/pause"), follow=True)
    assert said(again) == ["Nothing was changed: there was nothing to do."]
    assert LogEntry.objects.count() == 1

    olga.post(address("consumer", row, "act/resume"))
    row.refresh_from_db()
    assert row.paused_at is None


@pytest.mark.slow
def test_asking_changes_nothing(olga, things, make_consumer, broken):
    row = consumer_of(declare(make_consumer, things, broken))
    for action in ("pause", "resume", "retry_now", "skip", "rewind"):
        assert olga.get(address("consumer", row, f"act/{action}")).status_code == 200
    row.refresh_from_db()
    assert row.paused_at is None
    assert not Intervention.objects.exists() and not LogEntry.objects.exists()


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_rewind_shows_first_what_would_happen(olga, things, make_consumer, broken):
    broken.repaired = True
    reader = declare(make_consumer, things, broken)
    for n in range(5):
        things.publish({"n": n})
    drain()
    row = consumer_of(reader)
    asked = {"to": "id", "id": "3", "time": "", "partition": ""}

    preview = olga.get(address("consumer", row, "act/rewind"), asked)
    assert "What would happen" in preview.content.decode()
    [move] = preview.context["moves"]
    assert (move.before, move.after, move.again, move.omitted) == (6, 3, 3, 0)
    assert position_of(reader).position == 5

    answer = olga.post(address("consumer", row, "act/rewind"), asked, follow=True)
    assert position_of(reader).position == 2
    assert "3 events come again, 0 events left out" in said(answer)[0]
    assert "rewind" in log_entry().get_change_message()
    drain()
    assert broken.handled == [1, 2, 3, 4, 5, 3, 4, 5]

    answer = olga.post(address("consumer", row, "act/rewind"), {**asked, "id": "5"}, follow=True)
    assert "1 event comes again, 0 events left out" in said(answer)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"to": "id", "id": "99"}, "ends at 1"),
        ({"to": "id", "id": "0"}, "greater than or equal to 1"),
        ({"to": "id"}, "Say which one is meant."),
        ({"to": "id", "id": str(2**80)}, "less than or equal to"),
        ({"to": "time", "time": "soon"}, "Enter a valid date/time."),
        ({"to": "somewhere"}, "not one of the available choices"),
        ({"to": "beginning", "partition": "7"}, "no position in partition 7"),
    ],
)
@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.few(4)
def test_a_rewind_that_is_wrong_says_why_and_changes_nothing(olga, things, make_consumer, broken, asked, told, method):
    reader = declare(make_consumer, things, broken)
    things.publish({"n": 1})
    transfer_all()

    answer = getattr(olga, method)(address("consumer", consumer_of(reader), "act/rewind"), asked)
    assert answer.status_code == 200
    assert told in answer.content.decode()
    assert "Rewind now" not in answer.content.decode()
    assert not Intervention.objects.exists() and not LogEntry.objects.exists()


@pytest.mark.slow
def test_rewind_to_a_time(olga, things, make_consumer, broken):
    broken.repaired = True
    reader = declare(make_consumer, things, broken)
    things.publish({"n": 1})
    drain()
    asked = {"to": "time", "time": "2001-01-01T10:00:00"}

    olga.post(address("consumer", consumer_of(reader), "act/rewind"), asked)
    assert position_of(reader).position == 0


@pytest.mark.slow
def test_skip_makes_a_dead_letter(olga, things, make_consumer, broken):
    reader = declare(make_consumer, things, broken)
    things.publish({"n": 1})
    things.publish({"n": 2})
    drain(raise_errors=False)
    broken.repaired = True
    row = consumer_of(reader)
    stopped_at = position_of(reader).position + 1
    asked = {"event": str(stopped_at), "reason": "known to be wrong"}
    empty = olga.post(address("consumer", row, "act/skip"), {**asked, "reason": " "})
    assert "This field is required" in empty.content.decode()
    wrong = olga.post(address("consumer", row, "act/skip"), {**asked, "event": "2000"})
    assert wrong.status_code == 200 and "2000" in wrong.content.decode()
    other = olga.post(address("consumer", row, "act/skip"), {**asked, "event": f"lanes/{stopped_at}"})
    assert f"“lanes/{stopped_at}” is no event of topic things." in other.content.decode()
    assert not Intervention.objects.exists()

    done = olga.post(address("consumer", row, "act/skip"), {**asked, "event": f" things/{stopped_at} "}, follow=True)
    assert f"Event things/{stopped_at} is a dead letter of" in said(done)[0]


@pytest.mark.slow
def test_retry_now(olga, things, make_consumer, broken):
    retry = Backoff(attempts=5, base=timedelta(hours=1))
    reader = declare(make_consumer, things, broken, mode="queue", retry=retry)
    things.publish({"n": 1})
    drain(raise_errors=False)
    row = consumer_of(reader)
    page = olga.get(address("consumer", row)).content.decode()
    assert "Retry now…" in page and "retrying" in page
    waiting = olga.get(address("consumer", row, "deliveries"), {"state": "waiting"}).content.decode()
    assert "number 1 is broken" in waiting

    answer = olga.post(address("consumer", row, "act/retry_now"), follow=True)
    assert "tries again now" in said(answer)[0]
    broken.repaired = True
    drain()
    assert broken.handled == [1]
    assert not Delivery.objects.exists()


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_redrive_what_is_selected(olga, dead, broken):
    broken.repaired = True
    ids = list(DeadLetter.objects.order_by("event_id").values_list("pk", flat=True)[:2])
    chosen = {"action": "redrive", "_selected_action": ids}

    ask = olga.post("/admin/django_events/deadletter/", chosen)
    assert ask.status_code == 200 and "2 dead letters" in ask.content.decode()
    assert not DeadLetter.objects.filter(redrive_at__isnull=False).exists()
    answer = olga.post("/admin/django_events/deadletter/", {**chosen, "decided": "yes"}, follow=True)
    assert "2 dead letters are handled again" in said(answer)[0]
    assert log_entry().object_id == str(consumer_of(dead).pk)
    drain()
    assert broken.handled == [1, 2]
    assert DeadLetter.objects.count() == 1


@pytest.mark.slow
def test_redrive_by_error(olga, dead, broken):
    broken.repaired = True
    other = DeadLetter.objects.order_by("event_id").last()
    DeadLetter.objects.filter(pk=other.pk).update(error="KeyError: 'x'", fingerprint="KeyError: 'x'")

    groups = olga.get("/admin/django_events/deadletter/errors/").context["groups"]
    assert [(group["fingerprint"], group["letters"]) for group in groups] == [
        ("ValueError in tests.integration.admin.test_actions:__call__: number # is broken", 2),
        ("KeyError: 'x'", 1),
    ]
    listed = olga.get(groups[0]["address"])
    assert listed.context["cl"].result_count == 2
    first = listed.context["cl"].result_list[0].pk
    chosen = {"action": "redrive", "_selected_action": [first], "select_across": "1", "decided": "yes"}
    olga.post(groups[0]["address"], chosen)
    drain()
    assert sorted(broken.handled) == [1, 2]
    assert DeadLetter.objects.get() == other


ERRORS = "/admin/django_events/deadletter/errors/"


@pytest.mark.slow
@pytest.mark.requirement("S6")
def test_a_group_of_errors_is_decided_about_on_its_row(olga, dead, broken):
    other = DeadLetter.objects.order_by("event_id").last()
    DeadLetter.objects.filter(pk=other.pk).update(fingerprint="KeyError: 'x' & y")
    first, second = olga.get(ERRORS).context["groups"]

    asked = olga.get(first["discard"])
    assert "Discard: 2 dead letters" in asked.content.decode()
    assert "This field is required" in olga.post(first["discard"], {"decided": "yes"}).content.decode()
    assert DeadLetter.objects.count() == 3
    decided = {"decided": "yes", "reason": "two of them", "newest": asked.context["newest"]}
    answer = olga.post(first["discard"], decided, follow=True)
    assert answer.redirect_chain[-1][0] == ERRORS
    assert "2 dead letters discarded: two of them" in said(answer)[0]
    assert DeadLetter.objects.get() == other
    assert olga.get(second["redrive"]).status_code == 200
    assert not DeadLetter.objects.filter(redrive_at__isnull=False).exists()
    assert "1 dead letter is handled again" in said(olga.post(second["redrive"], {"decided": "yes"}, follow=True))[0]
    assert "Nothing was changed" in said(olga.post(first["redrive"], {"decided": "yes"}, follow=True))[0]
    for none in ("act/erase/?consumer=1&group=x", "act/redrive/?group=x", "act/redrive/?consumer=1&group=%00"):
        assert olga.get(ERRORS + none).status_code == 404


@pytest.mark.slow
def test_every_group_of_errors_can_be_reached(olga, dead, monkeypatch):
    monkeypatch.setattr("django_events.admin.dead_letters.GROUPS", 2)
    for letter in DeadLetter.objects.all():
        DeadLetter.objects.filter(pk=letter.pk).update(fingerprint=f"error {letter.event_id}")

    seen = [group["fingerprint"] for p in (1, 2) for group in olga.get(ERRORS, {"p": p}).context["groups"]]
    assert seen == ["error 1", "error 2", "error 3"]
    assert "Page 1 of 2" in olga.get(ERRORS).content.decode()


def test_what_is_not_counted_is_not_said_to_be_all(olga, dead, monkeypatch):
    monkeypatch.setattr("django_events.admin.lists.COUNTED", 2)
    monkeypatch.setattr("django_events.admin.dead_letters.DeadLetterAdmin.list_per_page", 1)
    page = olga.get("/admin/django_events/deadletter/", {"q": "broken"}).content.decode()

    assert "≥2 results" in page
    assert "Select all ≥2 dead letters" in page
    assert "≥2 dead letters" in page
    monkeypatch.setattr("django_events.admin.lists.COUNTED", 10_000)
    assert f"{AtLeast(10_000)}" == "≥10000"
    assert number_format(AtLeast(10_000), force_grouping=True) == "≥10,000"


@pytest.mark.slow
def test_dead_letters_are_filtered_and_ordered_by_time(olga, dead):
    first, second, third = DeadLetter.objects.order_by("event_id")
    DeadLetter.objects.filter(pk=first.pk).update(dead_at=ClockTimestamp() - timedelta(hours=2), type="old")
    listed = partial(olga.get, "/admin/django_events/deadletter/")

    def rows(**query):
        return list(listed(query).context["cl"].result_list)

    assert rows() == [third, second, first]
    assert rows(o="6") == [first, second, third]
    assert rows(within="1h") == [third, second]
    assert rows(within="1d", type="old") == [first]
    assert rows(type="t") == [third, second]
    DeadLetter.objects.filter(pk=second.pk).update(type="")
    assert rows(type="-") == [second]
    assert rows(type="\0") == rows(type="none") == rows(topic="0") == []
    assert rows(topic=str(first.consumer.topic_id)) == [third, second, first]
    page = listed({"type": "none"}).content.decode()
    assert 'type=old"' in page and 'type=-"' in page and 'within=15min"' in page


@pytest.mark.slow
def test_the_filter_stays_after_a_dead_letter_was_decided_about(olga, dead):
    page = olga.get("/admin/django_events/deadletter/", {"within": "1d", "q": "broken"}).content.decode()
    row = re.findall(r'href="(/admin/django_events/deadletter/\d+/change/[^"]*)"', page)[0]
    [act] = re.findall(r'href="([^"]*act/redrive/[^"]*)"', olga.get(html.unescape(row)).content.decode())

    answer = olga.post(html.unescape(act), {"decided": "yes"}, follow=True)
    assert answer.redirect_chain[-1][0] == "/admin/django_events/deadletter/?within=1d&q=broken"
    assert DeadLetter.objects.filter(redrive_at__isnull=False).count() == 1


@pytest.mark.slow
def test_redrive_all(olga, dead, broken):
    broken.repaired = True
    first = DeadLetter.objects.first()
    chosen = {"action": "redrive", "_selected_action": [first.pk], "select_across": "1", "decided": "yes"}
    olga.post("/admin/django_events/deadletter/", chosen)
    drain()
    assert sorted(broken.handled) == [1, 2, 3]


@pytest.mark.slow
def test_the_question_about_many_dead_letters_counts_no_further_than_the_list(olga, dead, monkeypatch):
    monkeypatch.setattr("django_events.admin.lists.COUNTED", 2)
    first = DeadLetter.objects.earliest("pk").pk
    chosen = {"action": "redrive", "_selected_action": [first], "select_across": "1"}
    page = olga.post("/admin/django_events/deadletter/", chosen).content.decode()

    assert "Redrive: at least 2 dead letters" in page
    assert "<li>and more</li>" in page
    answer = olga.post("/admin/django_events/deadletter/", {**chosen, "decided": "yes"}, follow=True)
    assert "3 dead letters are handled again" in said(answer)[0]


@pytest.mark.slow
def test_what_dies_while_an_operator_decides_is_not_decided(olga, dead, things):
    first = DeadLetter.objects.first()
    chosen = {"action": "discard", "_selected_action": [first.pk], "select_across": "1"}
    asked = olga.post("/admin/django_events/deadletter/", chosen)
    assert "3 dead letters" in asked.content.decode()
    things.publish({"n": 4})
    drain(raise_errors=False)
    assert DeadLetter.objects.count() == 4

    decided = {**chosen, "decided": "yes", "reason": "three of them", "newest": asked.context["newest"]}
    olga.post("/admin/django_events/deadletter/", decided)
    assert DeadLetter.objects.get().event_id == 4


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_discard_with_a_reason(olga, dead):
    letter = DeadLetter.objects.order_by("event_id").first()
    page = address("deadletter", letter, "act/discard")
    assert "This field is required" in olga.post(page, {"decided": "yes", "reason": ""}).content.decode()
    assert DeadLetter.objects.count() == 3

    answer = olga.post(page, {"decided": "yes", "reason": "a test order"}, follow=True)
    assert "1 dead letter discarded: a test order" in said(answer)[0]
    assert DeadLetter.objects.count() == 2
    assert Intervention.objects.latest("pk").details["reason"] == "a test order"
    assert "a test order" in log_entry().get_change_message()
    assert olga.get(address("deadletter", letter)).status_code == 404


@pytest.mark.slow
def test_a_dead_letter_is_shown_whole(olga, dead):
    letter = DeadLetter.objects.order_by("event_id").first()
    told = olga.get(address("deadletter", letter)).content.decode()

    assert "number 1 is broken" in told and "Traceback" in told and "&quot;n&quot;: 0" in told
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["n"]}):
        assert "&quot;n&quot;: 0" not in olga.get(address("deadletter", letter)).content.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "found"), [("2", 2), ("nothing like it", 0), ("number 3", 1), ("t", 3), ("'; --", 0), ("%", 0)]
)
def test_dead_letters_are_searched(olga, dead, asked, found):
    assert olga.get("/admin/django_events/deadletter/", {"q": asked}).context["cl"].result_count == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", ["consumer=0", "consumer=x", "waiting=maybe", "group=nothing", "database=", "p=99999", "o=1", "what=ever"]
)
@pytest.mark.few(4)
def test_filters_that_mean_nothing_do_no_harm(olga, dead, query):
    assert olga.get(f"/admin/django_events/deadletter/?{query}", follow=True).status_code == 200


@pytest.mark.slow
def test_publish_again(olga, things):
    things.publish({"n": 1}, key="k", type="t", metadata={"m": 1})
    transfer_all()
    page = address("topic", topic_of(things), "log/1/again")
    olga.get(page)
    assert not BufferedEvent.objects.exists()

    answer = olga.post(page, follow=True)
    assert "was published again" in said(answer)[0]
    transfer_all()
    first, second = Event.objects.since(things)
    assert (second.type, second.key, second.value) == (first.type, first.key, first.value)
    assert second.metadata["copy_of"] == "things/1"
    assert log_entry().object_id == str(topic_of(things).pk)


@pytest.mark.slow
def test_a_page_that_is_sent_twice_publishes_once(olga, things):
    things.publish({"n": 1})
    transfer_all()
    page = address("topic", topic_of(things), "log/1/again")
    asked = {"once": olga.get(page).context["form"]["once"].value()}

    for _ in range(2):
        assert "was published again" in said(olga.post(page, asked, follow=True))[0]
    assert BufferedEvent.objects.count() == LogEntry.objects.count() == 1
    olga.post(page, {"once": olga.get(page).context["form"]["once"].value()})
    assert BufferedEvent.objects.count() == 2
    assert olga.post(page, {"once": "nonsense"}).status_code == 200
    assert BufferedEvent.objects.count() == 2


def test_scheduled_events_are_cancelled(olga, things):
    for _ in range(2):
        things.publish({}, publish_at=timezone.now() + timedelta(days=1))
    row = ScheduledEvent.objects.first()
    page, chosen = "/admin/django_events/scheduledevent/", {"action": "cancel", "_selected_action": [row.pk]}

    asked = olga.post(page, chosen).content.decode()
    assert "Cancel: 1 event" in asked
    assert "never published" in asked
    olga.post(page, {**chosen, "decided": "yes", "reason": ""})
    assert ScheduledEvent.objects.count() == 2
    answer = olga.post(page, {**chosen, "decided": "yes", "reason": "a test"}, follow=True)
    assert said(answer) == ["1 scheduled event cancelled."]
    assert ScheduledEvent.objects.count() == 1
    assert "cancelled" in log_entry().get_change_message()
    done = Intervention.objects.get()
    assert (done.action, done.by, done.topic, done.details["tickets"]) == ("cancel", "olga", things.name, [row.pk])


def test_scheduled_events_that_came_since_the_page_asked_are_kept(olga, things):
    things.publish({}, publish_at=timezone.now() + timedelta(days=1))
    page = "/admin/django_events/scheduledevent/"
    chosen = {"action": "cancel", "_selected_action": [ScheduledEvent.objects.get().pk], "select_across": "1"}
    newest = olga.post(page, chosen).context["newest"]
    things.publish({}, publish_at=timezone.now() + timedelta(days=1))

    olga.post(page, {**chosen, "decided": "yes", "reason": "a test", "newest": newest})
    assert ScheduledEvent.objects.count() == 1


@pytest.mark.slow
@pytest.mark.requirement("X14")
def test_clocks_are_paused_go_on_and_tick_now(olga, sign_in, things):
    declared = things.every("0 3 * * *", type="nightly")
    try:
        sync_clocks("default")
    finally:
        declarations.clocks.discard(declared)
    clock, page = Clock.objects.get(), "/admin/django_events/clock/"
    assert "things.nightly" in olga.get(page).content.decode()
    assert olga.get(address("clock", clock)).status_code == 200
    told = {"overlapped_at": timezone.now(), "overlapped_by": "writer", "overlapped_as": "paused"}
    Clock.objects.update(overlapped=2, **told)
    assert all("writer was paused" in olga.get(one).content.decode() for one in (page, address("clock", clock)))

    def act(action, client=olga, **said):
        chosen = {"action": action, "_selected_action": [clock.pk], "decided": "yes", "reason": "", **said}
        return client.post(page, chosen, follow=True)

    asked = olga.post(page, {"action": "pause", "_selected_action": [clock.pk]}).content.decode()
    assert "Pause these clocks?" in asked and "things.nightly: 0 3 * * * UTC" in asked

    act("pause", sign_in("view_clock", "run_clock", name="ada"))
    clock.refresh_from_db()
    assert clock.paused_at is None
    assert said(act("pause", reason="no paper")) == ["Clock things.nightly is paused."]
    assert Intervention.objects.get().details == {"clock": "things.nightly", "reason": "no paper"}
    assert said(act("pause")) == ["Clock things.nightly: nothing was changed."]
    clock.refresh_from_db()
    assert clock.paused_at is not None
    assert said(act("resume")) == ["Clock things.nightly goes on."]
    assert said(act("run")) == ["Clock things.nightly ticks now."]
    assert BufferedEvent.objects.count() == 1
    assert [(one.action, one.by) for one in Intervention.objects.order_by("pk")] == [
        ("pause", "olga"),
        ("resume", "olga"),
        ("run", "olga"),
    ]
    assert "ticks now" in log_entry().get_change_message()

    act("remove", sign_in("view_clock", "run_clock", name="bob"))
    assert Clock.objects.exists()
    assert said(act("remove", reason="gone")) == ["Clock things.nightly is removed."]
    assert not Clock.objects.exists()
    assert Intervention.objects.latest("pk").details["reason"] == "gone"


@pytest.mark.requirement("X21")
def test_inboxes_are_paused_begin_anew_and_are_removed(olga, sign_in, things):
    Inbox.objects.create(
        name="things-in",
        topic=Topic.objects.get(name="things"),
        source="redis bank",
        position={"bank": {"id": "2-0", "passed": 2}},
        start="beginning",
        lag=1_200,
        failing_since=timezone.now(),
        error="The broker is down.",
    )
    inbox, page = Inbox.objects.get(), "/admin/django_events/inbox/"
    listed, shown = (olga.get(one).content.decode() for one in (page, address("inbox", inbox)))
    assert "redis bank" in listed and "1,200" in listed and "no app declares it" in listed
    assert "id 2-0, passed 2" in shown and "The broker is down." in shown

    def act(action, client=olga, **said):
        chosen = {"action": action, "_selected_action": [inbox.pk], "decided": "yes", "reason": "", **said}
        return client.post(page, chosen, follow=True)

    asked = olga.post(page, {"action": "restart", "_selected_action": [inbox.pk]}).content.decode()
    assert "Let these inboxes begin anew?" in asked and "things-in: redis bank → things" in asked
    assert "the id of the last message of the source" in asked

    act("pause", sign_in("view_inbox", "resume_inbox", name="ada"))
    assert Inbox.objects.get().paused_at is None
    assert said(act("pause", reason="repairs")) == ["Inbox things-in is paused."]
    assert said(act("pause")) == ["Inbox things-in: nothing was changed."]
    assert Inbox.objects.get().paused_at is not None
    assert said(act("resume")) == ["Inbox things-in goes on."]
    assert "This field is required" in act("restart").content.decode()
    assert said(act("restart", start="1-0")) == ["Inbox things-in begins anew."]
    assert (Inbox.objects.get().position, Inbox.objects.get().start) == (None, "1-0")
    assert said(act("remove", reason="gone")) == ["Inbox things-in is removed."]
    assert not Inbox.objects.exists()
    done = [(one.action, one.by) for one in Intervention.objects.order_by("pk")]
    assert done == [("pause", "olga"), ("resume", "olga"), ("restart", "olga"), ("remove", "olga")]


def test_a_declared_clock_is_not_removed(olga, things):
    declared = things.every("0 3 * * *", type="nightly")
    try:
        sync_clocks("default")
        chosen = {"action": "remove", "_selected_action": [Clock.objects.get().pk], "decided": "yes"}
        [told] = said(olga.post("/admin/django_events/clock/", chosen, follow=True))
    finally:
        declarations.clocks.discard(declared)
    assert "is declared at" in told and Clock.objects.exists()


def test_a_reason_is_on_the_record_and_in_the_admins_log(olga, things, make_consumer, broken):
    row = consumer_of(declare(make_consumer, things, broken))
    olga.post(address("consumer", row, "act/pause"), {"reason": "the bank is down"})

    assert Intervention.objects.latest("pk").details == {"reason": "the bank is down"}
    assert log_entry().get_change_message().endswith(" the bank is down")
    olga.post(address("consumer", row, "act/resume"), {"reason": "it is back"})
    assert Intervention.objects.latest("pk").details["reason"] == "it is back"


def test_redriving_takes_a_reason(olga, dead):
    letter = DeadLetter.objects.first()
    olga.post(address("deadletter", letter, "act/redrive"), {"decided": "yes", "reason": "the fix is out"})

    assert Intervention.objects.latest("pk").details["reason"] == "the fix is out"
    assert "the fix is out" in log_entry().get_change_message()


@pytest.fixture
def scheduled(things):
    later = timezone.now() + timedelta(days=1)
    for n in (1, 2, 3):
        publish(things, {"n": n, "card": "4711"}, key=f"k{n}", type="t", publish_at=later + timedelta(hours=3 - n))
    return list(ScheduledEvent.objects.order_by("pk"))


def test_a_scheduled_events_page_shows_its_payload_to_users_who_see_events(sign_in, scheduled):
    page = address("scheduledevent", scheduled[0])
    seen = sign_in("view_scheduledevent", "view_event", name="ada").get(page).content.decode()
    assert f"Scheduled event {scheduled[0].pk} of things" in seen and "4711" in seen
    hidden = sign_in("view_scheduledevent", name="bob").get(page).content.decode()
    assert "4711" not in hidden and "Publish now" not in hidden
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]}):
        masked = sign_in("view_scheduledevent", "view_event", name="eve").get(page).content.decode()
    assert "4711" not in masked and "•••" in masked


def test_scheduled_events_are_found_by_ticket_and_key(olga, scheduled):
    def found(term):
        answer = olga.get("/admin/django_events/scheduledevent/", {"q": term})
        return [row.pk for row in answer.context["cl"].result_list]

    assert found("k2") == [scheduled[1].pk]
    assert found(str(scheduled[0].pk)) == [scheduled[0].pk]
    assert found("nothing") == []
    listed = olga.get("/admin/django_events/scheduledevent/", {"topic": str(scheduled[0].topic_id)})
    assert len(listed.context["cl"].result_list) == 3


@pytest.mark.slow
def test_scheduled_events_are_published_now_in_their_order(olga, sign_in, scheduled, things):
    page = "/admin/django_events/scheduledevent/"
    chosen = {"action": "publish", "_selected_action": [row.pk for row in scheduled[:2]]}
    assert "Publish now: 2 events" in olga.post(page, chosen).content.decode()
    refused = sign_in("view_scheduledevent", "cancel_scheduledevent", name="bob")
    one = address("scheduledevent", scheduled[2], "act/publish")
    assert refused.post(one, {"decided": "yes"}).status_code == 403
    assert transfer_all() == 0

    answer = olga.post(page, {**chosen, "decided": "yes", "reason": "the sale begins"}, follow=True)
    assert said(answer) == ["2 scheduled events are published as soon as the transfer takes them."]
    olga.post(one, {"decided": "yes", "reason": ""})
    transfer_all()
    assert [event.value["n"] for event in Event.objects.since(things)] == [2, 1, 3]
    assert [one.action for one in Intervention.objects.order_by("pk")] == ["publish", "publish"]
    assert Intervention.objects.earliest("pk").details["reason"] == "the sale begins"
    assert olga.get(address("scheduledevent", scheduled[0])).status_code == 404


@pytest.mark.slow
def test_what_is_gone_between_a_page_and_its_button(olga, dead):
    for action in ("redrive", "discard"):
        letter = DeadLetter.objects.order_by("event_id").first()
        page = address("deadletter", letter, f"act/{action}")
        assert olga.get(page).status_code == 200
        DeadLetter.objects.filter(pk=letter.pk).delete()
        answer = olga.post(page, {"decided": "yes", "reason": "x"}, follow=True)
        assert answer.status_code == 200
        assert said(answer) == ["Nothing was changed: these dead letters are not there any more."]
        assert olga.get(page).status_code == 404
    assert not LogEntry.objects.exists()


@pytest.mark.slow
def test_each_consumer_s_history_has_its_own_count(olga, dead, things, make_consumer, broken):
    other = declare(make_consumer, things, broken, mode="queue", retry=Backoff(attempts=1), name="other")
    things.publish({"n": 4})
    drain(raise_errors=False)
    letters = DeadLetter.objects.values_list("pk", flat=True)
    chosen = {"action": "redrive", "_selected_action": letters, "decided": "yes"}
    answer = olga.post("/admin/django_events/deadletter/", chosen, follow=True)
    assert "dead letters are handled again" in said(answer)[0]
    noted = {entry.object_id: entry.get_change_message() for entry in LogEntry.objects.all()}
    for reader in (dead, other):
        row = consumer_of(reader)
        number = DeadLetter.objects.filter(consumer=row).count()
        assert f"redrive: {number} dead letter" in noted[str(row.pk)]
    again = olga.post("/admin/django_events/deadletter/", chosen, follow=True)
    assert DeadLetter.objects.filter(redrive_at__isnull=False).count() == len(letters), said(again)


def test_each_topic_s_history_has_its_own_count(olga, make_topic):
    tomorrow = timezone.now() + timedelta(days=1)
    for name, events in (("tea", 1), ("coffee", 2)):
        for _ in range(events):
            make_topic(name).publish({}, publish_at=tomorrow) if _ == 0 else publish(name, {}, publish_at=tomorrow)
    ids = list(ScheduledEvent.objects.values_list("pk", flat=True))
    chosen = {"action": "cancel", "_selected_action": ids, "decided": "yes", "reason": "x"}
    assert said(olga.post("/admin/django_events/scheduledevent/", chosen, follow=True)) == [
        "3 scheduled events cancelled."
    ]
    noted = sorted(entry.get_change_message() for entry in LogEntry.objects.all())
    assert noted == ["1 scheduled event cancelled. x", "2 scheduled events cancelled. x"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    ["consumer=²", f"consumer={'9' * 5000}", "consumer=9999999999999999999", "group=%00", "group=a%00b", "q=%00",
     "database=default&database=default", "waiting=%00", "p=%00", "consumer=1&consumer=x", "q=%25&q=_"],
)  # fmt: skip
@pytest.mark.few(4)
def test_garbage_in_a_query_does_no_harm(olga, dead, query):
    assert olga.get(f"/admin/django_events/deadletter/?{query}", follow=True).status_code == 200


@pytest.mark.slow
def test_garbage_in_forms_does_no_harm(olga, things, make_consumer, broken):
    row = consumer_of(declare(make_consumer, things, broken, name="a.b-c.d"))
    for asked in (
        {"event": "9" * 5000, "reason": "x"}, {"event": "1", "reason": "a\0b"}, {"event": "-1", "reason": "x"},
        {"event": str(2**63 - 2), "reason": "\u202e' % \""},
    ):  # fmt: skip
        assert olga.post(address("consumer", row, "act/skip"), asked).status_code == 200
    for asked in (
        {"to": "beginning", "partition": "9" * 30}, {"to": "id", "id": str(2**63 - 2)}, {"to": ["id", "end"]},
        {"to": "time", "time": "0001-01-01T00:00"}, {"to": "time", "time": "9999-12-31T23:59:59"},
    ):  # fmt: skip
        assert olga.get(address("consumer", row, "act/rewind"), asked).status_code == 200
    log = address("topic", topic_of(things), "log")
    times = ("?time=0001-01-01T00:00", "?time=9999-12-31T23:59:59")
    for query in ("?partition=" + "9" * 30, "?key=%00", "?before=0", *times):
        assert olga.get(log + query, follow=True).status_code == 200, query
    assert olga.get("/admin/django_events/consumer/", {"q": "a.b-c.d", "p": "x"}).context["page"].paginator.count == 1
    assert not Intervention.objects.exists()


@pytest.mark.slow
def test_an_event_is_replayed_from_its_page(olga, things, make_consumer):
    seen = []
    reader = make_consumer(things, handler=lambda event: seen.append(event.value))
    for n in (1, 2, 3):
        things.publish(n)
    drain()
    row = consumer_of(reader)
    page = olga.get(address("topic", topic_of(things), "log/2")).content.decode()
    [link] = re.findall(r'href="([^"]*act/replay/[^"]*)"', page)
    asked = olga.get(link.replace("&amp;", "&")).content.decode()
    assert 'name="first" value="2"' in asked and 'name="last" value="2"' in asked
    assert "This field is required" not in asked
    chosen = {"first": "2", "last": "2", "type": "", "key": ""}
    assert "This field is required" in olga.post(address("consumer", row, "act/replay"), chosen).content.decode()
    answer = olga.post(address("consumer", row, "act/replay"), {**chosen, "reason": "Tuesday"}, follow=True)
    assert "handles 1 event again. Of those chosen, 0 events are left out." in answer.content.decode()
    drain()

    assert seen == [1, 2, 3, 2]
    assert Intervention.objects.get(action="replay").by == "olga"
    nothing = {**chosen, "first": "9", "last": "9", "reason": "Tuesday"}
    answer = olga.post(address("consumer", row, "act/replay"), nothing, follow=True)
    assert "there was nothing to do" in answer.content.decode()


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_a_queue_s_page_says_what_becomes_of_its_events(olga, dead, things):
    things.publish({"n": 4})
    transfer_all()

    page = olga.get(address("consumer", consumer_of(dead))).content.decode()
    table = page[page.index("What becomes of its events") :].split("</table>")[0]
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in table.split("<tr>")[2:]]
    assert [row[:2] for row in rows[:1]] == [["available", "1"]]
    assert rows[-1][0] == "dead"
    assert {row[0] for row in rows} == {"available", "in", "waiting", "retrying", "dead"}
    assert "died" in rows[-1] and "3" in rows[-1]
    assert "?state=leased" in table and "deadletter" in table


@pytest.mark.slow
def test_a_rewind_of_many_partitions_has_totals_a_warning_and_one_row(olga, lanes, make_consumer):
    row = consumer_of(make_consumer(lanes, handler=print))
    for n in range(12):
        lanes.publish(n, key=str(n))
    transfer_all()
    page = olga.get(address("consumer", row, "act/rewind"), {"to": "end"}).content.decode()
    assert "12 events are not handled: they are left out." in page
    assert "events-dangerous" in page
    totals = re.sub(r"<[^>]+>", " ", page[page.index("<tfoot>") : page.index("</tfoot>")]).split()
    assert totals == ["All", "0", "12", "0"]

    olga.post(address("consumer", row, "act/rewind"), {"to": "end", "reason": "an old backlog"})
    assert Intervention.objects.filter(action="rewind").count() == lanes.partitions > 1
    assert {one.details["reason"] for one in Intervention.objects.all()} == {"an old backlog"}
    page = olga.get(address("consumer", row)).content.decode()
    table = page[page.index("What was done by hand") :].split("</table>")[0]
    assert table.count("<tr>") == 2
    assert f"partitions: {lanes.partitions}, to: end, reason: an old backlog" in table
    assert "an old backlog" in olga.get("/admin/django_events/intervention/", {"q": row.name}).content.decode()


def test_the_size_of_a_value_is_that_of_its_text(olga, things):
    things.publish({"text": "a" * 9_000})
    transfer_all()
    assert 'Value <span class="help">9.0 kB' in olga.get(address("topic", topic_of(things), "log/1")).content.decode()


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_deliveries_have_type_and_key_and_one_is_tried_again_or_skipped(olga, things, make_consumer, broken):
    retry = Backoff(attempts=5, base=timedelta(hours=1), cap=timedelta(hours=1))
    reader = declare(make_consumer, things, broken, mode="queue", retry=retry)
    for n in (1, 2):
        things.publish(n, key=f"key-{n}", type="order.placed")
    drain(raise_errors=False)
    things.publish(3, key="key-3", type="order.paid")
    transfer_all()
    row = consumer_of(reader)
    listed = olga.get(address("consumer", row, "deliveries")).content.decode()
    assert "order.paid" in listed and "key-3" in listed
    retrying = olga.get(address("consumer", row, "deliveries"), {"state": "retrying"}).content.decode()
    assert "key-1" in retrying and "key-2" in retrying and "key-3" not in retrying
    event = olga.get(address("topic", topic_of(things), "log/1")).content.decode()
    again = address("consumer", row, "act/retry_now")
    skip = address("consumer", row, "act/skip")
    for page in (retrying, event):
        assert f"{again}?only=1" in page and f"{skip}?event=1" in page

    assert 'value="1"' in olga.get(again, {"only": 1}).content.decode()
    answer = olga.post(again, {"only": 1}, follow=True)
    assert said(answer) == ["Consumer reader of things tries things/1 again now."]
    due = {one.event_id: one.visible_at for one in Delivery.objects.filter(consumer=row)}
    assert due[1] is None or due[1] < due[2]
    olga.post(skip, {"event": 2, "reason": "x"})
    assert DeadLetter.objects.get().event_id == 2
