"""Into how many partitions a log is divided, and how that changes while events come.

    divide(using, topic, 16)

A layout holds from one id on until the next one begins. What is in the log stays where it is. Consumers that read the
partitions by themselves stand at the first id of the new layout, the barrier, until all their partitions have come so
far: so the events of a key stay in order, although the key may change partitions there.
"""

from django_events import models, sql
from django_events.log import indexing
from django_events.log.floors import floors_of
from django_events.models.topics import Layout
from django_events.statements import log_table

SQL = sql.beside(__name__)


def next_id(using: str, topic: models.Topic) -> int:
    """The id of the next event. The caller has the topic's head."""
    floors = floors_of(using, topic.pk)
    id_floor = 0 if floors is None else floors.id
    [[last_id]] = sql.fetch(using, sql.shared.last_id.on(log=log_table(topic.pk), topic_id=topic.pk, floor=id_floor))
    return int(last_id) + 1


def divide(using: str, topic: models.Topic, partitions: int) -> int:
    """Divide a log into so many partitions from the next event on; returns its id. The caller has the topic's head."""
    first_id = next_id(using, topic)
    numbers = _numbers(using, topic, first_id - 1)
    before, was_undivided = topic.all_layouts, topic.is_undivided
    topic.layouts = [*before, Layout(first_id, partitions)]
    topic.partitions = partitions
    topic.save(using=using, update_fields=["layouts", "partitions"])
    if was_undivided:
        indexing.build(using, topic, "partition")
    sql.fetch(
        using,
        SQL.set_barrier,
        topic_id=topic.pk,
        before=len(before) - 1,
        first_id=first_id,
        partitions=list(range(partitions)),
        numbers=[numbers.get(partition, 0) for partition in range(partitions)],
    )
    return first_id


def forget(using: str, topic: models.Topic) -> None:
    """The log was made anew, so it has one layout: positions go by that one, as far as they can."""
    models.Consumer.objects.using(using).filter(topic=topic).update(turns_at=None)
    positions = models.Position.objects.using(using).filter(consumer__topic=topic)
    positions.update(barrier=None)
    positions.filter(layout__gt=0).update(layout=0)


def _numbers(using: str, topic: models.Topic, last_id: int) -> dict[int, int]:
    """The number of the last event of each partition that there ever was."""
    if topic.is_undivided:
        return {0: last_id}
    floors = floors_of(using, topic.pk)
    known = dict(enumerate([] if floors is None else floors.numbers))
    statement = sql.shared.ends_of_partitions.on(
        log=log_table(topic.pk), topic_id=topic.pk, partitions=topic.most_partitions
    )
    return known | {partition: number for _, partition, number in sql.fetch(using, statement)}
