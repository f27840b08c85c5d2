"""Relays whose workers are killed and freeze, whose brokers are killed, and whose answers are lost.

Each event comes to the broker, for the first time behind all older ones of its key. Where the broker can refuse what it
has, none comes twice. Where it can't, a double has the same address.
"""

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from tests.faults.rounds import Trouble, rounds_of_trouble
from tests.support.aws_server import Aws
from tests.support.fix_brokers import make_broker, proxy_to
from tests.support.kafka_model import ModelKafka
from tests.support.processes import Processes, freeze

pytestmark = pytest.mark.requirement("X20", "S8")

KEYS = 5
READY = "Ctrl-C stops."
OF_AWS = ["aws", "aws-standard", "sns", "sns-standard"]
# "/3" are the threads of each worker.
KINDS = ["redis", "nats", "nats-cluster", "kafka", "kafka-transactions", "kafka-transactions/3", "rabbitmq", *OF_AWS]
REQUESTS = ["InitProducerId", "OffsetFetch", "AddPartitionsToTxn", "Produce", "TxnOffsetCommit", "EndTxn"]
LOST = [  # whether the batch arrives and only its answer is lost
    pytest.param("redis", False, id="redis-batch", marks=pytest.mark.quick),
    pytest.param("nats", False, id="nats-batch", marks=pytest.mark.slow),
    pytest.param("redis", True, id="redis-answer"),
    pytest.param("nats", True, id="nats-answer"),
    pytest.param("rabbitmq", False, id="rabbitmq-batch"),
    pytest.param("rabbitmq", True, id="rabbitmq-answer"),
    pytest.param("aws", False, id="aws-batch"),
    pytest.param("aws", True, id="aws-answer"),
    pytest.param("kafka-transactions", False, id="kafka-batch"),
    pytest.param("kafka-transactions", True, id="kafka-answer"),
    pytest.param("sns", False, id="sns-batch"),
    pytest.param("sns", True, id="sns-answer"),
]


class Site:
    """A site with one relay, a transfer, and a broker that is reached through a proxy."""

    threads = 1

    def __init__(self, processes: Processes, broker: Any) -> None:
        self.processes = processes
        self.broker = broker
        self.proxy = proxy_to(broker)
        processes.variables["RELAY_BROKER"] = broker.name
        self.connection = psycopg.connect(processes.url, autocommit=True)
        self.keys = [f"key-{n}" for n in range(getattr(broker, "KEYS", KEYS))]
        self.published = 0
        self.cut_since: float | None = None
        self.patience = 0.0
        processes.start("run_transfer")

    def worker(self, *, by_proxy: bool = True) -> subprocess.Popen[str]:
        """Start one, which is at work when this returns. Its threads take the partitions by turns."""
        options = {**self.broker.options, **self.broker.at(self.proxy.port if by_proxy else self.broker.port)}
        self.processes.variables["RELAY_BROKERS"] = json.dumps({self.broker.name: options})
        process = self.processes.start("run_consumer", "relayed", "--threads", str(self.threads), "--skip-checks")
        self.processes.wait_until(lambda: READY in self.processes.said(process), what="a worker that is ready")
        return process

    def send(self, messages: int) -> None:
        """So many events, of one key after the other."""
        for _ in range(messages):
            self.published += 1
            self.connection.execute(
                "SELECT django_events_publish('parcels', %s::jsonb, 'x', %s)",
                [str(self.published), self.keys[self.published % len(self.keys)]],
            )

    def ask(self, question: str) -> int:
        [[answer]] = self.connection.execute(question).fetchall()
        return answer

    @property
    def passed(self) -> int:
        return self.ask(
            "SELECT coalesce(sum(number), 0) FROM django_events_position AS p JOIN django_events_consumer "
            "AS c ON c.id = p.consumer_id WHERE c.name = 'relayed'"
        )

    def wait_until_done(self, *, repaired: bool = True) -> None:
        """Until all is relayed; if `repaired`, by a network that comes back."""
        self.processes.wait_until(
            lambda: (repaired and self._repair()) or self.passed == self.published, what="all events relayed"
        )

    def wait_until_further(self) -> None:
        before = self.passed
        self.processes.wait_until(
            lambda: self._repair() or self.passed > before or self.passed == self.published, what="progress"
        )

    def _repair(self) -> None:
        """Let a network that was cut come back after a while, which some clients wait for and others don't."""
        if not self.proxy.vanished.is_set():
            self.cut_since = None
        elif self.cut_since is None:
            self.cut_since = time.monotonic()
        elif time.monotonic() - self.cut_since > self.patience:
            self.proxy.vanished.clear()
            self.proxy.come_back()

    def check(self, *, doubles: bool | None = None) -> None:
        """All are there, in the order of their keys if the broker has any, and none twice where it can refuse it."""
        entries = self.broker.entries()
        assert self.connection.execute("SELECT event_id, error FROM django_events_deadletter").fetchall() == []
        there = {one.address for one in entries}
        missing = [n for n in range(1, self.published + 1) if f"parcels/{n}" not in there]
        assert (missing, len(there)) == ([], self.published), self.processes.log_of("run_consumer")
        if not (self.broker.may_double if doubles is None else doubles):
            assert len(entries) == self.published
        first: dict[str, list[int]] = {key: [] for key in self.keys}
        seen: dict[str, str] = {}
        for one in entries:
            if one.address not in seen:
                seen[one.address] = one.data
                first[self.keys[int(one.data) % len(self.keys)]].append(one.event_id)
            assert seen[one.address] == one.data
        if getattr(self.broker, "keeps_order", True):
            for ids in first.values():
                assert all(one < other for one, other in pairwise(ids))

    def close(self) -> None:
        self.processes.end()
        self.proxy.close()
        self.connection.close()
        self.broker.close()


@pytest.fixture
def settings_module() -> str:
    return "tests.support.relay_settings"


@pytest.fixture
def site(processes: Processes, request: pytest.FixtureRequest) -> Iterator[Site]:
    kind, _, threads = request.param.partition("/")
    with closing(Site(processes, make_broker(kind, processes.folder))) as site:
        site.threads = int(threads or 1)
        yield site


@pytest.mark.parametrize(("site", "arrives"), LOST, indirect=["site"])
def test_who_froze_while_it_sent_doubles_nothing(site: Site, arrives: bool):
    """The answer is on its way, or the whole batch is, which arrives when another worker has sent it."""
    frozen = site.worker()
    site.proxy.vanish_at(site.broker.WORDS, arrives=arrives)
    site.send(30)
    site.processes.wait_until(site.proxy.vanished.is_set, what="a batch on its way")
    freeze(frozen)
    site.worker(by_proxy=False)
    site.wait_until_done()
    site.proxy.come_back()
    frozen.send_signal(signal.SIGCONT)
    site.processes.wait_until(lambda: "lost its lease" in site.processes.said(frozen), what="the loss in the log")
    site.send(30)
    site.wait_until_done()

    site.check()


@pytest.mark.parametrize("site", ["redis", "nats", "kafka-transactions", "rabbitmq", *OF_AWS], indirect=True)
@pytest.mark.parametrize("arrives", [True, False], ids=["answer", "batch"])
def test_what_is_lost_on_the_way_is_sent_again_and_an_answer_that_is_lost_doubles_nothing(site: Site, arrives: bool):
    site.worker()
    site.proxy.vanish_at(site.broker.WORDS, arrives=arrives)
    site.send(30)
    site.processes.wait_until(lambda: "can't send since" in site.processes.log_of("run_consumer"), what="the outage")
    site.proxy.come_back()
    site.wait_until_done()
    site.processes.wait_until(lambda: "can send again" in site.processes.log_of("run_consumer"), what="its end")

    site.check()


@pytest.mark.parametrize("site", ["redis", pytest.param("kafka-transactions/2", marks=pytest.mark.slow)], indirect=True)
def test_an_outage_is_the_same_one_for_the_worker_after_one_that_was_killed_in_it(site: Site):
    """It is told since when the target is down, and not since when the worker is there."""
    since = "SELECT failing_since FROM django_events_position WHERE failing_since IS NOT NULL"
    first = site.worker()
    site.broker.kill()
    site.send(1)
    site.processes.wait_until(lambda: site.connection.execute(since).fetchall(), what="the outage in the database")
    began = site.connection.execute(since).fetchall()
    first.kill()
    first.wait()
    second = site.worker()
    site.processes.wait_until(lambda: "can't send since" in site.processes.said(second), what="the outage in its log")
    [(noted,)] = began
    assert f"can't send since {noted.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" in site.processes.said(second)
    assert site.connection.execute(since).fetchall() == began
    site.broker.start()
    site.wait_until_done()
    assert site.connection.execute(since).fetchall() == []

    site.check()


@pytest.mark.parametrize("site", ["nats-cluster"], indirect=True)
def test_a_server_that_led_its_stream_and_froze_doubles_nothing_when_it_wakes_up(site: Site):
    """Another server leads the stream meanwhile, and what was on its way to the former one is sent again."""
    site.worker()
    site.send(30)
    site.wait_until_further()
    site.broker.freeze()
    site.send(30)
    site.wait_until_done()
    site.broker.thaw()
    site.send(30)
    site.wait_until_done()

    site.check()


@pytest.mark.parametrize("site", ["kafka-transactions", "kafka-transactions/3"], indirect=True)
@pytest.mark.parametrize("request_held", ["Produce", "EndTxn"])
def test_who_froze_in_its_transaction_doubles_nothing(site: Site, request_held: str):
    """Its messages, or its commit, come to Kafka when another worker has sent them."""
    frozen = site.worker()
    site.send(10)
    site.wait_until_done()
    site.broker.fault("hold", request_held)
    site.send(30)
    site.broker.wait_until_held()
    freeze(frozen)
    site.worker()
    site.wait_until_done()
    site.broker.release()
    frozen.send_signal(signal.SIGCONT)
    site.processes.wait_until(lambda: "lost its lease" in site.processes.said(frozen), what="the loss in the log")
    site.send(30)
    site.wait_until_done()

    site.check()


@pytest.mark.parametrize("site", ["kafka"], indirect=True)
@pytest.mark.slow
def test_what_a_frozen_kafka_was_sent_comes_again_under_the_same_address(site: Site):
    """What was on its way when it froze arrives when it wakes up, and so does what was sent again."""
    site.worker()
    site.send(5)
    site.wait_until_done()
    site.broker.kill()
    site.send(30)
    site.processes.wait_until(lambda: "can't send since" in site.processes.log_of("run_consumer"), what="the outage")
    site.broker.start()
    site.wait_until_done()

    site.check()


def _rounds(site: Site, rounds: int, dice: random.Random) -> None:
    def broker() -> None:
        site.broker.kill()
        if isinstance(site.broker, Aws):  # which is only frozen: for longer, or not, than its clients wait
            time.sleep(dice.choice([0.0, 4.0]))
        site.broker.start()

    def network() -> None:
        site.patience = dice.choice([0.0, 4.0])
        site.proxy.vanish_at(site.broker.WORDS, arrives=dice.random() < 0.5)

    def some_relayed() -> None:
        if isinstance(site.broker, Aws):  # moto takes longer for each message that a queue has
            site.broker.entries()
        if dice.random() < 0.7:
            site.wait_until_further()

    def fault() -> None:
        site.broker.fault(dice.choice(["lose", "mute", "cut", "swallow"]), dice.choice(REQUESTS))

    troubles: dict[str, Trouble] = {"broker": broker}
    if site.broker.WORDS is not None:
        troubles["network"] = network
    if isinstance(site.broker, ModelKafka):
        troubles["fault"] = fault
    rounds_of_trouble(site, rounds, dice, between=some_relayed, **troubles)


@pytest.mark.parametrize("site", KINDS, indirect=True)
def test_three_rounds_of_trouble(site: Site):
    _rounds(site, 3, random.Random(2))


@pytest.mark.parametrize("site", KINDS, indirect=True)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.timeout(1_800)  # each round starts processes, which takes its time on a busy machine
def test_thirty_rounds_of_trouble(site: Site, seed: int):
    _rounds(site, 30, random.Random(seed))
