"""Declared clocks become rows, on every `migrate`. Doing it again changes nothing, and several processes may do it.

A changed expression or time zone begins anew with the next tick to come. A clock that is no longer declared keeps its
row, and no transfer that doesn't declare it publishes its ticks.
"""

from datetime import datetime

from django_events import declarations, sql
from django_events.declarations.cron import ticks_after
from django_events.drafts import UNSET
from django_events.exceptions import Invalid, InvalidEvent, UnknownName, did_you_mean
from django_events.models import Clock, Topic
from django_events.publishing.encoding import BufferRow, encode

SQL = sql.beside(__name__)

SHOWN = ("topic", "cron", "tz", "type", "key", "missed", "overlap")


def sync(using: str) -> list[str]:
    """Make and adapt what the declarations ask for, each in its transaction; returns a line for each change."""
    declarations.clocks.check()
    return [change for declared in declarations.clocks for change in _sync(using, declared)]


def _sync(using: str, declared: declarations.DeclaredClock) -> list[str]:
    topic, event = _topic(using, declared), _event(declared)
    with sql.committed(using):
        first = next_tick(using, declared.cron, declared.tz)
        new = sql.fetch(
            using,
            SQL.make,
            name=declared.name,
            topic_id=topic.pk,
            cron=declared.cron,
            tz=declared.tz,
            type=event.type,
            key=event.key,
            value=event.value,
            missed=declared.missed,
            overlap=declared.overlap,
            next_at=first,
        )
        if new:
            return [f"Clock {declared}: made, first tick at {first.isoformat()}."]
        before = Clock.objects.using(using).select_related("topic").select_for_update(of=("self",)).get(name=declared)
        [[same_value]] = sql.fetch(using, SQL.has_value, clock_id=before.pk, value=event.value)
        changes = [
            f"{name} {old} → {new}"
            for name in SHOWN
            if str(old := getattr(before, name)) != str(new := getattr(declared, name))
        ]
        changes += [] if same_value else ["another value"]
        if changes:
            starts_anew = (before.cron, before.tz) != (declared.cron, declared.tz)
            sql.fetch(
                using,
                SQL.adapt,
                name=declared.name,
                topic_id=topic.pk,
                cron=declared.cron,
                tz=declared.tz,
                type=event.type,
                key=event.key,
                value=event.value,
                missed=declared.missed,
                overlap=declared.overlap,
                next_at=first if starts_anew else None,
            )
    return [f"Clock {declared}: {', '.join(changes)}."] if changes else []


def next_tick(using: str, cron: str, tz: str) -> datetime:
    """The first tick to come, by the database's clock."""
    return next(ticks_after(cron, tz, sql.now(using)))


def _topic(using: str, declared: declarations.DeclaredClock) -> Topic:
    topics = Topic.objects.using(using)
    topic = topics.filter(name=declared.topic).first()
    if topic is None:
        known = topics.values_list("name", flat=True)
        raise UnknownName(
            f"Clock {declared} is declared for topic {declared.topic!r}, at {declared.declared_at}, and the database "
            f"{using!r} has no such topic. {did_you_mean(declared.topic, known)}"
        )
    return topic


def _event(declared: declarations.DeclaredClock) -> BufferRow:
    """Its event, encoded as `publish` would: what is refused there is refused here."""
    try:
        topic = declarations.DeclaredTopic(name=declared.topic)
        event = encode(topic, declared.value, UNSET, declared.type, declared.key, None, None)
    except InvalidEvent as error:
        raise Invalid(f"Clock {declared}, declared at {declared.declared_at}: {error}") from error
    return event if isinstance(event, BufferRow) else event.row
