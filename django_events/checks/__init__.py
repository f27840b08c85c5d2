"""What `manage.py check` finds: a module for each subject, and in it a function for each of its messages.

The id of a message is in docs/reference/checks.md with what to do.
"""

from django_events.checks import bridges, databases, declarations, projections, publishers, settings

# What is about the site, whatever its database is like; `events doctor` asks them too.
OF_SITE = (
    settings.check_settings,
    settings.check_events_module,
    settings.check_notify,
    settings.check_telemetry,
    settings.check_apps,
    settings.check_poll_interval,
    declarations.check_topics,
    declarations.check_consumers,
    declarations.check_clocks,
    declarations.check_schemas,
    declarations.check_upcasters,
    declarations.check_retention,
    projections.check_projections,
    bridges.check_relays,
    bridges.check_inboxes,
    bridges.check_brokers,
    publishers.check_outboxes,
    publishers.check_captures,
    publishers.check_databases_of_models,
    databases.check_engines,
    databases.check_reads,
    databases.check_encryption,
)
