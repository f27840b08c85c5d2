"""`manage.py run_inbox`: take the messages of brokers into topics."""

from contextlib import ExitStack, closing
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_events import declarations
from django_events.bridges.inboxes.serving import worker_of
from django_events.exceptions import UnknownName
from django_events.management.worker import Tally, WorkerCommand, log_taken_in, quoted
from django_events.workers.background import in_background
from django_events.workers.loop import Exit, run
from django_events.workers.several import OneDatabase, Several


class Command(WorkerCommand):
    help = "Take the messages of brokers into topics, until stopped. A second process stands by."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "names", nargs="*", metavar="NAME", help="Which inboxes; by default all that the installed apps declare."
        )
        parser.add_argument("--once", action="store_true", help="Take in what is there, and exit.")
        self.add_metrics(parser)
        self.add_databases(parser)

    def handle(
        self,
        *args: Any,
        names: list[str],
        once: bool,
        metrics: str | None,
        database: list[str] | None,
        all_databases: bool,
        verbosity: int,
        **options: Any,
    ) -> None:
        inboxes = self._inboxes(names)
        aliases = self.aliases(database, all_databases=all_databases)
        taken = Tally(aliases)
        failures: dict[str, str] = {}

        def serve(one: OneDatabase) -> None:
            count = taken.counting(one, log_taken_in(one.using))
            workers = [worker_of(one.using, inbox, once=once) for inbox in inboxes]
            if once:
                for worker in workers:
                    with closing(worker):
                        run(worker, one.stop, once=True, on_progress=count)
                failed = (worker for worker in workers if worker.failure)
                failures.update({f"{worker.inbox} on {one.using!r}": worker.failure for worker in failed})
                return
            with ExitStack() as beside:
                for worker in workers:
                    beside.enter_context(in_background(worker, on_error=one.stop.request, on_progress=count))
                one.stop.wait(None)

        several = Several(aliases, serve, once=once)
        with self.serving_metrics(metrics), self.working(aliases) as stop:
            if not once and verbosity:
                listed = ", ".join(inbox.name for inbox in inboxes)
                self.say(f"Taking messages in for {listed}, on {quoted(aliases)}. Ctrl-C stops.")
            several.run(stop)
        if verbosity:
            self.stdout.write(f"Messages taken in: {taken}.")
        self.refuse_failures(several.errors)
        if failures:
            told = "\n".join(f"{name}: {reason}" for name, reason in failures.items())
            raise CommandError(f"Nothing more can be taken in now.\n{told}", returncode=Exit.FAILED)

    def _inboxes(self, names: list[str]) -> list[declarations.DeclaredInbox]:
        try:
            found = [declarations.inboxes.get(name) for name in dict.fromkeys(names)] or list(declarations.inboxes)
        except UnknownName as error:
            raise CommandError(str(error), returncode=Exit.USAGE) from error
        if not found:
            said = "No installed app declares an inbox: see docs/how-to/take-in-from-a-broker.md"
            raise CommandError(said, returncode=Exit.USAGE)
        return found
