"""`manage.py run_transfer`: move events from the buffer into the log."""

from contextlib import closing, nullcontext
from typing import Any

from django.core.management.base import CommandParser

from django_events.log.setbacks import TopicSetbacks
from django_events.management.worker import Tally, WorkerCommand, log_moved, quoted
from django_events.workers.background import in_background
from django_events.workers.listening import Listener
from django_events.workers.loop import run
from django_events.workers.maintaining import Maintenance
from django_events.workers.several import OneDatabase, Several
from django_events.workers.transferring import TransferWorker


class Command(WorkerCommand):
    help = "Move events from the buffer into the log, until stopped. Any number of these may run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Move what is there, and exit.")
        self.add_metrics(parser)
        self.add_databases(parser)

    def handle(
        self,
        *args: Any,
        once: bool,
        metrics: str | None,
        database: list[str] | None,
        all_databases: bool,
        verbosity: int,
        **options: Any,
    ) -> None:
        aliases = self.aliases(database, all_databases=all_databases)
        moved, setbacks = Tally(aliases), dict[str, TopicSetbacks]()

        def serve(one: OneDatabase) -> None:
            using = one.using
            with closing(Listener(using)) as listener, closing(TransferWorker(using, listener)) as worker:
                setbacks[using] = worker.setbacks
                if not once and verbosity and not one.failures:
                    self.say_whether_it_polls(using)
                with nullcontext() if once else in_background(Maintenance(using)):
                    run(worker, one.stop, once=once, on_progress=moved.counting(one, log_moved(using)))

        several = Several(aliases, serve, once=once)
        with self.serving_metrics(metrics), self.working(aliases) as stop:
            if not once and verbosity:
                self.say(f"Moving the events of {quoted(aliases)} into the log. Ctrl-C stops.")
            several.run(stop)
        if verbosity:
            self.stdout.write(f"Events moved into the log: {moved}.")
        self.refuse_failures(several.errors, topics=setbacks if once else None)
