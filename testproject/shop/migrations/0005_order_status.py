from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0004_stock_is_captured"),
    ]

    operations = [
        migrations.CreateModel(
            name="OrderStatus",
            fields=[
                ("order_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("customer", models.CharField(default="", max_length=100)),
                ("sku", models.CharField(default="", max_length=20)),
                ("quantity", models.PositiveIntegerField(default=0)),
                ("status", models.CharField(default="", max_length=20)),
            ],
        ),
    ]
