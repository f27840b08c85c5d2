"""`manage.py events bridges` and `events inbox`: what relays and inboxes are at, and what is done to one inbox."""

from typing import Any

from django.core.management.base import CommandParser

from django_events import declarations, models
from django_events.management.events.subcommand import DRY_RUN, Subcommand, add_by, add_reason, text, wrong_usage
from django_events.management.reporting import Report, table
from django_events.models.functions import ClockTimestamp
from django_events.observing.inbox_states import state_of
from django_events.observing.lag import standings
from django_events.operating.inboxes import pause_inbox, remove_inbox, restart_inbox, resume_inbox

RELAY = ("relay", "topic", "to", "partition", "position", "lag", "state", "failing_since", "error")
COUNTED = ("lag", "taken", "left_out", "unreadable", "gone")
INBOX = ("inbox", "topic", "source", "position", *COUNTED, "moved_at", "state", "failing_since", "error")


def bridges(using: str, **options: Any) -> Report:
    """What the database knows: no broker is asked."""
    relays, inboxes = _relays(using), _inboxes(using)
    told = [
        table([name.replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])
        for names, rows in ((RELAY, relays), (INBOX, inboxes))
        if rows
    ]
    return Report({"relays": relays, "inboxes": inboxes}, "\n\n".join(told) or "No relays and no inboxes.")


def _relays(using: str) -> list[dict[str, Any]]:
    declared = {one.name: one for one in declarations.consumers if isinstance(one, declarations.DeclaredRelay)}
    return [
        {
            "relay": one.consumer,
            "topic": one.topic,
            "to": declared[one.consumer].sends_to,
            "partition": None if one.partition == models.Position.ALL else one.partition,
            "position": one.position,
            "lag": one.lag,
            "state": one.state,
            "failing_since": one.failing_since,
            "error": one.error,
        }
        for one in standings(using)
        if one.consumer in declared
    ]


def _inboxes(using: str) -> list[dict[str, Any]]:
    rows = models.Inbox.objects.using(using).select_related("topic").annotate(now=ClockTimestamp()).order_by("name")
    kept = {one.name for one in declarations.inboxes.mirrors.values()}
    return [
        {
            "inbox": row.name,
            "topic": row.topic.name,
            "source": row.source,
            "keeps_ids": bool(row.topic.mirror_of) and row.name in kept,
            "position": row.position,
            "lag": row.lag,
            "taken": row.taken,
            "left_out": row.left_out,
            "unreadable": row.unreadable,
            "gone": row.gone,
            "moved_at": row.moved_at,
            "served_at": row.served_at,
            "failing_since": row.failing_since,
            "waiting_since": row.waiting_since,
            "paused_at": row.paused_at,
            "state": state_of(row, row.now),
            "error": row.error,
        }
        for row in rows
    ]


def inbox(
    using: str, *, action: str, name: str, start: str | None, reason: str, by: str | None, execute: bool, **options: Any
) -> Report:
    if (start is None) is (action == "restart"):
        raise wrong_usage("With restart, and only then, say where: --from beginning, --from end, or an id.")
    if action in ("pause", "resume"):
        changed = (pause_inbox if action == "pause" else resume_inbox)(name, reason=reason, by=by, using=using)
        did, did_before = ("is paused", "was paused already") if action == "pause" else ("goes on", "is not paused")
        told = f"Inbox {name} {did}." if changed else f"Inbox {name} {did_before}. Nothing was changed."
        return Report({"inbox": name, "action": action, "changed": changed}, told)
    if action == "restart" and start is not None:
        restart_inbox(name, start=start, reason=reason, by=by, dry_run=not execute, using=using)
        is_mirror = name in {one.name for one in declarations.inboxes.mirrors.values()}
        told = (
            f"goes on from {start}, if the log of the topic ends there or has no events"
            if is_mirror
            else f"begins anew from {start}: what it takes in a second time is published a second time"
        )
    else:
        remove_inbox(name, reason=reason, by=by, dry_run=not execute, using=using)
        told = "is removed"
    return Report(
        {"inbox": name, "action": action, "executed": execute},
        f"Inbox {name} {told}." if execute else f"Inbox {name}: it {told}. {DRY_RUN}",
    )


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "action",
        metavar="ACTION",
        choices=["pause", "resume", "restart", "remove"],
        help="pause, resume, restart or remove.",
    )
    parser.add_argument("name", metavar="NAME", help="The inbox.")
    parser.add_argument(
        "--from",
        dest="start",
        type=text,
        metavar="START",
        help="With restart: beginning, end, or the id of the last message of the source that is not taken in.",
    )
    add_reason(parser)
    add_by(parser)
    parser.add_argument(
        "--execute", action="store_true", help="With restart and remove: do it, instead of telling what would be done."
    )


BRIDGES = Subcommand(
    name="bridges",
    help="Relays and inboxes: where they are, how far behind, and why they wait.",
    report=bridges,
    several=True,
    looks=True,
)
INBOX_COMMAND = Subcommand(
    name="inbox",
    help="Pause an inbox, let it go on or begin anew in its source, or forget one that no app declares.",
    report=inbox,
    arguments=_arguments,
)
