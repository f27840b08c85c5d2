"""A page of a topic's log: by id, newest first, and never more than it can read in a moment."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.db.models import F, QuerySet
from django.db.models.functions import Length
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_events import sql
from django_events.admin.payloads import at_a_glance, glance
from django_events.consuming import log_positions
from django_events.models import Event, Topic
from django_events.models.functions import Stored
from django_events.observing.lag import ends_of
from django_events.observing.searching import search
from django_events.statements import log_table

SQL = sql.beside(__name__)

SIZE = 50
SEARCHED = 100_000  # events that a page reads for a filter without an index; a link goes on from there
READ = 20_000  # the same for a text, for which payloads are read


def _moment(label: Any) -> forms.DateTimeField:
    picker = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")
    return forms.DateTimeField(label=label, required=False, widget=picker)


class LogForm(forms.Form):
    """The search form of a log: which events, and from where."""

    type = forms.CharField(label=_("Type"), required=False, max_length=200)
    key = forms.CharField(label=_("Key"), required=False, max_length=512, strip=False)
    partition = forms.IntegerField(label=_("Partition"), required=False, min_value=0)
    text = forms.CharField(label=_("Text"), required=False, max_length=1_000, strip=False)
    start = _moment(_("Logged since"))
    end = _moment(_("Logged before"))
    id = forms.IntegerField(label=_("Go to id"), required=False, min_value=1, max_value=2**63 - 2)
    time = _moment(_("Go to time"))


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPage:
    """Events of a log, newest first, and where it goes on."""

    events: list[dict[str, Any]]
    newer: int | None  # what comes after this id
    older: int | None  # what comes before this id
    searched: tuple[int, int] | None  # only in these ids was looked


def page(
    using: str,
    topic: Topic,
    *,
    filters: dict[str, Any],
    start: datetime | None = None,
    end: datetime | None = None,
    before: int | None = None,
    after: int | None = None,
) -> LogPage:
    """The newest events of a time, or those before an id, or the first after one."""
    first, beyond = _ids_of(using, topic, start, end)
    up = after is not None
    lower = max(after if after is not None else 0, first - 1)
    upper = min(before if before is not None else beyond, beyond)
    whole = _by_index(topic, filters)
    if not whole and up:
        upper = min(upper, lower + SEARCHED + 1)
    elif not whole:
        lower = max(lower, upper - SEARCHED - 1)
    rows = events(using, topic)
    if whole and filters:
        ids = _ids(using, topic, filters, lower if up else upper, up=up)
        # One by one: for several at once, a planner without statistics would rather read a segment.
        each = [rows.filter(id=one) for one in ids if lower < one < upper]
        rows = each[0].union(*each[1:], all=True) if each else rows.none()
    else:
        rows = rows.filter(**filters, id__gt=lower, id__lt=upper)
    with sql.by_index(using):
        found = list(rows.order_by("id" if up else "-id")[: SIZE + 1])
    more, found = len(found) > SIZE, found[:SIZE]
    if up:
        found.reverse()
    for event in found:
        event["glance"] = at_a_glance(event["layout"])
    newest = found[0]["id"] if found else None
    oldest = found[-1]["id"] if found else None
    if up:
        newer = newest if more else upper - 1
        older = (oldest if oldest is not None else upper) if lower >= first else None
    else:
        newer = newest if newest is not None else upper - 1
        older = oldest if more else lower + 1
    return LogPage(
        events=found,
        newer=newer if newer is not None and newer < beyond - 1 else None,
        older=older if older is not None and older > first else None,
        searched=None if whole or more else (lower + 1, upper - 1),
    )


def containing(
    using: str,
    topic: Topic,
    text: str,
    *,
    filters: dict[str, Any],
    start: datetime | None = None,
    end: datetime | None = None,
    before: int | None = None,
) -> LogPage:
    """The newest events of a time that contain a text, or those before an id."""
    first, _beyond = _ids_of(using, topic, start, end)
    found = search(topic.name, text, **filters, start=start, end=end, before=before, limit=SIZE, last=READ, using=using)
    with sql.by_index(using):
        rows = list(events(using, topic).filter(id__in=found.ids).order_by("-id"))
    for event in rows:
        event["glance"] = at_a_glance(event["layout"])
    older = found.oldest if found.oldest > first else None
    searched = (found.oldest, found.newest) if found.oldest <= found.newest else None
    return LogPage(events=rows, newer=None, older=older, searched=searched)


def events(using: str, topic: Topic) -> QuerySet[Event, dict[str, Any]]:
    """The events of a topic as a list shows them, without their payloads."""
    columns = ("id", "partition", "number", "type", "key", "published_at", "logged_at")
    sizes = {"value_bytes": Stored(F("value")), "body_bytes": Length("body")}
    rows: QuerySet[Event, dict[str, Any]] = (
        Event.objects.using(using).filter(topic_id=topic.pk).annotate(**sizes).values(*columns, *sizes, layout=glance())
    )
    return rows


def partitions(using: str, topic: Topic) -> list[tuple[int, int]]:
    """The last number of each partition: how many events it has had."""
    known = ends_of(using, [topic])
    return [(partition, known.get((topic.pk, partition), 0)) for partition in range(topic.most_partitions)]


def ends(using: str, topic: Topic) -> tuple[int, int]:
    """The first id in the log, and the next one to be given."""
    return log_positions.find(using, topic, "beginning"), log_positions.find(using, topic, "end")


def id_at(using: str, topic: Topic, moment: datetime) -> int:
    """The first event that was logged at a time or after it."""
    return log_positions.find(using, topic, aware(moment))


def aware(moment: datetime) -> datetime:
    """A time of a form, which a site without time zones reads without one."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def _ids_of(using: str, topic: Topic, start: datetime | None, end: datetime | None) -> tuple[int, int]:
    """The first id of a time, and the first one behind it."""
    first, beyond = ends(using, topic)
    return (
        first if start is None else id_at(using, topic, start),
        beyond if end is None else id_at(using, topic, end),
    )


def neighbours(using: str, topic: Topic, event: Event) -> tuple[int | None, int | None]:
    """The events of the same key before and after this one, as far as an index or a moment's reading tells."""
    if event.key is None:
        return None, None
    if topic.timeline:
        statement = SQL.neighbours.on(log=log_table(topic.pk))
        with sql.by_index(using):
            [[earlier, later]] = sql.fetch(using, statement, key=event.key, event_id=event.id)
        return earlier, later
    near = Event.objects.using(using).of(topic.name).filter(key=event.key).values_list("id", flat=True)
    with sql.by_index(using):
        return (
            near.filter(id__lt=event.id, id__gt=event.id - SEARCHED).order_by("-id").first(),
            near.filter(id__gt=event.id, id__lt=event.id + SEARCHED).order_by("id").first(),
        )


def _ids(using: str, topic: Topic, filters: dict[str, Any], event_id: int, *, up: bool) -> list[int]:
    """The events of a key or of a partition next to an id, one more than a page has."""
    [(column, value)] = filters.items()
    statement = (SQL.ids_after if up else SQL.ids_before).on(log=log_table(topic.pk), of=column)
    with sql.by_index(using):
        return [found for (found,) in sql.fetch(using, statement, value=value, id=event_id, limit=SIZE + 1)]


def _by_index(topic: Topic, filters: dict[str, Any]) -> bool:
    """Whether an index leads to the events, however long the log is."""
    named = set(filters)
    return not named or (named == {"key"} and topic.timeline) or (named == {"partition"} and not topic.is_undivided)
