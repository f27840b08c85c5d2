"""Webhook endpoints: where a queue consumer's events are sent, what signs them, and what came of it."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.consumers import Consumer
from django_events.models.functions import ClockTimestamp, readable


class WebhookEndpoint(models.Model):
    """Where the events of one queue consumer are sent. The consumer has its name, its filter, its order and its pauses.

    While the consumer is paused, nothing is sent. `disabled_because` says why it was paused, if no person did it.
    """

    id = models.AutoField(primary_key=True)
    consumer = models.OneToOneField(Consumer, models.CASCADE, related_name="webhook", verbose_name=_("consumer"))
    url = models.TextField(_("URL"))
    form = models.CharField(
        _("form"),
        max_length=20,
        default="json",
        choices=[
            ("json", _("JSON")),
            ("cloudevent", _("CloudEvent")),
            ("cloudevent_binary", _("CloudEvent with its attributes in headers")),
        ],
    )
    concurrency = models.IntegerField(
        _("at the same time"), default=10, help_text=_("How many requests a process has under way at most.")
    )
    batch_size = models.IntegerField(
        _("events in a request"), default=1, help_text=_("Above 1, requests have lists of events.")
    )
    failing_since = models.DateTimeField(
        _("fails since"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("Since then nothing could be delivered."),
    )
    disabled_because = models.TextField(_("disabled because"), blank=True, default="", db_default="", editable=False)
    created_at = models.DateTimeField(_("created at"), db_default=ClockTimestamp(), editable=False)

    class Meta:
        verbose_name = _("webhook endpoint")
        verbose_name_plural = _("webhook endpoints")
        default_permissions = ("add", "change", "view")
        constraints = [
            models.CheckConstraint(condition=readable("failing_since"), name="django_events_webhookendpoint_times"),
            models.CheckConstraint(
                condition=models.Q(concurrency__gte=1, concurrency__lte=1_000),
                name="django_events_webhookendpoint_concurrency",
            ),
            models.CheckConstraint(
                condition=models.Q(batch_size__gte=1, batch_size__lte=100),
                name="django_events_webhookendpoint_batch",
            ),
        ]

    def __str__(self) -> str:
        known = "consumer" in self._state.fields_cache  # no query for a name
        return self.consumer.name if known else f"{self.consumer_id}"


class WebhookSecret(models.Model):
    """A secret that signs what is sent to an endpoint. An older one signs as well until `signs_until`.

    It is a table of its own, so that a role that reads endpoints needs no right to read secrets.
    """

    endpoint = models.ForeignKey(
        WebhookEndpoint, models.CASCADE, related_name="secrets", verbose_name=_("webhook endpoint")
    )
    secret = models.CharField(_("secret"), max_length=100, editable=False)
    signs_until = models.DateTimeField(_("signs until"), null=True, blank=True, editable=False)
    created_at = models.DateTimeField(_("created at"), db_default=ClockTimestamp(), editable=False)

    class Meta:
        verbose_name = _("webhook secret")
        verbose_name_plural = _("webhook secrets")
        default_permissions = ()
        constraints = [
            models.CheckConstraint(condition=readable("signs_until"), name="django_events_webhooksecret_times"),
            models.UniqueConstraint(
                fields=["endpoint"],
                condition=models.Q(signs_until__isnull=True),
                name="django_events_webhooksecret_newest",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.endpoint_id}/{self.pk}"


class WebhookAttempt(models.Model):
    """An attempt to deliver an event to an endpoint, and what came back. Maintenance deletes old ones."""

    endpoint = models.ForeignKey(
        WebhookEndpoint,
        models.DO_NOTHING,  # there may be millions, and a removal holds up the transfer; maintenance deletes old ones
        related_name="attempts",
        db_constraint=False,
        db_index=False,
        verbose_name=_("webhook endpoint"),
    )
    event_id = models.BigIntegerField(_("event"))
    attempt = models.IntegerField(_("attempt"))
    at = models.DateTimeField(_("at"), db_default=ClockTimestamp(), editable=False)
    seconds = models.FloatField(_("seconds"))
    status = models.IntegerField(_("status"), null=True, blank=True)
    excerpt = models.TextField(_("answer"), blank=True, default="", help_text=_("The begin of its body."))
    error = models.TextField(_("error"), blank=True, default="")

    class Meta:
        verbose_name = _("webhook attempt")
        verbose_name_plural = _("webhook attempts")
        default_permissions = ()
        indexes = [
            models.Index(fields=["endpoint", "id"], name="django_events_webhookattempt_i"),
            models.Index(fields=["endpoint", "event_id"], name="django_events_webhookattempt_e"),
            models.Index(fields=["at"], name="django_events_webhookattempt_a"),
        ]

    def __str__(self) -> str:
        return f"{self.endpoint_id}/{self.event_id}: {self.status or self.error}"
