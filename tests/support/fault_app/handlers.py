"""Handlers that leave traces, and do what the event tells them.

An event's value may say, beside anything else: `shelf` to change the row that others change too, `megabytes` to be
answered with so many, `gate` to wait there, and `do` for one of `DEEDS`, which few processes or their connections
survive, or `at last` for one at the end.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from django_events import publish
from django_events.received import ReceivedEvent
from tests.support.fault_app.files import Gate, Journal
from tests.support.fault_app.models import Effect, Shelf, Spell

FOLDER = Path(os.environ.get("FAULT_FOLDER", "."))


def write(event: ReceivedEvent) -> None:
    write_all([event])


def write_all(events: Sequence[ReceivedEvent]) -> None:
    """For transactional consumers: what is written here is committed with the progress."""
    with in_hand(events):
        for event in events:
            obey(event)
            write_effect(event)
    obey_at_last(events)


def write_effect(event: ReceivedEvent) -> None:
    Effect.objects.create(
        consumer=event.consumer,
        topic=event.topic,
        event_id=event.id,
        partition=event.partition,
        key=event.key,
        value=event.value,
        attempt=event.attempt,
        pid=os.getpid(),
    )


def write_bare(event: ReceivedEvent) -> None:
    """Commits nothing aside, which would also put on disk what was committed before."""
    obey(event)
    write_effect(event)


def write_and_publish(event: ReceivedEvent) -> None:
    write_all([event])
    publish("echoes", event.address)


def deliver(event: ReceivedEvent) -> None:
    deliver_all([event])


def deliver_all(events: Sequence[ReceivedEvent]) -> None:
    """For the others: what is delivered can't be taken back."""
    with in_hand(events):
        for event in events:
            obey(event)
            Journal(FOLDER).write(
                consumer=event.consumer,
                topic=event.topic,
                id=event.id,
                partition=event.partition,
                key=event.key,
                attempt=event.attempt,
                pid=os.getpid(),
            )
    obey_at_last(events)


async def write_async(event: ReceivedEvent) -> None:
    """What is done at last is done in the thread of the loop, or, with "deed", in that of the ORM."""
    await sync_to_async(write_effect)(event)
    if isinstance(event.value, dict) and "deed" in event.value:
        await sync_to_async(DEEDS[event.value["deed"]])()
    obey_at_last([event])


@contextmanager
def in_hand(events: Sequence[ReceivedEvent]) -> Iterator[None]:
    first, spells = events[0], Spell.objects.using("aside")
    spell = spells.create(consumer=first.consumer, topic=first.topic, partition=first.partition, pid=os.getpid())
    try:
        yield
    finally:
        spells.filter(pk=spell.pk).update(ended_at=Now())


def obey(event: ReceivedEvent) -> None:
    told = event.value if isinstance(event.value, dict) else {}
    if "shelf" in told:
        Shelf.objects.filter(pk=told["shelf"]).update(taken=F("taken") + 1)
    if "megabytes" in told:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT repeat('x', 1000000) FROM generate_series(1, {told['megabytes']:d})")
    if "gate" in told:
        Gate(FOLDER, f"{event.consumer}-{told['gate']}").pass_through()
    if "do" in told:
        DEEDS[told["do"]]()


def obey_at_last(events: Sequence[ReceivedEvent]) -> None:
    """What a handler does when nothing else is left to do, so that a child does nothing else either."""
    process = os.getpid()
    for event in events:
        if os.getpid() == process and isinstance(event.value, dict) and "at last" in event.value:
            DEEDS[event.value["at last"]]()


def loop_for_ever() -> None:
    while True:
        pass


def end_own_backend() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def crash_the_server() -> None:
    connection.ensure_connection()
    os.kill(connection.connection.info.backend_pid, signal.SIGKILL)
    connection.connection.execute("SELECT 1")


def crash_the_server_and_exit() -> None:
    with suppress(psycopg.OperationalError):
        crash_the_server()
    os._exit(3)


def fork(end: Callable[[], object]) -> None:
    """The child writes its pid and ends in its own way; the parent waits for it."""
    if (pid := os.fork()) == 0:
        with (FOLDER / "children").open("a") as children:
            children.write(f"{os.getpid()}\n")
        end()
        return
    _, status = os.waitpid(pid, 0)
    with (FOLDER / "codes").open("a") as codes:
        codes.write(f"{os.waitstatus_to_exitcode(status)}\n")


def fail() -> None:
    raise ValueError("in a child")


def fork_after_the_commit() -> None:
    transaction.on_commit(lambda: fork(lambda: None))


def fork_by_multiprocessing() -> None:
    child = multiprocessing.get_context("fork").Process(target=os.getpid)
    child.start()
    child.join()
    assert child.exitcode == 0


def prepare_the_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("PREPARE TRANSACTION 'by a handler'")


DEEDS: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "loop": loop_for_ever,
    "end backend": end_own_backend,
    "crash the server": crash_the_server,
    "prepare": prepare_the_transaction,
    "fork": lambda: fork(lambda: None),
    "fork and exit": lambda: fork(lambda: sys.exit(7)),
    "fork and fail": lambda: fork(fail),
    "fork and really exit": lambda: fork(lambda: os._exit(5)),
    "fork after the commit": fork_after_the_commit,
    "multiprocessing": fork_by_multiprocessing,
    "crash the server and exit": crash_the_server_and_exit,
}
