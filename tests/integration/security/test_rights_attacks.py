"""No role with the printed rights has its code run in the session of another role.

Each role tries every attack of the list; then all the others do their ordinary work. Code of an attack leaves a row in
a table, with the role that it ran as. To try another attack, add it to the list.
"""

import io
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, transaction
from django.utils import timezone
from psycopg import sql as compose
from psycopg.conninfo import make_conninfo

from django_events import BufferedWriter, Draft, declarations, publish, publish_many
from django_events import sql as statements
from django_events.checks.databases import check_trust
from django_events.log.inventory import waiting
from django_events.log.retention import writing
from django_events.log.segments import cut
from django_events.management.granting import blocks
from django_events.models import Event, Topic
from django_events.observing.doctoring.database import Database
from django_events.observing.doctoring.schema import trust
from django_events.observing.problems import find_problems
from django_events.operations import publish_again, rewind
from django_events.spark.reading.tables import TABLES as TABLES_OF_SPARK
from django_events.spark.sink import SQL as SINK_SQL
from django_events.spark.source import EventsSource
from testproject.private_postgres.binaries import available_binaries, major_version
from testproject.private_postgres.server import Server
from testproject.shop.models import Product
from tests.support.fix_servers import database_of
from tests.support.fix_topics import transfer_all

KINDS = ("publisher", "consumer", "claimer", "operator", "reader", "sink", "mirror")
PASSWORD = "for-a-test"
# More servers than those that are found: folders of programs, as in a PATH.
MORE = [Path(folder) for folder in os.environ.get("POSTGRES_BINARIES", "").split(os.pathsep) if folder]
VERSIONS = {major_version(folder): folder for folder in [*available_binaries(), *MORE]}
HANDLED: list[int] = []

# {schema} is one that is in the search_path, {table} one of our tables, {victim} a login of another role, {home} the
# schema of our tables. {note} is what the code of the attack does, and trap a schema of the attacker's, which is in no
# search_path. Every statement is tried, whatever became of those before it.
FUNCTION = (
    "CREATE FUNCTION trap.{id}({arguments}) RETURNS {returns} LANGUAGE plpgsql"
    " AS $f$ BEGIN {note}; RETURN {result}; END $f$"
)


@dataclass(frozen=True)
class Attack:
    """What is tried, in SQL; `code` is a function in the trap that it needs: its arguments, its type, its result."""

    name: str
    tries: tuple[str, ...]
    code: tuple[str, str, str] | None = None


def better_function(name: str, arguments: str, returns: str, result: str) -> Attack:
    """A function that fits better than PostgreSQL's, or ours."""
    made = (
        f"CREATE FUNCTION {{schema}}.{name}({arguments}) RETURNS {returns} LANGUAGE plpgsql"
        f" AS $f$ BEGIN {{note}}; RETURN {result}; END $f$"
    )
    return Attack(f"{name}({arguments})", (made,))


def better_operator(name: str, left: str, right: str) -> Attack:
    result = f"$1::text OPERATOR(pg_catalog.{name}) $2::text"
    made = f"CREATE OPERATOR {{schema}}.{name} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = trap.{{id}})"
    return Attack(f"{left} {name} {right}", (made,), (f"{left}, {right}", "boolean", result))


def on_table(name: str, *tries: str) -> Attack:
    return Attack(name, tries, ("", "trigger", "NEW"))


EIGHT = "a text, b jsonb, c text, d text, e bytea, f jsonb, g integer, h boolean"
ATTACKS = [
    better_function("django_events_publish", "a text, b text, c text, d text", "bigint", "1"),
    better_function("django_events_publish", "a text, b jsonb, c text, d text", "bigint", "1"),
    better_function("django_events_publish", "a varchar, b jsonb, c varchar, d varchar", "bigint", "1"),
    better_function("django_events_publish", f"{EIGHT}, i integer DEFAULT 1", "bigint", "1"),
    better_function("django_events_publish", EIGHT, "bigint", "1"),
    better_function("django_events_open", "a text", "integer", "1"),
    better_function("django_events_open", "a text, b text", "integer", "1"),
    better_function("django_events_schedule", "a text, b timestamptz, c text, d text, e text", "bigint", "1"),
    better_function("django_events_checked", "a text", "jsonb", "'1'"),
    better_function("django_events_checked", "a json", "jsonb", "'1'"),
    better_function("pg_column_size", "a jsonb", "integer", "5000"),
    better_function("django_events_is_new", "a text, b text, c text", "boolean", "true"),
    better_function("django_events_make_segment", "a bigint, b bigint, c bigint", "void", ""),
    better_function("django_events_make_segment", "a integer, b integer, c integer", "void", ""),
    better_function("hashtextextended", "a varchar, b integer", "bigint", "0"),
    better_function("to_jsonb", "a varchar", "jsonb", "'1'"),
    better_function("pg_notify", "a text, b varchar", "void", ""),
    better_function("set_config", "a text, b varchar, c boolean", "text", "b"),
    better_function("md5", "a varchar", "text", "a"),
    better_function("coalesce", "a boolean, b boolean", "boolean", "a"),
    better_function("current_setting", "a varchar", "text", "'0'"),
    better_operator("=", "varchar", "varchar"),
    better_operator("=", "varchar", "text"),
    better_operator("=", "text", "varchar"),
    better_operator("~", "varchar", "text"),
    better_operator("<", "varchar", "varchar"),
    Attack(
        "a type of the same name",
        (
            "CREATE DOMAIN {schema}.jsonb AS pg_catalog.jsonb CHECK (trap.{id}() IS NOT NULL)",
            "CREATE DOMAIN {schema}.text AS pg_catalog.text CHECK (trap.{id}() IS NOT NULL)",
        ),
        ("", "boolean", "true"),
    ),
    Attack(
        "a cast",
        (
            "CREATE CAST (text AS varchar) WITH FUNCTION trap.{id}(text) AS IMPLICIT",
            "CREATE CAST (varchar AS text) WITH FUNCTION trap.{id}(text) AS IMPLICIT",
            "CREATE CAST (text AS jsonb) WITH FUNCTION trap.{id}(text) AS IMPLICIT",
        ),
        ("text", "text", "$1"),
    ),
    Attack(
        "a view in the place of a table",
        (
            "ALTER TABLE {home}.{table} RENAME TO moved",
            "CREATE VIEW {schema}.{table} AS SELECT m.*, trap.{id}() AS x FROM {home}.moved AS m",
            'CREATE SCHEMA "{victim}"',
            'GRANT USAGE ON SCHEMA "{victim}" TO PUBLIC',
            'CREATE VIEW "{victim}".{table} AS SELECT m.*, trap.{id}() AS x FROM {home}.{table} AS m',
            'GRANT ALL ON "{victim}".{table} TO PUBLIC',
        ),
        ("", "boolean", "true"),
    ),
    on_table(
        "a trigger",
        "CREATE TRIGGER {id} BEFORE INSERT OR UPDATE ON {home}.{table} FOR EACH ROW EXECUTE FUNCTION trap.{id}()",
    ),
    Attack(
        "a policy",
        (
            "ALTER TABLE {home}.{table} ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY {id} ON {home}.{table} USING (trap.{id}()) WITH CHECK (trap.{id}())",
        ),
        ("", "boolean", "true"),
    ),
    Attack(
        "a rule",
        (
            "CREATE RULE {id} AS ON INSERT TO {home}.{table} DO ALSO SELECT trap.{id}()",
            "CREATE RULE {id} AS ON UPDATE TO {home}.{table} DO ALSO SELECT trap.{id}()",
        ),
        ("", "boolean", "true"),
    ),
    Attack(
        "a default, a check, an index, statistics",
        (
            "ALTER TABLE {home}.{table} ADD COLUMN {id} boolean DEFAULT trap.{id}()",
            "ALTER TABLE {home}.{table} ADD CHECK (trap.{id}()) NOT VALID",
            "CREATE INDEX ON {home}.{table} ((trap.{id}()))",
            "CREATE STATISTICS trap.{id} ON (trap.{id}()) FROM {home}.{table}",
            "ALTER TABLE {home}.{table} ALTER COLUMN topic_id SET DEFAULT trap.{id}()::integer",
        ),
        ("", "boolean", "true"),
    ),
    Attack(
        "a partition, a child, a foreign key",
        (
            "CREATE TABLE trap.{id} (LIKE {home}.{table}, CHECK (trap.{id}()))",
            "GRANT ALL ON trap.{id} TO PUBLIC",
            "ALTER TABLE {home}.{table} ATTACH PARTITION trap.{id} FOR VALUES IN (99)",
            "ALTER TABLE {home}.{table} ATTACH PARTITION trap.{id} FOR VALUES FROM (1000000) TO (2000000)",
            "ALTER TABLE trap.{id} INHERIT {home}.{table}",
            "ALTER TABLE trap.{id} ADD FOREIGN KEY (topic_id) REFERENCES {home}.django_events_topic ON DELETE CASCADE",
        ),
        ("", "boolean", "true"),
    ),
    Attack(
        "a table that has the name of the next segment",
        (
            "CREATE TABLE {schema}.django_events_event_1_101 (LIKE {home}.django_events_event)",
            "CREATE TRIGGER {id} BEFORE INSERT ON {schema}.django_events_event_1_101"
            " FOR EACH ROW EXECUTE FUNCTION trap.{id}()",
        ),
        ("", "trigger", "NEW"),
    ),
    Attack(
        "our functions replaced",
        (
            "CREATE OR REPLACE FUNCTION {home}.django_events_open(topic text, wake boolean DEFAULT NULL)"
            " RETURNS integer LANGUAGE plpgsql AS $f$ BEGIN {note}; RETURN 1; END $f$",
            "CREATE OR REPLACE FUNCTION {home}.pgtrigger_deliver_6a530()"
            " RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN {note}; RETURN NULL; END $f$",
            "CREATE OR REPLACE FUNCTION {home}.django_events_drop_segment(topic_id integer, first bigint)"
            " RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN {note}; RETURN true; END $f$",
            "ALTER FUNCTION {home}.django_events_open(text, boolean) SET search_path = trap",
            "ALTER FUNCTION {home}.django_events_make_segment(integer, bigint, bigint) SET search_path = trap",
            "ALTER FUNCTION {home}.django_events_open(text, boolean) OWNER TO CURRENT_USER",
            "CREATE OR REPLACE FUNCTION {home}.django_events_end_of(given_token bigint) RETURNS void LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; END $f$",
            "ALTER FUNCTION {home}.django_events_ack(bigint, bigint[]) SET search_path = trap",
            "DROP FUNCTION {home}.django_events_is_new(text, text, interval)",
        ),
    ),
    Attack(
        "ownership",
        (
            "ALTER TABLE {home}.{table} OWNER TO CURRENT_USER",
            "REASSIGN OWNED BY {owner} TO CURRENT_USER",
            "GRANT ALL ON {home}.{table} TO CURRENT_USER WITH GRANT OPTION",
            "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT ALL ON TABLES TO PUBLIC",
        ),
    ),
    Attack(
        "another role",
        (
            'SET ROLE "{victim}"',
            "{note}",
            "RESET ROLE",
            "SET ROLE {owner}",
            "{note}",
            "RESET ROLE",
            'SET SESSION AUTHORIZATION "{victim}"',
            "{note}",
            "RESET SESSION AUTHORIZATION",
            "GRANT {owner} TO CURRENT_USER",
            'GRANT "{victim}" TO CURRENT_USER',
            "SET ROLE {owner}",
            "{note}",
            "RESET ROLE",
        ),
    ),
    Attack(
        "the search_path of others",
        (
            'ALTER ROLE "{victim}" SET search_path = trap, {path}',
            "ALTER ROLE ALL SET search_path = trap, {path}",
            "ALTER DATABASE {database} SET search_path = trap, {path}",
            "ALTER SYSTEM SET search_path = trap, {path}",
            "CREATE FUNCTION trap.django_events_open(topic text, wake boolean DEFAULT NULL)"
            " RETURNS integer LANGUAGE plpgsql AS $f$ BEGIN {note}; RETURN 1; END $f$",
        ),
    ),
    Attack(
        "a schema with the name of a login",
        (
            'CREATE SCHEMA "{victim}"',
            'GRANT USAGE ON SCHEMA "{victim}" TO PUBLIC',
            'CREATE FUNCTION "{victim}".django_events_publish(' + EIGHT + ") RETURNS bigint LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN 1; END $f$",
        ),
    ),
    Attack(
        "an event trigger",
        ("CREATE EVENT TRIGGER {id} ON ddl_command_end EXECUTE FUNCTION trap.{id}()",),
        ("", "event_trigger", ""),
    ),
    Attack(
        "names of the functions by which programs claim",
        (
            "CREATE TEMP TABLE django_events_event (LIKE {home}.django_events_event)",
            "CREATE TEMP TABLE django_events_consumer AS SELECT 1 AS id, 1 AS topic_id, 'queue' AS name",
            "CREATE TEMP TABLE django_events_topic AS SELECT 1 AS id, 'things' AS name",
            "CREATE TEMP TABLE django_events_delivery (consumer_id integer, event_id bigint, token bigint)",
            "CREATE TEMP TABLE django_events_deliverylease (token bigint, consumer_id integer)",
            "CREATE FUNCTION trap.django_events_lease_of(regclass, integer, integer, boolean, integer, interval, text,"
            " timestamptz, timestamptz) RETURNS record LANGUAGE plpgsql AS $f$ BEGIN {note}; RETURN NULL; END $f$",
            "CREATE FUNCTION trap.django_events_log_of(regclass, integer) RETURNS regclass LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN $1; END $f$",
            "CREATE FUNCTION trap.django_events_under_token(bigint) RETURNS record LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN NULL; END $f$",
            "CREATE FUNCTION trap.quote_ident(name) RETURNS text LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN $1; END $f$",
            "CREATE FUNCTION trap.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN $2; END $f$",
            "CREATE FUNCTION trap.same_text(varchar, text) RETURNS boolean LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN true; END $f$",
            "CREATE OPERATOR trap.= (LEFTARG = varchar, RIGHTARG = text, FUNCTION = trap.same_text)",
            "SET search_path = pg_temp, trap, pg_catalog, {path}",
            "SELECT * FROM {home}.django_events_claim('queue', 1, '1 second')",
            "SELECT * FROM {home}.django_events_claim('queue; SELECT 1', 1, '1 second', worker => $q$';--$q$)",
            "SELECT {home}.django_events_ack(1, '{{1}}')",
            "SELECT {home}.django_events_nack(token, error => '%s $1 {{}}') FROM {home}.django_events_claim('queue')",
            "SELECT {home}.django_events_claim_of("
            "'{home}.django_events_event'::regclass, 'nothing', 1, '1 s', NULL, NULL, NULL, NULL, 1)",
            "SELECT {home}.django_events_claim_of("
            "'pg_temp.django_events_event'::regclass, 'nothing', 1, '1 s', NULL, NULL, NULL, NULL, 1)",
            "SELECT {home}.django_events_settle_of(1, 1, '{{1}}', true)",
        ),
    ),
    Attack(
        "names of the functions that have the owner's rights",
        (
            "CREATE TEMP TABLE pg_class AS SELECT * FROM pg_catalog.pg_class",
            "CREATE TEMP TABLE pg_namespace AS SELECT * FROM pg_catalog.pg_namespace",
            "CREATE FUNCTION pg_temp.format(text, name, text) RETURNS text LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN $1; END $f$",
            "CREATE FUNCTION trap.format(text, name, text) RETURNS text LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN $1; END $f$",
            "CREATE FUNCTION trap.format(text, name, bigint) RETURNS text LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN $1; END $f$",
            "CREATE FUNCTION trap.same(bigint, bigint) RETURNS boolean LANGUAGE plpgsql"
            " AS $f$ BEGIN {note}; RETURN true; END $f$",
            "CREATE OPERATOR trap.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = trap.same)",
            "CREATE TEMP TABLE django_events_event (LIKE {home}.django_events_event)",
            "SET search_path = pg_temp, trap, pg_catalog, {path}",
            "SET default_tablespace = pg_global",
            "SELECT {home}.django_events_make_segment(1, 900000, 900100)",
            "RESET default_tablespace",
            "SELECT {home}.django_events_make_segment(1, 900000, 900100)",
            "SELECT {home}.django_events_cut_segment(1, 900000, 900050)",
            "SELECT {home}.django_events_drop_segment(1, 900000)",
            "SELECT {home}.django_events_make_segment_of('{home}.django_events_event_1'::regclass, 900000, 900100)",
            "SELECT {home}.django_events_open('things', true)",
        ),
    ),
]
TABLES = [
    "django_events_topic",
    "django_events_topichead",
    "django_events_bufferedevent",
    "django_events_stagedevent",
    "django_events_sinkbatch",
    "django_events_consumer",
    "django_events_position",
    "django_events_delivery",
    "django_events_deadletter",
    "django_events_sample",
    "django_events_event",
    "django_events_event_1",
    "django_events_event_1_1",
    "shop_product",
]
TRAP = """
CREATE SCHEMA trap;
GRANT USAGE, CREATE ON SCHEMA trap TO PUBLIC;
CREATE TABLE trap.canary (
    attack text, attacker text, ran_as text DEFAULT current_user, session text DEFAULT session_user
);
GRANT INSERT ON trap.canary TO PUBLIC
"""


@dataclass
class Site:
    """A database with our tables in a schema, which are the owner's, and a login for each kind of process."""

    server: Server
    url: str
    schemas: list[str]
    unique: str = field(default_factory=lambda: uuid.uuid4().hex[:6])

    @property
    def home(self) -> str:
        return self.schemas[0]

    @property
    def owner(self) -> str:
        return f"owner_{self.unique}"

    def role(self, kind: str) -> str:
        return f"{kind}_{self.unique}"

    def login(self, kind: str) -> str:
        return f"login_{kind}_{self.unique}"

    def alias(self, kind: str) -> str:
        return f"attacked_{kind}"

    def run(self, *lines: str | bytes | compose.Composable) -> None:
        """As a superuser, whose names are all PostgreSQL's own."""
        with psycopg.connect(self.url, autocommit=True) as session:
            for line in lines:
                session.execute(line if not isinstance(line, str) else line.encode())

    def canaries(self) -> list[tuple[str, str, str, str]]:
        """Code of one role that ran as another, or in its session."""
        with psycopg.connect(self.url) as session:
            found = session.execute("DELETE FROM trap.canary RETURNING attack, attacker, ran_as, session").fetchall()
        return sorted({row for row in found if {row[2], row[3]} != {row[1]}})

    def reach(self, alias: str, user: str) -> None:
        place = urlsplit(self.url)
        connections.settings[alias] = {
            **connection.settings_dict,
            "ENGINE": "django.db.backends.postgresql",
            "HOST": place.hostname,
            "PORT": place.port,
            "USER": user,
            "PASSWORD": PASSWORD,
            "NAME": place.path[1:],
            "OPTIONS": {"options": f'-c search_path="$user",{",".join(self.schemas)}'},
        }

    def grant(self, kind: str, *, closed: bool = True, by: str | None = None) -> None:
        """Run what `events grants` prints, or all but its last block, which closes the schemas."""
        printed = blocks(self.alias("owner"), kind, self.role(kind))
        login = {} if by is None else {"user": by, "password": PASSWORD}
        with psycopg.connect(self.url, cursor_factory=psycopg.ClientCursor, **login) as session:
            for block in printed if closed else printed[:-1]:
                for statement in block.statements:
                    session.execute(statement.encode())
            session.execute(f"GRANT {self.role(kind)} TO {self.login(kind)}".encode())

    def attack(self, kind: str, attacks: list[Attack], *, schemas: list[str] | None = None) -> None:
        """Try everything as a login of this kind."""
        place = urlsplit(self.url)
        with psycopg.connect(
            host=place.hostname,
            port=place.port,
            dbname=place.path[1:],
            user=self.login(kind),
            password=PASSWORD,
            autocommit=True,
        ) as session:
            for number, attack in enumerate(attacks):
                for line in self._lines(kind, attack, f"attack_{kind}_{number}", schemas or self.schemas):
                    with suppress(psycopg.Error):
                        session.execute(line)
                session.execute("RESET ALL")

    def _lines(self, kind: str, attack: Attack, name: str, schemas: list[str]) -> Iterator[bytes]:
        note = f"INSERT INTO trap.canary (attack, attacker) VALUES ('{attack.name}', '{self.login(kind)}')"
        common = {"note": note, "id": name, "home": self.home, "owner": self.owner, "path": ",".join(self.schemas)}
        common["database"] = urlsplit(self.url).path[1:]
        if attack.code is not None:
            arguments, returns, result = attack.code
            yield FUNCTION.format(arguments=arguments, returns=returns, result=result, **common).encode()
        victims = [self.login(other) for other in KINDS if other != kind]
        for tried in attack.tries:
            for schema in schemas if "{schema}" in tried else [""]:
                for table in TABLES if "{table}" in tried else [""]:
                    for victim in victims if "{victim}" in tried else [""]:
                        yield tried.format(schema=schema, table=table, victim=victim, **common).encode()


def manage(*arguments: str, using: str, **options: Any) -> None:
    call_command(*arguments, database=using, stdout=io.StringIO(), stderr=io.StringIO(), **options)


def migrates(site: Site) -> None:
    manage("migrate", using=site.alias("owner"), verbosity=0)


def publishes(site: Site) -> None:
    alias = site.alias("publisher")
    publish("things", {"n": 1}, type="a", key="a", using=alias)
    publish("things", body=b"x", metadata={"by": "test"}, using=alias)
    publish("things", 1, dedup_key=uuid.uuid4().hex, using=alias)
    publish("things", 1, publish_at=timezone.now(), using=alias)


def saves(site: Site) -> None:
    """By COPY, and rows of a captured table."""
    alias = site.alias("publisher")
    publish_many("things", [Draft(value=n, type="a", key=f"k{n}") for n in range(60)], using=alias)
    with BufferedWriter("things", using=alias) as writer:
        writer.publish(1)
    with transaction.atomic(alias):
        product = Product.objects.using(alias).create(sku=uuid.uuid4().hex[:20], price=1, on_shelf=1)
        product.on_shelf = 2
        product.save(using=alias)


def operates(site: Site) -> None:
    alias = site.alias("operator")
    manage("run_transfer", using=alias, once=True)
    last = Event.objects.using(alias).of("things").latest("id").id
    with writing(alias, 1) as topic:
        assert topic is not None
        cut(alias, topic, last_id=last)
    publish_again("things", last, using=alias)
    manage("run_transfer", using=alias, once=True)
    manage("events", "maintain", using=alias)
    rewind("stream", to=max(last - 3, 0), topic="things", using=alias)
    manage("events", "erase", "things", "--key", "k1", "--reason", "a test", "--execute", using=alias)


def consumes(site: Site) -> None:
    manage("run_consumer", "stream", "queue", using=site.alias("consumer"), once=True)
    assert HANDLED


def claims(site: Site) -> None:
    """As a program would that is not written in Python, and one that died."""
    with connections[site.alias("claimer")].cursor() as cursor:
        cursor.execute("SELECT token, id FROM django_events_claim('queue', 3, '1 second')")
        for token, event_id in cursor.fetchall():
            cursor.execute("SELECT django_events_extend(%s, '1 second')", [token])
            cursor.execute("SELECT django_events_nack(%s, %s, '1 s', 'a test')", [token, [event_id]])
        cursor.execute("SELECT token, id FROM django_events_claim('queue', 3)")
        for token, event_id in cursor.fetchall():
            cursor.execute("SELECT django_events_ack(%s, %s)", [token, [event_id]])


def reads(site: Site) -> None:
    alias = site.alias("reader")
    for arguments in (("status",), ("peek", "things"), ("consumers", "stream"), ("dead-letters",), ("verify",)):
        manage("events", *arguments, using=alias)
    with suppress(SystemExit):
        manage("events", "doctor", using=alias)


def reads_by_spark(site: Site) -> None:
    """What a driver and its tasks ask for, without a JVM: a batch with each kind of filter, a stream, each table."""
    asked = {
        "all": {},
        "filtered": {"types": "a", "keys": "a", "where": "$.n == 1", "failOnDataLoss": "false"},
        "since": {"startingTimestamp": "2020-01-01T00:00:00Z", "failOnDataLoss": "false"},
        "matching": {"subscribePattern": "th.*", "startingOffsets": "latest"},
        **{table: {"table": table} for table in TABLES_OF_SPARK},
    }
    counts = {name: rows_of(batch_of(site, **options)) for name, options in asked.items()}
    assert counts["all"] and counts["filtered"] and counts["since"] and counts["positions"], counts
    source = source_of(site, subscribe="things", startingOffsets="earliest")
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert sum(batch.num_rows for part in stream.partitions(start, end) for batch in stream.read(part))
    stream.stop()


def source_of(site: Site, **options: str) -> EventsSource:
    place = urlsplit(site.url)
    dsn = make_conninfo(
        host=place.hostname,
        port=place.port,
        dbname=place.path[1:],
        user=site.login("reader"),
        password=PASSWORD,
        options=f'-c search_path="$user",{",".join(site.schemas)}',
    )
    return EventsSource({"dsn": dsn, **options})


def batch_of(site: Site, **options: str) -> Any:
    wanted = options if options.keys() & {"subscribePattern", "table"} else {"subscribe": "things", **options}
    source = source_of(site, **wanted)
    return source.reader(source.schema())


def rows_of(reader: Any) -> int:
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def sinks(site: Site) -> None:
    alias, attempt = site.alias("sink"), uuid.uuid4()
    connections[alias].ensure_connection()
    with (
        connections[alias].connection.cursor() as cursor,
        cursor.copy(SINK_SQL.stage.text.encode()) as copying,
    ):
        copying.write_row((str(attempt), 1, None, "a", "a", "1", None, "{}"))
    with transaction.atomic(alias):
        statements.fetch(alias, SINK_SQL.lock_attempts, attempts=[attempt])
        statements.fetch(alias, SINK_SQL.lock_sink, sink=f"{attempt}", query="")
        statements.fetch(alias, statements.shared.open, topic="things", wake=None)
        statements.fetch(alias, SINK_SQL.publish_staged, attempts=[attempt])
        statements.fetch(alias, SINK_SQL.note_batch, sink=f"{attempt}", batch=1, events=1, run="")


WORK = (migrates, publishes, saves, sinks, operates, claims, consumes, reads, reads_by_spark)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """For the tests that are about one version."""
    with Server() as one:
        yield one


@pytest.fixture
def declared(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """A topic and its consumers; and none but those, so that no handlers of others run here."""
    topics, consumers = list(declarations.registry), list(declarations.consumers)
    for one in topics:
        declarations.registry.discard(one)
    for other in consumers:
        declarations.consumers.discard(other)
    things = declarations.topic("things", partitions=2, segment_size=100, retention_events=100)
    declarations.registry.add(next(one for one in topics if one.name == "stock"))  # of a captured table
    declarations.consumer(things, name="stream")(lambda event: HANDLED.append(event.id))
    declarations.consumer(things, name="queue", mode="queue", types=["a"], history=timedelta(days=1))(
        lambda event: HANDLED.append(event.id)
    )
    try:
        with django_db_blocker.unblock():
            yield
    finally:
        for made in list(declarations.consumers):
            declarations.consumers.discard(made)
        for one in list(declarations.registry):
            declarations.registry.discard(one)
        for one in topics:
            declarations.registry.add(one)
        for other in consumers:
            declarations.consumers.add(other)


@contextmanager
def site_on(server: Server, schemas: list[str]) -> Iterator[Site]:
    """A new site whose `public` is open to all, as up to PostgreSQL 14; no rights are granted yet."""
    site = Site(server, database_of(server, f"site_{uuid.uuid4().hex[:6]}"), schemas)
    password = compose.Literal(PASSWORD)
    names = {"owner": site.owner, **{kind: site.login(kind) for kind in KINDS}}
    for name in names.values():
        site.run(compose.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(compose.Identifier(name), password))
    site.run("GRANT CREATE ON SCHEMA public TO PUBLIC", TRAP)
    for schema in schemas:
        site.run(
            f"CREATE SCHEMA IF NOT EXISTS {schema}",
            f"GRANT CREATE, USAGE ON SCHEMA {schema} TO {site.owner}",
        )
    aliases = {site.alias(kind): name for kind, name in names.items()}
    try:
        for alias, name in aliases.items():
            site.reach(alias, name)
        migrates(site)
        site.run(
            f"GRANT SELECT, INSERT, UPDATE ON {site.home}.shop_product TO PUBLIC;"
            f"GRANT USAGE ON SEQUENCE {site.home}.shop_product_id_seq TO PUBLIC"
        )
        yield site
    finally:
        for alias in aliases:
            connections[alias].close()
            del connections[alias]
            del connections.settings[alias]


LAYOUTS = {"public": ["public"], "own": ["own", "public"]}
# Each version, and each layout on one of them at least; all of them where it is asked for.
CASES = [
    pytest.param(version, layout, marks=[] if version == max(VERSIONS) else pytest.mark.long)
    for number, version in enumerate(sorted(VERSIONS))
    for layout in LAYOUTS
    if MORE or version == max(VERSIONS) or layout == list(LAYOUTS)[number % 2]
]


@pytest.mark.parametrize(("version", "layout"), CASES)
@pytest.mark.few(1)
def test_no_role_has_its_code_run_by_another(declared: None, version: int, layout: str) -> None:
    with Server(binaries=VERSIONS[version]) as server, site_on(server, LAYOUTS[layout]) as site:
        for kind in KINDS:
            site.grant(kind)
        for kind in KINDS:
            site.attack(kind, ATTACKS)
        for work in WORK:
            work(site)
        assert site.canaries() == []


OPEN = [
    "django_events_publish(a text, b text, c text, d text)",
    "django_events_publish(a text, b jsonb, c text, d text)",
    "django_events_open(a text, b text)",
    "hashtextextended(a varchar, b integer)",
    "varchar = varchar",
    "varchar = text",
]


@pytest.mark.slow
def test_where_others_may_create_in_the_search_path_their_code_is_run(declared: None, server: Server) -> None:
    """So the attacks are real: without the REVOKEs that are printed, some work. Those on publishing never do."""
    with site_on(server, ["public"]) as site:
        for kind in KINDS:
            site.grant(kind, closed=False)
        site.attack("sink", [attack for attack in ATTACKS if attack.name in OPEN])
        publishes(site)
        assert site.canaries() == []
        operates(site)
        assert {OPEN[3], OPEN[4]} <= {attack for attack, *_ in site.canaries()}


@pytest.mark.slow
def test_operators_give_the_log_back(declared: None, server: Server) -> None:
    """Once they owned it, and had code run by all who use it."""
    with site_on(server, ["public"]) as site:
        for kind in KINDS:
            site.grant(kind, closed=False)
        site.run(
            f"GRANT CREATE ON SCHEMA public TO {site.role('operator')}",
            f"GRANT {site.role('operator')} TO {site.owner}",
            *(
                f"ALTER TABLE {table} OWNER TO {site.role('operator')}"
                for table in ("django_events_event", "django_events_event_1", "django_events_event_1_1")
            ),
        )
        site.attack("operator", [attack for attack in ATTACKS if attack.name == "a trigger"])
        publishes(site)
        manage("run_transfer", using=site.alias("owner"), once=True)
        assert site.canaries() != []
        with psycopg.connect(site.url) as session:
            triggers = session.execute(
                "SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE 'attack%' AND tgparentid = 0"
            ).fetchall()
        site.run(*(f"DROP TRIGGER {trigger} ON {table}" for trigger, table in triggers))
        for kind in KINDS:
            site.grant(kind)
        site.attack("operator", ATTACKS)
        for work in WORK:
            work(site)
        assert site.canaries() == []


@pytest.mark.slow
def test_the_printed_text_ends_in_an_error_if_a_revoke_had_no_effect(declared: None, server: Server) -> None:
    """As on PostgreSQL 14, where `public` is another role's than the owner of the tables."""
    with site_on(server, ["public"]) as site:
        site.run(f"ALTER ROLE {site.owner} CREATEROLE", "ALTER SCHEMA public OWNER TO CURRENT_USER")
        with pytest.raises(psycopg.errors.RaiseException, match="PUBLIC may create in the schema public") as caught:
            site.grant("sink", by=site.owner)
        assert "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in str(caught.value)
        site.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        site.run(f"GRANT CREATE ON SCHEMA public TO {site.owner}")
        site.grant("publisher", by=site.owner)


@pytest.mark.slow
def test_doctor_and_check_say_which_role_could_have_its_code_run(declared: None, server: Server) -> None:
    with site_on(server, ["own", "public"]) as site:
        for kind in KINDS:
            site.grant(kind)
        alias, stranger = site.alias("owner"), site.login("sink")
        assert [answer.severity for answer in trust(Database(alias))] == ["ok"]
        assert [*check_trust(databases=[alias])] == []

        site.run(
            "GRANT CREATE ON SCHEMA public TO PUBLIC",
            f"GRANT CREATE ON SCHEMA own TO {stranger}",
            f"GRANT CREATE ON DATABASE {urlsplit(site.url).path[1:]} TO {stranger}",
            "GRANT EXECUTE ON FUNCTION own.django_events_make_segment(integer, bigint, bigint) TO PUBLIC",
            f"ALTER TABLE own.django_events_sample OWNER TO {stranger}",
            f"ALTER FUNCTION own.django_events_is_new(text, text, interval) OWNER TO {stranger}",
            "CREATE TRIGGER planted BEFORE INSERT ON own.django_events_event"
            " FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "CREATE POLICY planted ON own.django_events_topic",
            "CREATE RULE planted AS ON INSERT TO own.django_events_consumer DO ALSO SELECT 1",
        )
        with psycopg.connect(site.url, autocommit=True) as session:
            session.execute(f"SET ROLE {stranger}".encode())
            session.execute("CREATE FUNCTION public.django_events_publish(text, text) RETURNS bigint RETURN 1")
        found = {answer.what.partition(": its code")[0]: answer for answer in trust(Database(alias))}
        assert {answer.severity for answer in found.values()} == {"warning"}
        assert sorted(found) == sorted(
            [
                "PUBLIC may create in the schema public",
                f"{stranger} may create in the schema own",
                f"{stranger} may create schemas, also with the name of a login, which comes first in the search_path",
                "PUBLIC may call django_events_make_segment(integer,bigint,bigint), which has the rights of its owner",
                f"django_events_sample belongs to {stranger}",
                f"The function django_events_is_new(text,text,interval) of {stranger} has the name of one of ours",
                f"The function django_events_publish(text,text) of {stranger} has the name of one of ours",
                f"The trigger planted on django_events_event, which is not ours, calls "
                f"suppress_redundant_updates_trigger of {connection.settings_dict['USER'] or 'postgres'}",
                "The policy planted on django_events_topic is not ours",
                "The rule planted on django_events_consumer is not ours",
            ]
        )
        checked = [*check_trust(databases=[alias])]
        assert {message.id for message in checked} == {"django_events.W008"}
        assert len(checked) == len(found) - 3  # what is on tables may be the site's own

        ends = [
            answer.remedy.rpartition("Otherwise: ")[2]
            for what, answer in found.items()
            if "is_new" not in what and "belongs" not in what
        ]
        with psycopg.connect(site.url, autocommit=True) as session:
            session.execute(f"SET search_path = {','.join(site.schemas)}".encode())
            for end in ends:
                session.execute(end.encode())
        site.run(f"REASSIGN OWNED BY {stranger} TO {site.owner}")
        assert [answer.severity for answer in trust(Database(alias))] == ["ok"]


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        ("make_segment(1, 0, 100)", "can't hold the ids from 0"),
        ("make_segment(1, 500, 500)", "can't hold the ids from 500"),
        ("make_segment(1, NULL, 500)", "can't hold the ids from"),
        ("make_segment(1, 50, 60)", "would overlap"),
        ("make_segment(77, 1, 100)", "does not exist"),
        ("cut_segment(1, 1, 40)", "is violated by some row"),
        ("cut_segment(1, 1, 1000)", "has no segment that begins at 1 and can end at 1000"),
        ("cut_segment(1, 2, 50)", "has no segment that begins at 2"),
        ("cut_segment(1, 1, NULL)", "has no segment"),
        ("drop_segment(1, 101)", "has events and is not the oldest segment"),
        ("drop_segment(77, 1)", "does not exist"),
    ],
)
def test_segments_are_changed_only_as_a_log_allows(
    transactional_db: None, make_topic: Any, call: str, refusal: str
) -> None:
    topic = make_topic("things", segment_size=100)
    publish_many(topic, [Draft(value=n) for n in range(150)])
    transfer_all()
    call = call.replace("(1,", f"({Topic.objects.get(name='things').pk},")
    with pytest.raises(DatabaseError, match=refusal), connection.cursor() as cursor:
        cursor.execute(f"SELECT django_events_{call}")
    assert Event.objects.of(topic).count() == 150


@pytest.mark.long
def test_a_schema_may_be_renamed_and_the_log_reassigned(declared: None, server: Server) -> None:
    with site_on(server, ["own"]) as site:
        new = f"another_{site.unique}"
        site.run(
            "ALTER SCHEMA own RENAME TO moved",
            f"CREATE ROLE {new}",
            f"REASSIGN OWNED BY {site.owner} TO {new}",
            f"GRANT USAGE, CREATE ON SCHEMA moved TO {new}",
            f"GRANT {new} TO {site.owner}",
        )
        site.schemas[0] = "moved"
        for kind in ("owner", *KINDS):
            connections[site.alias(kind)].close()
            site.reach(site.alias(kind), site.owner if kind == "owner" else site.login(kind))
            del connections[site.alias(kind)]
        for kind in KINDS:
            site.grant(kind)
        publish_many("things", [Draft(value=n) for n in range(350)], using=site.alias("publisher"))
        manage("run_transfer", using=site.alias("operator"), once=True)
        with psycopg.connect(site.url) as session:
            owners = session.execute(
                "SELECT count(*), array_agg(DISTINCT pg_get_userbyid(c.relowner)::text)"
                " FROM pg_partition_tree('moved.django_events_event_1') AS t JOIN pg_class AS c ON c.oid = t.relid"
            ).fetchall()
        assert owners == [(6, [new])]


@pytest.mark.slow
def test_a_log_of_another_owner_stops_no_other(declared: None, server: Server) -> None:
    """Segments are made with the rights of the owner of our functions, which are none on it."""
    with site_on(server, ["public"]) as site:
        for kind in ("publisher", "operator"):
            site.grant(kind)
        site.run(f"CREATE ROLE stranger_{site.unique}")
        log = f"django_events_event_{Topic.objects.using(site.alias('owner')).get(name='things').pk}"
        site.run(f"ALTER TABLE {log} OWNER TO stranger_{site.unique}")
        publish_many("things", [Draft(value=n) for n in range(350)], using=site.alias("publisher"))
        publish("stock", "others", using=site.alias("publisher"))
        with pytest.raises(CommandError, match=f"failed for 1 topic; .*\nthings: permission denied for table {log}"):
            operator_moves(site)
        events = Event.objects.using(site.alias("owner"))
        assert [event.value for event in events.of("stock")] == ["others"]
        found = find_problems(site.alias("owner"), waiting(site.alias("owner")), None, [])
        [problem] = [one for one in found if one.kind == "transfer"]
        assert problem.remedy.startswith(f"Give {log} its owner and rights back")

        site.run(f"ALTER TABLE {log} OWNER TO {site.owner}")
        operator_moves(site)
        assert [event.value for event in events.of("things").order_by("id")] == list(range(350))


def operator_moves(site: Site) -> None:
    manage("run_transfer", using=site.alias("operator"), once=True)
