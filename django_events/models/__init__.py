"""The tables: what one row of each is."""

from django_events.models.buffer import BufferedEvent
from django_events.models.events import Event
from django_events.models.topics import Topic, TopicHead

__all__ = ["BufferedEvent", "Event", "Topic", "TopicHead"]
