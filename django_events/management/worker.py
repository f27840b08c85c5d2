"""What the commands that run workers have in common: what they take and refuse, and how they end."""

import errno
import logging
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_events import declarations
from django_events.exceptions import UnknownName
from django_events.log.setbacks import Setback
from django_events.management.databases import add_databases, all_named, explained, explained_if_alone, worst
from django_events.phrases import count
from django_events.sql.direct import connected_as_a_worker
from django_events.workers.lasting import lasting
from django_events.workers.loop import Exit, RateMeter
from django_events.workers.several import OneDatabase
from django_events.workers.stopping import Stop, stop_on_signals
from django_events.workers.wakeups import why_polling

REPAIR = "What to do about it: manage.py events status"


class WorkerCommand(BaseCommand):
    """A command that works until it is stopped; its exit codes are for its supervisor."""

    def add_databases(self, parser: CommandParser) -> None:
        add_databases(parser, several=" Repeat it for several: each is served by threads of its own.")

    def add_consumers(self, parser: CommandParser, *, which: str) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help=which)
        parser.add_argument("--threads", type=int, default=1, help="How many partitions to handle at the same time.")

    def add_metrics(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve the metrics of this process to Prometheus there; by default on 127.0.0.1.",
        )

    @contextmanager
    def serving_metrics(self, where: str | None) -> Iterator[None]:
        """Serve what this process counts until the block ends, if it is wanted."""
        if where is None:
            yield
            return
        host, port = _address(where)
        try:
            from django_events.metrics.endpoint import served
        except ModuleNotFoundError as error:
            raise CommandError(
                "--metrics needs prometheus-client. Run: pip install 'django-events-pg[metrics]'",
                returncode=Exit.USAGE,
            ) from error
        with ExitStack() as serving:
            try:
                serving.enter_context(served(host, port))
            except (OSError, UnicodeError) as error:  # UnicodeError: what can be no name of a host
                raise CommandError(
                    f"Metrics can't be served at {where}: {error}.{_way_out(error)}", returncode=Exit.USAGE
                ) from error
            yield

    def aliases(self, database: str | Sequence[str] | None, *, all_databases: bool) -> list[str]:
        """The databases to work on, if workers can."""
        found = all_named(database, all_databases=all_databases)
        if any(connections[using].in_atomic_block for using in found):
            name = type(self).__module__.rpartition(".")[2]
            raise CommandError(
                f"{name} commits batch by batch, so it can't run inside a transaction of the caller.",
                returncode=Exit.USAGE,
            )
        return found

    def consumers(self, names: Sequence[str], *, threads: int) -> list[declarations.DeclaredConsumer]:
        """The declarations of these consumers, each once."""
        if threads < 1:
            raise CommandError(f"--threads is {threads}, expected at least 1.", returncode=Exit.USAGE)
        try:
            found = [declarations.consumers.get(name) for name in dict.fromkeys(names)]
        except UnknownName as error:
            raise CommandError(str(error), returncode=Exit.USAGE) from error
        for one in found:
            if one.is_for_claims:
                raise CommandError(
                    f"Consumer {one.name!r} is a queue without a handler: programs claim its events, see manage.py "
                    f"events claim {one.name}. No worker serves it.",
                    returncode=Exit.USAGE,
                )
        return found

    def say(self, text: str) -> None:
        """Print a line at once, also where standard output is a file."""
        self.stdout.write(text)
        self.stdout.flush()

    def say_whether_it_polls(self, using: str) -> None:
        """Print why events wait for the transfer's next look, where publishers don't wake it."""
        if reason := why_polling(using):
            self.say(reason)

    def refuse_failures(
        self,
        errors: Mapping[str, BaseException],
        topics: Mapping[str, Iterable[Setback]] | None = None,
        consumers: Mapping[str, Iterable[Setback]] | None = None,
    ) -> None:
        """End with what went wrong, by database: with all of it, or of topics and consumers that could not be served.

        The others were.
        """
        told, codes = list[str](), list[int]()
        for using, error in errors.items():
            try:
                with explained(using):
                    raise error
            except CommandError as one:
                told.append(str(one))
                codes.append(one.returncode)
        setbacks: list[str] = []
        for using, some in (topics or {}).items():
            setbacks += _set_back(using, some, "topic", "the events of others were moved")
        for using, some in (consumers or {}).items():
            setbacks += _set_back(using, some, "consumer", "the others were served")
        if setbacks:
            told += [*setbacks, REPAIR]
            codes.append(Exit.FAILED)
        if told:
            raise CommandError("\n".join(dict.fromkeys(told)), returncode=worst(codes))

    @contextmanager
    def working(self, aliases: Sequence[str]) -> Iterator[Stop]:
        """Stop on signals, and turn errors into messages with the exit code that says what to do about them.

        Of several databases each has errors of its own: `refuse_failures` tells them.
        """
        try:
            with explained_if_alone(aliases), ExitStack() as entered:
                for using in aliases:
                    entered.enter_context(connected_as_a_worker(using))
                entered.enter_context(lasting())
                yield entered.enter_context(stop_on_signals())
        except KeyboardInterrupt:
            sys.exit(Exit.FAILED)


class Tally:
    """How many events were done, of each database."""

    def __init__(self, aliases: Iterable[str]) -> None:
        self._done = dict.fromkeys(aliases, 0)
        self._adding = threading.Lock()

    def counting(self, one: OneDatabase, then: Callable[[int], None]) -> Callable[[int], None]:
        """Count what is done on one database; any call says that it was reached. Threads may share it."""

        def add(done: int) -> None:
            one.reached()
            with self._adding:
                self._done[one.using] += done
            then(done)

        return add

    def __bool__(self) -> bool:
        """Whether anything was done."""
        return any(self._done.values())

    def __str__(self) -> str:
        """`12`, or `12 of 'default', 3 of 'west'`."""
        if len(self._done) == 1:
            return str(next(iter(self._done.values())))
        return ", ".join(f"{done} of {using!r}" for using, done in self._done.items())


def quoted(aliases: Sequence[str]) -> str:
    """`'default'`, or `'default', 'west'`."""
    return ", ".join(map(repr, aliases))


def _set_back(using: str, setbacks: Iterable[Setback], what: str, others: str) -> list[str]:
    lines = [f"{one.name}: {one.said}" for one in setbacks]
    return [f"Working on {using!r} failed for {count(len(lines), what)}; {others}.", *lines] if lines else []


def _address(where: str) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise CommandError(
            f"--metrics is {where!r}, expected a port like 9101, or 0.0.0.0:9101, or [::1]:9101.",
            returncode=Exit.USAGE,
        )
    return host.strip("[]") or "127.0.0.1", int(port)


_NO_SUCH_HOST = " The host is a name or an address of this machine; 0.0.0.0 is all of them."
_WAYS_OUT = {
    errno.EADDRINUSE: " Each worker on a host needs a port of its own.",
    errno.EADDRNOTAVAIL: _NO_SUCH_HOST,
    errno.EACCES: " Choose a port above 1023: those below are for root.",
}


def _way_out(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError | socket.gaierror):
        return _NO_SUCH_HOST
    return _WAYS_OUT.get(error.errno or 0, "")


def log_rate(logger: logging.Logger, message: str, using: str) -> Callable[[int], None]:
    """Log once in a while how much was done, and how fast."""
    rate = RateMeter()

    def report(done: int) -> None:
        if (lately := rate.add(done)) and lately[0]:
            logger.info(message, count(lately[0], "event"), using, lately[1])

    return report


def log_moved(using: str) -> Callable[[int], None]:
    logger = logging.getLogger("django_events.transfer")
    return log_rate(logger, "Moved %s into the log of %r, %.0f per second.", using)


def log_handled(using: str) -> Callable[[int], None]:
    logger = logging.getLogger("django_events.consumer")
    return log_rate(logger, "Handled %s of %r, %.0f per second.", using)


def log_taken_in(using: str) -> Callable[[int], None]:
    logger = logging.getLogger("django_events.inboxes")
    return log_rate(logger, "Took in %s for %r, %.0f per second.", using)
