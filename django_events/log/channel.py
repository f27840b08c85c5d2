"""What publishers, transfers and workers say to each other through the server: channels, locks, and what a notice says.

news = channel.read("7:0,7:3,9")    # partitions 0 and 3 of topic 7 got events; in topic 9 something else happened
"""

from typing import NamedTuple

WAKE_UP = "django_events"  # a publisher wakes a transfer that sleeps; the payload is the id of the topic
ASLEEP = 7235707310506407027  # the lock of a transfer that sleeps, as in django_events_open(): 'djevents' in ASCII
PUBLISHING_DUE = ASLEEP + 1  # the lock of the transfer that publishes what is due

# Told with every batch, to workers that read the log: the partitions that got events, as in "7:0,7:3,9:0" with the ids
# of the topics. A mere "7" is all of a topic, nothing is everything.
LOG = "django_events_log"
LONGEST_PAYLOAD = 7_000  # PostgreSQL takes less than 8,000 bytes


class News(NamedTuple):
    """What a notice on the channel of the log says: which partitions got events, and in which topics else to look."""

    partitions: list[tuple[int, int]]
    topic_ids: list[int]
    everywhere: bool


def read(payload: str) -> News:
    named = [one.partition(":") for one in payload.split(",")]
    return News(
        [(int(topic_id), int(partition)) for topic_id, _, partition in named if partition],
        [int(topic_id) for topic_id, _, partition in named if topic_id and not partition],
        everywhere=not payload,
    )
