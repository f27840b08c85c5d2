"""Queue consumers: a row for each event that one of them has not finished, and what its workers have in hand."""

from typing import Any, Self, TypeVar

from django.db import models
from django.db.models import F
from django.utils.translation import gettext_lazy as _

from django_events import declarations
from django_events.models.consumers import Consumer, IsOfConsumer
from django_events.models.functions import TopicId, readable
from django_events.models.topic_queries import TopicQuerySet

M = TypeVar("M", bound=models.Model)


class OfConsumers(TopicQuerySet[M]):
    """Rows of queue consumers. A consumer and a topic are declarations or their names."""

    def of(
        self, consumer: declarations.DeclaredConsumer | str, *, topic: declarations.DeclaredTopic | str | None = None
    ) -> Self:
        """Those of one consumer, or of one of its topics, oldest event first."""
        chosen = IsOfConsumer(str(consumer), None if topic is None else str(topic))
        return self.filter(chosen).order_by("consumer__topic__name", "event_id")

    def at(self, topic: declarations.DeclaredTopic | str, event_id: int) -> Self:
        """Those of one event, of all its consumers."""
        return self.filter(consumer__topic_id=TopicId(topic), event_id=event_id).order_by("consumer__name")


class DeliveryQuerySet(OfConsumers["Delivery"]):
    """What queue consumers have not processed yet."""

    def in_hand(self) -> Self:
        """Those that a worker has now."""
        return self.filter(token__isnull=False)

    def retrying(self) -> Self:
        """Those that failed, and wait for another attempt."""
        return self.filter(token__isnull=True, attempts__gt=0)


class Delivery(models.Model):
    """An event on its way through one queue consumer. It is deleted when the event is settled.

    Without a token it waits: for any worker, or until `visible_at`. With one, a worker has it in hand.
    """

    pk = models.CompositePrimaryKey("consumer_id", "event_id")
    consumer = models.ForeignKey(
        Consumer,
        models.DO_NOTHING,
        related_name="deliveries",
        db_constraint=False,  # a check for every row of every batch; unregistering deletes them
        db_index=False,
        verbose_name=_("consumer"),
    )
    event_id = models.BigIntegerField(_("event"))
    key = models.CharField(
        _("key"),
        max_length=512,
        null=True,
        blank=True,
        db_collation="C",
        help_text=_("Only where the consumer handles keys in order."),
    )
    received_at = models.DateTimeField(_("received at"))
    visible_at = models.DateTimeField(
        _("visible at"), null=True, blank=True, help_text=_("No worker gets it before, after a failed attempt.")
    )
    token = models.BigIntegerField(_("lease"), null=True, blank=True, editable=False)
    attempts = models.IntegerField(_("attempts"), db_default=0)
    delivered = models.IntegerField(_("times delivered"), db_default=0)
    first_at = models.DateTimeField(_("first delivered at"), null=True, blank=True)
    last_at = models.DateTimeField(_("last delivered at"), null=True, blank=True)
    error = models.TextField(_("last error"), blank=True, db_default="")

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        verbose_name = _("delivery")
        verbose_name_plural = _("deliveries")
        default_permissions = ()
        constraints = [models.CheckConstraint(condition=readable("visible_at"), name="django_events_delivery_times")]
        indexes = [
            models.Index(
                fields=["consumer", "key", "event_id"],
                name="django_events_delivery_key",
                condition=models.Q(key__isnull=False),
            ),
            models.Index(
                fields=["consumer", "visible_at"],
                name="django_events_delivery_visible",
                condition=models.Q(visible_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_id}/{self.event_id}"


class DeliveryLease(models.Model):
    """Deliveries that one worker claimed together and has in hand until `leased_until`, by the database's clock."""

    token = models.BigIntegerField(_("lease"), primary_key=True)
    consumer = models.ForeignKey(
        Consumer, models.DO_NOTHING, related_name="delivery_leases", db_constraint=False, verbose_name=_("consumer")
    )
    leased_until = models.DateTimeField(_("leased until"))
    holder = models.CharField(_("holder"), max_length=200)
    event_ids: "models.JSONField[Any, Any]" = models.JSONField(_("events"))

    class Meta:
        verbose_name = _("lease of deliveries")
        verbose_name_plural = _("leases of deliveries")
        default_permissions = ()
        constraints = [
            models.CheckConstraint(condition=readable("leased_until"), name="django_events_deliverylease_times")
        ]

    def __str__(self) -> str:
        return f"{self.consumer_id}/{self.token}"


class PastDeliveryQuerySet(OfConsumers["PastDelivery"]):
    """What queue consumers have processed, as far as they keep their history."""

    def timed(self) -> Self:
        """With `took` from received to processed, and of that `waited` until a worker had it first."""
        return self.annotate(took=F("processed_at") - F("received_at"), waited=F("first_at") - F("received_at"))


class PastDelivery(models.Model):
    """A delivery that was processed, where its consumer keeps a history. What is too old is deleted."""

    HANDLED, IGNORED, DEAD = "handled", "ignored", "dead"

    pk = models.CompositePrimaryKey("consumer_id", "event_id", "processed_at")
    consumer = models.ForeignKey(
        Consumer,
        models.DO_NOTHING,
        related_name="past_deliveries",
        db_constraint=False,
        db_index=False,
        verbose_name=_("consumer"),
    )
    event_id = models.BigIntegerField(_("event"))
    received_at = models.DateTimeField(_("received at"))
    first_at = models.DateTimeField(_("first delivered at"))
    last_at = models.DateTimeField(_("last delivered at"))
    processed_at = models.DateTimeField(_("processed at"))
    attempts = models.IntegerField(_("attempts"))
    delivered = models.IntegerField(_("times delivered"))
    outcome = models.CharField(
        _("outcome"),
        max_length=9,
        choices=[(HANDLED, _("handled")), (IGNORED, _("ignored")), (DEAD, _("dead letter"))],
    )
    worker = models.CharField(_("worker"), max_length=200)

    objects = PastDeliveryQuerySet.as_manager()

    class Meta:
        verbose_name = _("past delivery")
        verbose_name_plural = _("past deliveries")
        default_permissions = ()
        indexes = [models.Index(fields=["consumer", "processed_at"], name="django_events_pastdelivery_age")]

    def __str__(self) -> str:
        return f"{self.consumer_id}/{self.event_id}"
