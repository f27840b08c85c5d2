"""The deliveries of a queue consumer, as its pages list them."""

from django.db.models import QuerySet

from django_events import sql
from django_events.models import Consumer, Delivery, DeliveryLease, Event

SQL = sql.beside(__name__)

LISTED = 100
LEASED = 10_000  # events in hand that are looked up
IN_HAND = ("event_id", "received_at", "visible_at", "token", "attempts", "delivered", "error")  # in that order


def leases(using: str, row: Consumer) -> list[DeliveryLease]:
    """What the workers of a queue consumer have in hand, the lease that ends first first."""
    return list(DeliveryLease.objects.using(using).filter(consumer=row).order_by("leased_until")[:LISTED])


def listed(using: str, row: Consumer, state: str, *, after: int) -> list[Delivery]:
    """Deliveries of a consumer as the page lists them, and one more if there are more."""
    with sql.by_index(using):
        return _listed(using, row, state, after)


def _listed(using: str, row: Consumer, state: str, after: int) -> list[Delivery]:
    rows: QuerySet[Delivery] = Delivery.objects.using(using).filter(consumer=row)
    if state == "leased":
        ids = sorted(one for lease in leases(using, row) for one in lease.event_ids if one > after)
        in_hand = SQL.deliveries_in_hand
        found = sql.fetch(using, in_hand, consumer_id=row.pk, event_ids=ids[:LEASED], limit=LISTED + 1)
        return [Delivery(consumer_id=row.pk, **dict(zip(IN_HAND, one, strict=True))) for one in found]
    if state == "retrying":  # among those that are due first: a million may wait for their first attempt
        waiting = rows.filter(visible_at__isnull=False).order_by("visible_at").values_list("event_id", "attempts")
        ids = [event_id for event_id, attempts in waiting[:LEASED] if attempts][: LISTED + 1]
        return sorted(rows.filter(event_id__in=ids), key=lambda one: ids.index(one.event_id))
    if state == "waiting":
        return list(rows.filter(visible_at__isnull=False).order_by("visible_at")[: LISTED + 1])
    return list(rows.filter(event_id__gt=after).order_by("event_id")[: LISTED + 1])


def types_and_keys(using: str, row: Consumer, event_ids: list[int]) -> dict[int, tuple[str, str | None]]:
    """Of events that are in the log; of a dead letter that is handled again after retention nothing is known here."""
    with sql.by_index(using):
        found = Event.objects.using(using).filter(topic_id=row.topic_id, id__in=event_ids)
        return {event_id: (type_, key) for event_id, type_, key in found.values_list("id", "type", "key")}
