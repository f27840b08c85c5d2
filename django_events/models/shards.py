"""The shards that a key may be in, and what moved from one to another."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_events.models.topics import Topic


class ShardMap(models.Model):
    """The one row that says which databases share the keys of `shard_by`, and which of them this one is.

    A publisher locks it FOR SHARE until its commit, and a change of the map takes it exclusively. While the map
    changes, a key is published only where it is by both maps.
    """

    ROW = 1

    id = models.SmallIntegerField(primary_key=True, default=ROW)
    name = models.CharField(_("this shard"), max_length=63)
    version = models.BigIntegerField(_("version"))
    shards = models.JSONField(_("shards"))
    following = models.JSONField(
        _("following shards"), null=True, blank=True, help_text=_("The shards that the map changes to now.")
    )

    class Meta:
        verbose_name = _("shard map")
        verbose_name_plural = _("shard maps")
        default_permissions = ()
        # Publishers may update the id and nothing else, which a lock FOR SHARE needs: so there is nothing to update.
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="django_events_shardmap_one")]

    def __str__(self) -> str:
        return f"{self.name}, version {self.version}"


class ShardMove(models.Model):
    """Keys of a topic came here from another shard: their events are at or behind `waits_from` here.

    There they are at or before `source_last_id`, which is known once all that was published by the old map has left the
    buffer. Consumers of here that keep the order of keys wait until those of there have come so far.
    """

    topic = models.ForeignKey(Topic, models.CASCADE, related_name="moves", verbose_name=_("topic"))
    version = models.BigIntegerField(_("version"))
    source = models.CharField(_("from shard"), max_length=63)
    waits_from = models.BigIntegerField(_("waits from"))
    source_incarnation = models.UUIDField(_("incarnation there"), null=True, blank=True)
    source_ticket = models.BigIntegerField(
        _("ticket there"),
        null=True,
        blank=True,
        help_text=_("What was published by the old map leaves the buffer with this ticket at the latest."),
    )
    source_last_id = models.BigIntegerField(_("last event there"), null=True, blank=True)

    class Meta:
        verbose_name = _("shard move")
        verbose_name_plural = _("shard moves")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["topic", "version", "source"], name="django_events_shardmove_one")
        ]

    def __str__(self) -> str:
        return f"{self.topic} from {self.source}"
