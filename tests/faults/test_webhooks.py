"""Senders of webhooks that are killed, freeze past their lease and wake up, or are two: nothing is lost, and ids stay.

Each event comes at least once, under one id and with one body. Where keys are in order, no event comes for the first
time before an older one of its key, and none is settled by a process whose lease another one took over.
"""

import signal
import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.processes import Processes, freeze
from tests.support.receivers import Receiver, events_of

pytestmark = pytest.mark.requirement("P10", "S8")

ADD = """
from datetime import timedelta
from django_events import Backoff
from django_events.operations import add_webhook
retry = Backoff(attempts=50, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=200))
add_webhook("partner", "stock", {url!r}, ordered={ordered}, start="beginning", concurrency=8, retry=retry)
"""
KEYS = ("a", "b", "c", "d", "e")


class Site:
    """A site with one endpoint, a transfer, and senders."""

    def __init__(self, processes: Processes, receiver: Receiver) -> None:
        self.processes = processes
        self.receiver = receiver
        self.connection = psycopg.connect(processes.url, autocommit=True)
        self.published = 0

    def add(self, *, ordered: bool, path: str = "/ok") -> None:
        added = self.processes.run("shell", "-c", ADD.format(url=self.receiver.url(path), ordered=ordered))
        assert added.returncode == 0, added.stderr
        self.connection.execute("UPDATE django_events_consumer SET lease = '2 seconds' WHERE name = 'partner'")
        self.processes.start("run_transfer")

    def publish(self, events: int) -> None:
        """So many events, whose values are 1, 2, 3 …, each of one key after the other."""
        for _ in range(events):
            self.published += 1
            self.connection.execute(
                "SELECT django_events_publish('stock', %s::jsonb, 'x', %s)",
                [str(self.published), KEYS[self.published % len(KEYS)]],
            )

    def sender(self) -> subprocess.Popen[str]:
        return self.processes.start("run_webhooks")

    def ask(self, question: str) -> int:
        [[answer]] = self.connection.execute(question).fetchall()
        return answer

    @property
    def pending(self) -> int:
        """How many events are not settled."""
        published = "SELECT count(*) FROM django_events_bufferedevent"
        return self.ask(published) + self.ask(
            "SELECT count(*) FROM django_events_delivery AS d JOIN django_events_consumer AS c ON c.id = d.consumer_id "
            "WHERE c.name = 'partner'"
        )

    def wait_until_sent(self) -> None:
        self.processes.wait_until(
            lambda: len(set(events_of(self.receiver))) == self.published and not self.pending, what="all sent"
        )

    def check(self, *, ordered: bool) -> None:
        """All came, each under one id and with one body, and for the first time in the order of its key."""
        bodies: dict[str, set[bytes]] = {}
        newest = dict.fromkeys(KEYS, 0)
        seen = set()
        for one in self.receiver.requests:
            event = one.json()
            assert event["id"] == one.id
            bodies.setdefault(one.id, set()).add(one.body)
            if one.id not in seen:
                seen.add(one.id)
                assert not ordered or event["data"] > newest[event["key"]], f"{one.id} came before an older one"
                newest[event["key"]] = event["data"]
        assert len(bodies) == self.published
        assert {len(found) for found in bodies.values()} == {1}
        assert self.ask("SELECT count(*) FROM django_events_deadletter") == 0


@pytest.fixture
def settings_module() -> str:
    return "tests.support.fault_settings"


@pytest.fixture
def site(processes: Processes) -> Iterator[Site]:
    processes.variables |= {"WEBHOOK_NETWORKS": "127.0.0.0/8", "FAULT_FOLDER": str(processes.folder)}
    with Receiver() as receiver:
        site = Site(processes, receiver)
        yield site
        processes.end()
        site.connection.close()


@pytest.mark.parametrize("ordered", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_sender_that_is_killed_loses_nothing(site: Site, ordered: bool):
    """It is killed with requests under way, and while answers are settled; another one runs beside it at times."""
    site.add(ordered=ordered)
    senders = [site.sender()]
    for turn in range(6):
        site.receiver.behave["/ok"] = "hang" if turn % 2 else "status/200"
        before = len(site.receiver.requests)
        site.publish(20)
        site.processes.wait_until(lambda before=before: len(site.receiver.requests) > before, what="requests")
        killed = senders.pop(0)
        killed.kill()
        killed.wait()
        senders.append(site.sender())
        if turn == 2:
            senders.append(site.sender())
        site.receiver.behave["/ok"] = "status/200"
    site.wait_until_sent()

    site.check(ordered=ordered)


@pytest.mark.parametrize("ordered", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_sender_that_was_frozen_past_its_lease_settles_nothing_and_sends_nothing_old(site: Site, ordered: bool):
    site.add(ordered=ordered)
    site.receiver.behave["/ok"] = "hang"
    frozen = site.sender()
    site.publish(30)
    site.processes.wait_until(lambda: len(site.receiver.requests) >= 5, what="requests under way")
    freeze(frozen)
    site.receiver.behave["/ok"] = "status/200"
    other = site.sender()
    site.wait_until_sent()
    state = "SELECT sum(handled + failed) FROM django_events_position AS p JOIN django_events_consumer AS c "
    state += "ON c.id = p.consumer_id WHERE c.name = 'partner'"
    site.processes.wait_until(lambda: site.ask(state) >= site.published, what="the counts of the other one")
    before, sent = site.ask(state), len(site.receiver.requests)
    tried = site.ask("SELECT count(*) FROM django_events_webhookattempt")
    site.receiver.release()
    frozen.send_signal(signal.SIGCONT)
    site.processes.wait_until(lambda: "lost its lease" in site.processes.said(frozen), what="the loss in the log")

    assert site.ask("SELECT count(*) FROM django_events_webhookattempt") == tried
    assert site.ask(state) == before
    assert len(site.receiver.requests) == sent, "what another one had sent was sent again"
    other.terminate()
    assert other.wait(60) == 0
    site.publish(10)
    site.wait_until_sent()
    site.check(ordered=ordered)


@pytest.mark.parametrize("ordered", [pytest.param(False, marks=pytest.mark.quick), True])
def test_two_senders_at_once_share_the_work_and_send_nothing_twice(site: Site, ordered: bool):
    site.add(ordered=ordered)
    senders = [site.sender(), site.sender()]
    for _ in range(10):
        site.publish(30)
    site.wait_until_sent()
    for sender in senders:
        sender.terminate()
        assert sender.wait(60) == 0, site.processes.said(sender)

    site.check(ordered=ordered)
    assert len(site.receiver.requests) == site.published


def test_a_sender_that_is_stopped_waits_for_its_answers(site: Site):
    site.add(ordered=False)
    site.receiver.behave["/ok"] = "hang"
    sender = site.sender()
    site.publish(5)
    site.processes.wait_until(lambda: len(site.receiver.requests) == 5, what="requests under way")
    sender.terminate()
    site.receiver.release()

    assert sender.wait(60) == 0
    assert site.pending == 0
    assert len(site.receiver.requests) == 5
    assert "Attempts settled: " in site.processes.said(sender)


def test_a_server_that_is_away_for_a_while_costs_nothing(site: Site, fault_server):
    """What was answered meanwhile is settled when the server is back."""
    site.add(ordered=True)
    site.receiver.behave["/ok"] = "hang"
    site.sender()
    site.publish(20)
    site.processes.wait_until(lambda: len(site.receiver.requests) >= 5, what="requests under way")
    fault_server.stop("immediate")
    site.receiver.release()
    fault_server.start()
    site.connection.close()
    site.connection = psycopg.connect(site.processes.url, autocommit=True)
    site.wait_until_sent()

    site.check(ordered=True)
