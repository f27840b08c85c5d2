"""The database that is examined, and what several examinations look at, asked once."""

from functools import cached_property

from django_events.log.inventory import Log, Waiting, logs, next_scheduled, waiting
from django_events.observing.findings import Finding
from django_events.observing.lag import Standing, standings
from django_events.observing.problems import find_problems

# An examination that takes longer is worth less than what it disturbs.
LIMITS = {"statement_timeout": "5s", "lock_timeout": "1s"}


class Database:
    """One database, as it is now."""

    def __init__(self, using: str) -> None:
        self.using = using

    @cached_property
    def waiting(self) -> list[Waiting]:
        return waiting(self.using, **LIMITS)

    @cached_property
    def logs(self) -> list[Log]:
        return logs(self.using)

    @cached_property
    def standings(self) -> list[Standing]:
        return standings(self.using)

    @cached_property
    def problems(self) -> list[Finding]:
        """As `events status` tells them."""
        return find_problems(self.using, self.waiting, next_scheduled(self.using), self.standings)
