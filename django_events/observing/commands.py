"""The commands that a remedy names, for the database that it is about.

manage_command("west", "run_consumer", "billing")  # manage.py run_consumer billing --database west
"""

from django_events.models.databases import for_database


def manage_command(using: str, *words: str) -> str:
    return " ".join(("manage.py", *words)) + for_database(using)


def events_command(using: str, *words: str) -> str:
    return manage_command(using, "events", *words)
