"""People are told of a new problem once, and once when it is over, whatever becomes of processes and hooks."""

import json
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from django.core import mail
from django.test import override_settings

from django_events import Backoff, models
from django_events.maintaining import notifying
from django_events.maintaining.notifying import STEP
from django_events.maintaining.steps import STEPS
from django_events.models.functions import ClockTimestamp
from django_events.operations import discard, pause
from django_events.workers.maintaining import LEASE, run_due, run_steps
from tests.support.fix_consumers import run_once
from tests.support.fix_queues import fill_topic

pytestmark = pytest.mark.usefixtures("transactional_db")

HERE = "tests.integration.maintaining.test_notifying"
[NOTIFY] = [step for step in STEPS if step.name == STEP]
heard = []
failing = []
waiting = threading.Event()


def listen(news):
    heard.append(([one.kind for one in news.began], [one.kind for one in news.over]))


def fail(news):
    failing.append(news)
    if len(failing) < 3:
        raise ConnectionError("no such host")


def hang(news):
    waiting.wait(60)


@pytest.fixture(autouse=True)
def forgotten():
    heard.clear()
    failing.clear()
    waiting.clear()
    yield
    waiting.set()


@pytest.fixture
def reader(things, make_consumer):
    """A consumer with a dead letter."""

    def broken(event):
        raise ValueError("no such order")

    reader = make_consumer(things, handler=broken, retry=Backoff(attempts=1))
    fill_topic(things, "a")
    run_once(reader)
    return reader


def telling(*hooks):
    return override_settings(DJANGO_EVENTS={"NOTIFY": hooks}, ADMINS=[("Olga", "olga@example.com")])


def look():
    [done] = run_steps("default", [NOTIFY])
    assert done.error == ""
    return done.result


def test_a_problem_is_told_once_and_once_when_it_is_over(reader):
    with telling(f"{HERE}.listen"):
        look()
        look()
        assert heard == [(["dead letters"], [])]
        discard(models.DeadLetter.objects.all(), reason="a test")
        look()
        look()
        assert heard == [(["dead letters"], []), ([], ["dead letters"])]
        assert look() == {"open": {}}


def test_without_hooks_nothing_is_looked_at(reader, django_assert_num_queries):
    with telling(), django_assert_num_queries(0):
        assert notifying.notify("default") == {}


def test_what_a_person_paused_is_not_told(reader):
    discard(models.DeadLetter.objects.all(), reason="a test")
    pause(reader)
    with telling(f"{HERE}.listen"):
        look()
    assert heard == []


def test_admins_get_a_mail_that_says_what_to_do(reader):
    with telling("mail_admins"):
        look()
        discard(models.DeadLetter.objects.all(), reason="a test")
        look()
    began, over = mail.outbox
    assert began.subject.endswith("Events in default: 1 problem began")
    assert "dead letters: reader of things" in began.body
    assert "manage.py events dead-letters" in began.body
    assert over.subject.endswith("Events in default: 1 is over")
    assert over.body == "Over: dead letters: reader of things"


def test_a_webhook_gets_json_and_its_address_stays_secret(reader, caplog):
    got, codes = [], [500, 200]

    class Page(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(codes.pop(0))
            self.end_headers()

        def log_message(self, *args): ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=lambda: [server.handle_request() for _ in range(2)])
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/secret-of-hook"
        with telling(url):
            first = look()
            second = look()
        thread.join(60)
    [[name, error]] = first["failed"].items()
    assert name.startswith("webhook ")
    assert "500" in error
    assert "secret-of-hook" not in caplog.text + json.dumps(first) + json.dumps(second)
    assert second["open"]["dead letters: reader of things"]["told"] == [name]
    assert len(got) == 2
    assert (got[1]["began"][0]["consumer"], got[1]["over"], got[1]["database"]) == ("reader", [], "default")
    assert "1 problem began" in got[1]["text"]


def test_a_hook_that_fails_is_tried_again_and_the_others_are_told_once(reader, caplog):
    with telling(f"{HERE}.fail", "no.such.hook", f"{HERE}.listen"):
        for _ in range(4):
            done = look()
    assert len(failing) == 3
    assert heard == [(["dead letters"], [])]
    assert set(done["failed"]) == {"no.such.hook"}
    assert "The hook no.such.hook can't be told of problems" in caplog.text


def test_a_hook_that_hangs_holds_nothing_up(reader, monkeypatch):
    monkeypatch.setattr(notifying, "PATIENCE", 0.2)
    with telling(f"{HERE}.hang", f"{HERE}.listen"):
        assert look()["failed"] == {f"{HERE}.hang": "It took longer than 0 s."}
        assert look()["failed"] == {f"{HERE}.hang": "It has not come back yet."}
    assert heard == [(["dead letters"], [])]


def test_of_two_processes_one_tells(reader, in_thread):
    with telling(f"{HERE}.listen"):
        both = [in_thread(run_due, "default", [NOTIFY]) for _ in range(2)]
        assert sorted(len(one.result(60)) for one in both) == [0, 1]
    assert heard == [(["dead letters"], [])]


def test_a_process_that_dies_between_the_call_and_the_record_has_it_told_again(reader, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*args):
        raise Killed

    with telling(f"{HERE}.listen"):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr("django_events.workers.maintaining._end", die)
            run_steps("default", [NOTIFY])
        assert run_due("default", [NOTIFY]) == []  # its lease goes on
        earlier = ClockTimestamp() - LEASE - timedelta(minutes=1)
        models.MaintenanceStep.objects.update(started_at=earlier, leased_until=ClockTimestamp())
        assert len(run_due("default", [NOTIFY])) == 1
        look()
    assert heard == [(["dead letters"], [])] * 2


def test_a_frozen_process_that_wakes_up_late_changes_nothing(reader, monkeypatch):
    """Another one took over and told; what the late one writes down is left out."""
    late = []

    def told_late(news):
        listen(news)
        if not late:
            late.append(True)
            models.MaintenanceStep.objects.update(leased_until=ClockTimestamp())
            notifying._running.clear()  # as in another process
            look()
            discard(models.DeadLetter.objects.all(), reason="a test")
            notifying._running.clear()
            look()

    monkeypatch.setattr(f"{HERE}.hang", told_late)
    with telling(f"{HERE}.hang"):
        run_steps("default", [NOTIFY])
        assert models.MaintenanceStep.objects.get(name=STEP).result == {"open": {}}
        look()
    assert heard == [(["dead letters"], [])] * 2 + [([], ["dead letters"])]
