"""`manage.py run_transfer`: move events from the buffer into the log."""

import logging
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections, router

from django_events import sql
from django_events.exceptions import tables_missing
from django_events.models import BufferedEvent
from django_events.workers.listening import Listener
from django_events.workers.loop import Exit, Rate, Unreachable, run
from django_events.workers.stopping import stop_on_signals
from django_events.workers.transferring import TransferWorker

logger = logging.getLogger("django_events.transfer")


class Command(BaseCommand):
    help = "Move events from the buffer into the log, until stopped. Any number of these may run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Move what is there, and exit.")
        parser.add_argument("--database", help="The database alias; by default where events are written.")

    def handle(self, *args: Any, once: bool, database: str | None, verbosity: int, **options: Any) -> None:
        using = database or router.db_for_write(BufferedEvent)
        self._refuse(using)
        listener = Listener(using)
        worker, rate = TransferWorker(using, listener), Rate()

        def report(moved: int) -> None:
            if (done := rate.add(moved)) and done[0]:
                logger.info("Moved %d events into the log of %r, %.0f per second.", done[0], using, done[1])

        if not once and verbosity:
            self.stdout.write(f"Moving the events of {using!r} into the log. Ctrl-C stops.")
            self.stdout.flush()
        try:
            with stop_on_signals() as stop:
                moved = run(worker, stop, once=once, on_progress=report)
        except Unreachable as error:
            message = f"The database {using!r} can't be reached. {error}"
            raise CommandError(message, returncode=Exit.UNREACHABLE) from error
        except DatabaseError as error:
            raise CommandError(_explain(error, using), returncode=Exit.FAILED) from error
        except KeyboardInterrupt:
            sys.exit(Exit.FAILED)
        finally:
            worker.close()
            listener.close()
            connections[using].close()
        if verbosity:
            self.stdout.write(f"Events moved into the log: {moved}.")

    def _refuse(self, using: str) -> None:
        if using not in connections:
            known = ", ".join(connections)
            raise CommandError(f"There is no database {using!r}. Known are: {known}.", returncode=Exit.USAGE)
        if connections[using].vendor != "postgresql":
            raise CommandError(
                f"The database {using!r} is {connections[using].vendor}; events need PostgreSQL.", returncode=Exit.USAGE
            )
        if connections[using].in_atomic_block:
            raise CommandError(
                "run_transfer commits batch by batch, so it can't run inside a transaction of the caller.",
                returncode=Exit.USAGE,
            )


def _explain(error: DatabaseError, using: str) -> str:
    if sql.state(error) == sql.UNDEFINED_TABLE:
        return tables_missing(using)
    return f"The transfer of {using!r} failed. {str(error).strip()}"
