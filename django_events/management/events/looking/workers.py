"""`manage.py events workers`: which processes have something in hand, and which sessions wait for something to do."""

from typing import Any

from django_events.management.events.subcommand import Subcommand, add_watch
from django_events.management.reporting import Report, table
from django_events.models import Position
from django_events.observing.workers import InHand, SeenProcesses, WaitingSession, look

IDLE = (
    "An idle worker writes nothing, so it is not among these processes: it is one of the sessions that listen, unless "
    "a pooler keeps it from listening."
)
BLIND = "This role sees its own sessions only: GRANT pg_read_all_stats to it."


def workers(using: str, **options: Any) -> Report:
    seen = look(using)
    data = {
        "workers": [one.flat() for one in seen.workers],
        "sessions": [one._asdict() for one in seen.sessions],
        "maintenance": [one._asdict() for one in seen.maintainers],
        "sees_all": seen.sees_all,
    }
    return Report(data, "\n\n".join([_in_hand(seen), _sessions(seen), _maintenance(seen)]))


def _in_hand(seen: SeenProcesses) -> str:
    columns = ["host", "pid", "thread", "consumer", "in hand", "since", "lease until", "last sign of life"]
    cells = [
        (w.host, w.pid, o.thread, o.consumer, what(o), o.since, f"{'over, ' if o.lost else ''}{_time(o)}", w.seen_at)
        for w in seen.workers
        for o in w.in_hand
    ]
    return table(columns, cells) if cells else "No worker has anything in hand."


def _time(one: InHand) -> str:
    return f"{one.leased_until:%Y-%m-%d %H:%M:%SZ}"


def what(one: InHand) -> str:
    """`orders/1042`, `orders/1042 and 9 more`, `orders/1042, partition 3`."""
    event = f"{one.topic}/{one.event}" if one.event is not None else one.topic
    if one.events is not None and one.events > 1:
        return f"{event} and {one.events - 1:,} more"
    return event if one.partition == Position.ALL else f"{event}, partition {one.partition}"


def _sessions(seen: SeenProcesses) -> str:
    columns = ["session", "role", "application", "address", "since", "what it is"]
    cells = [(str(o.pid), o.role, o.application, o.address, o.since, _called(o)) for o in seen.sessions]
    parts = [table(columns, cells) if cells else "No session waits to be woken.", IDLE]
    return "\n\n".join(parts if seen.sees_all else [*parts, BLIND])


def _called(one: WaitingSession) -> str:
    return "a transfer that sleeps" if one.what == "transfer" else "listens: a worker, or a transfer that is awake"


def _maintenance(seen: SeenProcesses) -> str:
    cells = [(one.holder, one.at, ", ".join(one.steps)) for one in seen.maintainers]
    return table(["maintenance by", "began at", "steps"], cells) if cells else "No maintenance was ever run."


WORKERS = Subcommand(
    name="workers",
    help="The processes that work, and what they have in hand.",
    report=workers,
    arguments=add_watch,
    several=True,
)
