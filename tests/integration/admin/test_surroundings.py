"""The admin on sites that are set up in other ways, and on databases in a bad state."""

from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.contrib import admin
from django.contrib.admin.sites import AdminSite
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import override_settings
from django.urls import clear_script_prefix, path, set_script_prefix
from django.utils import timezone

from django_events import Draft, declarations, redis_stream
from django_events.admin.topics import log as log_pages
from django_events.models import BufferedEvent, Consumer, DeadLetter, Overview, ScheduledEvent
from django_events.statements import log_table
from testproject.urls import urlpatterns as shops
from tests.integration.admin.conftest import address, consumer_of, topic_of
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.django_db

office = AdminSite(name="office")
for model, model_admin in admin.site._registry.items():
    if model._meta.app_label == "django_events":
        office.register(model, type(model_admin))
small = AdminSite(name="small")
small.register(Consumer, type(admin.site._registry[Consumer]))
small.register(Overview, type(admin.site._registry[Overview]))
ACTIONS = [("pause", {}), ("resume", {}), ("skip", {"event": 1, "reason": "x"}), ("rewind", {"to": "end"})]
urlpatterns = [*shops, path("office/", office.urls), path("small/", small.urls)]


@pytest.fixture
def pages(lanes, make_consumer, monkeypatch):
    """The addresses of a page of each kind, without where the admin is."""

    def handler(event):
        raise ValueError("never handled")

    monkeypatch.setattr(log_pages, "SIZE", 5)
    reader = make_consumer(lanes, handler=handler, mode="queue")
    lanes.publish_many([Draft(value={"n": n}, key="a", type="t") for n in range(1_200)])
    transfer_all()
    lanes.publish({"n": 2}, publish_at=timezone.now() + timedelta(days=1))
    topic, consumer = topic_of(lanes), consumer_of(reader)
    letter = DeadLetter.objects.create(
        consumer=consumer, event_id=1100, partition=0, number=1, type="t", key="a", value={"n": 1}, metadata={},
        published_at=consumer.registered_at, logged_at=consumer.registered_at, attempts=3, error="ValueError: 1",
            fingerprint="ValueError: #",
    )  # fmt: skip
    found = [
        address("topic", topic), address("topic", topic, "log"), address("topic", topic, "log/1100"),
        address("topic", topic, "log/1100/again"), address("consumer", consumer),
        address("topic", topic, "history"),
        address("consumer", consumer, "deliveries"), address("deadletter", letter),
        address("consumer", consumer, "history"), address("deadletter", letter, "act/discard"),
        address("scheduledevent", ScheduledEvent.objects.get()),
        *(address("consumer", consumer, f"act/{action}") for action in ("pause", "skip", "rewind")),
        *(f"/admin/django_events/{model}/" for model in ("overview", "topic", "consumer", "deadletter")),
        *(f"/admin/django_events/{page}/" for page in ("scheduledevent", "intervention", "deadletter/errors")),
        address("consumer", consumer, "act/rewind") + "?to=time&time=2001-01-01T10:00:00",
        address("consumer", consumer, "act/rewind") + "?to=id&id=1100",
        address("topic", topic, "log") + "?before=1150&partition=1",
        address("topic", topic, "log") + "?key=a&type=t",
    ]  # fmt: skip
    return [page.removeprefix("/admin/") for page in found]


@pytest.mark.slow
@override_settings(ROOT_URLCONF=__name__)
def test_every_link_of_another_site_leads_to_that_site(olga, pages):
    for page in pages:
        answer = olga.get(f"/office/{page}")
        assert answer.status_code == 200, page
        assert '="/admin/' not in answer.content.decode(), page
        assert "/office/django_events/" in answer.content.decode(), page


@pytest.mark.slow
@override_settings(ROOT_URLCONF=__name__)
def test_a_site_needn_t_show_all_our_models(olga, pages):
    for page in pages:
        if "/overview/" in page or "/consumer/" in page:
            answer = olga.get(f"/small/{page}")
            assert answer.status_code == 200, page
            told = answer.content.decode()
            assert (
                "/topic/" not in told
                and "/deadletter/" not in told
                and "/admin/" not in told.replace("/static/admin/", "")
            )


@override_settings(ROOT_URLCONF=__name__)
def test_actions_end_on_the_site_where_they_began(olga, pages):
    for page in pages:
        if "/act/pause" in page or page.endswith("/again/"):
            assert olga.post(f"/office/{page}").url.startswith("/office/django_events/")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"USE_TZ": False, "TIME_ZONE": "Asia/Tokyo"},
        {"USE_THOUSAND_SEPARATOR": True},
        {"USE_THOUSAND_SEPARATOR": True, "LANGUAGE_CODE": "de"},
        {"LANGUAGE_CODE": "ar", "TIME_ZONE": "America/New_York", "DJANGO_EVENTS": {"MASKED_FIELDS": ["n"]}},
    ],
    ids=str,
)
@pytest.mark.few(1)
def test_pages_of_sites_that_are_set_up_otherwise(olga, pages, changed):
    with override_settings(**changed):
        for page in pages:
            answer = olga.get(f"/admin/{page}")
            assert answer.status_code == 200, page
            for grouped in ("=1,1", "=1.1", "/1,1", "/1.1", 'value="1,1', 'value="1.1'):  # of ids
                assert grouped not in answer.content.decode(), page


@pytest.mark.slow
@override_settings(FORCE_SCRIPT_NAME="/shop")
def test_a_site_below_a_path(olga, pages):
    set_script_prefix("/shop/")
    for page in pages:
        told = olga.get(f"/admin/{page}").content.decode()
        assert 'href="/admin/' not in told and 'href="/shop/admin/django_events/' in told, page
    clear_script_prefix()


@pytest.mark.parametrize("kind", ["inactive", "not of the staff"])
def test_who_may_not_come_in(pages, sign_in, kind):
    client = sign_in(name="zoe")
    user = client.session["_auth_user_id"]
    changed = {"is_active": False} if kind == "inactive" else {"is_staff": False}
    User.objects.filter(pk=user).update(**changed)
    for page in pages:
        for method in (client.get, client.head, client.post):
            assert method(f"/admin/{page}").status_code == 302, page


@pytest.mark.slow
def test_pages_by_head(olga, pages):
    for page in pages:
        assert olga.head(f"/admin/{page}").status_code == 200, page


@pytest.fixture
def undeclared(lanes, make_consumer):
    """A topic with an event, and a consumer, that no app declares."""

    def handler(event): ...

    declared = make_consumer(lanes, handler=handler)
    lanes.publish({"n": 1})
    transfer_all()
    found = topic_of(lanes), consumer_of(declared)
    declarations.consumers.discard(declared)
    declarations.registry.discard(lanes)
    yield found
    declarations.registry.add(lanes)


@pytest.mark.slow
def test_what_no_app_declares_is_shown_and_says_why_nothing_is_published(olga, undeclared):
    topic, consumer = undeclared
    for page in (address("topic", topic), address("topic", topic, "log/1"), address("consumer", consumer)):
        assert olga.get(page).status_code == 200
    answer = olga.post(address("topic", topic, "log/1/again"), follow=True)
    assert answer.status_code == 200
    assert "lanes" in str(next(iter(answer.context["messages"])))
    assert not BufferedEvent.objects.exists()
    for name, asked in ACTIONS:
        assert olga.post(address("consumer", consumer, f"act/{name}"), asked, follow=True).status_code == 200


def test_a_consumer_that_spark_moves(olga, undeclared):
    topic, consumer = undeclared
    Consumer.objects.filter(pk=consumer.pk).update(mode="spark")
    page = olga.get(address("consumer", consumer)).content.decode()
    assert "/act/" not in page
    for name, asked in ACTIONS:
        answer = olga.post(address("consumer", consumer, f"act/{name}"), asked, follow=True)
        assert answer.status_code == 200, name
    assert olga.get(address("topic", topic, "log/1")).status_code == 200


def test_a_relay_shows_where_it_sends(olga, lanes, make_relay):
    declared = make_relay(lanes, to=redis_stream("shop.lanes", broker="redis here"))

    assert "redis here shop.lanes" in olga.get(address("consumer", consumer_of(declared))).content.decode()


@contextmanager
def connect_and_lock(django):
    """A session that has locked the table of topics."""
    given = {**django.get_connection_params()}
    for name in ("cursor_factory", "context"):
        given.pop(name, None)
    with psycopg.connect(**given) as session:
        session.execute("LOCK TABLE django_events_topic")
        yield session


@pytest.mark.usefixtures("transactional_db")
class TestBadDatabases:
    """Each statement fails for a reason that people understand."""

    @pytest.fixture(autouse=True)
    def atomic(self, transactional_db, monkeypatch):
        """As on sites where each request is a transaction."""
        monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)

    @contextmanager
    def limited(self, name, value):
        with connection.cursor() as cursor:
            cursor.execute(f"SET {name} = {value}")
        yield
        connection.close()

    @pytest.mark.slow
    def test_a_log_whose_table_is_missing(self, olga, things):
        row = topic_of(things)
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {log_table(row.pk)} CASCADE")
        for page in (address("topic", row), address("topic", row, "log")):
            assert olga.get(page).status_code == 503, page
        assert olga.post(address("topic", row, "log/1/again")).status_code == 404
        told = olga.get("/admin/django_events/overview/").content.decode()
        assert "manage.py migrate" in told

    @pytest.mark.slow
    def test_statements_may_not_take_long(self, olga, things):
        with connect_and_lock(connection) as held:
            with self.limited("statement_timeout", 300):
                answer = olga.get("/admin/django_events/topic/")
            held.rollback()
        assert answer.status_code == 503
        assert "longer than its limit" in answer.content.decode()

    @pytest.mark.slow
    def test_pages_and_actions_under_atomic_requests(self, olga, things, make_consumer):
        def handler(event): ...

        row = consumer_of(make_consumer(things, handler=handler))
        things.publish({"n": 1})
        transfer_all()
        for name, asked in (("pause", {}), ("resume", {}), ("rewind", {"to": "beginning"})):
            assert olga.post(address("consumer", row, f"act/{name}"), asked).status_code == 302
        letter = DeadLetter.objects.create(
            consumer=row, event_id=1, partition=0, number=1, type="t", key="a", value={"n": 1}, metadata={},
            published_at=row.registered_at, logged_at=row.registered_at, attempts=3, error="ValueError: 1",
            fingerprint="ValueError: #",
        )  # fmt: skip
        chosen = {"action": "redrive", "_selected_action": [letter.pk], "decided": "yes"}
        assert olga.post("/admin/django_events/deadletter/", chosen).status_code == 302
        assert DeadLetter.objects.get().redrive_at is not None

    @pytest.mark.slow
    def test_a_database_that_is_only_read(self, olga, things, make_consumer):
        def handler(event): ...

        row = consumer_of(make_consumer(things, handler=handler))
        with self.limited("default_transaction_read_only", "on"):
            for page in ("overview", "topic", "consumer", "deadletter"):
                assert olga.get(f"/admin/django_events/{page}/").status_code == 200
            answer = olga.post(address("consumer", row, "act/pause"))
        assert answer.status_code == 503
        assert "can only be read. Nothing was changed." in answer.content.decode()

    @pytest.mark.slow
    @pytest.mark.parametrize("model", ["deadletter", "scheduledevent", "intervention", "topic", "overview"])
    def test_missing_tables(self, olga, model):
        with connection.cursor() as cursor:
            tables = [
                name for name in connection.introspection.table_names(cursor) if name.startswith("django_events_")
            ]
            for name in tables:
                cursor.execute(f'ALTER TABLE "{name}" RENAME TO "away_{name}"')
        try:
            answer = olga.get(f"/admin/django_events/{model}/")
            assert answer.status_code == 503
            assert "manage.py migrate" in answer.content.decode()
        finally:
            with connection.cursor() as cursor:
                for name in tables:
                    cursor.execute(f'ALTER TABLE "away_{name}" RENAME TO "{name}"')

    @pytest.mark.slow
    def test_where_the_server_binds_parameters(self, olga, things, make_consumer, monkeypatch):
        def handler(event): ...

        row = consumer_of(make_consumer(things, handler=handler, mode="queue"))
        things.publish({"n": 1}, key="k", type="t")
        transfer_all()
        DeadLetter.objects.create(
            consumer=row, event_id=1, partition=0, number=1, type="t", key="a", value={"n": 1}, metadata={},
            published_at=row.registered_at, logged_at=row.registered_at, attempts=3, error="ValueError: 1",
            fingerprint="ValueError: #",
        )  # fmt: skip
        connection.close()
        options = {**connection.settings_dict["OPTIONS"], "server_side_binding": True}
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
        topic, letters = topic_of(things), "/admin/django_events/deadletter/"
        for page in (
            address("topic", topic), address("topic", topic, "log"), address("topic", topic, "log/1"), letters,
            address("consumer", row), address("consumer", row, "deliveries"), "/admin/django_events/overview/",
            letters + "errors/", address("deadletter", DeadLetter.objects.get()),
        ):  # fmt: skip
            assert olga.get(page).status_code == 200, page
        found = olga.get(letters, {"group": "ValueError: #", "q": "1"})
        assert found.context["cl"].result_count == 1
        assert olga.post(address("consumer", row, "act/rewind"), {"to": "end"}).status_code == 302
        connection.close()
