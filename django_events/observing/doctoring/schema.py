"""What the migrations made: are they applied, are functions and triggers there, may this role use them?"""

from collections.abc import Iterator
from hashlib import md5
from typing import Any

import pgtrigger
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from django_events import models, sql
from django_events.observing.doctoring.database import Database
from django_events.observing.findings import Finding, error, ok, unknown, warning
from django_events.phrases import count
from django_events.publishing.capture import Capture
from django_events.sql.search_path import tables_missing

SQL = sql.beside(__name__)

# What publishing and queries of the log go through, with the MD5 of what the migrations of this version made of it.
FUNCTIONS = {
    "django_events_open(text, boolean)": "b014db32ae4ee5bcf58c57ccb20b7335",
    "django_events_checked(jsonb)": "91b5727b5152f240bea3bb8d2996a9e7",
    "django_events_publish(text, jsonb, text, text, bytea, jsonb, integer, boolean)": (
        "8c97661f6cdb80fcb43afc5973151b51"
    ),
    "django_events_schedule(text, timestamptz, jsonb, text, text, bytea, jsonb, integer, boolean)": (
        "7dc67c17348f8335773c33c21d099f84"
    ),
    "django_events_is_new(text, text, interval)": "58357dacee760cc5af6a7f77b06a056a",
    "django_events_topic_id(text)": "951c444635d319ba222c3efaa30d70ac",
}

# By which segments come and go: those that a role calls, which have the rights of their owner and no text of their own,
# and those that they call.
SEGMENT_FUNCTIONS = (
    "django_events_make_segment(integer, bigint, bigint)",
    "django_events_cut_segment(integer, bigint, bigint)",
    "django_events_drop_segment(integer, bigint)",
    "django_events_rewrite_segments(integer, bigint, bigint)",
    "django_events_swap_segments(integer, bigint, bigint)",
    "django_events_analyze_rewritten(integer, bigint)",
)
INNER_FUNCTIONS = {
    "django_events_log_of(regclass, integer)": "10159afce0d43d4e003be5a3b8f9434a",
    "django_events_make_table_of(regclass, text, boolean)": "29879f21abd922588f5b2f3734d91593",
    "django_events_make_segment_of(regclass, regclass, bigint, bigint)": "c3da157133864035e8be02398abdc898",
    "django_events_segments_of(regclass, bigint, bigint)": "114e7be44184865f7f66c1fd0d131ece",
    ("django_events_rewrite_segments_of(regclass[], regclass, integer, bigint, bigint)"): (
        "5145f1a454d905e541a22a8e7c96532f"
    ),
    "django_events_analyze_rewritten_of(regclass, bigint)": "3d29f9cddedbf9e408dad2026d43b124",
    "django_events_swap_segments_of(regclass, regclass[], bigint, bigint)": "2ea686e3fe520500d30cd5210c3fe69c",
    "django_events_cut_segment_of(regclass, bigint, bigint)": "ebc52295cf0bb6320694450e2d4f244d",
    "django_events_drop_segment_of(regclass, bigint)": "8b383d246054738934153aa25e055f6c",
}
# By which programs claim and settle events of queues: those that they call, and those that these call.
CLAIMING_FUNCTIONS = (
    "django_events_claim(text, integer, interval, text, text, timestamptz, timestamptz, bigint)",
    "django_events_ack(bigint, bigint[])",
    "django_events_nack(bigint, bigint[], interval, text)",
    "django_events_extend(bigint, interval)",
)
INNER_CLAIMING_FUNCTIONS = {
    ("django_events_read_of(regclass, integer, integer, bigint[], bigint)"): "c5291c7dc22b4bac1cd6e2d81cfb3fcc",
    (
        "django_events_settle_of(integer, bigint, bigint[], boolean, bigint[], bigint, text, "
        "bigint, integer, interval, text, boolean, boolean)"
    ): "551219a577a051bc0e8ae365acd7ea21",
    ("django_events_bury_of(regclass, integer, integer, bigint, integer, text)"): "57fc42ba0c80a3f6c25e434544346fae",
    "django_events_count_of(integer, bigint, bigint, bigint)": "0c802b48641a650d6041dc11a51b3eec",
    "django_events_end_of(bigint)": "577d74cfd54521d52eadb3d50f512791",
    "django_events_fill_of(regclass, integer, integer)": "8de7d6f22d75c130f9de0c5e44e7a8fc",
    (
        "django_events_lease_of(regclass, integer, integer, boolean, integer, interval, text, timestamptz, timestamptz)"
    ): "f4b218b0456a9a1c9fa01dfcc1c8cc97",
    "django_events_under_token(bigint)": "2589c52fdde68fb171398461ee0553d3",
    (
        "django_events_claim_of(regclass, text, integer, interval, text, text, timestamptz, timestamptz, bigint)"
    ): "deb949bd964b1bdd3e5f68d0e802f972",
    "django_events_ack_of(regclass, bigint, bigint[])": "2e41182698e67abe6ecf46c025b5ab40",
    ("django_events_nack_of(regclass, bigint, bigint[], interval, text)"): "3c0b6150bbac295298e17947409a8989",
    "django_events_extend_of(regclass, bigint, interval)": "2f923e78f324d183a81a64f7b0573975",
}

NO_TEXT = md5(b"", usedforsecurity=False).hexdigest()  # of a body that is parsed already
OF_SEGMENTS = {**dict.fromkeys(SEGMENT_FUNCTIONS, NO_TEXT), **INNER_FUNCTIONS}
OF_CLAIMS = {**dict.fromkeys(CLAIMING_FUNCTIONS, NO_TEXT), **INNER_CLAIMING_FUNCTIONS}
EXPECTED = {**FUNCTIONS, **OF_SEGMENTS, **OF_CLAIMS}

PURPOSES = ("publish", "transfer", "read", "handle", "make segments")


def migrations(database: Database) -> Iterator[Finding]:
    """Are those of this version applied?"""
    executor = MigrationExecutor(connections[database.using])
    targets = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "django_events"]
    missing = [migration.name for migration, _ in executor.migration_plan(targets)]
    ours = sorted(name for app, name in executor.loader.applied_migrations if app == "django_events")
    if not targets:
        yield ok("Django was told to do without them (MIGRATION_MODULES): they ran by themselves.", applied=[])
    elif missing:
        what = f"Not applied: {', '.join(missing)}."
        yield error(what, f"manage.py migrate --database {database.using}", missing=missing)
    else:
        yield ok(f"All are applied, {ours[-1]} is the last one.", applied=ours)


def functions(database: Database) -> Iterator[Finding]:
    """Is what publishing, claims and segments go through there, as this version made it?"""
    wrong = sql.fetch(
        database.using,
        SQL.wrong_functions,
        signatures=list(EXPECTED),
        digests=list(EXPECTED.values()),
        called=list(FUNCTIONS),
    )
    if wrong and _is_empty(database):
        yield unknown(tables_missing(database.using))
        return
    for signature, there, may_call in wrong:
        seen = {"function": signature}
        if not there:
            what = f"The function {signature} is not there."
            remedy = "Restore it from a backup of the schema; migration 0001 of django_events has it."
            yield error(what, remedy, **seen)
        elif not may_call:
            what = f"This role may not call {signature}."
            yield error(what, f"GRANT EXECUTE ON FUNCTION {signature} TO …", **seen)
        else:
            what = f"The function {signature} is not the one of this version."
            remedy = f"manage.py migrate --database {database.using}; if that changes nothing, it was replaced by hand."
            yield warning(what, remedy, **seen)
    if not wrong:
        yield ok(f"{count(len(EXPECTED), 'function')}, all there.")


def triggers(database: Database) -> Iterator[Finding]:
    """Are those of the log, and those that capture() declares, installed and enabled?"""
    registered: Any = pgtrigger.registered()
    ours = [(model, one) for model, one in registered if model is models.Event or isinstance(one, Capture)]
    if _is_empty(database):
        yield unknown(tables_missing(database.using))
        return
    good = 0
    for model, trigger in ours:
        table = model._meta.db_table
        status, enabled = trigger.get_installation_status(model, database=database.using)
        seen = {"table": table, "trigger": trigger.name}
        if status == "UNINSTALLED":
            what = f"Trigger {trigger.name} of {table} is not there: {_lost(model)}."
            yield error(what, f"manage.py pgtrigger install {trigger.get_uri(model)}", **seen)
        elif not enabled and status in ("INSTALLED", "OUTDATED"):
            what = f"Trigger {trigger.name} of {table} is disabled: {_lost(model)}."
            yield error(what, f"manage.py pgtrigger enable {trigger.get_uri(model)}", **seen)
        elif status == "OUTDATED":
            what = f"Trigger {trigger.name} of {table} is not the one that is declared."
            yield warning(what, f"manage.py migrate --database {database.using}", **seen)
        else:
            good += 1
    if good == len(ours):
        yield ok(f"{count(good, 'trigger')}, all installed and enabled.", triggers=good)


def _is_empty(database: Database) -> bool:
    """Whether nothing is there because `migrate` never ran: then each thing that is missing has the same remedy."""
    [[has_tables]] = sql.fetch(database.using, SQL.has_tables)
    return not has_tables


def _lost(model: type[Any]) -> str:
    if model is models.Event:
        return "queues get no deliveries, or the log can be changed"
    return "changes of the table publish nothing"


def rights(database: Database) -> Iterator[Finding]:
    """May the role of this process do what processes do? One that does one thing need not be able to do the rest."""
    missing = sql.fetch(database.using, SQL.missing_rights, segment_functions=list(SEGMENT_FUNCTIONS))
    by_purpose: dict[str, list[str]] = {}
    for purpose, name, privilege in missing:
        by_purpose.setdefault(purpose, []).append(f"{privilege} of {name}")
    role = connections[database.using].settings_dict["USER"] or "this role"
    can = [purpose for purpose in PURPOSES if purpose not in by_purpose]
    for purpose, lacks in by_purpose.items():
        more = f" and {len(lacks) - 3} more" if len(lacks) > 3 else ""
        what = f"{role} can't {purpose}: it lacks {', '.join(lacks[:3])}{more}."
        seen = {"role": role, "lacks": lacks, "can": can}
        if can:
            remedy = f"Fine, unless processes of this role are to do that: it can {' and '.join(can)}."
            yield warning(what, remedy, **seen)
        else:
            remedy = "Grant it, or use another role: manage.py events grants tells what each kind of process needs."
            yield error(what, remedy, **seen)
    if not missing:
        yield ok(f"{role} can publish, transfer, handle and make segments.", role=role)


def trust(database: Database) -> Iterator[Finding]:
    """Is there a role that could have its code run by all others?"""
    found = sql.fetch(database.using, sql.shared.untrusted)
    for kind, what, remedy in found:
        known = "If you know what it does, leave it. Otherwise: " if kind == "code" else ""
        yield warning(f"{what}: its code is run by all who use events.", f"{known}{remedy}", kind=kind)
    if not found:
        yield ok("Only the owner of the tables decides what code is run.")
