"""An operator for tests that kill things: it pauses, resumes, skips, replays and redefines consumers until SIGTERM.

Each line of its journal is a verb that was done, refused, or whose end is unknown, because the connection was lost. A
second form tidies up: everything goes on, and all dead letters are handled again.
"""

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import django
from django.db import DatabaseError, InterfaceError, connection

django.setup()

from django_events import declarations  # noqa: E402
from django_events.consuming.registration import register  # noqa: E402
from django_events.exceptions import Refused  # noqa: E402
from django_events.models import Consumer, DeadLetter, Event, Position  # noqa: E402
from django_events.operations import pause, redrive, replay, resume, retry_now, skip  # noqa: E402
from django_events.workers.stopping import stop_on_signals  # noqa: E402

TOPICS = ["orders", "payments", "stock"]
AT_MOST = timedelta(seconds=1)  # to wait for a worker


def pauses(dice: random.Random, consumer: str, topic: str) -> dict[str, Any]:
    pause(consumer, topic=topic)
    return {}


def resumes(dice: random.Random, consumer: str, topic: str) -> dict[str, Any]:
    resume(consumer, topic=topic)
    return {}


def tries_again(dice: random.Random, consumer: str, topic: str) -> dict[str, Any]:
    retry_now(consumer, topic=topic)
    return {}


def skips(dice: random.Random, consumer: str, topic: str) -> dict[str, Any]:
    row = Consumer.objects.select_related("topic").get(name=consumer, topic__name=topic)
    if row.mode == "queue":
        ids = list(row.deliveries.order_by("event_id").values_list("event_id", flat=True)[:20])
    else:
        position: Position = dice.choice(list(row.positions.all()))
        events = Event.objects.since(topic, position.position)
        if position.partition >= 0:
            events = events.filter(partition=position.partition)
        ids = list(events.values_list("id", flat=True)[:1])
    if not ids:
        return {}
    id = dice.choice(ids)
    try:
        skip(consumer, id, topic=topic, reason="trying", wait=AT_MOST)
    finally:
        asked["skipped"] = f"{topic}/{id}"
    return {}


def replays(dice: random.Random, consumer: str, topic: str) -> dict[str, Any]:
    last = Event.objects.peek(topic, limit=1).values_list("id", flat=True).first()
    if last is None:
        return {}
    id = dice.randint(max(last - 50, 1), last)
    asked["replayed"] = f"{topic}/{id}"
    return {"again": replay(consumer, topic=topic, ids=[id], reason="trying").events}


def handles_dead_letters_again(dice: random.Random, consumer: str, topic: str) -> dict[str, Any]:
    redrive(DeadLetter.objects.filter(consumer__name=consumer, consumer__topic__name=topic))
    return {}


def redefines(dice: random.Random, consumer: str, topic: str) -> dict[str, Any]:
    """As `migrate` after a deployment does it."""
    declared = declarations.consumers.get(consumer)
    if declared.mode == "queue":
        declared = replace(
            declared,
            delay=dice.choice([None, timedelta(milliseconds=20)]),
            max_pending=dice.choice([None, 50]),
            history=dice.choice([None, timedelta(days=1)]),
        )
    register("default", declared)
    return {}


VERBS: list[Callable[[random.Random, str, str], dict[str, Any]]] = [
    pauses,
    resumes,
    resumes,
    tries_again,
    skips,
    replays,
    handles_dead_letters_again,
    redefines,
]
asked: dict[str, str] = {}  # what a verb was about, also if it is cut off


def meddle(name: str, journal_path: str, *consumers: str) -> None:
    dice = random.Random(name)
    with stop_on_signals() as stop, Path(journal_path).open("a", buffering=1) as journal:
        while not stop.requested:
            verb, consumer, topic = dice.choice(VERBS), dice.choice(consumers), dice.choice(TOPICS)
            asked.clear()
            more: dict[str, Any] = {}
            try:
                more = verb(dice, consumer, topic)
                outcome = "done"
            except Refused:
                outcome = "refused"
            except (DatabaseError, InterfaceError) as error:
                connection.close()
                outcome, more = "unknown", {"error": str(error)}
            said = {"verb": verb.__name__, "consumer": consumer, "topic": topic, "outcome": outcome, **asked, **more}
            journal.write(json.dumps(said) + "\n")
            stop.wait(dice.random() / 20)


def tidy(*consumers: str) -> None:
    for consumer in consumers:
        resume(consumer)
        redrive(DeadLetter.objects.filter(consumer__name=consumer))


if __name__ == "__main__":
    {"meddle": meddle, "tidy": tidy}[sys.argv[1]](*sys.argv[2:])
