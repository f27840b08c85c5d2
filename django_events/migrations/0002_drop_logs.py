"""Nothing on the way up. On the way down, the logs of all topics go first, in small transactions:
one that drops thousands of tables runs out of lock memory."""

from typing import Any

from django.db import migrations

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


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_events", "0001_initial")]

    operations = [migrations.RunPython(migrations.RunPython.noop, drop_logs)]
