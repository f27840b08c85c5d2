"""The rows that a table has, as events: for consumers that begin with them and go on with the changes.

    snapshot(Order)

In chunks by primary key. Each row is locked FOR SHARE and published as `order.snapshot` in the transaction that locked
it. What changes the row waits for that, so its event comes after; what had changed it before is committed, so its
event comes before. A row that is inserted behind the chunk, or moves there by another primary key, has an event by
that. So whatever others write meanwhile, the last event of each key says what the row is.

How far it is, is in its intervention: written in the transaction of each chunk, under a token. Where a process was
killed, the next one goes on behind the last chunk. One that was frozen finds another token, and its chunk is undone.
"""

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core.exceptions import EmptyResultSet, FieldError, ValidationError
from django.db import DatabaseError, InterfaceError, connections, router
from django.db.models import Model, Q, QuerySet

from django_events import declarations, models, sql
from django_events.conf import settings
from django_events.deriving.row_sources import Key, Label, RowSource, as_texts, from_texts, next_keys, source_of
from django_events.exceptions import InUse, Invalid, LeaseLost, NotReady, Refused
from django_events.log.inventory import waiting_of_topic
from django_events.operating.interventions import record_of_topic
from django_events.outcomes import Snapshot
from django_events.publishing.storing import explained
from django_events.statements import quoted_name

logger = logging.getLogger("django_events.snapshot")
SQL = sql.beside(__name__)

CHUNK = 2_000  # rows that are locked together
LEASE = timedelta(seconds=60)
LOOK_EVERY = 1.0  # seconds: at the buffer, and to renew the lease while it rests
LOCK_TIMEOUT = "1s"  # for a row that another transaction has locked, then it is tried again
MOST_BUFFERED = 100_000


def snapshot(
    model: type[Model] | str,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    where: Q | None = None,
    type: str | None = None,
    rows_per_second: int | None = None,
    most_buffered: int = MOST_BUFFERED,
    restart: bool = False,
    reason: str = "",
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
    on_progress: Callable[[Snapshot], None] | None = None,
    stopping: Callable[[], bool] | None = None,
) -> Snapshot:
    """Publish the rows that a table has, each as an event, beside all who write to it.

    For a model with `capture()` or `@outbox`, which say what an event contains; `topic` chooses one of several. In
    transactions of its own, a chunk each, in the order of the primary key. A snapshot that was stopped goes on where it
    was if it is asked for again; with `restart` it begins anew. It rests while the topic has `most_buffered` events in
    the buffer. InUse says that another process takes it. Repeating it when it is done publishes the rows again.
    """
    found = _model(model)
    using = using or router.db_for_write(found)
    source = source_of(found, topic=None if topic is None else str(topic), using=using)
    declared = declarations.registry.get(source.topic)
    for name, given in (("rows_per_second", rows_per_second), ("most_buffered", most_buffered)):
        if given is not None and given < 1:
            raise Invalid(f"{name} is {given}, expected a number from 1 on.")
    if connections[using].in_atomic_block:
        raise Refused(
            f"A transaction is open on {using!r}: a snapshot commits each chunk, so that no writer waits long."
        )
    row = models.Topic.objects.using(using).filter(name=declared.name).first()
    if row is None:
        raise NotReady(f"Topic {declared.name!r} is not in {using!r} yet. Run: manage.py migrate --database {using}")
    _refuse_unusable(source, where)
    wanted = {
        "table": source.model._meta.db_table,
        "type": type or f"{source.model._meta.model_name}.snapshot",
        "where": "" if where is None else str(where),
    }
    about = _rows_about(source, where)
    if dry_run:
        return Snapshot(declared.name, wanted["table"], wanted["type"], 0, about, finished=False)
    work = _begin(using, row, source, wanted, where, about, restart=restart, reason=reason, by=by)
    pace = _Pace(rows_per_second, most_buffered)
    try:
        return work.run(pace, on_progress or (lambda progress: None), stopping or (lambda: False))
    finally:
        work.leave()


@dataclass(slots=True)
class _Pace:
    """How fast it may go on: so many rows a second, and not while the buffer is full."""

    rows_per_second: int | None
    most_buffered: int
    _looked: float = 0.0
    _began: float = field(default_factory=time.monotonic)
    _rows: int = 0
    _unlooked: int = 0  # since it counted what is in the buffer, which takes as long as there is much

    @property
    def chunk(self) -> int:
        """How many rows to take at once: what it may publish in a second, if that is less than a chunk."""
        return CHUNK if self.rows_per_second is None else min(CHUNK, self.rows_per_second)

    def rest(self, using: str, topic_id: int, rows: int) -> float:
        """For how many seconds to rest before the next chunk."""
        self._rows += rows
        self._unlooked += rows
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY and (not rows or self._unlooked >= self.most_buffered // 10):
            if waiting_of_topic(using, topic_id, counted=self.most_buffered) >= self.most_buffered:
                return LOOK_EVERY
            self._looked, self._unlooked = now, 0
        if self.rows_per_second is None:
            return 0.0
        return max(0.0, self._began + self._rows / self.rows_per_second - now)


@dataclass(slots=True)
class _Taking:
    """One process's work at a snapshot, under its token."""

    source: RowSource
    where: Q | None
    label: Label
    token: str
    about: int | None
    after: Key | None
    left: list[Key]
    rows: int

    @property
    def using(self) -> str:
        return self.source.using

    def run(self, pace: _Pace, on_progress: Callable[[Snapshot], None], stopping: Callable[[], bool]) -> Snapshot:
        finished = False
        while not finished and not stopping():
            before = self.rows
            finished = self._go_on(pace.chunk)
            on_progress(self._progress(finished=finished))
            rest = 0.0 if finished else pace.rest(self.using, self.label.topic_id, self.rows - before)
            while rest > 0 and not stopping():
                time.sleep(min(rest, LOOK_EVERY))
                self._note({})
                rest = pace.rest(self.using, self.label.topic_id, 0)
        return self._progress(finished=finished)

    def leave(self) -> None:
        """Let another process go on at once; if the database is gone, the lease runs out by itself."""
        try:
            self._is_noted({}, lease=timedelta(0))
        except (DatabaseError, InterfaceError) as error:
            logger.debug("A snapshot can't be left, and its lease runs out. %s", error)

    def _progress(self, *, finished: bool) -> Snapshot:
        table = self.source.model._meta.db_table
        return Snapshot(self.source.topic, table, self.label.type, self.rows, self.about, finished=finished)

    def _go_on(self, most: int) -> bool:
        """The next transaction; returns whether everything is done."""
        if self.left:
            # It waits for one row, without having others locked, so it is in no deadlock.
            self._publish(self.left[:1], self.after, self.left[1:], patient=True)
            return False
        # Rows that a policy hides are an error here, and a condition without an index takes long.
        with sql.committed(self.using, statement_timeout="0"):
            chunk = next_keys(self.source, after=self.after, where=self.where, most=most)
        if not chunk:
            self._note({"state": "finished"})
            return True
        self._publish(chunk, chunk[-1], [])
        return False

    def _publish(self, chunk: list[Key], after: Key | None, left: list[Key], *, patient: bool = False) -> None:
        declared = declarations.registry.get(self.source.topic)
        try:
            with (
                explained(self.using, declared),
                sql.committed(self.using, lock_timeout=LOCK_TIMEOUT, statement_timeout="0"),
            ):
                sql.fetch(self.using, sql.shared.open, topic=declared.name, wake=settings.WAKE_UPS)
                busy = self.source.publish(chunk, self.label, patient=patient)
                if left:  # those that were locked with the one that was waited for may be free now
                    chunk = [*chunk, *left]
                    busy = self.source.publish(chunk[1:], self.label)
                done = len(chunk) - len(busy)
                model = self.source.model
                self._note(
                    {
                        "after": None if after is None else as_texts(model, after),
                        "left": [as_texts(model, key) for key in busy],
                        "rows": self.rows + done,
                    }
                )
        except DatabaseError as error:
            if not patient or sql.kind_of(error) is not sql.ErrorKind.LOCKED:
                raise
            self._note({})
            return
        self.after, self.left, self.rows = after, busy, self.rows + done

    def _note(self, progress: dict[str, Any]) -> None:
        if not self._is_noted(progress, lease=LEASE):
            raise LeaseLost(
                f"Another process takes the snapshot of {self.source.model._meta.db_table} now, or it was begun anew. "
                "Nothing of this chunk is published."
            )

    def _is_noted(self, progress: dict[str, Any], *, lease: timedelta) -> bool:
        rows = sql.fetch(
            self.using,
            SQL.note,
            snapshot=self.label.snapshot,
            token=self.token,
            progress=json.dumps(progress),
            lease=lease,
            async_commit="state" not in progress,
        )
        return bool(rows)


def _model(given: type[Model] | str) -> type[Model]:
    if not isinstance(given, str):
        return given
    try:
        return apps.get_model(given)
    except (LookupError, ValueError) as error:
        raise Invalid(f"{given!r} is no model, expected one like 'shop.Order'. {error}") from error


def _refuse_unusable(source: RowSource, where: Q | None) -> None:
    """Before anything is begun, or the unfinished snapshot would be in the way of one that says it right."""
    try:
        QuerySet(source.model).filter(where or Q()).query.get_compiler(source.using).as_sql()
    except EmptyResultSet:
        return  # it fits no row, as `pk__in=[]`
    except (FieldError, ValidationError, ValueError, TypeError) as error:
        said = "; ".join(error.messages) if isinstance(error, ValidationError) else error
        raise Invalid(f"The condition {where} can't be used: {said}") from error


def _rows_about(source: RowSource, where: Q | None) -> int | None:
    """How many rows there are, for a bar of progress; None where only counting them would tell."""
    if where is not None:
        return int(QuerySet(source.model, using=source.using).filter(where).count())
    rows = sql.fetch(source.using, SQL.rows_about, table=quoted_name(source.model._meta.db_table))
    return max(0, int(rows[0][0])) if rows and rows[0][0] >= 0 else None


def _begin(
    using: str,
    row: models.Topic,
    source: RowSource,
    wanted: dict[str, str],
    where: Q | None,
    about: int | None,
    *,
    restart: bool,
    reason: str,
    by: str | None,
) -> _Taking:
    """Take over what was not finished, or begin; one process at a time."""
    token, holder = secrets.token_hex(8), f"{socket.gethostname()}:{os.getpid()}"
    with sql.committed(using):
        sql.fetch(using, SQL.lock_table, table=wanted["table"])
        snapshot_id = _unfinished(using, row, wanted, restart=restart)
        if snapshot_id is None:
            begun = record_of_topic(
                using, row, "snapshot", by=by, reason=reason, **wanted, state="running", rows=0, after=None, left=[]
            )
            snapshot_id = begun.pk
        taken = sql.fetch(using, SQL.take, snapshot=snapshot_id, token=token, holder=holder, lease=LEASE)
        if not taken:
            raise InUse(f"Another process takes the snapshot of {wanted['table']}. Nothing was published.")
        [[details]] = taken
    details = json.loads(details) if isinstance(details, str) else details
    model = source.model
    return _Taking(
        source,
        where,
        Label(row.pk, wanted["type"], snapshot_id),
        token,
        about,
        None if details["after"] is None else from_texts(model, details["after"]),
        [from_texts(model, texts) for texts in details["left"]],
        details["rows"],
    )


def _unfinished(using: str, row: models.Topic, wanted: dict[str, str], *, restart: bool) -> int | None:
    """The snapshot to go on with; InUse if a process is at it, Refused if it is another one that wasn't finished."""
    for snapshot_id, details, leased in sql.fetch(using, SQL.unfinished, topic=row.name, table=wanted["table"]):
        details = json.loads(details) if isinstance(details, str) else details
        if leased:
            raise InUse(
                f"{details['holder']} takes the snapshot of {wanted['table']} for topic {row.name!r}, and is at "
                f"{details['rows']:,} rows. Nothing was published."
            )
        if restart:
            given_up = models.Intervention.objects.using(using).get(pk=snapshot_id)
            given_up.details = {**given_up.details, "state": "given up", "token": ""}
            given_up.save(using=using, update_fields=["details"])
            continue
        other = {name: details[name] for name in wanted if details[name] != wanted[name]}
        if other:
            raise Refused(
                f"A snapshot of {wanted['table']} for topic {row.name!r} with {other} was not finished. Nothing was "
                "published. Go on with it by saying the same as then, or begin anew with restart."
            )
        return int(snapshot_id)
    return None
