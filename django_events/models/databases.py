"""Which databases have our tables, and how commands name them.

for alias in databases():
    ...
"""

from django.db import connections, router

from django_events.models.buffer import writable
from django_events.models.topics import Topic


def for_database(using: str | None) -> str:
    """What a command that a message names needs to act on this database: nothing, or ` --database west`.

    Without it a command acts where events are written, and following the message would change the wrong database.
    """
    return "" if using in (None, writable()) else f" --database {using}"


def databases() -> list[str]:
    """The aliases that hold topics, the usual one first. Two aliases of one database are both in it: a router that
    refuses to migrate one of them leaves it out."""
    holding = [
        alias
        for alias in connections
        if connections[alias].vendor == "postgresql" and router.allow_migrate_model(alias, Topic)
    ]
    return sorted(holding, key=lambda alias: alias != writable())
