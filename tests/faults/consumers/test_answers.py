"""The answer to a COMMIT is cut at each of its bytes: what was committed counts once, and everything goes on.

A pooler may also answer, and say then that its connection is gone: such an answer is a lost one like the others.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from django.db import DatabaseError, InterfaceError, connections, transaction

from django_events import Backoff, BufferedWriter, declarations, publish, sql
from django_events.publishing import writer_threads
from django_events.workers import loop
from django_events.workers.consuming import ConsumerPool
from django_events.workers.listening import Listener
from django_events.workers.stopping import Stop
from django_events.workers.transferring import TransferWorker
from testproject.shop.models import Order
from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger, check_effects
from tests.support.fix_consumers import positions, written
from tests.support.fix_topics import assert_dense, log_values, transfer_all
from tests.support.processes import Processes, wait_until
from tests.support.proxies import ANSWER, CUTS_OF_ANSWER, ByteProxy, Cut, wired

pytestmark = [pytest.mark.requirement("X8", "P13")]

# What each says between BEGIN and the COMMIT that matters.
PUBLISHED = b"django_events_publish"
MARKED = b"django_events.writer/"
MOVED = b"DELETE FROM django_events_bufferedevent"
HANDLED = b"UPDATE django_events_position"
SETTLED = b"DELETE FROM django_events_delivery"


@pytest.fixture
def proxy(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ByteProxy]:
    """The alias "wired" of the test's database, whose answers may be cut."""
    monkeypatch.setattr(loop, "LONGEST_RETRY", 0.01)
    with wired(ByteProxy) as proxy:
        yield proxy


@contextmanager
def in_background(run: Callable[[Stop], Any]) -> Iterator[None]:
    """Until the block ends; an error that ended it is raised."""
    errors: list[BaseException] = []
    with closing(Stop()) as stop:

        def target() -> None:
            try:
                run(stop)
            except BaseException as error:
                errors.append(error)
            finally:
                connections.close_all()

        thread = threading.Thread(target=target)
        thread.start()
        try:
            yield
        finally:
            stop.request()
            thread.join()
    if errors:
        raise errors[0]


@pytest.mark.quick
def test_a_publisher(proxy: ByteProxy, things: declarations.DeclaredTopic):
    """It learns that the connection is lost, and what it committed is there once."""
    for place, cut in enumerate(CUTS_OF_ANSWER):
        proxy.cut(cut, behind=PUBLISHED)
        try:
            with transaction.atomic("wired"):
                publish(things, place, using="wired")
        except (DatabaseError, InterfaceError) as error:
            assert sql.kind_of(error) is sql.ErrorKind.LOST, (str(cut), error)
        else:
            assert cut.at == len(ANSWER), str(cut)
        assert proxy.done.wait(60), str(cut)
        connections["wired"].close()
    transfer_all()

    assert log_values(things) == [*range(len(CUTS_OF_ANSWER))]


@pytest.mark.slow
def test_a_buffered_writer(proxy: ByteProxy, things: declarations.DeclaredTopic, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer_threads, "PAUSES", Backoff(base=timedelta(milliseconds=5)))
    with BufferedWriter(things, using="wired") as writer:
        for place, cut in enumerate(CUTS_OF_ANSWER):
            proxy.cut(cut, behind=MARKED)
            future = writer.publish(place)
            writer.flush()
            assert future.result(60) is True
            assert proxy.done.wait(60), str(cut)
    transfer_all()

    assert log_values(things) == [*range(len(CUTS_OF_ANSWER))]


@pytest.mark.slow
def test_a_transfer(proxy: ByteProxy, things: declarations.DeclaredTopic):
    with closing(Listener("wired")) as listener, closing(TransferWorker("wired", listener)) as worker:
        with in_background(lambda stop: loop.run(worker, stop)):
            publish(things, "reached")
            wait_until(lambda: log_values(things) == ["reached"], what="a transfer at work")
            for place, cut in enumerate(CUTS_OF_ANSWER):
                proxy.cut(cut, behind=MOVED)
                publish(things, place)
                assert proxy.done.wait(60), str(cut)
        transfer_all()

    assert log_values(things) == ["reached", *range(len(CUTS_OF_ANSWER))]
    assert_dense(things)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("behind", "options"),
    [
        (HANDLED, {}),
        (HANDLED, {"batch_size": 10}),
        (HANDLED, {"transactional": False}),
        (SETTLED, {"mode": "queue"}),
        (SETTLED, {"mode": "queue", "ordered": True, "transactional": False}),
    ],
    ids=["stream", "batches", "outside", "queue", "queue outside"],
)
@pytest.mark.few(2)
def test_a_worker(
    proxy: ByteProxy,
    things: declarations.DeclaredTopic,
    shelf: Any,
    make_consumer: Any,
    behind: bytes,
    options: dict[str, Any],
):
    def handle(events: Any) -> None:
        for event in events if isinstance(events, list) else [events]:
            Order.objects.using("wired").create(customer=str(event.value), product=shelf, quantity=1, total=1)

    reader = make_consumer(things, handler=handle, retry=Backoff(attempts=1), **options)
    with (
        closing(Listener("wired")) as listener,
        closing(ConsumerPool("wired", [reader], listener=listener)) as pool,
        in_background(pool.run),
    ):
        for place, cut in enumerate(CUTS_OF_ANSWER):
            proxy.cut(cut, behind=behind)
            publish(things, place)
            transfer_all()
            assert proxy.done.wait(60), str(cut)
            wait_until(lambda: written()[place:] == [str(place)], what=f"the effect of what was cut after {cut}")
        publish(things, "last")
        transfer_all()
        wait_until(lambda: written()[-1] == "last", what="a worker that goes on")

    assert written() == [*map(str, range(len(CUTS_OF_ANSWER))), "last"]
    assert [position.failed for position in positions(reader)] == [0]


def test_real_processes(processes: Processes, ledger: Ledger):
    """A transfer and a worker of a stream and a queue, whose answers are cut in turn; none of them ends."""
    direct = urlsplit(processes.url)
    processes.variables |= {"ASIDE_PORT": str(direct.port), "ASIDE_PASSWORD": unquote(direct.password or "")}
    with closing(ByteProxy(processes.url)) as proxy:
        processes.url = proxy.url
        transfer = processes.start("run_transfer")
        fleet = Fleet(processes, ledger, "single", "in_order_batched")
        worker = fleet.start()
        fleet.wait_until_ready()
        cuts = [Cut(0), Cut(5), Cut(12), Cut(12, error=True), Cut(15), Cut(len(ANSWER))]
        for place, (cut, behind) in enumerate((cut, behind) for cut in cuts for behind in (MOVED, HANDLED, SETTLED)):
            proxy.cut(cut, behind=behind)
            ledger.publish("stock", place)
            processes.wait_until(proxy.done.is_set, what=f"the cut {cut} behind {behind!r}")
        fleet.wait_until_handled()
        assert (transfer.poll(), worker.poll()) == (None, None)
        fleet.stop()
        transfer.terminate()
        assert transfer.wait(60) == 0

    processes.url = direct.geturl()
    with psycopg.connect(processes.url) as session:
        rows = session.execute(
            "SELECT value FROM django_events_event WHERE topic_id ="
            " (SELECT id FROM django_events_topic WHERE name = 'stock') ORDER BY id"
        ).fetchall()
    assert [value for (value,) in rows] == [*range(3 * len(cuts))]
    check_effects(ledger, ["single", "in_order_batched"])
    assert ledger.ask("SELECT sum(failed) FROM django_events_position") == [(0,)]
    assert processes.run("events", "verify").returncode == 0
