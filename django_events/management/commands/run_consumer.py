"""`manage.py run_consumer billing`: hand events to consumers."""

import logging
import sys
from contextlib import closing
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_events import declarations
from django_events.exceptions import UnknownConsumer
from django_events.management.worker import WorkerCommand
from django_events.workers.consuming import ConsumerPool
from django_events.workers.listening import Listener
from django_events.workers.loop import Exit, Rate

logger = logging.getLogger("django_events.consumer")


class Command(WorkerCommand):
    help = "Hand events to consumers, until stopped. Any number of these may run: they share the partitions."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help="Which consumers.")
        parser.add_argument("--all", action="store_true", help="Every consumer that the installed apps declare.")
        parser.add_argument("--threads", type=int, default=1, help="How many partitions to handle at the same time.")
        parser.add_argument("--once", action="store_true", help="Handle what is due, and exit.")
        parser.add_argument("--database", help="The database alias; by default where events are written.")

    def handle(
        self,
        *args: Any,
        names: list[str],
        all: bool,
        threads: int,
        once: bool,
        database: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        consumers = self._chosen(names, all=all)
        if threads < 1:
            raise CommandError(f"--threads is {threads}, expected at least 1.", returncode=Exit.USAGE)
        using, rate = self.alias(database), Rate()

        def report(handled: int) -> None:
            if (done := rate.add(handled)) and done[0]:
                logger.info("Handled %d events of %r, %.0f per second.", done[0], using, done[1])

        if not once and verbosity:
            listed = ", ".join(consumer.name for consumer in consumers)
            self.stdout.write(f"Handing events of {using!r} to {listed}. Ctrl-C stops.")
            self.stdout.flush()
        with (
            self.working(using) as stop,
            closing(Listener(using)) as listener,
            closing(ConsumerPool(using, consumers, threads=threads, listener=listener)) as pool,
        ):
            handled = pool.run(stop, once=once, on_progress=report)
        if verbosity:
            self.stdout.write(f"Events handled: {handled}.")
        if pool.broken:
            sys.exit(Exit.FAILED)

    def _chosen(self, names: list[str], *, all: bool) -> list[declarations.Consumer]:
        if all and names:
            raise CommandError("Name consumers, or say --all, not both.", returncode=Exit.USAGE)
        if all:
            consumers = list(declarations.consumers)
            if not consumers:
                raise CommandError(
                    "No installed app declares a consumer. Declare one in an app's events.py: @consumer(…, name='…').",
                    returncode=Exit.USAGE,
                )
            return consumers
        if not names:
            known = ", ".join(sorted(consumer.name for consumer in declarations.consumers)) or "none"
            raise CommandError(f"Name a consumer, or say --all. Known are: {known}.", returncode=Exit.USAGE)
        try:
            return [declarations.consumers.get(name) for name in dict.fromkeys(names)]
        except UnknownConsumer as error:
            raise CommandError(str(error), returncode=Exit.USAGE) from error
