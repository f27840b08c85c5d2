"""The bars above a topic's log: how many events came when. Each is a link that narrows the list below.

Without anything to count them they are what ids tell: ids are dense, so the first ids of two times say how many events
came between. By type they are known where an app declares a roll-up of the topic, at "logged_at", that groups by type.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.utils import timezone
from django.utils.translation import gettext as _

from django_events import declarations, sql
from django_events.admin.charts import HEIGHT, WIDTH
from django_events.admin.rollups import declared_as_made, step_of
from django_events.admin.topics import log
from django_events.declarations import DeclaredRollUp
from django_events.models import Topic
from django_events.outcomes import UpTo
from django_events.statements import log_table

SQL = sql.beside(__name__)

KINDS = 6  # that have a colour of their own
SPANS = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
USUAL = SPANS["24h"]
LONGEST = timedelta(days=3_650)


class BarPiece(NamedTuple):
    """What of a bar is of one type, from below; `query` leads to these events."""

    label: str
    events: int
    rank: int
    y: float
    height: float
    query: str


class Bar(NamedTuple):
    """The events of a while."""

    start: datetime
    end: datetime
    events: int
    x: float
    width: float
    parts: list[BarPiece]


class CountedType(NamedTuple):
    """A type, and how many events of it there are in the span; the last one is all others together."""

    label: str
    events: int
    rank: int
    query: str


class Volume(NamedTuple):
    """The bars without their markup, which is in volume.html."""

    start: datetime
    end: datetime
    bars: list[Bar]
    top: int
    total: int
    kinds: list[CountedType]
    spans: list[tuple[str, str]]
    counted_by: str
    up_to: UpTo | None


class _Count(NamedTuple):
    start: datetime
    kind: str
    events: int


def volume(
    using: str, topic: Topic, *, kept: dict[str, Any], start: datetime | None = None, end: datetime | None = None
) -> Volume | None:
    """The bars of a time, by default the last day; None where nothing tells how many events there were.

    `kept` is what the page is asked for: links keep it, and where it names a type, only that is counted.
    """
    start, end = _span(using, start, end)
    counted, chosen = by_type(using, topic), kept.get("type", "")
    up_to = None
    if counted is not None:
        up_to = next(iter(counted.up_to(using=using)), None)  # first: so much is counted then at least
        seconds, counts = _counted(using, counted, start, end, chosen)
    elif chosen or topic.compact:
        return None
    else:
        seconds, counts = _by_ids(using, topic, start, end)
    ranks = _ranks(counts)
    bars = _bars(counts, ranks, seconds, start, end, kept)
    kinds = _kinds(counts, ranks, kept) if counted is not None else []
    now = log.aware(sql.now(using))
    return Volume(
        start=start,
        end=end,
        bars=bars,
        top=max((bar.events for bar in bars), default=0),
        total=sum(bar.events for bar in bars),
        kinds=kinds,
        spans=[(name, _query(kept, start=now - span, end=None)) for name, span in SPANS.items()],
        counted_by=counted.name if counted is not None else "",
        up_to=up_to,
    )


def by_type(using: str, topic: Topic) -> DeclaredRollUp | None:
    """A roll-up that counts all events of this topic alone, by type and by when they were logged."""
    for declared in declarations.consumers:
        if (
            isinstance(declared, DeclaredRollUp)
            and declared.topics == (topic.name,)
            and not declared.filtered
            and declared.at == "logged_at"
            and "type" in dict(declared.by).values()
            and declared_as_made(using, declared.name) is not None
        ):
            return declared
    return None


def _span(using: str, start: datetime | None, end: datetime | None) -> tuple[datetime, datetime]:
    end = log.aware(end) if end is not None else log.aware(sql.now(using))
    start = log.aware(start) if start is not None else end - USUAL
    start = max(start, end - LONGEST)
    return start, max(end, start + timedelta(seconds=1))


def _edges(start: datetime, end: datetime, seconds: int) -> list[datetime]:
    """The beginnings of buckets, of which the first holds `start`, and where the last one ends."""
    first = int(start.timestamp()) // seconds * seconds
    count = -(-int(end.timestamp() - first) // seconds) or 1
    return [datetime.fromtimestamp(first + n * seconds, UTC) for n in range(count + 1)]


def _by_ids(using: str, topic: Topic, start: datetime, end: datetime) -> tuple[int, list[_Count]]:
    seconds = step_of(end - start)
    edges = _edges(start, end, seconds)
    first, beyond = log.ends(using, topic)
    statement = SQL.first_ids.on(log=log_table(topic.pk), topic_id=topic.pk)
    with sql.by_index(using):
        rows = sql.fetch(using, statement, moments=[max(edge, start) for edge in edges], first=first, beyond=beyond)
    ids = [found for (found,) in rows]
    return seconds, [_Count(edge, "", ids[n + 1] - ids[n]) for n, edge in enumerate(edges[:-1]) if ids[n + 1] > ids[n]]


def _counted(
    using: str, declared: DeclaredRollUp, start: datetime, end: datetime, chosen: str
) -> tuple[int, list[_Count]]:
    group = next(name for name, source in declared.by if source == "type")
    seconds = step_of(end - start, declared)
    rows = declared.between(start, end, using=using).every(timedelta(seconds=seconds)).by(group)
    if chosen:
        rows = rows.filter(**{group: chosen})
    return seconds, [_Count(row["bucket"].astimezone(UTC), row[group], row["count"]) for row in rows]


def _ranks(counts: Sequence[_Count]) -> dict[str, int]:
    """The most frequent types, each with the number of its colour."""
    totals: Counter[str] = Counter()
    for one in counts:
        totals[one.kind] += one.events
    return {kind: rank for rank, (kind, _count) in enumerate(totals.most_common(KINDS))}


def _bars(
    counts: Sequence[_Count],
    ranks: dict[str, int],
    seconds: int,
    start: datetime,
    end: datetime,
    kept: dict[str, Any],
) -> list[Bar]:
    buckets: dict[datetime, Counter[int]] = {}
    for one in counts:
        buckets.setdefault(one.start, Counter())[ranks.get(one.kind, KINDS)] += one.events
    kinds = {rank: kind for kind, rank in ranks.items()}
    top = max((sum(bucket.values()) for bucket in buckets.values()), default=0) or 1
    whole, bars = (end - start).total_seconds(), []
    for at, bucket in sorted(buckets.items()):
        begins, ends = max(at, start), min(at + timedelta(seconds=seconds), end)
        parts, y = [], float(HEIGHT)
        for rank, count in sorted(bucket.items()):
            height = HEIGHT * count / top
            y -= height
            kind = kinds.get(rank)
            query = _query(kept, start=begins, end=ends, **({"type": kind} if kind else {}))
            parts.append(BarPiece(_label(kind), count, rank, round(y, 2), round(height, 2), query))
        x, width = ((late - early).total_seconds() / whole * WIDTH for early, late in ((start, begins), (begins, ends)))
        bars.append(Bar(begins, ends, sum(bucket.values()), round(x, 2), round(width, 2), parts))
    return bars


def _kinds(counts: Sequence[_Count], ranks: dict[str, int], kept: dict[str, Any]) -> list[CountedType]:
    totals: Counter[str | None] = Counter()
    for one in counts:
        totals[one.kind if one.kind in ranks else None] += one.events
    named = [
        CountedType(_label(kind), totals[kind], rank, _query(kept, type=kind) if kind else "")
        for kind, rank in ranks.items()
    ]
    return [*named, *([CountedType(_("others"), totals[None], KINDS, "")] if totals[None] else [])]


def _label(kind: str | None) -> str:
    return _("others") if kind is None else kind or _("no type")


def _query(kept: dict[str, Any], **changed: Any) -> str:
    """The page with other words; times as its form takes them, without what is None."""
    words = {**kept, **changed}
    said = {name: _local(value) if isinstance(value, datetime) else value for name, value in words.items()}
    return urlencode({name: value for name, value in said.items() if value is not None})


def _local(moment: datetime) -> str:
    return timezone.localtime(moment).strftime("%Y-%m-%dT%H:%M:%S")
