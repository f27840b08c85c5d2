"""Looking around: the log by id, the status of an event, wrong addresses, other databases."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone
from django.utils.text import capfirst

from django_events import Backoff, Draft, Ignore, declarations, redis_source
from django_events.admin import addresses
from django_events.admin.topics import COLOURS
from django_events.admin.topics import log as log_pages
from django_events.models import Consumer, DeadLetter, Event, Inbox, MaintenanceStep, Position, Topic
from django_events.observing import samples
from django_events.observing.fates import STATES, fates
from django_events.operations import pause, rewind
from django_events.statements import log_table
from django_events.testing import drain
from tests.integration.admin.conftest import address, consumer_of, topic_of
from tests.support.fix_consumers import lease_of
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.django_db


@pytest.fixture
def long_log(lanes, monkeypatch):
    """A hundred events, and pages of ten."""
    lanes.publish_many(
        [Draft(value={"n": n}, key=f"k{n % 7}", type="even" if n % 2 == 0 else "odd") for n in range(1, 101)]
    )
    transfer_all()
    monkeypatch.setattr(log_pages, "SIZE", 10)
    return lanes


def ids(answer):
    return [event["id"] for event in answer.context["found"].events]


def follow(client, topic, answer, name):
    """What a link of a page of the log leads to; nothing where there is no such link."""
    found = re.search(rf'href="(\?[^"]*)"[^>]*>{name}<', answer.content.decode())
    return found and client.get(address("topic", topic_of(topic), "log") + found[1].replace("&amp;", "&"))


def browse(client, topic, query=""):
    answer = client.get(address("topic", topic_of(topic), "log") + query, follow=True)
    assert answer.status_code == 200
    return answer


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_all_of_a_log_is_seen_in_both_directions(olga, long_log):
    answer, seen = browse(olga, long_log), []
    while answer:
        seen += ids(answer)
        last, answer = answer, follow(olga, long_log, answer, "Older")
    assert seen == list(range(100, 0, -1))

    answer, seen = last, []
    while answer:
        seen = ids(answer) + seen
        answer = follow(olga, long_log, answer, "Newer")
    assert seen == list(range(100, 0, -1))
    assert ids(follow(olga, long_log, last, "Newest")) == list(range(100, 90, -1))
    assert ids(follow(olga, long_log, browse(olga, long_log), "Oldest")) == list(range(10, 0, -1))


@pytest.mark.slow
@pytest.mark.parametrize("searched", [1_000, 15])
@pytest.mark.parametrize("query", ["type=odd", "key=k3", "partition=2", "type=even&key=k2&partition=1", "type=none"])
@pytest.mark.few(3)
def test_filters_find_all_there_is_page_by_page(olga, long_log, monkeypatch, searched, query):
    monkeypatch.setattr(log_pages, "SEARCHED", searched)
    asked = dict(part.split("=") for part in query.split("&"))
    expected = [
        event["id"] for event in log_pages.events("default", topic_of(long_log)).filter(**asked).order_by("-id")
    ]

    answer, seen = browse(olga, long_log, f"?{query}"), []
    while answer:
        seen += ids(answer)
        last, answer = answer, follow(olga, long_log, answer, "Older")
    assert seen == expected
    answer, seen = last, []
    while answer:
        seen = ids(answer) + seen
        answer = follow(olga, long_log, answer, "Newer")
    assert seen == expected


@pytest.mark.slow
def test_one_goes_to_an_id_and_to_a_time(olga, long_log):
    assert ids(browse(olga, long_log, "?id=42"))[0] == 42
    assert 'aria-current="true"' in browse(olga, long_log, "?id=42").content.decode()
    assert ids(browse(olga, long_log, "?id=4200"))[0] == 100
    assert ids(browse(olga, long_log, "?time=2001-01-01T10:00:00")) == [1]
    assert ids(browse(olga, long_log, "?time=2101-01-01T10:00"))[0] == 100


@pytest.mark.slow
@pytest.mark.requirement("H4")
def test_a_log_is_searched_for_a_text_page_by_page(olga, long_log, monkeypatch):
    monkeypatch.setattr(log_pages, "READ", 15)
    expected = [n for n in range(100, 0, -1) if "7" in str(n)]

    answer, seen = browse(olga, long_log, "?text=7"), []
    assert "Oldest" not in answer.content.decode()
    while answer:
        seen += ids(answer)
        answer = follow(olga, long_log, answer, "Older")
    assert seen == expected
    assert ids(browse(olga, long_log, "?text=7&type=even&partition=1")) == ids(
        browse(olga, long_log, "?type=even&partition=1&text=7&before=101")
    )
    assert ids(browse(olga, long_log, "?text=%25")) == []


@pytest.mark.slow
@pytest.mark.requirement("H4")
@pytest.mark.parametrize("text", ["", "&text=7"])
def test_a_log_is_shown_of_a_time(olga, long_log, text):
    answer = browse(olga, long_log, f"?start=2001-01-01T10:00:00&end=2101-01-01T10:00{text}")
    assert ids(answer) == ids(browse(olga, long_log, f"?{text}"))
    older = follow(olga, long_log, answer, "Older")
    assert "start=2001-01-01T10%3A00%3A00" in older.request["QUERY_STRING"]
    assert ids(older)[0] < ids(answer)[-1]
    for nothing in ("start=2101-01-01T10:00", "end=2001-01-01T10:00", "start=2101-01-01T10:00&end=2001-01-01T10:00"):
        answer = browse(olga, long_log, f"?{nothing}{text}")
        assert ids(answer) == []
        assert follow(olga, long_log, answer, "Older") is None
    moment = Event.objects.at(long_log, 50).logged_at.isoformat()
    assert browse(olga, long_log, f"?start={moment[:19]}{text}").status_code == 200


@pytest.mark.parametrize(
    "query", ["?before=x&after=-1", "?before=99999999999999999999", "?id=0", "?partition=-1", "?id=x"]
)
def test_a_place_that_is_none_does_no_harm(olga, long_log, query):
    assert olga.get(address("topic", topic_of(long_log), "log") + query).status_code == 200


def test_an_empty_log(olga, things):
    assert ids(browse(olga, things)) == []
    assert "No events." in browse(olga, things).content.decode()


@pytest.mark.parametrize(
    "page",
    [
        "topic/999999/change/", "topic/x/change/", "topic/1@nowhere/change/", "topic/1@/log/", "topic/-1/change/",
        "topic/99999999999999999999999/change/", "consumer/999999/change/", "consumer/999999/act/pause/",
        "deadletter/999999/change/", "deadletter/x/change/", "deadletter/1@nowhere/act/redrive/",
        "overview/?database=nowhere", "deadletter/?database=nowhere",
        "topic/?database=nowhere", "topic/%00/change/", "topic/٣/change/",
        "maintenancestep/%00/change/", "maintenancestep/bloat@nowhere/change/",
    ],
)  # fmt: skip
@pytest.mark.few(3)
def test_a_wrong_address_is_not_found(olga, things, page):
    assert (
        olga.get(
            f"/admin/django_events/{page}",
        ).status_code
        == 404
    )


def test_an_event_that_is_not_there_is_not_found(olga, things):
    assert olga.get(address("topic", topic_of(things), "log/1")).status_code == 404
    assert olga.post(address("topic", topic_of(things), "log/1/again")).status_code == 404
    assert olga.get(address("topic", topic_of(things), f"log/{2**70}")).status_code == 404


def test_an_action_that_does_not_exist(olga, things, make_consumer):
    def handler(event): ...

    row = consumer_of(make_consumer(things, handler=handler))
    assert olga.post(address("consumer", row, "act/delete")).status_code == 404


@pytest.mark.slow
def test_the_neighbours_of_a_key(olga, make_topic):
    for name, timeline in (("plain", False), ("indexed", True)):
        topic = make_topic(name, timeline=timeline)
        for key in ("a", "b", "a", None, "a"):
            topic.publish({}, key=key)
        transfer_all()
        context = olga.get(address("topic", topic_of(topic), "log/3")).context
        assert (context["earlier"], context["later"]) == (1, 5)
        context = olga.get(address("topic", topic_of(topic), "log/2")).context
        assert (context["earlier"], context["later"]) == (None, None)


def status_of(topic, event_id):
    return {one.consumer: one.state for one in fates("default", topic_of(topic), event_id)}


@pytest.mark.slow
def test_the_status_of_an_event_with_each_consumer(olga, things, make_consumer):
    def fine(event): ...

    def failing(event):
        raise ValueError("no")

    def ignoring(event):
        raise Ignore("not wanted")

    hour = Backoff(attempts=2, base=timedelta(hours=1))
    make_consumer(things, handler=fine, name="stream")
    make_consumer(things, handler=fine, name="picky", types=["other"])
    make_consumer(things, handler=failing, name="failing", retry=hour)
    make_consumer(things, handler=failing, name="dead", mode="queue", retry=Backoff(attempts=1))
    make_consumer(things, handler=failing, name="retrying", mode="queue", retry=hour)
    make_consumer(things, handler=fine, name="queue", mode="queue")
    make_consumer(things, handler=fine, name="delayed", mode="queue", delay=timedelta(hours=1))
    make_consumer(things, handler=ignoring, name="ignoring", mode="queue", history=timedelta(days=1))
    make_consumer(things, handler=fine, name="picky-queue", mode="queue", where="$.n > 5")
    things.publish({"n": 1}, type="t")
    things.publish({"n": 2}, type="t")
    transfer_all()
    assert set(status_of(things, 1).values()) == {"pending", "filtered out", "delayed"}
    drain(raise_errors=False)

    expected = {
        "stream": "handled", "picky": "filtered out", "failing": "retrying", "dead": "dead", "retrying": "retrying",
        "queue": "handled", "delayed": "delayed", "ignoring": "ignored", "picky-queue": "filtered out",
    }  # fmt: skip
    assert status_of(things, 1) == expected
    assert status_of(things, 2)["failing"] == "pending"
    make_consumer(things, handler=fine, name="late", start="end")
    assert status_of(things, 1)["late"] == "passed"
    told = olga.get(address("topic", topic_of(things), "log/1")).content.decode()
    assert "dead letter" in told and "filtered out" in told

    DeadLetter.objects.filter(consumer__name="dead").update(redrive_at="2001-01-01T00:00Z")
    assert status_of(things, 1)["dead"] == "redriven"


@pytest.fixture
def shard(other_alias, make_topic):
    """Another alias; in this test it leads to the same tables."""
    make_topic("things")
    return other_alias


def test_an_address_names_its_database(olga, things, monkeypatch):
    assert addresses.read("7") == (7, "default")
    assert addresses.written(7, "default") == "7"
    assert addresses.written(7, "archive") == "7@archive"
    monkeypatch.setattr(addresses, "databases", lambda: ["default", "archive"])
    assert addresses.read("7@archive") == (7, "archive")


def test_each_step_of_maintenance_has_a_page(olga):
    now = timezone.now()
    MaintenanceStep.objects.create(name="roll-ups", started_at=now, finished_at=now, error="no room")

    listed = olga.get("/admin/django_events/maintenancestep/").content.decode()
    [link] = set(re.findall(r'href="(/admin/django_events/maintenancestep/[^"?]+)"', listed))

    assert "no room" in olga.get(link).content.decode()
    assert olga.get(link.replace("/change/", "/history/")).status_code == 200


def test_consumers_and_topics_are_searched_by_name(olga, make_topic, make_consumer):
    def handler(event): ...

    for name in ("tea", "coffee"):
        make_consumer(make_topic(name), handler=handler, name=f"drinker-of-{name}")
    for model, asked, found in [("topic", "TEA", 1), ("consumer", "coffee", 1), ("consumer", "zzz", 0)]:
        context = olga.get(f"/admin/django_events/{model}/", {"q": asked}).context
        assert len(context[f"{model}s"]) == found
    assert Topic.objects.count() >= 2 and Consumer.objects.count() >= 2


def test_an_event_that_comes_again_is_pending_whatever_its_history_says(things, make_consumer):
    def fine(event): ...

    make_consumer(things, handler=fine, name="queue", mode="queue", history=timedelta(days=1))
    for n in range(3):
        things.publish({"n": n})
    drain()
    assert status_of(things, 2) == {"queue": "handled"}
    rewind("queue", to=2)
    assert [status_of(things, event_id)["queue"] for event_id in (1, 2, 3)] == ["handled", "pending", "pending"]
    drain()
    assert status_of(things, 2) == {"queue": "handled"}


def test_a_filter_that_fails_leaves_only_itself_unknown(olga, things, make_consumer):
    def fine(event): ...

    for name, options in {"all": {}, "picky": {"types": ["other"]}, "keen": {"keys": ["k"]}}.items():
        make_consumer(things, handler=fine, name=name, **options)
    things.publish({"n": 1}, type="t", key="k")
    drain()
    declared = make_consumer(things, handler=fine, name="wrong", start="end")
    Consumer.objects.filter(name=declared.name).update(where='$.n.datetime() > "2020-01-01".datetime()')
    expected = {"all": "handled", "picky": "filtered out", "keen": "handled"}
    assert {name: state for name, state in status_of(things, 1).items() if name != "wrong"} == expected


def test_a_topic_says_what_it_keeps(olga, make_topic):
    topic = make_topic(retention_events=5_000, retention_bytes=3_200_000_000, keep_unread=False)
    page = olga.get(address("topic", topic_of(topic))).content.decode()

    assert "<dt>Events kept</dt><dd>5,000</dd>" in page
    assert "<dt>Size kept</dt><dd>3.2 GB</dd>" in page
    assert "<dt>What is unread</dt><dd>expires too</dd>" in page


def test_a_topic_and_an_event_are_found_by_name(things, olga):
    things.publish(1)
    transfer_all()
    topic = topic_of(things)
    go = "/admin/django_events/topic/go"

    assert olga.get(f"{go}/things/").url == address("topic", topic)
    assert olga.get(f"{go}/things/1/").url == address("topic", topic, "log/1")
    assert olga.get(f"{go}/things/1/", follow=True).status_code == 200
    missing = olga.get(f"{go}/thing/1/")
    assert missing.status_code == 404
    assert "There is no topic “thing”. Did you mean &#x27;things&#x27;?" in missing.content.decode()
    assert olga.get(f"{go}/things/2/", follow=True).status_code == 404


def test_each_state_of_an_event_has_its_words_and_its_colour(olga, things, make_consumer):
    assert COLOURS.keys() == STATES.keys()
    make_consumer(things, handler=print, name="reader")
    things.publish(1)
    transfer_all()
    rewind("reader", to="end")

    page = olga.get(f"/admin/django_events/topic/{Topic.objects.get(name='things').pk}/log/1/").content.decode()
    assert "left out by a rewind" in page
    assert ">handled<" not in page


@pytest.mark.slow
def test_a_consumer_is_found_by_name(make_topic, make_consumer, olga):
    tea, milk = make_topic("tea"), make_topic("milk")
    row = consumer_of(make_consumer(tea, handler=print, name="drinker"))
    make_consumer(tea, milk, handler=print, name="mixer")
    go = "/admin/django_events/consumer/go"

    assert olga.get(f"{go}/drinker/").url == address("consumer", row)
    assert olga.get(f"{go}/mixer/").url == "/admin/django_events/consumer/?q=mixer"
    mixer = Consumer.objects.get(name="mixer", topic__name="milk")
    assert olga.get(f"{go}/mixer/milk/").url == address("consumer", mixer)
    for asked, told in (
        ("drinkre/", "Did you mean"),
        ("drinker/milk/", "There is no consumer “drinker” of this topic."),
    ):
        answer = olga.get(f"{go}/{asked}")
        assert answer.status_code == 404
        assert told in answer.content.decode()


FIND = "/admin/django_events/overview/find/"


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_one_box_finds_what_has_a_name(make_topic, make_consumer, olga):
    tea, milk = make_topic("tea", timeline=True), make_topic("milk")
    drinker = consumer_of(make_consumer(tea, handler=print, name="tea-drinker"))
    tea.publish(1, key="cup-7")
    milk.publish(1, key="cup-7")
    transfer_all()
    scheduled = tea.publish(2, publish_at=timezone.now() + timedelta(days=1))

    assert olga.get(FIND, {"q": " tea/1 "}).url == address("topic", topic_of(tea), "log/1")
    assert olga.get(FIND, {"q": "drinker"}).url == address("consumer", drinker)
    assert olga.get(FIND, {"q": "milk"}).url == address("topic", topic_of(milk))
    assert olga.get(FIND, {"q": "cup-7"}).url == address("topic", topic_of(tea), "log") + "?key=cup-7"
    assert olga.get(FIND, {"q": scheduled.ticket}).url == address("scheduledevent", scheduled.ticket)
    several = olga.get(FIND, {"q": "TEA"}).content.decode()
    assert address("consumer", drinker) in several and address("topic", topic_of(tea)) in several
    assert "Nothing is called “zzz”" in olga.get(FIND, {"q": "zzz"}).content.decode()
    for asked in ({}, {"q": ""}, {"q": "\0"}, {"q": "x" * 600}, {"q": "tea/" + "9" * 40}, {"q": "%"}, {"q": "_/1"}):
        assert olga.get(FIND, asked).status_code == 200, asked
    assert "events-find" in olga.get("/admin/django_events/topic/").content.decode()


@pytest.mark.slow
def test_the_box_finds_dead_letters_by_address_and_by_key(things, make_consumer, olga):
    def failing(event):
        raise ValueError("bad")

    make_consumer(things, handler=failing, name="reader", retry=Backoff(attempts=1))
    for n in (1, 2):
        things.publish(n, key=f"key-{n}")
    drain(raise_errors=False)
    letter = DeadLetter.objects.get(event_id=2)

    assert olga.get(FIND, {"q": "key-2"}).url == address("deadletter", letter)
    found = olga.get(FIND, {"q": "things/2"}).content.decode()
    assert address("deadletter", letter) in found and address("topic", topic_of(things), "log/2") in found
    listed = olga.get("/admin/django_events/deadletter/", {"q": "things/2"}).content.decode()
    assert "things/2" in listed and "things/1" not in listed


def test_the_box_shows_only_what_one_may_see(things, make_consumer, sign_in):
    make_consumer(things, handler=print, name="things-reader")
    ben = sign_in("view_overview", "view_topic", name="ben")

    assert ben.get(FIND, {"q": "things"}).url == address("topic", topic_of(things))
    assert "Nothing is called" in ben.get(FIND, {"q": "things-reader"}).content.decode()
    eve = sign_in("view_topic", name="eve")
    assert eve.get(FIND, {"q": "things"}).status_code == 403
    assert "events-find" not in eve.get("/admin/django_events/topic/").content.decode()


def test_the_page_of_workers_says_who_has_what_in_hand(sign_in, things, make_consumer):
    things.publish(1)
    transfer_all()
    lease_of(make_consumer(things, handler=print))
    Position.objects.filter(token__isnull=False).update(holder="web-1:4711/2")
    page = "/admin/django_events/overview/workers/"

    assert sign_in("view_overview", name="bob").get(page).status_code == 403
    told = sign_in("view_overview", "view_consumer", name="ada").get(page).content.decode()
    assert "web-1:4711" in told and "things/1" in told
    assert "An idle worker writes nothing" in told


@pytest.mark.slow
def test_what_turns_the_direction_of_a_text_is_written_out(olga, things, make_consumer):
    def fail(event):
        raise ValueError("evil\u202egpj.exe")

    make_consumer(things, handler=fail, name="strict", mode="queue", retry=Backoff(attempts=1))
    things.publish({"file": "evil\u202egpj.exe"}, key="k\u2067ey", type="t\u202eype")
    drain(raise_errors=False)
    letter = DeadLetter.objects.get()
    pages = [
        address("topic", topic_of(things), "log"),
        f"/admin/django_events/topic/{topic_of(things).pk}/log/1/",
        "/admin/django_events/deadletter/",
        address("deadletter", letter),
        address("deadletter", letter, "act/discard"),
    ]
    for page in pages:
        told = olga.get(page).content.decode()
        assert "\\u202e" in told, page
        assert not {"\u202e", "\u2067"} & set(told.split('id="content"')[1]), page


@pytest.mark.slow
def test_the_page_of_the_app_says_whether_something_is_wrong(sign_in, things, make_consumer):
    ada = sign_in("view_overview", "view_consumer", name="ada")
    assert "nothing needs attention" in ada.get("/admin/django_events/").content.decode()
    pause(make_consumer(things, handler=print))
    told = ada.get("/admin/django_events/").content.decode()
    assert "1 warning" in told and "/admin/django_events/overview/" in told
    assert "warning" not in sign_in("view_consumer", name="bob").get("/admin/django_events/").content.decode()


@pytest.mark.requirement("X21")
def test_what_is_wrong_with_an_inbox_is_shown_by_its_kind(olga, things, make_inbox):
    make_inbox(things, source=redis_source("bank"))
    now = timezone.now()
    Inbox.objects.update(served_at=now, failing_since=now - timedelta(hours=1), unreadable_at=now, gone_at=now)
    told = olga.get("/admin/django_events/overview/").content.decode()

    assert "inbox things-in takes nothing in since" in told
    assert "unreadable messages" in told and "messages gone" in told
    assert told.count('href="/admin/django_events/inbox/">Inboxes</a>') == 4  # of each problem, and in the sidebar

    hour = now - timedelta(hours=1)
    Inbox.objects.update(failing_since=None, waiting_since=hour, error="5 events wait in the buffer")
    told = olga.get("/admin/django_events/overview/").content.decode()
    assert "inbox waits" in told and "5 events wait in the buffer" in told
    assert "waits since" in olga.get("/admin/django_events/inbox/").content.decode()


@pytest.mark.slow
def test_a_consumer_that_nothing_serves_is_not_called_idle(olga, things, make_consumer):
    reader = make_consumer(things, handler=print)
    things.publish(1)
    transfer_all()
    assert ">idle<" in olga.get("/admin/django_events/consumer/").content.decode()
    with connection.cursor() as cursor:
        log = log_table(topic_of(things).pk)
        cursor.execute(f"UPDATE {log} SET logged_at = logged_at - interval '1 hour'")
        cursor.execute("UPDATE django_events_consumer SET registered_at = registered_at - interval '1 hour'")
    for page in ("/admin/django_events/consumer/", address("consumer", consumer_of(reader))):
        told = olga.get(page).content.decode()
        assert ">unserved<" in told
    declarations.consumers.discard(reader)
    try:
        assert ">undeclared<" in olga.get("/admin/django_events/consumer/").content.decode()
    finally:
        declarations.consumers.add(reader)


@pytest.mark.slow
def test_a_consumers_page_has_charts(olga, things, make_consumer):
    reader = make_consumer(things, handler=print)
    samples.take("default")
    told = olga.get(address("consumer", consumer_of(reader)), {"period": "24h"}).content.decode()
    assert told.count("<figure") == 4 and "not passed: 0 last" in told
    assert 'href="?period=1h"' in told and 'href="?period=24h" aria-current="true"' in told


@pytest.mark.slow
@pytest.mark.requirement("X16")
def test_an_event_links_to_its_cause_and_to_what_it_caused(olga, make_topic, things):
    carts = make_topic("carts")
    carts.publish(1)
    for cause in ("carts/1", "nothing/1", "things/a<b", None):
        things.publish({"n": 1}, metadata={} if cause is None else {"caused_by": cause}, key=str(cause))
    transfer_all()
    cause = olga.get(address("topic", topic_of(carts), "log/1"), {"causes": "1"}).content.decode()
    assert "Looked for in" not in olga.get(address("topic", topic_of(carts), "log/1")).content.decode()
    caused = [olga.get(address("topic", topic_of(things), f"log/{id}")).content.decode() for id in (1, 2, 3, 4)]

    assert f'<a href="{address("topic", topic_of(things), "log/1")}">things/1</a>' in cause
    assert "Looked for in the 4 events of all topics that were logged next." in cause
    assert f'Published because of <a href="{address("topic", topic_of(carts), "log/1")}">carts/1</a>' in caused[0]
    assert "Published because of <bdi>nothing/1" in caused[1]
    assert "Published because of <bdi>things/a&lt;b" in caused[2]
    assert "No handler said" in caused[3]


def test_a_cause_that_is_masked_is_not_shown(olga, things, settings):
    settings.DJANGO_EVENTS = {"MASKED_FIELDS": ["caused_by"]}
    things.publish(1, metadata={"caused_by": "secret"})
    transfer_all()

    assert "secret" not in olga.get(address("topic", topic_of(things), "log/1")).content.decode()


@pytest.mark.parametrize("name", ["deadletter", "scheduledevent", "clock", "inbox", "intervention", "webhookendpoint"])
def test_a_list_is_headed_by_what_is_in_it(admin_client, name):
    answer = admin_client.get(f"/admin/django_events/{name}/")
    heading = re.search(r"<h1>(.*?)</h1>", answer.content.decode())[1]
    assert heading == capfirst(answer.context["cl"].opts.verbose_name_plural)
