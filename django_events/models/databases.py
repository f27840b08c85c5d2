"""Which databases have our tables.

for alias in databases():
    ...
"""

from django.db import connections, router

from django_events.models.buffer import writable
from django_events.models.topics import Topic


def databases() -> list[str]:
    """The aliases that hold topics, the usual one first. Two aliases of one database are both in it: a router that
    refuses to migrate one of them leaves it out."""
    holding = [
        alias
        for alias in connections
        if connections[alias].vendor == "postgresql" and router.allow_migrate_model(alias, Topic)
    ]
    return sorted(holding, key=lambda alias: alias != writable())
