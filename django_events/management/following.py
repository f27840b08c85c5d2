"""Events of a topic as they come into its log, until Ctrl-C, also while the database is away.

follow(command, "default", topic="orders", since=1042, start=None, chosen=Chosen(["order.*"]), limit=None,
       as_json=True)
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections

from django_events import sql
from django_events.consuming import log_positions
from django_events.exceptions import Invalid
from django_events.log import channel
from django_events.log.inventory import existing
from django_events.management.databases import explained
from django_events.management.events.looking.peeking import event_data
from django_events.management.events.payloads import content, event_line, payload_data, shown
from django_events.management.events.subcommand import wrong_usage
from django_events.management.reporting import Report, is_output_closed, output_pipe, show
from django_events.masking import hides
from django_events.matching import condition
from django_events.models import Event, Topic
from django_events.phrases import moment
from django_events.statements import Statement, log_table
from django_events.workers.listening import Listener
from django_events.workers.loop import Exit
from django_events.workers.stopping import Stop, stop_on_signals
from django_events.workers.wakeup_flag import WakeupFlag

SQL = sql.beside(__name__)

PORTION = 100  # ids that a look reads
PAUSE = 2.0  # seconds, while the database is away


class Chosen(NamedTuple):
    """Which events are shown."""

    types: Sequence[str] | None = None
    keys: None = None  # patterns, as filters of consumers have them; here a key is itself
    where: str | None = None
    key: str | None = None
    partition: int | None = None

    metadata: None = None  # filters of consumers have more
    vars: None = None


class Look(NamedTuple):
    """What a look has found: the events, up to which id it has read, and what it has to say."""

    events: list[Event]
    position: int
    note: str = ""


def follow(
    command: BaseCommand,
    using: str,
    *,
    topic: str,
    since: int | None,
    start: datetime | None,
    chosen: Chosen,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print what comes, a line for each event; it ends on Ctrl-C, after `limit` events, or when nothing reads it.

    A database that can't be reached at the start is an error; one that goes away is said, and asked again.
    """
    with explained(using):
        row = existing(using, topic)
        position = log_positions.find(using, row, start or "end") - 1 if since is None else since
        if chosen.where is not None:
            _holds(using, chosen.where, "null")  # a predicate that PostgreSQL doesn't take is refused at once
    with stop_on_signals() as stop, closing(Listener(using)) as listener, closing(WakeupFlag()) as flag:
        listener.on(channel.LOG, lambda payload: flag.set() if _concerns(payload, row.pk) else None)
        listener.start()
        while not stop.requested:
            flag.consume()
            try:
                with explained(using):
                    seen = look(using, row, position, chosen)
            except CommandError as error:
                if error.returncode != Exit.UNREACHABLE:
                    raise
                connections[using].close()
                command.stderr.write(f"{_now()} {error} Trying again every {PAUSE:g} s, behind {topic}/{position}.")
                stop.wait(PAUSE)
                continue
            if seen.note:
                command.stderr.write(f"{_now()} {seen.note}")
            found = seen.events if limit is None else seen.events[:limit]
            if found and not show(command, Report(None, _lines(command, row, found, as_json=as_json)), as_json=False):
                return
            if limit is not None and (limit := limit - len(found)) == 0:
                return
            if seen.position == position and _is_closed(stop, flag, listener.pause):
                return
            position = seen.position


def follow_log(
    command: BaseCommand,
    using: str,
    *,
    topic: str,
    since: int | None,
    start: datetime | None,
    end: datetime | None,
    at: int | None,
    partition: int | None,
    key: str | None,
    type: str | None,
    where: str | None,
    limit: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """The same by the options of `events peek`."""
    if end is not None or at is not None:
        raise wrong_usage("--follow has no end, so neither --to nor --at goes with it.")
    if since is not None and start is not None:
        raise wrong_usage("--since is an id, and --from is a time: say one of them.")
    chosen = Chosen(None if type is None else [type], None, where, key, partition)
    follow(command, using, topic=topic, since=since, start=start, chosen=chosen, limit=limit, as_json=as_json)


def look(using: str, row: Topic, position: int, chosen: Chosen) -> Look:
    """The next events behind a position, as far as one look reads; what has expired before it was read is said."""
    now = existing(using, row.name)
    if now.pk != row.pk:
        raise Invalid(f"Topic {row} was removed and made again: its ids have begun anew.")
    with sql.committed(using):  # the log's segments can't be dropped before its end
        statement = SQL.ids_behind.on(
            log=log_table(row.pk), topic_id=row.pk, position=position, limit=PORTION, match=_condition(chosen)
        )
        with _explaining(chosen.where):
            ids = sql.fetch(using, statement, partition=chosen.partition, key=chosen.key)
        fitting = [one for one, fits in ids if fits]
        events = list(shown(Event.objects.using(using).of(row.name).filter(id__in=fitting).order_by("id")))
        events = _visible(using, events, chosen)
    first = ids[0][0] if ids else max(now.head.id_floor, position) + 1
    end = ids[-1][0] if ids else first - 1
    gone = first - 1 if position >= now.head.compacted_until else now.head.id_floor  # the rest of a gap is compacted
    if gone > position:
        return Look(events, end, _expired(row, position + 1, gone))
    return Look(events, end)


def _condition(chosen: Chosen) -> Statement:
    """With masked fields the predicate is tried on what is shown: else it would tell what they have in them."""
    return condition(chosen._replace(where=None) if hides() else chosen)


def _visible(using: str, events: list[Event], chosen: Chosen) -> list[Event]:
    if chosen.where is None or not hides():
        return events
    data = [(event, payload_data(event)) for event in events]
    # What can't be read is shown nowhere, and a body is no value.
    readable = [(event, one) for event, one in data if event.value_bytes is not None and not one["unreadable"]]  # type: ignore[attr-defined]  # annotated
    return [event for event, one in readable if _holds(using, chosen.where, json.dumps(one["value"]))]


def _holds(using: str, where: str, value: str) -> bool:
    with _explaining(where):
        return bool(sql.fetch(using, sql.shared.holds, value=value, where=where)[0][0])


@contextmanager
def _explaining(where: str | None) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        if where is None or not (sql.kind_of(error).of_data or sql.kind_of(error) is sql.ErrorKind.OTHER):
            raise
        raise Invalid(f"where={where!r} can't be used: {sql.said(error).splitlines()[0]}.") from error


def _expired(row: Topic, first: int, last: int) -> str:
    what = f"{row}/{first} has" if first == last else f"{row}/{first} to {row}/{last} have"
    return f"{what} expired before this could read them. Going on behind them."


def _lines(command: BaseCommand, row: Topic, events: Sequence[Event], *, as_json: bool) -> str:
    if as_json:
        return "\n".join(Report(event_data(row, one), "").as_json(indent=None) for one in events)
    return "\n".join(event_line(command, f"{row}/{one.id}", one, content(one)) for one in events)


def _concerns(payload: str, topic_id: int) -> bool:
    news = channel.read(payload)
    return news.everywhere or topic_id in news.topic_ids or topic_id in {one for one, _ in news.partitions}


def _is_closed(stop: Stop, flag: WakeupFlag, seconds: float) -> bool:
    """Wait for news, and return whether what reads our output has gone, as `head` has after some lines."""
    stop.wait(seconds, flag.fileno(), *output_pipe())
    return is_output_closed()


def _now() -> str:
    return moment(datetime.now(UTC))
