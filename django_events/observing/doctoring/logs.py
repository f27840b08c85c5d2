"""The tables of the log: is there room ahead, is each as it was made?"""

from collections.abc import Iterator
from datetime import timedelta

from django_events import sql
from django_events.log import segments
from django_events.observing.commands import manage_command
from django_events.observing.doctoring.database import Database
from django_events.observing.findings import Finding, Subject, error, ok, warning
from django_events.phrases import count, duration
from django_events.sql.blocking import blockers

SQL = sql.beside(__name__)

LOCKED_FOR = timedelta(seconds=10)
MOST = 20  # topics that are named
TRANSFER_MAKES_IT = "The transfer makes it: is one running, or is there a lock on the log in its way?"


def room(database: Database) -> Iterator[Finding]:
    """Has each topic a segment for its next event, and one in reserve?"""
    answers: list[Finding] = []
    smallest: tuple[int, str] | None = None
    number = 0
    attached = segments.of_topics(database.using, [log.topic.pk for log in database.logs])
    for log in database.logs:
        name = log.topic.name
        existing = attached[log.topic.pk]
        number += len(existing)
        end = existing[-1].end - 1 if existing else 0
        left = end - log.last_id
        smallest = min(filter(None, [smallest, (left, name)]))
        seen = {"topic": name, "last_id": log.last_id, "room_until": end}
        if left <= 0:
            what = f"{name} has no segment for {name}/{log.last_id + 1}: the transfer has to make it first."
            answers.append(error(what, f"{TRANSFER_MAKES_IT} See its log.", **seen))
        elif log.last_id >= existing[-1].first:
            what = f"{name} is in its last segment, with room for {left:,} more: the next one is not there."
            answers.append(warning(what, f"{TRANSFER_MAKES_IT} See its log.", **seen))
    if answers:
        yield from answers[:MOST]
    elif smallest is None:
        yield ok("There are no topics.")
    else:
        left, name = smallest
        said = f"{count(number, 'segment')} of {count(len(database.logs), 'topic')}"
        seen = {"segments": number, "topics": len(database.logs), "least_room": left}
        yield ok(f"{said}, the least room is for {left:,} events of {name}.", **seen)


def locks(database: Database) -> Iterator[Finding]:
    """Does a session keep others from writing or reading one, or a handler from going on?"""
    lockers = sql.fetch(database.using, SQL.lockers, age=LOCKED_FOR)
    for pid, role, application, table, mode, age in lockers:
        called = f" ({application})" if application else ""
        what = f"Session {pid} of {role}{called} has held {mode} on {table} for {duration(age)}: events wait for it."
        remedy = f"Let it end, or end it: SELECT pg_terminate_backend({pid})"
        yield error(what, remedy, pid=pid, table=table, mode=mode, held_for=age)
    prepared = sql.fetch(database.using, sql.shared.prepared, age=LOCKED_FOR)
    for name, role, table, age, consumer, _ in prepared:
        what = f"The prepared transaction {name!r} of {role} has held rows of {table} for {duration(age)}."
        remedy = f"If a handler prepared it, undo it: ROLLBACK PREPARED {name!r}. Otherwise end it as its owner wants."
        yield error(what, remedy, prepared=name, table=table, held_for=age, consumer=consumer)
    waiting = [*_waiting_handlers(database.using)]
    yield from waiting
    if not lockers and not prepared and not waiting:
        yield ok(f"No session has locked a table for more than {duration(LOCKED_FOR)}.")


def _waiting_handlers(using: str) -> Iterator[Finding]:
    """Handlers that wait for a lock of another session, mostly on a table of the site: none of ours tells of it."""
    for consumer, topic, holder, pid, waited in sql.fetch(using, SQL.waiting_handlers, age=LOCKED_FOR, most=MOST):
        for blocker in blockers(using, pid)[:1]:
            what = f"Its handler, of {holder} in session {pid}, has waited for {duration(waited)} for {blocker}."
            remedy = f"Let it end, or end it: {blocker.ending}"
            found = warning(what, remedy, pid=pid, holder=holder, waited=waited, blocked_by=blocker.pid)
            yield found._replace(subject=Subject(consumer, topic))


def tables(database: Database) -> Iterator[Finding]:
    """Is each attached, logged, seen as a whole, and are its indexes there and usable?"""
    answers = []
    for kind, name, of in sql.fetch(database.using, SQL.defects):
        if kind == "detached":
            what = f"Segment {name} was detached from {of} halfway: its events can't be read."
            remedy = f"ALTER TABLE {of} DETACH PARTITION {name} FINALIZE, then attach it again."
            answers.append(error(what, remedy, table=name))
        elif kind == "unlogged":
            what = f"{name} is UNLOGGED: a crash empties it."
            answers.append(error(what, f"ALTER TABLE {name} SET LOGGED", table=name))
        elif kind == "keyless":
            what = f"{name} has lost its primary key: looking for one event reads all of them."
            answers.append(error(what, f"ALTER TABLE {name} ADD PRIMARY KEY (topic_id, id)", table=name))
        elif kind == "hidden":
            what = f"{name} has row-level security that hides rows from this role, so its workers refuse to read it."
            answers.append(error(what, f"ALTER TABLE {name} {of}, or ALTER ROLE … BYPASSRLS", table=name))
        elif kind == "secured":
            what = f"{name} has row-level security. This role sees all its rows; workers of another role may refuse it."
            answers.append(warning(what, f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY", table=name))
        elif kind == "building":
            what = f"Index {name} of {of} is not whole: it is being built, or that was interrupted."
            migrate = manage_command(database.using, "migrate")
            remedy = f"{migrate}, unless one runs. If the index is not declared any more: DROP INDEX {name}"
            answers.append(warning(what, remedy, table=of, index=name))
        else:
            what = f"Index {name} of {of} is invalid, so it is not used."
            answers.append(error(what, f"REINDEX INDEX CONCURRENTLY {name}", table=of, index=name))
    yield from answers[:MOST] or [ok("All are logged, attached, seen as a whole, and have valid indexes.")]
