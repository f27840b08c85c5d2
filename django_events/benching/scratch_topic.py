"""The scratch topic of a measurement: its name is not used otherwise. It and its consumers are gone afterwards.

with scratch_topic("default", consumers=2, partitions=4) as made:
    publish(made.declared, ...)

A measurement that is killed leaves its topic behind, and the next one drops it. A lock tells whether it is in use.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import connections
from django.db.utils import ProgrammingError

from django_events import declarations, models, sql
from django_events.consuming import registration
from django_events.exceptions import InUse, Refused
from django_events.log import dropping, topics
from django_events.log.topics import changing_topics
from django_events.operating.orphans import forget_orphans

SQL = sql.beside(__name__)

PATIENCE = timedelta(minutes=1)
NAME = re.compile(r"events-bench\.[0-9a-f]{12}")
PLACE = "manage.py events bench"  # where it is declared, as far as messages say it

MakeConsumers = Callable[[declarations.DeclaredTopic], Sequence[declarations.DeclaredConsumer]]


@dataclass(frozen=True, kw_only=True)
class ScratchTopic:
    """What was made."""

    declared: declarations.DeclaredTopic
    topic: models.Topic
    consumers: Sequence[declarations.DeclaredConsumer]


class Leftover(NamedTuple):
    """A scratch topic that is there, and why it must not be dropped, if it must not."""

    topic: models.Topic
    kept: str


@contextmanager
def scratch_topic(
    using: str, consumers: MakeConsumers = lambda topic: [], *, patience: timedelta = PATIENCE, **options: Any
) -> Iterator[ScratchTopic]:
    """Make a topic with these options and its consumers, and drop them when the block ends, however it ends.

    In transactions of their own. No other topic, declared or not, is made, adapted or dropped.
    """
    declared = declarations.DeclaredTopic(name=f"events-bench.{secrets.token_hex(6)}", declared_at=PLACE, **options)
    for problem in declared.problems():
        raise Refused(problem)
    with _held(using, declared.name):
        declarations.registry.add(declared)
        try:
            topic = _made(using, declared)
            made = list(consumers(declared))
            for consumer in made:
                registration.register(using, consumer)
            yield ScratchTopic(declared=declared, topic=topic, consumers=made)
        finally:
            declarations.registry.discard(declared)
            if row := models.Topic.objects.using(using).filter(name=declared.name).first():
                drop(using, row, patience=patience)


def leftovers(using: str) -> list[Leftover]:
    """The scratch topics that are in the database. Looking changes nothing."""
    rows = models.Topic.objects.using(using).filter(name__startswith="events-bench.").order_by("name")
    return [Leftover(row, _why_kept(using, row)) for row in rows if NAME.fullmatch(row.name)]


def drop_leftover(using: str, topic: models.Topic) -> bool:
    """Drop a scratch topic unless a measurement uses it; returns whether it is gone."""
    with _holding(using, topic.name) as held:
        if not held or _why_kept(using, topic, held=True):
            return False
        drop(using, topic)
        return True


def drop(using: str, topic: models.Topic, *, patience: timedelta = PATIENCE) -> None:
    """Drop a scratch topic with its consumers and their deliveries. InUse if its log is locked for too long."""
    with sql.committed(using), changing_topics(using):
        sql.fetch(using, sql.shared.lock_head, topic_id=topic.pk)  # no delivery comes in meanwhile
        models.Consumer.objects.using(using).filter(topic=topic).delete()
        dropping.forget(using, topic)
    forget_orphans(using)
    if dropping.drop_forgotten(using, wait=patience):
        raise InUse(
            f"Topic {topic} is gone, but its log is locked, as by a report or a dump that takes long. Maintenance "
            "drops it."
        )


def _why_kept(using: str, topic: models.Topic, *, held: bool = False) -> str:
    if any(declared.name == topic.name for declared in declarations.registry):
        return "an app declares it"
    others = models.Consumer.objects.using(using).filter(topic=topic).exclude(name__startswith=f"{topic.name}.")
    if other := others.first():
        return f"consumer {other.name} reads it"
    if not held:
        with _holding(using, topic.name) as free:
            return "" if free else "it is in use"
    return ""


def _made(using: str, declared: declarations.DeclaredTopic) -> models.Topic:
    try:
        return topics.create(using, declared)
    except ProgrammingError as error:
        if sql.kind_of(error) is not sql.ErrorKind.FORBIDDEN:
            raise
        raise Refused(
            f"The role of the database {using!r} may not make a topic: {str(error).strip().splitlines()[0]}. Nothing "
            "was changed. Measure with the role that migrates: it owns the tables."
        ) from error


@contextmanager
def _held(using: str, name: str) -> Iterator[None]:
    with _holding(using, name) as held:
        if not held:
            raise InUse(f"Topic {name} is in use. Nothing was changed. Try again.")
        yield


@contextmanager
def _holding(using: str, name: str) -> Iterator[bool]:
    """Hold the name for the length of the block, on a connection that does nothing else."""
    connection = connections[using].copy()
    try:
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            timeouts = sql.locally({"idle_in_transaction_session_timeout": "0"})
            for statement, parameters in (timeouts, (SQL.hold_topic, {"name": name})):
                cursor.execute(statement.text, parameters)
                [row] = cursor.fetchall()
        yield bool(row[0])
    finally:
        connection.close()
