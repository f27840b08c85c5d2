"""The overview: topics and consumers at a glance, the last hours, and what an operator has to look at."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from django_events import sql
from django_events.admin import addresses
from django_events.admin.charts import Chart, Line, Point, chart, period_of, periods, rates
from django_events.admin.finding import Hit, find
from django_events.admin.pages import Pages, may
from django_events.admin.problems import problems
from django_events.admin.rows import consumer_rows, topic_rows
from django_events.admin.summaries import DatabaseSummary, summaries
from django_events.exceptions import InUse
from django_events.log.inventory import logs, next_scheduled, waiting
from django_events.models import Position, Topic
from django_events.models.databases import databases
from django_events.observing import samples
from django_events.observing.findings import Finding
from django_events.observing.lag import Standing, importance, standings
from django_events.observing.lock_limit import within_lock_limit
from django_events.observing.problems import find_problems
from django_events.observing.samples import Pace
from django_events.observing.workers import look

SQL = sql.beside(__name__)

SHOWN = 20
CHARTED = 5  # consumers whose lag has a line


class OverviewAdmin(Pages):
    """The overview: one page in the place of a list."""

    def get_urls(self) -> list[Any]:
        return [
            self.page("", "changelist", self.overview, "view_overview"),
            self.page("find/", "find", self.find, "view_overview"),
            self.page("workers/", "workers", self.workers, "view_overview", "view_consumer"),
        ]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may(request, "view_overview")

    def overview(self, request: HttpRequest) -> HttpResponse:
        using, aliases = addresses.database_of(request), databases()
        of_each = summaries(aliases) if len(aliases) > 1 else []
        if away := next((one for one in of_each if one.alias == using and one.figures is None), None):
            return self._away(request, away, of_each)
        try:
            with within_lock_limit(using):
                return self._seen(request, using, aliases, of_each).render()
        except InUse as error:
            context = {"title": _("Nothing to show"), "said": str(error)}
            return self.answer(request, "unavailable.html", context, status=503)

    def _seen(
        self, request: HttpRequest, using: str, aliases: list[str], of_each: list[DatabaseSummary]
    ) -> TemplateResponse:
        in_buffer, in_logs, consumers = waiting(using), logs(using), sorted(standings(using), key=importance)
        scheduled = next_scheduled(using)
        pace = Pace.since_sample(using)
        topics = topic_rows(in_logs, in_buffer, pace)
        shown = consumer_rows(using, consumers[:SHOWN], pace)
        context = {
            "title": _("Overview"),
            "using": using,
            "databases": aliases,
            "summaries": of_each,
            "problems": problems(
                request,
                find_problems(using, in_buffer, scheduled, consumers),
                consumers={(one.consumer, one.topic): one.consumer_id for one in consumers},
                topics={log.topic.name: log.topic.pk for log in in_logs},
            ),
            "facts": {
                "topics": len(in_logs),
                "consumers": len(consumers),
                "published": _sum(row.rate for row in topics),
                "buffered": sum(one.events for one in in_buffer),
                "buffered_more": any(one.more for one in in_buffer),
                "oldest": max((one.age for one in in_buffer), default=None),
                "scheduled": scheduled,
                "handled": _sum(pace.of_consumer(one) for one in consumers),
                "lag": sum(one.lag for one in consumers),
                "lag_more": any(one.more_lag for one in consumers),
                "dead": sum(one.dead_letters for one in consumers),
                "dead_more": any(one.more_dead_letters for one in consumers),
                "lease": oldest_lease(using),
            },
            "charts": self._charts(using, request, consumers),
            "period": period_of(request)[0],
            "periods": periods(),
            "topics": sorted(topics, key=lambda row: -(row.rate or 0))[:SHOWN],
            "more_topics": max(len(topics) - SHOWN, 0),
            "consumers": shown,
            "more_consumers": max(len(consumers) - SHOWN, 0),
            "now": sql.now(using),
        }
        return self.answer(request, "overview.html", context)

    def _away(self, request: HttpRequest, away: DatabaseSummary, of_each: list[DatabaseSummary]) -> HttpResponse:
        """The overview of a database that gives no answer: why, and the others."""
        context = {
            "title": _("Overview"),
            "using": away.alias,
            "databases": [one.alias for one in of_each],
            "summaries": of_each,
            "said": away.unavailable,
            "details": away.details,
        }
        return self.answer(request, "overview_away.html", context, status=503)

    def workers(self, request: HttpRequest) -> HttpResponse:
        """The processes, as far as the database knows of them."""
        using = addresses.database_of(request)
        context = {
            "title": _("Workers"),
            "trail": [],
            "using": using,
            "databases": databases(),
            "seen": look(using),
            "all": Position.ALL,
            "now": sql.now(using),
        }
        return self.answer(request, "workers.html", context)

    def find(self, request: HttpRequest) -> HttpResponse:
        """What is asked for by name; its page at once, if there is one meaning only."""
        using = addresses.database_of(request)
        asked = request.GET.get("q", "").strip()
        hits = [(hit.what, hit.name, self._address(hit, using)) for hit in find(using, asked, self.sees(request))]
        if len(hits) == 1:
            return HttpResponseRedirect(hits[0][2])
        context = {
            "title": _("Find"),
            "using": using,
            "databases": databases(),
            "asked": asked,
            "hits": hits,
        }
        return self.answer(request, "find.html", context)

    def _address(self, hit: Hit, using: str) -> str:
        row = addresses.written(hit.row.pk, using)
        if hit.event_id is not None:
            return self.url(hit.page, row, hit.event_id, model=Topic)
        page = self.url(hit.page, row, model=type(hit.row))
        return page if hit.key is None else f"{page}?{urlencode({'key': hit.key})}"

    def _charts(self, using: str, request: HttpRequest, consumers: list[Standing]) -> list[Chart]:
        _name, period = period_of(request)
        total = samples.totals(using, period)
        end = sql.now(using)
        frame = {"start": end - period, "end": end}
        published = rates([Point(one.at, one.published) for one in total])
        handled = rates([Point(one.at, one.handled) for one in total])
        behind = sorted((one for one in consumers if one.lag), key=lambda one: -one.lag)[:CHARTED]
        lag = [
            Line(
                f"{one.consumer} · {one.topic}",
                [Point(point.at, point.lag) for point in samples.of_consumer(using, one.consumer_id, period)],
            )
            for one in behind
        ]
        everybody = Line(_("all consumers"), [Point(one.at, one.lag) for one in total])
        return [
            chart(_("Published"), _("events/s"), [Line(_("all topics"), published)], **frame),
            chart(_("Handled"), _("events/s"), [Line(_("all consumers"), handled)], **frame),
            chart(_("Lag"), _("events"), [everybody, *lag], **frame),
        ]


def oldest_lease(using: str) -> tuple[str, datetime] | None:
    """The holder of the lease that ends first, and when it ends: likely the longest at work."""
    rows = sql.fetch(using, SQL.oldest_lease)
    return (rows[0][0], rows[0][1]) if rows else None


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def signs(request: HttpRequest) -> dict[str, Any]:
    """The address of the overview, and how many errors and warnings there are; nothing for who may not see it."""
    if not may(request, "view_overview"):
        return {}
    try:
        address = reverse("admin:django_events_overview_changelist", current_app=getattr(request, "current_app", None))
    except NoReverseMatch:  # this site doesn't show it
        return {}
    aliases = databases()
    if len(aliases) > 1:
        of_each = summaries(aliases)
        known = [one.figures for one in of_each if one.figures is not None]
        return {
            "address": address,
            "errors": sum(one.errors for one in known),
            "warnings": sum(one.warnings for one in known),
            "away": [one.alias for one in of_each if one.figures is None],
        }
    try:
        found = [one for using in aliases for one in _found(using)]
    except (DatabaseError, InterfaceError, InUse):
        return {"address": address, "unavailable": True}
    errors = sum(one.severity == "error" for one in found)
    return {"address": address, "errors": errors, "warnings": len(found) - errors}


def _found(using: str) -> list[Finding]:
    with within_lock_limit(using):  # a transaction: what fails leaves the page's own connection usable
        return find_problems(using, waiting(using), next_scheduled(using), standings(using))
