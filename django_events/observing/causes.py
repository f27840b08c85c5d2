"""Why an event exists, and what was published because of it, as far as handlers said so in the metadata.

caused_by("default", topic, 1042)  # "letters/7"
caused("default", topic, event)  # Caused(events=[CausedEvent("payments", 12, …, depth=1), …], …)

No index leads from an event to what it caused: one would cost the transfer a quarter of its speed. What a handler
publishes comes soon after its event, so the events that were logged next are read, in all topics, up to a bound.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.db import DatabaseError

from django_events import models, sql
from django_events.consuming import log_positions
from django_events.masking import without_masked
from django_events.models.times import first_since
from django_events.outcomes import Caused, CausedEvent
from django_events.publishing.context import CAUSED_BY
from django_events.statements import log_table

SQL = sql.beside(__name__)

TOPICS = 50  # whose logs are read: each is a few dozen looks by index before the first event is
TOPICS_AT_ONCE = 40  # in one statement about the ends of their logs


class _Window(NamedTuple):
    """Events of a topic that may have been published because of another: behind an id, up to an id."""

    topic: models.Topic
    after: int
    last: int


def caused_by(using: str, topic: models.Topic, event_id: int) -> str | None:
    """What an event says of why it exists: the address of another one, or the text that the site put there, masked."""
    statement = SQL.caused_by.on(log=log_table(topic.pk), topic_id=topic.pk, event_id=event_id)
    rows = sql.fetch(using, statement)
    cause: str | None = without_masked({CAUSED_BY: rows[0][0] if rows else None})[CAUSED_BY]
    return cause


def caused(
    using: str, topic: models.Topic, event_id: int, logged_at: datetime, *, most: int, depth: int, last: int
) -> Caused:
    """What was published because of an event, what because of that, and so on: a tree, by its branches.

    Of the `last` events that were logged next; at most so many of them, and so deep. It reads, and nothing else.
    """
    windows, left_out = _windows(using, topic, event_id, logged_at, last)
    found: dict[str, list[CausedEvent]] = {}
    root = f"{topic.name}/{event_id}"
    level, count, more, seen = [root], 0, False, {root}
    for deep in range(1, depth + 1):
        rows = [row for window in windows for row in _level(using, window, level, most + 1, deep, left_out)]
        rows = [row for row in rows if row.address not in seen]  # a site may have said that it goes in a circle
        rows.sort(key=lambda row: (row.logged_at, row.topic, row.id))
        more = more or count + len(rows) > most
        rows = rows[: most - count]
        seen.update(row.address for row in rows)
        count += len(rows)
        for row in rows:
            found.setdefault(row.cause, []).append(row)
        level = [row.address for row in rows]
        if not level:
            break
    else:
        more = more or any(_level(using, window, level, 1, 0, left_out) for window in windows)
    return Caused(
        events=list(_branches(found, root)),
        more=more,
        looked_at=sum(window.last - window.after for window in windows),
        left_out=tuple(sorted(left_out)),
    )


def _branches(found: dict[str, list[CausedEvent]], cause: str) -> Iterator[CausedEvent]:
    for event in found.get(cause, ()):
        yield event
        yield from _branches(found, event.address)


def _windows(
    using: str, topic: models.Topic, event_id: int, logged_at: datetime, last: int
) -> tuple[list[_Window], set[str]]:
    """The events to read, of each topic that has some since, and the topics that are not looked at to their ends.

    Where one has few, the others have more of the `last`.
    """
    open_windows: list[_Window] = []
    left_out: set[str] = set()
    since = sorted(_since(using, logged_at, left_out), key=lambda found: found[0].pk != topic.pk)
    for one, newest in since:
        if len(open_windows) == TOPICS:
            left_out.add(one.name)
            continue
        if one.pk == topic.pk:
            after = event_id
        else:
            first = log_positions.find(using, one, "beginning")
            after = first_since(using, one.pk, logged_at, first=first, end=newest + 1) - 1
        if newest > after:
            open_windows.append(_Window(one, after, newest))
    windows: list[_Window] = []
    open_windows.sort(key=lambda window: window.last - window.after)
    for index, window in enumerate(open_windows):
        share = last // (len(open_windows) - index)
        read = window._replace(last=min(window.last, window.after + share))
        last -= read.last - read.after
        windows.append(read)
        if read.last < window.last:
            left_out.add(window.topic.name)
    return windows, left_out


def _since(using: str, logged_at: datetime, left_out: set[str]) -> Iterator[tuple[models.Topic, int]]:
    """The topics that have events since a time, and the ids of their newest ones."""
    topics = list(models.Topic.objects.using(using).select_related("head").order_by("name"))
    for start in range(0, len(topics), TOPICS_AT_ONCE):
        some = topics[start : start + TOPICS_AT_ONCE]
        known = _newest(using, some, left_out)
        yield from ((one, known[one.pk][0]) for one in some if one.pk in known and known[one.pk][1] >= logged_at)


def _newest(using: str, topics: list[models.Topic], left_out: set[str]) -> dict[int, tuple[int, datetime]]:
    try:
        with sql.by_index(using):
            each = [SQL.newest.on(log=log_table(one.pk), topic_id=one.pk) for one in topics]
            return {topic_id: (newest, at) for topic_id, newest, at in sql.fetch(using, sql.union_all(each))}
    except DatabaseError as error:
        if not sql.kind_of(error).stays:
            raise
    if len(topics) > 1:
        return {pk: end for one in topics for pk, end in _newest(using, [one], left_out).items()}
    left_out.add(topics[0].name)
    return {}


def _level(
    using: str, window: _Window, causes: list[str], most: int, depth: int, left_out: set[str]
) -> list[CausedEvent]:
    topic = window.topic
    statement = SQL.caused.on(log=log_table(topic.pk), topic_id=topic.pk, after=window.after, last=window.last)
    try:
        with sql.by_index(using):
            rows = sql.fetch(using, statement, causes=causes, most=most)
    except DatabaseError as error:
        if not sql.kind_of(error).stays:
            raise
        left_out.add(topic.name)
        return []
    return [CausedEvent._make((topic.name, *row, depth)) for row in rows]
