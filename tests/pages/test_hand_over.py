"""docs/how-to/hand-over-to-a-task-queue.md: its code, with a real Redis and a real Celery, killed and frozen."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from tests.pages.conftest import MakeSite
from tests.pages.site import Site, blocks, shortened
from tests.support.brokers import REDIS, Redis
from tests.support.fault_app.files import Gate, Journal
from tests.support.processes import wait_until

pytestmark = [
    pytest.mark.skipif(REDIS is None, reason="redis-server is not installed: apt-get install redis-server"),
    pytest.mark.timeout(240),
]

MISSING = "{} is not installed: pip install 'django-events-pg[test]'"
PAGE = "how-to/hand-over-to-a-task-queue.md"
CELERY = """
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
app = Celery("mysite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
# What the page says in minutes happens in seconds here, and a test may hold Celery at a gate.
QUICK = """
import os

from mysite.settings import *

INSTALLED_APPS = [*INSTALLED_APPS, "tests.pages.stage"]
CELERY_BROKER_URL = RELAY_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:1/0")
CELERY_BROKER_TRANSPORT_OPTIONS |= {"visibility_timeout": 2, "socket_timeout": 2}
"""
SHORT_LEASE = {"transactional=False,": "transactional=False,\n    lease=timedelta(seconds=1),"}

SHORT_LEASE_OF_TASKS = {
    "from django_events import": "from datetime import timedelta\n\nfrom django_events import",
    'types=["order.placed"])': 'types=["order.placed"], lease=timedelta(seconds=1))',
}
DIES_ONCE = """
import os
import signal
from pathlib import Path

from django.db.models.signals import post_save


def die(sender, **kwargs):
    mark = Path(os.environ.get("DIES_ONCE", "."))
    if sender.__name__ == "DBTaskResult" and not mark.exists() and sender.objects.count() == 3:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


post_save.connect(die)
"""
PLACE_FIVE = """
from django.db import transaction

from shop.events import orders
from shop.models import Order

for _ in range(5):
    with transaction.atomic():
        order = Order.objects.create(customer="Ada", total="25.00")
        orders.publish({"id": order.pk, "total": order.total}, type="order.placed")  # no key: any partition
"""
COUNT = """
from django_tasks_db.models import DBTaskResult

from shop.models import Invoice, Order

print(Order.objects.count(), DBTaskResult.objects.count(), Invoice.objects.count())
"""


class Stage:
    """The site with its transfer and a Redis, the orders of one test, and what became of them."""

    def __init__(self, site: Site, redis: Redis, folder: Path) -> None:
        self.site, self.redis, self.folder = site, redis, folder
        self.orders: list[int] = []
        self.started = len(site.started)
        site.variables |= {"STAGE_FOLDER": str(folder), "REDIS_URL": redis.url}

    def place(self, count: int) -> None:
        """Place orders: each in a transaction with its event."""
        with psycopg.connect(self.site.url, autocommit=True) as connection:
            for _ in range(count):
                with connection.transaction():
                    [[order]] = connection.execute(
                        "INSERT INTO shop_order (customer, total) VALUES ('Ada', 25) RETURNING id"
                    ).fetchall()
                    connection.execute(
                        "SELECT django_events_publish('orders', %s, type => 'order.placed', key => %s)",
                        [json.dumps({"id": order, "total": "25.00"}), str(order)],
                    )
                self.orders.append(order)

    def worker(self, consumer: str = "invoices") -> subprocess.Popen[str]:
        return self.site.start("run_consumer", consumer, "--skip-checks")

    def celery(self) -> subprocess.Popen[str]:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
        command = [sys.executable, "-m", "celery", "-A", "mysite", "worker", "--pool", "solo", *quiet]
        return self.site._start(command, name="celery")

    def end_workers(self) -> None:
        for process in self.site.started[self.started :]:
            process.kill()
            process.wait()

    def arm(self, moment: str) -> Gate:
        (self.folder / f"{moment}.armed").touch()
        return Gate(self.folder, moment)

    def pid_at(self, gate: Gate, what: str) -> int:
        self.site.wait_until(lambda: gate.pid is not None, what=what)
        assert gate.pid is not None
        return gate.pid

    def invoices(self) -> Counter[int]:
        with psycopg.connect(self.site.url) as connection:
            rows = connection.execute("SELECT order_id FROM shop_invoice WHERE order_id = ANY(%s)", [self.orders])
            return Counter(order for (order,) in rows)

    def wait_until_billed(self) -> None:
        self.site.wait_until(lambda: len(self.invoices()) == len(self.orders), what="an invoice for each order")

    def wait_until_passed(self, consumer: str = "invoices") -> None:
        """Until the consumer has nothing more to handle."""
        self.site.wait_until(lambda: lag(self.site, consumer) == 0, what="a consumer that is at the end")

    def tasks(self, moment: str) -> Counter[str]:
        return Counter(note["subject"] for note in Journal(self.folder).read() if note["moment"] == moment)

    def twice(self, moment: str) -> list[str]:
        return [task for task, times in self.tasks(moment).items() if times > 1]


def lag(site: Site, consumer: str) -> int:
    query = (
        "SELECT (SELECT count(*) FROM django_events_bufferedevent) + count(*) FROM django_events_consumer c"
        " JOIN django_events_position p ON p.consumer_id = c.id"
        " JOIN django_events_event e ON e.topic_id = c.topic_id AND e.partition = p.partition AND e.id > p.position"
        " WHERE c.name = %s"
    )
    with psycopg.connect(site.url) as connection:
        [[behind]] = connection.execute(query, [consumer]).fetchall()
    return int(behind)


@pytest.fixture(scope="module")
def celery_site(make_site: MakeSite) -> Iterator[Site]:
    """The site of the page's first half, with the way that loses tasks beside the right one, and a transfer."""
    pytest.importorskip("celery", reason=MISSING.format("Celery"))
    pytest.importorskip("redis", reason=MISSING.format("Redis' client"))
    site = make_site(PAGE)
    site.write("mysite/celery.py", CELERY)
    site.write("mysite/__init__.py", "from mysite.celery import app as celery_app\n")
    site.write("mysite/quick.py", QUICK)
    site.settings = "mysite.quick"
    site.take_files("shop/models.py", "shop/tasks.py")
    site.take(replaced=SHORT_LEASE)
    site.take_files("mysite/settings.py", "shop/lossy.py")
    site.write("shop/relay.py", shortened(blocks(PAGE)[-1].code, SHORT_LEASE))
    site.write("shop/events.py", "from shop import lossy, relay\n", added=True)
    site.migrate()
    site.start("run_transfer")
    yield site


@pytest.fixture
def stage(celery_site: Site, tmp_path: Path) -> Iterator[Stage]:
    redis = Redis(tmp_path)
    stage = Stage(celery_site, redis, tmp_path)
    yield stage
    stage.end_workers()
    redis.thaw()
    redis.kill()


def test_a_worker_that_is_killed_between_sending_and_noting_it_sends_once_more(stage: Stage):
    gate = stage.arm("sent")
    killed, _ = stage.worker(), stage.celery()
    stage.place(10)
    assert stage.pid_at(gate, "a task that is sent") == killed.pid
    killed.kill()
    killed.wait()
    stage.worker()
    stage.wait_until_billed()
    stage.wait_until_passed()

    wait_until(lambda: sum(stage.tasks("done").values()) == 11, what="the second run")
    assert len(stage.twice("sent")) == 1
    assert stage.twice("done") == stage.twice("sent")
    assert set(stage.invoices().values()) == {1}


def test_a_worker_that_is_frozen_there_and_wakes_up_too_late(stage: Stage):
    gate = stage.arm("sent")
    frozen, _ = stage.worker(), stage.celery()
    stage.place(10)
    assert stage.pid_at(gate, "a task that is sent") == frozen.pid
    frozen.send_signal(signal.SIGSTOP)
    stage.worker()
    stage.wait_until_billed()
    stage.wait_until_passed()
    gate.open()
    frozen.send_signal(signal.SIGCONT)
    frozen.send_signal(signal.SIGTERM)
    assert frozen.wait(60) == 0

    wait_until(lambda: sum(stage.tasks("done").values()) == 11, what="the second run")
    assert len(stage.twice("sent")) == 1
    assert set(stage.invoices().values()) == {1}


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_broker_that_is_away_for_a_while(stage: Stage, fault: str):
    """A Celery that fetches a task in the instant in which Redis is killed loses it, so it is not there then."""
    stage.worker()
    if fault == "frozen":
        stage.celery()
    stage.place(20)
    wait_until(lambda: stage.tasks("sent"), what="the first task")
    stage.redis.kill() if fault == "killed" else stage.redis.freeze()
    stage.place(20)
    stage.site.wait_until(lambda: "Next attempt in" in stage.site.log_of("run_consumer"), what="an attempt that failed")
    if fault == "frozen":
        stage.redis.thaw()
    else:
        stage.redis.start()
        stage.celery()
    stage.wait_until_billed()
    stage.wait_until_passed()

    assert len(stage.tasks("sent")) == 40
    assert len(stage.twice("done")) <= 4  # what was under way, at most one of each partition
    assert set(stage.invoices().values()) == {1}


@pytest.mark.parametrize(("moment", "runs"), [("begins", 1), ("done", 2)])
def test_a_celery_worker_that_is_killed(stage: Stage, moment: str, runs: int):
    """Before the task, or after its commit and before it is acknowledged: the message comes again."""
    gate = stage.arm(moment)
    stage.worker()
    killed = stage.celery()
    stage.place(5)
    assert stage.pid_at(gate, "a task in hand") == killed.pid
    stage.wait_until_passed()
    killed.kill()
    killed.wait()
    stage.redis.wait_until_unacknowledged_for(seconds=2)
    stage.celery()
    stage.wait_until_billed()

    wait_until(lambda: sum(stage.tasks("begins").values()) == 6, what="the second run")
    wait_until(lambda: sum(stage.tasks("done").values()) == 4 + runs, what="the end of the second run")
    assert stage.twice("sent") == []
    assert set(stage.invoices().values()) == {1}


def test_sending_on_commit_loses_a_task(stage: Stage):
    """That the page is right to say so: the event counts as handled, and its task was never sent."""
    first = stage.worker("lossy")
    stage.site.wait_until(lambda: "Ctrl-C stops" in stage.site.said(first), what="a worker")
    stage.wait_until_passed("lossy")  # the orders of other tests
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    before = stage.tasks("sent")
    gate = stage.arm("sending")
    killed = stage.worker("lossy")
    stage.place(1)
    assert stage.pid_at(gate, "a task that is about to be sent") == killed.pid
    killed.kill()
    killed.wait()
    stage.worker("lossy")
    stage.wait_until_passed("lossy")

    assert len(stage.tasks("sending")) == len(before) + 1
    assert stage.tasks("sent") == before


def test_a_stream_of_redis_has_each_event_once(stage: Stage):
    """The worker is killed behind a message that it has sent and not noted; later the consumer is rewound."""
    gate = stage.arm("relayed")
    killed = stage.worker("orders-to-redis")
    stage.place(5)
    assert stage.pid_at(gate, "a message that is sent") == killed.pid
    killed.kill()
    killed.wait()
    stage.worker("orders-to-redis")
    stage.wait_until_passed("orders-to-redis")
    once = relayed(stage.redis)
    stage.site.manage("events", "rewind", "orders-to-redis", "--to", "beginning", "--execute")
    stage.wait_until_passed("orders-to-redis")

    with psycopg.connect(stage.site.url) as connection:
        rows = connection.execute("SELECT partition, 'orders/' || id FROM django_events_event ORDER BY id").fetchall()
    assert relayed(stage.redis) == once == {p: [a for q, a in rows if q == p] for p, _ in rows}


def relayed(redis: Redis) -> dict[int, list[str]]:
    with redis.client() as client:
        return {
            int(name.split(":")[1]): [fields["event"] for _, fields in client.xrange(name)]
            for name in client.keys("orders:*")
        }


def test_a_task_of_django_is_enqueued_once(make_site: MakeSite):
    """A worker is killed between an enqueue and the commit: no task is lost or there twice."""
    pytest.importorskip(
        "django_tasks_db", reason="django-tasks-db is not installed: pip install 'django-events-pg[test]'"
    )
    site = make_site(PAGE)
    site.skip_until("django_tasks_db")
    site.take_files("mysite/settings.py")
    site.take(replaced={} if find_spec("django.tasks") else {"from django.tasks import": "from django_tasks import"})
    site.take(replaced=SHORT_LEASE_OF_TASKS)
    site.take_files("shop/relay.py")
    assert site.all_taken()
    (site.root / "shop/relay.py").unlink()
    site.write("shop/models.py", next(block.code for block in blocks(PAGE) if block.file == "shop/models.py"))
    site.write("shop/models.py", DIES_ONCE, added=True)
    site.migrate()
    site.script(PLACE_FIVE)
    site.manage("run_transfer", "--once")

    site.variables["DIES_ONCE"] = str(site.folder / "died")
    killed = site.start("run_consumer", "invoices", "--skip-checks")
    assert killed.wait(60) == -signal.SIGKILL
    site.start("run_consumer", "invoices", "--skip-checks")
    site.wait_until(lambda: lag(site, "invoices") == 0, what="a consumer that is at the end")
    site.manage("db_worker", "--batch", "--interval", "0")
    assert site.script(COUNT) == "5 5 5\n"
