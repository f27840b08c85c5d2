"""What the handlers of `tests.support.fault_app` did, compared with the log."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.support.fault_app.files import Gate, Journal
from tests.support.processes import wait_until

ONCE = ["single", "batched", "whole", "kept", "queued", "in_order", "in_order_batched"]
AT_LEAST_ONCE = ["outside", "outside_batched", "queued_outside"]
EVERY = [*ONCE, *AT_LEAST_ONCE]


class Done(NamedTuple):
    """An event that a handler was through with: an effect in the database, or a delivery to the world."""

    consumer: str
    topic: str
    id: int
    partition: int
    key: str | None
    attempt: int
    pid: int

    @property
    def address(self) -> str:
        return f"{self.topic}/{self.id}"


class Ledger:
    """Reads what publishers and handlers left, in the database and in files beside it."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._connection: psycopg.Connection[Any] | None = None

    def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a query, on a new connection if the server has ended the last one: as soon as it takes one again."""
        if self._connection is not None:
            with suppress(psycopg.OperationalError):
                return self._connection.execute(query, parameters).fetchall()
            self._connection.close()
        self._connection = wait_until(self._connect, what="a server that can be reached")
        return self._connection.execute(query, parameters).fetchall()

    def _connect(self) -> psycopg.Connection[Any] | None:
        with suppress(psycopg.OperationalError):
            return psycopg.connect(self._url, autocommit=True, application_name="ledger")
        return None

    def tell(self, query: str, *parameters: Any) -> None:
        """Run a statement that answers nothing."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(query, parameters)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def publish(self, topic: str, *values: object, key: str | None = None, partition: int | None = None) -> None:
        """Publish values in their order, in one transaction."""
        with psycopg.connect(self._url) as connection:
            for value in values:
                connection.execute(
                    "SELECT django_events_publish(%s, %s, key => %s, partition => %s)",
                    [topic, json.dumps(value), key, partition],
                )

    def gate(self, consumer: str, name: str) -> Gate:
        """The place where a handler waits when an event says `{"gate": name}`."""
        return Gate(self._folder, f"{consumer}-{name}")

    def done(self, consumer: str) -> list[Done]:
        """What a consumer did, in the order in which it did it."""
        if not is_transactional(consumer):
            return [Done(**fields) for fields in Journal(self._folder).read() if fields["consumer"] == consumer]
        rows = self.ask(
            "SELECT consumer, topic, event_id, partition, key, attempt, pid FROM fault_app_effect"
            " WHERE consumer = %s ORDER BY id",
            consumer,
        )
        return [Done(*row) for row in rows]

    def spells(self, pid: int | None = None) -> int:
        """How often handlers were called until now, in all processes or in one."""
        [(count,)] = self.ask("SELECT count(*) FROM fault_app_spell WHERE pid = %s OR %s::int IS NULL", pid, pid)
        return int(count)

    def passed(self) -> int:
        """How far all consumers are, all together."""
        [(total,)] = self.ask(
            "SELECT (SELECT sum(position) FROM django_events_position) + (SELECT count(*) FROM fault_app_spell)"
        )
        return int(total)

    def clock(self) -> datetime:
        [(now,)] = self.ask("SELECT clock_timestamp()")
        return now  # type: ignore[no-any-return]

    def all_handled(self, consumers: Iterable[str]) -> bool:
        """Whether nothing is in the buffer, and consumers have passed all that is in the log."""
        [(left,)] = self.ask(
            "SELECT EXISTS (SELECT FROM django_events_bufferedevent) OR EXISTS ("
            " SELECT FROM django_events_consumer c JOIN django_events_position p ON p.consumer_id = c.id"
            " JOIN django_events_event e ON e.topic_id = c.topic_id AND p.partition IN (-1, e.partition)"
            " WHERE c.name = ANY(%s) AND c.mode = 'stream' AND e.id > p.position) OR EXISTS ("
            " SELECT FROM django_events_consumer c WHERE c.name = ANY(%s) AND c.mode = 'queue' AND (NOT c.live"
            " OR EXISTS (SELECT FROM django_events_delivery d WHERE d.consumer_id = c.id)))",
            list(consumers),
            list(consumers),
        )
        return not left


def is_transactional(consumer: str) -> bool:
    """Those with another name for it can't take back what they did."""
    return "outside" not in consumer


def check_effects(ledger: Ledger, consumers: Collection[str], *, dead: Collection[str] = ()) -> None:
    """Compare what consumers did with the log, when all is handled and all workers have ended.

    Each event that is for a consumer was handled: once by transactional ones, and by any not for the first time after
    a later one of its partition, or of its key in an ordered queue. Positions are at the end of the log, no delivery
    is left, nothing is leased, and dead letters are the addresses in `dead`, for each of the consumers.
    """
    for consumer in consumers:
        done = ledger.done(consumer)
        lanes = lanes_of(ledger, consumer)
        wanted = lanes.keys() - set(dead)
        first = dict.fromkeys(one.address for one in done)
        assert not wanted - first.keys(), f"{consumer} lost {sorted(wanted - first.keys())[:5]}"
        assert not first.keys() - wanted, f"{consumer} was not to get {sorted(first.keys() - wanted)[:5]}"
        if is_transactional(consumer):
            times = Counter(one.address for one in done)
            twice = [one for one in done if times[one.address] > 1]
            assert not twice, f"{consumer} did something twice: {twice[:20]}"
        newest: dict[str, int] = {}
        for address in first:
            id, lane = int(address.rpartition("/")[2]), lanes[address]
            if lane is None:
                continue
            assert id > newest.get(lane, 0), f"{consumer} handled {address} after {newest[lane]} of {lane}"
            newest[lane] = id
        _check_positions(ledger, consumer, handled=len(wanted))
        _check_outcomes(ledger, consumer, handled=sorted(wanted), dead=sorted(dead))
    rows = ledger.ask(
        "SELECT c.name, t.name || '/' || d.event_id FROM django_events_deadletter d"
        " JOIN django_events_consumer c ON c.id = d.consumer_id JOIN django_events_topic t ON t.id = c.topic_id"
    )
    assert sorted(rows) == sorted((consumer, address) for consumer in consumers for address in dead)


def _check_outcomes(ledger: Ledger, consumer: str, *, handled: list[str], dead: list[str]) -> None:
    """Where its outcomes are published, each event has one that is its last."""
    if not ledger.ask("SELECT FROM django_events_consumer WHERE name = %s AND outcomes IS NOT NULL", consumer):
        return
    told = ledger.ask(
        "SELECT e.key, e.type FROM django_events_event e JOIN django_events_consumer c ON c.name = %s"
        " JOIN django_events_topic t ON t.name = c.outcomes AND t.id = e.topic_id"
        " JOIN django_events_topic of ON of.id = c.topic_id AND of.name = e.value ->> 'topic'"
        " WHERE e.value ->> 'consumer' = c.name AND e.type <> 'failed'",
        consumer,
    )
    assert sorted(told) == sorted([*((one, "handled") for one in handled), *((one, "dead") for one in dead)])


def lanes_of(ledger: Ledger, consumer: str) -> dict[str, str | None]:
    """The addresses of the events that are for a consumer, each with the lane in which it keeps their order, if any."""
    rows = ledger.ask(
        "SELECT t.name, e.id, CASE WHEN c.mode = 'queue' THEN CASE WHEN c.ordered THEN 'key ' || e.key END"
        " WHEN c.partitioned THEN 'partition ' || e.partition ELSE 'all' END"
        " FROM django_events_consumer c JOIN django_events_topic t ON t.id = c.topic_id"
        " JOIN django_events_event e ON e.topic_id = t.id"
        " WHERE c.name = %s AND (c.types = 'null' OR c.types IS NULL OR c.types ? e.type) ORDER BY t.name, e.id",
        consumer,
    )
    return {f"{topic}/{id}": None if lane is None else f"{topic}, {lane}" for topic, id, lane in rows}


def _check_positions(ledger: Ledger, consumer: str, *, handled: int) -> None:
    if ledger.ask("SELECT DISTINCT mode FROM django_events_consumer WHERE name = %s", consumer) == [("queue",)]:
        for table in ("delivery", "deliverylease"):
            left = ledger.ask(
                f"SELECT count(*) FROM django_events_{table} WHERE consumer_id IN"
                " (SELECT id FROM django_events_consumer WHERE name = %s)",
                consumer,
            )
            assert left == [(0,)], f"{consumer} has {left[0][0]} rows in {table}"
        return
    # A worker that didn't hear of its last commit has given the lease up, and no other had to take it over.
    rows = ledger.ask(
        "SELECT t.name || ', partition ' || p.partition, p.position, p.number, p.handled,"
        " CASE WHEN p.leased_until > clock_timestamp() THEN p.token END, p.retry_at, p.stopped_at, p.attempts,"
        " coalesce(last.id, 0), coalesce(last.number, 0)"
        " FROM django_events_consumer c JOIN django_events_position p ON p.consumer_id = c.id"
        " JOIN django_events_topic t ON t.id = c.topic_id LEFT JOIN LATERAL ("
        "  SELECT e.id, CASE WHEN p.partition = -1 THEN e.id ELSE e.number END AS number FROM django_events_event e"
        "  WHERE e.topic_id = t.id AND p.partition IN (-1, e.partition) ORDER BY e.id DESC LIMIT 1"
        " ) AS last ON true WHERE c.name = %s",
        consumer,
    )
    for lane, position, number, _, token, retry_at, stopped_at, attempts, last_id, last_number in rows:
        assert position >= last_id, f"{consumer} is behind the log in {lane}"
        assert number == last_number, f"{consumer} counts {number} of {last_number} events in {lane}"
        at_rest = (token, retry_at, stopped_at, attempts)
        assert at_rest == (None, None, None, 0), f"{consumer} is not at rest in {lane}: {at_rest}"
    assert sum(row[3] for row in rows) == handled, f"{consumer} counts another number of handled events"


def check_holders(ledger: Ledger, killed_at: Mapping[int, datetime] = {}) -> int:
    """At no time did two have events of one partition of a consumer in hand; returns how many hand-overs there were.

    What a killed process had in hand it had until then, or a moment longer.
    """
    rows = ledger.ask(
        "SELECT s.consumer, s.topic, CASE WHEN c.partitioned THEN s.partition ELSE -1 END AS lane, s.began_at,"
        " s.ended_at, s.pid"
        " FROM fault_app_spell s JOIN django_events_topic t ON t.name = s.topic"
        " JOIN django_events_consumer c ON c.name = s.consumer AND c.topic_id = t.id AND c.mode = 'stream'"
        " ORDER BY s.consumer, s.topic, lane, s.began_at, s.id"
    )
    until: dict[tuple[str, str, int], tuple[datetime, int]] = {}
    hand_overs = 0
    for consumer, topic, partition, began_at, ended_at, pid in rows:
        lane = (consumer, topic, partition)
        if lane in until:
            earlier, other = until[lane]
            assert began_at >= earlier, f"{lane} was in the hands of {other} and {pid} at {began_at}"
            hand_overs += other != pid
        until[lane] = (ended_at or killed_at.get(pid, began_at), pid)
    return hand_overs
