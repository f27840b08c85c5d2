"""On the way up, the topics that are declared. On the way down, what is in other apps' tables goes first, so that
they can be written without us, and then the logs of all topics, in small transactions: one that drops thousands of
tables runs out of lock memory."""

from typing import Any

from django.db import migrations

from django_events.migrating import CreateTopics, OnPostgreSQL

BATCH = 50

SEGMENTS = """
SELECT segment.inhrelid::regclass::text
FROM pg_inherits AS log
JOIN pg_inherits AS segment ON segment.inhparent = log.inhrelid
WHERE log.inhparent = 'django_events_event'::regclass
LIMIT %s
"""
LOGS = """
SELECT link.inhrelid::regclass::text
FROM pg_inherits AS link
WHERE link.inhparent = 'django_events_event'::regclass
LIMIT %s
"""


# The triggers of capture(), on whatever tables they are. Those on partitions go with their table's own.
CAPTURES = """
SELECT quote_ident(t.tgname), t.tgrelid::regclass::text, p.oid::regprocedure::text
FROM pg_trigger AS t
JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE NOT t.tgisinternal
    AND t.tgparentid = 0
    AND starts_with(p.proname, 'pgtrigger_')
    AND position('django_events.suppressed' IN p.prosrc) > 0
"""


def drop_captures(apps: Any, schema_editor: Any) -> None:
    """Drop the triggers that publish, each with its function: after us they would fail every write to their tables."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(CAPTURES)
        for trigger, table, function in cursor.fetchall():
            # The names come quoted from the query.
            cursor.execute(f"DROP TRIGGER {trigger} ON {table}; DROP FUNCTION {function}")


def drop_logs(apps: Any, schema_editor: Any) -> None:
    """Drop the segments, then the topics' own tables."""
    with schema_editor.connection.cursor() as cursor:
        for tables in (SEGMENTS, LOGS):
            while True:
                cursor.execute(tables, [BATCH])
                names = [name for (name,) in cursor.fetchall()]
                if not names:
                    break
                # The names come quoted from regclass.
                cursor.execute(f"DROP TABLE {', '.join(names)}")


# The tables of roll-ups, which are made as apps declare them. None of ours has such a name.
ROLL_UPS = """
SELECT c.oid::regclass::text
FROM pg_class AS c
JOIN pg_class AS ours ON ours.oid = to_regclass('django_events_rollup') AND ours.relnamespace = c.relnamespace
WHERE c.relkind = 'r' AND c.relname ~ '^django_events_rollup_[0-9]+$'
LIMIT %s
"""


def drop_roll_ups(apps: Any, schema_editor: Any) -> None:
    """Drop the tables of roll-ups."""
    with schema_editor.connection.cursor() as cursor:
        while True:
            cursor.execute(ROLL_UPS, [BATCH])
            names = [name for (name,) in cursor.fetchall()]
            if not names:
                return
            # The names come quoted from regclass.
            cursor.execute(f"DROP TABLE {', '.join(names)}")


class Migration(OnPostgreSQL):
    atomic = False

    dependencies = [("django_events", "0001_initial")]

    operations = [
        migrations.RunPython(migrations.RunPython.noop, drop_logs),
        migrations.RunPython(migrations.RunPython.noop, drop_roll_ups),
        migrations.RunPython(migrations.RunPython.noop, drop_captures),  # downwards it is the first
        CreateTopics(),
    ]
