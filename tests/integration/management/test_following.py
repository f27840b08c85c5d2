"""`manage.py events peek --follow`: what is shown, what has expired, and what is refused."""

import json

import pytest
from django.test import override_settings

from django_events import Draft, publish_many
from django_events.exceptions import Invalid
from django_events.log.inventory import existing
from django_events.maintaining.expiring import expire
from django_events.management.commands.events import Command
from django_events.management.events.subcommand import with_joined_times
from django_events.management.following import Chosen, look
from django_events.models import TopicHead
from tests.support.fix_topics import drop_topics, transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def events(capsys):
    def run(*arguments):
        code = 0
        try:
            Command().run_from_argv(["manage.py", "events", *arguments])
        except SystemExit as ending:
            code = ending.code or 0
        return (code, *capsys.readouterr())

    return run


def fill(topic, *drafts):
    publish_many(topic, drafts)
    transfer_all()


def follow(events, *arguments):
    code, out, err = events("peek", "things", "--follow", "--since", "0", "--format", "json", *arguments)
    assert (code, err) == (0, "")
    return [json.loads(line)["id"] for line in out.splitlines()]


@pytest.mark.slow
def test_it_shows_what_is_chosen_and_ends_after_so_many(events, things):
    drafts = [Draft(value={"n": n}, type=f"order.{'paid' if n % 2 else 'sent'}", key=str(n % 3)) for n in range(1, 251)]
    fill(things, *drafts)

    assert follow(events, "--limit", "3") == [1, 2, 3]
    assert follow(events, "--limit", "120")[-1] == 120
    assert follow(events, "--limit", "2", "--type", "order.paid") == [1, 3]
    assert follow(events, "--limit", "2", "--type", "order.*") == [1, 2]
    assert follow(events, "--limit", "2", "--key", "2") == [2, 5]
    assert follow(events, "--limit", "1", "--where", "$.n > 240") == [241]
    code, out, _ = events("peek", "things", "--follow", "--from", "-2h", "--limit", "1")
    assert (code, out.split()[0]) == (0, "things/1")


def test_what_is_masked_is_not_shown_and_no_predicate_tells_it(events, things):
    fill(things, Draft(value={"card": "4711", "n": 1}), Draft(value={"card": "0815", "n": 2}), Draft(body=b"4711"))
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]}):
        row = existing("default", "things")
        code, out, _ = events("peek", "things", "--follow", "--since", "0", "--limit", "3", "--format", "json")
        of_card = look("default", row, 0, Chosen(where='$.card == "4711"')).events
        of_n = look("default", row, 0, Chosen(where="$.n == 2")).events

    assert code == 0 and "4711" not in out and out.count("•••") == 2
    assert of_card == []
    assert [one.id for one in of_n] == [2]


def test_what_expired_before_it_was_read_is_said(make_topic):
    topic = make_topic(segment_size=100, retention_events=1)
    fill(topic, *[Draft(value=n) for n in range(150)])
    row = existing("default", topic)
    assert expire("default", row).segments == 1

    seen = look("default", row, 20, Chosen())
    assert seen.note == "things/21 to things/100 have expired before this could read them. Going on behind them."
    assert (seen.events[0].id, seen.position) == (101, 150)
    assert look("default", row, 150, Chosen())[1:] == (150, "")


def test_a_log_that_is_empty_by_now_says_what_has_expired(things):
    row = existing("default", things)
    assert look("default", row, 0, Chosen())[1:] == (0, "")
    TopicHead.objects.filter(topic=row).update(id_floor=120)

    seen = look("default", row, 100, Chosen())
    assert (seen.note.split(" have")[0], seen.position) == ("things/101 to things/120", 120)


def test_a_topic_that_was_made_again_is_another_one(make_topic):
    topic = make_topic("again")
    row = existing("default", topic)
    drop_topics(["again"])
    make_topic("again")

    with pytest.raises(Invalid, match="was removed and made again"):
        look("default", row, 0, Chosen())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--follow", "--to", "2h"], "--follow has no end"),
        (["--follow", "--at", "1"], "--follow has no end"),
        (["--follow", "--since", "1", "--from", "2h"], "say one of them"),
        (["--follow", "--where", "$.n >"], "can't be used"),
        (["--where", "$.n > 1"], "--where goes with --follow"),
    ],
)
def test_what_makes_no_sense_is_refused(events, things, options, said):
    code, out, err = events("peek", "things", *options)

    assert code in (1, 2) and out == ""
    assert said in err


def test_a_time_with_a_minus_may_stand_by_itself():
    argv = ["events", "rewind", "billing", "--to", "-2h", "--wait", "-3", "--reason", "-2h"]
    assert with_joined_times(argv) == ["events", "rewind", "billing", "--to=-2h", "--wait", "-3", "--reason", "-2h"]
