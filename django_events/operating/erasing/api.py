"""Erasure of personal data: the payloads of a key are blanked wherever they are, and the log stays as dense as it was.

    erase("orders", key="customer-7", reason="asked for on 2026-11-20", dry_run=True)

The search follows the path of an event: staged, scheduled, buffer, log, and then what consumers keep. An event that
moves on meanwhile is found in the next table, so no process has to stop: no head is locked, and no transaction is
longer than a batch.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from django_events import declarations, models, sql
from django_events.log.inventory import existing
from django_events.models.buffer import writable
from django_events.operating.erasing import log, pseudonyms, traces, waiting
from django_events.operating.erasing.erasure import Erased, Erasure
from django_events.operating.erasing.refusals import refuse, refuse_unknown, refuse_unreadable
from django_events.operating.interventions import this_user
from django_events.operating.orphans import forget_orphans

logger = logging.getLogger("django_events.erasure")
SQL = sql.beside(__name__)

NAMED = 100  # events that an intervention lists; more are only counted


def erase(
    topic: declarations.DeclaredTopic | str,
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
    refuse(using, key, ids, reason=reason, forget_key=forget_key, dry_run=dry_run)
    refuse_unreadable(ids, texts={"key": key, "reason": reason, "by": by})
    ids = sorted(set(ids))
    row = existing(using, topic)
    refuse_unknown(using, row, ids)
    known_as = None if key is None else pseudonyms.digests(row.name, key)[0]
    new_key = _pseudonym(using, row.name, key) if key is not None and forget_key else None
    erasure = Erasure(
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
    record = _say_blank(erasure, record)
    traces.after_those_in_hand(erasure, wait)
    forget_orphans(using)  # of a consumer whose unregistering was interrupted: errors, and keys
    _finish(erasure, record)
    return erasure.erased


def _pseudonym(using: str, topic: str, key: str) -> str:
    """What stands in the place of a key: the same each time, as long as a record tells it by a secret of the settings.

    Without a secret of the site the key can't be found by trying. Records name a key by the newest secret, and a former
    pseudonym goes from one to the next.
    """
    names = pseudonyms.digests(topic, key)
    records = models.Intervention.objects.using(using).filter(action="erase", topic=topic, details__key__in=names)
    known = records.exclude(details__new_key=None).order_by("pk").values_list("details__new_key", flat=True)
    return next(iter(known[:1]), f"erased-{names[0][:32]}")


def _erase(erasure: Erasure) -> None:
    """Blank all payloads, then replace all keys, so that no payload waits until the keys before it are replaced."""
    if erasure.new_key is not None and not erasure.dry_run:
        _everywhere(replace(erasure, new_key=None, keys_follow=True))
    _everywhere(erasure)


def _everywhere(erasure: Erasure) -> None:
    """Search all tables, in the order in which an event passes them."""
    if erasure.key is not None:
        waiting.blank(erasure)
    for ids in log.find(erasure):
        if not erasure.dry_run:
            log.blank(erasure, ids)
            traces.of_events(erasure, ids)
    traces.of_consumers(erasure)
    if erasure.new_key is not None:
        traces.of_dedup_keys(erasure)


def _begin(erasure: Erasure, by: str, reason: str) -> models.Intervention:
    """Record the erasure before it begins, so that an interrupted one is on record too.

    Under a lock, so that one which gets a higher number is not seen before this one is.
    """
    with sql.batch(erasure.using):
        sql.fetch(erasure.using, SQL.begin_erasure)
        return models.Intervention.objects.using(erasure.using).create(
            by=by[:200],
            action="erase",
            consumer="",
            topic=erasure.topic.name,
            details={**_said(erasure), "reason": reason, "finished": False},
        )


def _said(erasure: Erasure) -> dict[str, Any]:
    said: dict[str, Any] = {"incarnation": str(erasure.topic.incarnation)}
    if erasure.key is None:
        return said | {
            "events_named": list(erasure.ids[:NAMED]),
            "count": len(erasure.ids),
            "ranges": _ranges(erasure.ids),
        }
    newest = pseudonyms.secret_names()[0]
    return said | {"key": erasure.erased.key, "new_key": erasure.new_key, "secret": newest}


def _ranges(ids: Sequence[int]) -> list[list[int]]:
    """Ids in order as from and to: what was exported is told by all of them."""
    ranges: list[list[int]] = []
    for one in ids:
        if ranges and one == ranges[-1][1] + 1:
            ranges[-1][1] = one
        else:
            ranges.append([one, one])
    return ranges


def _say_blank(erasure: Erasure, record: models.Intervention) -> models.Intervention:
    """Record that the log is blank, and up to which id: from now on exports can only read it so.

    What was exported may have gone past the record meanwhile, or a later one of the same events stand in for it: then
    this erasure gets a record anew, with a number that nothing has gone past. Returns the one that counts. It stands in
    for those before it that were of the same events.
    """
    with sql.batch(erasure.using):
        sql.fetch(erasure.using, SQL.begin_erasure)
        records = models.Intervention.objects.using(erasure.using)
        known = records.select_for_update().get(pk=record.pk)
        is_past = "passed" in known.details or "closed_by" in known.details
        record.details |= {"until": erasure.seen.until}
        if is_past:
            record.pk = None
            record.save(using=erasure.using, force_insert=True)
        else:
            record.save(using=erasure.using, update_fields=["details"])
        # The newest first, as all do it who lock some of them.
        same = records.filter(action="erase", topic=erasure.topic.name, pk__lt=record.pk, **_of_the_same(erasure))
        for one in same.order_by("-pk").select_for_update():
            if "closed_by" not in one.details and one.details.get("new_key") in (None, erasure.new_key):
                one.details["closed_by"] = record.pk
                one.save(using=erasure.using, update_fields=["details"])
    return record


def _of_the_same(erasure: Erasure) -> dict[str, Any]:
    """What records have that are of the same events."""
    said = {"details__incarnation": str(erasure.topic.incarnation)}
    if erasure.key is None:
        return said | {"details__ranges": _ranges(erasure.ids)}
    return said | {"details__key__in": pseudonyms.digests(erasure.topic.name, erasure.key)}


def _finish(erasure: Erasure, record: models.Intervention) -> None:
    counts = {name: value for name, value in asdict(erasure.erased).items() if isinstance(value, int)}
    record.details |= {**counts, "finished": not erasure.erased.in_hand}
    record.save(using=erasure.using, update_fields=["details"])
    logger.info("Erased events of topic %r: %d rows, by %s.", erasure.topic.name, erasure.erased.rows, record.by)
