"""An operator has dead letters handled again by their consumer, or discards them.

redrive(DeadLetter.objects.of("billing"))
discard(DeadLetter.objects.of("billing").filter(key="7"), reason="a test order")
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby

from django.db import router
from django.db.models import QuerySet

from django_events import sql
from django_events.exceptions import InUse, Invalid, Refused
from django_events.models import Consumer, DeadLetter
from django_events.models.functions import ClockTimestamp
from django_events.operating.interventions import record
from django_events.operating.locks import bounded
from django_events.statements import log_table

SQL = sql.beside(__name__)

Letters = DeadLetter | Iterable[DeadLetter]
COPY = ("value", "body", "metadata", "error", "traceback", "fingerprint")
NAMED = 100  # events that an intervention lists; more are only counted


def redrive(dead_letters: Letters, *, reason: str = "", by: str | None = None, dry_run: bool = False) -> int:
    """Let their consumers handle these events again, oldest first; returns how many.

    In one transaction, all or none. The workers handle them, where keys are in order never beside another event of
    the same key; attempts are counted anew. Refused says that an older dead letter of the
    same key has to come first, InUse names the session that keeps one locked. Repeating it before they are handled
    changes nothing.
    """
    with _locked(dead_letters) as (using, letters):
        refuse_before_older(using, [letter.pk for letter in letters])
        if not dry_run:
            ids = [letter.pk for letter in letters]
            DeadLetter.objects.using(using).filter(pk__in=ids, redrive_at__isnull=True).update(
                redrive_at=ClockTimestamp(), attempts=0
            )
            _record(using, letters, "redrive", by=by, reason=reason)
    return len(letters)


def discard(dead_letters: Letters, *, reason: str, by: str | None = None, dry_run: bool = False) -> int:
    """Delete these dead letters; what is left of them is the record with the reason. Returns how many.

    In one transaction, all or none. InUse says that a worker handles one of them again in this moment, or
    which session keeps one locked.
    """
    if not reason.strip():
        raise Invalid("A dead letter is discarded for a reason: reason is empty.")
    with _locked(dead_letters) as (using, letters):
        if not dry_run:
            _refuse_in_hand(using, letters)
            _record(using, letters, "discard", by=by, reason=reason)
            _drop_deliveries(using, letters)
            DeadLetter.objects.using(using).filter(pk__in=[letter.pk for letter in letters]).delete()
    return len(letters)


def replace_all(using: str, row: Consumer, errors: Mapping[int, str]) -> int:
    """Drop the dead letters of a consumer whose events are in its log, and bury these events by id, with their errors.

    For a caller who has taken in all of the log otherwise, while no worker handles it; returns how many were dropped.
    """
    log = log_table(row.topic_id)
    dropped = sql.fetch(using, SQL.drop_those_in_log.on(log=log, topic_id=row.topic_id), consumer_id=row.pk)
    if errors:
        bury = SQL.bury_by_id.on(log=log, topic_id=row.topic_id)
        sql.fetch(using, bury, consumer_id=row.pk, ids=list(errors), errors=list(errors.values()))
    return len(dropped)


@contextmanager
def _locked(dead_letters: Letters) -> Iterator[tuple[str, list[DeadLetter]]]:
    """A transaction that locks these rows, in a fixed order; rows that are gone already are left out."""
    given = [dead_letters] if isinstance(dead_letters, DeadLetter) else dead_letters
    if isinstance(given, QuerySet):
        using, ids = given.db, list(given.values_list("pk", flat=True))
    else:
        given = [given] if isinstance(given, str) else list(given)
        if wrong := [one for one in given if not isinstance(one, DeadLetter)]:
            raise Invalid(
                f"{wrong[0]!r:.200} is no dead letter. Expected rows of DeadLetter, like "
                "DeadLetter.objects.filter(consumer__name='billing')."
            )
        using = (given[0]._state.db if given else None) or router.db_for_write(DeadLetter)
        ids = [letter.pk for letter in given]
    with bounded(using, "One of these dead letters, or its delivery,"):
        sql.fetch(using, SQL.lock_redriven, ids=ids)
        letters = DeadLetter.objects.using(using).filter(pk__in=ids).select_related("consumer__topic")
        # Without the payloads: there may be a hundred thousand dead letters.
        letters = letters.defer(*COPY)
        found = list(letters.order_by("consumer_id", "event_id").select_for_update(of=["self"]))
        yield using, _still(given, found)


def _still(given: Iterable[DeadLetter], found: list[DeadLetter]) -> list[DeadLetter]:
    """Those of the locked rows that a QuerySet is still about: one may have died again of another error meanwhile."""
    if not isinstance(given, QuerySet) or given.query.is_sliced or given.query.combinator:
        return found
    ids = set(given.order_by().filter(pk__in=[letter.pk for letter in found]).values_list("pk", flat=True))
    return [letter for letter in found if letter.pk in ids]


def refuse_before_older(using: str, ids: list[int]) -> None:
    """Refused if one of these would be handled again, and an older one of the same key would not."""
    for letter_id, older_id in sql.fetch(using, SQL.older_dead_letter, ids=ids):
        letter = DeadLetter.objects.using(using).select_related("consumer__topic").defer(*COPY).get(pk=letter_id)
        raise Refused(
            f"The dead letter {letter} of consumer {letter.consumer.name!r} can't be handled before "
            f"{letter.consumer.topic}/{older_id}, which is older and has the same key {letter.key!r}. "
            "Nothing was changed. Redrive that one too, or discard it."
        )


def _refuse_in_hand(using: str, letters: list[DeadLetter]) -> None:
    """InUse if a worker has the delivery of one. The letters are locked here, so waiting for it could deadlock."""
    redriven = sql.fetch(using, SQL.redriven_now, ids=[letter.pk for letter in letters])
    if in_hand := [event_id for event_id, free in redriven if not free]:
        raise InUse(
            f"The dead letter of event {in_hand[0]} is being handled again in this moment. Nothing was changed. "
            "Try again when that is over."
        )


def _drop_deliveries(using: str, letters: list[DeadLetter]) -> None:
    """Delete the deliveries of redriven dead letters, which queue consumers would handle again."""
    for consumer, of_consumer in groupby(letters, key=lambda letter: letter.consumer):
        if consumer.mode == "queue":
            ids = [letter.event_id for letter in of_consumer if letter.redrive_at is not None]
            consumer.deliveries.using(using).filter(event_id__in=ids).delete()


def _record(using: str, letters: list[DeadLetter], action: str, *, by: str | None, **details: str) -> None:
    for consumer, of_consumer in groupby(letters, key=lambda letter: letter.consumer):
        events = [letter.event_id for letter in of_consumer]
        record(using, consumer, action, by=by, count=len(events), events=events[:NAMED], **details)
