"""A derived table is filled anew beside the one that is served, and takes its place at one id of each topic.

    rebuild("totals", reason="the function was wrong")

The served table goes on being kept by its workers. The new one is filled from the first event that the log still has,
in the foreground and in chunks; each chunk is one transaction with how far it is, so a rebuild that was stopped or
killed goes on. A token fences it: a process that wakes up too late writes nothing. The change-over is one short
transaction: it waits for the events in hand, folds what is left, moves the positions there, and swaps the tables.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

from django.db import DatabaseError, IntegrityError, connections
from django.db.models import Exists, OuterRef, QuerySet

from django_events import declarations, models, sql
from django_events.consuming import log_positions
from django_events.consuming.registered import Named, registered
from django_events.consuming.subscriptions import filter_otherwise
from django_events.deriving import shadowing
from django_events.deriving.derivation import Failed, Folded, derivation_of
from django_events.deriving.reading import floors
from django_events.exceptions import InUse, LeaseLost, NotReady, Refused
from django_events.models.buffer import writable
from django_events.models.functions import ClockTimestamp
from django_events.operating import quiesce
from django_events.operating.dead_letters import replace_all
from django_events.operating.interventions import record
from django_events.operating.locks import bounded
from django_events.operating.rewinding import move_to_end
from django_events.outcomes import Rebuilt
from django_events.statements import log_table

LEASE = timedelta(seconds=30)
SHORT = 2_000  # ids that the change-over folds at most: nothing enters the logs meanwhile
MOST_FAILED = 1_000  # events that are noted down: what fails so often is to be corrected
TRIES, PAUSE = 20, 0.25  # seconds between two tries where another session has a lock
LONGEST_PAUSE = 2.0

OnProgress = Callable[[Rebuilt], object]


def rebuild(
    consumer: Named,
    *,
    from_what_is_there: bool = False,
    past_failures: bool = False,
    anew: bool = False,
    reason: str = "",
    by: str | None = None,
    wait: timedelta = timedelta(minutes=1),
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> Rebuilt:
    """Fill the table of a derived consumer anew from its log, beside the one that is served, and change over.

    In transactions of its own; workers may run. Saying it again goes on with one that was stopped, or with `anew`
    begins again. Refused where retention or compaction has removed events, unless `from_what_is_there`; and at an
    event that can't be folded, unless `past_failures`: then it is a dead letter after the change-over. InUse says that
    another process is at it, or that a lock or an event in hand kept the change-over waiting for longer than `wait`.
    """
    using = writable(using)
    rows = registered(using, consumer)
    declared = declarations.consumers.get(consumer)
    if not declared.derived:
        raise Refused(
            f"Consumer {declared} keeps no table: it has a handler, whose effects only it knows. Nothing was changed. "
            "To have it handle events again, rewind it."
        )
    work = _Rebuilding(
        using, declared, rows, past_failures=past_failures, partial=from_what_is_there, by=by, reason=reason
    )
    if dry_run:
        return work.look(anew=anew)
    if connections[using].in_atomic_block:
        raise Refused("A rebuild commits as it goes, so it can't be part of a transaction. Nothing was changed.")
    return work.run(anew=anew, wait=wait, on_progress=on_progress or (lambda rebuilt: None))


def abandon_rebuild(consumer: Named, *, using: str | None = None) -> bool:
    """Drop the table that a rebuild has begun to fill; returns whether there was one.

    The one that is served stays. InUse while a process is at it.
    """
    using = writable(using)
    with bounded(using, f"The rebuild of {consumer}"):
        row = models.Rebuild.objects.using(using).select_for_update().filter(consumer=str(consumer)).first()
        if row is None:
            return False
        _refuse_at_work(using, row)
        _forget(using, row)
    return True


def drop_stranded(using: str) -> list[str]:
    """Drop what was filled for consumers that are unregistered by now; returns a line for each.

    One that a process is still at is left: that process finds out by itself, and the next `migrate` drops it.
    """
    changes = []
    known = models.Consumer.objects.using(using).filter(name=OuterRef("consumer"))
    stranded = models.Rebuild.objects.using(using).filter(~Exists(known)).order_by("consumer")
    for name in stranded.values_list("consumer", flat=True):
        with suppress(InUse):
            if abandon_rebuild(name, using=using):
                changes.append(f"Consumer {name}: what a rebuild had filled is dropped, the consumer is unregistered.")
    return changes


def _forget(using: str, row: models.Rebuild) -> None:
    shadowing.drop(using, row.schema)
    row.delete(using=using)


def _refuse_at_work(using: str, row: models.Rebuild) -> None:
    if models.Rebuild.objects.using(using).filter(pk=row.pk, leased_until__gt=ClockTimestamp()).exists():
        raise InUse(
            f"The rebuild of {row.consumer} is under way, by {row.holder}. Nothing was changed. Wait for it, or stop "
            f"it first. If it was killed, say this again in {LEASE.total_seconds():.0f} s."
        )


@contextmanager
def _as_it_was_after_an_error(row: models.Rebuild) -> Iterator[None]:
    """What was noted in a transaction that was undone is undone here, too."""
    before = row.reached, row.events, row.failed
    try:
        yield
    except BaseException:
        row.reached, row.events, row.failed = before
        raise


class _Rebuilding:
    """One run of a rebuild, in this process."""

    def __init__(
        self,
        using: str,
        declared: declarations.DeclaredConsumer,
        rows: Sequence[models.Consumer],
        *,
        past_failures: bool,
        partial: bool,
        by: str | None,
        reason: str,
    ) -> None:
        self.using = using
        self.name = declared.name
        self.past_failures, self.partial, self.by, self.reason = past_failures, partial, by, reason
        self.derivation = derivation_of(declared)
        self.declared = declared
        self.rows = rows
        self.token = 0
        self.continued = False

    @property
    def _table(self) -> str:
        return self.derivation.table(self.using)

    @property
    def _of_name(self) -> QuerySet[models.Rebuild]:
        return models.Rebuild.objects.using(self.using).filter(consumer=self.name)

    def look(self, *, anew: bool) -> Rebuilt:
        """What a run would begin with."""
        served = shadowing.served(self.using, self._table)
        row = self._of_name.first()
        if row is not None:
            _refuse_at_work(self.using, row)
        goes_on = row is not None and not anew and self._goes_on(row, served)
        reached = dict(row.reached) if row is not None and goes_on else self._beginning()
        self.continued = goes_on
        return self._told(reached, self._ends(), row.events if row is not None and goes_on else 0, 0)

    def run(self, *, anew: bool, wait: timedelta, on_progress: OnProgress) -> Rebuilt:
        row = self._begin(anew=anew)
        try:
            deadline, pause = None, PAUSE
            while True:
                row = self._fill(row, on_progress)
                with self._transaction():
                    self._renew(row)
                    if deadline is None:
                        shadowing.analyze(self.using, row.table, row.schema)
                deadline = deadline or time.monotonic() + wait.total_seconds()
                try:
                    left = timedelta(seconds=max(deadline - time.monotonic(), 0))
                    return self._change_over(row, min(left, LEASE / 2))  # so that the lease doesn't run out meanwhile
                except InUse:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(pause)  # each try holds up the transfer, and readers of the table, for a moment
                    pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self._give_back()

    def _refuse_waiting(self) -> None:
        """Refused while events must not be handled yet, because those of other shards come first."""
        for row in self.rows:
            row.refresh_from_db(using=self.using, fields=["waits_from"])
            if row.waits_from is not None:
                raise Refused(
                    f"Consumer {row} waits from {row.topic}/{row.waits_from} on until those of its name have come so "
                    "far in other shards. Nothing was changed. Try again when it has gone on."
                )

    def _refuse_otherwise_registered(self) -> None:
        """NotReady where the workers go by another filter, or fold other topics: the new table would not have these."""
        there = models.Consumer.objects.using(self.using).select_related("topic").filter(name=self.name).in_bulk()
        for row in self.rows:
            if row.pk not in there:
                raise quiesce.gone(row)
        topics = {row.topic.name for row in there.values()}
        if topics != set(self.declared.topics):
            raise NotReady(
                f"Consumer {self.name} is declared for {', '.join(sorted(self.declared.topics))}, and registered in "
                f"the database {self.using!r} for {', '.join(sorted(topics))}. The table that is served is as it was. "
                f"Run: manage.py migrate --database {self.using}, or unregister it from a topic that is declared no "
                "more; and say it again with the code of now."
            )
        if there.keys() != {row.pk for row in self.rows}:
            raise NotReady(
                f"Consumer {self.name} was registered for a topic since the rebuild began. The table that is served is "
                "as it was. Say it again with the code of now: it begins anew."
            )
        for row in self.rows:
            if otherwise := filter_otherwise(there[row.pk], self.declared):
                raise NotReady(
                    f"Consumer {row} is declared with {otherwise}, as it is registered in the database "
                    f"{self.using!r}. The table that is served is as it was. Run: manage.py migrate --database "
                    f"{self.using}, and say it again with the code of now."
                )

    def _begin(self, *, anew: bool) -> models.Rebuild:
        """Take the lease of what was begun, or begin."""
        self._refuse_waiting()
        self._refuse_otherwise_registered()
        with bounded(self.using, f"The rebuild of {self.name}"):
            row = self._of_name.select_for_update().first()
            if row is not None:
                _refuse_at_work(self.using, row)
            served = shadowing.served(self.using, self._table)
            if row is not None and (anew or not self._goes_on(row, served)):
                _forget(self.using, row)
                row = None
            self.continued = row is not None
            self.token = secrets.randbits(63)
            if row is None:
                row = models.Rebuild(
                    consumer=self.name,
                    table=served.name,
                    schema="",
                    fingerprint=self._fingerprint(served),
                    reached=self._beginning(),
                    ends=self._ends(),
                    partial=self.partial,
                )
                try:
                    row.save(using=self.using)
                except IntegrityError as error:  # another process began in this moment
                    raise InUse(f"The rebuild of {self.name} was begun by another process in this moment.") from error
                row.schema = f"django_events_rebuild_{row.pk}"
                shadowing.begin(self.using, row.schema)
                self.derivation.make(self.using, (row.schema, row.table))
            row.token, row.holder = self.token, f"{socket.gethostname()}:{os.getpid()}"
            row.partial = row.partial or self.partial
            row.save(using=self.using)
            self._renew(row)
        return row

    def _goes_on(self, row: models.Rebuild, served: shadowing.Served) -> bool:
        return row.fingerprint == self._fingerprint(served) and shadowing.is_there(self.using, row.table, row.schema)

    def _fingerprint(self, served: shadowing.Served) -> str:
        topics = " ".join(
            str(row.topic_id) for row in self.rows
        )  # by name another one may have come, with other events
        return f"{served.fingerprint} {self.derivation.fingerprint} {topics}"

    def _beginning(self) -> dict[str, int]:
        """Behind which id of each topic it begins; Refused where events are gone that it would have to fold."""
        return {row.topic.name: self._beginning_of(row) for row in self.rows}

    def _beginning_of(self, row: models.Consumer) -> int:
        gone, start = floors(self.using, row.topic_id), self.declared.start
        first = log_positions.begin(self.using, row.topic, start) if start != "beginning" else gone.id + 1
        wanted = start if isinstance(start, int) else 1 if start == "beginning" else first
        is_time = not isinstance(start, int | str)
        is_lost = gone.absent_until >= wanted or (is_time and 0 < gone.absent_until >= first - 1)
        if is_lost and not self.partial:
            raise Refused(
                f"Topic {row.topic} has lost events up to {gone.absent_until} to retention or compaction. What was "
                f"folded from them is in the table that is served, and could not be made again. Nothing was changed. "
                "To fold what is there, and lose the rest, say from_what_is_there=True, or --from-what-is-there."
            )
        return max(wanted - 1, gone.id)

    def _ends(self) -> dict[str, int]:
        return {row.topic.name: self._end(row) for row in self.rows}

    def _end(self, row: models.Consumer) -> int:
        statement = sql.shared.last_id.on(
            log=log_table(row.topic_id), topic_id=row.topic_id, floor=floors(self.using, row.topic_id).id
        )
        [[last_id]] = sql.fetch(self.using, statement)
        return int(last_id)

    def _renew(self, row: models.Rebuild) -> None:
        """Lock the row for this transaction, or raise LeaseLost."""
        now = ClockTimestamp()
        mine = self._of_name.filter(pk=row.pk, token=self.token)
        if not mine.update(leased_until=now + LEASE, changed_at=now):
            raise LeaseLost(
                f"The rebuild of {self.name} was taken over by another process, or it is over. This one wrote nothing "
                "more."
            )

    def _give_back(self) -> None:
        """Let another process go on at once."""
        try:
            self._of_name.filter(token=self.token).update(token=None, leased_until=None)
        except DatabaseError as error:  # the lease ends by itself
            if not sql.kind_of(error).of_server:
                raise

    def _fill(self, row: models.Rebuild, on_progress: OnProgress) -> models.Rebuild:
        """Fold until so little is left that the change-over can take it."""
        while True:
            row.ends = self._ends()
            on_progress(self._told(row.reached, row.ends, row.events, len(row.failed)))
            if sum(row.ends.values()) - sum(row.reached.values()) <= SHORT // 2:
                return row
            row = self._chunk(row)

    def _chunk(self, row: models.Rebuild) -> models.Rebuild:
        for tried in range(TRIES):
            try:
                with _as_it_was_after_an_error(row), self._transaction():
                    self._renew(row)
                    served = shadowing.served(self.using, row.table)
                    self._refuse_changed(row, served)
                    folded = self._fold(row, row.ends)
                    self._note(row, folded)
            except DatabaseError as error:
                busy = sql.kind_of(error) in (sql.ErrorKind.LOCKED, sql.ErrorKind.CONFLICT)
                if not busy or tried + 1 == TRIES:
                    raise
                time.sleep(PAUSE)
            else:
                self._refuse_failed(folded, len(row.failed))
                return row
        raise AssertionError("unreachable")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with sql.committed(self.using, lock_timeout="5s", statement_timeout="0"):
            yield

    def _fold(self, row: models.Rebuild, until: dict[str, int]) -> Folded:
        """Fold into the new table, in the open transaction; Refused where events were removed before that."""
        with shadowing.leading_to(self.using, row.schema):
            folded = self.derivation.fold(self.using, self.rows, after=row.reached, until=until)
        for one in self.rows:
            gone = floors(self.using, one.topic_id).absent_until
            if not row.partial and gone > row.reached[one.topic.name]:
                raise Refused(
                    f"Retention or compaction has removed events of topic {one.topic} up to {gone}, of which those "
                    f"behind {row.reached[one.topic.name]} were not folded yet. The table that is served is as it was. "
                    "To fold what is there, and lose the rest: --from-what-is-there."
                )
        return folded

    def _note(self, row: models.Rebuild, folded: Folded) -> None:
        """Write down how far it is, in the transaction that folded."""
        row.reached, row.events = {**row.reached, **folded.reached}, row.events + folded.events
        if folded.failed is not None and self.past_failures:
            row.failed = [*row.failed, list(folded.failed)]
            row.reached[folded.failed.topic] = folded.failed.id
        self._of_name.filter(token=self.token).update(
            reached=row.reached, ends=row.ends, events=row.events, failed=row.failed
        )

    def _refuse_failed(self, folded: Folded, noted: int) -> None:
        if (failed := folded.failed) is not None and (not self.past_failures or noted >= MOST_FAILED):
            raise Refused(
                f"Event {failed.address} can't be folded: {failed.error.rstrip('.')}. The table that is served is as "
                "it was, and what is filled so far is kept. Correct the cause, and say it again; or go on without such "
                "events, which are dead letters then: past_failures=True, or --past-failures."
            )

    def _refuse_changed(self, row: models.Rebuild, served: shadowing.Served) -> None:
        self._refuse_otherwise_registered()
        if row.fingerprint != self._fingerprint(served):
            raise Refused(
                f"Table {row.table} was changed since the rebuild began, by a migration or by hand, so the new one is "
                "not like it. The table that is served is as it was. Say it again with the code of now: it begins anew."
            )

    def _change_over(self, row: models.Rebuild, wait: timedelta) -> Rebuilt:
        still = quiesce.standing_still(self.using, self.rows, None, wait, verb="rebuild")
        with _as_it_was_after_an_error(row), still:
            self._renew(row)
            served = shadowing.served(self.using, row.table)
            self._refuse_changed(row, served)
            self._refuse_waiting()
            row.ends = {one.topic.name: log_positions.find(self.using, one.topic, "end") - 1 for one in self.rows}
            if sum(row.ends.values()) - sum(row.reached.values()) > SHORT:
                raise InUse(
                    f"Events of {self.name} come faster than they are folded: more than {SHORT:,} were left when the "
                    "tables were to be changed over. The table that is served is as it was, and what is filled so far "
                    "is kept. Say it again at a quieter time."
                )
            self._fold_rest(row)
            self._replace(row, served)
        return self._told(row.reached, row.ends, row.events, len(row.failed), finished=True)

    def _fold_rest(self, row: models.Rebuild) -> None:
        while any(row.reached[topic] < end for topic, end in row.ends.items()):
            folded = self._fold(row, row.ends)
            self._refuse_failed(folded, len(row.failed))
            self._note(row, folded)

    def _replace(self, row: models.Rebuild, served: shadowing.Served) -> None:
        failed = [Failed(*one) for one in row.failed]
        for one in self.rows:
            letters = {failure.id: failure.error for failure in failed if failure.topic == one.topic.name}
            dropped = replace_all(self.using, one, letters)
            moves = move_to_end(self.using, one)
            record(
                self.using,
                one,
                "rebuild",
                by=self.by,
                reason=self.reason,
                table=row.table,
                until=row.reached[one.topic.name],
                events=row.events,
                dead_letters=dropped,
                failed=len(letters),
                before={str(move.partition): move.before for move in moves},
            )
        with shadowing.leading_to(self.using, row.schema):  # first a row, then the table, as others lock them
            self.derivation.changed_over(self.using)
        shadowing.change_over(self.using, served, row.schema)
        self._refuse_otherwise_registered()  # now that no worker folds: `migrate` may have added a topic until here
        self._of_name.filter(pk=row.pk, token=self.token).delete()

    def _told(
        self, reached: dict[str, int], ends: dict[str, int], events: int, failed: int, *, finished: bool = False
    ) -> Rebuilt:
        return Rebuilt(
            consumer=self.name,
            table=self._table,
            reached=dict(reached),
            ends=dict(ends),
            events=events,
            failed=failed,
            continued=self.continued,
            finished=finished,
        )
