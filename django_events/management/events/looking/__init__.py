"""Subcommands that only look: none calls a verb of `django_events.operations`."""
