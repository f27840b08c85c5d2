"""`manage.py events schemas`: the schemas of events, as files, beside the log, and as a catalog."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from django_events.contracts.asyncapi import document
from django_events.contracts.chains import problems_of_chains, problems_of_schemas
from django_events.contracts.files import FOLDER, SchemaChange, changes, left_over, write
from django_events.contracts.rendering import rendered
from django_events.declarations import DeclaredTopic, registry
from django_events.log.inventory import existing
from django_events.management.events.subcommand import Subcommand, at_least_one, refused, wrong_usage
from django_events.management.reporting import Report, now_and_then, printable, table
from django_events.observing.log_fit import LogFit, MisfitEvent, fit
from django_events.phrases import count
from django_events.workers.loop import Exit

ACTIONS = ("show", "write", "check", "catalog")


def schemas(
    using: str,
    *,
    action: str,
    topics: Sequence[str],
    folder: str,
    force: bool,
    against_log: bool,
    from_id: int | None,
    limit: int | None,
    title: str,
    release: str,
    **options: Any,
) -> Report:
    chosen = [registry.get(name) for name in topics] or [topic for topic in registry if topic.schemas]
    for topic in chosen:
        if not topic.schemas:
            raise refused(f"Topic {topic.name!r} describes no events: declare topic({topic.name!r}, schemas=[…]).")
    if (from_id is not None or limit is not None) and not against_log:
        raise wrong_usage("--from and --limit are about a log: they go with check --against-log.")
    if from_id is not None and len(topics) != 1:
        raise wrong_usage("--from is about the ids of one topic: name it.")
    if against_log and action != "check":
        raise wrong_usage("--against-log goes with check.")
    chains = problems_of_chains() if action in ("write", "check") and not against_log else ()
    for _, problem in (*problems_of_schemas(), *chains):
        raise refused(f"{problem} All that is wrong is named by: manage.py check")
    if action == "catalog":
        found = document(chosen, title=title, version=release)
        return Report(found, json.dumps(found, indent=2, ensure_ascii=False))
    if action == "write":
        return _written(Path(folder), chosen, force=force)
    if action == "check" and against_log:
        return _fits(using, chosen, after=(from_id or 1) - 1, limit=limit)
    if action == "check":
        return _checked(Path(folder), chosen, every=not topics)
    return _shown(chosen)


def _shown(topics: Sequence[DeclaredTopic]) -> Report:
    columns = ["topic", "type", "version", "model", "schema_check", "undescribed", "compatibility"]
    found = [
        {
            "topic": topic.name,
            "type": schema.type,
            "version": schema.version,
            "model": f"{model.__module__}.{model.__qualname__}",
            "schema_check": topic.schema_check,
            "undescribed": topic.undescribed,
            "compatibility": topic.compatibility,
            "schema": rendered(schema, model),
        }
        for topic in topics
        for schema, model in topic.contract
    ]
    if not found:
        return Report(found, "No topic describes its events. Declare schemas: topic(…, schemas=[…]).")
    return Report(found, table(columns, [[row[name] for name in columns] for row in found]))


def _written(folder: Path, topics: Sequence[DeclaredTopic], *, force: bool) -> Report:
    written = [str(path) for path in write(folder, topics, force=force)]
    lines = [f"Written: {path}" for path in written] or [f"Nothing to write: {folder} has all schemas as they are."]
    return Report({"written": written}, "\n".join(lines))


def _checked(folder: Path, topics: Sequence[DeclaredTopic], *, every: bool) -> Report:
    found = [*changes(folder, topics), *(left_over(folder) if every else [])]
    data = {"fits": not found, "folder": str(folder), "changes": [one._asdict() for one in found]}
    if not found:
        return Report(data, f"{count(sum(len(topic.schemas) for topic in topics), 'schema')} as in {folder}.")
    return Report(data, "\n".join([*map(str, found), "", _advice(found)]), code=Exit.FAILED)


def _advice(found: Sequence[SchemaChange]) -> str:
    if any(one.is_breaking for one in found):
        return "What is incompatible needs a new version and an upcaster. The rest: manage.py events schemas write"
    return "To write what is declared: manage.py events schemas write"


def _fits(using: str, topics: Sequence[DeclaredTopic], *, after: int, limit: int | None) -> Report:
    found: list[LogFit] = []
    progress = now_and_then(_looked_at)
    for topic in topics:
        found.append(fit(using, existing(using, topic), after=after, limit=limit, on_progress=progress))
        if found[-1].interrupted:
            break
    data = [{**one._asdict(), "first": [misfit._asdict() for misfit in one.first], "next": one.next} for one in found]
    failed = any(one.misfits or one.interrupted for one in found)
    text = "\n".join(line for one in found for line in _lines(one))
    return Report(data, text or "No topic describes its events.", code=Exit.FAILED if failed else Exit.DONE)


def _lines(found: LogFit) -> list[str]:
    proved = f"{found.topic}: ids {found.after + 1:,} to {found.until:,}"
    what = f"{count(found.events, 'event')} looked at"
    passed = f", {count(found.undescribed, 'event')} of other types passed over" if found.undescribed else ""
    fits = "all fit" if not found.misfits else f"{found.misfits:,} don't fit"
    if found.until == found.after:
        lines = [f"{found.topic}: no events behind id {found.after:,}."]
    else:
        lines = [f"{proved}: {what}{passed}, {fits}."]
    if found.newer:
        newer = f"{count(found.newer, 'event')} of a newer version than the newest one here, whose model reads them"
        lines.append(f"  {newer}. Newer code published them.")
    lines += [_misfit(one) for one in found.first]
    if found.misfits > len(found.first):
        lines.append(f"  … and {found.misfits - len(found.first):,} more")
    if found.interrupted:
        lines.append("It was interrupted.")
    if found.next is not None:
        go_on = f"manage.py events schemas check {found.topic} --against-log --from {found.next}"
        lines.append(f"The log goes on to {found.last_id:,}. Go on with: {go_on}")
    return lines


def _misfit(one: MisfitEvent) -> str:
    return printable(f"{one.address} {one.type}: {'; '.join(one.problems)}")


def _looked_at(topic: str, until: int) -> str:
    """How far it is, so that it can go on there if the process is killed."""
    return f"{topic}: looked at up to id {until:,} …"


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "action", nargs="?", metavar="ACTION", choices=ACTIONS, default="show", help=f"{', '.join(ACTIONS)}."
    )
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="Only these topics.")
    parser.add_argument("--folder", default=FOLDER, help=f"Where the files are; by default {FOLDER}.")
    parser.add_argument("--force", action="store_true", help="Write incompatible changes, too.")
    parser.add_argument("--against-log", action="store_true", help="Check the events of the log instead of the files.")
    parser.add_argument("--from", dest="from_id", type=at_least_one, metavar="ID", help="Begin at this id of the log.")
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="Look at so many ids of the log at most.")
    parser.add_argument("--title", default="Events", help="The title of the catalog.")
    parser.add_argument("--release", default="1", help="The version of the catalog.")


SCHEMAS = Subcommand(
    name="schemas",
    help="What events look like: show it, write it to files, check changes and the log, make a catalog.",
    report=schemas,
    arguments=_arguments,
)
