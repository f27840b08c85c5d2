"""Consumers that wait for other shards, since keys moved from there: who is waited for, and letting them go on.

    for one in release("west"):   # what still waits in this database, and why
        print(one.said)

A move is known in the database that the keys came to. Up to which event they are in the other one is found out after
the move: all that was published by the old map has been committed there, so it is in the log once what waits in the
buffer now has left it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from django.db import OperationalError
from django.db.models import Min

from django_events import models, sql
from django_events.consuming.streams import layouts
from django_events.consuming.waiting import wait_from
from django_events.log import channel
from django_events.sql.each import in_each
from django_events.statements import log_table

SQL = sql.beside(__name__)

SECONDS = 5  # for the connection to another shard, and for each answer
ANY_TICKET = 2**63 - 1


class WaitedFor(NamedTuple):
    """Another shard that a consumer waits for: up to which of its events, if that is known, and what is missing."""

    shard: str
    last_id: int | None
    why: str


class WaitingConsumer(NamedTuple):
    """A consumer of a shard that handles nothing from an event on, and whom it waits for."""

    consumer_id: int
    consumer: str
    topic: str
    waits_from: int
    waits_for: tuple[WaitedFor, ...]

    def flat(self) -> dict[str, Any]:
        """As JSON tells it."""
        return {**self._asdict(), "waits_for": [one._asdict() for one in self.waits_for]}

    @property
    def said(self) -> str:
        """The same in a sentence."""
        who = "; ".join(": ".join(filter(None, [one.shard, one.why])) for one in self.waits_for)
        return (
            f"{self.consumer} of {self.topic}: it waits from event {self.waits_from:,} on. "
            f"For {who or 'nothing, maintenance lets it go on'}."
        )


def release(using: str) -> list[WaitingConsumer]:
    """Let those consumers of a database go on that wait for nothing any more; returns the others.

    In short transactions of its own. Doing it again does no harm, and several processes may do it at once.
    """
    find_ends(using)
    return [_told(row, found) for row, passed, found in _asked(using) if not _let_go(using, row, passed)]


def waiting_consumers(using: str, *, ask: bool = True) -> list[WaitingConsumer]:
    """The consumers of a database that wait for other shards; if those aren't asked, without the reason."""
    if not ask:
        return [_told(row, _known(using, row)) for row in _waiting(using)]
    return [_told(row, found) for row, _, found in _asked(using)]


def find_ends(using: str) -> list[models.ShardMove]:
    """Find out up to which event keys that came here are in other shards; returns the moves of which it isn't known."""
    unknown: dict[str, list[models.ShardMove]] = defaultdict(list)
    moves = models.ShardMove.objects.using(using).select_related("topic")
    for move in moves.filter(source_last_id=None).order_by("source", "id"):
        unknown[move.source].append(move)
    left: list[models.ShardMove] = []
    answers = in_each(unknown, lambda source: _ends(source, moves=unknown[source]), seconds=SECONDS)
    for source, answer in answers.items():
        if answer.answered is None:
            left += unknown[source]
            continue
        for move in answer.answered:
            # Another process may have found it too; what that found holds as well.
            models.ShardMove.objects.using(using).filter(pk=move.pk, source_last_id=None).update(
                source_incarnation=move.source_incarnation,
                source_ticket=move.source_ticket,
                source_last_id=move.source_last_id,
            )
            if move.source_last_id is None:
                left.append(move)
    return left


def _ends(source: str, *, moves: Iterable[models.ShardMove]) -> list[models.ShardMove]:
    """These moves with what the source knows of them now."""
    topics = {topic.name: topic for topic in models.Topic.objects.using(source)}
    answered = []
    for move in moves:
        topic = topics.get(move.topic.name)
        if topic is None or move.source_incarnation not in (None, topic.incarnation):
            move.source_last_id = 0  # it was removed, so there is nothing to wait for
        else:
            statement = SQL.left_in_buffer.on(log=log_table(topic.pk), topic_id=topic.pk)
            until = ANY_TICKET if move.source_ticket is None else move.source_ticket
            with sql.batch(source):
                [[ticket, last_id]] = sql.fetch(source, statement, ticket=until)
            move.source_incarnation = topic.incarnation
            if ticket is None:
                move.source_last_id = last_id
            elif move.source_ticket is None:
                move.source_ticket = ticket
        answered.append(move)
    return answered


def _waiting(using: str) -> list[models.Consumer]:
    rows = models.Consumer.objects.using(using).filter(waits_from__isnull=False)
    return list(rows.select_related("topic").order_by("name", "topic__name"))


def _told(row: models.Consumer, waits_for: tuple[WaitedFor, ...]) -> WaitingConsumer:
    return WaitingConsumer(row.pk, row.name, row.topic.name, row.waits_from or 0, waits_for)


def _known(using: str, row: models.Consumer) -> tuple[WaitedFor, ...]:
    """Where keys came from that it waits for."""
    moves = models.ShardMove.objects.using(using).filter(topic_id=row.topic_id, waits_from=row.waits_from or 0)
    return tuple(WaitedFor(move.source, move.source_last_id, "") for move in moves.order_by("source"))


def _asked(using: str) -> list[tuple[models.Consumer, set[int], tuple[WaitedFor, ...]]]:
    """Each consumer that waits, with the moves that it waits for no longer, and whom it waits for yet.

    All other shards are asked at the same time, and each once, so that those that give no answer keep the others up as
    little as one of them.
    """
    rows = _waiting(using)
    of_source: dict[str, dict[int, tuple[models.Consumer, list[models.ShardMove]]]] = defaultdict(dict)
    for row in rows:
        moves = models.ShardMove.objects.using(using).filter(topic_id=row.topic_id, waits_from__gte=row.waits_from or 0)
        for move in moves.order_by("source", "waits_from"):
            of_source[move.source].setdefault(row.pk, (row, []))[1].append(move)
    answers = in_each(of_source, lambda source: _all_behind(source, of_source[source].values()), seconds=SECONDS)
    asked = []
    for row in rows:
        passed: set[int] = set()
        waits_for = []
        for source, answer in answers.items():
            if row.pk not in of_source[source]:
                continue
            if answer.error is not None:
                waits_for.append(WaitedFor(source, None, f"it can't be asked. {sql.said(answer.error)}".rstrip(".")))
                continue
            behind, moves_of_row = answer.value()[row.pk], of_source[source][row.pk][1]
            passed |= {move.pk for move in moves_of_row if move.pk not in behind}
            if first := next((move for move in moves_of_row if move.pk in behind), None):
                waits_for.append(WaitedFor(source, first.source_last_id, behind[first.pk]))
        asked.append((row, passed, tuple(waits_for)))
    return asked


def _all_behind(
    source: str, waiting: Iterable[tuple[models.Consumer, list[models.ShardMove]]]
) -> dict[int, dict[int, str]]:
    return {row.pk: _behind(source, row, moves) for row, moves in waiting}


def _behind(source: str, here: models.Consumer, moves: Collection[models.ShardMove]) -> dict[int, str]:
    """The moves that the consumer of this name has not come to in another shard, and why."""
    rows = models.Consumer.objects.using(source).select_related("topic")
    row = rows.filter(name=here.name, topic__name=here.topic.name).first()
    behind: dict[int, str] = {}
    for move in moves:
        last_id = move.source_last_id
        if last_id is None:
            behind[move.pk] = "events that were published before the move are not in its log yet"
        elif row is None or row.topic.incarnation != move.source_incarnation:
            continue  # it isn't registered there, or its topic was removed, so it handles none of them
        elif _is_behind(source, row, last_id):
            paused = ", and is paused" if row.paused_at else ""
            behind[move.pk] = f"{row.name} has events up to {last_id:,} to handle there{paused}"
    return behind


def _is_behind(source: str, row: models.Consumer, last_id: int) -> bool:
    """Whether a consumer has an event to handle up to an id."""
    if row.mode == "queue":
        return bool(sql.fetch(source, SQL.unsettled_until, consumer_id=row.pk, last_id=last_id))
    return row.mode == "stream" and layouts.is_behind(source, row, last_id + 1)


def _let_go(using: str, row: models.Consumer, passed: set[int]) -> bool:
    """Have a consumer wait for the first move that is left, if there is one; returns whether it waits for none."""
    try:
        with sql.committed(using), sql.batch(using, lock_timeout=layouts.LOCK_TIMEOUT):
            sql.fetch(using, sql.shared.lock_head, topic_id=row.topic_id)
            fresh = models.Consumer.objects.using(using).select_related("topic").filter(pk=row.pk).first()
            if fresh is None:
                return True
            if fresh.waits_from is None or fresh.waits_from < (row.waits_from or 0):  # a rewind: it is asked again
                return fresh.waits_from is None
            moves = models.ShardMove.objects.using(using).exclude(pk__in=passed)
            moves = moves.filter(topic_id=row.topic_id, waits_from__gte=fresh.waits_from)
            first = moves.aggregate(first=Min("waits_from"))["first"]
            if first != fresh.waits_from:
                wait_from(using, fresh, first)
                sql.fetch(using, sql.shared.notify, channel=channel.LOG, payload=str(row.topic_id))
            return first is None
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        return False  # the next one tries again
