"""What is kept of events beside the log: by consumers, by workers who have them in hand, and as dedup keys."""

import time
from datetime import timedelta
from functools import partial

from django_events import models, sql
from django_events.log.stops import STOPS
from django_events.operating.erasing.erasure import PAUSE, Erasure
from django_events.operating.erasing.log import first_id

SQL = sql.beside(__name__)

ERROR = "Erased."
INSTEAD = r"\1 What the database said about it was erased."


def of_events(erasure: Erasure, ids: list[int]) -> None:
    """Blank what consumers keep of these events."""
    using, new_key, erased, consumer_ids = erasure.using, erasure.new_key, erasure.erased, erasure.consumer_ids

    def in_hand() -> sql.Rows:
        return sql.fetch(using, SQL.erasable_in_hand, consumer_ids=consumer_ids, event_ids=ids)

    def deliveries() -> sql.Rows:
        of_deliveries = SQL.erase_deliveries
        return sql.fetch(
            using,
            of_deliveries,
            consumer_ids=consumer_ids,
            event_ids=ids,
            new_key=new_key,
            keys_follow=erasure.keys_follow,
        )

    def dead_letters() -> sql.Rows:
        of_letters = SQL.erase_dead_letters
        return sql.fetch(using, of_letters, consumer_ids=consumer_ids, event_ids=ids, new_key=new_key, error=ERROR)

    def skips() -> sql.Rows:
        return sql.fetch(using, SQL.erase_skips, topic=erasure.topic.name, event_ids=ids)

    def answers() -> sql.Rows:
        return sql.fetch(using, SQL.erase_answers, consumer_ids=consumer_ids, event_ids=ids)

    erasure.seen.in_hand.update(event_id for (event_id,) in erasure.patiently(in_hand))
    erased.deliveries += erasure.count(deliveries)
    erasure.add("dead_letters", erasure.count(dead_letters))
    erased.errors += erasure.count(skips) + erasure.count(answers)


def of_consumers(erasure: Erasure) -> None:
    """Blank what consumers keep of events that the log has dropped, and their last errors."""
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
        # A worker that fills a queue may have read the key from the log before it was erased. After it no other can.
        erasure.count(lambda: [(len(erasure.consumers.select_for_update(no_key=True)),)])
        keyed = models.Delivery.objects.using(erasure.using).filter(consumer_id__in=erasure.consumer_ids)
        found |= set(keyed.filter(key=erasure.key).values_list("event_id", flat=True))
    for ids in erasure.batches(sorted(found)):
        of_events(erasure, ids)
    first = first_id(erasure)
    if erasure.key is not None and first > 1:
        erasure.erased.deliveries += erasure.count(partial(_dropped, erasure, first))
    if found or erasure.seen.anything or first > 1:
        erasure.erased.errors += erasure.count(partial(_errors, erasure))


def _dropped(erasure: Erasure, first: int) -> sql.Rows:
    keys = [key for key in (erasure.key, erasure.new_key) if key is not None]
    statement = SQL.erase_dropped
    return sql.fetch(erasure.using, statement, consumer_ids=erasure.consumer_ids, first=first, keys=keys)


def _errors(erasure: Erasure) -> sql.Rows:
    statement = SQL.erase_errors.on(log=erasure.log, topic_id=erasure.topic.pk)
    return sql.fetch(erasure.using, statement, consumer_ids=erasure.consumer_ids, stops=STOPS, instead=INSTEAD)


def of_dedup_keys(erasure: Erasure) -> None:
    """Those that are the key itself."""
    rows = models.DedupKey.objects.using(erasure.using).filter(topic=erasure.topic, key=erasure.key)
    erasure.erased.dedup_keys = rows.count()
    if not erasure.dry_run:
        rows.delete()


def after_those_in_hand(erasure: Erasure, wait: timedelta) -> None:
    """Workers that read an event before it was erased may still write it into a dead letter, or an error about it."""
    using, deadline = erasure.using, time.monotonic() + wait.total_seconds()
    # Wait for a worker that is just claiming a partition, so that its lease is seen.
    lock = sql.shared.lock_positions
    erasure.patiently(lambda: sql.fetch(using, lock, consumer_ids=erasure.consumer_ids, partition=None))
    before = _leases(erasure)
    while (left := {token: holder for token, holder in _leases(erasure).items() if token in before}) and (
        time.monotonic() < deadline
    ):
        time.sleep(PAUSE)
    erasure.erased.in_hand = sorted(set(left.values()))
    for ids in erasure.batches(sorted(erasure.seen.in_hand)):
        of_events(erasure, ids)
    of_consumers(erasure)


def _leases(erasure: Erasure) -> dict[int, str]:
    rows = sql.fetch(erasure.using, sql.shared.leases, consumer_ids=erasure.consumer_ids, partition=None)
    return {token: holder for token, holder, _ in rows}
