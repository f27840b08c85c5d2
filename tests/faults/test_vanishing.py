"""A host that loses its power or its network in the middle of something: the server doesn't notice, and others go on.

What it is in the middle of is chosen by the words that it says to the server. The healthy ones are at work from then
on; they are given far less time than TCP takes to give up.
"""

import signal
import subprocess
from collections.abc import Iterator

import pytest

from django_events.log import channel
from tests.faults.consumers.ledger import Ledger
from tests.support.processes import Processes
from tests.support.proxies import SilentProxy

VANISHED_AFTER = 1.5  # seconds
PATIENCE = 30.0  # seconds, for a machine that is busy

MOVING = "pg_notify("  # the heads are locked
FILLING = "FROM django_events_topichead WHERE topic_id ="  # at the end of the log
MAKING = "django_events_make_segment("
DROPPING = "django_events_drop_segment("
READING = "sum(e.weight) OVER"
PUBLISHING = "DELETE FROM django_events_scheduledevent"
ASLEEP = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = %s"
LIMITED = "UPDATE django_events_topic SET retention_events = 100, segment_size = 100"


@pytest.fixture
def settings_module() -> str:
    return "tests.support.fault_settings"


@pytest.fixture
def ledger(processes: Processes) -> Iterator[Ledger]:
    processes.variables |= {"FAULT_FOLDER": str(processes.folder), "VANISHED_AFTER": str(VANISHED_AFTER)}
    ledger = Ledger(processes.url, processes.folder)
    yield ledger
    ledger.close()


@pytest.fixture
def far(processes: Processes) -> Iterator[SilentProxy]:
    """The way of the host that vanishes."""
    proxy = SilentProxy(processes.url)
    yield proxy
    proxy.close()


def start_far(processes: Processes, far: SilentProxy, *command: str) -> subprocess.Popen[str]:
    """A process on the host that vanishes."""
    near, processes.url = processes.url, far.url
    try:
        return processes.start(*command)
    finally:
        processes.url = near


def fill_the_log(processes: Processes, ledger: Ledger) -> None:
    ledger.publish("stock", *range(150))
    assert processes.run("run_transfer", "--once").returncode == 0


def nothing_waits(ledger: Ledger) -> bool:
    return ledger.ask("SELECT FROM django_events_bufferedevent LIMIT 1") == []


def values(ledger: Ledger, topic: str = "stock") -> list[object]:
    query = (
        "SELECT e.value FROM django_events_event e JOIN django_events_topic t ON t.id = e.topic_id"
        " WHERE t.name = %s ORDER BY e.id"
    )
    return [value for (value,) in ledger.ask(query, topic)]


def head_is_free(ledger: Ledger, topic: str) -> bool:
    query = (
        "SELECT FROM django_events_topichead h JOIN django_events_topic t ON t.id = h.topic_id"
        " WHERE t.name = %s FOR UPDATE OF h SKIP LOCKED"
    )
    return ledger.ask(query, topic) != []


def end(processes: Processes, *started: subprocess.Popen[str]) -> None:
    for process in started:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in started] == [0] * len(started), [processes.said(one) for one in started]


@pytest.mark.slow
@pytest.mark.requirement("E4")
def test_in_the_middle_of_a_batch_of_the_transfer(processes: Processes, ledger: Ledger, far: SilentProxy):
    """The heads of its topics are locked, and the statement that moves never arrives; later it does."""
    far.vanish_at(MOVING)
    lost = start_far(processes, far, "run_transfer")
    ledger.publish("stock", 1, 2)
    assert far.vanished.wait(60), processes.said(lost)
    near = processes.start("run_transfer")
    ledger.publish("stock", 3)
    ledger.publish("payments", "others")
    processes.wait_until(lambda: nothing_waits(ledger), seconds=PATIENCE, what="events moved by the other transfer")
    assert values(ledger) == [1, 2, 3]

    far.come_back()
    processes.wait_until(lambda: "failed, next try in" in processes.said(lost), what="the loss in the log")
    ledger.publish("stock", 4)
    processes.wait_until(lambda: nothing_waits(ledger), what="an empty buffer")
    end(processes, near)
    ledger.publish("stock", 5)
    processes.wait_until(lambda: nothing_waits(ledger), what="events moved by who is back")
    end(processes, lost)
    assert values(ledger) == [1, 2, 3, 4, 5]
    assert processes.run("events", "verify").returncode == 0


@pytest.mark.requirement("E4")
@pytest.mark.parametrize(
    "frozen", [pytest.param(False, marks=pytest.mark.slow), True], ids=["its host vanishes", "it is frozen"]
)
def test_in_the_middle_of_filling_a_queue(processes: Processes, ledger: Ledger, far: SilentProxy, frozen: bool):
    """At the end of the log, so that it has the head of the topic, which the transfer needs for the next event."""
    ledger.publish("stock", 1, 2, 3)
    assert processes.run("run_transfer", "--once").returncode == 0
    ledger.tell("DELETE FROM django_events_delivery")
    # Of the one topic: the heads of others, at whose end it would be first, are in the way of no other here.
    ledger.tell(
        "UPDATE django_events_consumer AS c SET live = false, filled_until = 0 FROM django_events_topic AS t"
        " WHERE t.id = c.topic_id AND c.name = 'queued' AND t.name = 'stock'"
    )
    far.vanish_at(FILLING, arrives=True)
    lost = start_far(processes, far, "run_consumer", "queued", "--skip-checks")
    assert far.vanished.wait(60), processes.said(lost)
    processes.wait_until(lambda: not head_is_free(ledger, "stock"), seconds=VANISHED_AFTER, what="a locked head")
    if frozen:  # its network is all right
        lost.send_signal(signal.SIGSTOP)
        far.come_back()
    ledger.publish("stock", 4)
    near = [processes.start("run_transfer"), processes.start("run_consumer", "queued", "--skip-checks")]
    processes.wait_until(
        lambda: [one.id for one in ledger.done("queued")] == [1, 2, 3, 4], seconds=PATIENCE, what="all handled"
    )

    if frozen:
        lost.send_signal(signal.SIGCONT)
    else:
        far.come_back()
    processes.wait_until(lambda: "failed, next try in" in processes.said(lost), what="the loss in the log")
    end(processes, lost, *near)
    assert sorted(one.id for one in ledger.done("queued")) == [1, 2, 3, 4]


@pytest.mark.requirement("S10")
@pytest.mark.parametrize(
    ("step", "words", "arrives"),
    [("segments", MAKING, True), ("retention", DROPPING, False), ("retention", DROPPING, True)],
    ids=["making a segment", "before a segment is dropped", "when a segment is dropped"],
)
def test_in_the_middle_of_a_step_of_maintenance(
    processes: Processes, ledger: Ledger, far: SilentProxy, step: str, words: str, arrives: bool
):
    ledger.tell(LIMITED)
    for table in ("delivery", "position", "consumer"):
        ledger.tell(f"DELETE FROM django_events_{table}")
    fill_the_log(processes, ledger)
    if step == "retention":
        assert processes.run("events", "maintain", "segments").returncode == 0
        fill_the_log(processes, ledger)
    far.vanish_at(words, arrives=arrives)
    lost = start_far(processes, far, "events", "maintain", step)
    assert far.vanished.wait(60), processes.said(lost)
    ledger.publish("stock", "afterwards")
    near = processes.start("run_transfer")
    processes.wait_until(lambda: nothing_waits(ledger), seconds=PATIENCE, what="events moved by the transfer")

    far.come_back()
    assert lost.wait(60) == 75, processes.said(lost)
    end(processes, near)
    assert values(ledger)[-1] == "afterwards"
    ledger.tell("UPDATE django_events_maintenancestep SET leased_until = NULL")
    assert processes.run("events", "maintain", step).returncode == 0
    assert processes.run("events", "verify").returncode == 0


@pytest.mark.requirement("X8", "S8")
@pytest.mark.parametrize("consumer", ["single", "queued"])
@pytest.mark.parametrize(
    "words", ["pg_try_advisory_xact_lock(", "generate_series(1, 90)"], ids=["when it begins", "when it is sent much"]
)
def test_in_the_middle_of_a_handler(processes: Processes, ledger: Ledger, far: SilentProxy, consumer: str, words: str):
    """It may think for as long as its lease is renewed; also where the server can't get rid of an answer."""
    ledger.publish("stock", {"megabytes": 90}, key="one")
    assert processes.run("run_transfer", "--once").returncode == 0
    far.vanish_at(words, arrives=True)
    lost = start_far(processes, far, "run_consumer", consumer, "--skip-checks")
    assert far.vanished.wait(60), processes.said(lost)
    near = processes.start("run_consumer", consumer, "--skip-checks")
    processes.wait_until(lambda: ledger.done(consumer), seconds=PATIENCE, what="the event handled by the other")
    assert [one.pid for one in ledger.done(consumer)] == [near.pid]

    far.come_back()
    processes.wait_until(
        lambda: "lost its lease of " in processes.said(lost) or "failed, next try in" in processes.said(lost),
        what="the loss in the log",
    )
    end(processes, lost, near)
    assert [one.pid for one in ledger.done(consumer)] == [near.pid]


@pytest.mark.slow
@pytest.mark.requirement("E4")
def test_while_it_is_sent_a_batch(processes: Processes, ledger: Ledger, far: SilentProxy):
    """Outside of a transaction: the server's session lets go of its snapshot, and of its lock on a segment."""
    ledger.publish("stock", "x" * 16_000_000)
    assert processes.run("run_transfer", "--once").returncode == 0
    blocked = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
    far.vanish_at(READING, arrives=True)
    lost = start_far(processes, far, "run_consumer", "single", "--skip-checks")
    assert far.vanished.wait(60), processes.said(lost)
    processes.wait_until(lambda: ledger.ask(blocked), what="an answer that is not taken")
    processes.wait_until(lambda: not ledger.ask(blocked), seconds=PATIENCE, what="the end of its session")

    far.come_back()
    processes.wait_until(lambda: ledger.done("single"), seconds=PATIENCE, what="the event handled")
    end(processes, lost)


@pytest.mark.requirement("E4")
def test_asleep_with_the_lock_that_has_publishers_notify(processes: Processes, ledger: Ledger, far: SilentProxy):
    """The other transfer can't have the lock, so it looks by itself."""
    processes.variables["SLEEPS"] = "yes"
    lost = start_far(processes, far, "run_transfer")
    processes.wait_until(lambda: ledger.ask(ASLEEP, channel.ASLEEP & 0xFFFFFFFF), what="a transfer that sleeps")
    far.vanish()
    near = processes.start("run_transfer")
    for n in range(3):
        ledger.publish("stock", n)
        processes.wait_until(lambda: nothing_waits(ledger), seconds=PATIENCE, what="events moved by the other one")

    far.come_back()
    ledger.publish("stock", 3)
    processes.wait_until(lambda: nothing_waits(ledger), what="an empty buffer")
    end(processes, lost, near)
    assert values(ledger) == [0, 1, 2, 3]


@pytest.mark.requirement("E4")
def test_in_the_middle_of_publishing_what_is_due(processes: Processes, ledger: Ledger, far: SilentProxy):
    """One transfer does that at a time, under a lock."""
    far.vanish_at(PUBLISHING, arrives=True)
    lost = start_far(processes, far, "run_transfer")
    due = "INSERT INTO django_events_scheduledevent (topic_id, value, publish_at) SELECT id, %s, now() FROM"
    ledger.tell(f"{due} django_events_topic WHERE name = 'stock'", "1")
    assert far.vanished.wait(60), processes.said(lost)
    near = processes.start("run_transfer")
    processes.wait_until(lambda: values(ledger) == [1], seconds=PATIENCE, what="the event published by the other one")

    far.come_back()
    processes.wait_until(lambda: "failed, next try in" in processes.said(lost), what="the loss in the log")
    end(processes, lost, near)
    assert values(ledger) == [1]


@pytest.mark.requirement("S10")
def test_in_the_middle_of_verifying(processes: Processes, ledger: Ledger, far: SilentProxy):
    """With a snapshot, and a lock on the log that dropping segments waits for."""
    ledger.tell(LIMITED)
    for table in ("delivery", "position", "consumer"):
        ledger.tell(f"DELETE FROM django_events_{table}")
    fill_the_log(processes, ledger)
    assert processes.run("events", "maintain", "segments").returncode == 0
    fill_the_log(processes, ledger)
    [(topic_id,)] = ledger.ask("SELECT id FROM django_events_topic WHERE name = 'stock'")
    far.vanish_at(f'LOCK TABLE "django_events_event_{topic_id}"', arrives=True)
    lost = start_far(processes, far, "events", "verify")
    assert far.vanished.wait(60), processes.said(lost)

    def dropped() -> bool:
        assert processes.run("events", "maintain", "retention").returncode == 0
        return len(values(ledger)) < 300

    processes.wait_until(dropped, seconds=PATIENCE, what="a segment that is dropped")
    far.come_back()
    assert lost.wait(60) == 75, processes.said(lost)
    assert processes.run("events", "verify").returncode == 0
