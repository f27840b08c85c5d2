"""The events that are measured with, 150 to 213 bytes of JSON each, and plain tables to compare with."""

import json
from typing import Any, ClassVar

from django.db import connection, models

from django_events import Draft

CUSTOMERS = ("Ada Lovelace", "Grace Hopper", "Edsger Wybe Dijkstra", "Barbara Liskov")
ITEMS = (
    [{"sku": "A-1001", "quantity": 2, "price": "19.99"}, {"sku": "B-7203", "quantity": 1, "price": "5.00"}],
    [{"sku": "C-4410", "quantity": 1, "price": "249.00"}],
)
TYPE = "order.placed"
KEYS = 10_000


def value(n: int) -> dict[str, Any]:
    """What the n-th event says."""
    return {
        "id": n,
        "customer": CUSTOMERS[n % 4],
        "status": "placed",
        "currency": "EUR",
        "total": "44.98",
        "placed_at": "2025-01-31T12:34:56.789Z",
        "items": ITEMS[n % 2],
    }


def key(n: int) -> str:
    return str(n % KEYS)


def draft(n: int) -> Draft:
    return Draft(value=value(n), type=TYPE, key=key(n))


def encoded(n: int) -> tuple[int, None, str, str, str, None, str]:
    """The n-th event as a row of the buffer's shape, for a COPY or a raw INSERT."""
    return (1, None, TYPE, key(n), json.dumps(value(n)), None, "{}")


class PlainEvent(models.Model):
    """What a team would write by hand: a row like a buffered event, for the ORM."""

    topic_id = models.IntegerField()
    partition = models.IntegerField(null=True)
    type = models.CharField(max_length=200)
    key = models.CharField(max_length=512, null=True)
    value = models.JSONField(null=True)
    body = models.BinaryField(null=True)
    metadata = models.JSONField(default=dict)
    published_at = models.DateTimeField(auto_now_add=True)

    objects: "ClassVar[models.Manager[PlainEvent]]" = models.Manager()

    class Meta:
        app_label = "benchmarks"
        managed = False
        db_table = "bench_event"


def plain_event(n: int) -> PlainEvent:
    return PlainEvent(topic_id=1, type=TYPE, key=key(n), value=value(n))


# The buffer's shape and no more: one index, no defaults that cost, no checks.
PLAIN_COLUMNS = "topic_id, partition, type, key, value, body, metadata"
CREATE_PLAIN = """
CREATE TABLE bench_buffer (LIKE django_events_bufferedevent INCLUDING DEFAULTS INCLUDING IDENTITY);
ALTER TABLE bench_buffer ADD PRIMARY KEY (topic_id, id);
ALTER TABLE bench_buffer SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE TABLE bench_log (LIKE django_events_event);
ALTER TABLE bench_log ADD PRIMARY KEY (topic_id, id);
CREATE TABLE bench_position (id integer PRIMARY KEY, position bigint NOT NULL);
INSERT INTO bench_position VALUES (1, 0)
"""


def create_plain_tables() -> None:
    with connection.schema_editor() as editor:
        editor.create_model(PlainEvent)
        editor.execute(CREATE_PLAIN, params=None)


FILL = """
INSERT INTO {table} (topic_id, type, key, value)
SELECT
    (%(topic_ids)s::int[])[1 + n %% array_length(%(topic_ids)s::int[], 1)],
    'order.placed',
    (n %% %(keys)s)::text,
    jsonb_set((%(values)s::jsonb[])[1 + n %% array_length(%(values)s::jsonb[], 1)], '{{id}}', to_jsonb(n))
FROM generate_series(1, %(events)s) AS n
"""


def fill(table: str, topic_ids: list[int], events: int) -> None:
    """Put events into a table of the buffer's shape, in turn for each topic; made by the server."""
    with connection.cursor() as cursor:
        cursor.execute(
            FILL.format(table=table),
            {
                "topic_ids": topic_ids,
                "events": events,
                "keys": KEYS,
                "values": [json.dumps(value(n)) for n in range(4)],
            },
        )
