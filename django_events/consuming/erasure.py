"""Erasure of personal data: the payloads of a key are blanked wherever they are, and the log stays as dense as it was.

    erase("orders", key="customer-7", reason="asked for on 2026-11-20", dry_run=True)

It goes along the path of an event: staged, scheduled, buffer, log, and then what consumers keep. What leaves one place
while it is looked through is found in the next, so nobody has to stand still: no head is held, and no transaction is
longer than a batch.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import OperationalError, connections
from django.db.models import QuerySet
from django.utils.crypto import salted_hmac

from django_events import declarations, models, sql
from django_events.consuming.interventions import this_user
from django_events.consuming.orphans import forget_orphans
from django_events.consuming.registered import writable
from django_events.exceptions import EraseRefused
from django_events.log.inventory import existing
from django_events.statements import log_table

logger = logging.getLogger("django_events.erasure")

READ_AT_ONCE = 50_000  # ids of a log without a timeline, or rows of the buffer
ERASED_AT_ONCE = 2_000
NAMED = 100  # events that the record lists; more are only counted
TRIES = 5
LOCK_TIMEOUT = "2s"
PAUSE = 0.05
ERROR = "Erased."
STOPS = r"^(Its filter fails on [^/]*/[0-9]+\.|What follows can't be read\.).*$"  # quarantine.py and streams.py say so
INSTEAD = r"\1 What the database said about it was erased."

WAITING = {
    "staged": "django_events_stagedevent",
    "scheduled": "django_events_scheduledevent",
    "buffered": "django_events_bufferedevent",
}


@dataclass(kw_only=True)
class Erased:
    """What was erased, or would be: how many rows of each kind, and by which workers some events are still in hand.

    `key` is what the record says in place of the key; `new_key` is what stands in its place everywhere, if it went.
    """

    topic: str
    key: str | None
    new_key: str | None = None
    events: int = 0
    buffered: int = 0
    scheduled: int = 0
    staged: int = 0
    dead_letters: int = 0
    deliveries: int = 0
    errors: int = 0
    dedup_keys: int = 0
    in_hand: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows were changed."""
        return sum(value for value in vars(self).values() if isinstance(value, int))


@dataclass(slots=True)
class _Seen:
    """What came up on the way."""

    anything: bool = False  # of what is to be erased
    in_hand: set[int] = field(default_factory=set)  # deliveries that workers had when their events were erased


@dataclass(frozen=True, kw_only=True, slots=True)
class _Erasure:
    using: str
    topic: models.Topic
    key: str | None
    new_key: str | None
    ids: Sequence[int]
    dry_run: bool
    erased: Erased
    seen: _Seen = field(default_factory=_Seen)
    keys_follow: bool = False  # the keys go later, and what has one is counted then

    @property
    def log(self) -> str:
        return log_table(self.topic.pk)

    @property
    def consumers(self) -> "QuerySet[models.Consumer]":
        return models.Consumer.objects.using(self.using).filter(topic=self.topic).order_by("pk")

    @property
    def consumer_ids(self) -> list[int]:
        """As of now: one may have come while the log was looked through."""
        return list(self.consumers.values_list("pk", flat=True))


def erase(
    topic: declarations.Topic | str,
    *,
    key: str | None = None,
    ids: Iterable[int] | None = None,
    reason: str,
    forget_key: bool = False,
    by: str | None = None,
    wait: timedelta = timedelta(seconds=10),
    dry_run: bool = False,
    using: str | None = None,
) -> Erased:
    """Blank the payloads of a key, or of some events, in a topic and in all that its consumers keep.

    Value, body and metadata go, with the errors that may tell of them; id, partition, number, type and times stay.
    `forget_key` puts a pseudonym in the place of the key, too. In small transactions of its own: what was committed
    before the call is erased when it returns. Workers may have such events in hand: they are waited for, and `in_hand`
    names those that took longer. Repeating it finishes what was interrupted, and otherwise changes nothing. Each
    call is recorded as an intervention, without the key.
    """
    using = writable(using)
    ids = list(ids or ())
    _refuse(using, key, ids, reason=reason, forget_key=forget_key, dry_run=dry_run)
    _refuse_unreadable(ids, texts={"key": key, "reason": reason, "by": by})
    ids = sorted(set(ids))
    row = existing(using, topic)
    _refuse_unknown(using, row, ids)
    known_as = None if key is None else _digest(row.name, key)
    new_key = f"erased-{known_as[:32]}" if known_as is not None and forget_key else None
    erasure = _Erasure(
        using=using,
        topic=row,
        key=key,
        new_key=new_key,
        ids=ids,
        dry_run=dry_run,
        erased=Erased(topic=row.name, key=known_as, new_key=new_key),
    )
    if dry_run:
        _erase(erasure)
        return erasure.erased
    record = _begin(erasure, by or this_user(), reason)
    _erase(erasure)
    _after_those_in_hand(erasure, wait)
    forget_orphans(using)  # of a consumer whose unregistering was interrupted: errors, and keys
    _finish(erasure, record)
    return erasure.erased


def _refuse(using: str, key: str | None, ids: Sequence[int], *, reason: str, forget_key: bool, dry_run: bool) -> None:
    if (key is None) == (not ids):
        raise EraseRefused("Say either a key or the ids of events. Nothing was changed.")
    if forget_key and key is None:
        raise EraseRefused("forget_key is about a key, and ids were given. Nothing was changed. Say the key.")
    if not reason.strip():
        raise EraseRefused("Events are erased for a reason, for the record: reason is empty. Nothing was changed.")
    if not dry_run and connections[using].in_atomic_block:
        raise EraseRefused(
            "Events are erased in small transactions, so that nobody waits for long: not inside of one of the caller's."
            " Nothing was changed."
        )


def _refuse_unreadable(ids: Sequence[object], *, texts: Mapping[str, object]) -> None:
    """What the database would stumble over half way."""
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise EraseRefused(f"{name} is {text!r}, expected a str. Nothing was changed.")
        if text is not None and "\0" in text:
            raise EraseRefused(f"{name} has a NUL character, which the database can't keep. Nothing was changed.")
    for event_id in ids:
        if not isinstance(event_id, int) or isinstance(event_id, bool) or event_id < 1:
            raise EraseRefused(f"{event_id!r} is no id of an event, expected 1, 2, 3 … Nothing was changed.")


def _refuse_unknown(using: str, topic: models.Topic, ids: Sequence[int]) -> None:
    if not ids:
        return
    floor = models.TopicHead.objects.using(using).get(topic=topic).id_floor
    end = sql.statement("last_id").on(log=log_table(topic.pk), topic_id=topic.pk, floor=floor)
    with sql.by_index(using):
        [[last]] = sql.fetch(using, end)
    if ids[-1] > last:
        raise EraseRefused(
            f"There is no event {topic.name}/{ids[-1]}: the log ends at {last}. Nothing was changed. Look for the ids "
            "with: manage.py events peek."
        )


def _digest(topic: str, key: str) -> str:
    """The same for the same key, and nobody without the site's SECRET_KEY can find the key by trying."""
    return salted_hmac("django_events.erase", f"{topic}\0{key}", algorithm="sha256").hexdigest()


def _erase(erasure: _Erasure) -> None:
    """First all payloads, then all keys: those that have the key yet don't wait for those that had it."""
    if erasure.new_key is not None and not erasure.dry_run:
        _everywhere(replace(erasure, new_key=None, keys_follow=True))
    _everywhere(erasure)


def _everywhere(erasure: _Erasure) -> None:
    """All places, in the order in which an event passes them."""
    if erasure.key is not None:
        for place, table in WAITING.items():
            _add(erasure, place, sum(_waiting(erasure, table)))
    for ids in _in_log(erasure):
        if not erasure.dry_run:
            _add(erasure, "events", _count(erasure, partial(_blank, erasure, ids)))
            _traces(erasure, ids)
    _of_consumers(erasure)
    if erasure.new_key is not None:
        _dedup_keys(erasure)


def _add(erasure: _Erasure, place: str, rows: int) -> None:
    """Rows that all have the key."""
    if not erasure.keys_follow:
        setattr(erasure.erased, place, getattr(erasure.erased, place) + rows)


def _waiting(erasure: _Erasure, table: str) -> Iterator[int]:
    topic_id, after = erasure.topic.pk, 0
    while True:
        ahead = sql.statement("next_waiting").on(table=table, topic_id=topic_id, after=after, most=READ_AT_ONCE)
        with sql.batch(erasure.using):
            [[upper]] = sql.fetch(erasure.using, ahead)
        if upper is None:
            return
        yield from _waiting_up_to(erasure, table, after, upper)
        after = upper


def _waiting_up_to(erasure: _Erasure, table: str, after: int, upper: int) -> Iterator[int]:
    """How many at a time: the transfer waits for them, and with it all topics."""
    topic_id, most = erasure.topic.pk, ERASED_AT_ONCE
    while after < upper:
        statement = sql.statement("erasable_waiting").on(
            table=table, topic_id=topic_id, after=after, upper=upper, most=most
        )
        with sql.batch(erasure.using):
            found = sql.fetch(erasure.using, statement, key=erasure.key, new_key=erasure.new_key)
        last = found[-1][0] if len(found) == ERASED_AT_ONCE else upper
        if found and erasure.dry_run:
            yield len(found)
        elif found:
            yield _count(erasure, partial(_blank_waiting, erasure, table, after, last))
        after = last


def _blank_waiting(erasure: _Erasure, table: str, after: int, upper: int) -> sql.Rows:
    blanking = sql.statement("erase_waiting").on(table=table, topic_id=erasure.topic.pk, after=after, upper=upper)
    return sql.fetch(
        erasure.using, blanking, key=erasure.key, new_key=erasure.new_key, partitions=erasure.topic.partitions
    )


def _in_log(erasure: _Erasure) -> Iterator[list[int]]:
    """The ids of the events, some at a time: those that were erased before as well, for what else is kept of them."""
    if erasure.key is None:
        for start in range(0, len(erasure.ids), ERASED_AT_ONCE):
            some = list(erasure.ids[start : start + ERASED_AT_ONCE])
            found = sql.statement("erasable_ids").on(
                log=erasure.log, topic_id=erasure.topic.pk, first=some[0], last=some[-1]
            )
            yield from _counted(erasure, sql.fetch(erasure.using, found, ids=some))
            erasure.seen.anything |= some[0] < _first(erasure)
            yield some  # consumers may keep what the log has dropped
        return
    if erasure.new_key is not None:  # an erasure that was interrupted
        yield from _of_key(erasure, erasure.new_key)
    yield from _of_key(erasure, erasure.key)


def _of_key(erasure: _Erasure, key: str) -> Iterator[list[int]]:
    topic, log = erasure.topic, erasure.log
    end = sql.statement("last_id").on(log=log, topic_id=topic.pk, floor=0)
    start = sql.statement("first_id").on(log=log, topic_id=topic.pk)
    with sql.by_index(erasure.using):
        [[last]] = sql.fetch(erasure.using, end)
        rows = sql.fetch(erasure.using, start)
    if not last or not rows or rows[0][0] is None:
        return
    after = rows[0][0] - 1
    while after < last:
        upper = last if topic.timeline else min(after + READ_AT_ONCE, last)
        statement = sql.statement("erasable").on(
            log=log, topic_id=topic.pk, after=after, upper=upper, most=ERASED_AT_ONCE
        )
        with sql.by_index(erasure.using):
            found = sql.fetch(erasure.using, statement, key=key)
        yield from _counted(erasure, found, key_goes=key == erasure.key and erasure.new_key is not None)
        after = found[-1][0] if len(found) == ERASED_AT_ONCE else upper


def _counted(erasure: _Erasure, found: sql.Rows, *, key_goes: bool = False) -> Iterator[list[int]]:
    if erasure.dry_run:
        erasure.erased.events += sum(key_goes or not erased for _, erased in found)
    if found:
        erasure.seen.anything = True
        yield [event_id for event_id, _ in found]


def _first(erasure: _Erasure) -> int:
    """The first id that the log has, or gets next: what consumers keep of those before may be of any key."""
    start = sql.statement("first_id").on(log=erasure.log, topic_id=erasure.topic.pk)
    with sql.by_index(erasure.using):
        [[first]] = sql.fetch(erasure.using, start)
    if first is not None:
        return int(first)
    return models.TopicHead.objects.using(erasure.using).get(topic=erasure.topic).id_floor + 1


def _blank(erasure: _Erasure, ids: list[int]) -> sql.Rows:
    statement = sql.statement("erase_events").on(log=erasure.log, topic_id=erasure.topic.pk, first=ids[0], last=ids[-1])
    return sql.fetch(erasure.using, statement, ids=ids, new_key=erasure.new_key)


def _traces(erasure: _Erasure, ids: list[int]) -> None:
    """What consumers keep of these events."""
    using, new_key, erased, consumer_ids = erasure.using, erasure.new_key, erasure.erased, erasure.consumer_ids

    def in_hand() -> sql.Rows:
        return sql.fetch(using, sql.statement("erasable_in_hand"), consumer_ids=consumer_ids, event_ids=ids)

    def deliveries() -> sql.Rows:
        of_deliveries = sql.statement("erase_deliveries")
        return sql.fetch(
            using,
            of_deliveries,
            consumer_ids=consumer_ids,
            event_ids=ids,
            new_key=new_key,
            keys_follow=erasure.keys_follow,
        )

    def dead_letters() -> sql.Rows:
        of_letters = sql.statement("erase_dead_letters")
        return sql.fetch(using, of_letters, consumer_ids=consumer_ids, event_ids=ids, new_key=new_key, error=ERROR)

    def skips() -> sql.Rows:
        return sql.fetch(using, sql.statement("erase_skips"), topic=erasure.topic.name, event_ids=ids)

    erasure.seen.in_hand.update(event_id for (event_id,) in _patiently(erasure, in_hand))
    erased.deliveries += _count(erasure, deliveries)
    _add(erasure, "dead_letters", _count(erasure, dead_letters))
    erased.errors += _count(erasure, skips)


def _of_consumers(erasure: _Erasure) -> None:
    """What they keep of events that the log has dropped, and their last errors."""
    letters = models.DeadLetter.objects.using(erasure.using).filter(consumer_id__in=erasure.consumer_ids)
    if erasure.key is not None:
        letters = letters.filter(key__in=[key for key in (erasure.key, erasure.new_key) if key is not None])
    else:
        letters = letters.filter(event_id__in=erasure.ids)
    if erasure.dry_run:
        done = {"error": ERROR} if erasure.new_key is None else {"error": ERROR, "key": erasure.new_key}
        erasure.erased.dead_letters = letters.exclude(**done).count()
        return
    found = set(letters.values_list("event_id", flat=True))
    if erasure.new_key is not None:
        # Who fills a queue from the log may have read the key before it went: once it is done, no other will.
        _count(erasure, lambda: [(len(erasure.consumers.select_for_update(no_key=True)),)])
        keyed = models.Delivery.objects.using(erasure.using).filter(consumer_id__in=erasure.consumer_ids)
        found |= set(keyed.filter(key=erasure.key).values_list("event_id", flat=True))
    ids = sorted(found)
    for start in range(0, len(ids), ERASED_AT_ONCE):
        _traces(erasure, ids[start : start + ERASED_AT_ONCE])
    first = _first(erasure)
    if erasure.key is not None and first > 1:
        erasure.erased.deliveries += _count(erasure, partial(_dropped, erasure, first))
    if ids or erasure.seen.anything or first > 1:
        erasure.erased.errors += _count(erasure, partial(_errors, erasure))


def _dropped(erasure: _Erasure, first: int) -> sql.Rows:
    keys = [key for key in (erasure.key, erasure.new_key) if key is not None]
    statement = sql.statement("erase_dropped")
    return sql.fetch(erasure.using, statement, consumer_ids=erasure.consumer_ids, first=first, keys=keys)


def _errors(erasure: _Erasure) -> sql.Rows:
    statement = sql.statement("erase_errors").on(log=erasure.log, topic_id=erasure.topic.pk)
    return sql.fetch(erasure.using, statement, consumer_ids=erasure.consumer_ids, stops=STOPS, instead=INSTEAD)


def _dedup_keys(erasure: _Erasure) -> None:
    rows = models.DedupKey.objects.using(erasure.using).filter(topic=erasure.topic, key=erasure.key)
    erasure.erased.dedup_keys = rows.count()
    if not erasure.dry_run:
        rows.delete()


def _after_those_in_hand(erasure: _Erasure, wait: timedelta) -> None:
    """Workers that read an event before it was erased may still write it into a dead letter, or an error about it."""
    using, deadline = erasure.using, time.monotonic() + wait.total_seconds()
    # Who is claiming a partition just now is waited for, so that its lease is seen.
    lock = sql.statement("lock_positions")
    _patiently(erasure, lambda: sql.fetch(using, lock, consumer_ids=erasure.consumer_ids, partition=None))
    held = _held(erasure)
    while (left := {token: holder for token, holder in _held(erasure).items() if token in held}) and (
        time.monotonic() < deadline
    ):
        time.sleep(PAUSE)
    erasure.erased.in_hand = sorted(set(left.values()))
    in_hand = sorted(erasure.seen.in_hand)
    for start in range(0, len(in_hand), ERASED_AT_ONCE):
        _traces(erasure, in_hand[start : start + ERASED_AT_ONCE])
    _of_consumers(erasure)


def _held(erasure: _Erasure) -> dict[int, str]:
    rows = sql.fetch(erasure.using, sql.statement("held"), consumer_ids=erasure.consumer_ids, partition=None)
    return {token: holder for token, holder, _ in rows}


def _count(erasure: _Erasure, step: Callable[[], sql.Rows]) -> int:
    """Do a step that answers with a count."""
    [[count]] = _patiently(erasure, step)
    return int(count)


def _patiently(erasure: _Erasure, step: Callable[[], sql.Rows]) -> sql.Rows:
    """Do a step in a transaction of its own, again where somebody was in the way."""
    for tries in range(1, TRIES + 1):
        try:
            with sql.batch(erasure.using, lock_timeout=LOCK_TIMEOUT):
                return step()
        except OperationalError as error:
            if sql.is_lost(error) or sql.state(error) not in sql.RETRIED_STATES:
                raise
            if tries == TRIES:
                raise EraseRefused(
                    f"Somebody holds a lock on events of {erasure.topic}, or on what a consumer keeps of them. What "
                    "was erased so far stays erased. Say the same again when that is over."
                ) from error
            time.sleep(PAUSE * tries)
    raise AssertionError


def _begin(erasure: _Erasure, by: str, reason: str) -> models.Intervention:
    """Written down first, so that an erasure that was interrupted is on record as well."""
    return models.Intervention.objects.using(erasure.using).create(
        by=by[:200],
        action="erase",
        consumer="",
        topic=erasure.topic.name,
        details={**_said(erasure), "reason": reason, "finished": False},
    )


def _said(erasure: _Erasure) -> dict[str, Any]:
    if erasure.key is None:
        return {"events_named": list(erasure.ids[:NAMED]), "count": len(erasure.ids)}
    return {"key": erasure.erased.key, "new_key": erasure.new_key}


def _finish(erasure: _Erasure, record: models.Intervention) -> None:
    counts = {name: value for name, value in asdict(erasure.erased).items() if isinstance(value, int)}
    record.details |= {**counts, "finished": not erasure.erased.in_hand}
    record.save(using=erasure.using, update_fields=["details"])
    logger.info("Erased events of topic %r: %d rows, by %s.", erasure.topic.name, erasure.erased.rows, record.by)
