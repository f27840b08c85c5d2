"""Inboxes whose workers are killed and freeze, whose brokers are killed, and whose networks are cut.

Each message is an event once, in the order of the source.
"""

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.faults.rounds import Trouble, rounds_of_trouble
from tests.support.aws_server import Aws
from tests.support.fix_brokers import make_broker, proxy_to
from tests.support.processes import Processes, freeze
from tests.support.proxies import CuttingProxy, SilentProxy

pytestmark = pytest.mark.requirement("X21", "S8")

READY = "Ctrl-C stops."
KINDS = ["redis", "nats", "kafka", "kafka-transactions"]
QUEUES = ["rabbitmq", "aws", "aws-standard"]
BY_PROXY = ["redis", "nats", "kafka-transactions", *QUEUES]  # librdkafka's own cluster says itself where it is
# The words of a client that asks for messages, or says that it has them.
READS = {
    "redis": "XRANGE",
    "nats": "STREAM.INFO",
    "kafka-transactions": "\x00\x01\x00\x04",  # Fetch, in the one version that the model speaks
    "rabbitmq": "\x00\x3c\x00\x50",
    "aws": "ReceiveMessage",
    "aws-standard": "ReceiveMessage",
}
EVERY = [
    pytest.param("redis", marks=pytest.mark.quick),
    "nats",
    "kafka",
    "kafka-transactions",
    pytest.param("rabbitmq", marks=pytest.mark.slow),
    "aws",
]


class Site:
    """A site with one inbox, a transfer, and a broker that is reached through a proxy."""

    def __init__(self, processes: Processes, broker: Any) -> None:
        self.processes = processes
        self.broker = broker
        self.proxy = proxy_to(broker)
        self.database = CuttingProxy(processes.url)
        processes.variables["INBOX_BROKER"] = broker.name
        if broker.name != "redis":  # of which the database is
            assert processes.run("migrate").returncode == 0
        self.connection = psycopg.connect(processes.url, autocommit=True)
        self.sent = 0
        if broker.name == "nats":
            broker.add_stream("LETTERS", "letters")
        elif broker.name == "rabbitmq":
            broker.declare("letters", kind="classic")
        elif isinstance(broker, Aws):
            broker.make_queue(broker.LETTERS)
        processes.start("run_transfer")

    def worker(
        self, *, by_proxy: bool = False, to_database_by_proxy: bool = False, database: str = "", freezes_at: int = 0
    ) -> subprocess.Popen[str]:
        """Start one, which is at work when this returns. It may freeze by itself with a message in hand."""
        self.processes.variables["INBOX_FREEZES_AT"] = str(freezes_at)
        options = {**self.broker.options, **self.broker.at(self.proxy.port if by_proxy else self.broker.port)}
        self.processes.variables["INBOX_BROKERS"] = json.dumps({self.broker.name: options})
        reached = database or (self.database.url if to_database_by_proxy else self.processes.url)
        self.processes.variables["DATABASE_URL"] = reached
        process = self.processes.start("run_inbox", "received", "--skip-checks")
        self.processes.wait_until(lambda: READY in self.processes.said(process), what="a worker that is ready")
        return process

    def send(self, messages: int) -> None:
        """So many messages, each with the number that follows, as another program sends them."""
        numbers = range(self.sent + 1, self.sent + messages + 1)
        self.sent += messages
        if self.broker.name == "nats":
            self.broker.ask(lambda context: _publish(context, numbers))
            return
        if self.broker.name.startswith("kafka"):
            self.broker.publish("letters", [json.dumps(number).encode() for number in numbers], key="one")
            return
        if self.broker.name in QUEUES:
            self.broker.send_letters(numbers)
            return
        with self.broker.client() as client:
            for number in numbers:
                client.xadd("letters", {"data": json.dumps(number), "key": "one"})

    @property
    def taken(self) -> int:
        [[answer]] = self.connection.execute(
            "SELECT coalesce(max(taken), 0) FROM django_events_inbox WHERE name = 'received'"
        ).fetchall()
        return int(answer)

    def wait_until_done(self, *, repaired: bool = False) -> None:
        """Until all is taken in; if `repaired`, by a network that comes back whenever it is silent."""

        def is_done() -> bool:
            if repaired:
                self.proxy.come_back()
            return self.taken == self.sent

        self.processes.wait_until(is_done, what="all messages taken in")

    def logged(self) -> list[int]:
        rows = self.connection.execute(
            "SELECT e.value::text FROM django_events_event AS e JOIN django_events_topic AS t ON t.id = e.topic_id "
            "WHERE t.name = 'letters' ORDER BY e.id"
        ).fetchall()
        return [int(value) for (value,) in rows]

    def check(self) -> None:
        """All are there, in their order if the source has any, and none twice."""
        self.processes.wait_until(lambda: len(self.logged()) >= self.sent, what="all messages in the log")
        found = self.logged()
        assert sorted(found) == list(range(1, self.sent + 1))
        if getattr(self.broker, "keeps_order", True):
            groups = getattr(self.broker, "GROUPS", 1)
            for group in range(groups):
                assert [n for n in found if n % groups == group] == [n for n in sorted(found) if n % groups == group]
        assert self.taken == self.sent

    def close(self) -> None:
        self.processes.end()
        self.proxy.close()
        self.database.close()
        self.connection.close()
        self.broker.close()


async def _publish(context: Any, numbers: range) -> None:
    for number in numbers:
        await context.publish("letters", json.dumps(number).encode())


@pytest.fixture
def settings_module() -> str:
    return "tests.support.inbox_settings"


@pytest.fixture
def site(processes: Processes, request: pytest.FixtureRequest) -> Iterator[Site]:
    with closing(Site(processes, make_broker(request.param, processes.folder))) as site:
        yield site


@pytest.mark.parametrize("site", EVERY, indirect=True)
def test_who_froze_with_a_batch_in_hand_takes_in_nothing_twice(site: Site):
    """It has read a batch, another worker takes that in and what came later, and then it wakes up and goes on."""
    frozen = site.worker(freezes_at=10)
    site.send(30)
    os.waitpid(frozen.pid, os.WUNTRACED)
    twin = site.worker()
    site.send(20)
    site.wait_until_done()
    frozen.send_signal(signal.SIGCONT)
    if site.broker.name in KINDS:
        # Where it kept a lock from the twin, that one has ended its session.
        told = ("moved on by another process", "works again")
        site.processes.wait_until(lambda: any(one in site.processes.said(frozen) for one in told), what="its log")
    twin.kill()
    twin.wait()
    site.send(30)
    site.wait_until_done()

    site.check()


@pytest.mark.parametrize("site", BY_PROXY, indirect=True)
def test_who_froze_with_a_question_on_its_way_takes_in_nothing_twice(site: Site):
    """It has asked for a batch, and gets it when another worker has taken it in, and what came later."""
    frozen = site.worker(by_proxy=True)
    site.send(1)
    site.wait_until_done()
    site.proxy.vanish_at(READS[site.broker.name], arrives=True)
    if site.broker.name in QUEUES:
        site.send(1)
    site.processes.wait_until(site.proxy.vanished.is_set, what="a question on its way")
    freeze(frozen)
    site.send(50)
    twin = site.worker()
    site.wait_until_done()
    site.proxy.come_back()
    frozen.send_signal(signal.SIGCONT)
    site.send(10)
    site.wait_until_done()
    twin.terminate()
    twin.wait()
    site.send(10)
    site.wait_until_done()

    site.check()


@pytest.mark.parametrize("site", ["aws"], indirect=True)
def test_who_froze_while_it_sent_rows_keeps_no_other_waiting(site: Site):
    """It has taken the dedup keys of messages that come again, and PostgreSQL waits for the rest of a COPY for ever."""
    with closing(SilentProxy(site.processes.url)) as silent:
        frozen = site.worker(database=silent.url)
        site.send(30)
        site.wait_until_done()
        silent.vanish_at('"inbox"')  # of the events that it sends
        site.send(30)
        site.processes.wait_until(silent.vanished.is_set, what="events on their way")
        freeze(frozen)
        site.worker()
        site.wait_until_done()
        silent.come_back()
        frozen.send_signal(signal.SIGCONT)
        site.send(10)
        site.wait_until_done()

        site.check()


@pytest.mark.parametrize("site", [*KINDS, *QUEUES], indirect=True)
@pytest.mark.parametrize("lost", ["answer", "commit", "strand"])
def test_a_commit_whose_answer_is_lost_is_one_commit(site: Site, lost: str):
    site.worker(to_database_by_proxy=True)
    site.send(30)
    site.wait_until_done()
    if lost == "answer":
        site.database.lose_next_answer()
    elif lost == "commit":
        site.database.lose_next_commit()
    else:  # the server keeps the transaction open, and its locks, until it finds out
        site.database.strand_next_commit()
    site.send(30)
    site.processes.wait_until(site.database.lost.is_set, what="a COMMIT that is lost")
    site.wait_until_done()
    site.send(5)
    site.wait_until_done()

    site.check()


@pytest.mark.parametrize("site", [*KINDS, *QUEUES], indirect=True)
def test_a_broker_that_is_killed_and_a_network_that_is_cut_are_waited_for(site: Site):
    site.worker(by_proxy=True)
    site.send(20)
    site.wait_until_done()
    site.broker.kill()
    site.processes.wait_until(lambda: "takes nothing in since" in site.processes.log_of("run_inbox"), what="outage")
    site.broker.start()
    site.send(20)
    site.wait_until_done()
    if site.broker.name in BY_PROXY:
        site.proxy.vanish_at(READS[site.broker.name])
        site.send(20)
        site.processes.wait_until(site.proxy.vanished.is_set, what="silence")
        site.proxy.come_back()
        site.wait_until_done()
    site.processes.wait_until(lambda: "works again" in site.processes.log_of("run_inbox"), what="its end")

    site.check()


def _rounds(site: Site, rounds: int, dice: random.Random) -> None:
    def broker() -> None:
        site.broker.kill()
        site.broker.start()

    def network() -> None:
        site.proxy.vanish_at(READS[site.broker.name], arrives=dice.random() < 0.5)
        site.send(1)
        if dice.random() < 0.5:
            site.proxy.come_back()

    def commit() -> "subprocess.Popen[str]":
        worker = site.worker(to_database_by_proxy=True)
        dice.choice([site.database.lose_next_answer, site.database.lose_next_commit])()
        return worker

    troubles: dict[str, Trouble] = {"broker": broker, "commit": commit}
    if site.broker.name in BY_PROXY:
        troubles["network"] = network
    rounds_of_trouble(site, rounds, dice, **troubles)


@pytest.mark.parametrize("site", [*KINDS, *QUEUES], indirect=True)
def test_three_rounds_of_trouble(site: Site):
    _rounds(site, 3, random.Random(2))


@pytest.mark.parametrize("site", [*KINDS, *QUEUES], indirect=True)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.timeout(1_800)  # each round starts processes, which takes its time on a busy machine
def test_thirty_rounds_of_trouble(site: Site, seed: int):
    _rounds(site, 30, random.Random(seed))
