"""Databases that can't do what events need, or that others could read or misuse."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import ProgrammingError, connections, router

from django_events import models, sql
from django_events.consuming.registration import check_filter
from django_events.declarations import consumers
from django_events.exceptions import Invalid
from django_events.models.buffer import writable
from django_events.models.databases import for_database
from django_events.phrases import moment

# 14.0 lists a prepared transaction under another name than before, which the transfer relies on.
OLDEST_POSTGRESQL = 140_001
LOCAL = {"localhost", "127.0.0.1", "::1"}
WITHOUT_ENCRYPTION = {"disable", "allow", "prefer"}


@register(Tags.compatibility)
def check_engines(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    using = writable()
    if connections[using].vendor != "postgresql":
        yield Error(
            f"Events are written to the database {using!r}, which is {connections[using].vendor}, not PostgreSQL.",
            hint="Use PostgreSQL there, or route the app 'django_events' to a PostgreSQL with DATABASE_ROUTERS.",
            id="django_events.E005",
        )


@register(Tags.database)
def check_servers(
    app_configs: Sequence[AppConfig] | None = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Iterable[CheckMessage]:
    for using in databases or ():
        connection = connections[using]
        if connection.vendor != "postgresql" or not router.allow_migrate_model(using, models.BufferedEvent):
            continue
        version: int = connection.pg_version  # type: ignore[attr-defined]
        if version < OLDEST_POSTGRESQL:
            named = f"{version // 10_000}.{version % 10_000}"
            yield Error(
                f"The database {using!r} is PostgreSQL {named}; django_events needs 14.1 or newer.",
                hint="Upgrade the server.",
                id="django_events.E006",
            )
        yield from _wrong_filters(using)
        yield from _stopped(using)
        if connection.settings_dict.get("OPTIONS", {}).get("server_side_binding"):
            yield checks.Warning(
                f"The database {using!r} binds parameters on the server, which makes PostgreSQL plan django_events' "
                "statements without knowing which topic they are about.",
                hint="Leave 'server_side_binding' out of its OPTIONS, or give events a database alias without it.",
                id="django_events.W001",
            )


@register(Tags.security, deploy=True)
def check_reads(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    written, read = router.db_for_write(models.BufferedEvent), router.db_for_read(models.Event)
    if written != read:
        yield checks.Warning(
            f"Events are written to the database {written!r} and read from {read!r}: what is read may be late, and a "
            "handler that reads the log may not find the event that it was called for.",
            hint="Let the router answer for the app 'django_events' with one alias, and name the other with using().",
            id="django_events.W004",
        )


@register(Tags.security, deploy=True)
def check_encryption(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    using = writable()
    if connections[using].vendor != "postgresql":
        return
    given = connections[using].get_connection_params()
    host, mode = str(given.get("host", "")), str(given.get("sslmode", os.environ.get("PGSSLMODE", "prefer")))
    local = not host or host.startswith("/") or host in LOCAL
    if not local and "service" not in given and mode in WITHOUT_ENCRYPTION:
        yield checks.Warning(
            f"The database {using!r} is another machine, and sslmode is {mode!r}: events and the password may cross "
            "the network in plain text.",
            hint="Set 'sslmode': 'verify-full' in its OPTIONS, or 'require' at least.",
            id="django_events.W007",
        )


@register(Tags.security, Tags.database, deploy=True)
def check_trust(
    app_configs: Sequence[AppConfig] | None = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Iterable[CheckMessage]:
    for using in databases or ():
        if connections[using].vendor != "postgresql" or not router.allow_migrate_model(using, models.BufferedEvent):
            continue
        for kind, what, remedy in sql.fetch(using, sql.shared.untrusted):
            if kind != "code":
                yield checks.Warning(
                    f"In the database {using!r} a role could have its code run by all who use events. {what}.",
                    hint=f"{remedy}; manage.py events grants prints it with the rights that each process needs.",
                    id="django_events.W008",
                )


def _wrong_filters(using: str) -> Iterator[CheckMessage]:
    for consumer in consumers:
        if not isinstance(consumer.where, str):
            continue
        try:
            check_filter(using, consumer)
        except Invalid as error:
            yield Error(str(error), id="django_events.E009")


def _stopped(using: str) -> Iterator[CheckMessage]:
    # Not to fail in a database that isn't migrated yet: the server would write an error into its log.
    if models.Position._meta.db_table not in connections[using].introspection.table_names():
        return
    try:
        stopped = models.Position.objects.using(using).filter(stopped_at__isnull=False)
        rows = list(stopped.select_related("consumer__topic").order_by("consumer__name", "partition"))
    except ProgrammingError:  # not migrated to this version yet
        return
    for row in rows:
        stopped_at = "" if row.stopped_at is None else moment(row.stopped_at)
        where = "" if row.partition == models.Position.ALL else f" in partition {row.partition}"
        yield checks.Warning(
            f"Consumer {row.consumer} stopped{where}, at {stopped_at}. {row.error}".strip(),
            hint=f"Repair the cause, then: manage.py events resume {row.consumer.name}{for_database(using)}",
            id="django_events.W003",
        )
