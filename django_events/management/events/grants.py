"""`manage.py events grants`: the rights that a process needs, as SQL to review. Nothing is changed."""

from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandParser

from django_events.management.events.subcommand import Subcommand
from django_events.management.granting import ROLES, Block, blocks, revoking
from django_events.management.reporting import Report, printable

LONGEST = 63
TAKEN = """\
-- All rights on events in the database {database} are taken from the role {role}, for whatever process it had them.
-- Read it, and run it as the owner of the tables or a superuser. What it is to keep is given again: events grants."""
FIRST = """\
-- Rights for {kind}s of django_events in the database {database}, given to the role {role}.
-- Read it, and run it as a role that may: the owner of the tables who may make roles, or a superuser.
-- It may be run again, and should be after `migrate` made new tables."""
NOTES = {
    "publisher": "A consumer whose handlers publish needs this as well.",
    "consumer": "The tables that handlers use are the site's own: give rights on them too.",
    "claimer": "It can have the events of every queue: give it to few. Queues are watched by the role of readers.",
    "operator": "It can read every payload and end sessions of others: give it to few.",
    "sink": "A query that reads events as well needs the role of readers, too.",
    "reader": "It can read every payload. A streaming query of Spark that has a name needs the role of consumers too.",
    "mirror": "It can read every payload of every topic: give it to few.",
}

GONE = "Sessions lose the rights at the commit. To remove the role as well: DROP OWNED BY and DROP ROLE."


def grants(using: str, *, role: str, to: str | None, revoke: bool = False, **options: Any) -> Report:
    name = to or f"django_events_{role}"
    found = revoking(using, name) if revoke else blocks(using, role, name)
    data = {
        "role": role,
        "to": name,
        "revoke": revoke,
        "blocks": [{"purpose": one.purpose, "statements": _statements(one)} for one in found],
    }
    first = (TAKEN if revoke else FIRST).format(kind=role, database=using, role=printable(name))
    begin, end = "BEGIN;\nSET LOCAL lock_timeout = '2s';", "COMMIT;"
    return Report(data, "\n\n".join([first, begin, *map(_text, found), end]), [GONE if revoke else NOTES[role]])


def _text(block: Block) -> str:
    lines = [f"-- {line}" for line in block.purpose.splitlines()]
    return "\n".join([*lines, *_statements(block)])


def _statements(block: Block) -> list[str]:
    return [f"{statement};" for statement in block.statements]


def _name(text: str) -> str:
    """Refuse a name that PostgreSQL would cut: the SQL would be about two roles."""
    if not text or not text.isprintable() or len(text.encode()) > LONGEST:
        raise ArgumentTypeError(f"{text!r} is no name of a role, expected up to {LONGEST} bytes in one line.")
    return text


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("--role", required=True, choices=list(ROLES), help="What the process does.")
    parser.add_argument(
        "--to", type=_name, metavar="NAME", help="The role of the database; by default django_events_ROLE."
    )
    parser.add_argument(
        "--revoke", action="store_true", help="Print what takes all rights on events from that role instead."
    )


GRANTS = Subcommand(
    name="grants",
    help="Print the rights that a process needs, as SQL to review.",
    report=grants,
    arguments=_arguments,
)
