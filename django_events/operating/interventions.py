"""The record of what operators, and retention, do to consumers: who, when, and what changed."""

import getpass
import logging
import socket
from typing import Any

from django_events import models, sql
from django_events.log import channel

logger = logging.getLogger("django_events.consumer")


def record(using: str, row: models.Consumer, action: str, *, by: str | None, **details: Any) -> models.Intervention:
    """Write an intervention down, in the caller's transaction, and tell the workers to look."""
    who = by or this_user()
    intervention = models.Intervention.objects.using(using).create(
        by=who[:200], action=action, consumer=row.name, topic=row.topic.name, details=details
    )
    sql.fetch(using, sql.shared.notify, channel=channel.LOG, payload=str(row.topic_id))
    logger.info("Consumer %s: %s by %s. %s", row, action, who, details or "")
    return intervention


def this_user() -> str:
    """The user who runs this process, where the caller gave no name."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user may have no name
        return socket.gethostname()
