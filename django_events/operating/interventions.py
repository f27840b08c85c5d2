"""The record of what operators, and retention, do to consumers and topics: who, when, and what changed."""

import getpass
import logging
import socket
from typing import Any

from django_events import models, sql
from django_events.log import channel

logger = logging.getLogger("django_events.consumer")


def record(
    using: str, row: models.Consumer, action: str, *, by: str | None, reason: str = "", **details: Any
) -> models.Intervention:
    """Write an intervention down, in the caller's transaction, and tell the workers to look."""
    details |= {"reason": reason} if reason else {}
    who = by or this_user()
    about = {"database": using, "consumer": row.name, "topic": row.topic.name, "action": action, "by": who}
    logger.info("Consumer %s: %s by %s.%s", row, action, who, _told(details), extra=about)
    return _recorded(using, row.topic, action, by=who, consumer=row.name, details=details)


def record_of_topic(
    using: str, row: models.Topic, action: str, *, by: str | None, reason: str = "", **details: Any
) -> models.Intervention:
    """The same of a topic."""
    details |= {"reason": reason} if reason else {}
    who = by or this_user()
    about = {"database": using, "topic": row.name, "action": action, "by": who}
    logger.info("Topic %s: %s by %s.%s", row, action, who, _told(details), extra=about)
    return _recorded(using, row, action, by=who, consumer="", details=details)


def record_of_database(
    using: str, action: str, *, by: str | None, reason: str = "", **details: Any
) -> models.Intervention:
    """The same of a whole database."""
    details |= {"reason": reason} if reason else {}
    who = by or this_user()
    about = {"database": using, "action": action, "by": who}
    logger.info("Database %s: %s by %s.%s", using, action, who, _told(details), extra=about)
    return models.Intervention.objects.using(using).create(by=who[:200], action=action, details=details)


def _told(details: dict[str, Any]) -> str:
    return f" {details}" if details else ""


def _recorded(
    using: str, topic: models.Topic, action: str, *, by: str, consumer: str, details: dict[str, Any]
) -> models.Intervention:
    intervention = models.Intervention.objects.using(using).create(
        by=by[:200], action=action, consumer=consumer, topic=topic.name, details=details
    )
    sql.fetch(using, sql.shared.notify, channel=channel.LOG, payload=str(topic.pk))
    return intervention


def this_user() -> str:
    """The user who runs this process, where the caller gave no name."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user may have no name
        return socket.gethostname()
