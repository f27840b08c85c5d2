"""What `manage.py check` finds: a module for each subject, and in it a function for each of its messages.

The id of a message is in docs/reference/checks.md with what to do.
"""

from django_events.checks import (
    bridges,  # noqa: F401  # registers them
    databases,
    declarations,
    projections,
    publishers,
    settings,
)

# What is about the site, whatever its database is like; `events doctor` asks them too.
OF_SITE = (
    settings.check_settings,
    declarations.check_topics,
    declarations.check_consumers,
    projections.check_projections,
    declarations.check_clocks,
    declarations.check_schemas,
    declarations.check_upcasters,
    publishers.check_outboxes,
    publishers.check_captures,
    publishers.check_databases_of_models,
    settings.check_apps,
    databases.check_engines,
    databases.check_reads,
    settings.check_poll_interval,
    declarations.check_retention,
    databases.check_encryption,
)
