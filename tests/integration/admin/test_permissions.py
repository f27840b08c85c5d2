"""Who may see and do what: every page and every action, with and without its permission, by every method."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from django_events.models import DeadLetter, ScheduledEvent
from tests.conftest import transfer_all
from tests.integration.admin.conftest import address, consumer_of, topic_of

pytestmark = pytest.mark.django_db

VIEWS = {
    "overview": ["view_overview"],
    "topics": ["view_topic"],
    "topic": ["view_topic"],
    "topic history": ["view_topic"],
    "log": ["view_event"],
    "event": ["view_event"],
    "consumers": ["view_consumer"],
    "consumer": ["view_consumer"],
    "consumer history": ["view_consumer"],
    "deliveries": ["view_consumer"],
    "dead letters": ["view_deadletter"],
    "dead letters by error": ["view_deadletter"],
    "dead letter": ["view_deadletter"],
    "scheduled events": ["view_scheduledevent"],
    "scheduled event": ["view_scheduledevent"],
    "interventions": ["view_intervention"],
}
ACTIONS = {
    "publish again": ["view_event", "republish_event"],
    "pause": ["view_consumer", "pause_consumer"],
    "resume": ["view_consumer", "resume_consumer"],
    "retry": ["view_consumer", "retry_consumer"],
    "skip": ["view_consumer", "skip_consumer"],
    "rewind": ["view_consumer", "rewind_consumer"],
    "redrive": ["view_deadletter", "redrive_deadletter"],
    "discard": ["view_deadletter", "discard_deadletter"],
}


@pytest.fixture
def addresses(lanes, make_consumer):
    """The address of every page and every action, with what a form of it would say."""

    def handler(event):
        raise ValueError("never handled")

    reader = make_consumer(lanes, handler=handler, mode="queue")
    lanes.publish({"n": 1}, key="a", type="t")
    transfer_all()
    lanes.publish({"n": 2}, publish_at=timezone.now() + timedelta(days=1))
    topic, consumer = topic_of(lanes), consumer_of(reader)
    letter = DeadLetter.objects.create(
        consumer=consumer, event_id=1, partition=0, number=1, type="t", key="a", value={"n": 1}, metadata={},
        published_at=consumer.registered_at, logged_at=consumer.registered_at, attempts=3, error="ValueError: 1",
    )  # fmt: skip
    scheduled = ScheduledEvent.objects.get()
    root = "/admin/django_events/"
    return {
        "overview": root + "overview/",
        "topics": root + "topic/",
        "topic": address("topic", topic),
        "topic history": address("topic", topic, "history"),
        "log": address("topic", topic, "log"),
        "event": address("topic", topic, "log/1"),
        "publish again": address("topic", topic, "log/1/again"),
        "consumers": root + "consumer/",
        "consumer": address("consumer", consumer),
        "consumer history": address("consumer", consumer, "history"),
        "deliveries": address("consumer", consumer, "deliveries"),
        "dead letters": root + "deadletter/",
        "dead letters by error": root + "deadletter/errors/",
        "dead letter": address("deadletter", letter),
        "scheduled events": root + "scheduledevent/",
        "scheduled event": address("scheduledevent", scheduled),
        "interventions": root + "intervention/",
        **{
            name: address("consumer", consumer, f"act/{name}")
            for name in ("pause", "resume", "retry", "skip", "rewind")
        },
        **{name: address("deadletter", letter, f"act/{name}") for name in ("redrive", "discard")},
    }


@pytest.mark.requirement("X5")
@pytest.mark.parametrize("page", VIEWS)
def test_a_page_is_for_those_who_may_see_it(addresses, sign_in, page):
    assert sign_in(*VIEWS[page]).get(addresses[page]).status_code == 200
    assert sign_in("nothing", name="eve").get(addresses[page]).status_code == 403
    others = {permission for needed in VIEWS.values() for permission in needed} - set(VIEWS[page])
    assert sign_in(*sorted(others), name="mallory").get(addresses[page]).status_code == 403
    anonymous = Client().get(addresses[page])
    assert (anonymous.status_code, anonymous.url.split("?")[0]) == (302, "/admin/login/")


@pytest.mark.parametrize("page", VIEWS)
@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_a_page_that_shows_takes_nothing(addresses, olga, page, method):
    answer = getattr(olga, method)(addresses[page], {"name": "changed"} if method == "post" else None)

    assert answer.status_code in (403, 405) or (page in DJANGOS and answer.status_code in (200, 302)), (
        answer.status_code
    )


# Django's own pages, which take any method and do nothing with it.
DJANGOS = {"dead letters", "scheduled events", "scheduled event", "interventions", "topic history", "consumer history"}


@pytest.mark.requirement("X5")
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("method", ["get", "post"])
def test_an_action_needs_its_own_permission(addresses, sign_in, action, method):
    everything = {permission for needed in [*VIEWS.values(), *ACTIONS.values()] for permission in needed}
    for missing in ACTIONS[action]:
        client = sign_in(*sorted(everything - {missing}), name=f"without-{missing}")
        assert getattr(client, method)(addresses[action]).status_code == 403, missing
    allowed = getattr(sign_in(*ACTIONS[action]), method)(addresses[action])
    assert allowed.status_code in (200, 302)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("method", ["put", "patch", "delete"])
def test_an_action_is_asked_for_or_posted(addresses, olga, action, method):
    assert getattr(olga, method)(addresses[action]).status_code == 405


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_needs_its_token(addresses, olga, action):
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = olga.cookies

    assert strict.post(addresses[action]).status_code == 403


@pytest.mark.parametrize("model", ["topic", "consumer", "deadletter", "scheduledevent", "intervention", "overview"])
def test_nothing_is_added_or_deleted_in_a_form(addresses, olga, model):
    assert olga.get(f"/admin/django_events/{model}/add/").status_code in (403, 404)
    assert olga.get(f"/admin/django_events/{model}/1/delete/").status_code in (403, 404)
    assert olga.post(f"/admin/django_events/{model}/1/delete/", {"post": "yes"}).status_code in (403, 404)


def test_the_index_shows_what_one_may_see(addresses, sign_in):
    told = sign_in("view_consumer").get("/admin/").content.decode()

    assert "/admin/django_events/consumer/" in told
    assert "/admin/django_events/topic/" not in told
    assert "/admin/django_events/overview/" not in told
