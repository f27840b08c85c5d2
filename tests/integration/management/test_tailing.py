"""`manage.py events tail`: what it prints, what it hides, and how it ends."""

import json

import pytest
from django.test import override_settings

from django_events import Draft, publish_many
from django_events.management.commands.events import Command
from django_events.management.events.looking import tailing
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("P7")]


@pytest.fixture
def tail(capsys, monkeypatch):
    """Run it until so many events were shown."""

    def run(count, *arguments):
        shown, usual = [], tailing._show

        def show(*given, **options):
            shown.append(usual(*given, **options))
            return len(shown) < count

        monkeypatch.setattr(tailing, "_show", show)
        code = 0
        try:
            Command().run_from_argv(["manage.py", "events", "tail", *arguments])
        except SystemExit as ending:
            code = ending.code or 0
        return (code, *capsys.readouterr())

    return run


def fill(topic, *drafts):
    publish_many(topic, drafts)
    transfer_all()


@pytest.mark.slow
def test_it_prints_a_line_for_each_event(tail, things, lanes):
    fill(things, *[Draft(value={"n": n}, type=f"order.{'paid' if n % 2 else 'sent'}", key=str(n)) for n in range(1, 9)])
    code, out, err = tail(8, "things", "--since", "beginning")
    assert (code, err) == (0, "")
    address, *_, kind, key, value = out.splitlines()[0].split("  ")
    assert (address, kind, key, value) == ("things/1", "order.paid", "1", '{"n": 1}')

    _, out, _ = tail(2, "things", "--since", "4", "--types", "order.paid", "--json")
    assert [json.loads(line)["address"] for line in out.splitlines()] == ["things/5", "things/7"]
    _, out, _ = tail(1, "lanes", "things", "--since", "things/1", "--where", "$.n > 6", "--keys", "7", "8", "--json")
    assert [json.loads(line)["value"] for line in out.splitlines()] == [{"n": 7}]


def test_what_is_masked_is_not_shown_and_no_predicate_tells_it(tail, things):
    fill(things, Draft(value={"card": "4711", "n": 1}), Draft(value={"card": "0815", "n": 2}), Draft(body=b"4711"))
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]}):
        _, out, _ = tail(3, "things", "--since", "0", "--json")
        _, of_n, _ = tail(1, "things", "--since", "0", "--where", '$.card == "4711" || $.n == 2', "--json")

    assert "4711" not in out and out.count("•••") == 2
    assert json.loads(of_n)["id"] == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["things", "--since", "x"], "is no position"),
        (["things", "--where", "$.n >"], "can't be used"),
        (["things", "--since", "7"], "the log ends at things/0"),
        (["nothing"], "has no topic 'nothing'"),
    ],
)
def test_what_makes_no_sense_is_refused(tail, things, options, said):
    code, out, err = tail(1, *options)

    assert code in (1, 2) and out == ""
    assert said in err
