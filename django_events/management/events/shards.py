"""`manage.py events shards`: the databases that share the keys of `shard_by`; add one, drain one, forget one."""

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_events import models, sql
from django_events.management.events.subcommand import (
    DRY_RUN,
    Subcommand,
    add_by,
    add_execute,
    add_reason,
    length,
    wrong_usage,
)
from django_events.management.reporting import Report, table
from django_events.operating.moved_keys import WaitingConsumer, release, waiting_consumers
from django_events.operating.resharding import forget_shard, reshard, shard_maps, unfinished_change
from django_events.outcomes import Resharded
from django_events.phrases import count
from django_events.sql.each import in_each
from django_events.workers.loop import Exit

SECONDS = 15  # for what a database tells of its consumers, which asks other ones in turn
PAUSE = 0.3


def shards(
    using: str,
    *,
    action: str,
    names: list[str],
    wait: timedelta,
    reason: str,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    if bool(names) is (action == "list"):
        raise wrong_usage("Say what to do with which shard, like: manage.py events shards add west")
    if action == "list":
        return _listed(using)
    if action == "forget":
        return _forgotten(using, names, reason=reason, by=by, execute=execute)
    until = time.monotonic() + wait.total_seconds()
    changed = reshard(
        add=names if action == "add" else (),
        drain=names if action == "drain" else (),
        reason=reason,
        by=by,
        wait=wait,
        dry_run=not execute,
    )
    left = _let_go_on(changed, until) if execute else {}
    return Report(
        {"executed": execute, **changed._asdict(), "waiting": _flat(left)}, _told(changed, left, execute=execute)
    )


def _let_go_on(changed: Resharded, until: float) -> dict[str, list[WaitingConsumer]]:
    """Look until no consumer waits, or the time is over: then maintenance goes on with it."""
    while True:
        left = {shard: found for shard in changed.after if (found := release(shard))}
        if not left or time.monotonic() >= until:
            return left
        time.sleep(PAUSE)


def _told(changed: Resharded, left: dict[str, list[WaitingConsumer]], *, execute: bool) -> str:
    if changed.before == changed.after and changed.before:
        return "\n\n".join(
            [f"The shards are {', '.join(changed.after)} already. Nothing was changed.", *_who_waits(left)]
        )
    lines = [
        f"Version {changed.version} of the map: {', '.join(changed.before) or 'none'} → {', '.join(changed.after)}.",
        f"Keys move: {', '.join(changed.moved) or 'none'}.",
    ]
    if not execute:
        return "\n".join([*lines, DRY_RUN])
    return "\n\n".join(["\n".join(lines), *_who_waits(left)])


def _who_waits(left: dict[str, list[WaitingConsumer]]) -> list[str]:
    if not left:
        return []
    lines = [f"{shard}: {one.said}" for shard, found in left.items() for one in found]
    return ["\n".join(["These consumers wait, and go on by themselves:", *lines])]


def _flat(left: dict[str, list[WaitingConsumer]]) -> dict[str, list[dict[str, Any]]]:
    return {shard: [one.flat() for one in found] for shard, found in left.items()}


def _listed(using: str) -> Report:
    found = shard_maps(using)
    maps = {alias: one for alias, one in found.items() if isinstance(one, models.ShardMap)}
    errors = {alias: sql.said(one) for alias, one in found.items() if isinstance(one, Exception)}
    answers = in_each(maps, waiting_consumers, seconds=SECONDS)
    left = {alias: answer.answered for alias, answer in answers.items() if answer.answered}
    command = unfinished_change(maps.values())
    data = {
        "maps": [_data(alias, one) for alias, one in maps.items()],
        "errors": errors,
        "unfinished": command,
        "waiting": _flat(left),
    }
    blocks = [table(["database", "shard", "version", "shards", "changes to"], _cells(maps))] if maps else ["No shards."]
    blocks += [f"{alias} can't be asked. {said}" for alias, said in errors.items()]
    if command is not None:
        blocks.append(
            f"The map is being changed. If that was interrupted, finish it: manage.py events shards {command} --execute"
        )
    code = Exit.UNREACHABLE if errors else Exit.DONE
    return Report(data, "\n\n".join([*blocks, *_who_waits(left)]), code=code)


def _data(alias: str, one: models.ShardMap) -> dict[str, Any]:
    return {
        "database": alias,
        "shard": one.name if one.name in one.shards else None,
        "version": one.version,
        "shards": one.shards,
        "following": one.following,
    }


def _cells(maps: dict[str, models.ShardMap]) -> Iterable[list[Any]]:
    for alias, one in maps.items():
        following = None if one.following is None else ", ".join(one.following)
        yield [alias, one.name in one.shards, one.version, ", ".join(one.shards), following]


def _forgotten(using: str, names: list[str], *, reason: str, by: str | None, execute: bool) -> Report:
    counts = {name: forget_shard(name, reason=reason, by=by, dry_run=not execute, using=using) for name in names}
    lines = [
        f"{'Forgotten' if execute else 'To be forgotten'} in {using!r}: {count(number, 'move')} of topics from {name}. "
        "Consumers wait for that shard no more."
        for name, number in counts.items()
    ]
    return Report({"executed": execute, "forgotten": counts}, "\n".join([*lines, *([] if execute else [DRY_RUN])]))


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        metavar="ACTION",
        choices=["list", "add", "drain", "forget"],
        default="list",
        help="list, add, drain or forget; list by default.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="The databases, by their aliases.")
    parser.add_argument(
        "--wait",
        type=length,
        default=timedelta(seconds=30),
        metavar="LENGTH",
        help="How long to wait for publishers, and then for consumers, like 2m; 30s by default.",
    )
    add_reason(parser)
    add_by(parser)
    add_execute(parser)


SHARDS = Subcommand(
    name="shards",
    help="The databases that share the keys of shard_by; add one, drain one, forget one.",
    report=shards,
    arguments=_arguments,
)
