"""`manage.py run_events`: the transfer and the consumers in one process, for development and small sites."""

import sys
from argparse import BooleanOptionalAction
from contextlib import closing
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from django_events import declarations
from django_events.management import reloading
from django_events.management.databases import explained
from django_events.management.worker import WorkerCommand, log_handled, log_moved
from django_events.workers.all_in_one import AllInOne, Done
from django_events.workers.loop import Exit
from django_events.workers.stopping import Stop


class Command(WorkerCommand):
    help = "Move events into the log and hand them to consumers, in one process, until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_consumers(parser, which="Which consumers; by default all that the installed apps declare.")
        parser.add_argument("--once", action="store_true", help="Work until nothing is due, and exit.")
        parser.add_argument(
            "--reload",
            action=BooleanOptionalAction,
            help="Start again when the code changes; by default where DEBUG is on.",
        )
        self.add_metrics(parser)
        self.add_database(parser)

    def handle(
        self,
        *args: Any,
        names: list[str],
        threads: int,
        once: bool,
        reload: bool | None,
        metrics: str | None,
        database: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        chosen = names or [one.name for one in declarations.consumers if not one.is_for_claims]
        consumers = self.consumers(chosen, threads=threads)
        using = self.alias(database)
        if once and reload:
            raise CommandError("--once ends by itself, so there is nothing to reload.", returncode=Exit.USAGE)
        if reload is None:
            reload = settings.DEBUG and not once
        if reload and not reloading.is_worker():
            sys.exit(reloading.watch_over_worker(self.say))
        greeting = _greeting(using, consumers, reload=reload) if verbosity and not once else ""
        if reload:
            with self.serving_metrics(metrics):
                self._work_until_changed(using, consumers, threads=threads, greeting=greeting)
            return
        with (
            self.serving_metrics(metrics),
            self.working(using) as stop,
            closing(AllInOne(using, consumers, threads=threads)) as worker,
        ):
            if greeting:
                self.say(greeting)
                self.say_whether_it_polls(using)
            done = _run(worker, stop, once=once)
        if once:
            self.refuse_setbacks(using, worker.transfer.setbacks, worker.pool.setbacks)
        if verbosity:
            self.stdout.write(f"Events moved into the log: {done.moved}. Events handled: {done.handled}.")
        if worker.pool.broken:
            sys.exit(Exit.FAILED)

    def _work_until_changed(
        self, using: str, consumers: list[declarations.DeclaredConsumer], *, threads: int, greeting: str
    ) -> None:
        workers: list[AllInOne] = []

        def work(stop: Stop) -> None:
            if greeting and not workers:
                self.say(greeting)
            workers.append(AllInOne(using, consumers, threads=threads))
            with closing(workers[-1]) as worker:
                _run(worker, stop)

        def hand_back() -> None:
            for worker in workers:
                worker.hand_back()

        with explained(using):
            reloading.work_until_changed(work, hand_back=hand_back, say=self.say)


def _run(worker: AllInOne, stop: Stop, *, once: bool = False) -> Done:
    return worker.run(stop, once=once, on_moved=log_moved(worker.using), on_handled=log_handled(worker.using))


def _greeting(using: str, consumers: list[declarations.DeclaredConsumer], *, reload: bool) -> str:
    listed = ", ".join(consumer.name for consumer in consumers) or "none: no installed app declares a consumer"
    reloading = " Code that changes is loaded again." if reload else ""
    return f"Moving the events of {using!r} into the log, and handing them to {listed}.{reloading} Ctrl-C stops."
