"""Views for load balancers and Kubernetes, which answer soon whatever the database does.

    from django_events import health

    urlpatterns = [
        path("livez", health.liveness),
        path("readyz", health.readiness),
        path("transferz", health.readiness, {"max_age": timedelta(minutes=1)}),
    ]

They tell the public no more than a word. What was wrong is in the log, with the words of the database.
"""

import logging
from datetime import timedelta

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.http import HttpRequest, HttpResponse, JsonResponse

from django_events import declarations, sql
from django_events.exceptions import rights_missing, rows_hidden
from django_events.models.buffer import writable
from django_events.observing.findings import Finding, Subject
from django_events.observing.machines import for_machines
from django_events.phrases import duration
from django_events.sql.limited import limited

logger = logging.getLogger("django_events.health")
SQL = sql.beside(__name__)

SECONDS = 2  # for the connection, and for each answer


def problem(using: str, *, max_age: timedelta | None = None) -> Finding | None:
    """What stops publishing to a database, or keeps an event in its buffer for longer than `max_age`; None if nothing.

    Its kind is one of database, rights, read-only, migrations, topics and transfer.

    On a connection of its own, which is given two seconds to be there and two for each answer. Nothing is written.
    """
    # As long for a lock as for an answer, but for the moment that it takes to say that it was one.
    limits = {"statement_timeout": f"{SECONDS}s", "lock_timeout": f"{SECONDS * 900}ms"}
    try:
        if connections[using].vendor != "postgresql":
            return _error("database", f"The database {using!r} is no PostgreSQL.")

        def look() -> Finding | None:
            with sql.batch(using, (SQL.ready, {}), **limits) as [[ready]]:
                return _problem(using, max_age, *ready)

        return limited(using, look, seconds=SECONDS)
    except ImproperlyConfigured as error:
        return _error("database", f"The database {using!r} can't be used. {error}")
    except Error as error:
        if sql.kind_of(error) is sql.ErrorKind.ROWS_HIDDEN:
            return _error("rights", f"{rows_hidden(connections[using].settings_dict['USER'], error)}.")
        if sql.kind_of(error) is sql.ErrorKind.FORBIDDEN:
            told = rights_missing(connections[using].settings_dict["USER"], error, kind="publisher")
            return _error("rights", f"{told}.")
        return _error("database", " ".join(sql.said(error).split()))


def _problem(using: str, max_age: timedelta | None, read_only: str, migrated: bool) -> Finding | None:
    migrate = f"Run: manage.py migrate --database {using}"
    if read_only == "on":
        what = f"The database {using!r} is a standby, or read-only by default."
        return _error("read-only", what, "Point the alias at the primary, or promote it.")
    if not migrated:
        return _error("migrations", f"The database {using!r} is not migrated.", migrate)
    known = {name for (name,) in sql.fetch(using, SQL.names_of_topics)}
    missing = sorted({topic.name for topic in declarations.registry} - known)
    if missing:
        return _error("topics", f"The database {using!r} has no topic {', '.join(missing)}.", migrate)
    if max_age is not None:
        [[age]] = sql.fetch(using, SQL.oldest_waiting)
        if age is not None and float(age) > max_age.total_seconds():
            waited = duration(timedelta(seconds=float(age)))
            what = f"An event has been in the buffer of {using!r} for {waited}."
            return _error("transfer", what, "Is a transfer running? manage.py run_transfer")
    return None


def _error(kind: str, what: str, remedy: str = "") -> Finding:
    return Finding(kind, "error", Subject(), what, remedy, {})


def _liveness(request: HttpRequest) -> HttpResponse:
    """200: this process answers. It asks no database, so that one that is away restarts no process."""
    return JsonResponse({"status": "ok"})


def _readiness(request: HttpRequest, *, using: str | None = None, max_age: timedelta | None = None) -> HttpResponse:
    """200 if events can be published, otherwise 503 with a word for the reason.

    With `max_age` also 503 while an event has been in the buffer for longer.
    """
    alias = writable(using)
    found = problem(alias, max_age=max_age)
    if found is None:
        return JsonResponse({"status": "ok"})
    logger.warning("Not ready to publish to %r (%s): %s", alias, found.kind, f"{found.what} {found.remedy}".strip())
    return JsonResponse({"status": "unavailable", "reason": found.kind}, status=503)


liveness = for_machines(_liveness)
readiness = for_machines(_readiness)
