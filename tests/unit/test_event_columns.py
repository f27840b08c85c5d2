"""The columns of an event are named once: whatever else has them agrees, and no SQL file writes the list out."""

import re
from pathlib import Path

import django_events
from django_events import models
from django_events.drafts import Draft
from django_events.event_columns import BUFFERED, COPIED, DRAFTED, EVENT, SAID, expanded
from django_events.publishing.encoding import BufferRow
from django_events.reading.columns import COLUMNS
from django_events.spark.sink import ACCEPTED
from django_events.testing import PublishedEvent

PACKAGE = Path(django_events.__file__).parent


def columns_of(model):
    return {field.attname for field in model._meta.concrete_fields}


def test_the_tables_have_them():
    assert columns_of(models.Event) == {"topic_id", *EVENT}
    assert set(BUFFERED) | {"id", "published_at"} == columns_of(models.BufferedEvent)
    assert set(BUFFERED) < columns_of(models.ScheduledEvent)
    assert set(BUFFERED) < columns_of(models.StagedEvent)
    assert set(COPIED) | {"event_id", "consumer_id"} < columns_of(models.DeadLetter)


def test_what_publishers_give_has_them():
    assert BufferRow._fields == DRAFTED
    assert set(DRAFTED) == {"partition", *SAID}
    assert set(DRAFTED) < set(Draft.__dataclass_fields__)
    assert set(EVENT) < set(PublishedEvent.__dataclass_fields__)


def test_spark_has_them():
    assert {column.source for column in COLUMNS.values()} == {"", *EVENT}
    assert set(ACCEPTED) == {"topic", "partition", *SAID}


def test_a_file_writes_a_word_for_them():
    assert expanded("({said_columns})") == "(type, key, value, body, metadata)"
    assert expanded("{event_columns of e}").startswith("e.id, e.partition, e.number, e.type")
    assert "%(value)s::jsonb" in expanded("{copied_parameters}")
    assert "key = excluded.key" in expanded("{copied_updates}")


def test_no_sql_file_writes_the_list_out():
    """Where each column is treated in a way of its own, a file says so column by column."""
    each = {"consuming/reading.sql", "spark/sink.sql", "spark/reading/tables.sql"}
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.sql")
        for text in [re.sub(r"--.*", "", path.read_text(encoding="utf-8"))]
        if re.search(r"\bkey, (\w+\.)?value, (\w+\.)?body\b", text)
    }
    assert found - each == set()
