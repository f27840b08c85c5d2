"""Inboxes from the log of another site, which has django_events on a PostgreSQL of its own.

    inbox(orders, source=log_source("orders", broker="shop"), name="orders-in")                  # as new events
    inbox(orders, source=log_source("orders", broker="shop"), name="orders-in", keep_ids=True)   # a mirror

How to connect is in the settings, as for brokers: `{"shop": {"host": …, "dbname": …, "user": …, "password": …}}`, or
`{"shop": {"dsn": "postgresql://…"}}`. The login needs what `manage.py events grants --role mirror` gives it there.
"""

from collections.abc import Iterator, Sequence

from django_events.bridges.inboxes.log_reader import LogReader, SourceLog
from django_events.declarations.limits import NAME, NAME_RULE, is_storable


class LogSource(SourceLog):
    """A topic of another site as the source of an inbox."""

    def problems(self) -> Iterator[str]:
        if not isinstance(self.topic, str) or not NAME.fullmatch(self.topic):
            yield f"log_source has {self.topic!r}, expected the name of a topic there: {NAME_RULE}."
        if not isinstance(self.broker, str) or not self.broker:
            yield f"log_source has broker={self.broker!r}, expected a name that DJANGO_EVENTS['BROKERS'] has."
        for option, patterns in (("types", self.types), ("keys", self.keys)):
            if patterns is not None and (not patterns or not all(map(is_storable, patterns))):
                yield f"log_source has {option}={list(patterns)!r}, expected texts, like ['order.*'], or None for all."

    def problems_of_kept_ids(self) -> Iterator[str]:
        """Why a log with the same ids can't be made of it."""
        if self.filtered:
            yield (
                "keep_ids=True takes all events: without those that types= or keys= leave out, its ids would have "
                "gaps, and what is missing would look like what is left out. Filter where the events are consumed, or "
                "let them have ids of their own, without keep_ids."
            )

    def check_installed(self) -> None:
        """There is nothing to install: it is read by psycopg."""

    def reader(self) -> LogReader:
        return LogReader(self)

    def copying_reader(self) -> LogReader:
        """One that hands rows over as they are stored."""
        return LogReader(self, copies=True)


def log_source(
    topic: str, *, broker: str, types: Sequence[str] | None = None, keys: Sequence[str] | None = None
) -> LogSource:
    """An inbox's source: a topic of another site, whose PostgreSQL `DJANGO_EVENTS["BROKERS"]` has under this name.

    `types` and `keys` are patterns, as those of consumers: what they leave out isn't read.
    """
    return LogSource(topic=topic, broker=broker, types=_tuple(types), keys=_tuple(keys))


def _tuple(patterns: Sequence[str] | None) -> tuple[str, ...] | None:
    if patterns is None:
        return None
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)
