"""Consumers, their positions, their dead letters, and what people did about them."""

import django.db.models.deletion
from django.db import migrations, models

import django_events.models.functions

# A position is written for every batch, in place: no index has to change, and old versions go soon.
TUNE_POSITIONS = """
ALTER TABLE django_events_position SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
)
"""


class Migration(migrations.Migration):
    dependencies = [
        ("django_events", "0002_drop_logs"),
    ]

    operations = [
        migrations.CreateModel(
            name="Consumer",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, verbose_name="name")),
                ("partitioned", models.BooleanField(default=True, verbose_name="partitioned")),
                ("types", models.JSONField(blank=True, null=True, verbose_name="types")),
                ("keys", models.JSONField(blank=True, null=True, verbose_name="keys")),
                ("where", models.TextField(blank=True, null=True, verbose_name="where")),
                ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused at")),
                (
                    "held_until",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="Workers leave it alone until then: somebody waits for the events in hand, to rewind it.",
                        null=True,
                        verbose_name="held until",
                    ),
                ),
                (
                    "registered_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="registered at",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="consumers",
                        to="django_events.topic",
                        verbose_name="topic",
                    ),
                ),
            ],
            options={
                "verbose_name": "consumer",
                "verbose_name_plural": "consumers",
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("event_id", models.BigIntegerField(verbose_name="event")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("number", models.BigIntegerField(verbose_name="number")),
                ("type", models.CharField(blank=True, max_length=200, verbose_name="type")),
                ("key", models.CharField(blank=True, max_length=512, null=True, verbose_name="key")),
                ("value", models.JSONField(blank=True, null=True, verbose_name="value")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                ("metadata", models.JSONField(blank=True, verbose_name="metadata")),
                ("published_at", models.DateTimeField(verbose_name="published at")),
                ("logged_at", models.DateTimeField(verbose_name="logged at")),
                ("attempts", models.IntegerField(verbose_name="attempts")),
                ("error", models.TextField(verbose_name="error")),
                ("traceback", models.TextField(blank=True, verbose_name="traceback")),
                (
                    "dead_at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(),
                        editable=False,
                        verbose_name="dead since",
                    ),
                ),
                (
                    "redrive_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="The consumer handles it again at this time.",
                        null=True,
                        verbose_name="redrive at",
                    ),
                ),
                (
                    "consumer",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="dead_letters",
                        to="django_events.consumer",
                        verbose_name="consumer",
                    ),
                ),
            ],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
            },
        ),
        migrations.CreateModel(
            name="Intervention",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "at",
                    models.DateTimeField(
                        db_default=django_events.models.functions.ClockTimestamp(), editable=False, verbose_name="at"
                    ),
                ),
                ("by", models.CharField(max_length=200, verbose_name="by")),
                ("action", models.CharField(max_length=20, verbose_name="action")),
                ("consumer", models.CharField(max_length=63, verbose_name="consumer")),
                ("topic", models.CharField(max_length=63, verbose_name="topic")),
                ("details", models.JSONField(blank=True, default=dict, verbose_name="details")),
            ],
            options={
                "verbose_name": "intervention",
                "verbose_name_plural": "interventions",
                "indexes": [models.Index(fields=["consumer", "at"], name="django_events_intervention_of")],
            },
        ),
        migrations.CreateModel(
            name="Position",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("position", models.BigIntegerField(default=0, verbose_name="position")),
                ("number", models.BigIntegerField(default=0, verbose_name="number")),
                ("handled", models.BigIntegerField(default=0, verbose_name="handled")),
                ("failed", models.BigIntegerField(default=0, verbose_name="failed attempts")),
                ("discarded", models.BigIntegerField(default=0, verbose_name="discarded")),
                ("dead_lettered", models.BigIntegerField(default=0, verbose_name="dead-lettered")),
                (
                    "attempted",
                    models.BigIntegerField(
                        blank=True,
                        help_text="The event that the attempts are about.",
                        null=True,
                        verbose_name="attempted event",
                    ),
                ),
                ("attempts", models.IntegerField(default=0, verbose_name="attempts")),
                ("retry_at", models.DateTimeField(blank=True, null=True, verbose_name="next attempt at")),
                (
                    "careful_until",
                    models.BigIntegerField(
                        default=0,
                        help_text="Up to this id, events are handled one by one, each attempt counted before it starts.",
                        verbose_name="one by one until",
                    ),
                ),
                ("stopped_at", models.DateTimeField(blank=True, null=True, verbose_name="stopped at")),
                ("error", models.TextField(blank=True, default="", verbose_name="last error")),
                ("token", models.BigIntegerField(blank=True, editable=False, null=True, verbose_name="lease")),
                (
                    "leased_until",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="leased until"),
                ),
                (
                    "holder",
                    models.CharField(blank=True, default="", editable=False, max_length=200, verbose_name="holder"),
                ),
                ("served_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="served at")),
                (
                    "consumer",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="positions",
                        to="django_events.consumer",
                        verbose_name="consumer",
                    ),
                ),
            ],
            options={
                "verbose_name": "position",
                "verbose_name_plural": "positions",
            },
        ),
        migrations.AddConstraint(
            model_name="consumer",
            constraint=models.UniqueConstraint(fields=("name", "topic"), name="django_events_consumer_name"),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(fields=["consumer", "key", "event_id"], name="django_events_deadletter_key"),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(
                condition=models.Q(("redrive_at__isnull", False)),
                fields=["consumer", "event_id"],
                name="django_events_deadletter_due",
            ),
        ),
        migrations.AddConstraint(
            model_name="deadletter",
            constraint=models.UniqueConstraint(fields=("consumer", "event_id"), name="django_events_deadletter_event"),
        ),
        migrations.AddConstraint(
            model_name="position",
            constraint=models.UniqueConstraint(
                fields=("consumer", "partition"), name="django_events_position_partition"
            ),
        ),
        migrations.RunSQL(TUNE_POSITIONS, migrations.RunSQL.noop),
    ]
