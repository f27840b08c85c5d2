"""What an operator does to a consumer, a topic, a clock or an inbox, as methods of its declaration.

billing.rewind(to=1042)
billing.pause(by="ada")
orders.remove(force=True, dry_run=True)

Each calls the function of the same name in `django_events.operations`.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, Literal, Protocol

from django_events.outcomes import Move, Rebuilt, RemovedTopic, Repartitioned, Replayed, Retried, Skipped

WAIT = timedelta(seconds=10)


class TopicLike(Protocol):
    """A declared topic. `DeclaredTopic` has these verbs from here, so it can't be imported here."""

    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> int: ...


OneTopic = TopicLike | str | None  # one of its topics, or all


def _operations() -> Any:
    """Declarations are read before Django is set up, so the room above is entered with the call."""
    return import_module("django_events.operations")


class Changeable:
    """The verbs that a declared topic has."""

    def repartition(
        self,
        partitions: int,
        *,
        reason: str = "",
        by: str | None = None,
        dry_run: bool = False,
        using: str | None = None,
    ) -> Repartitioned:
        """Divide the log of this topic into another number of partitions; see `operations.repartition`."""
        options = {"reason": reason, "by": by, "dry_run": dry_run, "using": using}
        changed: Repartitioned = _operations().repartition(self, partitions, **options)
        return changed

    def remove(
        self,
        *,
        force: bool = False,
        reason: str = "",
        by: str | None = None,
        wait: timedelta = timedelta(minutes=1),
        dry_run: bool = False,
        using: str | None = None,
    ) -> RemovedTopic:
        """Remove this topic with all its events; see `operations.remove_topic`."""
        options = {"force": force, "reason": reason, "by": by, "wait": wait, "dry_run": dry_run, "using": using}
        removed: RemovedTopic = _operations().remove_topic(self, **options)
        return removed


class Pausable:
    """The verbs that a declared clock has."""

    def pause(self, *, reason: str = "", by: str | None = None, using: str | None = None) -> bool:
        """Let this clock publish nothing more; see `operations.pause_clock`."""
        paused: bool = _operations().pause_clock(self, reason=reason, by=by, using=using)
        return paused

    def resume(self, *, reason: str = "", by: str | None = None, using: str | None = None) -> bool:
        """Let this clock go on with the next tick to come; see `operations.resume_clock`."""
        resumed: bool = _operations().resume_clock(self, reason=reason, by=by, using=using)
        return resumed

    def run(self, *, reason: str = "", by: str | None = None, using: str | None = None) -> datetime:
        """Publish an event of this clock now; see `operations.run_clock`."""
        tick: datetime = _operations().run_clock(self, reason=reason, by=by, using=using)
        return tick


class Restartable:
    """The verbs that a declared inbox has."""

    def pause(self, *, reason: str = "", by: str | None = None, using: str | None = None) -> bool:
        """Let this inbox take in nothing more; see `operations.pause_inbox`."""
        paused: bool = _operations().pause_inbox(self, reason=reason, by=by, using=using)
        return paused

    def resume(self, *, reason: str = "", by: str | None = None, using: str | None = None) -> bool:
        """Let this inbox go on where it was; see `operations.resume_inbox`."""
        resumed: bool = _operations().resume_inbox(self, reason=reason, by=by, using=using)
        return resumed

    def restart(
        self,
        *,
        start: str,
        reason: str = "",
        by: str | None = None,
        dry_run: bool = False,
        using: str | None = None,
    ) -> None:
        """Let this inbox begin anew in its source; see `operations.restart_inbox`."""
        _operations().restart_inbox(self, start=start, reason=reason, by=by, dry_run=dry_run, using=using)


class Rebuildable:
    """The verb that a consumer has which keeps a table true."""

    def rebuild(
        self,
        *,
        from_what_is_there: bool = False,
        past_failures: bool = False,
        anew: bool = False,
        reason: str = "",
        by: str | None = None,
        wait: timedelta = timedelta(minutes=1),
        on_progress: Callable[[Rebuilt], object] | None = None,
        dry_run: bool = False,
        using: str | None = None,
    ) -> Rebuilt:
        """Fill its table anew beside the one that is served, and change over; see `operations.rebuild`."""
        choices = {"from_what_is_there": from_what_is_there, "past_failures": past_failures, "anew": anew}
        options = {"reason": reason, "by": by, "wait": wait, "on_progress": on_progress, "dry_run": dry_run}
        rebuilt: Rebuilt = _operations().rebuild(self, **choices, **options, using=using)
        return rebuilt


class Operable:
    """The verbs that a declared consumer has."""

    def lag(self, *, topic: OneTopic = None, using: str | None = None) -> int:
        """How many events this consumer has not passed yet; see `operations.lag`."""
        behind: int = _operations().lag(self, topic=topic, using=using)
        return behind

    def rewind(
        self,
        *,
        to: Literal["beginning", "end"] | datetime | int,
        topic: OneTopic = None,
        partition: int | None = None,
        reason: str = "",
        by: str | None = None,
        wait: timedelta = WAIT,
        dry_run: bool = False,
        using: str | None = None,
    ) -> list[Move]:
        """Let this consumer go on at another offset; see `operations.rewind`."""
        how = {"wait": wait, "dry_run": dry_run, "using": using}
        options = {"partition": partition, "reason": reason, "by": by, **how}
        moves: list[Move] = _operations().rewind(self, to=to, topic=topic, **options)
        return moves

    def pause(
        self, *, topic: OneTopic = None, reason: str = "", by: str | None = None, using: str | None = None
    ) -> list[str]:
        """Let no worker begin anything more for this consumer; see `operations.pause`."""
        topics: list[str] = _operations().pause(self, topic=topic, reason=reason, by=by, using=using)
        return topics

    def resume(
        self, *, topic: OneTopic = None, reason: str = "", by: str | None = None, using: str | None = None
    ) -> list[str]:
        """Let this consumer go on after a pause; see `operations.resume`."""
        topics: list[str] = _operations().resume(self, topic=topic, reason=reason, by=by, using=using)
        return topics

    def retry_now(
        self,
        *,
        topic: OneTopic = None,
        event_id: int | None = None,
        reason: str = "",
        by: str | None = None,
        using: str | None = None,
    ) -> list[Retried]:
        """Let this consumer try again now what failed; see `operations.retry_now`."""
        options = {"reason": reason, "by": by, "using": using}
        retried: list[Retried] = _operations().retry_now(self, topic=topic, event_id=event_id, **options)
        return retried

    def skip(
        self,
        event_id: int,
        *,
        topic: OneTopic = None,
        reason: str,
        by: str | None = None,
        wait: timedelta = WAIT,
        dry_run: bool = False,
        using: str | None = None,
    ) -> Skipped:
        """Let this consumer give up on one event; see `operations.skip`."""
        options = {"reason": reason, "by": by, "wait": wait, "dry_run": dry_run, "using": using}
        skipped: Skipped = _operations().skip(self, event_id, topic=topic, **options)
        return skipped

    def replay(
        self,
        *,
        topic: OneTopic = None,
        ids: Iterable[int] | None = None,
        first: int | None = None,
        last: int | None = None,
        types: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        where: str | None = None,
        reason: str,
        by: str | None = None,
        dry_run: bool = False,
        using: str | None = None,
    ) -> Replayed:
        """Let this consumer handle chosen events again; see `operations.replay`."""
        chosen = {"ids": ids, "first": first, "last": last, "types": types, "keys": keys, "where": where}
        options = {"reason": reason, "by": by, "dry_run": dry_run, "using": using}
        replayed: Replayed = _operations().replay(self, topic=topic, **chosen, **options)
        return replayed

    def unregister(
        self,
        *,
        topic: OneTopic = None,
        reason: str = "",
        by: str | None = None,
        dry_run: bool = False,
        using: str | None = None,
    ) -> list[str]:
        """Forget this consumer and its positions; see `operations.unregister`."""
        options = {"reason": reason, "by": by, "dry_run": dry_run, "using": using}
        topics: list[str] = _operations().unregister(self, topic=topic, **options)
        return topics
