"""Dropping a topic: its log, what is in the buffer, its rows. For topics that no app declares.

drop(using, topic)  # of its consumers nothing must be left
"""

import time

from django.db import OperationalError

from django_events import models, sql
from django_events.log import segments
from django_events.log.topics import changing_topics
from django_events.statements import log_table

SQL = sql.beside(__name__)

LOCK_TIMEOUT = "100ms"  # a waiting lock request blocks every later one
PATIENCE = 60.0  # seconds
PAUSE = 0.2
BUFFERED_AT_ONCE = 10_000


def drop(using: str, topic: models.Topic) -> None:
    """Drop a topic with all its events. In small transactions; after a crash in between, repeating it does the rest.

    A transaction that drops many tables runs out of lock memory. Where a lock is not to be had at once it is asked for
    again, for a minute, so that no session waits long behind it; then the error says so.
    """
    for segment in segments.segments(using, topic.pk):
        _drop_table(using, segment.table)
    _empty_buffer(using, topic.pk)
    until = time.monotonic() + PATIENCE
    while not _drop_rest(using, topic, sure=time.monotonic() > until):
        time.sleep(PAUSE)
    _empty_buffer(using, topic.pk)  # of a publisher that had found the topic


def _drop_rest(using: str, topic: models.Topic, *, sure: bool) -> bool:
    """The log's table and the rows, or nothing; returns whether they are gone."""
    try:
        with changing_topics(using), sql.batch(using, lock_timeout=LOCK_TIMEOUT):
            sql.fetch(using, sql.shared.lock_head, topic_id=topic.pk)
            sql.run(using, SQL.drop_table.on(table=log_table(topic.pk)))
            models.TopicHead.objects.using(using).filter(pk=topic.pk).delete()
            models.Topic.objects.using(using).filter(pk=topic.pk).delete()
    except OperationalError as error:
        if sure or not sql.kind_of(error).passes_here:
            raise
        return False
    return True


def _drop_table(using: str, table: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with sql.batch(using, lock_timeout=LOCK_TIMEOUT):
                sql.run(using, SQL.drop_table.on(table=table))
                return
        except OperationalError as error:
            if time.monotonic() > until or not sql.kind_of(error).passes_here:
                raise
            time.sleep(PAUSE)


def _empty_buffer(using: str, topic_id: int) -> None:
    while sql.fetch(using, SQL.drop_buffered, topic_id=topic_id, most=BUFFERED_AT_ONCE)[0][0]:
        pass
