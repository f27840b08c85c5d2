"""More or fewer partitions for a topic that has events.

    repartition("orders", 16, by="ada")

Publishers, transfers and workers may run meanwhile. It is recorded as an intervention.
"""

from django_events import declarations, models, sql
from django_events.consuming.streams import layouts
from django_events.declarations.limits import check_number
from django_events.exceptions import Invalid
from django_events.log import layouts as log_layouts
from django_events.log.inventory import existing
from django_events.log.topics import changing_topics, prepare
from django_events.models.buffer import writable
from django_events.operating.interventions import record_of_topic
from django_events.operating.locks import bounded
from django_events.outcomes import Repartitioned


def repartition(
    topic: declarations.DeclaredTopic | str,
    partitions: int,
    *,
    reason: str = "",
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> Repartitioned:
    """Divide a topic's log into another number of partitions from the next event on; what is in it stays where it is.

    A stream that reads the partitions by themselves first handles, by the former number, all that was there before. So
    the events of each key stay in order. `migrate` does the same when the declaration has another number, and the
    declaration counts: change it too. Repeating it changes nothing.
    """
    using = writable(using)
    for problem in check_number(f"Topic {str(topic)!r}", "partitions", partitions, 1, declarations.MAX_PARTITIONS):
        raise Invalid(problem)
    row = existing(using, topic)
    if not dry_run:
        prepare(using, row, partitions)
    with bounded(using, f"Topic {topic}"), changing_topics(using):
        row = existing(using, topic)
        sql.fetch(using, sql.shared.lock_head, topic_id=row.pk)
        before, first_id = row.partitions, row.all_layouts[-1].first_id
        if before == partitions:
            return Repartitioned(row.name, before, partitions, first_id, _held_back(using, row))
        if dry_run:
            first_id = log_layouts.next_id(using, row)
            return Repartitioned(row.name, before, partitions, first_id, _would_be_held_back(using, row, first_id))
        first_id = log_layouts.divide(using, row, partitions)
        for consumer in _streams(using, row):
            layouts.arrange(using, consumer)
        held_back = _held_back(using, row)
        told = {"before": before, "after": partitions, "first_id": first_id, "held_back": list(held_back)}
        record_of_topic(using, row, "repartition", by=by, reason=reason, **told)
    return Repartitioned(row.name, before, partitions, first_id, held_back)


def declared_otherwise(changed: Repartitioned) -> declarations.DeclaredTopic | None:
    """The declaration, if an app declares the topic with another number: the next migrate follows it."""
    declared = next((one for one in declarations.registry if one.name == changed.topic), None)
    return None if declared is None or declared.partitions == changed.after else declared


def _streams(using: str, row: models.Topic) -> list[models.Consumer]:
    """The consumers that read the topic's partitions by themselves."""
    consumers = models.Consumer.objects.using(using).select_related("topic")
    return list(consumers.filter(topic=row, partitioned=True, mode="stream").order_by("name"))


def _held_back(using: str, row: models.Topic) -> tuple[str, ...]:
    """The consumers that stand, or will stand, at a barrier."""
    standing = models.Position.objects.using(using).filter(consumer__topic=row, barrier__isnull=False)
    return tuple(standing.order_by("consumer__name").values_list("consumer__name", flat=True).distinct())


def _would_be_held_back(using: str, row: models.Topic, first_id: int) -> tuple[str, ...]:
    return tuple(one.name for one in _streams(using, row) if layouts.is_behind(using, one, first_id))
