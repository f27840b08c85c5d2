"""The rights that each process needs and no more: SQL for a database administrator to review and run.

A role without login is made for each kind of process. Logins get it: `GRANT django_events_consumer TO …`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from django.apps import apps
from django.db.models import Model

from django_events import models, sql
from django_events.event_columns import BUFFERED
from django_events.exceptions import Invalid, NotReady
from django_events.sql.search_path import tables_missing
from django_events.statements import LOG, quoted, quoted_name

SQL = sql.beside(__name__)

BESIDES = ("pg_signal_backend", "pg_read_all_stats")  # roles that operators get; readers get the last
SEQUENCE = "django_events_bufferedevent_id_seq"
EVENT = ", ".join(BUFFERED)  # the columns that a publisher fills


class Block(NamedTuple):
    """Statements that belong together, and what they are for."""

    purpose: str
    statements: list[str]


@dataclass(frozen=True)
class Granting:
    """Where rights are granted, and to whom."""

    role: str
    schema: str
    database: str
    owner: str
    functions: list[str]
    look_ups: list[str]
    segment_functions: list[str]
    claiming_functions: list[str]
    roll_ups: list[str]
    path: list[str]

    def on(self, rights: str, *names: str) -> str:
        """Rights on tables of the schema."""
        tables = [f"{quoted_name(self.schema)}.{quoted_name(name)}" for name in names]
        return self.grant(rights, ",\n    ".join(tables))

    def on_sequence(self) -> str:
        return self.grant("USAGE", f"SEQUENCE {quoted_name(self.schema)}.{quoted_name(SEQUENCE)}")

    @property
    def all_functions(self) -> list[str]:
        return [*self.functions, *self.look_ups, *self.segment_functions, *self.claiming_functions]

    def grant(self, rights: str, things: str) -> str:
        return self.grant_to(self.role, rights, things)

    def grant_to(self, role: str, rights: str, things: str) -> str:
        return SQL.grant.written(rights=rights, things=things, role=quoted_name(role))

    def on_log(self, rights: str) -> str:
        log, name = self._log, quoted(self.role)
        return SQL.grant_log.written(rights=rights, log=log, name=name, quote=_dollars(log, name))

    def own_log(self) -> str:
        log, name = self._log, quoted(self.owner)
        return SQL.own_log.written(log=log, name=name, quote=_dollars(log, name))

    def revoke(self, rights: str, things: str, *roles: str) -> str:
        return SQL.revoke.written(rights=rights, things=things, roles=", ".join(roles))

    def revoke_log(self) -> str:
        log, role = self._log, quoted(self.role)
        return SQL.revoke_log.written(log=log, role=role, quote=_dollars(log, role))

    def proof_of_nothing(self) -> str:
        """A REVOKE of what another role gave does nothing: this ends in an error then."""
        role, schema = quoted(self.role), quoted(self.schema)
        return SQL.prove_revoked.written(role=role, schema=schema, quote=_dollars(role, schema))

    def schemas(self) -> list[str]:
        """Where names are looked up: the schema of the tables, and all of the search_path."""
        return [quoted_name(name) for name in dict.fromkeys([self.schema, *self.path])]

    def proof(self) -> str:
        """A REVOKE of what another role gave only warns: this ends in an error then."""
        role, owner, schema = (quoted(name) for name in (self.role, self.owner, self.schema))
        path = quoted([self.schema, *self.path])
        return SQL.prove_rights.written(
            role=role,
            owner=owner,
            schema=schema,
            path=path,
            quote=_dollars(role, owner, schema, path),
        )

    def make(self) -> str:
        role, name = quoted_name(self.role), quoted(self.role)
        return SQL.make_role.written(role=role, name=name, quote=_dollars(role, name))

    def membership(self, role: str, *, to: str) -> str:
        return SQL.grant_role.written(role=quoted_name(role), to=quoted_name(to))

    def end_membership(self, role: str) -> str:
        return SQL.revoke_role.written(role=quoted_name(role), of=quoted_name(self.role))

    def on_functions(self, functions: list[str]) -> str:
        return self.grant("EXECUTE", _functions(functions))

    @property
    def _log(self) -> str:
        return quoted(f"{quoted_name(self.schema)}.{quoted_name(LOG)}")


def _entry(of: Granting) -> Block:
    return Block(
        "The role. It has no login: give it to your logins, with GRANT … TO …",
        [
            of.make(),
            of.grant("USAGE", f"SCHEMA {quoted_name(of.schema)}"),
            of.grant("CONNECT", f"DATABASE {quoted_name(of.database)}"),
            of.on_functions(of.look_ups),
        ],
    )


def _closed(of: Granting) -> Block:
    """What this role must not be able to do, nor PUBLIC, so that it can't have its code run by others."""
    roles = ["PUBLIC", *([quoted_name(of.role)] if of.role != of.owner else [])]
    return Block(
        "A role that may create in a schema of the search_path has its functions and operators run by other roles, in\n"
        "place of PostgreSQL's. So only the owner of the tables may. If a REVOKE had no effect, it ends in an error.",
        [
            of.grant_to(of.owner, "USAGE, CREATE", f"SCHEMA {quoted_name(of.schema)}"),
            *(of.revoke("CREATE", f"SCHEMA {name}", *roles) for name in of.schemas()),
            of.revoke("EXECUTE", _functions(of.all_functions), "PUBLIC"),
            of.proof(),
        ],
    )


def _functions(signatures: list[str]) -> str:
    return "FUNCTION\n    " + ",\n    ".join(signatures)


def _dollars(*names: str) -> str:
    """A dollar quote that none of these names can end."""
    quotes = (f"$block{number or ''}$" for number in itertools.count())
    return next(quote for quote in quotes if not any(quote in name for name in names))


def publisher(of: Granting) -> Iterator[Block]:
    """The rights of a publisher: it inserts events, and reads none."""
    yield _entry(of)
    yield Block("Topics are found by name.", [of.on("SELECT", _table(models.Topic))])
    yield Block(
        "publish(), publish_many(), BufferedWriter, @outbox and capture() put events into the buffer, and read none.\n"
        "Ids come from the database alone: the transfer goes by them. Probes see since when something waits.",
        [
            of.on(f"INSERT ({EVENT}), SELECT (id, topic_id, published_at)", _table(models.BufferedEvent)),
            of.on_functions(of.functions),
        ],
    )
    yield Block(
        "publish_at= and cancel(): events for later.",
        [
            of.on(f"INSERT ({EVENT}, publish_at), DELETE, SELECT (id, topic_id)", _table(models.ScheduledEvent)),
            of.on_sequence(),
        ],
    )
    yield Block(
        "dedup_key=, and the keys by which a BufferedWriter knows what was committed.",
        [of.on("SELECT, INSERT, UPDATE (expires_at), DELETE", _table(models.DedupKey))],
    )
    yield Block(
        "shard_by=: the map is locked until the commit, which needs a right to update. An id of it can only be 1.",
        [of.on("SELECT, UPDATE (id)", _table(models.ShardMap))],
    )


def sink(of: Granting) -> Iterator[Block]:
    """The rights of Spark's sink: it publishes what it computed, and reads what its tasks staged."""
    yield _entry(of)
    yield Block("Topics are found by name.", [of.on("SELECT", *map(_table, (models.Topic, models.TopicHead)))])
    yield Block(
        "df.write.format('django_events'): what tasks write is staged, and put into the buffer all at once.",
        [
            of.on(f"INSERT (attempt, {EVENT}), SELECT, DELETE", _table(models.StagedEvent)),
            of.on(f"INSERT ({EVENT})", _table(models.BufferedEvent)),
            of.on_functions(of.functions),
        ],
    )
    yield Block(
        "A batch that comes again is known by the name of its sink.",
        [
            of.on("SELECT, INSERT, UPDATE", _table(models.SinkBatch)),
        ],
    )


def consumer(of: Granting) -> Iterator[Block]:
    """The rights of a worker: it reads the log, and writes positions and deliveries."""
    yield _entry(of)
    yield Block(
        "The log, and which topics and consumers there are.",
        [
            of.on("SELECT", *map(_table, (models.Topic, models.TopicHead, models.Consumer))),
            of.on_log("SELECT"),
        ],
    )
    yield Block(
        "A queue that has caught up goes on with the transfer: under the lock of the topic, which needs a right.",
        [
            of.on("UPDATE (topic_id)", _table(models.TopicHead)),
            of.on("UPDATE (live, filled_until)", _table(models.Consumer)),
        ],
    )
    yield Block(
        "Why a consumer can't be served, for others to see.",
        [of.on("UPDATE (failing_since, failure, error)", _table(models.Consumer))],
    )
    yield Block(
        "How far it is; and other positions, where the topic gets other partitions.",
        [
            of.on("SELECT, INSERT, UPDATE, DELETE", _table(models.Position)),
            of.on("UPDATE (partitioned, turns_at)", _table(models.Consumer)),
        ],
    )
    yield Block(
        "Roll-ups: it folds events into their tables, one worker at a time under the lock of their rows.",
        [
            of.on("SELECT, UPDATE (full_since, left_out, left_out_at, error)", _table(models.RollUp)),
            *([of.on("SELECT, INSERT, UPDATE", *of.roll_ups)] if of.roll_ups else []),
        ],
    )
    columns = ("position", "taken", "left_out", "unreadable", "unreadable_at", "gone", "gone_at", "lag")
    notes = ("moved_at", "served_at", "failing_since", "waiting_since", "error")
    yield Block(
        "Inboxes: how far they are. A login that serves them publishes, so it gets the role of publishers too.",
        [of.on(f"SELECT, UPDATE ({', '.join((*columns, *notes))})", _table(models.Inbox))],
    )
    tables = (models.Delivery, models.DeliveryLease, models.PastDelivery, models.DeadLetter)
    yield Block(
        "What is on its way, in a worker's hand, done, or given up.",
        [of.on("SELECT, INSERT, UPDATE, DELETE", *map(_table, tables))],
    )
    yield Block(
        "Samples for the charts of the admin.",
        [
            of.on("SELECT", _table(models.BufferedEvent)),
            of.on("SELECT, INSERT, UPDATE, DELETE", _table(models.Sample)),
        ],
    )


def claimer(of: Granting) -> Iterator[Block]:
    """The rights of a program in any language that works on queues: four functions, and no table."""
    yield _entry(of)
    yield Block(
        "Events of queues are claimed and settled by functions with the rights of their owner. They reach all queues,\n"
        "and nothing else.",
        [of.on_functions(of.claiming_functions)],
    )


def operator(of: Granting) -> Iterator[Block]:
    """The rights of the transfer and of operators: all tables of django_events, and nothing else. It owns nothing."""
    yield _entry(of)
    yield Block(
        "All tables of django_events, and the functions that publish.",
        [
            of.on("SELECT, INSERT, UPDATE, DELETE", *_tables(), *of.roll_ups),
            of.on_sequence(),
            of.on_functions(of.functions),
        ],
    )
    yield Block(
        "The log: the transfer adds events, erase() blanks them. Segments come and go by functions that have the\n"
        "rights of the log's owner: an owner can have its code run by all who use a table, so operators own none.",
        [of.own_log(), of.on_log("SELECT, INSERT, UPDATE"), of.on_functions(of.segment_functions)],
    )
    yield Block(
        "A worker that froze with a lease is ended, so that its locks go; and old snapshots are looked for.",
        [of.membership(other, to=of.role) for other in BESIDES],
    )


def reader(of: Granting) -> Iterator[Block]:
    """The rights to look: status, peek, the admin without its actions, Spark."""
    yield _entry(of)
    shown = [name for name in _tables() if name != _table(models.WebhookSecret)]
    yield Block(
        "All tables of django_events, to read; of the secrets of webhooks, only since when there are some.",
        [
            of.on("SELECT", *shown, *of.roll_ups),
            of.on("SELECT (id, endpoint_id, signs_until, created_at)", _table(models.WebhookSecret)),
        ],
    )
    yield Block("The log: also of topics and segments that come later.", [of.on_log("SELECT")])
    yield Block(
        "Old snapshots, which hold the log up, are looked for.",
        [of.membership("pg_read_all_stats", to=of.role)],
    )


def mirror(of: Granting) -> Iterator[Block]:
    """The rights of another site's inbox or mirror: it reads the log, and where it begins and ends."""
    yield _entry(of)
    yield Block(
        "Which topics there are, what was removed of them, and the log: also of topics and segments that come later.",
        [of.on("SELECT", *map(_table, (models.Topic, models.TopicHead))), of.on_log("SELECT")],
    )


ROLES: dict[str, Callable[[Granting], Iterable[Block]]] = {
    "publisher": publisher,
    "consumer": consumer,
    "claimer": claimer,
    "operator": operator,
    "reader": reader,
    "sink": sink,
    "mirror": mirror,
}


def blocks(using: str, kind: str, role: str) -> list[Block]:
    """What to run so that a role can do what a process of its kind does. Nothing is run here."""
    rows = sql.fetch(using, SQL.home)
    if not rows:
        raise NotReady(tables_missing(using))
    of = Granting(role, *rows[0])
    return [*ROLES[kind](of), _closed(of)]


def revoking(using: str, role: str) -> list[Block]:
    """What to run so that a role can do nothing more with events, whatever kinds of processes it was for."""
    rows = sql.fetch(using, SQL.home)
    if not rows:
        raise NotReady(tables_missing(using))
    of = Granting(role, *rows[0])
    if role == of.owner:
        raise Invalid(f"{role!r} owns the tables of events. An owner has its rights by that, and no REVOKE takes them.")
    name, schema = quoted_name(role), quoted_name(of.schema)
    tables = ",\n    ".join(f"{schema}.{quoted_name(table)}" for table in [*_tables(), *of.roll_ups])
    functions = _functions(of.all_functions)
    return [
        Block(
            "All tables of django_events, with their columns.",
            [of.revoke("ALL", tables, name), of.revoke("ALL", f"SEQUENCE {schema}.{quoted_name(SEQUENCE)}", name)],
        ),
        Block("The log: the root, each topic's own table, and their segments.", [of.revoke_log()]),
        Block(
            "The functions that publish, that claim, and that make and drop segments.",
            [of.revoke("ALL", functions, name)],
        ),
        Block(
            "What operators and readers have besides. Leave this out if the role watches the server for others.",
            [of.end_membership(other) for other in BESIDES],
        ),
        Block(
            "If a right is left, because another role gave it, all of this ends in an error. The rights on the schema\n"
            "and the database stay as they are: others' tables may need them.",
            [of.proof_of_nothing()],
        ),
    ]


def _tables() -> list[str]:
    """All tables but those of the log, which are many."""
    found = {model._meta.db_table for model in apps.get_app_config("django_events").get_models()}
    return sorted(found - {LOG})


def _table(model: type[Model]) -> str:
    return model._meta.db_table
