"""What `loaddata` is told of the rows of django_events: they belong to the log of one database."""

from typing import Any

from django.db.models import Model, Q
from django.db.models.signals import pre_save

from django_events.exceptions import Invalid
from django_events.models import BufferedEvent, Event, Topic


def refuse_fixtures() -> None:
    """Let rows of a fixture be refused in words; the database would refuse them in its own, or take half of them."""
    for model in (Topic, BufferedEvent, Event):
        pre_save.connect(_refuse, sender=model, dispatch_uid="django_events.fixtures")


def _refuse(sender: type[Model], instance: Model, raw: bool, using: str, **kwargs: Any) -> None:
    # A test with serialized_rollback loads the topics of its own database again.
    if raw and (not isinstance(instance, Topic) or _is_of_another_database(instance, using)):
        raise Invalid(  # loaddata adds the row to a ValueError only
            f"The rows of django_events belong to the log of the database that they come from, and {using!r} has one "
            "of its own. Load the file with --exclude django_events, or leave them out when it is written: manage.py "
            "dumpdata --exclude django_events. A database goes with its events by pg_dump."
        )


def _is_of_another_database(topic: Topic, using: str) -> bool:
    rows = Topic.objects.using(using).filter(Q(pk=topic.pk) | Q(name=topic.name))
    return any((row.pk, row.name) != (topic.pk, topic.name) for row in rows)
