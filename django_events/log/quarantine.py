"""A queue consumer whose filter fails on an event stops. The transfer goes on, and serves the other consumers."""

import logging
from collections.abc import Callable, Iterable, Mapping

from django.db import DatabaseError, OperationalError, transaction

from django_events import sql
from django_events.log.stops import filter_fails
from django_events.models.databases import for_database

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

LONGEST_ERROR = 1_000


def quarantine(
    using: str, consumer_id: int, name: str, error: DatabaseError, *, where: str, last_id: int | None = None
) -> None:
    """Stop one, in the caller's transaction. What it was given before stays."""
    problem = sql.said(error).splitlines()[0]
    logger.error(
        "Consumer %r stops, because its filter fails on %s. Others go on. Repair the filter, then: "
        "manage.py events resume %s. %s",
        name,
        where,
        name + for_database(using),
        problem,
        extra={"database": using, "consumer": name},
    )
    sql.fetch(
        using,
        SQL.quarantine,
        consumer_id=consumer_id,
        last_id=last_id,
        error=filter_fails(where, problem)[:LONGEST_ERROR],
    )


def quarantine_failing(using: str, last_ids: Mapping[int, int], move: Callable[[], object]) -> bool:
    """Stop those because of whom a batch can't be moved; returns whether there are any.

    In a transaction that holds the heads of the topics, whose last ids are given. `move` is tried in savepoints that
    are undone: without any of them, and then with one half and the other, until each one that fails is found.
    """
    found = sql.fetch(using, SQL.live_consumers, topic_ids=list(last_ids))
    topics = {consumer_id: (topic_id, topic, name) for consumer_id, topic_id, topic, name in found}
    if not topics or _error(using, [], move) is not None:
        return False
    failing = dict(_failing(using, list(topics), move))
    for consumer_id, error in failing.items():
        topic_id, topic, name = topics[consumer_id]
        last_id = last_ids[topic_id]
        where = f"an event that comes behind {topic}/{last_id}"
        quarantine(using, consumer_id, name, error, where=where, last_id=last_id)
    return bool(failing)


def _failing(using: str, consumer_ids: list[int], move: Callable[[], object]) -> Iterable[tuple[int, DatabaseError]]:
    error = _error(using, consumer_ids, move)
    if error is None:
        return
    if len(consumer_ids) == 1:
        yield consumer_ids[0], error
        return
    half = len(consumer_ids) // 2
    yield from _failing(using, consumer_ids[:half], move)
    yield from _failing(using, consumer_ids[half:], move)


def _error(using: str, consumer_ids: list[int], move: Callable[[], object]) -> DatabaseError | None:
    """How moving fails with these consumers alone. What it did is undone."""
    try:
        with transaction.atomic(using):
            sql.fetch(using, SQL.only, consumer_ids=consumer_ids or [0])
            move()
            transaction.set_rollback(True, using)
    except OperationalError as error:
        if not sql.kind_of(error).of_data:  # no filter caused it: it passes by itself
            raise
        return error
    except DatabaseError as error:
        return error
    return None
