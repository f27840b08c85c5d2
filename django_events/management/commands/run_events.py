"""`manage.py run_events`: the transfer, consumers, webhooks and inboxes in one process, for small sites."""

import sys
from argparse import BooleanOptionalAction
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from django_events import declarations
from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.bridges.inboxes.serving import worker_of
from django_events.consuming.setbacks import ConsumerSetbacks
from django_events.log.setbacks import Setback
from django_events.management import reloading
from django_events.management.databases import explained_if_alone
from django_events.management.worker import Tally, WorkerCommand, log_handled, log_moved, log_taken_in, quoted
from django_events.workers.all_in_one import AllInOne, Sending
from django_events.workers.listening import Listener
from django_events.workers.loop import Exit
from django_events.workers.several import OneDatabase, Several
from django_events.workers.stopping import Stop


class Command(WorkerCommand):
    help = "Move events into the log, handle them, send webhooks and serve inboxes, in one process, until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_consumers(parser, which="Which consumers; by default all that the installed apps declare.")
        parser.add_argument("--once", action="store_true", help="Work until nothing is due, and exit.")
        parser.add_argument(
            "--reload",
            action=BooleanOptionalAction,
            help="Start again when the code changes; by default where DEBUG is on.",
        )
        parser.add_argument(
            "--webhooks",
            action=BooleanOptionalAction,
            help="Send webhooks; by default where aiohttp is installed and no consumers are named.",
        )
        parser.add_argument(
            "--inboxes",
            action=BooleanOptionalAction,
            help="Serve inboxes; by default where one is declared and no consumers are named.",
        )
        self.add_metrics(parser)
        self.add_databases(parser)

    def handle(
        self,
        *args: Any,
        names: list[str],
        threads: int,
        once: bool,
        reload: bool | None,
        webhooks: bool | None,
        inboxes: bool | None,
        metrics: str | None,
        database: list[str] | None,
        all_databases: bool,
        verbosity: int,
        **options: Any,
    ) -> None:
        chosen = names or [one.name for one in declarations.consumers if not one.is_for_claims]
        consumers = self.consumers(chosen, threads=threads)
        aliases = self.aliases(database, all_databases=all_databases)
        if once and reload:
            raise CommandError("--once ends by itself, so there is nothing to reload.", returncode=Exit.USAGE)
        is_able = find_spec("aiohttp") is not None
        if webhooks and not is_able:
            said = "--webhooks needs aiohttp. Run: pip install 'django-events-pg[webhooks]'"
            raise CommandError(said, returncode=Exit.USAGE)
        sends = (is_able and not names) if webhooks is None else webhooks
        served_inboxes = [*declarations.inboxes] if (not names if inboxes is None else inboxes) else []
        if reload is None:
            reload = settings.DEBUG and not once
        if reload and not reloading.is_worker():
            sys.exit(reloading.watch_over_worker(self.say))
        greeting = (
            _greeting(aliases, consumers, served_inboxes, reload=reload, sends=sends) if verbosity and not once else ""
        )
        if reload:
            with self.serving_metrics(metrics):
                self._work_until_changed(
                    aliases, consumers, served_inboxes, threads=threads, sends=sends, greeting=greeting
                )
            return
        work = _Work(aliases, consumers, served_inboxes, threads=threads, sends=sends, once=once)
        with self.serving_metrics(metrics), self.working(aliases) as stop:
            if greeting:
                self.say(greeting)
                work.on_start = self.say_whether_it_polls
            work.several.run(stop)
        if verbosity:
            sent = f" Webhook attempts settled: {work.sent}." if work.sent else ""
            taken = f" Messages taken in: {work.taken}." if work.taken else ""
            self.stdout.write(f"Events moved into the log: {work.moved}. Events handled: {work.handled}.{sent}{taken}")
        topics = {using: one.transfer.setbacks for using, one in work.workers.items()}
        served = {using: [*one.pool.setbacks, *work.of_webhooks(using)] for using, one in work.workers.items()}
        self.refuse_failures(work.several.errors, topics=topics if once else None, consumers=served if once else None)
        if any(one.pool.broken for one in work.workers.values()):
            sys.exit(Exit.FAILED)

    def _work_until_changed(
        self,
        aliases: list[str],
        consumers: list[declarations.DeclaredConsumer],
        inboxes: list[declarations.DeclaredInbox],
        *,
        threads: int,
        sends: bool,
        greeting: str,
    ) -> None:
        begun: list[_Work] = []

        def work(stop: Stop) -> None:
            if greeting and not begun:
                self.say(greeting)
            begun.append(_Work(aliases, consumers, inboxes, threads=threads, sends=sends))
            begun[-1].several.run(stop)
            self.refuse_failures(begun[-1].several.errors)

        def hand_back() -> None:
            for one in begun:
                one.several.hand_back()

        with explained_if_alone(aliases):
            reloading.work_until_changed(work, hand_back=hand_back, say=self.say)


class _Work:
    """A worker for each database, and what they did."""

    def __init__(
        self,
        aliases: list[str],
        consumers: list[declarations.DeclaredConsumer],
        inboxes: list[declarations.DeclaredInbox],
        *,
        threads: int,
        sends: bool,
        once: bool = False,
    ) -> None:
        self.several = Several(aliases, self._serve, once=once)
        self.workers: dict[str, AllInOne] = {}
        self.moved, self.handled, self.sent, self.taken = (Tally(aliases) for _ in range(4))
        self.on_start: Callable[[str], None] = lambda using: None
        self._consumers = consumers
        self._inboxes = inboxes
        self._threads = threads
        self._sends = sends
        self._once = once
        self._setbacks: dict[str, ConsumerSetbacks] = {}

    def _serve(self, one: OneDatabase) -> None:
        using = one.using

        def sending(listener: Listener, once: bool) -> Sending:
            from django_events.outward.webhook_worker import WebhookWorker  # needs aiohttp

            worker = WebhookWorker(using, listener, once=once)
            self._setbacks[using] = worker.setbacks
            return worker

        def taking_in(once: bool) -> list[InboxWorker]:
            return [worker_of(using, inbox, once=once) for inbox in self._inboxes]

        makes = sending if self._sends else None
        all_in_one = AllInOne(using, self._consumers, threads=self._threads, sending=makes, taking_in=taking_in)
        with closing(all_in_one) as worker:
            self.workers[using], one.hand_back = worker, worker.hand_back
            if not one.failures:
                self.on_start(using)
            worker.run(
                one.stop,
                once=self._once,
                on_moved=self.moved.counting(one, log_moved(using)),
                on_handled=self.handled.counting(one, log_handled(using)),
                on_sent=self.sent.counting(one, log_handled(using)),
                on_taken=self.taken.counting(one, log_taken_in(using)),
            )

    def of_webhooks(self, using: str) -> list[Setback]:
        """What could not be served of the endpoints of a database."""
        return list(self._setbacks.get(using, ()))


def _greeting(
    aliases: list[str],
    consumers: list[declarations.DeclaredConsumer],
    inboxes: list[declarations.DeclaredInbox],
    *,
    reload: bool,
    sends: bool,
) -> str:
    listed = ", ".join(consumer.name for consumer in consumers) or "none: no installed app declares a consumer"
    webhooks = " Webhooks are sent." if sends else ""
    taken = f" Messages are taken in for {', '.join(one.name for one in inboxes)}." if inboxes else ""
    reloading = " Code that changes is loaded again." if reload else ""
    return (
        f"Moving the events of {quoted(aliases)} into the log, and handing them to {listed}.{webhooks}{taken}"
        f"{reloading} Ctrl-C stops."
    )
