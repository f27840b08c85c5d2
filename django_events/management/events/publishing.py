"""`manage.py events publish`: publish one event by hand."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from django_events import UNSET
from django_events.management.events.subcommand import Subcommand, json_value, refused, wrong_usage, zoned_time
from django_events.management.reporting import Report
from django_events.phrases import moment
from django_events.publishing.api import publish as publish_event


def publish(
    using: str,
    *,
    topic: str,
    value: Any,
    type: str,
    key: str | None,
    partition: int | None,
    metadata: Any,
    body_file: str | None,
    at: datetime | None,
    dedup_key: str | None,
    **options: Any,
) -> Report:
    if (value is UNSET) is (body_file is None):
        raise wrong_usage("An event has a value or a body: give VALUE, or --body-file, and not both.")
    body = UNSET if body_file is None else _read(body_file)
    with transaction.atomic(using):
        receipt = publish_event(
            topic,
            value,
            body=body,
            type=type,
            key=key,
            metadata=metadata,
            partition=partition,
            publish_at=at,
            dedup_key=dedup_key,
            using=using,
        )
    data = {"topic": receipt.topic, "ticket": receipt.ticket, "new": receipt.new}
    if receipt.ticket is None:
        return Report(data, f"Nothing was published to {receipt.topic}: the dedup key {dedup_key!r} is taken.")
    if at is not None:
        return Report(data, f"Scheduled for {receipt.topic} at {moment(at)}, ticket {receipt.ticket:,}.")
    said = f"Published to {receipt.topic}, ticket {receipt.ticket:,}. It gets its id when the transfer moves it."
    return Report(data, said)


def _read(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise refused(f"The file {path!r} can't be read: {error.strerror}.") from error


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="The topic.")
    parser.add_argument("value", nargs="?", metavar="VALUE", type=json_value, default=UNSET, help="The value, as JSON.")
    parser.add_argument("--type", default="", help="What happened, like order.placed.")
    parser.add_argument("--key", help="Events of one key keep their order.")
    parser.add_argument("--partition", type=int, help="The partition, instead of the one that follows from the key.")
    parser.add_argument("--metadata", type=json_value, help="Metadata, as a JSON object.")
    parser.add_argument("--at", type=zoned_time, help="Publish it at this time, like 2026-11-20T13:05:00Z.")
    parser.add_argument("--dedup-key", help="Publish nothing if this key was used a short while ago.")
    parser.add_argument("--body-file", help="A file with the body, instead of a value; - is standard input.")


PUBLISH = Subcommand(name="publish", help="Publish one event.", report=publish, arguments=_arguments)
