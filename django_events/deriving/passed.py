"""Whether consumers have passed what was published: never said too early, and asked for all who wait at once.

    wait = prepare(using, [receipt], [], ["search"])
    look(using, [wait])
    wait.over, wait.error

In every snapshot an event is in the buffer or in the log. Once it has left the buffer, the log's last id bounds its
own, because ids follow commits. Then it is found by the moment at which it was published, and its consumers have to
pass that id. One that isn't found, because the log has gone on for long, or because what is waited for is all that a
topic has, stands for everything up to the last id of that snapshot.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from django.db import connections

from django_events import sql
from django_events.consuming.registered import registered
from django_events.drafts import Receipt
from django_events.exceptions import EventsError, NotReady, NotSeen, Refused, UnknownName, did_you_mean
from django_events.models import Topic
from django_events.sql.prepared import SharedSession
from django_events.statements import log_table

SQL = sql.beside(__name__)

Ask = Callable[..., list[sql.Rows]]  # takes questions

NEWEST = 1_000  # events of a log, among which one is found by its moment
MOST_ALIKE = 20  # events of one moment that are waited for by themselves
SLACK = 0.000002  # seconds: a float has no more digits
BEFORE_SEEN = 2  # seconds, by how much a transfer's statement may be older than an event that it sees
SOONEST, SHARE, LATEST = 0.001, 8, 1.0  # seconds until the next look: an eighth of the time that was waited


class Passing(NamedTuple):
    """How far a consumer is with an event, or with everything up to an id; without a mode it is gone."""

    mode: str | None
    passed: bool | None
    position: int | None
    paused: bool | None
    stopped: bool | None
    attempted: int | None
    left_over: int | None
    dead: bool
    redriven: bool | None

    def __str__(self) -> str:
        if self.mode == "queue":
            said = "" if self.left_over is None else f"event {self.left_over} waits, or is in hand"
        else:
            said = f"it is behind event {self.position}"
        if self.attempted is not None:
            said += f", and tries event {self.attempted} again"
        if self.redriven:
            said = "it is a dead letter that waits to be handled again"
        return f": {said}" if said else ""


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer as it is registered when the waiting begins. One that is registered anew has another id."""

    consumer_id: int
    name: str


@dataclass(slots=True)
class Target:
    """What has to be passed in one topic: the event of a ticket, or all events whose tickets are between two."""

    topic_id: int
    topic: str
    lower: int
    upper: int
    moment: tuple[float, float] | None
    readers: list[Reader]
    behind: int = 0  # an id that the log had while the event was in the buffer

    def question(self) -> sql.Question:
        log = log_table(self.topic_id)
        return SQL.arrived.on(log=log, topic_id=self.topic_id, newest=NEWEST, slack=BEFORE_SEEN), {
            "behind": self.behind,
            "lower": self.lower,
            "upper": self.upper,
            "since": self.since,
            "until": self.until,
        }

    @property
    def since(self) -> float | None:
        return None if self.moment is None else self.moment[0] - SLACK

    @property
    def until(self) -> float | None:
        return None if self.moment is None else self.moment[1] + SLACK


@dataclass(slots=True)
class Unpassed:
    """What one consumer has not passed, as far as is known: an event, or without a partition all up to its id."""

    target: Target
    reader: Reader
    event_id: int
    partition: int | None
    standing: Passing | None = None

    def __str__(self) -> str:
        address = f"{self.target.topic}/{self.event_id}"
        what = address if self.partition is not None else f"all up to {address}"
        return f"consumer {self.reader.name!r} has not passed {what}{self.standing or ''}"


@dataclass(slots=True)
class Wait:
    """What one caller waits for, how much of that is left, and when to look again."""

    using: str
    buffered: list[Target]
    search_path: str  # of its caller's session: a site may have tables of ours in several schemas
    unpassed: list[Unpassed] = field(default_factory=list)
    tell: Callable[[], None] = lambda: None  # that it is over
    began: float = field(default_factory=time.monotonic)
    look_at: float = 0.0
    over: bool = False
    error: Exception | None = None

    @property
    def is_left(self) -> bool:
        """Whether something is not passed yet."""
        return bool(self.buffered or self.unpassed)

    def end(self, error: Exception | None = None) -> None:
        self.over, self.error = True, error

    def too_late(self) -> NotSeen:
        """The error for a caller whose time is over: which consumer has not passed what, and how far it is."""
        left = [
            f"what was published to {t.topic!r} is still in the buffer of {self.using!r}: look whether a transfer runs"
            for t in self.buffered
        ]
        left += [str(one) for one in self.unpassed]
        first = self.unpassed[0].reader.name if self.unpassed else ""
        return NotSeen(f"After {time.monotonic() - self.began:.1f} s, {'; '.join(left)}.", consumer=first)


def prepare(
    using: str,
    receipts: Sequence[Receipt],
    topics: Sequence[str],
    consumers: Sequence[str],
    *,
    upper: int | None = None,
) -> Wait:
    """What is to be waited for in one database: events, and all that topics had up to a ticket, by default the last.

    Where neither is given, the topics are those that the consumers read. UnknownName says what there isn't.
    """
    named = list(dict.fromkeys([*topics, *(receipt.topic for receipt in receipts)]))
    rows = sql.fetch(using, SQL.named, topics=named or None, consumers=list(consumers))
    ids = {row[1]: row[0] for row in rows}
    readers = {topic: [Reader(*row[2:4]) for row in rows if row[1] == topic and row[2] is not None] for topic in ids}
    _refuse_unknown(using, named, consumers, readers)
    _refuse_mirrors({row[1]: row[5] for row in rows if named and row[5]})
    targets = [
        Target(ids[one.topic], one.topic, one.ticket, one.ticket, one.moment, readers[one.topic])
        for one in receipts
        if one.ticket is not None
    ]
    # One whose dedup key was taken stands for the event that took it, of which no ticket is known.
    whole = [*(topics if named else ids), *(one.topic for one in receipts if one.ticket is None)]
    if whole and upper is None:
        upper = last_ticket(using)
    targets += [Target(ids[topic], topic, 0, upper or 0, None, readers[topic]) for topic in dict.fromkeys(whole)]
    return Wait(using, targets, rows[0][4] if rows else "")


def _refuse_mirrors(mirrors: dict[str, str]) -> None:
    """What was published at another site may not be here yet, and nothing here tells whether it is."""
    for topic, source in mirrors.items():
        raise Refused(
            f"Topic {topic!r} is a mirror of {source}: a ticket of that site says nothing here, and what was committed "
            "there may not be here yet. Wait there for the log, then here until a consumer has passed the event's id."
        )


def _refuse_unknown(
    using: str, topics: Sequence[str], consumers: Sequence[str], readers: dict[str, list[Reader]]
) -> None:
    for topic in topics:
        if topic not in readers:
            known = Topic.objects.using(using).values_list("name", flat=True)
            raise UnknownName(f"There is no topic {topic!r} in the database {using!r}. {did_you_mean(topic, known)}")
    found = {reader.name for of_topic in readers.values() for reader in of_topic}
    for name in consumers:
        if name not in found:
            rows = registered(using, name)  # raises if there is none
            reads = ", ".join(sorted(row.topic.name for row in rows))
            raise UnknownName(f"Consumer {name!r} reads {reads}, and none of {', '.join(topics)}.")


def removed(using: str, wait: Wait) -> UnknownName | None:
    """What to say where the topic of a log that can't be read is gone; None if none is."""
    targets = [*wait.buffered, *(one.target for one in wait.unpassed)]
    there = set(Topic.objects.using(using).values_list("pk", flat=True))
    gone = next((target.topic for target in targets if target.topic_id not in there), None)
    return None if gone is None else _removed(gone)


def _removed(topic: str) -> UnknownName:
    return UnknownName(f"Topic {topic!r} was removed while it was waited for.")


def last_ticket(using: str) -> int:
    """The last ticket that was given: what was committed before has no higher one."""
    [[ticket]] = sql.fetch(using, SQL.last_ticket)
    if ticket is None:
        role = connections[using].settings_dict["USER"]
        raise NotReady(
            f"The role {role!r} may not use the sequence of the buffer in {using!r}, so it doesn't know up to where "
            "events were published. What it needs: manage.py events grants --role publisher"
        )
    return int(ticket)


def look(using: str, waits: Iterable[Wait], session: SharedSession | None = None, *, search_path: str = "") -> None:
    """See how far everything is that is waited for: in two messages to the server, however many wait.

    In a session the statements are prepared, for those whose tables are where its own `search_path` leads.
    """
    of_path: dict[str, list[Wait]] = {}
    for wait in waits:
        if not wait.over:
            of_path.setdefault(wait.search_path, []).append(wait)
    for path, those in of_path.items():
        is_its_own = session is not None and session.is_good and path == search_path
        _look(session.ask_each if session is not None and is_its_own else partial(_ask, using, path), those)


def _look(ask: Ask, waits: Sequence[Wait]) -> None:
    _look_into_buffer(ask, waits)
    _look_at_readers(ask, waits)
    for wait in waits:
        now = time.monotonic()
        wait.look_at = now + min(max(SOONEST, (now - wait.began) / SHARE), LATEST)
        if not (wait.over or wait.is_left):
            wait.end()


def _look_into_buffer(ask: Ask, waits: Sequence[Wait]) -> None:
    """Which events have come into the log, where their consumers have to pass them."""
    asked = [(wait, target) for wait in waits for target in wait.buffered]
    answers = ask(*(target.question() for _, target in asked)) if asked else []
    for (wait, target), rows in zip(asked, answers, strict=True):
        if not rows:
            wait.end(_removed(target.topic))
            continue
        waiting, last_id, found, _ = rows[0]
        if waiting is not None:
            target.lower, target.behind = waiting, last_id
            continue
        alike = [(event_id, partition) for _, _, event_id, partition in rows]
        events = alike if found is not None and len(alike) <= MOST_ALIKE else [(last_id, None)]
        # In this order, because the caller whose time is over may look at both now.
        wait.unpassed += [Unpassed(target, reader, *event) for reader in target.readers for event in events]
        wait.buffered.remove(target)


def _look_at_readers(ask: Ask, waits: Sequence[Wait]) -> None:
    asked = [(wait, one) for wait in waits if not wait.over for one in wait.unpassed]
    if not asked:
        return
    question = (
        SQL.passed,
        {
            "consumer_ids": [one.reader.consumer_id for _, one in asked],
            "event_ids": [one.event_id for _, one in asked],
            "partitions": [one.partition for _, one in asked],
        },
    )
    [rows] = ask(question)
    for (wait, one), row in zip(asked, rows, strict=True):
        one.standing = Passing._make(row)
        try:
            if _is_passed(ask, one, one.standing):
                wait.unpassed.remove(one)
        except EventsError as error:  # it is about this wait, and not about those beside it
            wait.end(error)


def _is_passed(ask: Ask, one: Unpassed, standing: Passing) -> bool:
    """Whether a consumer has passed an event; NotSeen if it won't, unless a person does something about it."""
    name = one.reader.name
    if standing.mode is None:
        raise NotSeen(f"Consumer {name!r} was unregistered while it was waited for.", consumer=name)
    if standing.dead and not standing.redriven:
        raise _dead(one, one.event_id)
    if standing.redriven:
        return False
    if standing.passed or (one.partition is None and _has_read(ask, one, standing)):
        return one.partition is not None or one.target.moment is None or not _is_redriven(ask, one)
    for what in ("stopped", "paused"):
        if getattr(standing, what):
            raise NotSeen(f"Nothing will be seen soon: {one}, and the consumer is {what}.", consumer=name)
    return False


def _is_redriven(ask: Ask, one: Unpassed) -> bool:
    """Whether one that was not found may be a dead letter that is to be handled again; NotSeen if it isn't to be."""
    question = (
        SQL.gave_up,
        {
            "consumer_id": one.reader.consumer_id,
            "event_id": one.event_id,
            "since": one.target.since,
            "until": one.target.until,
        },
    )
    [rows] = ask(question)
    for event_id, redriven in rows:
        if not redriven:
            raise _dead(one, event_id)
    return bool(rows)


def _dead(one: Unpassed, event_id: int) -> NotSeen:
    name = one.reader.name
    what = f"Event {one.target.topic}/{event_id} is a dead letter of consumer {name!r}, which gave up on it."
    return NotSeen(what, consumer=name, dead_letter=True)


def _has_read(ask: Ask, one: Unpassed, standing: Passing) -> bool:
    """Whether a stream has nothing left up to an id, though some of its positions are before it."""
    if standing.mode == "queue" or standing.position is None:
        return False
    topic_id = one.target.topic_id
    question = (
        SQL.unread.on(log=log_table(topic_id), topic_id=topic_id, bound=one.event_id),
        {"consumer_id": one.reader.consumer_id},
    )
    [[[is_unread]]] = ask(question)
    return not is_unread


def _ask(using: str, search_path: str, *questions: sql.Question) -> list[sql.Rows]:
    """By index, and of all rows: one that row-level security hides would be taken for one that has left."""
    given = {**sql.BY_INDEX, "search_path": search_path}
    return sql.fetch_each(using, sql.locally(given), *questions)[1:]
