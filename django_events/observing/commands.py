"""The commands that a remedy names. A command acts where events are written unless it is told another database, so one
that is about another database names it: otherwise following the remedy would change the wrong one.

    manage_command("west", "run_consumer", "billing")  # manage.py run_consumer billing --database west
"""

from django_events.models.buffer import writable


def for_database(using: str) -> str:
    """What a command needs to act on this database: nothing, or ` --database west`."""
    return "" if using == writable() else f" --database {using}"


def manage_command(using: str, *words: str) -> str:
    return " ".join(("manage.py", *words)) + for_database(using)


def events_command(using: str, *words: str) -> str:
    return manage_command(using, "events", *words)
