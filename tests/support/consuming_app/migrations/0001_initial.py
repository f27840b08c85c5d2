from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Effect",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer", models.CharField(max_length=63)),
                ("event", models.CharField(max_length=80)),
                ("attempt", models.IntegerField()),
                ("note", models.CharField(blank=True, max_length=80)),
            ],
        ),
    ]
