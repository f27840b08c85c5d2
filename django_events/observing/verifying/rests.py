"""What keeps consumers from their events for longer than anything should: leases, holds, pauses without an end."""

from datetime import timedelta

from django_events import sql
from django_events.declarations import LONGEST_LEASE
from django_events.models.databases import for_database
from django_events.observing.verifying.offenders import SHOWN, Offenders
from django_events.observing.verifying.snapshot import TopicSnapshot
from django_events.retries import LONGEST_PAUSE

SQL = sql.beside(__name__)

DAY = timedelta(days=1)  # for clocks that were set, and for what is asked for a moment later
HOLD = DAY  # holds are of seconds
CLAIM = timedelta(days=30)  # claim() takes any lease

FAULTS = {
    "held": (
        "consumer",
        "It is held until {until}: its workers claim nothing until then.",
        "A hold of seconds, by a rewind, a skip or retention that waits for the events in hand.",
        "UPDATE django_events_consumer SET held_until = NULL for it.",
    ),
    "lease": (
        "position",
        "Its lease, of {holder}, ends {until}.",
        "A lease of a day at most, which workers renew: until then the partition rests if its worker is gone.",
        "When its workers are stopped, UPDATE django_events_position SET leased_until = now() for it.",
    ),
    "claim": (
        "lease",
        "A lease of deliveries, of {holder}, ends {until}.",
        "A lease of days at most: until then no worker takes over what is in hand if its worker is gone.",
        "When that worker is gone, UPDATE django_events_deliverylease SET leased_until = now() for it.",
    ),
    "pause": (
        "position",
        "Its next attempt is at {until}.",
        "A pause of ten years at most, as Backoff and RetryLater take it.",
        "Have it tried now: manage.py events retry-now {consumer} --topic {topic}{database}",
    ),
    "delivery": (
        "delivery",
        "No worker gets the delivery before {until}.",
        "A pause of ten years at most, as Backoff and RetryLater take it, and the consumer's delay.",
        "When its workers are stopped, UPDATE django_events_delivery SET visible_at = NULL for it.",
    ),
    "redrive": (
        "dead letter",
        "The dead letter is to be handled again at {until}.",
        "A time soon after it was redriven.",
        "Have it handled again now: UPDATE django_events_deadletter SET redrive_at = now() for it.",
    ),
}


def verify_rests(seen: TopicSnapshot, offenders: Offenders) -> None:
    """The times until which workers wait are near enough."""
    rows = sql.fetch(
        seen.using,
        SQL.verify_rests,
        topic_id=seen.topic.pk,
        hold=HOLD,
        lease=LONGEST_LEASE + DAY,
        claim=CLAIM,
        pause=LONGEST_PAUSE + DAY,
        most=SHOWN,
    )
    for _, fault, consumer, partition, event_id, until, holder in rows:
        known = {
            "consumer": consumer,
            "topic": seen.topic.name,
            "database": for_database(seen.using),
            "until": "never" if until in (None, "infinity") else until,
            "holder": holder or "an unknown worker",
        }
        kind, *texts = FAULTS[fault]
        said = [text.format(**known) for text in texts]
        offenders.add(kind, seen.topic.name, *said, consumer=consumer, partition=partition, id=event_id)
    for fault, (kind, *_) in FAULTS.items():
        offenders.count_unlisted(kind, [("", row[0]) for row in rows if row[1] == fault])
