"""`manage.py run_webhooks`: send events to webhook endpoints."""

from contextlib import closing
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_events.consuming.setbacks import ConsumerSetbacks
from django_events.management.worker import Tally, WorkerCommand, log_handled, quoted
from django_events.workers.listening import Listener
from django_events.workers.loop import Exit, run
from django_events.workers.several import OneDatabase, Several

MOST = 500  # requests under way


class Command(WorkerCommand):
    help = "Send events to webhook endpoints, until stopped. Any number of these may run: they share the work."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Send what is due, and exit.")
        parser.add_argument(
            "--concurrency",
            type=int,
            default=MOST,
            help="How many requests are under way at the same time, beside one of each endpoint.",
        )
        self.add_metrics(parser)
        self.add_databases(parser)

    def handle(
        self,
        *args: Any,
        once: bool,
        concurrency: int,
        metrics: str | None,
        database: list[str] | None,
        all_databases: bool,
        verbosity: int,
        **options: Any,
    ) -> None:
        try:
            from django_events.outward.webhook_worker import WebhookWorker
        except ModuleNotFoundError as error:
            raise CommandError(
                "run_webhooks needs aiohttp. Run: pip install 'django-events-pg[webhooks]'", returncode=Exit.USAGE
            ) from error
        if concurrency < 1:
            raise CommandError(f"--concurrency is {concurrency}, expected at least 1.", returncode=Exit.USAGE)
        aliases = self.aliases(database, all_databases=all_databases)
        settled, setbacks = Tally(aliases), dict[str, ConsumerSetbacks]()

        def serve(one: OneDatabase) -> None:
            using = one.using
            count = settled.counting(one, log_handled(using))
            with closing(Listener(using)) as listener:
                worker = WebhookWorker(using, listener, most=concurrency, once=once)
                with closing(worker):
                    setbacks[using], one.hand_back = worker.setbacks, worker.hand_back
                    run(worker, one.stop, once=once, on_progress=lambda _: count(worker.take_settled()))
                count(worker.take_settled())  # what was answered while it ended

        several = Several(aliases, serve, once=once)
        with self.serving_metrics(metrics), self.working(aliases) as stop:
            if not once and verbosity:
                self.say(f"Sending the events of {quoted(aliases)} to webhook endpoints. Ctrl-C stops.")
            several.run(stop)
        if verbosity:
            self.stdout.write(f"Attempts settled: {settled}.")
        self.refuse_failures(several.errors, consumers=setbacks if once else None)
