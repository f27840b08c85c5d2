"""`manage.py run_consumer billing`: hand events to consumers."""

import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_events import declarations
from django_events.consuming.queues.deliveries import ALWAYS, Window
from django_events.consuming.setbacks import ConsumerSetbacks
from django_events.exceptions import HandlerNotFound
from django_events.management.events.subcommand import past_time
from django_events.management.worker import Tally, WorkerCommand, log_handled, quoted
from django_events.workers.consuming import ConsumerPool
from django_events.workers.listening import Listener
from django_events.workers.loop import Exit
from django_events.workers.several import OneDatabase, Several


class Command(WorkerCommand):
    help = "Hand events to consumers, until stopped. Any number of these may run: they share the work."

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_consumers(parser, which="Which consumers.")
        parser.add_argument("--all", action="store_true", help="Every consumer that the installed apps declare.")
        parser.add_argument("--once", action="store_true", help="Handle what is due, and exit.")
        for option, bound in (("--received-since", "from"), ("--received-until", "before")):
            parser.add_argument(
                option,
                type=past_time,
                metavar="TIME",
                help=f"Only events that came to the queue {bound} then: a time with its zone, or 2h ago, as 2h.",
            )
        self.add_metrics(parser)
        self.add_databases(parser)

    def handle(
        self,
        *args: Any,
        names: list[str],
        all: bool,
        threads: int,
        once: bool,
        received_since: datetime | None,
        received_until: datetime | None,
        metrics: str | None,
        database: list[str] | None,
        all_databases: bool,
        verbosity: int,
        **options: Any,
    ) -> None:
        consumers = self._chosen(names, all=all, threads=threads)
        received = Window(received_since, received_until)
        _refuse_window(received, consumers)
        aliases = self.aliases(database, all_databases=all_databases)
        handled, setbacks, broken = Tally(aliases), dict[str, ConsumerSetbacks](), list[HandlerNotFound]()

        def serve(one: OneDatabase) -> None:
            using = one.using
            with (
                closing(Listener(using)) as listener,
                closing(ConsumerPool(using, consumers, threads=threads, listener=listener, received=received)) as pool,
            ):
                setbacks[using], one.hand_back = pool.setbacks, pool.hand_back
                pool.run(one.stop, once=once, on_progress=handled.counting(one, log_handled(using)))
                broken.extend(pool.broken)

        several = Several(aliases, serve, once=once)
        with self.serving_metrics(metrics), self.working(aliases) as stop:
            if not once and verbosity:
                listed = ", ".join(consumer.name for consumer in consumers)
                self.say(f"Handing events of {quoted(aliases)} to {listed}. Ctrl-C stops.")
            several.run(stop)
        if verbosity:
            self.stdout.write(f"Events handled: {handled}.")
        self.refuse_failures(several.errors, consumers=setbacks if once else None)
        if broken:
            sys.exit(Exit.FAILED)

    def _chosen(self, names: list[str], *, all: bool, threads: int) -> list[declarations.DeclaredConsumer]:
        known = [consumer.name for consumer in declarations.consumers if not consumer.is_for_claims]
        if all and names:
            raise CommandError("Name consumers, or say --all, not both.", returncode=Exit.USAGE)
        if all and not known:
            raise CommandError(
                "No installed app declares a consumer with a handler. "
                "Declare one in an app's events.py: @consumer(…, name='…').",
                returncode=Exit.USAGE,
            )
        if not all and not names:
            listed = ", ".join(sorted(known)) or "none"
            raise CommandError(f"Name a consumer, or say --all. Known are: {listed}.", returncode=Exit.USAGE)
        return self.consumers(known if all else names, threads=threads)


def _refuse_window(received: Window, consumers: Sequence[declarations.DeclaredConsumer]) -> None:
    if received == ALWAYS:
        return
    if received.since is not None and received.until is not None and received.since >= received.until:
        raise CommandError("--received-since is not before --received-until.", returncode=Exit.USAGE)
    if streams := [one.name for one in consumers if one.mode != "queue"]:
        raise CommandError(
            f"Consumer {streams[0]!r} is a stream, which handles the events of a partition in order. "
            "--received-since and --received-until are for queues.",
            returncode=Exit.USAGE,
        )
