"""What the commands that run workers have in common: what they refuse, and how they end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections, router

from django_events import sql
from django_events.exceptions import EventsError, tables_missing
from django_events.models import BufferedEvent
from django_events.workers.loop import Exit, Unreachable
from django_events.workers.stopping import Stop, stop_on_signals


class WorkerCommand(BaseCommand):
    """A command that works until it is stopped; its exit codes are for its supervisor."""

    def alias(self, database: str | None) -> str:
        """The database to work on, if workers can."""
        using = database or router.db_for_write(BufferedEvent)
        if using not in connections:
            known = ", ".join(connections)
            raise CommandError(f"There is no database {using!r}. Known are: {known}.", returncode=Exit.USAGE)
        if connections[using].vendor != "postgresql":
            raise CommandError(
                f"The database {using!r} is {connections[using].vendor}; events need PostgreSQL.", returncode=Exit.USAGE
            )
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
            with stop_on_signals() as stop:
                yield stop
        except Unreachable as error:
            message = f"The database {using!r} can't be reached. {error}"
            raise CommandError(message, returncode=Exit.UNREACHABLE) from error
        except DatabaseError as error:
            message = tables_missing(using) if sql.state(error) == sql.UNDEFINED_TABLE else str(error).strip()
            raise CommandError(f"Working on {using!r} failed. {message}", returncode=Exit.FAILED) from error
        except EventsError as error:
            raise CommandError(str(error), returncode=Exit.FAILED) from error
        except KeyboardInterrupt:
            sys.exit(Exit.FAILED)
        finally:
            connections[using].close()
