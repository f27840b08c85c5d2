"""What a dump should have beside running consumers: dropped segments, retries that wait, dead letters."""

from datetime import timedelta

from django_events import Backoff, consumer, topic
from django_events.received import ReceivedEvent
from tests.support.fault_app.handlers import FOLDER, write_effect

passing = topic("passing", partitions=2, segment_size=100, retention_events=200)
notes = topic("notes", timeline=True)


def write_when_repaired(event: ReceivedEvent) -> None:
    """Some events can't be handled before a file says that the world is repaired."""
    if "broken" in event.value and not (FOLDER / "repaired").exists():
        raise ConnectionError("not repaired yet")
    write_effect(event)


consumer(passing, name="reader")(write_effect)
consumer(notes, name="strict", retry=Backoff(attempts=1))(write_when_repaired)
consumer(notes, name="patient", mode="queue", retry=Backoff(attempts=1_000, base=timedelta(seconds=1)))(
    write_when_repaired
)
