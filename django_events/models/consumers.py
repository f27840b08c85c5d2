"""Consumers, how far they are, what they gave up on, and what people did about it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import models
from django.db.models.sql.compiler import SQLCompiler
from django.utils.translation import gettext_lazy as _

from django_events import declarations
from django_events.exceptions import UnknownName, did_you_mean
from django_events.models.functions import ClockTimestamp, readable
from django_events.models.topics import Topic


class Consumer(models.Model):
    """A named reader of one topic; a consumer of several topics has a row for each.

    Apps declare consumers in `events.py`; `migrate` makes these rows, and they stay until unregistered.
    """

    id = models.AutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=63)
    topic = models.ForeignKey(Topic, models.CASCADE, related_name="consumers", verbose_name=_("topic"))
    partitioned = models.BooleanField(_("partitioned"), default=True)
    turns_at = models.BigIntegerField(
        _("turns at"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("From this id on it reads all partitions together, or each by itself: what it doesn't do now."),
    )
    types = models.JSONField(_("types"), null=True, blank=True)
    keys = models.JSONField(_("keys"), null=True, blank=True)
    where = models.TextField(_("where"), null=True, blank=True)
    metadata = models.TextField(
        _("metadata"), null=True, blank=True, help_text=_("A jsonpath predicate on the metadata of an event.")
    )
    vars: "models.JSONField[Any, Any]" = models.JSONField(
        _("variables"), null=True, blank=True, help_text=_("What the predicates name as $name.")
    )
    filter_digest = models.CharField(
        _("digest of the filter"),
        max_length=32,
        db_collation="C",
        db_default="",
        blank=True,
        editable=False,
        help_text=_("Of a queue: filters with the same one are tried once for all their consumers."),
    )
    indexed = models.BooleanField(
        _("indexed"),
        db_default=False,
        editable=False,
        help_text=_(
            "An event that its filter matches has one of its terms. Otherwise the filter is tried on each event."
        ),
    )
    subscribed = models.BooleanField(
        _("subscribed"), db_default=False, editable=False, help_text=_("Made by subscribe(), and declared by no app.")
    )
    expires_after = models.DurationField(
        _("expires after"), null=True, blank=True, help_text=_("A subscription that nothing serves for so long goes.")
    )
    type_expressions = models.JSONField(
        _("type expressions"), null=True, blank=True, editable=False, help_text=_("The patterns among the types.")
    )
    key_expressions = models.JSONField(
        _("key expressions"), null=True, blank=True, editable=False, help_text=_("The patterns among the keys.")
    )
    mode = models.CharField(
        _("mode"),
        max_length=6,
        default="stream",
        choices=[("stream", _("stream")), ("queue", _("queue")), ("spark", _("Spark"))],
    )
    ordered = models.BooleanField(_("ordered"), default=False)
    delay = models.DurationField(_("delay"), null=True, blank=True)
    history = models.DurationField(_("history"), null=True, blank=True)
    max_pending = models.BigIntegerField(_("at most pending"), null=True, blank=True)
    outcomes = models.CharField(
        _("outcomes"),
        max_length=63,
        null=True,
        blank=True,
        help_text=_("The topic that gets an event for each attempt of a queue that ends."),
    )
    lease = models.DurationField(_("lease"), null=True, blank=True)
    retry = models.JSONField(
        _("retry"),
        null=True,
        blank=True,
        help_text=_("How often an event is attempted, and how long to wait in between, in seconds."),
    )
    live = models.BooleanField(
        _("live"),
        default=False,
        help_text=_("Its deliveries come with the events. Otherwise its workers make them from the log."),
    )
    filled_until = models.BigIntegerField(
        _("filled until"),
        default=0,
        help_text=_("Up to this id its events were made deliveries. It counts while the consumer is not live."),
    )
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    held_until = models.DateTimeField(
        _("held until"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("Workers leave it alone until then: an operator waits for the events in hand, to rewind it."),
    )
    waits_from = models.BigIntegerField(
        _("waits from"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("From this id on it waits until the consumers of its name have come so far in other shards."),
    )
    registered_at = models.DateTimeField(_("registered at"), db_default=ClockTimestamp(), editable=False)
    changed_at = models.DateTimeField(
        _("changed at"),
        db_default=ClockTimestamp(),
        editable=False,
        help_text=_("Since when its filter and its history are what they are."),
    )
    revision = models.IntegerField(
        _("revision"),
        default=0,
        db_default=0,
        editable=False,
        help_text=_("Counts the changes of its filter and of its order. Workers that know another one look again."),
    )
    former_filters = models.JSONField(
        _("former filters"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("By which a stream judges the events before its filter was changed, each up to an id."),
    )
    failing_since = models.DateTimeField(_("fails since"), null=True, blank=True, editable=False)
    failure = models.CharField(_("failure"), max_length=5, blank=True, default="", db_default="", editable=False)
    error = models.TextField(_("error"), blank=True, default="", db_default="", editable=False)

    class Meta:
        db_table = "django_events_consumer"
        verbose_name = _("consumer")
        verbose_name_plural = _("consumers")
        default_permissions = ("view",)
        permissions = [
            ("pause_consumer", "Can pause a consumer"),
            ("resume_consumer", "Can resume a consumer"),
            ("rewind_consumer", "Can rewind a consumer"),
            ("skip_consumer", "Can let a consumer skip an event"),
            ("replay_consumer", "Can let a consumer handle events again"),
            ("retry_now_consumer", "Can let a consumer retry now"),
            ("subscribe_consumer", "Can subscribe at run time"),
            ("unsubscribe_consumer", "Can remove a subscription"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["name", "topic"], name="django_events_consumer_name"),
            models.CheckConstraint(condition=readable("paused_at", "held_until"), name="django_events_consumer_times"),
        ]
        indexes = [
            models.Index(fields=["topic"], name="django_events_consumer_live", condition=models.Q(live=True)),
            models.Index(
                fields=["topic"],
                name="django_events_consumer_bounded",
                condition=models.Q(live=True, max_pending__isnull=False),
            ),
            models.Index(
                fields=["topic"],
                name="django_events_consumer_tried",
                condition=models.Q(live=True, indexed=False),
            ),
            models.Index(
                fields=["topic", "filter_digest"],
                name="django_events_consumer_filter",
                condition=models.Q(live=True, indexed=True),
            ),
        ]

    def __str__(self) -> str:
        known = "topic" in self._state.fields_cache  # no query for a name
        return f"{self.name} of {self.topic}" if known else self.name


class FilterTerm(models.Model):
    """What a queue's filter asks of an event: an item with this value, at a path of its value or metadata, or a key.

    An event that the filter matches has at least one of the terms of the filter. So the filters to try on an event are
    found by what is in the event.
    """

    VALUE, METADATA, KEY = "value", "metadata", "key"

    consumer = models.ForeignKey(Consumer, models.CASCADE, related_name="filter_terms", verbose_name=_("consumer"))
    topic_id = models.IntegerField(_("topic"))
    source = models.CharField(
        _("source"),
        max_length=8,
        choices=[(VALUE, _("value")), (METADATA, _("metadata")), (KEY, _("key"))],
        db_collation="C",
    )
    path = models.TextField(_("path"), db_collation="C")
    value: "models.JSONField[Any, Any]" = models.JSONField(_("value"))
    filter_digest = models.CharField(_("digest of the filter"), max_length=32, db_collation="C")

    class Meta:
        verbose_name = _("term of a filter")
        verbose_name_plural = _("terms of filters")
        default_permissions = ()
        indexes = [
            models.Index(
                fields=["topic_id", "source", "path", "value", "filter_digest"], name="django_events_filterterm_item"
            )
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.path} == {self.value!r}"


class Position(models.Model):
    """How far one consumer is in one partition, and who handles it now. Partition -1 is all of them together.

    Every id at or below `position` was handled, filtered out or dead-lettered. `number` is the event's
    place in the partition up to there, so that the lag is a subtraction.
    """

    ALL = -1

    consumer = models.ForeignKey(
        Consumer, models.CASCADE, related_name="positions", db_index=False, verbose_name=_("consumer")
    )
    partition = models.IntegerField(_("partition"))
    position = models.BigIntegerField(_("position"), default=0)
    number = models.BigIntegerField(_("number"), default=0)
    layout = models.IntegerField(
        _("layout"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("By which of the topic's layouts it is read. Empty while that one has no such partition."),
    )
    barrier = models.BigIntegerField(
        _("barrier"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("It is not read from this id on before the consumer's other partitions have come so far."),
    )
    handled = models.BigIntegerField(_("handled"), default=0)
    failed = models.BigIntegerField(_("failed attempts"), default=0)
    ignored = models.BigIntegerField(_("ignored"), default=0)
    dead_lettered = models.BigIntegerField(_("dead-lettered"), default=0)
    attempted = models.BigIntegerField(
        _("attempted event"), null=True, blank=True, help_text=_("The event that the attempts are about.")
    )
    attempts = models.IntegerField(_("attempts"), default=0)
    retry_at = models.DateTimeField(_("next attempt at"), null=True, blank=True)
    failing_since = models.DateTimeField(_("fails since"), null=True, blank=True, editable=False)
    careful_until = models.BigIntegerField(
        _("one by one until"),
        default=0,
        help_text=_("Up to this id, events are handled one by one, each attempt counted before it starts."),
    )
    stopped_at = models.DateTimeField(_("stopped at"), null=True, blank=True)
    error = models.TextField(_("last error"), blank=True, default="")
    token = models.BigIntegerField(_("lease"), null=True, blank=True, editable=False)
    leased_until = models.DateTimeField(_("leased until"), null=True, blank=True, editable=False)
    holder = models.CharField(_("holder"), max_length=200, blank=True, default="", editable=False)
    served_at = models.DateTimeField(_("served at"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("position")
        verbose_name_plural = _("positions")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["consumer", "partition"], name="django_events_position_partition"),
            models.CheckConstraint(
                condition=readable("retry_at", "failing_since", "stopped_at", "leased_until", "served_at"),
                name="django_events_position_times",
            ),
            models.CheckConstraint(
                condition=models.Q(token__isnull=True) | models.Q(leased_until__isnull=False),
                name="django_events_position_lease",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_id}/{self.partition}: {self.position}"


class IsOfConsumer(models.Func):
    """Whether a row is one of a consumer, or of one of its topics: UnknownName where the query runs and there is none.

    It is looked up when the query is compiled, by a query of its own.
    """

    output_field = models.BooleanField()

    def __init__(self, consumer: str, topic: str | None) -> None:
        super().__init__(models.F("consumer"))
        self.consumer = consumer
        self.topic = topic

    def as_sql(self, compiler: SQLCompiler, connection: Any, **extra: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        column, values = compiler.compile(self.source_expressions[0])
        return f"{column} = ANY(%s)", [*values, self.ids(connection.alias)]

    def ids(self, using: str) -> list[int]:
        """The rows that stand for it in a database, one for each topic."""
        rows = Consumer.objects.using(using).filter(name=self.consumer)
        of_name = dict(rows.values_list("topic__name", "pk"))
        if not of_name:
            raise not_registered(using, self.consumer)
        if self.topic is None:
            return list(of_name.values())
        if self.topic not in of_name:
            raise not_read(self.consumer, self.topic, of_name)
        return [of_name[self.topic]]


def not_registered(using: str, consumer: str) -> UnknownName:
    """The error that a database has no consumer of a name."""
    known = set(Consumer.objects.using(using).values_list("name", flat=True))
    return UnknownName(
        f"No consumer {consumer!r} is registered in the database {using!r}. {did_you_mean(consumer, known)}"
    )


def not_read(consumer: str, topic: str, topics: Iterable[str]) -> UnknownName:
    """The error that a consumer reads these topics, and not the one that is asked for."""
    return UnknownName(f"Consumer {consumer!r} doesn't read topic {topic!r}. {did_you_mean(topic, topics)}")


class DeadLetterQuerySet(models.QuerySet["DeadLetter"]):
    """What consumers gave up on. A consumer is a declaration or its name."""

    def of(
        self, consumer: declarations.DeclaredConsumer | str, *, topic: declarations.DeclaredTopic | str | None = None
    ) -> "DeadLetterQuerySet":
        """The dead letters of one consumer, or of one of its topics, oldest event first."""
        chosen = IsOfConsumer(str(consumer), None if topic is None else str(topic))
        return self.filter(chosen).order_by("consumer__topic__name", "event_id")

    def matching(
        self,
        *,
        error: str | None = None,
        type: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> "DeadLetterQuerySet":
        """Those whose error or fingerprint contains a text, of a type, of a key, dead since then, or before then."""
        chosen = {"type": type, "key": key, "dead_at__gte": since, "dead_at__lt": until}
        rows = self.filter(**{name: value for name, value in chosen.items() if value is not None})
        if error is None:
            return rows
        return rows.filter(models.Q(error__contains=error) | models.Q(fingerprint__contains=error))

    def by_error(self) -> "models.QuerySet[DeadLetter, Any]":
        """The fingerprints of each consumer, with `letters` (how many), `oldest` and `newest`; most letters first."""
        rows = self.order_by().values("consumer_id", "consumer__name", "consumer__topic__name", "fingerprint")
        counted = rows.annotate(letters=models.Count("pk"), oldest=models.Min("dead_at"), newest=models.Max("dead_at"))
        return counted.order_by("-letters", "consumer_id", "fingerprint")

    def waiting(self) -> "DeadLetterQuerySet":
        """Those that are to be handled again, and were not yet."""
        return self.filter(redrive_at__isnull=False)


class DeadLetter(models.Model):
    """An event that a consumer gave up on: a full copy, and why. It stays until redriven or discarded."""

    consumer = models.ForeignKey(
        Consumer, models.CASCADE, related_name="dead_letters", db_index=False, verbose_name=_("consumer")
    )
    event_id = models.BigIntegerField(_("event"))
    partition = models.IntegerField(_("partition"))
    number = models.BigIntegerField(_("number"))
    type = models.CharField(_("type"), max_length=200, blank=True)
    key = models.CharField(_("key"), max_length=512, null=True, blank=True, db_collation="C")
    value = models.JSONField(_("value"), null=True, blank=True)
    body = models.BinaryField(_("body"), null=True)
    metadata = models.JSONField(_("metadata"), blank=True)
    published_at = models.DateTimeField(_("published at"))
    logged_at = models.DateTimeField(_("logged at"))
    attempts = models.IntegerField(_("attempts"))
    error = models.TextField(_("error"))
    traceback = models.TextField(_("traceback"), blank=True)
    fingerprint = models.TextField(_("fingerprint"), db_default="", blank=True)
    dead_at = models.DateTimeField(_("dead since"), db_default=ClockTimestamp(), editable=False)
    redrive_at = models.DateTimeField(
        _("redrive at"), null=True, blank=True, help_text=_("The consumer handles it again at this time.")
    )

    objects = DeadLetterQuerySet.as_manager()

    @property
    def erased(self) -> bool:
        """Whether its payload was erased; the JSON null is a value, too."""
        return self.value is None and self.body is None and "erased" in self.metadata

    class Meta:
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ("view",)
        permissions = [
            ("redrive_deadletter", "Can redrive dead letters"),
            ("discard_deadletter", "Can discard dead letters"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["consumer", "event_id"], name="django_events_deadletter_event"),
            models.CheckConstraint(condition=readable("redrive_at"), name="django_events_deadletter_times"),
        ]
        indexes = [
            models.Index(fields=["consumer", "key", "event_id"], name="django_events_deadletter_key"),
            models.Index(fields=["dead_at", "id"], name="django_events_deadletter_since"),
            models.Index(
                fields=["consumer", "event_id"],
                name="django_events_deadletter_due",
                condition=models.Q(redrive_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        known = "consumer" in self._state.fields_cache and "topic" in self.consumer._state.fields_cache
        return f"{self.consumer.topic}/{self.event_id}" if known else f"{self.consumer_id}/{self.event_id}"


class Intervention(models.Model):
    """What was done by hand, like a rewind of a consumer, or by retention: kept when the consumer is gone.

    An erasure, a removal, or another number of partitions, is of a topic, and has no consumer. Another map of shards is
    of a whole database.
    """

    at = models.DateTimeField(_("at"), db_default=ClockTimestamp(), editable=False)
    by = models.CharField(_("by"), max_length=200)
    action = models.CharField(
        _("action"),
        max_length=20,
        choices=[
            ("pause", _("pause")),
            ("resume", _("resume")),
            ("retry_now", _("retry now")),
            ("skip", _("skip")),
            ("rewind", _("rewind")),
            ("rebuild", _("rebuild")),
            ("redrive", _("redrive")),
            ("replay", _("replay")),
            ("discard", _("discard")),
            ("subscribe", _("subscribe")),
            ("unregister", _("unregister")),
            ("expire", _("expire")),
            ("erase", _("erase")),
            ("erase_exported", _("erase in exports")),
            ("remove", _("remove")),
            ("repartition", _("repartition")),
            ("reshard", _("reshard")),
            ("run", _("run")),
            ("cancel", _("cancel")),
            ("publish", _("publish now")),
            ("snapshot", _("snapshot")),
            ("webhook", _("webhook")),
        ],
    )
    consumer = models.CharField(_("consumer"), max_length=63, blank=True)
    topic = models.CharField(_("topic"), max_length=63, blank=True)
    details: "models.JSONField[Any, Any]" = models.JSONField(_("details"), default=dict, blank=True)

    class Meta:
        verbose_name = _("intervention")
        verbose_name_plural = _("interventions")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["consumer", "at"], name="django_events_intervention_of"),
            models.Index(fields=["at"], name="django_events_expired", condition=models.Q(action="expire")),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.consumer or self.topic} by {self.by}"
