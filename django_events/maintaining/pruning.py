"""Delete expired rows in small transactions: dedup keys, staged rows of Spark, histories, attempts of webhooks."""

import time
from datetime import timedelta

from django_events import models, sql
from django_events.conf import settings

SQL = sql.beside(__name__)

AT_ONCE = 5_000
STAGED_KEPT = timedelta(days=7)  # what tasks of Spark staged and no driver published


def forget_dedup_keys(using: str, *, most: int = AT_ONCE) -> int:
    """Delete some dedup keys whose window is over; returns how many: 0 when nothing is left to delete."""
    with sql.batch(using, (SQL.forget_expired, {"limit": most}), **sql.UNHURRIED) as [rows]:
        return len(rows)


def forget_staged(using: str, *, most: int = AT_ONCE) -> int:
    """Delete some staged rows that are too old; returns how many: 0 when nothing is left to delete."""
    question = (SQL.forget_staged, {"age": STAGED_KEPT, "limit": most})
    with sql.batch(using, question, **sql.UNHURRIED) as [rows]:
        return len(rows)


def forget_webhook_attempts(using: str, *, most: int = AT_ONCE) -> int:
    """Delete some attempts to send webhooks that are too old; returns how many: 0 when nothing is left to delete."""
    question = (SQL.forget_webhook_attempts, {"age": settings.WEBHOOK_ATTEMPTS_KEPT, "limit": most})
    with sql.batch(using, question, **sql.UNHURRIED) as [rows]:
        return len(rows)


def prune_histories(using: str, *, seconds: float, at_once: int = AT_ONCE) -> int:
    """Delete old rows of all histories, for `seconds` at most; returns how many. Repeating it goes on."""
    deadline, pruned = time.monotonic() + seconds, 0
    statement = SQL.prune_history
    queues = models.Consumer.objects.using(using).filter(mode="queue").order_by("pk")
    for consumer_id in list(queues.values_list("pk", flat=True)):
        gone = at_once
        while gone == at_once and time.monotonic() < deadline:
            with sql.batch(using, **sql.UNHURRIED):
                [[gone]] = sql.fetch(using, statement, consumer_id=consumer_id, most=at_once)
            pruned += gone
    return pruned
