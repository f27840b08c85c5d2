"""What the charts are drawn from, and the page that shows them."""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.functions import ClockTimestamp
from django_events.models.topics import Topic


class Sample(models.Model):
    """How far everything was in one minute. The transfer takes one a minute, and keeps them for a while.

    What charts of everything need stands in columns of its own, so that reading it doesn't read the rest.
    """

    at = models.DateTimeField(_("at"), primary_key=True, help_text=_("The full minute."))
    taken_at = models.DateTimeField(_("taken at"), db_default=ClockTimestamp(), editable=False)
    published = models.BigIntegerField(_("published"), help_text=_("The last ids of all topics, added up."))
    handled = models.BigIntegerField(_("handled"), help_text=_("Of all consumers, what they ignored included."))
    lag = models.BigIntegerField(_("lag"), help_text=_("Of all consumers, added up."))
    buffered = models.BigIntegerField(_("buffered"), help_text=_("Events that waited for the transfer."))
    topics: "models.JSONField[Any, Any]" = models.JSONField(
        _("topics"),
        default=dict,
        help_text=_("By the topic's id: its last id, and how many of its events were buffered."),
    )
    consumers: "models.JSONField[Any, Any]" = models.JSONField(
        _("consumers"),
        default=dict,
        help_text=_(
            "By the consumer's id: its lag, what it handled, failed and gave up on, and how old its oldest event was."
        ),
    )

    class Meta:
        verbose_name = _("sample")
        verbose_name_plural = _("samples")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.at)


class Overview(Topic):
    """Everything at a glance. It has no table: it is an entry in the admin, with a permission of its own."""

    class Meta:
        proxy = True
        verbose_name = _("overview")
        verbose_name_plural = _("overview")
        default_permissions = ("view",)
