"""The log: events in the order of their commits, and the questions one asks of it."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from heapq import merge
from importlib import import_module
from operator import attrgetter
from typing import overload

import pgtrigger.apps  # lets Meta take triggers, wherever it stands in INSTALLED_APPS
from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from django_events import declarations, sql
from django_events.declarations.limits import refuse_no_id
from django_events.event_columns import EVENT
from django_events.exceptions import EventExpired, Invalid
from django_events.models.databases import databases as holding_topics
from django_events.models.functions import TopicId
from django_events.models.times import first_since, refuse_naive
from django_events.models.topic_queries import TopicQuerySet
from django_events.models.topics import Topic, TopicHead
from django_events.outcomes import Caused, Fate

SQL = sql.beside(__name__)

COLUMNS = {"pk", "topic", "topic_id", *EVENT}  # by which Django's own latest() orders
PAGE = 500  # events that are read at once from each of several databases


class EventQuerySet(TopicQuerySet["Event"]):
    """What is in the log of a topic. The topic is a declaration or its name."""

    def of(self, topic: declarations.DeclaredTopic | str) -> "EventQuerySet":
        """The events of one topic, in no order."""
        return self.filter(topic_id=TopicId(topic))

    def at(self, topic: declarations.DeclaredTopic | str, id: int) -> "Event":
        """The event at one address, like `orders/1042`.

        Event.DoesNotExist if there is none; it is an EventExpired too if there was one, which retention or compaction
        removed.
        """
        refuse_no_id("id", id)
        try:
            return self.of(topic).get(id=id)
        except self.model.DoesNotExist:
            raise absent(self.db, topic, id) from None

    def since(self, topic: declarations.DeclaredTopic | str, id: int = 0) -> "EventQuerySet":
        """What comes after an id, oldest first. Slice it: a log can be long."""
        refuse_no_id("id", id, instead="What was logged since a time is Event.objects.between(topic, start).")
        return self.of(topic).filter(id__gt=id).order_by("id")

    def between(
        self, topic: declarations.DeclaredTopic | str, start: datetime | None = None, end: datetime | None = None
    ) -> "EventQuerySet":
        """What was logged at `start` or later and before `end`, oldest first. Their ids are found now, by halving."""
        events = self.of(topic).order_by("id")
        first, last = (events.order_by(order).values_list("topic_id", "id").first() for order in ("id", "-id"))
        for moment in (start, end):
            if moment is not None:
                refuse_naive(moment)
        if start is not None:
            events = events.filter(logged_at__gte=start)
        if end is not None:
            events = events.filter(logged_at__lt=end)
        if first is None or last is None:
            return events
        topic_id, oldest = first
        ids = {"first": oldest, "end": last[1] + 1}
        if start is not None:
            events = events.filter(id__gte=first_since(self.db, topic_id, start, **ids))
        if end is not None and (before := first_since(self.db, topic_id, end, **ids)) <= last[1]:
            events = events.filter(id__lt=before)  # else events that are to come may belong to it
        return events

    def timeline(
        self, topic: declarations.DeclaredTopic | str, key: str | None = None, *, key_prefix: str | None = None
    ) -> "EventQuerySet":
        """The events of one key, or of all that begin so, oldest first; fast where the topic is declared with
        timeline=True."""
        if (key is None) == (key_prefix is None):
            raise Invalid("A timeline is that of a key or of a key_prefix: name one of them.")
        if key_prefix == "":
            raise Invalid("key_prefix is empty: all keys begin so. For the whole topic there is since().")
        chosen = {"key": key} if key_prefix is None else {"key__startswith": key_prefix}
        return self.of(topic).filter(**chosen).order_by("id")

    @overload  # type: ignore[override]  # Django's takes names of columns, and so does this
    def latest(self, topic: declarations.DeclaredTopic | str, *fields: str) -> "EventQuerySet": ...

    @overload
    def latest(self, topic: declarations.DeclaredTopic | str, *, key: str) -> "Event": ...

    def latest(
        self, topic: declarations.DeclaredTopic | str, *fields: str, key: str | None = None
    ) -> "EventQuerySet | Event":
        """The state that a topic tells of: the newest event of each key, or of this one, unless that is a tombstone.

        In no order, and by an index where the topic is declared with compact=True or timeline=True. Filters on it
        choose among the newest events. For a key without one, or with a tombstone, Event.DoesNotExist. With names of
        columns it is Django's.
        """
        if isinstance(topic, str) and topic.lstrip("-") in COLUMNS:
            return super().latest(topic, *fields)
        lives = Q(body__isnull=False) | (Q(value__isnull=False) & ~Q(value=None))
        if key is None:
            newer = Event.objects.of(topic).filter(key=OuterRef("key"), id__gt=OuterRef("id"))
            return self.of(topic).filter(~Exists(newer), lives, key__isnull=False)
        newest = self.of(topic).filter(key=key).order_by("-id").first()
        if newest is None or newest.is_tombstone:
            raise self.model.DoesNotExist(f"Topic {topic} has no event of this key, or the newest one deletes it.")
        return newest

    def across(
        self,
        topic: declarations.DeclaredTopic | str,
        databases: Iterable[str] | None = None,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        newest_first: bool = False,
    ) -> "Iterator[Event]":
        """The events of a topic in several databases, by the time when they were logged; each says its `database`.

        By default in all that hold topics. The events of one database come in the order of its ids. They are read in
        pages while the iteration goes on; a database that can't be reached is an error, and never left out.
        """
        pages = [
            _paged(self.using(using).between(topic, start, end), newest_first=newest_first)
            for using in dict.fromkeys(holding_topics() if databases is None else databases)
        ]
        return merge(*pages, key=attrgetter("logged_at"), reverse=newest_first)

    def peek(self, topic: declarations.DeclaredTopic | str, *, limit: int = 10) -> "EventQuerySet":
        """The newest events, newest first. Looking moves no consumer."""
        return self.of(topic).order_by("-id")[:limit]


def _paged(events: EventQuerySet, *, newest_first: bool) -> "Iterator[Event]":
    """All of them by id, some at a time: no cursor stays open meanwhile, so a pooler may be in between."""
    ordered, beyond = events.order_by("-id" if newest_first else "id"), "id__lt" if newest_first else "id__gt"
    page = list(ordered[:PAGE])
    while page:
        yield from page
        page = list(ordered.filter(**{beyond: page[-1].id})[:PAGE]) if len(page) == PAGE else []


class Event(models.Model):
    """An event in the log. Inserted by the transfer, changed only by an erasure, removed by dropping segments."""

    pk = models.CompositePrimaryKey("topic_id", "id")
    topic = models.ForeignKey(
        Topic,
        models.DO_NOTHING,
        related_name="+",
        db_constraint=False,
        db_index=False,
        verbose_name=_("topic"),
    )
    id = models.BigIntegerField(_("id"))
    partition = models.IntegerField(_("partition"))
    number = models.BigIntegerField(_("number"))
    type = models.CharField(_("type"), max_length=200, blank=True)
    key = models.CharField(_("key"), max_length=512, null=True, blank=True, db_collation="C")
    value = models.JSONField(_("value"), null=True, blank=True)
    body = models.BinaryField(_("body"), null=True)
    metadata = models.JSONField(_("metadata"), blank=True)
    published_at = models.DateTimeField(_("published at"))
    logged_at = models.DateTimeField(_("logged at"))

    objects = EventQuerySet.as_manager()

    def fate(self) -> list[Fate]:
        """What became of this event: a `Fate` for each consumer of its topic, by name."""
        # The room above reads it, so it is entered with the call.
        found: list[Fate] = import_module("django_events.observing.fates").fates(self._state.db, self.topic, self.id)
        return found

    @property
    def database(self) -> str:
        """The alias of the database that it was read from."""
        return self._state.db or ""

    @property
    def caused_by(self) -> str | None:
        """The address of the event that a handler published this one because of; or what the site itself put there."""
        found = self.metadata.get("caused_by") if isinstance(self.metadata, dict) else None
        return found if isinstance(found, str) else None

    def caused(self, *, most: int = 100, depth: int = 5, last: int = 100_000) -> Caused:
        """What handlers published because of this event, and because of that, among the `last` that were logged next.

        At most so many events, and so deep. It reads, and nothing else.
        """
        find = import_module("django_events.observing.causes").caused
        found: Caused = find(self._state.db, self.topic, self.id, self.logged_at, most=most, depth=depth, last=last)
        return found

    @property
    def is_tombstone(self) -> bool:
        """Whether it has no payload: where the topic is compacted, it deletes its key."""
        return self.value is None and self.body is None

    @property
    def erased(self) -> bool:
        """Whether its payload was erased; the JSON null is a value, too."""
        return self.value is None and self.body is None and "erased" in self.metadata

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        default_permissions = ("view",)
        permissions = [("republish_event", "Can publish an event again")]
        triggers = [
            pgtrigger.Trigger(
                name="insert_only",
                level=pgtrigger.Statement,
                when=pgtrigger.Before,
                operation=pgtrigger.Update | pgtrigger.Delete,
                func="RAISE EXCEPTION 'The log of django_events is insert-only: publish another event instead.';",
            ),
            pgtrigger.Trigger(
                name="deliver",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="new_events"),  # type: ignore[no-untyped-call]  # not ours
                # Most sites have none, and pay for nothing but this question.
                func="\n".join(
                    [
                        "IF EXISTS (SELECT FROM django_events_consumer WHERE live) THEN",
                        f"{SQL.deliver.text};",
                        "IF EXISTS (SELECT FROM django_events_consumer WHERE live AND indexed) THEN",
                        f"{SQL.deliver_indexed.text};",
                        "END IF;",
                        "IF EXISTS (SELECT FROM django_events_consumer WHERE live AND max_pending IS NOT NULL) THEN",
                        f"{SQL.shed.text};",
                        "END IF;",
                        "END IF;",
                        "RETURN NULL;",
                    ]
                ),
            ),
        ]

    def __str__(self) -> str:
        known = "topic" in self._state.fields_cache  # no query for a name
        return f"{self.topic}/{self.id}" if known else f"event {self.id} of topic {self.topic_id}"


class _Expired(EventExpired, Event.DoesNotExist):
    """An event that was there: a caller that expects DoesNotExist need not know of it."""


def absent(using: str, topic: declarations.DeclaredTopic | str, id: int) -> Event.DoesNotExist:
    """The error that says of an event that isn't in the log whether it was, and what removed it."""
    head = TopicHead.objects.using(using).filter(topic__name=str(topic)).first()
    if head is not None and 0 < id <= head.id_floor:
        return _Expired(f"The event {topic}/{id} has expired: the log begins behind {topic}/{head.id_floor}.")
    if head is not None and 0 < id <= head.compacted_until:
        return _Expired(
            f"The event {topic}/{id} is compacted: a newer one of its key came after it, or it was a tombstone."
        )
    return Event.DoesNotExist(f"There is no event {topic}/{id} in the log.")
