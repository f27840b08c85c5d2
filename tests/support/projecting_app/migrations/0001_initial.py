from decimal import Decimal

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Counter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("code", models.IntegerField(unique=True)),
                ("events", models.IntegerField(default=0)),
                ("names", models.CharField(blank=True, default="", max_length=2000)),
            ],
        ),
        migrations.CreateModel(
            name="Dated",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateField()),
            ],
        ),
        migrations.CreateModel(
            name="Region",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=20, unique=True)),
            ],
        ),
        migrations.CreateModel(
            name="Together",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "one", "two", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("one", models.IntegerField()),
                ("two", models.IntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="CustomerTotal",
            fields=[
                ("customer", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("orders", models.IntegerField(default=0)),
                ("total", models.DecimalField(decimal_places=2, default=Decimal("0"), max_digits=12)),
                ("seen", models.JSONField(default=list)),
                ("first_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "region",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="totals",
                        to="projecting_app.region",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["-total"], name="customertotal_total")],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("orders__gte", 0)), name="customertotal_orders"),
                    models.UniqueConstraint(
                        condition=models.Q(("orders", -1)), fields=("region",), name="customertotal_never"
                    ),
                ],
            },
        ),
    ]
