"""This process: its settings and declarations, and whether the database knows what is declared."""

from collections.abc import Iterator

from django.core.checks import ERROR, CheckMessage

from django_events import checks, declarations
from django_events.observing.doctoring.database import Database
from django_events.observing.doctoring.from_status import of_kinds
from django_events.observing.findings import Finding, error, ok, warning
from django_events.phrases import count

TOLD_BY_TROUBLES = "django_events.W003"  # a consumer that stopped


def settings(database: Database) -> Iterator[Finding]:
    """What `manage.py check --deploy --database` finds."""
    found: list[CheckMessage] = []
    for check in checks.OF_SITE:
        found += check()
    found += checks.databases.check_servers(databases=[database.using])
    messages = [one for one in found if one.id != TOLD_BY_TROUBLES]
    for one in messages:
        said = error if one.level >= ERROR else warning
        yield said(f"({one.id}) {one.msg}", one.hint or "", id=one.id)
    if not messages:
        yield ok("System checks find nothing.")


def topics(database: Database) -> Iterator[Finding]:
    """Does the database have those that are declared, and only those?"""
    declared, known = {topic.name for topic in declarations.registry}, {log.topic.name for log in database.logs}
    for name in sorted(declared - known):
        what = f"{name} is declared and not in the database: publishing to it fails."
        yield error(what, f"manage.py migrate --database {database.using}", topic=name)
    for name in sorted(known - declared):
        what = f"{name} is in the database, and no installed app declares it: nothing is published to it from here."
        yield warning(what, "Declare it again, or leave it: its log can be read all the same.", topic=name)
    if declared == known:
        yield ok(f"{count(len(known), 'topic')}, all declared.", topics=len(known))


def consumers(database: Database) -> Iterator[Finding]:
    """Does the database know those that are declared, and only those?"""
    found = [*of_kinds(database, "not registered", "declared otherwise", "undeclared")]
    yield from found or [ok(f"{count(len(database.standings), 'consumer')}, all declared and registered.")]
