"""Migrations: forth, back without a trace, and forth again, in a database of their own."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.migrations import Migration
from django.db.models.signals import pre_migrate
from psycopg import sql
from psycopg.conninfo import make_conninfo

from django_events import declarations, publish
from django_events.checks.databases import check_servers
from django_events.models import Event
from tests.support.fix_topics import transfer_all

ROOT = Path(__file__).parents[2]

# Whatever a schema can hold, with what makes each thing what it is. Names of row types and toast
# tables follow from their tables.
CATALOG = """
SELECT 'relation', c.oid::regclass::text, c.relkind::text,
    concat(c.relpersistence, c.reloptions, pg_get_expr(c.relpartbound, c.oid))
FROM pg_class AS c WHERE c.relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'column', attrelid::regclass::text, attname,
    concat(atttypid::regtype, attnum, attnotnull, attidentity, pg_get_expr(d.adbin, d.adrelid))
FROM pg_attribute AS a
JOIN pg_class AS c ON c.oid = a.attrelid AND c.relnamespace = 'public'::regnamespace
LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE attnum > 0 AND NOT attisdropped
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', indrelid::regclass::text, indexrelid::regclass::text, pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid AND c.relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'function', oid::regprocedure::text, proname, md5(prosrc)
FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT 'type', oid::regtype::text, typtype::text, '' FROM pg_type WHERE typnamespace = 'public'::regnamespace
UNION ALL
SELECT 'comment', classoid::regclass::text, objoid::text, description
FROM pg_description WHERE objoid >= 16384
UNION ALL
SELECT 'schema', nspname, '', '' FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'
ORDER BY 1, 2, 3, 4
"""


class Database:
    """A new database beside the test's own, as an alias of this process and for other processes."""

    def __init__(self, alias):
        self.alias = alias
        self.name = f"events_{alias}_{uuid4().hex[:8]}"
        parameters = connection.get_connection_params()
        self._conninfo = {k: parameters[k] for k in ("host", "port", "user", "password") if parameters.get(k)}

    def __enter__(self):
        self._on_the_server("CREATE DATABASE {} TEMPLATE template0")
        connections[self.alias] = connections["default"].copy(self.alias)
        connections[self.alias].settings_dict["NAME"] = self.name
        return self

    def __exit__(self, *error):
        connections[self.alias].close()
        del connections[self.alias]
        self._on_the_server("DROP DATABASE {} WITH (FORCE)")

    def _on_the_server(self, statement):
        with psycopg.connect(**self._conninfo, dbname="postgres", autocommit=True) as session:
            session.execute(sql.SQL(statement).format(sql.Identifier(self.name)))

    def migrate(self, *args):
        call_command("migrate", *args, database=self.alias, verbosity=0)

    def execute(self, statement, parameters=None):
        with connections[self.alias].cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def catalog(self):
        return self.execute(CATALOG)

    def manage(self, *args):
        """Start `manage.py` as a process of its own, on this database."""
        return subprocess.Popen(
            [sys.executable, ROOT / "testproject/manage.py", *args],
            env={**os.environ, "DATABASE_URL": make_conninfo(**self._conninfo, dbname=self.name)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def database(django_db_blocker):
    with django_db_blocker.unblock(), Database("fresh") as database:
        yield database


def trace(catalog):
    """What reminds of django_events."""
    return [line for line in catalog if "events" in str(line) or "pgtrigger" in str(line)]


@pytest.mark.django_db
def test_models_and_migrations_say_the_same():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_migrate_and_back_leaves_no_trace_and_forth_again_makes_the_same(database):
    """Tables, sequences, functions, types, triggers, comments; also what pgtrigger made for us."""
    database.migrate("contenttypes")
    database.migrate("auth")
    before = database.catalog()
    database.migrate("django_events")
    there = database.catalog()
    assert len(trace(there)) > 50
    database.execute("SELECT django_events_publish('orders', '1')")
    database.migrate("django_events", "zero")
    assert trace(database.catalog()) == []
    assert database.catalog() == before

    database.migrate("django_events")
    again = database.catalog()
    assert [line for line in again if line[0] != "comment"] == [line for line in there if line[0] != "comment"]
    assert {line[3] for line in again if line[0] == "comment"} == {line[3] for line in there if line[0] == "comment"}
    database.migrate("django_events", "zero")
    assert database.catalog() == before


@pytest.mark.slow
def test_only_the_last_step_back_is_repaired_by_the_next_migrate(database):
    """Back to 0001 the logs are gone and the rows are not; `migrate` itself makes the logs again."""
    database.migrate()
    database.migrate("django_events", "0001")

    logs = database.execute("SELECT 1 FROM pg_inherits WHERE inhparent = 'django_events_event'::regclass")
    assert len(logs) == len(list(declarations.registry))
    database.migrate()
    assert database.execute("SELECT django_events_publish('orders', '1')")


# The tables of `%s` topics with 15 segments each, in transactions of one topic.
MANY_TOPICS = """
DO $block$
DECLARE
    topic integer;
    log text;
BEGIN
    FOR topic IN 1001..1000 + %s LOOP
        INSERT INTO django_events_topic (id, name, incarnation, partitions, keep_unread, segment_size, timeline)
            VALUES (topic, 't' || topic, gen_random_uuid(), 2, true, 100, false);
        INSERT INTO django_events_topichead (topic_id, id_floor, number_floors) VALUES (topic, 0, '[]');
        log := 'django_events_event_' || topic;
        EXECUTE format('CREATE TABLE %%I (LIKE django_events_event) PARTITION BY RANGE (id)', log);
        EXECUTE format('CREATE INDEX %%I ON %%I (partition, id)', log || '_partition', log);
        FOR n IN 0..14 LOOP
            EXECUTE format(
                'CREATE TABLE %%I PARTITION OF %%I FOR VALUES FROM (%%s) TO (%%s)',
                log || '_' || n * 100 + 1, log, n * 100 + 1, n * 100 + 101
            );
        END LOOP;
        EXECUTE format('ALTER TABLE django_events_event ATTACH PARTITION %%I FOR VALUES IN (%%s)', log, topic);
        COMMIT;
    END LOOP;
END
$block$
"""


@pytest.mark.long
def test_uninstalling_many_topics_does_not_exhaust_the_lock_table(database):
    """200 topics of 15 segments, at the server's default of 64 locks per transaction."""
    [[locks]] = database.execute("SHOW max_locks_per_transaction")
    if locks != "64":
        pytest.skip(f"max_locks_per_transaction is {locks} on this server")
    database.migrate("contenttypes")
    before = database.catalog()
    database.migrate("django_events")
    database.execute(MANY_TOPICS % 200)
    [[segments]] = database.execute(
        "SELECT count(*) FROM pg_partition_tree('django_events_event') WHERE isleaf AND level = 2"
    )
    assert segments >= 3_000
    database.migrate("django_events", "zero")
    assert database.catalog() == before

    database.migrate("django_events")
    assert database.execute("SELECT django_events_publish('orders', '1')") == [(1,)]


@pytest.mark.slow
def test_processes_that_migrate_a_migrated_database_at_once_all_succeed(database):
    """As when several containers start. What they would find missing is a topic, so one is taken away."""
    database.migrate()
    before = database.catalog()
    [[topic]] = database.execute("SELECT id FROM django_events_topic WHERE name = 'orders'")
    database.execute(f"DROP TABLE django_events_event_{topic}")
    database.execute("DELETE FROM django_events_position")
    database.execute("DELETE FROM django_events_consumer")
    database.execute("DELETE FROM django_events_topichead WHERE topic_id = %s", [topic])
    database.execute("DELETE FROM django_events_topic WHERE id = %s", [topic])
    processes = [database.manage("migrate") for _ in range(4)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]

    assert [process.returncode for process in processes] == [0] * 4, "\n".join(outputs)
    assert sum("Topic orders: created, 8 partitions." in output for output in outputs) == 1
    [[made]] = database.execute("SELECT id FROM django_events_topic WHERE name = 'orders'")
    assert len(database.catalog()) == len(before)
    assert made != topic


def options_of(table):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.reloptions, toast.reloptions FROM pg_class AS c"
            " LEFT JOIN pg_class AS toast ON toast.oid = c.reltoastrelid WHERE c.oid = to_regclass(%s)",
            [table],
        )
        [(own, of_toast)] = cursor.fetchall()
    return [dict(option.split("=") for option in options or ()) for options in (own, of_toast)]


@pytest.mark.slow
@pytest.mark.django_db
def test_checking_a_database_that_is_not_migrated_fails_no_statement(database):
    """The server would write each into its log, as an error that nothing explains."""
    failed = []

    def watch(execute, statement, *args):
        try:
            return execute(statement, *args)
        except DatabaseError:
            failed.append(statement)
            raise

    with connections[database.alias].execute_wrapper(watch):
        assert [*check_servers(databases=[database.alias])] == []
    assert failed == []


@pytest.mark.slow
def test_the_first_migrate_says_last_which_topics_it_made(database):
    process = database.manage("migrate")
    lines = process.communicate(timeout=120)[0].splitlines()
    topics = [line for line in lines if line.startswith("  Topic ")]

    assert process.returncode == 0
    assert sum(line == "  Topic orders: created, 8 partitions." for line in lines) == 1
    assert len(topics) == database.execute("SELECT count(*) FROM django_events_topic")[0][0]
    assert lines.index(topics[0]) > max(number for number, line in enumerate(lines) if "Applying" in line)


@pytest.mark.django_db
def test_the_buffer_is_vacuumed_early_and_never_truncated():
    own, of_toast = options_of("django_events_bufferedevent")

    for options in (own, of_toast):
        assert options["autovacuum_vacuum_scale_factor"] == "0"
        assert int(options["autovacuum_vacuum_threshold"]) <= 10_000
        assert options["autovacuum_vacuum_cost_delay"] == "0"
        assert options["vacuum_truncate"] == "off"
    assert own["autovacuum_analyze_scale_factor"] == "0"


@pytest.mark.django_db
def test_the_heads_leave_room_for_their_next_version():
    assert options_of("django_events_topichead")[0] == {"fillfactor": "50"}


@pytest.mark.django_db
def test_tickets_come_from_the_database_alone_and_from_no_cache():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attidentity, seqcache, seqincrement, seqcycle FROM pg_attribute JOIN pg_sequence"
            " ON seqrelid = pg_get_serial_sequence('django_events_bufferedevent', 'id')::regclass"
            " WHERE attrelid = 'django_events_bufferedevent'::regclass AND attname = 'id'"
        )
        assert cursor.fetchone() == ("a", 1, 1, False)  # a: GENERATED ALWAYS
        with pytest.raises(DatabaseError, match="GENERATED ALWAYS"), transaction.atomic():
            cursor.execute("INSERT INTO django_events_bufferedevent (topic_id, id, value) VALUES (1, 1, '1')")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("columns", "values"),
    [("value, type", "'1', NULL"), ("value, metadata", "'1', NULL")],
)
def test_the_buffer_refuses_what_the_log_could_not_hold(columns, values):
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO django_events_bufferedevent (topic_id, {columns}) VALUES (1, {values})")


def test_the_log_has_no_foreign_keys(db):
    """They would cost every insert, and make dropping a topic slow."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conrelid::regclass::text FROM pg_constraint WHERE contype = 'f'"
            " AND conrelid IN ('django_events_event'::regclass, 'django_events_bufferedevent'::regclass)"
        )
        assert cursor.fetchall() == []


INSERT_ONLY = "The log of django_events is insert-only: publish another event instead."


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change",
    [
        lambda events: events.update(type="changed"),
        lambda events: events.filter(id=1).update(type="changed"),
        lambda events: events.delete(),
        lambda events: events.get(id=1).save(),
        lambda events: events.get(id=1).delete(),
        lambda events: Event.objects.bulk_update([events.get(id=1)], ["type"]),
        lambda events: Event.objects.all().delete(),
    ],
    ids=["update", "update one", "delete", "save", "delete one", "bulk_update", "delete all"],
)
def test_events_in_the_log_are_neither_changed_nor_deleted(things, change):
    publish(things, 1)
    transfer_all()
    with pytest.raises(DatabaseError, match=INSERT_ONLY), transaction.atomic():
        change(Event.objects.of(things))

    assert list(Event.objects.since(things).values_list("type", "value")) == [("", 1)]


@pytest.mark.slow
def test_a_topic_is_there_before_the_triggers_that_publish_to_it(database):
    """A deployment brings both: between the trigger's migration and the end, the site writes to the table."""
    database.migrate()
    declarations.topic("brand.new")
    try:
        plan = [(Migration("0009_captures", "publishing_app"), False)]
        pre_migrate.send(apps.get_app_config("django_events"), using=database.alias, plan=plan, verbosity=0)
        assert database.execute("SELECT django_events_publish('brand.new', '1')")
        plan = [(Migration("0009_changes_our_tables", "django_events"), False)]
        declarations.topic("newer")
        pre_migrate.send(apps.get_app_config("django_events"), using=database.alias, plan=plan, verbosity=0)
        assert not database.execute("SELECT FROM django_events_topic WHERE name = 'newer'")
    finally:
        for name in ("brand.new", "newer"):
            declarations.registry.discard(declarations.registry.get(name))
