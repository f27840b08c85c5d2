"""Queue consumers: a row for each event that one of them has not finished, and what its workers have in hand."""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.consumers import Consumer


class Delivery(models.Model):
    """An event on its way through one queue consumer. It is deleted when the event is settled.

    Without a token it waits: for anybody, or until `visible_at`. With one, a worker has it in hand.
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
        _("key"), max_length=512, null=True, blank=True, help_text=_("Only where the consumer handles keys in order.")
    )
    received_at = models.DateTimeField(_("received at"))
    visible_at = models.DateTimeField(
        _("visible at"), null=True, blank=True, help_text=_("Nobody gets it before, after a failed attempt.")
    )
    token = models.BigIntegerField(_("lease"), null=True, blank=True, editable=False)
    attempts = models.IntegerField(_("attempts"), db_default=0)
    delivered = models.IntegerField(_("times delivered"), db_default=0)
    first_at = models.DateTimeField(_("first delivered at"), null=True, blank=True)
    last_at = models.DateTimeField(_("last delivered at"), null=True, blank=True)
    error = models.TextField(_("last error"), blank=True, db_default="")

    class Meta:
        verbose_name = _("delivery")
        verbose_name_plural = _("deliveries")
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

    def __str__(self) -> str:
        return f"{self.consumer_id}/{self.token}"
