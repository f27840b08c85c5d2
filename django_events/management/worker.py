"""What the commands that run workers have in common: what they refuse, and how they end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from django_events.management.databases import explained, named
from django_events.workers.loop import Exit
from django_events.workers.stopping import Stop, stop_on_signals


class WorkerCommand(BaseCommand):
    """A command that works until it is stopped; its exit codes are for its supervisor."""

    def alias(self, database: str | None) -> str:
        """The database to work on, if workers can."""
        using = named(database)
        if connections[using].in_atomic_block:
            name = type(self).__module__.rpartition(".")[2]
            raise CommandError(
                f"{name} commits batch by batch, so it can't run inside a transaction of the caller.",
                returncode=Exit.USAGE,
            )
        return using

    @contextmanager
    def working(self, using: str) -> Iterator[Stop]:
        """Stop on signals, and turn errors into messages with the exit code that says what to do about them."""
        try:
            with explained(using), stop_on_signals() as stop:
                yield stop
        except KeyboardInterrupt:
            sys.exit(Exit.FAILED)
        finally:
            connections[using].close()
