"""Inboxes as an operator sees them: registered, shown, found to be a problem, begun anew and removed."""

import json
from datetime import timedelta

import pytest
from django.core.checks import ERROR
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from django_events import Draft, declarations, kafka, log_source, redis_source, redis_stream
from django_events.checks.bridges import check_brokers, check_inboxes
from django_events.exceptions import Refused, UnknownName
from django_events.log.inventory import next_scheduled, waiting
from django_events.models import Inbox, Intervention
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.observing.state import INBOX_FAILING, INBOX_LAG, read
from django_events.operating import inboxes
from django_events.operations import pause_inbox, remove_inbox, restart_inbox
from django_events.testing import published
from tests.support.fix_consumers import serve_due
from tests.support.fix_inboxes import take_in
from tests.support.fix_queues import fill_topic

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21")]


def asked(capsys, *words):
    call_command("events", *words, "--format", "json")
    return json.loads(capsys.readouterr().out)


def problems():
    found = find_problems("default", waiting("default"), next_scheduled("default"), standings("default"))
    return {one.kind: one for one in found if "inbox" in one.data}


def make_old(**columns):
    """Move what is written of the inbox so far into the past."""
    Inbox.objects.update(**columns)


def test_migrate_registers_an_inbox_and_follows_its_declaration(things, make_topic, make_inbox, redis):
    make_inbox(things, source=redis_source("bank"))
    row = Inbox.objects.get()
    assert (row.name, row.topic.name, row.source, row.position) == ("things-in", "things", "redis bank", None)
    assert inboxes.sync("default") == []
    declarations.inboxes.discard(declarations.inboxes.get("things-in"))
    make_inbox(make_topic("others"), source=redis_source("bank"))
    assert Inbox.objects.get().topic.name == "others"
    with pytest.raises(UnknownName, match="no such topic"):
        make_inbox(declarations.DeclaredTopic(name="nowhere"), source=redis_source("bank"), name="lost")


def test_bridges_shows_inboxes_and_relays(things, make_topic, make_inbox, make_relay, redis, capsys):
    sent = make_topic("sent")
    fill_topic(sent, 1, 2)
    serve_due(make_relay(sent, to=redis_stream("bank"), partitioned=False))
    inbox = make_inbox(things, source=redis_source("bank"))
    [before] = asked(capsys, "bridges")["inboxes"]
    assert (before["state"], before["position"]) == ("not begun", None)
    take_in(inbox)

    found = asked(capsys, "bridges")
    [relay], [one] = found["relays"], found["inboxes"]
    assert (relay["relay"], relay["topic"], relay["position"], relay["lag"]) == ("relay", "sent", 2, 0)
    assert (one["inbox"], one["topic"], one["taken"], one["lag"], one["state"]) == (
        "things-in",
        "things",
        2,
        0,
        "serving",
    )
    [(stream, place)] = one["position"].items()
    assert (stream, place["id"], place["passed"], place["whole"]) == ("bank", "2-0", 2, "2-0")
    call_command("events", "bridges")
    assert "things-in" in capsys.readouterr().out


def test_what_is_wrong_with_an_inbox_is_a_problem(things, make_inbox, redis):
    with redis.client() as client:
        client.xadd("bank", {"data": "no JSON"})
    inbox = make_inbox(things, source=redis_source("bank"))
    assert problems()["unserved"].what == "inbox things-in: no worker takes in what comes from redis bank."
    take_in(inbox)
    assert set(problems()) == {"unreadable"}
    assert "--type inbox.unreadable" in problems()["unreadable"].remedy
    with override_settings(DJANGO_EVENTS={"BROKERS": {}}):
        take_in(inbox)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_events_inbox SET failing_since = now() - interval '1 hour', gone_at = now()")
    found = problems()
    assert found["inbox"].severity == "error"
    assert "has no 'redis'" in found["inbox"].what
    assert {"inbox", "unreadable", "messages gone"} == set(found)
    metrics = {one.metric: one.value for one in read("default") if one.metric in (INBOX_LAG, INBOX_FAILING)}
    assert metrics[INBOX_LAG] == 0
    assert metrics[INBOX_FAILING] >= timedelta(hours=1).total_seconds()
    with connection.cursor() as cursor:  # what fails is not tried again where no worker is
        cursor.execute("UPDATE django_events_inbox SET served_at = now() - interval '1 hour'")
    assert {"unserved", "unreadable", "messages gone"} == set(problems())


def test_an_inbox_is_begun_anew_by_hand(things, make_inbox, redis, capsys):
    with redis.client() as client:
        first, _ = (client.xadd("bank", {"data": n}) for n in (1, 2))
    inbox = make_inbox(things, source=redis_source("bank"), transform=lambda message: Draft(value=message.json()))
    take_in(inbox)
    asked(capsys, "inbox", "restart", "things-in", "--from", first)
    assert take_in(inbox) == 0
    told = asked(capsys, "inbox", "restart", "things-in", "--from", first, "--reason", "lost", "--execute")
    assert told == {"inbox": "things-in", "action": "restart", "executed": True}
    assert take_in(inbox) == 1
    assert [event.value for event in published(things)] == [1, 2, 2]
    done = Intervention.objects.get(action="restart")
    assert (done.topic, done.details["inbox"], done.details["reason"]) == ("things", "things-in", "lost")
    restart_inbox(inbox, start="no id")
    take_in(inbox)
    assert "no id of a Redis stream" in Inbox.objects.get().error


def test_a_paused_inbox_takes_in_nothing_until_it_is_resumed(things, make_inbox, redis, capsys):
    with redis.client() as client:
        client.xadd("bank", {"data": 1})
    paused_meanwhile = []

    def transform(message):
        if not paused_meanwhile:
            paused_meanwhile.append(pause_inbox("things-in", reason="the bank repairs", by="ada"))
        return Draft(value=message.json())

    inbox = make_inbox(things, source=redis_source("bank"), transform=transform)
    assert take_in(inbox) == 0, "what was read before the pause is not published behind it"
    assert published(things) == []
    assert asked(capsys, "bridges")["inboxes"][0]["state"] == "paused"
    found = problems()
    assert set(found) == {"paused"} and "events inbox resume things-in" in found["paused"].remedy
    assert asked(capsys, "inbox", "pause", "things-in")["changed"] is False
    make_old(served_at=timezone.now() - timedelta(hours=1))
    assert take_in(inbox) == 0
    assert Inbox.objects.get().served_at > timezone.now() - timedelta(minutes=1), "its worker says that it is there"

    assert asked(capsys, "inbox", "resume", "things-in")["changed"] is True
    assert inbox.resume() is False
    assert take_in(inbox) == 1
    assert [event.value for event in published(things)] == [1]
    told = [(one.action, one.by, one.details.get("reason")) for one in Intervention.objects.order_by("pk")]
    assert [one[0] for one in told] == ["pause", "resume"] and told[0][1:] == ("ada", "the bank repairs")


def test_only_an_inbox_that_no_app_declares_is_removed(things, make_inbox, capsys, redis):
    inbox = make_inbox(things, source=redis_source("bank"))
    with pytest.raises(Refused, match="is declared at"):
        remove_inbox(inbox)
    declarations.inboxes.discard(inbox)
    assert asked(capsys, "bridges")["inboxes"][0]["state"] == "undeclared"
    assert "inbox remove things-in" in problems()["undeclared"].remedy
    asked(capsys, "inbox", "remove", "things-in")
    assert Inbox.objects.exists()
    asked(capsys, "inbox", "remove", "things-in", "--execute")
    assert not Inbox.objects.exists()
    with pytest.raises(CommandError, match="has no inbox 'things-in'"):
        call_command("events", "inbox", "remove", "things-in", "--execute")


@pytest.mark.parametrize("words", [["restart", "things-in"], ["remove", "things-in", "--from", "end"]])
def test_where_to_begin_is_said_with_restart_and_only_then(things, make_inbox, redis, words):
    make_inbox(things, source=redis_source("bank"))
    with pytest.raises(CommandError, match="--from beginning") as refused:
        call_command("events", "inbox", *words)
    assert refused.value.returncode == 2


def test_the_checks_name_what_is_wrong(things, make_inbox, redis):
    make_inbox(things, source=redis_source("bank"))
    assert list(check_inboxes()) == []
    declarations.inboxes.add(
        lost := declarations.DeclaredInbox(name="lost", topic="thinks", source=redis_source(""), batch_size=0)
    )
    try:
        found = [one.msg for one in check_inboxes()]
    finally:
        declarations.inboxes.discard(lost)
    assert found == [
        "Inbox 'lost': redis_source has '', expected the name of a stream.",
        "Inbox 'lost' has batch_size=0, expected a whole number from 1 to 10,000.",
        "Inbox 'lost' is of topic 'thinks', which no installed app declares.",
    ]


def test_a_check_finds_two_inboxes_that_would_double_a_source(things, make_inbox, redis):
    make_inbox(things, source=redis_source("bank"))
    assert list(check_inboxes()) == []
    for name, transform in (("some", lambda message: None), ("all", None)):
        declarations.inboxes.add(
            declarations.DeclaredInbox(name=name, topic="things", source=redis_source("bank"), transform=transform)
        )
    try:
        [found] = check_inboxes()
    finally:
        for inbox in [one for one in declarations.inboxes if one.name in ("some", "all")]:
            declarations.inboxes.discard(inbox)
    assert (found.id, found.level) == ("django_events.E020", ERROR)
    assert "'things-in' and 'all' take the same source, redis bank, into topic 'things'" in found.msg


def test_inboxes_that_take_other_events_of_a_topic_double_none(things, make_inbox):
    for types in ("order.*", "payment.*"):
        source = log_source("trade", broker="elsewhere", types=types)
        make_inbox(things, source=source, name=types.replace(".*", "s-in"))
    assert list(check_inboxes()) == []


def test_a_check_finds_a_broker_that_is_not_in_the_settings(things, make_inbox, make_relay, redis):
    assert list(check_brokers()) == []
    make_inbox(things, source=redis_source("bank", broker="rediz"))
    make_relay(things, to=kafka("out", broker="redi"))
    found = {one.msg: one.hint for one in check_brokers()}
    assert list(found) == [
        "Relay 'relay' is of the broker 'redi', which DJANGO_EVENTS['BROKERS'] doesn't have.",
        "Inbox 'things-in' is of the broker 'rediz', which DJANGO_EVENTS['BROKERS'] doesn't have.",
    ]
    assert all("'redis'" in hint for hint in found.values())
    with override_settings(DJANGO_EVENTS={}):  # a process that only publishes
        assert list(check_brokers()) == []


def test_run_inbox_once_takes_in_what_is_there_and_says_why_it_waits(things, make_inbox, redis, capsys):
    with redis.client() as client:
        client.xadd("bank", {"ce_id": "1", "data": "1"})
    make_inbox(things, source=redis_source("bank"))
    call_command("run_inbox", "things-in", "--once")
    assert "Messages taken in: 1." in capsys.readouterr().out
    with (
        override_settings(DJANGO_EVENTS={"BROKERS": {}}),
        pytest.raises(CommandError, match="has no 'redis'") as failed,
    ):
        call_command("run_inbox", "things-in", "--once")
    assert failed.value.returncode == 1
    with pytest.raises(CommandError, match="declares an inbox 'other'") as unknown:
        call_command("run_inbox", "other")
    assert unknown.value.returncode == 2


def test_run_events_serves_inboxes_unless_it_is_told_not_to(things, make_inbox, redis, capsys):
    with redis.client() as client:
        client.xadd("bank", {"ce_id": "1", "data": "1"})
    make_inbox(things, source=redis_source("bank"))
    call_command("run_events", "--once", "--no-inboxes", "--no-webhooks")
    assert published(things) == []
    call_command("run_events", "--once", "--no-webhooks")
    assert "Messages taken in: 1." in capsys.readouterr().out
    [event] = published(things)
    assert event.id is not None
