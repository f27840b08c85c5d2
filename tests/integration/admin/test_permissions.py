"""Who may see and do what: every page and every action, with and without its permission, by every method."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from django_events.models import DeadLetter, ScheduledEvent
from tests.integration.admin.conftest import address, consumer_of, topic_of
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.django_db

VIEWS = {
    "overview": ["view_overview"],
    "topics": ["view_topic"],
    "topic": ["view_topic"],
    "topic history": ["view_topic"],
    "log": ["view_event"],
    "event": ["view_event"],
    "what would match": ["view_event"],
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
    "remove": ["view_topic", "remove_topic"],
    "repartition": ["view_topic", "repartition_topic"],
    "pause": ["view_consumer", "pause_consumer"],
    "resume": ["view_consumer", "resume_consumer"],
    "retry_now": ["view_consumer", "retry_now_consumer"],
    "skip": ["view_consumer", "skip_consumer"],
    "replay": ["view_consumer", "replay_consumer"],
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
        "remove": address("topic", topic, "remove"),
        "repartition": address("topic", topic, "repartition"),
        "log": address("topic", topic, "log"),
        "event": address("topic", topic, "log/1"),
        "publish again": address("topic", topic, "log/1/again"),
        "what would match": address("topic", topic, "match") + "?types=t",
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
            for name in ("pause", "resume", "retry_now", "skip", "replay", "rewind")
        },
        **{name: address("deadletter", letter, f"act/{name}") for name in ("redrive", "discard")},
    }


@pytest.mark.slow
@pytest.mark.requirement("X5")
@pytest.mark.parametrize("page", VIEWS)
@pytest.mark.few(5)
def test_a_page_is_for_those_who_may_see_it(addresses, sign_in, page):
    assert sign_in(*VIEWS[page]).get(addresses[page]).status_code == 200
    assert sign_in("nothing", name="eve").get(addresses[page]).status_code == 403
    others = {permission for needed in VIEWS.values() for permission in needed} - set(VIEWS[page])
    assert sign_in(*sorted(others), name="mallory").get(addresses[page]).status_code == 403
    anonymous = Client().get(addresses[page])
    assert (anonymous.status_code, anonymous.url.split("?")[0]) == (302, "/admin/login/")


@pytest.mark.slow
@pytest.mark.parametrize("page", VIEWS)
@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
@pytest.mark.few(8)
def test_a_page_that_shows_takes_nothing(addresses, olga, page, method):
    answer = getattr(olga, method)(addresses[page], {"name": "changed"} if method == "post" else None)

    assert answer.status_code in (403, 405) or (page in DJANGOS and answer.status_code in (200, 302)), (
        answer.status_code
    )


# Django's own pages, which take any method and do nothing with it.
DJANGOS = {"dead letters", "scheduled events", "scheduled event", "interventions", "topic history", "consumer history"}


@pytest.mark.slow
@pytest.mark.requirement("X5")
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.few(5)
def test_an_action_needs_its_own_permission(addresses, sign_in, action, method):
    everything = {permission for needed in [*VIEWS.values(), *ACTIONS.values()] for permission in needed}
    for missing in ACTIONS[action]:
        client = sign_in(*sorted(everything - {missing}), name=f"without-{missing}")
        assert getattr(client, method)(addresses[action]).status_code == 403, missing
    allowed = getattr(sign_in(*ACTIONS[action]), method)(addresses[action])
    assert allowed.status_code in (200, 302)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("method", ["put", "patch", "delete"])
@pytest.mark.few(5)
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


@pytest.mark.parametrize("model", ["deadletter", "scheduledevent"])
@pytest.mark.parametrize(
    "query",
    [
        "value__n=2", "value__contains=2", "value__isnull=False", "body__isnull=True", "metadata__startswith=x",
        "traceback__contains=x", "consumer__where__contains=x", "topic__name=lanes",
    ],
)  # fmt: skip
@pytest.mark.few(5)
def test_a_list_can_t_be_asked_for_what_it_doesn_t_show(addresses, olga, model, query):
    """Whether a row is found would tell what is masked, one letter after the other."""
    answer = olga.get(f"/admin/django_events/{model}/?{query}")
    assert answer.status_code == 400 or answer.url.endswith("?e=1")  # no such field


def test_a_list_counts_nothing_and_keeps_its_order(addresses, olga, django_assert_max_num_queries):
    for query in ("_facets=True", "o=3.-4", "o=x", "all="):
        with django_assert_max_num_queries(20) as asked:
            assert olga.get(f"/admin/django_events/deadletter/?{query}", follow=True).status_code == 200
        told = " ".join(one["sql"] for one in asked.captured_queries)
        assert "FILTER (WHERE" not in told and 'ORDER BY "django_events_deadletter"."type"' not in told


@pytest.mark.slow
def test_errors_and_records_are_for_those_who_may_see_them(addresses, sign_in):
    shown = {
        "event": [("view_event", False), ("view_deadletter", True)],
        "consumer": [("view_consumer", False), ("view_intervention", True)],
    }
    sign_in(name="actor").post(addresses["pause"])
    for page, people in shown.items():
        had = []
        for permission, told in people:
            had.append(permission)
            text = sign_in(*had, name=f"{page}-{permission}").get(addresses[page]).content.decode()
            assert ("ValueError: 1" in text or "actor" in text) is told, (page, had)


@pytest.mark.parametrize("action", ["redrive", "discard"])
@pytest.mark.parametrize("across", ["0", "1"])
def test_what_one_may_not_do_a_list_doesn_t_do_either(addresses, sign_in, action, across):
    other = {"redrive": "discard", "discard": "redrive"}[action]
    letter = DeadLetter.objects.get()
    asked = {"action": action, "_selected_action": letter.pk, "select_across": across, "decided": "yes", "reason": "x"}
    for permissions in (["view_deadletter", f"{other}_deadletter"], [f"{action}_deadletter"]):
        client = sign_in(*permissions, name="-".join(permissions))
        client.post(addresses["dead letters"], asked)
        letter.refresh_from_db()
        assert letter.redrive_at is None
    scheduled = {"action": "cancel", "_selected_action": ScheduledEvent.objects.get().pk, "select_across": across}
    scheduled |= {"decided": "yes", "reason": "x"}
    for permission in ("view_scheduledevent", "cancel_scheduledevent"):
        sign_in(permission, name=permission).post(addresses["scheduled events"], scheduled)
    assert ScheduledEvent.objects.exists()


def test_other_apps_choices_don_t_tell_our_rows(addresses, olga):
    for model, field in (("deadletter", "consumer"), ("scheduledevent", "topic"), ("consumer", "topic")):
        asked = {"app_label": "django_events", "model_name": model, "field_name": field, "term": ""}
        assert olga.get("/admin/autocomplete/", asked).status_code in (403, 404)


@pytest.mark.parametrize("query", ["_to_field=value", "_popup=1", "_to_field=id&_popup=1", "_changelist_filters=x"])
def test_what_popups_ask_for_does_no_harm(addresses, olga, query):
    for page in ("dead letters", "scheduled events", "scheduled event", "interventions"):
        assert olga.get(f"{addresses[page]}?{query}", follow=True).status_code in (200, 400)
