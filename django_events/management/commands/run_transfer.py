"""`manage.py run_transfer`: move events from the buffer into the log."""

import logging
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections, router

from django_events.models import BufferedEvent
from django_events.workers.loop import Exit, Rate, Unreachable, run
from django_events.workers.stopping import stop_on_signals
from django_events.workers.transferring import TransferWorker

logger = logging.getLogger("django_events.transfer")


class Command(BaseCommand):
    help = "Move events from the buffer into the log, until stopped. Any number of these may run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Move what is there, and exit.")
        parser.add_argument("--database", help="The database alias; by default where events are written.")

    def handle(self, *args: Any, once: bool, database: str | None, **options: Any) -> None:
        using = database or router.db_for_write(BufferedEvent)
        if using not in connections:
            raise CommandError(
                f"There is no database {using!r}. Known are: {', '.join(connections)}.", returncode=Exit.USAGE
            )
        worker, rate = TransferWorker(using), Rate()

        def report(moved: int) -> None:
            if (done := rate.add(moved)) and done[0]:
                logger.info("Moved %d events into the log of %r, %.0f per second.", done[0], using, done[1])

        logger.info("The transfer of %r runs.", using)
        try:
            with stop_on_signals() as stop:
                moved = run(worker, stop, once=once, on_progress=report)
        except Unreachable as error:
            raise CommandError(
                f"The database {using!r} can't be reached. {error}", returncode=Exit.UNREACHABLE
            ) from error
        except DatabaseError as error:
            raise CommandError(_explain(error, using), returncode=Exit.FAILED) from error
        except KeyboardInterrupt:
            sys.exit(Exit.FAILED)
        finally:
            worker.close()
            connections[using].close()
        self.stdout.write(f"Moved {moved} events into the log.")


def _explain(error: DatabaseError, using: str) -> str:
    if getattr(error.__cause__, "sqlstate", None) == "42P01":
        return (
            f"The tables of django_events are not in the database {using!r}. Run: manage.py migrate --database {using}"
        )
    return f"The transfer of {using!r} failed. {str(error).strip()}"
