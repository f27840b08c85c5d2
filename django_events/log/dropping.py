"""Dropping topics: their rows first, in one transaction, then their tables and all that waits to be published in them.

    with changing_topics(using):
        forget(using, topic)   # from now on the topic is gone, whatever happens
    drop_forgotten(using)      # if it is interrupted, maintenance goes on

Until its log is dropped, a note in the log's comment says that it is to be. It goes as the last one, so what is left of
a topic is always found by it. Without the note, a log that lost its row waits for its topic to be declared again.
"""

import time
from collections.abc import Callable
from datetime import timedelta

from django.db import OperationalError
from django.db.models import Model

from django_events import models, sql
from django_events.log import segments
from django_events.statements import literal, log_table

SQL = sql.beside(__name__)

LOCK_TIMEOUT = "100ms"  # a waiting lock request blocks every later one
PAUSE = 0.2
AT_ONCE = 10_000
WAITING = (models.BufferedEvent, models.ScheduledEvent, models.StagedEvent, models.DedupKey)


def forget(using: str, topic: models.Topic) -> None:
    """Delete the rows of a topic, and note it in its log's comment. For a transaction that is `changing_topics`.

    Of its consumers nothing must be left. A publisher that looks for the topic from now on doesn't find it.
    """
    sql.fetch(using, sql.shared.lock_head, topic_id=topic.pk)
    if sql.fetch(using, SQL.has_log, table=log_table(topic.pk))[0][0]:
        sql.run(using, SQL.note_on_log.on(log=log_table(topic.pk), note=literal(f"dropped: {topic.name}")))
    models.TopicHead.objects.using(using).filter(pk=topic.pk).delete()
    models.Topic.objects.using(using).filter(pk=topic.pk).delete()


def forgotten(using: str) -> list[int]:
    """The ids of the topics whose logs are still to be dropped."""
    return [topic_id for (topic_id,) in sql.fetch(using, SQL.forgotten)]


def drop_forgotten(using: str, *, wait: timedelta = timedelta(0), until: Callable[[], bool] = lambda: False) -> int:
    """Drop the logs of topics that are forgotten, and what waits in them; returns how many are left.

    In small transactions, because one that drops many tables runs out of lock memory. Where a lock is not to be had at
    once it is asked for again as long as it may `wait`, so that no session waits long behind it.
    """
    deadline = time.monotonic() + wait.total_seconds()
    topic_ids = forgotten(using)
    for number, topic_id in enumerate(topic_ids):
        if until():
            return len(topic_ids) - number
        try:
            _drop(using, topic_id, deadline)
        except OperationalError as error:
            if not sql.kind_of(error).passes_here:
                raise
    return len(forgotten(using))


def drop_stranded(using: str) -> int:
    """Delete events in the buffer whose topic has neither a row nor a log; returns how many.

    A publisher may have found the topic before it was forgotten, and committed afterwards.
    """
    deleted = 0
    for (topic_id,) in sql.fetch(using, SQL.stranded.on(owners=sql.shared.owners_in_buffer)):
        deleted += _empty(using, models.BufferedEvent, topic_id)
    return deleted


def _drop(using: str, topic_id: int, deadline: float) -> None:
    """The log's table goes last: its comment tells that there is something left to do."""
    for segment in segments.segments(using, topic_id):
        _drop_table(using, segment.table, deadline)
    for model in WAITING:
        _empty(using, model, topic_id)
    _drop_table(using, log_table(topic_id), deadline)


def _drop_table(using: str, table: str, deadline: float) -> None:
    while True:
        try:
            with sql.batch(using, lock_timeout=LOCK_TIMEOUT):
                sql.run(using, SQL.drop_table.on(table=table))
                return
        except OperationalError as error:
            if time.monotonic() > deadline or not sql.kind_of(error).passes_here:
                raise
            time.sleep(PAUSE)


def _empty(using: str, model: type[Model], topic_id: int) -> int:
    deleted = 0
    statement = SQL.drop_waiting.on(table=model._meta.db_table)
    while gone := sql.fetch(using, statement, topic_id=topic_id, most=AT_ONCE)[0][0]:
        deleted += gone
    return deleted
