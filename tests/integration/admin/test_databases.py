"""Two databases, where the same address but for its alias means another row: nothing ever strays to the other one."""

import json
import re
import socket
from collections import Counter, deque
from datetime import timedelta
from html import unescape
from io import StringIO
from urllib.parse import parse_qsl, urljoin, urlsplit

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from django_events import Backoff, declarations
from django_events.admin import summaries
from django_events.checks.databases import check_servers
from django_events.consuming import registration
from django_events.exceptions import Refused
from django_events.log.topics import sync
from django_events.log.transfer import Transfer
from django_events.models import (
    BufferedEvent,
    Consumer,
    DeadLetter,
    Intervention,
    MaintenanceStep,
    Position,
    ScheduledEvent,
    Topic,
)
from django_events.models.functions import ClockTimestamp
from django_events.models.maintenance import NEVER
from django_events.observing import state
from django_events.operating.retrying import retry_now
from django_events.operating.skipping import skip
from django_events.statements import log_table
from tests.support.fix_database import login

BOTH = ("default", "archive")
ROOT = "/admin/django_events/"
pytestmark = [
    pytest.mark.usefixtures("archive"),
    pytest.mark.django_db(transaction=True, databases=["default", "archive"]),
]


class Twins:
    """Rows of both databases that have the same primary keys."""

    def __init__(self, topic, consumer):
        self.topic = topic
        self.consumer = consumer
        self.letter = DeadLetter.objects.using("archive").get()
        self.scheduled = ScheduledEvent.objects.using("archive").get()
        assert Topic.objects.get(pk=topic.pk).name == "things"
        assert DeadLetter.objects.get().pk == self.letter.pk

    def counts(self, using):
        models = (BufferedEvent, DeadLetter, ScheduledEvent, Intervention)
        paused = Consumer.objects.using(using).filter(paused_at__isnull=False)
        redriven = DeadLetter.objects.using(using).filter(redrive_at__isnull=False)
        return [rows.count() for rows in (*(model.objects.using(using) for model in models), paused, redriven)]


def fill(using, topic, name):
    """An event in the log, one in the buffer for later, and a dead letter of a consumer."""
    topic.publish({"said in": using}, key=using, using=using)
    topic.publish({}, publish_at=timezone.now() + timedelta(days=1), using=using)
    Transfer(using).move()
    row = Consumer.objects.using(using).get(name=name)
    return DeadLetter.objects.using(using).create(
        consumer=row, event_id=1, partition=0, number=1, type="t", key=using, value={"said in": using}, metadata={},
        published_at=row.registered_at, logged_at=row.registered_at, attempts=3, error=f"ValueError: {using}",
    )  # fmt: skip


def align(*models):
    """Let the next row of each model have the same primary key in both databases."""
    for model in models:
        last = max(max(model.objects.using(alias).values_list("pk", flat=True), default=0) for alias in BOTH)
        for alias in BOTH:
            with connections[alias].cursor() as cursor:
                cursor.execute(f"SELECT nextval(pg_get_serial_sequence('{model._meta.db_table}', 'id'))")
                last = max(last, cursor.fetchone()[0])
        for alias in BOTH:
            with connections[alias].cursor() as cursor:
                cursor.execute(f"SELECT setval(pg_get_serial_sequence('{model._meta.db_table}', 'id'), {last + 50})")


@pytest.fixture
def twins(archive, make_topic, make_consumer):
    def handler(event): ...

    for alias in BOTH:  # what other tests declare has its rows before those that are to be twins
        sync(alias)
    align(Topic, Consumer, DeadLetter, BufferedEvent)  # scheduled events have their ids from the buffer's
    things = make_topic("things")
    reader = make_consumer(things, handler=handler, mode="queue", retry=Backoff(attempts=1), name="reader")
    fill("default", things, "reader")
    declarations.consumers.discard(reader)
    declarations.registry.discard(things)
    other = declarations.topic("others")
    declared = declarations.consumer(other, name="scribe", mode="queue")(handler)
    sync(archive)
    registration.sync(archive)
    fill(archive, other, "scribe")
    topic = Topic.objects.using(archive).get(name="others")
    yield Twins(topic, Consumer.objects.using(archive).get(name="scribe"))
    declarations.consumers.discard(declared)
    declarations.registry.discard(other)
    with connections[archive].cursor() as cursor:
        cursor.execute(f"DROP TABLE {log_table(topic.pk)} CASCADE")


VALUES = 5  # of one combination of filters are followed


def crawl(client, start):
    """Follow every link within our pages, the nearest first; what was answered, by address.

    Of the combinations of a page's filters only those with up to two are followed, with a few values each: there are
    thousands, and each bar of a topic's volume is a filter of its own.
    """
    todo, seen, followed = deque([start]), {}, Counter()
    while todo:
        page = todo.popleft()
        if page in seen:
            continue
        parts = urlsplit(page)
        combination = parts.path, frozenset(name for name, _ in parse_qsl(parts.query))
        followed[combination] += 1
        if followed[combination] > VALUES:
            continue
        answer = client.get(page)
        seen[page] = answer
        for found in re.findall(r'<a [^>]*?href="([^"]*)"', answer.content.decode()):
            link = urljoin(page, unescape(found).split("#")[0])
            filters = {name for name, _ in parse_qsl(urlsplit(link).query)} - {"database"}
            if link.startswith(ROOT) and "_changelist_filters" not in link and len(filters) < 3:
                todo.append(link)
    return seen


@pytest.mark.long
def test_every_link_leads_somewhere_and_stays_where_it_was(olga, twins):
    seen = crawl(olga, f"{ROOT}overview/?database=archive")

    assert {page: answer.status_code for page, answer in seen.items() if answer.status_code != 200} == {}
    rows = [page for page in seen if re.search(r"/(change|history|log|deliveries|act)/", page)]
    kinds = {tuple(page.split("/")[3:6:2]) for page in rows}
    assert {("topic", "log"), ("consumer", "act"), ("deadletter", "change"), ("topic", "history")} <= kinds
    # A link to the other database is a choice in a list. A page of several rows has its database in the query.
    here = [page for page in rows if "_40archive" in page or "database=archive" in page]
    assert any("/act/" in page and "database=archive" in page for page in here)
    assert [page for page in rows if page not in here and "others" in seen[page].content.decode()] == []
    assert [page for page in here if "things" in seen[page].content.decode()] == []


@pytest.mark.slow
def test_actions_are_done_where_they_were_asked_for(olga, twins):
    before = twins.counts("default")
    pk = twins.consumer.pk
    for name in ("pause", "resume", "rewind"):
        olga.post(f"{ROOT}consumer/{pk}_40archive/act/{name}/", {"to": "end"})
    olga.post(f"{ROOT}topic/{twins.topic.pk}@archive/log/1/again/")
    chosen = {"_selected_action": twins.letter.pk, "decided": "yes"}
    listed = f"{ROOT}deadletter/?database=archive"
    DeadLetter.objects.using("archive").filter(pk=twins.letter.pk).update(redrive_at=None)
    olga.post(listed, {**chosen, "action": "redrive"})
    assert twins.counts("archive")[-1] == 1
    olga.post(listed, {**chosen, "action": "discard", "reason": "old"})
    scheduled = {"action": "cancel", "_selected_action": twins.scheduled.pk, "decided": "yes", "reason": "old"}
    olga.post(f"{ROOT}scheduledevent/?database=archive", scheduled)

    assert twins.counts("archive") == [1, 0, 0, 6, 0, 0]
    assert twins.counts("default") == before
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {f"{pk}@archive", f"{twins.topic.pk}@archive"}
    for entry in LogEntry.objects.all():
        assert olga.get(f"/admin/{entry.get_admin_url().removeprefix('/admin/')}").status_code == 200
    history = olga.get(f"{ROOT}consumer/{pk}_40archive/history/").content.decode()
    assert "discard: " in history and "scribe" in history
    assert "discard: " not in olga.get(f"{ROOT}consumer/{pk}/history/").content.decode()


@pytest.mark.slow
def test_rows_that_django_shows_are_of_the_database_that_was_chosen(olga, twins):
    listed = olga.get(f"{ROOT}scheduledevent/?database=archive").content.decode()
    assert f"{ROOT}scheduledevent/{twins.scheduled.pk}_40archive/change/" in listed
    shown = olga.get(f"{ROOT}scheduledevent/{twins.scheduled.pk}_40archive/change/").content.decode()
    assert "others" in shown and "things" not in shown
    assert f"{ROOT}scheduledevent/{twins.scheduled.pk}_40archive/act/cancel/" in shown


@pytest.mark.slow
def test_the_choice_names_the_usual_database_too(olga, twins):
    told = olga.get(f"{ROOT}deadletter/").content.decode()
    choice = told[told.index("database") :]
    assert ">default<" in choice and ">archive<" in choice


REMEDY = re.compile(r"manage\.py (?:events|run_\w+|migrate)[^.:,)]*")


def remedies(using):
    """The commands that `events status` names for one of them."""
    out = StringIO()
    call_command("events", "status", f"--database={using}", "--format=json", stdout=out)
    told = [command for one in json.loads(out.getvalue())["findings"] for command in REMEDY.findall(one["remedy"])]
    return [command.strip() for command in told]


def failing_step(using):
    """A step of maintenance that fails."""
    begun = {"started_at": NEVER, "leased_until": NEVER}
    MaintenanceStep.objects.using(using).get_or_create(name="samples", defaults=begun)
    failing = MaintenanceStep.objects.using(using).filter(name="samples")
    failing.update(error="it broke", failing_since=ClockTimestamp())


def trouble(using, name):
    """A consumer that is paused, a step that fails, and an event that no transfer moves."""
    Consumer.objects.using(using).filter(name=name).update(paused_at=ClockTimestamp())
    failing_step(using)
    with connections[using].cursor() as cursor:
        topic = Consumer.objects.using(using).get(name=name).topic_id
        cursor.execute(
            "INSERT INTO django_events_bufferedevent (topic_id, type, value, metadata, published_at)"
            " VALUES (%s, '', '{}', '{}', now() - interval '1 hour')",
            [topic],
        )


@pytest.mark.requirement("E11")
def test_a_remedy_is_a_command_for_the_database_that_it_is_about(twins):
    trouble("default", "reader")
    trouble("archive", "scribe")
    here, there = remedies("default"), remedies("archive")

    for verb in ("events resume", "events dead-letters", "events maintain samples", "run_transfer"):
        assert [one for one in here if one.startswith(f"manage.py {verb}")], (verb, here)
        assert [one for one in there if one.startswith(f"manage.py {verb}")], (verb, there)
    assert [one for one in there if not one.endswith(" --database archive")] == []
    assert [one for one in here if "--database" in one and "migrate" not in one] == []


@pytest.mark.requirement("E11")
def test_what_a_verb_and_a_check_say_to_do_is_for_the_database_that_was_asked(twins):
    for using, name, topic in (("default", "reader", "things"), ("archive", "scribe", "others")):
        database = "" if using == "default" else " --database archive"
        with pytest.raises(Refused) as refused:
            skip(name, 1, topic=topic, reason="old", using=using)
        assert f"manage.py events discard {name} {topic}/1{database}" in str(refused.value)
        Consumer.objects.using(using).filter(name=name).update(paused_at=ClockTimestamp())
        with pytest.raises(Refused) as refused:
            retry_now(name, using=using)
        assert str(refused.value).endswith(f"manage.py events resume {name}{database}")
        row = Consumer.objects.using(using).get(name=name)
        stopped = {"stopped_at": timezone.now(), "error": "Bad."}
        Position.objects.using(using).update_or_create(consumer=row, partition=Position.ALL, defaults=stopped)
        hints = [one.hint for one in check_servers(databases=[using]) if one.id == "django_events.W003"]
        assert f"Repair the cause, then: manage.py events resume {name}{database}" in hints


@pytest.mark.requirement("E11")
def test_each_page_of_a_row_names_its_database(olga, twins):
    topic, consumer, letter, scheduled = twins.topic.pk, twins.consumer.pk, twins.letter.pk, twins.scheduled.pk
    for alias in BOTH:
        failing_step(alias)
    pages = [
        f"topic/{topic}{{at}}/change/",
        f"topic/{topic}{{at}}/log/",
        f"topic/{topic}{{at}}/log/1/",
        f"topic/{topic}{{at}}/match/",
        f"topic/{topic}{{at}}/history/",
        f"consumer/{consumer}{{at}}/change/",
        f"consumer/{consumer}{{at}}/act/rewind/",
        f"consumer/{consumer}{{at}}/act/pause/",
        f"consumer/{consumer}{{at}}/deliveries/",
        f"deadletter/{letter}{{at}}/change/",
        f"scheduledevent/{scheduled}{{at}}/change/",
        f"scheduledevent/{scheduled}{{at}}/act/cancel/",
        "maintenancestep/samples{at}/change/",
    ]
    for page in pages:
        for at, alias in (("", "default"), ("_40archive", "archive")):
            answer = olga.get(ROOT + page.format(at=at))
            assert answer.status_code == 200, page
            assert f'<p class="events-where">Database: <strong>{alias}</strong></p>' in answer.content.decode(), page
    chosen = {"_selected_action": letter, "action": "discard"}
    asked = olga.post(f"{ROOT}deadletter/?database=archive", chosen).content.decode()
    assert '<p class="events-where">Database: <strong>archive</strong></p>' in asked
    with override_settings(DATABASE_ROUTERS=[Keeps()]):
        assert "events-where" not in olga.get(f"{ROOT}consumer/{consumer}/change/").content.decode()


class Keeps:
    """A router that has none of our tables on the archive."""

    def allow_migrate(self, db, app_label, **hints):
        return not (db == "archive" and app_label == "django_events")


@pytest.mark.slow
def test_a_database_without_our_tables_by_the_router_is_not_offered(olga, archive):
    with override_settings(DATABASE_ROUTERS=[Keeps()]):
        assert "archive" not in olga.get(f"{ROOT}overview/").content.decode()
        assert olga.get(f"{ROOT}overview/?database=archive").status_code == 404
        assert olga.get(f"{ROOT}topic/1@archive/change/").status_code == 404


@pytest.mark.slow
def test_one_history_of_a_row_however_its_address_is_written(olga, twins):
    pk = Consumer.objects.get(name="reader").pk
    olga.post(f"{ROOT}consumer/{pk}@default/act/pause/")
    for written in (f"{pk}", f"0{pk}", f"{pk}_40default"):
        assert "is paused" in olga.get(f"{ROOT}consumer/{written}/history/").content.decode()


@pytest.fixture
def frozen(archive, monkeypatch):
    """New connections to the archive lead to a server that takes them and answers nothing, as a frozen one does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = {"HOST": "127.0.0.1", "PORT": str(server.getsockname()[1])}
        monkeypatch.setitem(connections.settings, archive, login(**address))
        yield archive


@pytest.mark.slow
@pytest.mark.requirement("E11")
def test_the_overview_tells_of_every_database(olga, twins):
    told = olga.get(f"{ROOT}overview/").content.decode()
    table = told[told.index('id="events-databases"') : told.index('id="events-problems"')]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]

    assert ["default" in row and "archive" not in row for row in rows] == [True, False]
    for row in rows:
        assert re.search(r'data-label="Dead letters">1<', row), row
    assert 'href="/admin/django_events/overview/?database=archive"' in table


@pytest.mark.slow
@pytest.mark.requirement("E11")
def test_one_database_is_no_table(olga):
    with override_settings(DATABASE_ROUTERS=[Keeps()]):
        assert "events-databases" not in olga.get(f"{ROOT}overview/").content.decode()


@pytest.mark.requirement("E11")
@pytest.mark.long
def test_a_database_that_gives_no_answer_says_so_in_its_place(olga, twins, frozen, monkeypatch):
    monkeypatch.setattr(summaries, "SECONDS", 1)
    answer = olga.get(f"{ROOT}overview/")
    told = unescape(answer.content.decode())

    assert answer.status_code == 200
    assert told.count("The database “archive” can't be reached.") == 1
    assert "things" in told
    answer = olga.get(f"{ROOT}overview/?database=archive")
    told = unescape(answer.content.decode())
    assert answer.status_code == 503
    assert "did not answer within 1 s" in told or "timeout" in told
    assert told.count("The database “archive” can't be reached.") == 2
    assert 'data-label="Dead letters">1<' in told


@pytest.mark.slow
@pytest.mark.requirement("E11")
def test_the_sign_names_a_database_that_gives_no_answer(olga, frozen, monkeypatch):
    monkeypatch.setattr(summaries, "SECONDS", 1)
    sign = unescape(olga.get("/admin/django_events/").content.decode())

    assert "the database “archive” gives no answer." in sign
    assert "nothing needs attention" not in sign


@pytest.mark.slow
@pytest.mark.requirement("E11")
def test_metrics_of_the_others_don_t_wait_for_a_database_that_gives_no_answer(archive, monkeypatch, request, caplog):
    assert up() == {"default": 1, "archive": 1}
    request.getfixturevalue("frozen")
    monkeypatch.setattr(state, "SECONDS", 1)
    assert up() == {"default": 1, "archive": 0}
    assert "The state of the database 'archive' can't be read." in caplog.text


def up():
    return {labels[0]: value for metric, labels, value in state.read_all() if metric is state.UP}
