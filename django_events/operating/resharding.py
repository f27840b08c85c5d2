"""Databases that share the keys of `shard_by`: one is added, or drained, while publishers and workers run.

    reshard(add=["west"])
    reshard(drain=["west"])      # its keys go to the others; what is in its log stays and is handled there
    forget_shard("west")         # what waits for it waits no longer

Each database has a row with the map. A change has two phases, and each database goes through them in a transaction of
its own. In the first one, all shards of the old map stop accepting the keys that move. Once all have, each takes over
the new map, and accepts what came to it; its consumers wait from there on, see `moved_keys`. So a key is never accepted
in two databases. Each step says what it expects to find: it can be repeated, by several processes at once, and one that
was frozen changes nothing when it wakes up late.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db import OperationalError, connections

from django_events import models, sql
from django_events.consuming.waiting import keeps_order, wait_from
from django_events.exceptions import InUse, Invalid, NotReady, Refused, UnknownName
from django_events.log.layouts import next_id
from django_events.models.buffer import writable
from django_events.models.databases import databases
from django_events.operating.interventions import record_of_database
from django_events.operating.moved_keys import SECONDS, find_ends
from django_events.outcomes import Resharded
from django_events.sql.blocking import blocker_of, watched
from django_events.sql.each import in_each

SQL = sql.beside(__name__)

LOCK_TIMEOUT = "700ms"  # publishers that come meanwhile wait behind this one
PAUSE = 0.3  # seconds between two tries, in which those publishers go on


@dataclass(frozen=True)
class Change:
    """From one map to the next one. Without shards before, `decided_at` is where the first map is agreed on."""

    version: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    decided_at: str

    @property
    def first_phase(self) -> list[str]:
        """Those that stop accepting what moves, in an order that all processes share: the first one decides."""
        return sorted(self.before) or [self.decided_at]

    @property
    def second_phase(self) -> list[str]:
        """New ones first: while an old one has not got there, the change is seen to be unfinished."""
        return [*sorted(set(self.after) - set(self.first_phase)), *self.first_phase]

    def sources(self, shard: str) -> list[str]:
        """The shards of which keys go to this one."""
        if shard not in self.after:
            return []
        others = [one for one in sorted(self.before) if one != shard]
        return others if shard not in self.before else [one for one in others if one not in self.after]


def reshard(
    *,
    add: Iterable[str] = (),
    drain: Iterable[str] = (),
    reason: str = "",
    by: str | None = None,
    wait: timedelta = timedelta(seconds=30),
    dry_run: bool = False,
) -> Resharded:
    """Add databases to those that share the keys of `shard_by`, or drain some. The first call makes the map.

    In several transactions, one after the other in each database: not inside of another one. It waits so long for
    publishers that have a shard's map locked, and then InUse says who does; what was done stays, and the same call
    goes on from there. So does the same call after a crash. Repeating it when it is done changes nothing.
    """
    add, drain = tuple(dict.fromkeys(add)), tuple(dict.fromkeys(drain))
    _check(add, drain)
    maps = _maps()
    change, unfinished = _change(maps, add, drain)
    if change is None:
        newest = _newest(maps)
        if not dry_run:
            _inform_drained(maps, newest.version, newest.shards)
        return Resharded(newest.version, tuple(newest.shards), tuple(newest.shards), ())
    _refuse_unprepared(change)
    moved = tuple(f"{source} → {shard}" for shard in change.second_phase for source in change.sources(shard))
    outcome = Resharded(change.version, change.before, change.after, moved)
    if dry_run:
        return outcome
    until = time.monotonic() + wait.total_seconds()
    if not unfinished:
        _wait_for_former(change, until)
    for shard in change.first_phase:
        _patiently(shard, partial(_stop_accepting, shard, change), until)
    for shard in change.second_phase:
        _patiently(shard, partial(_take_over, shard, change, by=by, reason=reason), until)
    _inform_drained(maps, change.version, change.after)
    return outcome


def forget_shard(
    name: str, *, reason: str = "", by: str | None = None, dry_run: bool = False, using: str | None = None
) -> int:
    """Have no consumer of a database wait for a shard any more: it is lost, or its alias is gone for good.

    Events of keys that came from there may be handled before those that are left there. In the caller's transaction.
    Returns how many moves are forgotten; consumers go on when maintenance looks. Repeating it changes nothing.
    """
    using = writable(using)
    rows = models.ShardMap.objects.using(using)
    if any(name in (*row.shards, *(row.following or ())) for row in rows):
        raise Refused(
            f"{name!r} is a shard, so consumers wait for what moves from it. Nothing was changed. Drain it first."
        )
    moves = models.ShardMove.objects.using(using).filter(source=name)
    if dry_run:
        return moves.count()
    with sql.committed(using):
        forgotten, _ = moves.delete()
        if forgotten:
            record_of_database(using, "reshard", by=by, reason=reason, forgotten=name)
    return forgotten


def shard_maps(using: str) -> dict[str, models.ShardMap | Exception | None]:
    """The map of each database that holds topics, or None; or the error where it can't be asked, but not of `using`."""
    answers = in_each([using, *databases()], _map, seconds=SECONDS)
    answers[using].value()
    return {alias: answer.error or answer.answered for alias, answer in answers.items()}


def unfinished_change(maps: Iterable[models.ShardMap]) -> str | None:
    """What is said to `manage.py events shards` to finish a change that was interrupted, if there is one."""
    for one in maps:
        if one.following is not None:
            return _command(one.shards, one.following)
    return None


def _check(add: Sequence[str], drain: Sequence[str]) -> None:
    if bool(add) is bool(drain):
        raise Invalid("Say which shards to add, or which to drain, by their aliases in DATABASES; one after the other.")
    known = databases()
    for alias in add:
        if alias not in connections:
            raise UnknownName(f"There is no database {alias!r}. Known are: {', '.join(connections)}.")
        if alias not in known:
            raise Invalid(
                f"The database {alias!r} holds no topics: no router lets them migrate there, or it is no PostgreSQL."
            )
    if any(connections[alias].in_atomic_block for alias in known):
        raise Refused(
            "Changing the shards commits step by step, so it can't be done inside a transaction. Nothing was changed."
        )


def _map(using: str) -> models.ShardMap | None:
    return models.ShardMap.objects.using(using).first()


def _maps() -> dict[str, models.ShardMap]:
    """The map of each database that has one. One that can't be reached matters if it is a shard."""
    answers = in_each(databases(), _map, seconds=SECONDS)
    maps = {alias: one.answered for alias, one in answers.items() if one.answered is not None}
    shards = {shard for one in maps.values() for shard in (*one.shards, *(one.following or ()))}
    for alias, answer in answers.items():
        if answer.error is not None and (alias in shards or not maps):
            raise answer.error
    if unknown := sorted(shards - set(answers)):
        newest = _newest(maps)
        if set(unknown) & {*newest.shards, *(newest.following or ())}:
            raise NotReady(
                f"{unknown[0]!r} is a shard, and DATABASES of this process doesn't have it. Nothing was changed."
            )
    for alias, one in maps.items():
        if one.name != alias and maps.get(one.name) is not None:
            raise Invalid(
                f"The databases {alias!r} and {one.name!r} are the same one. Have the router refuse django_events on "
                f"{alias!r}. Nothing was changed."
            )
    return maps


def _newest(maps: dict[str, models.ShardMap]) -> models.ShardMap:
    return max(maps.values(), key=lambda one: (one.version, one.following is not None))


def _change(maps: dict[str, models.ShardMap], add: Sequence[str], drain: Sequence[str]) -> tuple[Change | None, bool]:
    """What is to be done, and whether it was begun already; no change if all of it is done."""
    if not maps:
        if drain:
            raise Refused(f"There is no map of shards, so {drain[0]!r} can't be drained. Nothing was changed.")
        return Change(1, (), tuple(sorted(add)), writable()), False
    newest = _newest(maps)
    before = tuple(newest.shards)
    begun = None if newest.following is None else tuple(newest.following)
    wanted = tuple(sorted({*before, *add} - {*drain}))
    if begun is not None:
        change = Change(newest.version, before, begun, newest.name)
        if wanted == begun:
            return change, True
        raise InUse(
            f"The map is being changed to {', '.join(begun)}. Nothing was changed. If that was interrupted, finish it "
            f"first: manage.py events shards {_command(before, begun)} --execute"
        )
    if not wanted:
        raise Refused(
            "Without a shard there would be no place for any key. Nothing was changed. Add another one first."
        )
    if wanted == before:
        return None, False
    return Change(newest.version + 1, before, wanted, newest.name), False


def _command(before: Iterable[str], after: Iterable[str]) -> str:
    """What is said to `manage.py events shards` for a change."""
    added, drained = sorted({*after} - {*before}), sorted({*before} - {*after})
    return " ".join(["add", *added] if added else ["drain", *drained])


def _refuse_unprepared(change: Change) -> None:
    """Each shard must have the topics of those that its keys come from: without one, its consumers couldn't wait."""
    wanted = sorted({*change.before, *change.after})
    answers = in_each(wanted, _topics, seconds=SECONDS)
    topics = {alias: answer.value() for alias, answer in answers.items()}
    for shard in change.after:
        for source in change.sources(shard):
            if missing := sorted(topics[source] - topics[shard]):
                raise NotReady(
                    f"The database {shard!r} has no topic {missing[0]!r}, which {source!r} has. Nothing was changed. "
                    f"Run: manage.py migrate --database {shard}"
                )


def _topics(using: str) -> set[str]:
    return set(models.Topic.objects.using(using).values_list("name", flat=True))


def _wait_for_former(change: Change, until: float) -> None:
    """Find out all ends of the former moves: otherwise two shards might wait for each other."""
    while True:
        left = [(alias, move) for alias in sorted({*change.before, *change.after}) for move in find_ends(alias)]
        if not left:
            return
        if time.monotonic() >= until:
            alias, move = left[0]
            raise InUse(
                f"Events of {move.topic} that were published before the last change are not in the log of "
                f"{move.source!r} yet, which {alias!r} waits for. Nothing was changed. Is its transfer running?"
            )
        time.sleep(PAUSE)


def _patiently(shard: str, act: Callable[[], None], until: float) -> None:
    while True:
        try:
            with sql.committed(shard), sql.batch(shard, lock_timeout=LOCK_TIMEOUT), watched(shard):
                act()
            return
        except OperationalError as error:
            if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
                raise
            if time.monotonic() >= until:
                raise InUse(
                    f"The shard {shard!r} is locked, by {blocker_of(error)}. The change is not finished: keys that "
                    "move are published nowhere until it is. Say the same again."
                ) from error
        time.sleep(PAUSE)


def _locked_map(shard: str) -> models.ShardMap | None:
    """The row, which no publisher has locked now, and none can lock. The table's lock is waited for in turn."""
    sql.run(shard, SQL.lock_maps)
    return _map(shard)


def _stop_accepting(shard: str, change: Change) -> None:
    row = _locked_map(shard)
    if row is None and not change.before:
        row = models.ShardMap(name=shard, version=change.version - 1, shards=[])
    if row is None or row.version < change.version - 1:
        raise Refused(
            f"The shard {shard!r} has version {0 if row is None else row.version} of the map, expected "
            f"{change.version - 1}: was it restored from an older back-up? It was not changed."
        )
    if row.version >= change.version:
        if row.version > change.version or list(change.after) != (row.following or row.shards):
            raise InUse("Another process changes the shards in this moment. Nothing was changed. Look, and try again.")
        return
    row.version, row.following = change.version, list(change.after)
    row.save(using=shard)


def _take_over(shard: str, change: Change, *, by: str | None, reason: str) -> None:
    row = _locked_map(shard)
    if row is not None and (row.version, row.following) != (change.version, list(change.after)):
        if row.version >= change.version:  # another process did it
            return
        if shard in change.first_phase:  # all of them were seen to be in the first phase: it went back since
            raise InUse(f"The map of the shard {shard!r} went back to version {row.version}. Say the same again.")
    _have_wait(shard, change)
    row = row or models.ShardMap(name=shard)
    row.version, row.shards, row.following = change.version, list(change.after), None
    row.save(using=shard)
    told = {"version": change.version, "before": list(change.before), "after": list(change.after)}
    record_of_database(shard, "reshard", by=by, reason=reason, **told)


def _have_wait(shard: str, change: Change) -> None:
    """Have the consumers wait from the end of each log on: behind it comes what is published by the new map."""
    sources = change.sources(shard)
    if not sources:
        return
    for topic in models.Topic.objects.using(shard).order_by("pk"):
        sql.fetch(shard, sql.shared.lock_head, topic_id=topic.pk)
        first_id = next_id(shard, topic)
        models.ShardMove.objects.using(shard).bulk_create(
            models.ShardMove(topic=topic, version=change.version, source=source, waits_from=first_id)
            for source in sources
        )
        for row in models.Consumer.objects.using(shard).filter(topic=topic).select_related("topic").order_by("pk"):
            if keeps_order(row):
                wait_from(shard, row, first_id if row.waits_from is None else min(row.waits_from, first_id))


def _inform_drained(maps: Iterable[str], version: int, shards: Sequence[str]) -> None:
    """Tell databases that were drained the newest map: they only say where keys are."""
    for alias in set(maps) - set(shards):
        row = models.ShardMap.objects.using(alias).filter(version__lt=version, following__isnull=True)
        row.update(version=version, shards=list(shards))
