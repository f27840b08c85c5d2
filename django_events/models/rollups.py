"""Roll-ups, which are tables of figures that consumers keep true."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.functions import ClockTimestamp, readable


class RollUp(models.Model):
    """What a roll-up counts, and what is in the way. `migrate` makes these rows, and for each a table of its own.

    The consumer of the same name keeps the table true. A worker that folds events into it has this row locked, so that
    the limit of groups holds where it reads several topics.
    """

    TABLE = "django_events_rollup_"

    id = models.AutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=63, unique=True)
    made_by = models.JSONField(
        _("made by"), help_text=_("What its table is made by: buckets, groups and measures, as they were declared.")
    )
    most_groups = models.IntegerField(_("at most groups"))
    retention = models.DurationField(_("retention"), null=True, blank=True)
    full_since = models.DateTimeField(
        _("full since"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("Since when further groups are counted together."),
    )
    left_out = models.BigIntegerField(
        _("left out"), default=0, editable=False, help_text=_("Events that could not be counted at all.")
    )
    left_out_at = models.DateTimeField(_("last left out at"), null=True, blank=True, editable=False)
    error = models.TextField(_("last error"), blank=True, default="", db_default="", editable=False)
    made_at = models.DateTimeField(_("made at"), db_default=ClockTimestamp(), editable=False)

    class Meta:
        db_table = "django_events_rollup"
        verbose_name = _("roll-up")
        verbose_name_plural = _("roll-ups")
        default_permissions = ("view",)
        constraints = [
            models.CheckConstraint(condition=readable("full_since", "left_out_at"), name="django_events_rollup_times"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def table(self) -> str:
        """The name of the table that has its figures."""
        return f"{self.TABLE}{self.pk:d}"
