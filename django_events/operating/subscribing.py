"""Subscriptions: queue consumers that are made and removed at run time, as rows, without a deploy.

    subscribe("acme", "orders", where="$.tenant == $tenant", vars={"tenant": "acme"}, expires_after=timedelta(days=7))
    with claim("acme", 10) as claimed: ...
    unsubscribe("acme")

Both are recorded as interventions.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db import OperationalError, transaction
from django.db.models import Q

from django_events import declarations, models, sql
from django_events.consuming import registration
from django_events.consuming.registered import Named
from django_events.consuming.subscribed import SUBSCRIBE, idle, rows, start_anew
from django_events.exceptions import InUse, Invalid, Refused, UnknownName, did_you_mean
from django_events.matching import FILTER
from django_events.models.buffer import writable
from django_events.models.databases import for_database
from django_events.models.functions import ClockTimestamp
from django_events.operating.interventions import record
from django_events.operating.locks import bounded
from django_events.operating.orphans import forget_orphans
from django_events.operating.unregistering import forget, hold, refuse_dead_letters
from django_events.outcomes import Subscribed
from django_events.phrases import duration
from django_events.retries import Backoff

SECONDS = 20.0  # of maintenance, which removes more a minute later
SHORTEST_LIFE, LONGEST_LIFE = timedelta(minutes=1), timedelta(days=3_650)
COUNTED = 10_001  # events that are lost with one that expires, for the record
STEP = "subscriptions"  # of maintenance, that removes them
EXPIRY = "maintenance"  # who removes those that are idle, in the record


def subscribe(
    name: str,
    topic: declarations.DeclaredTopic | str,
    *,
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    metadata: str | None = None,
    vars: Mapping[str, Any] | None = None,
    expires_after: timedelta | None,
    start: declarations.Start = "end",
    retry: Backoff = Backoff(),
    lease: timedelta = timedelta(seconds=30),
    ordered: bool = False,
    delay: timedelta | None = None,
    history: timedelta | None = None,
    max_pending: int | None = None,
    reason: str = "",
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> Subscribed:
    """Make a queue consumer of a topic at run time, or change its options; programs claim its events.

    It gets the events that its filter matches from `start` on. By default these are all that come into the log after
    the commit, also those that were published before. If nothing claims its events for `expires_after`, maintenance
    removes it. Repeating it changes nothing. Refused if an app declares a consumer of that name. With `dry_run` it is
    checked, and nothing is changed.
    """
    using = writable(using)
    declared = declarations.DeclaredConsumer(
        name=name,
        topics=(str(topic),),
        handler=None,
        types=declarations.texts(types),
        keys=declarations.texts(keys),
        where=where,
        metadata=metadata,
        vars=None if vars is None else dict(vars),
        partitioned=False,
        start=start,
        retry=retry,
        lease=lease,
        mode="queue",
        ordered=ordered,
        delay=delay,
        history=history,
        max_pending=max_pending,
        declared_at=SUBSCRIBE,
    )
    for problem in [*declared.problems(), *_problems_of_life(declared, expires_after)]:
        raise Invalid(problem)
    with bounded(using, f"Topic {topic}"):
        registration.check_filter(using, declared)
        with registration.holding_topic(using, str(topic), declared) as row_of_topic, transaction.atomic(using):
            _refuse_declared(using, declared)
            created = not rows(using).filter(name=name, topic=row_of_topic).exists()
            changed = bool(registration.adapt(using, declared, row_of_topic))
            row = models.Consumer.objects.using(using).select_related("topic").get(name=name, topic=row_of_topic)
            changed = changed or row.expires_after != expires_after
            row.subscribed, row.expires_after = True, expires_after
            row.save(using=using, update_fields=["subscribed", "expires_after"])
            row.positions.using(using).update(served_at=ClockTimestamp())
            first_id = _counts_from(using, row, row_of_topic, created=created)
            if dry_run:
                transaction.set_rollback(True, using)
            elif changed:
                record(using, row, "subscribe", by=by, reason=reason, **_described(declared, expires_after))
            return Subscribed(name, row.topic.name, created, changed, first_id)


def _counts_from(using: str, row: models.Consumer, topic: models.Topic, *, created: bool) -> int:
    """The id from which on a subscription is what it is now, while the topic's head is locked."""
    return row.filled_until + 1 if created or not row.live else registration.next_id(using, topic)


def unsubscribe(
    name: str,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    force: bool = False,
    reason: str = "",
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> list[str]:
    """Remove a subscription, with what it has not handled. Returns the topics in which it was, or would be, removed.

    Refused while it has dead letters, unless `force` says that they don't matter; InUse while some of its events are in
    hand.
    """
    using = writable(using)
    with bounded(using, f"Subscription {name}"):
        found = _subscription(using, name, topic)
        for row in found:
            hold(using, row)
            if not force:
                refuse_dead_letters(using, row)
        if not dry_run:
            for row in found:
                _remove(using, row, by=by, reason=reason)
    if not dry_run:
        forget_orphans(using)
    return [row.topic.name for row in found]


def expire_some(using: str, *, until: Callable[[], bool] = lambda: False, seconds: float = SECONDS) -> list[str]:
    """Remove the subscriptions that nothing has served for as long as they live without; returns their names.

    One that has events in hand, is claimed from in this moment, or is locked, stays. After `seconds`, or when `until`
    is true, the next call removes the rest.
    """
    deadline, gone = time.monotonic() + seconds, list[str]()
    start_anew(using, STEP)
    for consumer_id, _ in idle(using):
        if until() or time.monotonic() >= deadline:
            break
        try:
            name = _expire(using, consumer_id)
        except OperationalError as error:
            if sql.kind_of(error) not in (sql.ErrorKind.LOCKED, sql.ErrorKind.CANCELED):
                raise
            continue
        if name is not None:
            gone.append(name)
    return gone


def _expire(using: str, consumer_id: int) -> str | None:
    """Remove one that is idle, if it still is when no program can claim from it any more."""
    with sql.batch(using, **sql.UNHURRIED):
        row = rows(using).filter(pk=consumer_id).first()
        if row is None:
            return None
        # Before the topic's head is held, which its transfer waits for.
        pending, dead = (some.using(using)[:COUNTED].count() for some in (row.deliveries, row.dead_letters))
        try:
            hold(using, row)
        except (InUse, UnknownName):
            return None
        for _, idle_for in idle(using, [consumer_id]):
            _remove(
                using,
                row,
                by=EXPIRY,
                reason=f"not served for {duration(idle_for)}",
                pending=pending,
                dead_letters=dead,
            )
            return f"{row.name} of {row.topic}"
    return None


def _remove(using: str, row: models.Consumer, *, by: str | None, reason: str, **details: Any) -> None:
    """Delete one that is held. Without its leases, what a frozen program has in hand can't be settled any more."""
    row.delivery_leases.using(using).all().delete()
    forget(using, row, by=by, reason=reason, **details)


def _subscription(using: str, name: Named, topic: declarations.DeclaredTopic | str | None) -> list[models.Consumer]:
    found = list(rows(using).filter(Q(name=str(name)) if topic is None else Q(name=str(name), topic__name=str(topic))))
    if found:
        return found
    if models.Consumer.objects.using(using).filter(name=str(name), subscribed=False).exists():
        raise Refused(
            f"Consumer {str(name)!r} is declared by an app, or was, and no subscription. Nothing was changed. Remove "
            f"the declaration, then run: manage.py events unregister {name} --execute{for_database(using)}"
        )
    of_topic = "" if topic is None else f" of topic {str(topic)!r}"
    likely = did_you_mean(str(name), set(rows(using).values_list("name", flat=True)))
    raise UnknownName(f"There is no subscription {str(name)!r}{of_topic} in the database {using!r}. {likely}")


def _refuse_declared(using: str, declared: declarations.DeclaredConsumer) -> None:
    for one in declarations.consumers:
        if one.name == declared.name:
            raise Refused(
                f"A consumer {one.name!r} is declared at {one.declared_at}, so no subscription can have the name. "
                "Nothing was changed. Give it another name."
            )
    if models.WebhookEndpoint.objects.using(using).filter(consumer__name=declared.name).exists():
        raise Refused(
            f"{declared.name!r} is a webhook endpoint, so no other subscription can have the name. Nothing was "
            "changed. Give it another name; change the endpoint by change_webhook()."
        )
    others = models.Consumer.objects.using(using).filter(name=declared.name, subscribed=False).select_related("topic")
    if other := others.first():
        raise Refused(
            f"Consumer {other} was registered by an app or a query of Spark, so no subscription can have the name. "
            "Nothing was changed. Give it another name."
        )


def _problems_of_life(declared: declarations.DeclaredConsumer, expires_after: Any) -> list[str]:
    if expires_after is None:
        return []
    if isinstance(expires_after, timedelta) and SHORTEST_LIFE <= expires_after <= LONGEST_LIFE:
        return []
    return [
        f"Consumer {declared.name!r} has expires_after={expires_after!r}, expected a timedelta from 1 minute to ten "
        "years, or None to keep it until it is removed."
    ]


def _described(declared: declarations.DeclaredConsumer, expires_after: timedelta | None) -> dict[str, Any]:
    """What the record says of a subscription."""
    said = {name: value for name in FILTER if (value := getattr(declared, name)) is not None}
    return said | ({} if expires_after is None else {"expires_after": str(expires_after)})
