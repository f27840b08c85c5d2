"""The registered consumers of a database, found by their names."""

from collections.abc import Sequence

from django_events import declarations, models
from django_events.exceptions import Refused
from django_events.models.consumers import not_read, not_registered

Named = declarations.DeclaredConsumer | str


def refuse_several(rows: Sequence[models.Consumer], event_id: int) -> None:
    """Refused if a consumer reads several topics and only an id is given: it is another event in each of them."""
    if len(rows) > 1:
        topics = ", ".join(row.topic.name for row in rows)
        raise Refused(
            f"Consumer {rows[0].name!r} reads {topics}: {event_id} is another event in each of them. Nothing was "
            "changed. Say which topic is meant, with topic=…"
        )


def registered(
    using: str, consumer: Named, *, topic: declarations.DeclaredTopic | str | None = None
) -> list[models.Consumer]:
    """The rows of a consumer, one per topic, or the one of a topic; UnknownName if there is none."""
    rows = models.Consumer.objects.using(using).select_related("topic__head").order_by("topic_id")
    of_name = list(rows.filter(name=str(consumer)))
    if not of_name:
        raise not_registered(using, str(consumer))
    if topic is None:
        return of_name
    of_topic = [row for row in of_name if row.topic.name == str(topic)]
    if not of_topic:
        raise not_read(str(consumer), str(topic), [row.topic.name for row in of_name])
    return of_topic
