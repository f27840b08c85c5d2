"""`manage.py run_transfer`: move events from the buffer into the log."""

from contextlib import closing, nullcontext
from typing import Any

from django.core.management.base import CommandParser

from django_events.management.worker import WorkerCommand, log_moved
from django_events.workers.background import in_background
from django_events.workers.listening import Listener
from django_events.workers.loop import run
from django_events.workers.maintaining import Maintenance
from django_events.workers.transferring import TransferWorker


class Command(WorkerCommand):
    help = "Move events from the buffer into the log, until stopped. Any number of these may run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Move what is there, and exit.")
        self.add_metrics(parser)
        self.add_database(parser)

    def handle(
        self, *args: Any, once: bool, metrics: str | None, database: str | None, verbosity: int, **options: Any
    ) -> None:
        using = self.alias(database)
        with (
            self.serving_metrics(metrics),
            self.working(using) as stop,
            closing(Listener(using)) as listener,
            closing(TransferWorker(using, listener)) as worker,
        ):
            if not once and verbosity:
                self.say(f"Moving the events of {using!r} into the log. Ctrl-C stops.")
                self.say_whether_it_polls(using)
            with nullcontext() if once else in_background(Maintenance(using)):
                moved = run(worker, stop, once=once, on_progress=log_moved(using))
        if once:
            self.refuse_setbacks(using, worker.setbacks)
        if verbosity:
            self.stdout.write(f"Events moved into the log: {moved}.")
