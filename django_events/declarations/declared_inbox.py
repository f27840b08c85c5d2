"""An inbox as an app declares it: the messages of a broker become events of a topic.

payments_in = inbox(payments, source=redis_source("bank.payments"), name="payments-in")
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from django_events.declarations.limits import MAX_BATCH, MAX_PENDING, NAME, NAME_RULE, check_number, is_storable
from django_events.declarations.operable import Restartable
from django_events.retries import Backoff

OnUnreadable = Literal["publish", "stop"]
Expired = Literal["stop", "skip"]
MessageTransform = Callable[[Any], Any]
LONGEST_START = 200
MOST_BUFFERED = 100_000


@runtime_checkable
class InboxSource(Protocol):
    """Where an inbox reads, as an app declares it; `django_events.bridges` has those of this package.

    It holds no connection and no secret: those are in the settings, under the name of the broker.
    """

    def __str__(self) -> str:
        """What people read: `redis bank.payments`."""

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why it can't be used."""

    def check_installed(self) -> None:
        """Raise Refused if a package is missing, naming the one to install."""

    def reader(self) -> Any:
        """A new `bridges.sources.SourceReader`, not open yet."""


@dataclass(frozen=True, kw_only=True)
class DeclaredInbox(Restartable):
    """Takes the messages of a source into a topic. Its row in the database is `models.Inbox`."""

    name: str
    topic: str
    source: InboxSource
    transform: MessageTransform | None = field(default=None, compare=False)
    start: str = "beginning"
    batch_size: int = 500
    on_unreadable: OnUnreadable = "publish"
    expired: Expired = "stop"
    keep_ids: bool = False
    most_buffered: int | None = MOST_BUFFERED
    most_lag: Mapping[str, int] | None = field(default=None, hash=False)
    retry: Backoff = Backoff()
    declared_at: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why this can't be an inbox."""
        what = f"Inbox {self.name!r}"
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            yield f"Inbox name {self.name!r} is not valid, expected a text: {NAME_RULE}."
        if not isinstance(self.source, InboxSource):
            yield f"{what} has source={self.source!r:.100}, expected a source, like redis_source('bank.payments')."
        else:
            yield from (f"{what}: {problem}" for problem in self.source.problems())
        if self.transform is not None and not callable(self.transform):
            yield f"{what} has transform={self.transform!r}, expected a function of a message, or None."
        if not is_storable(self.start) or not 0 < len(self.start) <= LONGEST_START:
            yield f"{what} has start={self.start!r}, expected 'beginning', 'end', or a message of the source."
        if getattr(self.source, "is_queue", False) and self.start != "beginning":
            yield f"{what} has start={self.start!r}, and a queue has no places: leave it out."
        if self.on_unreadable not in get_args(OnUnreadable):
            yield f"{what} has on_unreadable={self.on_unreadable!r}, expected 'publish' or 'stop'."
        if self.expired not in get_args(Expired):
            yield f"{what} has expired={self.expired!r}, expected 'stop' or 'skip'."
        yield from check_number(what, "batch_size", self.batch_size, 1, MAX_BATCH)
        if self.most_buffered is not None:
            yield from check_number(what, "most_buffered", self.most_buffered, 1, MAX_PENDING)
        yield from self._problems_of_most_lag(what)
        yield from (f"{what}: {problem}" for problem in self._problems_of_kept_ids())
        if not isinstance(self.retry, Backoff):
            yield f"{what} has retry={self.retry!r}, expected a Backoff."
        else:
            yield from (f"{what}: {problem}" for problem in self.retry.problems())

    def _problems_of_most_lag(self, what: str) -> Iterator[str]:
        if self.most_lag is None:
            return
        if not isinstance(self.most_lag, Mapping) or not all(isinstance(name, str) for name in self.most_lag):
            yield f"{what} has most_lag={self.most_lag!r}, expected names of consumers with numbers, or None."
            return
        for name, most in self.most_lag.items():
            yield from check_number(what, f"most_lag of {name!r}", most, 1, MAX_PENDING)

    def _problems_of_kept_ids(self) -> Iterator[str]:
        if not isinstance(self.keep_ids, bool):
            yield f"keep_ids={self.keep_ids!r}, expected True or False."
        elif self.keep_ids:
            refusing = getattr(self.source, "problems_of_kept_ids", None)
            if refusing is None:
                yield "keep_ids=True is for the log of another site, log_source(…): other sources have no such ids."
            else:
                yield from refusing()
            if self.transform is not None:
                yield "keep_ids=True takes events as they are, and transform would change them: leave one of them out."
            if self.most_lag is not None or self.most_buffered not in (MOST_BUFFERED, None):
                yield (
                    "keep_ids=True copies into the log, beside the buffer, and waits for no consumer: the other site "
                    "has these events in its log anyway. Leave most_buffered and most_lag out."
                )
