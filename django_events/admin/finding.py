"""What one search box finds: an event by its address, a key, a consumer, a topic, a ticket.

for hit in find(using, "orders/1042", sees): ...
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from django.db.models import Model
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from django_events import sql
from django_events.models import Consumer, DeadLetter, Event, ScheduledEvent, Topic

ADDRESS = re.compile(r"(.+)/([0-9]{1,18})")
NAMED = 20  # consumers, and topics, whose names contain what is asked
TIMELINES = 50  # topics in which a key is looked for: each is one look by index


class Hit(NamedTuple):
    """What was found: what it is, its name, and the row, page and choices that lead there."""

    what: "str | Promise"
    name: str
    row: Model
    page: str
    event_id: int | None = None
    key: str | None = None


def find(using: str, asked: str, sees: Mapping[str, bool]) -> list[Hit]:
    """Everything that a text may mean, exact meanings first, of what this user may see."""
    if not asked or "\0" in asked or len(asked) > 512:
        return []
    return [
        *(_events(using, asked) if sees["event"] else ()),
        *(_consumers(using, asked) if sees["consumer"] else ()),
        *(_topics(using, asked) if sees["topic"] else ()),
        *(_keys(using, asked) if sees["event"] else ()),
        *(_dead_letters(using, asked) if sees["deadletter"] else ()),
        *(_tickets(using, asked) if sees["scheduledevent"] else ()),
    ]


def _events(using: str, asked: str) -> Iterator[Hit]:
    if (found := ADDRESS.fullmatch(asked)) and (row := Topic.objects.using(using).filter(name=found[1]).first()):
        yield Hit(gettext_lazy("event"), asked, row, "event", event_id=int(found[2]))


def _consumers(using: str, asked: str) -> Iterator[Hit]:
    rows = Consumer.objects.using(using).filter(name__icontains=asked).select_related("topic")
    for row in _exact_first(asked, rows.order_by("name", "topic__name")[:NAMED]):
        yield Hit(gettext_lazy("consumer"), str(row), row, "change")


def _topics(using: str, asked: str) -> Iterator[Hit]:
    rows = Topic.objects.using(using).filter(name__icontains=asked)
    for row in _exact_first(asked, rows.order_by("name")[:NAMED]):
        yield Hit(gettext_lazy("topic"), row.name, row, "change")


def _keys(using: str, asked: str) -> Iterator[Hit]:
    """Topics whose timeline has the key. Without one, a log would have to be read for it."""
    for row in Topic.objects.using(using).filter(timeline=True).order_by("name")[:TIMELINES]:
        with sql.by_index(using):
            there = Event.objects.using(using).filter(topic_id=row.pk, key=asked).order_by("-id")[:1].values_list("id")
            if there:
                yield Hit(gettext_lazy("key"), f"{row.name}, {asked}", row, "log", key=asked)


def _dead_letters(using: str, asked: str) -> Iterator[Hit]:
    rows = DeadLetter.objects.using(using).select_related("consumer__topic")
    found = ADDRESS.fullmatch(asked)
    if found:
        rows = rows.filter(consumer__topic__name=found[1], event_id=int(found[2]))
    else:
        rows = rows.filter(consumer__in=Consumer.objects.using(using).values("pk"), key=asked)
    with sql.by_index(using):
        for row in rows.order_by("consumer_id", "event_id")[:NAMED]:
            yield Hit(gettext_lazy("dead letter"), f"{row.consumer.name}, {row}", row, "change")


def _tickets(using: str, asked: str) -> Iterator[Hit]:
    if asked.isascii() and asked.isdigit() and len(asked) < 19:
        for row in ScheduledEvent.objects.using(using).filter(pk=int(asked)).select_related("topic"):
            yield Hit(gettext_lazy("scheduled event"), f"{row.topic.name}, {row.pk}", row, "change")


N = TypeVar("N", Consumer, Topic)


def _exact_first(asked: str, rows: Iterable[N]) -> list[N]:
    return sorted(rows, key=lambda row: row.name != asked)
