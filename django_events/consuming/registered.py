"""The registered consumers of a database, found by their names."""

from collections.abc import Iterable, Sequence

from django_events import declarations, models
from django_events.exceptions import Refused, UnknownName, did_you_mean

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
        known: Iterable[str] = rows.values_list("name", flat=True)
        raise UnknownName(
            f"No consumer {str(consumer)!r} is registered in the database {using!r}. "
            f"{did_you_mean(str(consumer), set(known))}"
        )
    if topic is None:
        return of_name
    of_topic = [row for row in of_name if row.topic.name == str(topic)]
    if not of_topic:
        topics = [row.topic.name for row in of_name]
        raise UnknownName(
            f"Consumer {str(consumer)!r} doesn't read topic {str(topic)!r}. {did_you_mean(str(topic), topics)}"
        )
    return of_topic
