"""What `manage.py check` finds: wrong settings, wrong declarations, a database that can't do it.

Each function is one message. Its id is in docs/reference/checks.md with what to do.
"""

import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pgtrigger
from django.apps import AppConfig, apps
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DEFAULT_DB_ALIAS, ProgrammingError, connections, router
from django.utils.module_loading import import_string, module_has_submodule

from django_events import conf, models, sql
from django_events.consuming.registration import check_filter
from django_events.contracts.chains import problems_of_chains, problems_of_clocks, problems_of_schemas
from django_events.declarations import (
    DeclaredInbox,
    DeclaredProjection,
    DeclaredRelay,
    clocks,
    consumers,
    inboxes,
    registry,
)
from django_events.exceptions import HandlerNotFound, Invalid, Refused, did_you_mean
from django_events.models.buffer import writable
from django_events.phrases import moment
from django_events.publishing.capture import Capture
from django_events.publishing.model_signals import publishers

# 14.0 lists a prepared transaction under another name than before, which the transfer relies on.
OLDEST_POSTGRESQL = 140_001
SHORTEST_POLL = timedelta(milliseconds=50)
TOLD = 5  # topics that a message names
OWN_TOPIC = "A mirror has the events of its source only. Give the others a topic of their own."
LOCAL = {"localhost", "127.0.0.1", "::1"}
WITHOUT_ENCRYPTION = {"disable", "allow", "prefer"}


@register(Tags.compatibility)
def check_settings(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [*_unknown_keys(), *_wrong_values()]


@register(Tags.compatibility)
def check_events_module(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    """A name of its own that no app has: then nothing is declared at all, and nothing else would say so."""
    name = conf.events_module()
    if name == conf.Settings.EVENTS_MODULE:  # a site may have declared nothing yet
        return
    if not any(module_has_submodule(app.module, name) for app in apps.get_app_configs() if app.module is not None):
        yield checks.Warning(
            f"DJANGO_EVENTS['EVENTS_MODULE'] is {name!r}, and no installed app has a module of that name.",
            hint="No topic and no consumer is declared. Correct the name, or make the module in one of your apps.",
            id="django_events.W011",
        )


@register(Tags.compatibility)
def check_notify(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    """A hook that can't be called would be found out with the first problem, which it then doesn't tell."""
    for entry in _notified():
        try:
            hook = import_string(entry)
            wrong = "" if callable(hook) else f"It is {hook!r:.200}, not a function."
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            yield checks.Warning(
                f"DJANGO_EVENTS['NOTIFY'] names {entry!r}, which can't be called: {wrong}",
                hint="Correct the path, or what the module fails with: until then it is told of no problem.",
                id="django_events.W002",
            )


def _notified() -> list[str]:
    """The functions that NOTIFY names; none where its value can't be used, which another check says."""
    with suppress(Invalid):
        return [entry for entry in conf.settings.NOTIFY if entry != "mail_admins" and "://" not in entry]
    return []


@register(Tags.compatibility)
def check_topics(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [
        Error(problem, hint=f"It is declared at {topic.declared_at}.", id="django_events.E003")
        for topic, problem in registry.problems()
    ]


@register(Tags.compatibility)
def check_consumers(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    topics = {topic.name for topic in registry}
    for consumer, problem in consumers.problems():
        yield Error(problem, hint=f"It is declared at {consumer.declared_at}.", id="django_events.E007")
    for consumer in consumers:
        for name in (*consumer.topics, *filter(None, [consumer.outcomes])):
            if name not in topics:
                yield Error(
                    f"Consumer {consumer.name!r} is of topic {name!r}, which no installed app declares.",
                    hint=f"{did_you_mean(name, topics)} It is declared at {consumer.declared_at}.",
                    id="django_events.E008",
                )
        if consumer.is_for_claims or consumer.derived:  # whether a projection can work is asked below
            continue
        hint = "It will not be served; the other consumers will."
        try:
            handler = consumer.load()
        except HandlerNotFound as error:  # a warning: it stops this consumer, and must not stop the others
            yield checks.Warning(str(error), hint=hint, id="django_events.W002")
            continue
        if isinstance(consumer.handler, str) and (problem := consumer.wrong_handler(handler)):
            problem = f"Consumer {consumer.name!r} has the handler {consumer.handler!r}, {problem}."
            hint = f"Each of its events would fail. It is declared at {consumer.declared_at}."
            yield checks.Warning(problem, hint=hint, id="django_events.W002")


@register(Tags.compatibility)
def check_relays(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    """Two relays into one stream: each takes what the other one sent for what it has sent itself."""
    filled: dict[Any, DeclaredRelay] = {}
    for relay in consumers:
        to: Any = getattr(relay, "to", None)
        stream = getattr(to, "stream", None)  # of Redis and JetStream; Kafka compares nothing
        if not isinstance(relay, DeclaredRelay) or not isinstance(stream, Hashable) or stream is None:
            continue
        place = type(to), getattr(to, "broker", ""), stream, relay.partitioned
        if (other := filled.setdefault(place, relay)) is not relay and other.name != relay.name:
            yield Error(
                f"Relays {other.name!r} and {relay.name!r} fill the same stream, {stream!r} of {place[1]!r}: each "
                "would take for sent what it has not.",
                hint=f"Give each a stream of its own. It is declared at {relay.declared_at}.",
                id="django_events.E019",
            )


@register(Tags.compatibility)
def check_inboxes(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    topics, wrong = {topic.name for topic in registry}, set()
    taken: list[DeclaredInbox] = []
    for inbox, problem in inboxes.problems():
        wrong.add(inbox.name)
        yield Error(problem, hint=f"It is declared at {inbox.declared_at}.", id="django_events.E020")
    for inbox in inboxes:
        if inbox.topic not in topics:
            yield Error(
                f"Inbox {inbox.name!r} is of topic {inbox.topic!r}, which no installed app declares.",
                hint=f"{did_you_mean(inbox.topic, topics)} It is declared at {inbox.declared_at}.",
                id="django_events.E020",
            )
        if inbox.name in wrong:
            continue
        # A queue gives each message to one of them, and a transform may leave out what another inbox takes.
        if inbox.transform is None and not getattr(inbox.source, "is_queue", False):
            # What sources say of themselves is for people: those of the same topic may take other types of its events.
            if other := next((one for one in taken if (one.source, one.topic) == (inbox.source, inbox.topic)), None):
                yield Error(
                    f"Inboxes {other.name!r} and {inbox.name!r} take the same source, {inbox.source}, into topic "
                    f"{inbox.topic!r}: each of its messages would become two events.",
                    hint=f"Leave one of them out. It is declared at {inbox.declared_at}.",
                    id="django_events.E020",
                )
            taken.append(inbox)
        try:
            inbox.source.check_installed()
        except Refused as error:  # a warning: it stops this inbox, and must not stop the others
            hint = "It will not be served; the others will."
            yield checks.Warning(f"Inbox {inbox.name!r} can't read: {error}", hint=hint, id="django_events.W002")


@register(Tags.compatibility)
def check_brokers(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    """A broker that the settings don't have. Where they have none, as in a process that only publishes, all is well."""
    relays = [(f"Relay {one.name!r}", one.to, one.declared_at) for one in consumers if isinstance(one, DeclaredRelay)]
    sources = [(f"Inbox {one.name!r}", one.source, one.declared_at) for one in inboxes]
    known = _brokers()
    for what, bridge, declared_at in [*relays, *sources]:
        broker: object = getattr(bridge, "broker", None)
        if known and isinstance(broker, str) and broker not in known:
            yield checks.Warning(
                f"{what} is of the broker {broker!r}, which DJANGO_EVENTS['BROKERS'] doesn't have.",
                hint=f"{did_you_mean(broker, known)} It is declared at {declared_at}.",
                id="django_events.W010",
            )


def _brokers() -> dict[str, Any]:
    """The brokers in the settings; none where their value can't be used, which another check says."""
    with suppress(Invalid):
        return conf.settings.BROKERS
    return {}


@register(Tags.models)
def check_projections(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    kept: dict[str, DeclaredProjection[Any]] = {}
    for projection in consumers:
        if not isinstance(projection, DeclaredProjection):
            continue
        hint = f"It is declared at {projection.declared_at}."
        problems = list(projection.problems_of_model())
        for problem in problems:
            yield Error(problem, hint=hint, id="django_events.E015")
        if problems:
            continue
        model: Any = projection.model
        table = model._meta.db_table
        if (other := kept.setdefault(table, projection)) is not projection and other.name != projection.name:
            yield Error(
                f"Projections {other.name!r} and {projection.name!r} are into the same table, {table}: a rebuild of "
                "one would lose what the other one put there.",
                hint=hint,
                id="django_events.E015",
            )
        if referring := _referring(model):
            yield checks.Warning(
                f"Projection {projection.name!r} can't be rebuilt, because rows of {model._meta.label} are referred to "
                f"by {', '.join(referring)}.",
                hint=f"Refer to the key by value, or with db_constraint=False. {hint}",
                id="django_events.W009",
            )
        for using in writable(), router.db_for_write(model) or DEFAULT_DB_ALIAS:
            if not router.allow_migrate_model(using, model) or not router.allow_migrate_model(using, models.Consumer):
                yield Error(
                    f"Projection {projection.name!r} is into {model._meta.label}, and the rows of that are not in the "
                    f"database {using!r} beside events: an event and what it changes are one transaction.",
                    hint=f"Route the model and the app 'django_events' to one database. {hint}",
                    id="django_events.E016",
                )
                break


@register(Tags.compatibility)
def check_clocks(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [
        Error(problem, hint=f"It is declared at {clock.declared_at}.", id="django_events.E014")
        for clock, problem in clocks.problems()
    ]


@register(Tags.compatibility)
def check_schemas(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [
        Error(problem, hint=f"It is declared at {declared_at}.", id="django_events.E017")
        for declared_at, problem in (*problems_of_schemas(), *problems_of_clocks())
    ]


@register(Tags.compatibility)
def check_upcasters(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    return [
        Error(problem, hint=f"It is declared at {declared_at}.", id="django_events.E018")
        for declared_at, problem in problems_of_chains()
    ]


@register(Tags.models)
def check_outboxes(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    topics = {topic.name for topic in registry}
    for publisher in publishers():
        outbox = publisher.outbox
        for problem in outbox.problems(publisher.model):
            yield Error(problem, obj=publisher.model, id="django_events.E010")
        if outbox.topic not in topics:
            problem = f"An @outbox publishes to topic {outbox.topic!r}, which no installed app declares."
            yield Error(problem, hint=did_you_mean(outbox.topic, topics), obj=publisher.model, id="django_events.E010")
        if problem := _of_mirror("An @outbox", outbox.topic):
            yield Error(problem, hint=OWN_TOPIC, obj=publisher.model, id="django_events.E010")


@register(Tags.models)
def check_captures(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    topics = {topic.name for topic in registry}
    registered: Any = pgtrigger.registered()
    # A capture has several triggers, and is wrong once.
    captures = {(model, id(one.declared)): one for model, one in registered if isinstance(one, Capture)}
    for (model, _), trigger in captures.items():
        for problem in trigger.declared.problems(model):
            yield Error(problem, obj=model, id="django_events.E011")
        if trigger.declared.topic not in topics:
            problem = f"A capture() publishes to topic {trigger.declared.topic!r}, which no installed app declares."
            yield Error(problem, hint=did_you_mean(trigger.declared.topic, topics), obj=model, id="django_events.E011")
        if problem := _of_mirror("A capture()", trigger.declared.topic):
            yield Error(problem, hint=OWN_TOPIC, obj=model, id="django_events.E011")


def _of_mirror(what: str, topic: str) -> str:
    """What to say of something that publishes to a mirror; nothing if the topic is none."""
    mirror = inboxes.mirrors.get(topic)
    if mirror is None:
        return ""
    return f"{what} publishes to topic {topic!r}, which is a mirror of {mirror.source}: nothing can be saved."


@register(Tags.models)
def check_databases_of_models(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    registered: Any = pgtrigger.registered()
    declared: dict[tuple[str, type[Any]], None] = {
        **{("An @outbox", publisher.model): None for publisher in publishers()},
        **{("A capture()", model._meta.concrete_model): None for model, one in registered if isinstance(one, Capture)},
    }
    events = writable()
    for what, model in declared:
        using = router.db_for_write(model) or DEFAULT_DB_ALIAS
        vendor = connections[using].vendor
        if using == events or (vendor == "postgresql" and router.allow_migrate_model(using, models.BufferedEvent)):
            continue
        why = f"is {vendor}" if vendor != "postgresql" else "has no tables of django_events by its router"
        yield Error(
            f"{what} publishes in the database that its rows are written to, {using!r}, which {why}.",
            hint=f"Events are written to {events!r}. Route the model there too, or let a router allow the app "
            f"'django_events' in {using!r}, if it is PostgreSQL.",
            obj=model,
            id="django_events.E013",
        )


@register(Tags.compatibility)
def check_apps(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    if not apps.is_installed("pgtrigger"):
        yield Error(
            "django_events needs the app 'pgtrigger' for its triggers.",
            hint="Add 'pgtrigger' to INSTALLED_APPS.",
            id="django_events.E004",
        )


@register(Tags.compatibility)
def check_telemetry(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    for name in conf.telemetry():
        package, extra = conf.TELEMETRY[name]
        if find_spec(package) is None:
            yield Error(
                f"DJANGO_EVENTS['TELEMETRY'] names {name!r}, and the package {package} is not installed.",
                hint=f"pip install 'django-events-pg[{extra}]'",
                id="django_events.E012",
            )


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
def check_poll_interval(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    every = conf.settings.POLL_INTERVAL
    if every < SHORTEST_POLL:
        yield checks.Warning(
            f"DJANGO_EVENTS['POLL_INTERVAL'] is {every.total_seconds():g} s: where no wake-up comes, every worker asks "
            f"the database {1 / every.total_seconds():,.0f} times a second for nothing.",
            hint="Leave it at 0.5 s: with a direct connection workers are woken within milliseconds.",
            id="django_events.W005",
        )


@register(Tags.security, deploy=True)
def check_retention(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    kept = [t.name for t in registry if not any((t.retention, t.retention_events, t.retention_bytes))]
    if kept:
        told = ", ".join(kept[:TOLD]) + (f" and {len(kept) - TOLD} more" if len(kept) > TOLD else "")
        yield checks.Warning(
            f"No retention is declared for {told}: their logs grow until the disk is full.",
            hint="Declare retention=, or add django_events.W006 to SILENCED_SYSTEM_CHECKS if they are kept on purpose.",
            id="django_events.W006",
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


# What is about the site, whatever its database is like; `events doctor` asks them too.
OF_SITE = (
    check_settings,
    check_topics,
    check_consumers,
    check_projections,
    check_clocks,
    check_schemas,
    check_upcasters,
    check_outboxes,
    check_captures,
    check_databases_of_models,
    check_apps,
    check_engines,
    check_reads,
    check_poll_interval,
    check_retention,
    check_encryption,
)


def _referring(model: Any) -> list[str]:
    """The foreign keys of other tables, or of its own, that the database keeps to the rows of a model."""
    relations = [one.field for one in model._meta.related_objects if not one.many_to_many]
    kept = [str(field) for field in relations if getattr(field, "db_constraint", False)]
    through = [field.remote_field.through._meta.label for field in model._meta.many_to_many]
    return sorted({*kept, *through})


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
            hint=f"Repair the cause, then: manage.py events resume {row.consumer.name}",
            id="django_events.W003",
        )


def _unknown_keys() -> Iterator[CheckMessage]:
    try:
        configured = conf.configured()
    except Invalid as error:
        yield Error(str(error), id="django_events.E002")
        return
    for key in configured:
        if key not in conf.KEYS:
            yield Error(
                f"DJANGO_EVENTS has no key {key!r}.", hint=did_you_mean(str(key), conf.KEYS), id="django_events.E001"
            )


def _wrong_values() -> Iterator[CheckMessage]:
    try:
        configured = conf.configured()
    except Invalid:
        return
    for problem in conf.problems(configured):
        yield Error(problem, id="django_events.E002")
