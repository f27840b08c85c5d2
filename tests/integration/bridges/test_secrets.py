"""Passwords of brokers are in nothing that a site shows or writes: rows, logs, problems, commands, pages."""

import json
from contextlib import suppress

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client, override_settings

from django_events import jetstream, jetstream_source, rabbitmq_source, redis_source, redis_stream, sqs, sqs_source
from django_events import rabbitmq as rabbitmq_queue
from django_events.log.inventory import next_scheduled, waiting
from django_events.models import Consumer, Inbox
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from tests.support.fix_consumers import position_of, serve_due
from tests.support.fix_inboxes import take_in
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20", "X21"), pytest.mark.slow]

SECRET = "tops3cret"


@pytest.fixture
def wary_nats(nats, tmp_path):
    """A NATS that refuses a login that it doesn't know."""
    conf = tmp_path / "nats.conf"
    conf.write_text("authorization { users: [{user: all, password: all}] }\nno_auth_user: all\n")
    nats.kill()
    nats.launch("-c", str(conf))
    wait_until(nats.answers, what="NATS")
    yield nats
    nats.kill()
    nats.start()


def options_of(name, server):
    """Ways to give a wrong login: as an option, and in an address, where a client may take it for a part of that."""
    login = f"worker:{SECRET}"
    return {
        "redis": [
            {**server.options, "username": "worker", "password": SECRET},
            {"url": f"redis://{login}@127.0.0.1:{server.port}/0"},
            {"url": f"redis://{login}#2@127.0.0.1:{server.port}/0"},
        ],
        "nats": [
            {**server.options, "user": "worker", "password": SECRET},
            {**server.options, "servers": [f"nats://{login}@127.0.0.1:{server.port}"]},
            {**server.options, "servers": [f"nats://{login}/2@127.0.0.1:{server.port}"]},
        ],
        "rabbitmq": [
            {**server.options, "userid": "worker", "password": SECRET},
            {**server.options, "host": f"{login}@127.0.0.1:{server.port}"},
        ],
        "aws": [
            {**server.options, "aws_secret_access_key": SECRET, "aws_session_token": f"{SECRET}/2"},
            {**server.options, "endpoint_url": f"http://{login}@127.0.0.1:1"},
        ],
    }[name]


ENDS = {
    "redis": ("redis", redis_stream("shop.things"), redis_source("bank")),
    "nats": ("wary_nats", jetstream("shop.things", stream="THINGS"), jetstream_source("BANK")),
    "rabbitmq": ("rabbitmq", rabbitmq_queue("things"), rabbitmq_source("letters")),
    "aws": ("aws", sqs("nowhere"), sqs_source("nowhere")),
}


@pytest.mark.parametrize(
    "name", ["redis", "nats", *(pytest.param(name, marks=pytest.mark.long) for name in list(ENDS)[2:])]
)
def test_a_password_is_in_nothing_that_is_shown_or_written(
    things, make_topic, make_relay, make_inbox, name, request, caplog, capsys
):
    fixture, to, source = ENDS[name]
    server = request.getfixturevalue(fixture)
    caplog.set_level("INFO")
    caplog.set_level("DEBUG", logger="django_events")
    fill_topic(things, 1)
    for number, options in enumerate(options_of(name, server)):
        caplog.clear()
        with override_settings(DJANGO_EVENTS={"BROKERS": {server.name: options}}):
            relay = make_relay(things, to=to, name=f"relay-{number}")
            inbox = make_inbox(make_topic(f"in-{number}"), source=source, name=f"inbox-{number}")
            serve_due(relay)
            take_in(inbox)
            shown = {
                "relay's error": position_of(relay).error,
                "inbox's error": Inbox.objects.get(name=inbox.name).error,
                "log": json.dumps([[one.getMessage(), str(vars(one))] for one in caplog.records]),
                "problems": json.dumps([[one.what, one.remedy, str(one.data)] for one in problems()]),
                **{words: said(capsys, *words.split()) for words in COMMANDS},
                **pages(relay, inbox),
            }
        for place, text in shown.items():
            assert SECRET not in text, place
            if place.endswith("error"):
                assert repr(server.name) in text, (place, text)
            elif place not in ("log", "problems"):
                assert f"relay-{number}" in text or f"inbox-{number}" in text, place
        assert {one.name for one in caplog.records} >= {"django_events.relays", "django_events.inboxes"}


COMMANDS = ["status", "status --format json", "bridges", "bridges --format json"]


def said(capsys, *words):
    capsys.readouterr()
    with suppress(CommandError, SystemExit):  # where there are problems
        call_command("events", *words)
    output = capsys.readouterr()
    return output.out + output.err


def problems():
    return find_problems("default", waiting("default"), next_scheduled("default"), standings("default"))


def pages(relay, inbox):
    """The pages of consumers and inboxes, as a member of the staff who may do everything sees them."""
    client, user = Client(), User.objects.get_or_create(username="olga", is_staff=True, is_superuser=True)[0]
    client.force_login(user)
    rows = {
        "consumer": Consumer.objects.get(name=relay.name).pk,
        "inbox": Inbox.objects.get(name=inbox.name).pk,
    }
    addresses = [f"/admin/django_events/{model}/" for model in rows]
    addresses += [f"/admin/django_events/{model}/{pk}/change/" for model, pk in rows.items()]
    found = {}
    for address in addresses:
        answer = client.get(address, follow=True)
        assert answer.status_code == 200, address
        found[address] = answer.content.decode()
    return found
